//! Own kernels, prepared for one device's shapes: every step but contractions and collectives.

use crate::blocks;
use crate::kernels::{
    Access, Along, Arg, BlockCopy, ConvolveKernel, CopyKernel, CrossEntropyGradKernel, CrossEntropyKernel,
    CumSumKernel, KernelError, LogSumExpKernel, LookupKernel, MapKernel, PoolKernel, PoolWork, RandomKernel,
    ReduceKernel, ScatterAddKernel, Slice, SliceMut, SoftmaxKernel, TopKKernel,
};
use crate::local::{Here, Local};
use crate::tensor::{Pool, slice, slice_mut, stored_as};
use burn_flex::FlexTensor;
use meshwright_plan::expr::Scalar;
use meshwright_plan::{Arity, BufId, DType, Dim, Expr, Prim, Step};

/// A kernel that is ready to run.
enum Kernel {
    Map(MapKernel),
    Reduce(ReduceKernel),
    Copy(CopyKernel),
    BlockCopy(BlockCopy),
    Convolve(Box<ConvolveKernel>),
    Pool(Box<PoolKernel>),
    PoolChoose(Box<PoolKernel>),
    Lookup(LookupKernel),
    ScatterAdd(ScatterAddKernel),
    Softmax(SoftmaxKernel),
    LogSumExp(LogSumExpKernel),
    CumSum(CumSumKernel),
    TopK(TopKKernel),
    CrossEntropy(CrossEntropyKernel),
    CrossEntropyGrad(CrossEntropyGradKernel),
    Random(RandomKernel),
    /// Zeros.
    Zero,
    /// Nothing but giving storage back.
    Release,
}

/// What random values of a run of a program depend on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dice {
    pub(crate) seed: u64,
    pub(crate) step: u64,
}

/// A buffer as an own op reads it.
#[derive(Clone)]
pub(crate) struct Input {
    pub(crate) buf: BufId,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    elements: usize,
}

impl From<&Local> for Input {
    fn from(local: &Local) -> Self {
        Input { buf: local.buf, dtype: local.dtype, shape: local.shape.clone(), elements: local.elements() }
    }
}

/// A tensor that an own op makes.
pub(crate) struct Output {
    pub(crate) buf: BufId,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    /// The input whose storage it takes over.
    aliases: Option<usize>,
}

/// An own op: a kernel with what it reads and writes.
pub(crate) struct Own {
    kernel: Kernel,
    /// Distinct buffers that are read, in the order in which the interpreter hands them over.
    pub(crate) inputs: Vec<Input>,
    /// For each operand of the kernel the position in `inputs`.
    loads: Vec<usize>,
    pub(crate) outputs: Vec<Output>,
}

/// Why a step could not be prepared.
pub(crate) enum Unprepared {
    Plan(String),
    Kernel(KernelError),
}

impl From<String> for Unprepared {
    fn from(problem: String) -> Self {
        Unprepared::Plan(problem)
    }
}

impl From<Arity> for Unprepared {
    fn from(problem: Arity) -> Self {
        Unprepared::Plan(problem.to_string())
    }
}

impl From<KernelError> for Unprepared {
    fn from(error: KernelError) -> Self {
        Unprepared::Kernel(error)
    }
}

impl Own {
    /// An op that reads `operands` and writes `outs`. `reuse` are pairs of buffers that should share storage, which is
    /// granted where every read of the input goes element by element with the output: operands for which the kernel does
    /// so come with their access, the others without.
    fn new(
        kernel: Kernel,
        operands: &[(&Local, Option<Access>)],
        outs: &[&Local],
        aliases: &[(BufId, BufId)],
    ) -> Own {
        let mut inputs: Vec<Input> = vec![];
        let mut loads = vec![];
        for (local, _) in operands {
            let known = inputs.iter().position(|i| i.buf == local.buf);
            loads.push(known.unwrap_or(inputs.len()));
            if known.is_none() {
                inputs.push(Input::from(*local));
            }
        }
        let granted = |out: &Local| -> Option<usize> {
            let from = aliases.iter().find(|r| r.1 == out.buf)?.0;
            let at = inputs.iter().position(|i| i.buf == from)?;
            let fits = inputs[at].elements == out.elements() && inputs[at].dtype == out.dtype;
            let in_step = operands
                .iter()
                .filter(|o| o.0.buf == from)
                .all(|o| o.1.as_ref().is_some_and(|access| access.is_dense(&out.shape)));
            (fits && in_step).then_some(at)
        };
        let outputs = outs.iter().map(|out| Output {
            buf: out.buf,
            dtype: out.dtype,
            shape: out.shape.clone(),
            aliases: granted(out),
        });
        Own { kernel, outputs: outputs.collect(), inputs, loads }
    }

    /// Gives storage back.
    pub(crate) fn release(inputs: Vec<Input>) -> Own {
        Own { kernel: Kernel::Release, inputs, loads: vec![], outputs: vec![] }
    }

    /// Zeros.
    pub(crate) fn zero(out: &Local) -> Own {
        Own::new(Kernel::Zero, &[], &[out], &[])
    }

    /// Copies `from` to another order of dims, or a part of it.
    pub(crate) fn copy(from: &Local, out: &Local) -> Result<Own, Unprepared> {
        let mut access = from.access(&out.dims);
        for (dim, range) in from.dims.iter().zip(&from.ranges) {
            let wanted = out.range(*dim)?;
            if wanted.is_empty() {
                continue;
            }
            if wanted.start < range.start || wanted.end > range.end {
                return Err(Unprepared::Plan(format!("{wanted:?} is to be copied from {range:?}")));
            }
            access.offset += (wanted.start - range.start) * from.stride(*dim);
        }
        if from.dtype != out.dtype {
            return Err(Unprepared::Plan(format!("{} is copied to {}", from.dtype, out.dtype)));
        }
        let kernel = CopyKernel::new(&out.shape, &access)?;
        Ok(Own::new(Kernel::Copy(kernel), &[(from, None)], &[out], &[]))
    }

    /// Converts `from` to the dtype of `out`, which has the same dims.
    pub(crate) fn cast(from: &Local, out: &Local) -> Result<Own, Unprepared> {
        let mut expr = Expr::default();
        let load = expr.push(Scalar::Load(0), from.dtype);
        let reg = expr.cast(load, out.dtype);
        let access = from.access(&out.dims);
        let offsets = vec![0; out.shape.len()];
        let kernel = MapKernel::new(&expr, &out.shape, std::slice::from_ref(&access), &offsets, &[reg])?;
        Ok(Own::new(Kernel::Map(kernel), &[(from, Some(access))], &[out], &[]))
    }

    /// The own op for a step; none for contractions and collectives.
    pub(crate) fn of_step(here: &Here<'_>, step: &Step) -> Result<Option<Own>, Unprepared> {
        let reuse = &step.aliases;
        Ok(Some(match &step.prim {
            Prim::Map { expr, regs } => {
                let outs = all(here, &step.writes)?;
                let inputs = all(here, &step.reads)?;
                let Some(first) = outs.first() else {
                    return Err(Unprepared::Plan("a map without outputs".into()));
                };
                here.check_aligned(&inputs.iter().chain(&outs).collect::<Vec<_>>(), &[])?;
                if outs.iter().any(|o| o.dims != first.dims) {
                    return Err(Unprepared::Plan("the outputs of a map differ in dims".into()));
                }
                if inputs.iter().any(|i| i.dims.iter().any(|d| !first.dims.contains(d))) {
                    return Err(Unprepared::Plan("a map reads a dim that it does not write".into()));
                }
                let accesses: Vec<Access> = inputs.iter().map(|i| i.access(&first.dims)).collect();
                let offsets: Vec<usize> = first.ranges.iter().map(|r| r.start).collect();
                let kernel = MapKernel::new(expr, &first.shape, &accesses, &offsets, regs)?;
                for (reg, out) in regs.iter().zip(&outs) {
                    if expr.dtype(*reg) != out.dtype {
                        let message = format!("{} is stored as {}", expr.dtype(*reg), out.dtype);
                        return Err(Unprepared::Plan(message));
                    }
                }
                let operands: Vec<_> = inputs.iter().zip(accesses.into_iter().map(Some)).collect();
                Own::new(Kernel::Map(kernel), &operands, &outs.iter().collect::<Vec<_>>(), reuse)
            }
            Prim::Reduce { monoid } => {
                let ([input], [out]) = step.operands()?;
                let [input, out] = two(here, input, out, &[])?;
                let folded: Vec<Dim> = input.dims.iter().filter(|d| out.at(**d).is_none()).copied().collect();
                if out.dims.iter().any(|d| input.at(*d).is_none()) {
                    return Err(Unprepared::Plan("a reduction writes a dim that it does not read".into()));
                }
                let fold: Vec<usize> =
                    folded.iter().filter_map(|d| input.at(*d)).map(|i| input.shape[i]).collect();
                let offset = folded.first().map_or(Ok(0), |d| input.range(*d).map(|r| r.start))?;
                let access = input.access(&[out.dims.as_slice(), &folded].concat());
                let kernel = ReduceKernel::new(*monoid, &out.shape, &fold, &access, offset)?;
                Own::new(Kernel::Reduce(kernel), &[(&input, None)], &[&out], reuse)
            }
            Prim::Lookup { dim } => {
                let ([table, index], [out]) = step.operands()?;
                let [table, index, out] = three(here, table, index, out, &[*dim])?;
                let along = along(&table, *dim)?;
                let kernel =
                    LookupKernel::new(&out.shape, &table.access(&out.dims), along, &index.access(&out.dims))?;
                Own::new(Kernel::Lookup(kernel), &[(&table, None), (&index, None)], &[&out], reuse)
            }
            Prim::ScatterAdd { dim } => {
                let ([values, index], [out]) = step.operands()?;
                let [values, index, out] = three(here, values, index, out, &[*dim])?;
                // Over all dims of the values, and what these lack of the others before them.
                let missing = index.dims.iter().chain(out.dims.iter().filter(|d| *d != dim));
                let mut over: Vec<Dim> = vec![];
                for d in missing.filter(|d| values.at(**d).is_none()) {
                    if !over.contains(d) {
                        over.push(*d);
                    }
                }
                over.extend(&values.dims);
                let mut shape = vec![];
                for d in &over {
                    let held = [&values, &index, &out].into_iter().find(|l| l.at(*d).is_some());
                    shape.push(held.map_or(Ok(0), |l| l.range(*d).map(ExactSizeIterator::len))?);
                }
                let along = along(&out, *dim)?;
                let accesses = [&values, &index, &out].map(|l| l.access(&over));
                let kernel = ScatterAddKernel::new(&shape, &accesses[0], &accesses[1], &accesses[2], along)?;
                Own::new(Kernel::ScatterAdd(kernel), &[(&values, None), (&index, None)], &[&out], reuse)
            }
            Prim::Softmax { dim, log } => {
                let ([input], [out]) = step.operands()?;
                let [input, out] = two(here, input, out, &[])?;
                same_dims(&input, &out)?;
                let at = position(&input, *dim)?;
                let kernel = SoftmaxKernel::new(input.dtype, &out.shape, at, *log)?;
                let dense = Some(input.access(&out.dims));
                Own::new(Kernel::Softmax(kernel), &[(&input, dense)], &[&out], reuse)
            }
            Prim::CumSum { dim, reverse, exclusive } => {
                let ([input], [out]) = step.operands()?;
                let [input, out] = two(here, input, out, &[])?;
                same_dims(&input, &out)?;
                let at = position(&input, *dim)?;
                let kernel = CumSumKernel::new(input.dtype, &out.shape, at, *reverse, *exclusive)?;
                let dense = Some(input.access(&out.dims));
                Own::new(Kernel::CumSum(kernel), &[(&input, dense)], &[&out], reuse)
            }
            Prim::TopK { dim, to } => {
                let ([input], [out]) = step.operands()?;
                let [input, out] = two(here, input, out, &[])?;
                let Some((last, rows)) = out.dims.split_last().filter(|(last, _)| *last == to) else {
                    return Err(Unprepared::Plan("the ranks are not the last dim of their result".into()));
                };
                let (count, ranks) = (input.range(*dim)?.len(), out.range(*last)?.clone());
                let access = input.access(&[rows, &[*dim]].concat());
                let kernel = TopKKernel::new(&out.shape[..rows.len()], count, &access, ranks)?;
                Own::new(Kernel::TopK(kernel), &[(&input, None)], &[&out], reuse)
            }
            Prim::LogSumExp { dim } => {
                let ([input], [out]) = step.operands()?;
                let [input, out] = two(here, input, out, &[])?;
                let (classes, access) = rows_then(&input, &out, *dim)?;
                let kernel = LogSumExpKernel::new(&out.shape, classes, &access)?;
                Own::new(Kernel::LogSumExp(kernel), &[(&input, None)], &[&out], reuse)
            }
            Prim::CrossEntropy { dim } => {
                let ([logits, label], [out]) = step.operands()?;
                let [logits, label, out] = three(here, logits, label, out, &[])?;
                let (classes, access) = rows_then(&logits, &out, *dim)?;
                let kernel = CrossEntropyKernel::new(&out.shape, classes, &access, &label.access(&out.dims))?;
                Own::new(Kernel::CrossEntropy(kernel), &[(&logits, None), (&label, None)], &[&out], reuse)
            }
            Prim::CrossEntropyGrad { dim } => {
                let ([logits, label, scale], [out]) = step.operands()?;
                let [logits, label, out] = three(here, logits, label, out, &[])?;
                let scale = here.local(scale)?;
                here.check_aligned(&[&scale, &out], &[])?;
                same_dims(&logits, &out)?;
                let at = position(&logits, *dim)?;
                let [labels, scales] = [&label, &scale].map(|l| l.access(&out.dims));
                let kernel = CrossEntropyGradKernel::new(out.dtype, &out.shape, at, &labels, &scales)?;
                let dense = Some(logits.access(&out.dims));
                let operands = [(&logits, dense), (&label, None), (&scale, None)];
                Own::new(Kernel::CrossEntropyGrad(kernel), &operands, &[&out], reuse)
            }
            Prim::Random { stream, distribution } => {
                let ([], [out]) = step.operands()?;
                let out = here.local(out)?;
                let sizes = here.plan.dims.shape(&out.dims);
                let kernel = RandomKernel::new(stream, *distribution, out.dtype, &sizes, &out.ranges)?;
                Own::new(Kernel::Random(kernel), &[], &[&out], reuse)
            }
            Prim::Copy => {
                let ([from], [out]) = step.operands()?;
                Own::copy(&here.local(from)?, &here.local(out)?)?
            }
            Prim::Shift { .. } | Prim::Concat { .. } | Prim::SplitDim { .. } | Prim::MergeDims { .. } => {
                let moves = blocks::prepare(here, step)?;
                let operands: Vec<_> = moves.from.iter().map(|l| (l, None)).collect();
                Own::new(Kernel::BlockCopy(moves.kernel), &operands, &[&moves.out], &[])
            }
            Prim::Convolve { windows, computes } => {
                let ([a, b], [out]) = step.operands()?;
                let [x, w, y] = computes.arrange([a, b], out);
                let all = [here.local(x)?, here.local(w)?, here.local(y)?];
                let (kernel, [a, b, out]) = crate::windows::convolve(here, &all, windows, *computes)?;
                let operands = [(&all[a], None), (&all[b], None)];
                Own::new(Kernel::Convolve(Box::new(kernel)), &operands, &[&all[out]], &[])
            }
            Prim::Pool { monoid, windows, spread } => {
                let ([input], [out]) = step.operands()?;
                let [input, out] = [here.local(input)?, here.local(out)?];
                let work = if *spread { PoolWork::Spread } else { PoolWork::Fold(*monoid) };
                let kernel = crate::windows::pool(here, work, [&input, &out], windows)?;
                Own::new(Kernel::Pool(Box::new(kernel)), &[(&input, None)], &[&out], &[])
            }
            Prim::ArgmaxPool { monoid, windows } => {
                let ([input], [out]) = step.operands()?;
                let [input, out] = [here.local(input)?, here.local(out)?];
                let kernel = crate::windows::pool(here, PoolWork::Tap(*monoid), [&input, &out], windows)?;
                Own::new(Kernel::Pool(Box::new(kernel)), &[(&input, None)], &[&out], &[])
            }
            Prim::Unpool { windows } => {
                let ([tap, values], [out]) = step.operands()?;
                let [tap, values, out] = [here.local(tap)?, here.local(values)?, here.local(out)?];
                same_dims(&tap, &values)?;
                here.check_aligned(&[&tap, &values], &[])?;
                let kernel = crate::windows::pool(here, PoolWork::Choose, [&values, &out], windows)?;
                Own::new(Kernel::PoolChoose(Box::new(kernel)), &[(&tap, None), (&values, None)], &[&out], &[])
            }
            Prim::Contract | Prim::Collective(_) | Prim::Wait => return Ok(None),
        }))
    }

    /// Runs it on `inputs` (one for each of `self.inputs`), whose storage is given back where `ends` says that this is the last
    /// use. Gives the outputs.
    pub(crate) fn run(
        &self,
        inputs: Vec<FlexTensor>,
        ends: impl Fn(usize) -> bool,
        dice: Dice,
        pool: &mut Pool,
    ) -> Result<Vec<FlexTensor>, KernelError> {
        let mut inputs: Vec<Option<FlexTensor>> = inputs.into_iter().map(Some).collect();
        // Where the storage of an input is an output's now.
        let mut became: Vec<Option<usize>> = vec![None; inputs.len()];
        let mut outs = Vec::with_capacity(self.outputs.len());
        for (k, out) in self.outputs.iter().enumerate() {
            let reused = out.aliases.and_then(|at| {
                let free = |t: &mut FlexTensor| t.is_unique() && t.dtype() == stored_as(out.dtype);
                let tensor = inputs[at].take_if(free)?;
                became[at] = Some(k);
                Some(tensor)
            });
            outs.push(reused.unwrap_or_else(|| pool.take(out.dtype, &out.shape)));
        }
        self.compute(&inputs, &became, dice, &mut outs)?;
        for (at, tensor) in inputs.into_iter().enumerate() {
            if let Some(tensor) = tensor
                && ends(at)
            {
                pool.give(tensor, self.inputs[at].dtype, self.inputs[at].elements);
            }
        }
        Ok(outs)
    }

    fn compute(
        &self,
        inputs: &[Option<FlexTensor>],
        became: &[Option<usize>],
        dice: Dice,
        outs: &mut [FlexTensor],
    ) -> Result<(), KernelError> {
        let arg = |operand: usize| -> Arg<'_> {
            let at = self.loads[operand];
            match (&inputs[at], became[at]) {
                (Some(tensor), _) => Arg::Slice(slice(tensor, self.inputs[at].dtype)),
                (None, out) => Arg::Out(out.unwrap_or(0)),
            }
        };
        let read = |operand: usize| -> Result<Slice<'_>, KernelError> {
            match arg(operand) {
                Arg::Slice(slice) => Ok(slice),
                Arg::Out(_) => Err(KernelError::Unsupported("this operand cannot be overwritten".into())),
            }
        };
        let mut written: Vec<SliceMut<'_>> =
            outs.iter_mut().zip(&self.outputs).map(|(t, o)| slice_mut(t, o.dtype)).collect();
        if let Kernel::Map(kernel) = &self.kernel {
            let args: Vec<Arg<'_>> = (0..self.loads.len()).map(arg).collect();
            return kernel.run(&args, &mut written);
        }
        let Some(out) = written.pop() else { return Ok(()) };
        match &self.kernel {
            Kernel::Map(_) | Kernel::Release => Ok(()),
            Kernel::Zero => {
                clear(out);
                Ok(())
            }
            Kernel::Random(kernel) => kernel.run(dice.seed, dice.step, out),
            Kernel::Reduce(kernel) => kernel.run(read(0)?, out),
            Kernel::Copy(kernel) => kernel.run(read(0)?, out),
            Kernel::BlockCopy(kernel) => {
                let from: Vec<Slice<'_>> = (0..self.loads.len()).map(read).collect::<Result<_, _>>()?;
                kernel.run(&from, out)
            }
            Kernel::Convolve(kernel) => kernel.run(read(0)?, read(1)?, out),
            Kernel::Pool(kernel) => kernel.run(read(0)?, None, out),
            Kernel::PoolChoose(kernel) => kernel.run(read(0)?, Some(read(1)?), out),
            Kernel::Lookup(kernel) => kernel.run(read(0)?, read(1)?, out),
            Kernel::ScatterAdd(kernel) => kernel.run(read(0)?, read(1)?, out),
            Kernel::Softmax(kernel) => kernel.run(arg(0), out),
            Kernel::CumSum(kernel) => kernel.run(arg(0), out),
            Kernel::TopK(kernel) => kernel.run(read(0)?, out),
            Kernel::LogSumExp(kernel) => kernel.run(read(0)?, out),
            Kernel::CrossEntropy(kernel) => kernel.run(read(0)?, read(1)?, out),
            Kernel::CrossEntropyGrad(kernel) => kernel.run(arg(0), read(1)?, read(2)?, out),
        }
    }
}

fn all<'a>(
    here: &Here<'_>,
    operands: impl IntoIterator<Item = &'a meshwright_plan::Operand>,
) -> Result<Vec<Local>, String> {
    operands.into_iter().map(|o| here.local(o)).collect()
}

fn two(
    here: &Here<'_>,
    a: &meshwright_plan::Operand,
    b: &meshwright_plan::Operand,
    except: &[Dim],
) -> Result<[Local; 2], String> {
    let found = [here.local(a)?, here.local(b)?];
    here.check_aligned(&found.each_ref(), except)?;
    Ok(found)
}

fn three(
    here: &Here<'_>,
    a: &meshwright_plan::Operand,
    b: &meshwright_plan::Operand,
    c: &meshwright_plan::Operand,
    except: &[Dim],
) -> Result<[Local; 3], String> {
    let found = [here.local(a)?, here.local(b)?, here.local(c)?];
    here.check_aligned(&found.each_ref(), except)?;
    Ok(found)
}

fn position(local: &Local, dim: Dim) -> Result<usize, String> {
    local.at(dim).ok_or_else(|| format!("an operand lacks the dim {}", dim.0))
}

fn same_dims(a: &Local, b: &Local) -> Result<(), String> {
    if a.dims == b.dims { Ok(()) } else { Err("dims of input and result differ".into()) }
}

fn along(local: &Local, dim: Dim) -> Result<Along, String> {
    let range = local.range(dim)?;
    Ok(Along { stride: local.stride(dim), start: range.start, len: range.len() })
}

/// Access over the rows of `out`, then the classes along `dim`.
fn rows_then(input: &Local, out: &Local, dim: Dim) -> Result<(usize, Access), String> {
    let classes = input.range(dim)?.len();
    Ok((classes, input.access(&[out.dims.as_slice(), &[dim]].concat())))
}

fn clear(out: SliceMut<'_>) {
    match out {
        SliceMut::F64(s) => s.fill(0.0),
        SliceMut::F32(s) => s.fill(0.0),
        SliceMut::BF16(s) => s.fill(half::bf16::ZERO),
        SliceMut::I32(s) => s.fill(0),
        SliceMut::U8(s) | SliceMut::Bool(s) => s.fill(0),
        SliceMut::PairF32(s) => s.fill(Default::default()),
        SliceMut::PairF64(s) => s.fill(Default::default()),
    }
}
