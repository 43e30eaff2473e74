//! Folds by kernels of our own, where the backend has them.

use super::cube::OwnKernel;
use super::cube::folds::{FoldCall, FoldOperand};
use super::emit::FOLD;
use super::lower::{BurnKernel, Lower, Named, unsupported};
use crate::backend::native::{Contraction, contraction};
use crate::engine::context::Local;
use crate::engine::graph::Val;
use crate::engine::inlined::Inlined;
use crate::engine::lowering::LoweringError;
use crate::engine::lowering::{extents, stored_as};
use meshwright_plan::expr::{BinaryFn, Expr};
use meshwright_plan::{Computed, DType, Dim, Monoid, Operand, Prim, Step};
use std::sync::Arc;

impl Lower<'_> {
    /// A buffer folded to the dims of another; none where there is no kernel for it.
    pub(super) fn own_reduction(&mut self, input: &Local, monoid: Monoid, out: &Local) -> Option<Named> {
        let (expr, regs) = Expr::of_operands([input.dtype]);
        let of = Computed { expr, reg: regs[0] };
        let val = self.read(input).val;
        self.own_fold(&of, monoid, &[(val, input)], (&out.dims, out.dtype))
    }

    /// The sum of the products of two buffers, where they have no matrices: each element of a factor is in one product. None elsewhere, and
    /// where there is no kernel for it.
    pub(super) fn own_dot(&mut self, [a, b]: [&Local; 2], out: &Local) -> Option<Named> {
        let Ok(Contraction::Product(product)) = contraction(a, b, out) else { return None };
        if !product.shape.iter().rev().take(2).all(|n| *n == 1) {
            return None;
        }
        let (mut expr, regs) = Expr::of_operands([a.dtype, b.dtype]);
        let [left, right] = [regs[0], regs[1]].map(|reg| expr.cast(reg, DType::F32));
        let reg = expr.binary(BinaryFn::Mul, left, right);
        let inputs = [a, b].map(|local| (self.read(local).val, local));
        self.own_fold(&Computed { expr, reg }, Monoid::Sum, &inputs, (&out.dims, out.dtype))
    }

    /// An expression of tensors, folded to some of their dims; none where there is no kernel for it.
    pub(super) fn own_fold(
        &mut self,
        of: &Computed,
        monoid: Monoid,
        inputs: &[(Val, &Local)],
        (kept, dtype): (&[Dim], DType),
    ) -> Option<Named> {
        let locals: Vec<&Local> = inputs.iter().map(|i| i.1).collect();
        let (call, sizes) = self.fold_call(of, monoid, &locals, (kept, dtype))?;
        let read = inputs.iter().map(|i| i.0).collect();
        self.kernels.push(BurnKernel::Own(OwnKernel::Fold(Arc::new(call))));
        let shape = extents(&sizes[..kept.len()]);
        let kernel = (FOLD, self.kernels.len() - 1);
        let made = self.graph.kernel(kernel, read, [(shape, stored_as(dtype))]);
        Some(Named { val: made[0], dims: kept.to_vec() })
    }

    /// What is known of it, with the sizes of its dims.
    fn fold_call(
        &self,
        of: &Computed,
        monoid: Monoid,
        inputs: &[&Local],
        (kept, dtype): (&[Dim], DType),
    ) -> Option<(FoldCall, Vec<usize>)> {
        if !self.graph.capabilities.own_folds {
            return None;
        }
        let mut dims = kept.to_vec();
        inputs.iter().flat_map(|i| &i.dims).for_each(|d| {
            if !dims.contains(d) {
                dims.push(*d);
            }
        });
        let sizes = Self::sizes(&dims, inputs);
        let operand =
            |i: &&Local| FoldOperand { dtype: i.dtype, dims: dims.iter().map(|d| i.at(*d)).collect() };
        let operands = inputs.iter().map(operand).collect();
        let call = FoldCall::new(of, monoid, (sizes.clone(), kept.len()), operands, dtype)?;
        Some((call, sizes))
    }

    /// See [`crate::backend::Backend::folds`].
    pub(super) fn can_fold(&self, inlined: &Inlined) -> bool {
        let step = &self.context.plan.steps[inlined.by];
        let drawn = |o: &Operand| self.masks.drawn_by.contains_key(&o.buf);
        let (Prim::Reduce { monoid }, [out]) = (&step.prim, &step.writes[..]) else { return false };
        let reads: Result<Vec<Local>, _> = inlined.reads.iter().map(|o| self.local(o)).collect();
        let (Ok(reads), Ok(out)) = (reads, self.local(out)) else { return false };
        let reads: Vec<&Local> = reads.iter().collect();
        !inlined.reads.iter().any(drawn)
            && out.elements() > 0
            && self.fold_call(&inlined.of, *monoid, &reads, (&out.dims, out.dtype)).is_some()
    }

    /// The fold of a value that is computed here.
    pub(super) fn fold_inlined(&mut self, step: &Step, monoid: Monoid) -> Result<bool, LoweringError> {
        let inlined = step.reads.first().and_then(|o| self.inlined.values.get(&o.buf)).cloned();
        let (Some(inlined), [out]) = (inlined, &step.writes[..]) else { return Ok(false) };
        let out = self.local(out)?;
        let reads = inlined.reads.iter().map(|o| self.local(o)).collect::<Result<Vec<_>, _>>()?;
        let inputs: Vec<(Val, &Local)> = reads.iter().map(|l| (self.read(l).val, l)).collect();
        let Some(folded) = self.own_fold(&inlined.of, monoid, &inputs, (&out.dims, out.dtype)) else {
            return unsupported("a value is not computed where it is folded");
        };
        self.write(&folded, &out);
        Ok(true)
    }
}
