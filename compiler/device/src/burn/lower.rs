//! Lowering of a step: operands and results by names of dims, and the dispatch to the file that lowers it.

use crate::error::KernelError;
use crate::error::LoweringError;
use crate::kernels::Kernel;
use crate::kernels::random::RandomBlock;
use crate::lowering::Lowering;
use crate::lowering::graph::Val;
use crate::lowering::local::Local;
use crate::lowering::ops::{Binary, numeric};
use crate::slot::TensorSlot;
use crate::stored::{extents, is_half, stored_as};
use burn_backend::DType as BurnType;
use burn_ir::{DimOpIr, NumericOperationIr};
use meshwright_plan::random::Distribution;
use meshwright_plan::{Dim, Operand, Prim, Step};

/// Lowers steps to operations of Burn.
pub(super) type Lower<'a> = Lowering<'a>;

/// A tensor with the name of each of its extents. A scalar has one extent of 1 and no name.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub val: Val,
    pub dims: Vec<Dim>,
}

pub(super) fn unsupported<T>(what: impl Into<String>) -> Result<T, LoweringError> {
    Err(LoweringError::Kernel(KernelError::Unsupported(what.into())))
}

impl Lower<'_> {
    /// Records the operations of a step; none for a collective.
    pub(crate) fn step(&mut self, step: &Step) -> Result<(), LoweringError> {
        let outs: Vec<Local> = step.writes.iter().map(|o| self.context.local(o)).collect::<Result<_, _>>()?;
        if outs.iter().all(|o| o.elements() == 0) {
            return Ok(());
        }
        match &step.prim {
            Prim::Map { expr, regs } => self.map(step, expr, regs),
            Prim::Contract => self.contract(step),
            Prim::Reduce { monoid } => self.reduction(step, *monoid),
            Prim::ScaledSquares => self.scaled_squares(step),
            Prim::Lookup { dims } => self.lookup(step, dims),
            Prim::ScatterAdd { dims } => self.scatter_add(step, dims),
            Prim::Softmax { dim, log } => self.softmax(step, *dim, *log),
            Prim::LogSumExp { dim } => self.log_sum_exp(step, *dim),
            Prim::CrossEntropy { dim } => self.cross_entropy(step, *dim),
            Prim::CrossEntropyGrad { dim } => self.cross_entropy_grad(step, *dim),
            Prim::Attention { spec, parts } => self.attention(step, spec, parts),
            Prim::TopK { dim, to } => self.top_k(step, *dim, *to),
            Prim::CumSum { dim, reverse, exclusive } => {
                let ([input], [out]) = self.locals(step)?;
                let axis = self.same(&input, &out, *dim)?;
                let x = self.read(&input);
                let x = self.wide(x.val);
                let e = &mut self.graph;
                let x = if *reverse { e.flip(x, axis) } else { x };
                let sum = e.alike(x, move |input, out| {
                    numeric(input.dtype, NumericOperationIr::CumSum(DimOpIr { input, out, axis }))
                });
                let sum = if *exclusive { e.delay(sum, axis) } else { sum };
                let sum = if *reverse { e.flip(sum, axis) } else { sum };
                self.write_val(sum, &out);
                Ok(())
            }
            Prim::Convolve { windows, computes } => self.convolve(step, windows, *computes),
            Prim::Pool { monoid, windows, spread: false } => self.pool(step, *monoid, windows),
            Prim::Pool { windows, spread: true, .. } => self.unpool(step, windows),
            Prim::ArgmaxPool { monoid, windows } => self.argmax_pool(step, *monoid, windows),
            Prim::Unpool { windows } => self.pool_choose(step, windows),
            Prim::Shift { .. }
            | Prim::Reverse { .. }
            | Prim::Concat { .. }
            | Prim::SplitDim { .. }
            | Prim::MergeDims { .. } => self.blocks(step),
            Prim::Random { stream, distribution } => self.random(step, stream, distribution),
            Prim::Copy => self.copy(step),
            Prim::IterationSlice { dim } => {
                let ([all], [out]) = self.locals(step)?;
                let all = self.read(&all);
                let made = self.slice_of_iteration(*dim, all.val, &out.shape);
                self.write_val(made, &out);
                Ok(())
            }
            Prim::IterationUpdate { dim } => {
                let ([all, value], [out]) = self.locals(step)?;
                let (all, value) = (self.read(&all), self.read(&value));
                let made = self.update_of_iteration(*dim, [all.val, value.val], &out.shape);
                self.write_val(made, &out);
                Ok(())
            }
            Prim::DynamicUpdateSlice { dim, from, iteration } => {
                self.dynamic_update_slice(step, [*dim, *from], *iteration)
            }
            Prim::Blank { zero } => {
                let ([], [out]) = self.locals(step)?;
                let (shape, dtype) = (extents(&out.shape), stored_as(out.dtype));
                let made = match zero {
                    true => self.graph.full(&shape, dtype, 0.0),
                    false => self.graph.kernel(Kernel::Blank, vec![], [(shape, dtype)])[0],
                };
                self.write_val(made, &out);
                Ok(())
            }
            Prim::Collective(_)
            | Prim::Wait
            | Prim::Repeat { .. }
            | Prim::EndRepeat
            | Prim::Receive { .. }
            | Prim::Send { .. } => Ok(()),
        }
    }

    /// The slice at the position of the iteration, with that shape.
    pub(crate) fn slice_of_iteration(&mut self, dim: Dim, all: Val, shape: &[usize]) -> Val {
        let stored = (extents(shape), self.graph.dtype(all));
        self.graph.kernel(Kernel::IterationSlice(dim), vec![all], [stored])[0]
    }

    /// Writes a value at the position of the iteration into a tensor of that shape.
    pub(crate) fn update_of_iteration(&mut self, dim: Dim, all_and_value: [Val; 2], shape: &[usize]) -> Val {
        let stored = (extents(shape), self.graph.dtype(all_and_value[0]));
        self.graph.kernel(Kernel::IterationUpdate(dim), all_and_value.to_vec(), [stored])[0]
    }

    fn random(
        &mut self,
        step: &Step,
        stream: &str,
        distribution: &Distribution,
    ) -> Result<(), LoweringError> {
        let ([], [out]) = self.locals(step)?;
        let wide = out.dtype.wide();
        let drawing = self.drawing(stream, distribution, &out)?;
        let drawn = self.graph.random(&drawing, stored_as(wide));
        self.write_val(drawn, &out);
        Ok(())
    }

    /// Draws a random block. Values of a half type are rounded from `f32`.
    pub(crate) fn drawing(
        &self,
        stream: &str,
        distribution: &Distribution,
        out: &Local,
    ) -> Result<RandomBlock, LoweringError> {
        let sizes = self.context.plan.dims.shape(&out.dims);
        Ok(RandomBlock::new(stream, *distribution, out.dtype.wide(), &sizes, &out.ranges)?
            .of_examples(self.context.examples_of(out))
            .in_parts(self.context.parts_of(out))
            .in_order(&out.dims, &self.context.plan.dims))
    }

    pub(crate) fn local(&self, operand: &Operand) -> Result<Local, LoweringError> {
        Ok(self.context.local(operand)?)
    }

    /// Operands and results of a step on this device; an error if their numbers differ from `R` and `W`.
    pub(crate) fn locals<const R: usize, const W: usize>(
        &self,
        step: &Step,
    ) -> Result<([Local; R], [Local; W]), LoweringError> {
        let (reads, writes) = step.operands::<R, W>()?;
        let all =
            |operands: &[Operand]| operands.iter().map(|o| self.local(o)).collect::<Result<Vec<_>, _>>();
        let (reads, writes) = (all(reads)?, all(writes)?);
        Ok((std::array::from_fn(|i| reads[i].clone()), std::array::from_fn(|i| writes[i].clone())))
    }

    /// Records a kernel of buffers.
    pub(crate) fn record<'l>(
        &mut self,
        kernel: impl Into<Kernel>,
        reads: impl IntoIterator<Item = &'l Local>,
        writes: &[Local],
    ) {
        let reads = reads.into_iter().map(|local| self.read(local).val).collect();
        let outs = writes.iter().map(|out| (extents(&out.shape), stored_as(out.dtype)));
        let made = self.graph.kernel(kernel, reads, outs);
        for (out, val) in writes.iter().zip(made) {
            self.graph.store(val, TensorSlot::Buffer(out.buf));
        }
    }

    /// A buffer's elements; of pairs the values.
    pub(crate) fn read(&mut self, local: &Local) -> Named {
        let dtype = stored_as(self.value_type(local.buf, local.dtype));
        let val = self.graph.read(TensorSlot::Buffer(local.buf), &extents(&local.shape), dtype);
        Named { val, dims: local.dims.clone() }
    }

    /// The indices of a buffer of pairs.
    pub(crate) fn read_indices(&mut self, local: &Local) -> Named {
        let val = self.graph.read(TensorSlot::Indices(local.buf), &extents(&local.shape), BurnType::I32);
        Named { val, dims: local.dims.clone() }
    }

    /// Extents of a tensor in another order of dims; dims that it lacks are 1.
    pub(crate) fn align(&mut self, tensor: &Named, to: &[Dim]) -> Val {
        let at: Vec<usize> = to.iter().filter_map(|d| tensor.dims.iter().position(|o| o == d)).collect();
        let mut val = tensor.val;
        if !tensor.dims.is_empty() {
            val = self.graph.permute(val, &at);
        }
        let old = self.graph.shape(val).to_vec();
        let mut next = old.iter();
        let has = |d: &Dim| tensor.dims.contains(d);
        let shape: Vec<usize> =
            to.iter().map(|d| if has(d) { next.next().copied().unwrap_or(1) } else { 1 }).collect();
        self.graph.reshape(val, &extents(&shape))
    }

    /// Writes a tensor of the dims of a buffer, or some of them, to it; other dims are repeated.
    pub(crate) fn write(&mut self, tensor: &Named, out: &Local) {
        let val = self.align(tensor, &out.dims);
        self.write_val(val, out);
    }

    /// Writes a tensor, whose extents are those of a buffer or 1, to the buffer.
    pub(crate) fn write_val(&mut self, val: Val, out: &Local) {
        let val = self.graph.expand(val, &extents(&out.shape));
        let dtype = stored_as(self.value_type(out.buf, out.dtype));
        let val = self.convert(val, dtype);
        self.graph.store(val, TensorSlot::Buffer(out.buf));
    }

    /// Writes the indices of a buffer of pairs.
    pub(crate) fn write_indices(&mut self, tensor: &Named, out: &Local) {
        let val = self.align(tensor, &out.dims);
        let val = self.graph.expand(val, &extents(&out.shape));
        self.graph.store(val, TensorSlot::Indices(out.buf));
    }

    /// Writes one number everywhere.
    pub(crate) fn write_number(&mut self, number: f64, out: &Local) {
        let dtype = stored_as(self.value_type(out.buf, out.dtype));
        let val = self.graph.full(&extents(&out.shape), dtype, number);
        self.graph.store(val, TensorSlot::Buffer(out.buf));
    }

    /// Conversion as expressions have it: floats to integers are cut off at the point and at the bounds of the integers,
    /// NaN is 0; of an integer that becomes a byte the low bits stay; other than 0 is true.
    pub(crate) fn convert(&mut self, a: Val, dtype: BurnType) -> Val {
        let (from, e) = (self.graph.dtype(a), &mut self.graph);
        if from == dtype || !from.is_float() && dtype != BurnType::U8 {
            return e.cast(a, dtype);
        }
        match dtype {
            BurnType::I32 | BurnType::U8 if from.is_float() => {
                // The greatest float below the bound, and the bound itself.
                let (low, high, below) = match (dtype, from) {
                    (BurnType::U8, _) => (0.0, 256.0, 255.0),
                    (_, BurnType::F64) => (f64::from(i32::MIN), 2_147_483_648.0, 2_147_483_647.0),
                    (_, BurnType::F32) => (f64::from(i32::MIN), 2_147_483_648.0, 2_147_483_520.0),
                    _ => (f64::from(i32::MIN), 2_147_483_648.0, 2_139_095_040.0),
                };
                let nan = e.is_nan(a);
                let a = e.fill(a, nan, 0.0);
                let under = e.scalar(Binary::Lt, a, low);
                let a = e.fill(a, under, low);
                let over = e.scalar(Binary::Ge, a, high);
                let a = e.fill(a, over, below);
                let whole = e.cast(a, BurnType::I32);
                let greatest = if dtype == BurnType::U8 { 255.0 } else { f64::from(i32::MAX) };
                let whole = e.fill(whole, over, greatest);
                e.cast(whole, dtype)
            }
            BurnType::U8 if from == BurnType::I32 => {
                let low = e.scalar(Binary::And, a, 255.0);
                e.cast(low, dtype)
            }
            _ => e.cast(a, dtype),
        }
    }

    /// A value in the dtype of its sums, `f32` at least.
    pub(crate) fn wide(&mut self, a: Val) -> Val {
        if is_half(self.graph.dtype(a)) { self.graph.cast(a, BurnType::F32) } else { a }
    }

    /// Elements of each of some dims.
    pub(crate) fn sizes(dims: &[Dim], of: &[&Local]) -> Vec<usize> {
        let size = |d: &Dim| of.iter().find_map(|l| l.at(*d).map(|i| l.shape[i])).unwrap_or(1);
        dims.iter().map(size).collect()
    }
}
