//! Decisions of the passes on a Plan for one device.

pub mod decide;
pub mod def_use;
pub mod fused;
pub mod verify_decisions;

use crate::decisions::def_use::DefUse;
use crate::decisions::fused::FusedGroups;
use crate::kernels::matmul::FactorDigits;
use crate::passes::attention_bits::AttentionBits;
use crate::passes::epilogues::{EpilogueKind, Epilogues};
use crate::passes::fp8_matmuls::Fp8Matmuls;
use crate::passes::inlined::InlinedValues;
use crate::passes::masks::Masks;
use crate::passes::residuals::{ResidualStep, Residuals};
use crate::passes::step_order::StepOrder;
use meshwright_plan::{BufId, StoredElements};
use meshwright_sorted::SortedSet;

/// Decisions of all passes. Those of a pass that has not run yet are empty: each step is a launch of its own, in the Plan's
/// order.
#[derive(Clone, Debug, Default)]
pub struct Decisions {
    /// Values that stay where they were computed, in place of a copy in a stack.
    pub residuals: Residuals,
    /// Random values that each consumer draws.
    pub masks: Masks,
    /// Steps that are one kernel.
    pub fused: FusedGroups,
    /// Values that the reduction that consumes them computes.
    pub inlined: InlinedValues,
    /// Order of the steps.
    pub order: StepOrder,
    /// Bits of attention that another step has drawn.
    pub attention_bits: AttentionBits,
    /// Steps that a matmul computes.
    pub epilogues: Epilogues,
    /// Buffers of numbers that are rounded to TF32, where the target has units that multiply those.
    pub rounded: SortedSet<BufId>,
    /// Values that are stored as codes of FP8, where the target has units that multiply those.
    pub fp8: Fp8Matmuls,
}

/// The launch that computes a step of the Plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// The launch of another step computes it, or nothing needs it.
    Fused,
    /// A matmul with an epilogue.
    Epilogue,
    /// The last step of a fused group, which runs here.
    Group,
    /// It creates, writes or reads a stack whose values stay where they are.
    Residual(ResidualStep),
    /// A launch of its own, or of independent steps of its kind.
    Single,
}

impl Decisions {
    /// The role of a step.
    pub fn role(&self, step: usize) -> Role {
        let fused = self.fused.members.get(&step).is_some_and(|last| *last != step);
        let skipped = [&self.masks.skipped, &self.inlined.skipped].iter().any(|s| s.contains(&step));
        if fused || skipped || self.epilogues.moved.contains_key(&step) {
            Role::Fused
        } else if let Some(how) = self.residuals.steps.get(&step) {
            Role::Residual(how.clone())
        } else if self.epilogues.at.contains_key(&step) {
            Role::Epilogue
        } else if self.fused.at.contains_key(&step) {
            Role::Group
        } else {
            Role::Single
        }
    }

    /// The digits of the factors of a product of these two buffers.
    pub fn digits(&self, factors: [BufId; 2]) -> FactorDigits {
        match factors.iter().all(|buf| self.rounded.contains(buf)) {
            true => FactorDigits::Tf32,
            false => FactorDigits::All,
        }
    }

    /// Whether no launch writes a buffer.
    pub fn is_never_made(&self, buf: BufId) -> bool {
        self.masks.drawn_by.contains_key(&buf)
            || self.inlined.values.contains_key(&buf)
            || self.epilogues.never.contains(&buf)
            || self.fused.never.contains(&buf)
    }

    /// Buffers that are fused away; and what is stored otherwise than in the Plan: nothing of those whose storage no other buffer
    /// reuses, and of stacks of masks that are drawn again; of factors in FP8 a byte for each form of an element.
    pub fn stored(&self, uses: &DefUse<'_>) -> (SortedSet<BufId>, StoredElements) {
        let plan = uses.plan;
        let all = (0..plan.buffers.len()).map(|b| BufId(b as u32));
        let never: SortedSet<BufId> = all.filter(|b| self.is_never_made(*b)).collect();
        // A buffer that takes the storage of another keeps that storage live until its group has run.
        let shares: SortedSet<BufId> =
            plan.steps.iter().flat_map(|s| &s.aliases).flat_map(|(from, to)| [*from, *to]).collect();
        let added = self.epilogues.at.iter().filter(|(_, e)| matches!(e.does, EpilogueKind::Adds { .. }));
        let added = added.flat_map(|(product, _)| &plan.steps[*product].writes).map(|o| &o.buf);
        let alone = self.fused.never.iter().chain(added).filter(|b| !shares.contains(b));
        let computed = self.masks.drawn_by.keys().chain(self.inlined.values.keys()).chain(alone);
        let mut stored: StoredElements = computed.map(|buf| (*buf, 0)).collect();
        for at in &self.masks.skipped {
            if let Some(ResidualStep::Store { stack, .. }) = self.residuals.steps.get(at) {
                stored.extend(self.residuals.stacks[stack].iter().map(|buf| (*buf, 0)));
            }
        }
        let codes = self.fp8.factors.iter().map(|(buf, f)| (*buf, u64::from(f.plain) + u64::from(f.turned)));
        stored.extend(codes);
        (never, stored)
    }
}
