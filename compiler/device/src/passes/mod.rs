//! Decisions about a whole Plan on one device. A pass makes one decision from the Plan, the target and the decisions before it; a verifier runs after
//! each. A new pass is a file here and a row of [`PASSES`].

pub mod attention_bits;
pub mod epilogues;
pub mod expression_key;
pub mod inlined;
pub mod masks;
pub mod residuals;
pub mod row_groups;
pub mod step_order;
pub mod verify;

use crate::def_use::DefUse;
use crate::error::{CompileError, LoweringError};
use crate::lowering::Lowering;
use crate::target::Target;
use attention_bits::AttentionBits;
use epilogues::Epilogues;
use inlined::InlinedValues;
use masks::Masks;
use meshwright_plan::{BufId, Plan};
use residuals::{ResidualStep, Residuals};
use row_groups::RowGroups;
use std::collections::BTreeSet;
use step_order::StepOrder;

/// Decisions of all passes. Those of a pass that has not run yet are empty: each step is a launch of its own, in the Plan's order.
#[derive(Clone, Debug, Default)]
pub struct Decisions {
    /// Values that stay where they were computed, in place of a copy in a stack.
    pub residuals: Residuals,
    /// Random values that each consumer draws.
    pub masks: Masks,
    /// Steps along rows that are one kernel.
    pub rows: RowGroups,
    /// Values that the reduction that consumes them computes.
    pub inlined: InlinedValues,
    /// Order of the steps.
    pub order: StepOrder,
    /// Bits of attention that another step has drawn.
    pub attention_bits: AttentionBits,
    /// Steps that a matmul computes.
    pub epilogues: Epilogues,
}

/// A pass.
pub struct Pass {
    /// Its name.
    pub name: &'static str,
    run: fn(&mut Lowering<'_>),
}

/// Every pass in order.
pub static PASSES: [Pass; 7] = [
    Pass { name: "residuals", run: residuals::run },
    Pass { name: "masks", run: masks::run },
    Pass { name: "row_groups", run: row_groups::run },
    Pass { name: "inlined", run: inlined::run },
    Pass { name: "step_order", run: step_order::run },
    Pass { name: "attention_bits", run: attention_bits::run },
    Pass { name: "epilogues", run: epilogues::run },
];

/// Runs all passes, and the verifier after each if asked to. Gives the buffers that are live at the end of the Plan.
pub(crate) fn decide(lowering: &mut Lowering<'_>, verified: bool) -> Result<BTreeSet<BufId>, CompileError> {
    let failed = |step, problem| CompileError { step, source: LoweringError::Plan(problem) };
    let left = verify::left(&lowering.uses).map_err(|(step, problem)| failed(step, problem))?;
    for pass in &PASSES {
        (pass.run)(lowering);
        if verified {
            verify::verify(&lowering.uses, &lowering.decisions, &left).map_err(|(step, problem)| {
                failed(step, format!("after the pass `{}`: {problem}", pass.name))
            })?;
        }
    }
    Ok(left)
}

/// The decisions for the device of a rank.
///
/// # Errors
/// Where the Plan contradicts itself, or a decision breaks an invariant.
pub fn decisions(plan: &Plan, rank: usize, target: Target) -> Result<Decisions, CompileError> {
    let mut lowering = Lowering::new(plan, rank, target);
    decide(&mut lowering, true)?;
    Ok(lowering.decisions)
}

/// How a step of the Plan is computed on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The launch of another step computes it, or nothing needs it.
    Fused,
    /// A matmul with an epilogue.
    Epilogue,
    /// The last step of a row group, which runs here.
    Rows,
    /// It creates, writes or reads a stack whose values stay where they are.
    Residual(ResidualStep),
    /// By itself, or with independent steps of its kind.
    Single,
}

impl Decisions {
    /// How a step is computed.
    pub fn role(&self, step: usize) -> Role {
        let fused = self.rows.members.get(&step).is_some_and(|last| *last != step);
        let skipped = [&self.masks.skipped, &self.inlined.skipped].iter().any(|s| s.contains(&step));
        if fused || skipped || self.epilogues.moved.contains_key(&step) {
            Role::Fused
        } else if let Some(how) = self.residuals.steps.get(&step) {
            Role::Residual(*how)
        } else if self.epilogues.at.contains_key(&step) {
            Role::Epilogue
        } else if self.rows.at.contains_key(&step) {
            Role::Rows
        } else {
            Role::Single
        }
    }

    /// Whether no launch writes a buffer.
    pub fn is_never_made(&self, buf: BufId) -> bool {
        self.masks.drawn_by.contains_key(&buf)
            || self.inlined.values.contains_key(&buf)
            || self.epilogues.never.contains(&buf)
            || self.rows.never.contains(&buf)
    }

    /// Buffers that are never made, and of those the ones in whose place no other is, with the stacks in which a loop would keep masks that are
    /// drawn again.
    pub fn absent(&self, uses: &DefUse<'_>) -> (BTreeSet<BufId>, BTreeSet<BufId>) {
        let plan = uses.plan;
        let all = (0..plan.buffers.len()).map(|b| BufId(b as u32));
        let never: BTreeSet<BufId> = all.filter(|b| self.is_never_made(*b)).collect();
        // A buffer that takes the storage of another keeps that storage live until its group has run.
        let shares: BTreeSet<BufId> =
            plan.steps.iter().flat_map(|s| &s.aliases).flat_map(|(from, to)| [*from, *to]).collect();
        let alone = self.rows.never.iter().filter(|b| !shares.contains(b));
        let computed = self.masks.drawn_by.keys().chain(self.inlined.values.keys()).chain(alone);
        let mut absent: BTreeSet<BufId> = computed.copied().collect();
        for at in &self.masks.skipped {
            let step = &plan.steps[*at];
            match self.residuals.steps.get(at) {
                Some(ResidualStep::Store { stack, .. }) => {
                    absent.insert(*stack);
                    absent.extend(step.writes.iter().chain(step.reads.first()).map(|o| o.buf));
                }
                Some(ResidualStep::Load { .. }) => absent.extend(step.reads.iter().map(|o| o.buf)),
                _ => {}
            }
        }
        (never, absent)
    }
}
