//! Casts of gradients that are reduced in `bf16`: down in front of the collective, up in front of the first step that computes with
//! the result. There they fuse with that step, and no step between the collective and the update waits for it.

use super::lower::Lower;
use crate::partition::CopyId;
use meshwright_ops::Id;
use meshwright_plan::{DType, Expr, Operand, Phase, Placement, Prim};

impl Lower<'_> {
    /// A copy of a value as `reader` computes with it: in `f32` where it is stored in `bf16`.
    pub(super) fn wide(&mut self, copy: CopyId, reader: Id) -> Operand {
        let stored = self.operand(copy);
        if !self.spmd.copy(copy).in_bf16 {
            return stored;
        }
        if let Some((wide, _)) = self.upcasts.get(&copy) {
            return wide.clone();
        }
        let (value, graph) = (self.spmd.copy(copy), &self.spmd.step.graph);
        let phase = graph.node(reader).origin.phase.max(graph.node(value.value).origin.phase);
        let wide = self.stored_as(DType::F32, stored, &value.placement, (value.value, phase));
        self.upcasts.insert(copy, (wide.clone(), self.open.len()));
        wide
    }

    /// What a buffer holds of a value, in a dtype: itself, or a cast of it.
    pub(super) fn stored_as(
        &mut self,
        dtype: DType,
        from: Operand,
        placement: &Placement,
        (value, phase): (Id, Phase),
    ) -> Operand {
        let held = self.plan.buffer(from.buf).dtype;
        if held == dtype {
            return from;
        }
        let out = self.buffer(dtype, &from.dims, placement);
        let (mut expr, loads) = Expr::of_operands([held]);
        let cast = expr.cast(loads[0], dtype);
        let prim = Prim::Map { expr, regs: vec![cast] };
        self.push(prim, vec![from], out.clone(), (value, None), phase);
        out
    }
}
