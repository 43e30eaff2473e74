//! Lowering of steps to kernels: which function prepares which primitive, and what all of them share. A primitive is prepared
//! from its operands and results on this device; what is of a half type and unknown to its kernel comes and goes as copies in `f32`.

use super::kernel::{Held, Kernel, KernelWork, Output, exactly};
use super::kernels::{Access, Arg, KernelError, MapKernel, RandomKernel, ReduceKernel, SliceMut};
use super::{attention, blocks, index, kernels, moves, rows, windows};
use crate::engine::context::{DeviceContext, Local};
use crate::engine::graph::{TensorSlot, Val};
use crate::engine::lowering::{Lowering, LoweringError, Plane, stored_as, stored_shape};
use meshwright_plan::expr::{Reg, Scalar};
use meshwright_plan::random::Distribution;
use meshwright_plan::{BufId, DType, Dim, Expr, HalfFloats, Prim, Step};

impl Lowering<'_, Kernel> {
    /// Records the operations of a step that computes.
    pub(super) fn step(&mut self, step: &Step) -> Result<(), LoweringError> {
        let mut reads = vec![];
        for operand in &step.reads {
            let local = self.context.local(operand)?;
            reads.push(self.held(&local));
        }
        let writes: Vec<Local> =
            step.writes.iter().map(|o| self.context.local(o)).collect::<Result<_, _>>()?;
        if let Prim::Contract = step.prim {
            return self.contract(reads, writes);
        }
        let mut outs = writes.clone();
        if step.prim.spec().half == HalfFloats::Widened {
            reads = reads.into_iter().map(|r| self.upcast(r)).collect::<Result<_, _>>()?;
            outs.iter_mut().for_each(|o| o.dtype = o.dtype.wide());
        }
        let locals: Vec<Local> = reads.iter().map(|r| r.local.clone()).collect();
        let work = prepare(&self.context, step, &locals, &outs)?;
        let made = self.record(step.name(), work, &reads, &outs, &step.aliases);
        for (made, to) in made.into_iter().zip(&writes) {
            self.store(made, to)?;
        }
        Ok(())
    }

    fn plane(local: &Local) -> Plane {
        Plane { slot: TensorSlot::Buffer(local.buf), dtype: local.dtype }
    }

    fn held(&mut self, local: &Local) -> Held {
        let val = self.read_plane(local, Self::plane(local));
        Held { local: local.clone(), val }
    }

    /// The operand in `f32`, if it is of a half type.
    pub(super) fn upcast(&mut self, x: Held) -> Result<Held, LoweringError> {
        let wide = Local { dtype: x.local.dtype.wide(), ..x.local.clone() };
        if wide.dtype == x.local.dtype { Ok(x) } else { self.cast(&x, wide) }
    }

    fn cast(&mut self, from: &Held, to: Local) -> Result<Held, LoweringError> {
        let mut expr = Expr::default();
        let load = expr.push(Scalar::Load(0), from.local.dtype);
        let reg = expr.cast(load, to.dtype);
        let work =
            map(&self.context, &expr, &[reg], std::slice::from_ref(&from.local), std::slice::from_ref(&to))?;
        Ok(self.one("cast", work, std::slice::from_ref(from), &to))
    }

    /// Where a result goes, rounded to the dtype of the buffer.
    pub(super) fn store(&mut self, made: Held, to: &Local) -> Result<(), LoweringError> {
        let made = if made.local.dtype == to.dtype { made } else { self.cast(&made, to.clone())? };
        self.graph.store(made.val, TensorSlot::Buffer(to.buf));
        Ok(())
    }

    /// Records a kernel with one result, which takes nobody's storage.
    pub(super) fn one(&mut self, name: &'static str, work: KernelWork, reads: &[Held], out: &Local) -> Held {
        self.record(name, work, reads, std::slice::from_ref(out), &[]).swap_remove(0)
    }

    /// Records a kernel. `aliases` are pairs of buffers that should share storage, which is granted where every read of the
    /// operand goes element by element with the result.
    fn record(
        &mut self,
        name: &'static str,
        work: KernelWork,
        reads: &[Held],
        outs: &[Local],
        aliases: &[(BufId, BufId)],
    ) -> Vec<Held> {
        let (mut inputs, mut dtypes, mut loads): (Vec<Val>, Vec<DType>, Vec<usize>) =
            (vec![], vec![], vec![]);
        for read in reads {
            let known = inputs.iter().position(|v| *v == read.val);
            loads.push(known.unwrap_or(inputs.len()));
            if known.is_none() {
                inputs.push(read.val);
                dtypes.push(read.local.dtype);
            }
        }
        let granted = |out: &Local| -> Option<usize> {
            let from = aliases.iter().find(|r| r.1 == out.buf)?.0;
            let k = reads.iter().position(|r| r.local.buf == from)?;
            let local = &reads[k].local;
            let fits = local.elements() == out.elements() && local.dtype == out.dtype;
            let aligned = |k: usize| work.aligned.get(k)?.as_ref().filter(|a| a.is_dense(&out.shape));
            let mut uses = (0..reads.len()).filter(|k| reads[*k].local.buf == from);
            (fits && uses.all(|k| aligned(k).is_some())).then_some(loads[k])
        };
        let output = |o: &Local| Output { dtype: o.dtype, shape: o.shape.clone(), aliases: granted(o) };
        let outputs = outs.iter().map(output).collect();
        let stored = outs.iter().map(|o| (stored_shape(o.dtype, &o.shape), stored_as(o.dtype)));
        let vals = self.graph.kernel((name, self.kernels.len()), inputs, stored);
        self.kernels.push(Kernel { work, inputs: dtypes, loads, outputs });
        vals.into_iter().zip(outs).map(|(val, o)| Held { local: o.clone(), val }).collect()
    }
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
        Prim::Contract | Prim::Collective(_) | Prim::Wait | Prim::Repeat { .. } | Prim::EndRepeat => {
            Err(LoweringError::Plan(format!("a {} is no kernel", step.name())))
        }
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
    let aligned = accesses.into_iter().map(Some).collect();
    Ok(KernelWork::new(aligned, move |args, outs| kernel.run(&args.all().collect::<Vec<_>>(), outs)))
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
    let kernel = RandomKernel::new(stream, distribution, out.dtype, &sizes, &out.ranges)?
        .of_examples(context.examples_of(out))
        .in_parts(context.parts_of(out));
    Ok(KernelWork::to_one(move |args, out| {
        let rng = args.rng;
        kernel.run(rng.seed, rng.moment(), rng.first_example, out)
    }))
}
