//! Dispatch from steps to the lowering and the kernels of the target.

use crate::collective::blocked::Blocked;
use crate::collective::halo::Halo;
use crate::collective::pack::PackedBlock;
use crate::error::LoweringError;
use crate::lowering::Lowering;
use crate::lowering::graph::Val;
use crate::lowering::host::HostSteps;
use crate::lowering::local::Local;
use crate::passes::epilogues::Epilogue;
use crate::passes::inlined::Inlined;
use meshwright_plan::{BufId, Prim, Step};

/// Kind of independent steps that share a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupKind {
    /// Element-wise steps.
    Map,
    /// Reductions, and sums of products without a matrix.
    Fold,
    /// Factors of matmuls that are rounded to bytes.
    Fp8Factor,
}

impl Lowering<'_> {
    /// Lowers a step that computes.
    pub(crate) fn lower(&mut self, step: &Step) -> Result<(), LoweringError> {
        if self.graph.target.host_kernels { HostSteps(self).step(step) } else { self.step(step) }
    }

    /// Whether `step` can draw the random values of `buf` itself, so that the producer `by` is fused away.
    pub(crate) fn draws(&self, step: usize, buf: BufId, by: usize) -> bool {
        let rounds = self.rounded_to_bytes(&self.context.plan.steps[step]).is_some();
        self.graph.target.maps && !rounds && self.draws_within(step, buf, by)
    }

    /// Whether a reduction or a join can compute its operand `value` itself.
    pub(crate) fn computes(&self, inlined: &Inlined, value: BufId) -> bool {
        match self.context.plan.steps[inlined.by].prim {
            Prim::Concat { .. } => self.graph.target.maps && self.can_join(inlined, value),
            _ => self.graph.target.blocks && self.can_fold(inlined, value),
        }
    }

    /// Whether the target's matmuls can compute an epilogue.
    pub(crate) fn has_epilogue(&self, epilogue: &Epilogue) -> bool {
        self.graph.target.epilogues && self.is_epilogue(epilogue)
    }

    /// The kind of launch that the step can share with independent steps of that kind; none if it has a launch of its own.
    pub(crate) fn groups(&self, step: &Step) -> Option<GroupKind> {
        match self.graph.target {
            _ if self.rounded_to_bytes(step).is_some() => Some(GroupKind::Fp8Factor),
            target if target.blocks && self.is_own_fold(step) => Some(GroupKind::Fold),
            target => (target.maps && self.is_own_map(step)).then_some(GroupKind::Map),
        }
    }

    /// Whether a step goes element by element, so that it may be delayed behind a fused group.
    pub(crate) fn may_wait(&self, step: &Step) -> bool {
        self.groups(step).is_some()
    }

    /// Lowers independent steps of a kind to one launch.
    pub(crate) fn lower_group(&mut self, kind: GroupKind, steps: &[&Step]) -> Result<(), LoweringError> {
        match kind {
            GroupKind::Map => self.own_maps(steps),
            GroupKind::Fold => self.own_folds(steps),
            GroupKind::Fp8Factor => self.fp8_factors(steps),
        }
    }

    /// Packs blocks along a dim of several arrays into one dim: the first block of each array, then the second of each, and so
    /// on. No array may be empty.
    pub(crate) fn pack(&mut self, arrays: &[Blocked<'_>]) -> Val {
        if self.graph.target.host_kernels {
            HostSteps(self).pack(arrays)
        } else {
            self.graph.pack_blocks(arrays)
        }
    }

    /// Inverse of [`Lowering::pack`] for one array of shape `local`, which the blocks cover in order.
    pub(crate) fn unpack(&mut self, packed: Val, local: &Local, axis: usize, blocks: &[PackedBlock]) -> Val {
        if self.graph.target.host_kernels {
            return HostSteps(self).unpack(packed, local, axis, blocks);
        }
        let parts = self.graph.unpack_blocks(packed, local, axis, blocks);
        self.graph.cat(parts, axis)
    }

    /// Joins the packed blocks that others sent with the device's own part to an array of shape `local`.
    pub(crate) fn join_halo(
        &mut self,
        halo: &Halo,
        received: Option<Val>,
        own: Option<(Val, &Local)>,
        local: &Local,
        axis: usize,
    ) -> Val {
        if self.graph.target.host_kernels {
            return HostSteps(self).join_halo(halo, received, own.map(|o| o.0), local);
        }
        let graph = &mut self.graph;
        let blocks = &halo.receive.blocks;
        let parts = received.map_or(vec![], |r| graph.unpack_blocks(r, local, axis, blocks));
        let starts = blocks.iter().filter(|b| !b.range.is_empty()).map(|b| b.range.start);
        let mut placed: Vec<(usize, Val)> = starts.zip(parts).collect();
        if let (Some((x, _)), Some([from, to])) = (own, &halo.own) {
            placed.push((to.start, graph.slice(x, axis, from.clone())));
        }
        placed.sort_by_key(|p| p.0);
        graph.cat(placed.into_iter().map(|p| p.1).collect(), axis)
    }
}
