//! Casts of gradients that are reduced in `bf16`: down where their terms are made, so that none is held in `f32` until the
//! collective; up in front of the first step that computes with the result. There they fuse with that step, and no step between
//! the collective and the update waits for it.

use super::lower::Lower;
use super::stretches::stretches;
use crate::partition::CopyId;
use meshwright_ops::Id;
use meshwright_plan::{BufId, DType, Expr, Operand, Phase, Placement, Prim, Step};
use meshwright_sorted::SortedMap;

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

    /// A copy as it is stored where a reshard step leads: rounded, if that gives `bf16` and the copy is `f32`.
    pub(super) fn rounded(&mut self, from: CopyId, to: CopyId, of: (Id, Phase)) -> Operand {
        let stored = self.operand(from);
        let out = self.stored_as(self.spmd.dtype(to), stored.clone(), &self.spmd.copy(from).placement, of);
        if out != stored {
            self.rounded.insert(out.buf);
        }
        out
    }

    /// Moves each cast down right behind the step that makes what is cast, within its stretch of steps.
    pub(super) fn round_early(&mut self) {
        if self.rounded.is_empty() {
            return;
        }
        let stretch = stretches(&self.plan.steps);
        let mut made: SortedMap<BufId, usize> = SortedMap::new();
        let mut behind: SortedMap<usize, Vec<Step>> = SortedMap::new();
        let mut steps: Vec<Option<Step>> = self.plan.steps.drain(..).map(Some).collect();
        for at in 0..steps.len() {
            let Some(step) = &steps[at] else { continue };
            made.extend(step.writes.iter().map(|o| (o.buf, at)));
            let casts = step.writes.iter().any(|o| self.rounded.contains(&o.buf));
            let from = step.reads.first().and_then(|o| made.get(&o.buf)).copied();
            if let Some(from) = from.filter(|from| casts && stretch[*from] == stretch[at]) {
                behind.entry(from).or_default().extend(steps[at].take());
            }
        }
        let with_casts = |(at, step): (usize, Option<Step>)| {
            step.into_iter().chain(behind.remove(&at).unwrap_or_default()).collect::<Vec<_>>()
        };
        self.plan.steps = steps.into_iter().enumerate().flat_map(with_casts).collect();
    }

    /// What a buffer holds of a value, in a dtype: itself, or a cast of it.
    fn stored_as(
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
