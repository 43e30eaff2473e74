//! The SPMD program: ops on local shards and reshards between placements. Placements are part of each copy's type.

use super::decision::{Decision, Reason};
use super::reshard::Reshard;
use crate::step::step_graph::StepGraph;
use meshwright_diag::Span;
use meshwright_ops::{Id, RepeatId, Roles};
use meshwright_plan::{ArenaId, Axis, DType, Dim, Dims, IdVec, Mesh, Phase, Pipeline, Placement, Splits};
use meshwright_sorted::SortedMap;
use std::ops::Range;
use std::sync::Arc;

/// A value in one placement, by position in [`Spmd::copies`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CopyId(pub u32);

impl ArenaId for CopyId {
    fn at(position: usize) -> Self {
        CopyId(position as u32)
    }

    fn position(self) -> usize {
        self.0 as usize
    }
}

/// A value in one placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedCopy {
    /// The value.
    pub value: Id,
    /// Its placement.
    pub placement: Placement,
    /// Whether it is stored in `bf16` although the value is `f32`: gradients that were reduced so.
    pub in_bf16: bool,
}

/// Why a reshard step is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    /// The op that needs the result; `None` for what the step gives.
    pub user: Option<Id>,
    /// The part of the step in which it happens.
    pub phase: Phase,
    /// The reason in words: "`hidden1` is summed".
    pub because: Arc<str>,
    /// The rule that brought it about, if one did.
    pub rule: Option<Span>,
    /// The dim that it gathers: the one that the axis split where a path of such steps begins.
    pub gathered: Option<Dim>,
    /// Whether it gathers what a scope of the layout stores split, so that no other line has to permit it.
    pub stored: bool,
}

/// One instruction, the same on every device.
#[derive(Clone, Debug)]
pub enum Instr {
    /// Something bound before the step, in the placement of `out`.
    Input {
        /// The bound copy.
        out: CopyId,
    },
    /// An op on shards.
    Op {
        /// Its operands.
        inputs: Vec<CopyId>,
        /// Axes of its loops.
        loops: Splits,
        /// Its result.
        out: CopyId,
    },
    /// A step that brings one copy to another placement.
    Reshard {
        /// The kind of step.
        kind: Reshard,
        /// From where.
        from: CopyId,
        /// To where.
        out: CopyId,
        /// Why.
        cause: Cause,
    },
}

/// A loop among the instructions. What crosses its boundary is made by an [`Instr::Op`] from the copy on the other side: carries
/// and slices in the body, all that leaves it right behind the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedLoop {
    /// The loop.
    pub of: RepeatId,
    /// Its body, with the loops in it.
    pub body: Range<usize>,
    /// Its carries, in order.
    pub carries: Vec<CarriedCopy>,
    /// Its results: the copy in the body, and the copy after it.
    pub outs: Vec<(CopyId, CopyId)>,
    /// The axes that split its dim: each device runs the iterations of its own positions.
    pub axes: Vec<Axis>,
    /// Whether devices send the carries on to those with the positions behind theirs.
    pub stages: bool,
}

/// The copies of a carry, all in one placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CarriedCopy {
    /// Its initial value.
    pub start: CopyId,
    /// Its value in the body.
    pub current: CopyId,
    /// Its value in the next iteration.
    pub next: CopyId,
}

/// A partitioned step.
#[derive(Clone, Debug)]
pub struct Spmd {
    /// The step; op `Instr`s compute its values.
    pub step: StepGraph,
    /// The mesh.
    pub mesh: Mesh,
    /// All copies.
    pub copies: IdVec<CopyId, PlacedCopy>,
    /// The instructions in order.
    pub instrs: Vec<Instr>,
    /// The loops in order, outer ones before those in them.
    pub loops: Vec<PlacedLoop>,
    /// The copy that serves each output of the step.
    pub outputs: Vec<CopyId>,
    /// The loop whose iterations are stages.
    pub pipeline: Option<Pipeline>,
    /// Decision on each value; not a part of the program.
    pub decisions: SortedMap<Id, Decision>,
}

/// The placement of the operand in `slot` of an op whose loops are split as `loops`. A window that asks of every device
/// just what it holds is none.
pub fn operand_placement(roles: &Roles, slot: usize, loops: &Splits, dims: &Dims, mesh: &Mesh) -> Placement {
    let mut p = Placement::default();
    for l in &roles.loops {
        let (Some(on), Some(axes)) = (l.on[slot], loops.get(&l.dim)) else { continue };
        if axes.is_empty() {
            continue;
        }
        p.splits.insert(on, axes.clone());
        if let Some(w) = l.windows[slot].filter(|w| !w.is_own(dims.size(on), axes, mesh)) {
            p.windows.insert(on, w);
        }
    }
    p
}

impl Spmd {
    /// Why a value is placed as it is, in the order in which it was decided.
    pub fn reasons(&self, id: Id) -> &[Reason] {
        self.decisions.get(&id).map_or(&[], |d| &d.reasons)
    }

    /// A copy.
    pub fn copy(&self, id: CopyId) -> &PlacedCopy {
        &self.copies[id]
    }

    /// Bytes of the largest shard of a copy.
    pub fn bytes(&self, id: CopyId) -> usize {
        self.elements(id) * self.dtype(id).bytes()
    }

    /// Bytes of the largest shard of `measured`, as a reshard step moves it that makes `out`.
    pub fn moved_bytes(&self, measured: CopyId, out: CopyId) -> usize {
        self.elements(measured) * self.dtype(out).bytes()
    }

    /// The dtype in which a copy is stored.
    pub fn dtype(&self, id: CopyId) -> DType {
        let v = self.copy(id);
        if v.in_bf16 { DType::BF16 } else { self.step.graph.ty(v.value).dtype }
    }

    fn elements(&self, id: CopyId) -> usize {
        let v = self.copy(id);
        v.placement.elements(&self.step.graph.ty(v.value).dims, &self.step.graph.dims, &self.mesh)
    }
}

impl Instr {
    /// Its result.
    pub fn out(&self) -> CopyId {
        match self {
            Instr::Input { out } | Instr::Op { out, .. } | Instr::Reshard { out, .. } => *out,
        }
    }

    /// Its operands.
    pub fn reads(&self) -> Vec<CopyId> {
        match self {
            Instr::Input { .. } => vec![],
            Instr::Op { inputs, .. } => inputs.clone(),
            Instr::Reshard { from, .. } => vec![*from],
        }
    }
}
