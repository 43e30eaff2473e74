//! Kernels that are ready to run, from their descriptions in a device plan: which function prepares which primitive.

use super::kernel::{Args, Kernel, KernelWork, Output, exactly};
use super::kernels::{
    Access, Arg, DrawBlock, Factored, HostKernel, HostWork, KernelError, MapKernel, MatmulKernel,
    RandomBlock, ReduceKernel, SliceMut, ThinKernel,
};
use super::{attention, blocks, index, kernels, moves, rows, windows};
use meshwright_device::LoweringError;
use meshwright_device::lowering::local::{DeviceContext, Local};
use meshwright_plan::expr::{Reg, Scalar};
use meshwright_plan::random::Distribution;
use meshwright_plan::{Dim, Expr, Prim, Step};
use std::sync::Arc;

/// A kernel that is ready to run.
///
/// # Errors
/// Where its operands contradict what it computes.
pub(super) fn ready(context: &DeviceContext<'_>, of: &Arc<HostKernel>) -> Result<Kernel, LoweringError> {
    let HostKernel { reads, writes, inputs, loads, over, .. } = &**of;
    let work = match &of.work {
        HostWork::Step(at, _) | HostWork::Show(at) => match context.plan.steps.get(*at) {
            Some(step) => prepare(context, step, reads, writes)?,
            None => return Err(LoweringError::Plan(format!("there is no step {at}"))),
        },
        HostWork::Cast => {
            let ([from], [to]) = (exactly(reads)?, exactly(writes)?);
            let mut expr = Expr::default();
            let load = expr.push(Scalar::Load(0), from.dtype);
            let reg = expr.cast(load, to.dtype);
            map(context, &expr, &[reg], reads, writes)?
        }
        HostWork::Zero => KernelWork::to_one(zeros),
        HostWork::Copy => moves::copy(reads, writes)?,
        HostWork::Matmul(product) => {
            let ([batch @ .., m, n], [out]) = (product.shape.as_slice(), exactly(writes)?) else {
                return Err(LoweringError::Plan("a product has rows and columns".into()));
            };
            let sizes = [*m, *n, product.summed];
            let [left, right] = [&product.left, &product.right].map(Factored::of);
            let kernel = MatmulKernel::new(out.dtype, batch, sizes, left, right)?;
            KernelWork::to_one(move |args, out| kernel.run(args.read(0)?, args.read(1)?, out))
        }
        HostWork::ThinProduct { shape, of_left } => {
            let [left, _] = exactly(reads)?;
            let (kernel, of_left) = (ThinKernel::new(left.dtype, *shape)?, *of_left);
            KernelWork::to_one(move |args, out| {
                let (thin, matrix) = if of_left { (0, 1) } else { (1, 0) };
                kernel.run(args.read(thin)?, args.read(matrix)?, out)
            })
        }
        HostWork::Pack(arrays) => moves::packing(of, arrays),
        HostWork::Unpack(view, blocks) => moves::unpacking(of, *view, blocks),
        HostWork::JoinHalo(halo, has) => moves::joining(of, halo, *has),
    };
    let outputs = writes.iter().zip(over);
    let outputs = outputs.map(|(o, over)| Output { dtype: o.dtype, shape: o.shape.clone(), aliases: *over });
    Ok(Kernel { work, inputs: inputs.clone(), loads: loads.clone(), outputs: outputs.collect() })
}

/// Of every dtype zero is all bits 0.
fn zeros(_: &Args<'_>, out: SliceMut<'_>) -> Result<(), KernelError> {
    out.into_bytes().fill(0);
    Ok(())
}

/// The kernel of a step: of every primitive but contractions and communication.
fn prepare(
    context: &DeviceContext<'_>,
    step: &Step,
    reads: &[Local],
    writes: &[Local],
) -> Result<KernelWork, LoweringError> {
    // Their number is checked before they are taken apart.
    match &step.prim {
        Prim::Map { expr, regs } => map(context, expr, regs, reads, writes),
        Prim::Reduce { monoid } => reduce(context, reads, writes, |keep, fold, input, offset| {
            ReduceKernel::new(*monoid, keep, fold, input, offset)
        }),
        Prim::ScaledSquares => reduce(context, reads, writes, |keep, fold, input, _| {
            ReduceKernel::scaled_squares(keep, fold, input)
        }),
        Prim::Lookup { dims } => index::lookup(context, dims, reads, writes),
        Prim::ScatterAdd { dims } => index::scatter_add(context, dims, reads, writes),
        Prim::Softmax { dim, log } => rows::in_place(context, *dim, reads, writes, |dtype, shape, at| {
            let kernel = kernels::SoftmaxKernel::new(dtype, shape, at, *log)?;
            Ok(move |input: Arg<'_>, out: SliceMut<'_>| kernel.run(input, out))
        }),
        Prim::LogSumExp { dim } => rows::log_sum_exp(context, *dim, reads, writes),
        Prim::CrossEntropy { dim } => rows::cross_entropy(context, *dim, reads, writes),
        Prim::CrossEntropyGrad { dim } => rows::cross_entropy_grad(context, *dim, reads, writes),
        Prim::Attention { spec, parts } => attention::attention(context, spec, parts, reads, writes),
        Prim::TopK { dim, to } => rows::top_k(context, [*dim, *to], reads, writes),
        Prim::CumSum { dim, reverse, exclusive } => {
            rows::in_place(context, *dim, reads, writes, |dtype, shape, at| {
                let kernel = kernels::CumSumKernel::new(dtype, shape, at, *reverse, *exclusive)?;
                Ok(move |input: Arg<'_>, out: SliceMut<'_>| kernel.run(input, out))
            })
        }
        Prim::Convolve { windows, computes } => windows::convolve(context, windows, *computes, reads, writes),
        Prim::Pool { monoid, windows, spread } => {
            windows::pool(context, windows, *monoid, *spread, reads, writes)
        }
        Prim::ArgmaxPool { monoid, windows } => {
            windows::argmax_pool(context, windows, *monoid, reads, writes)
        }
        Prim::Unpool { windows } => windows::unpool(context, windows, reads, writes),
        Prim::Shift { .. }
        | Prim::Reverse { .. }
        | Prim::Concat { .. }
        | Prim::SplitDim { .. }
        | Prim::MergeDims { .. } => blocks::prepare(context, step, reads, writes),
        Prim::Random { stream, distribution } => random(context, stream, *distribution, writes),
        Prim::Copy => moves::copy(reads, writes),
        Prim::IterationSlice { dim } => moves::iteration_slice(*dim, reads, writes),
        Prim::IterationUpdate { dim } => moves::iteration_update(*dim, reads, writes),
        Prim::DynamicUpdateSlice { dim, from, iteration } => {
            moves::dynamic_update_slice(context, [*dim, *from], *iteration, reads, writes)
        }
        Prim::Blank { zero } => moves::blank(*zero),
        Prim::Contract
        | Prim::Collective(_)
        | Prim::Wait
        | Prim::Repeat { .. }
        | Prim::EndRepeat
        | Prim::Receive { .. }
        | Prim::Send { .. } => Err(LoweringError::Plan(format!("a {} is no kernel", step.name()))),
    }
}

fn map(
    context: &DeviceContext<'_>,
    expr: &Expr,
    regs: &[Reg],
    inputs: &[Local],
    outs: &[Local],
) -> Result<KernelWork, LoweringError> {
    let problem = |what: &str| Err(LoweringError::Plan(what.into()));
    let Some(first) = outs.first() else { return problem("a map without outputs") };
    context.check_aligned(&inputs.iter().chain(outs).collect::<Vec<_>>(), &[])?;
    if outs.iter().any(|o| o.dims != first.dims) || regs.len() != outs.len() {
        return problem("the outputs of a map differ in dims");
    }
    if inputs.iter().any(|i| i.dims.iter().any(|d| !first.dims.contains(d))) {
        return problem("a map reads a dim that it does not write");
    }
    let accesses: Vec<Access> = inputs.iter().map(|i| i.access(&first.dims)).collect();
    let offsets: Vec<usize> = first.ranges.iter().map(|r| r.start).collect();
    let kernel = MapKernel::new(expr, &first.shape, &accesses, &offsets, regs)?;
    for (reg, out) in regs.iter().zip(outs) {
        if expr.dtype(*reg) != out.dtype {
            return problem(&format!("{} is stored as {}", expr.dtype(*reg), out.dtype));
        }
    }
    Ok(KernelWork::new(move |args, outs| kernel.run(&args.all().collect::<Vec<_>>(), outs)))
}

/// A fold, by the kernel that `prepared` makes for the sizes that are kept and folded, what is read and where it begins.
fn reduce(
    context: &DeviceContext<'_>,
    reads: &[Local],
    writes: &[Local],
    prepared: impl Fn(&[usize], &[usize], &Access, usize) -> Result<ReduceKernel, KernelError>,
) -> Result<KernelWork, LoweringError> {
    let ([input], [out]) = (exactly(reads)?, exactly(writes)?);
    context.check_aligned(&[input, out], &[])?;
    let folded: Vec<Dim> = input.dims.iter().filter(|d| out.at(**d).is_none()).copied().collect();
    if out.dims.iter().any(|d| input.at(*d).is_none()) {
        return Err(LoweringError::Plan("a reduction writes a dim that it does not read".into()));
    }
    let fold: Vec<usize> = folded.iter().filter_map(|d| input.at(*d)).map(|i| input.shape[i]).collect();
    let offset = folded.first().map_or(Ok(0), |d| input.range(*d).map(|r| r.start))?;
    let access = input.access(&[out.dims.as_slice(), &folded].concat());
    let kernel = prepared(&out.shape, &fold, &access, offset)?;
    Ok(KernelWork::to_one(move |args, out| kernel.run(args.read(0)?, out)))
}

fn random(
    context: &DeviceContext<'_>,
    stream: &str,
    distribution: Distribution,
    writes: &[Local],
) -> Result<KernelWork, LoweringError> {
    let [out] = exactly(writes)?;
    let sizes = context.plan.dims.shape(&out.dims);
    let kernel = RandomBlock::new(stream, distribution, out.dtype, &sizes, &out.ranges)?
        .of_examples(context.examples_of(out))
        .in_parts(context.parts_of(out))
        .in_order(&out.dims, &context.plan.dims);
    Ok(KernelWork::to_one(move |args, out| {
        let rng = args.rng;
        kernel.run(rng.seed, rng.moment(), rng.first_example, out)
    }))
}
