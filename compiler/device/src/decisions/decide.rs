//! The passes for devices in order, with a verifier after each that decides anything. A new pass is a file in `passes`, a field of [`Decisions`] and a row of [`PASSES`].

use crate::decisions::Decisions;
use crate::decisions::verify_decisions::{left, verify};
use crate::error::{CompileError, LoweringError};
use crate::lowering::Lowering;
use crate::passes::attention_bits::AttentionBits;
use crate::passes::epilogues::Epilogues;
use crate::passes::inlined::InlinedValues;
use crate::passes::masks::Masks;
use crate::passes::residuals::Residuals;
use crate::passes::rounded_factors::rounded_buffers;
use crate::passes::row_groups;
use crate::passes::step_order::StepOrder;
use crate::target::Target;
use meshwright_plan::{BufId, Plan, Step};
use meshwright_sorted::SortedSet;

/// A pass over a Plan, which decides how a device computes its steps.
pub struct DevicePass {
    /// Its name.
    pub name: &'static str,
    /// Gives whether it has decided anything.
    run: fn(&mut Lowering<'_>) -> bool,
}

/// Every pass in order.
pub static PASSES: [DevicePass; 8] = [
    DevicePass { name: "rounded_factors", run: rounded_factors },
    DevicePass { name: "residuals", run: residuals },
    DevicePass { name: "masks", run: masks },
    DevicePass { name: "row_groups", run: row_groups },
    DevicePass { name: "inlined", run: inlined },
    DevicePass { name: "step_order", run: step_order },
    DevicePass { name: "attention_bits", run: attention_bits },
    DevicePass { name: "epilogues", run: epilogues },
];

/// Runs all passes, and the verifier after each that decides anything if asked to. Gives the buffers that are live at the end of the Plan.
pub(crate) fn decide(lowering: &mut Lowering<'_>, verified: bool) -> Result<SortedSet<BufId>, CompileError> {
    let failed = |step, problem| CompileError { step, source: LoweringError::Plan(problem) };
    let left = left(&lowering.uses).map_err(|(step, problem)| failed(step, problem))?;
    for pass in &PASSES {
        if (pass.run)(lowering) && verified {
            verify(&lowering.uses, &lowering.decisions, &left).map_err(|(step, problem)| {
                failed(step, format!("after the pass `{}`: {problem}", pass.name))
            })?;
        }
    }
    Ok(left)
}

/// The decisions for the device of a rank.
///
/// # Errors
/// If the Plan contradicts itself, or a decision breaks an invariant.
pub fn decisions(plan: &Plan, rank: usize, target: Target) -> Result<Decisions, CompileError> {
    let mut lowering = Lowering::new(plan, rank, target);
    decide(&mut lowering, true)?;
    Ok(lowering.decisions)
}

fn rounded_factors(lowering: &mut Lowering<'_>) -> bool {
    if lowering.graph.target.tensor_cores {
        lowering.decisions.rounded = rounded_buffers(lowering.context.plan);
    }
    !lowering.decisions.rounded.is_empty()
}

fn residuals(lowering: &mut Lowering<'_>) -> bool {
    lowering.decisions.residuals = Residuals::of(&lowering.uses);
    !lowering.decisions.residuals.steps.is_empty()
}

fn masks(lowering: &mut Lowering<'_>) -> bool {
    let draws = |step, buf, by| lowering.draws(step, buf, by);
    lowering.decisions.masks = Masks::of(&lowering.uses, &lowering.decisions.residuals, draws);
    !lowering.decisions.masks.drawn_by.is_empty()
}

fn row_groups(lowering: &mut Lowering<'_>) -> bool {
    // Steps that matmuls would compute if there were no groups.
    let Decisions { residuals, masks, fused, inlined, .. } = &lowering.decisions;
    let order = StepOrder::of(&lowering.uses, fused, inlined, lowering.graph.target.maps);
    let taken = (residuals, masks, fused, inlined);
    let all = Epilogues::of(&lowering.uses, taken, &order, |e| lowering.has_epilogue(e));
    let beside = all.moved.keys().copied().collect();
    let waits = |s: &Step| lowering.groups(s).is_some();
    let found = row_groups::row_groups(&lowering.uses, (residuals, &beside), |g| lowering.fuses(g), waits);
    let any = !found.is_empty();
    lowering.decisions.fused.extend(found);
    any
}

fn inlined(lowering: &mut Lowering<'_>) -> bool {
    let folds = |i: &_, value| lowering.folds(i, value);
    let writes = |s: &_| lowering.groups(s).is_some();
    lowering.decisions.inlined = InlinedValues::of(&lowering.uses, &lowering.decisions.fused, folds, writes);
    !lowering.decisions.inlined.values.is_empty()
}

fn step_order(lowering: &mut Lowering<'_>) -> bool {
    let Decisions { fused, inlined, .. } = &lowering.decisions;
    lowering.decisions.order = StepOrder::of(&lowering.uses, fused, inlined, lowering.graph.target.maps);
    true
}

fn attention_bits(lowering: &mut Lowering<'_>) -> bool {
    let plan = lowering.context.plan;
    let key = |step: usize| lowering.attention_bits_of(&plan.steps[step]);
    lowering.decisions.attention_bits = AttentionBits::of(&lowering.uses, &lowering.decisions.order, key);
    let bits = &lowering.decisions.attention_bits;
    !(bits.stored.is_empty() && bits.shared.is_empty())
}

fn epilogues(lowering: &mut Lowering<'_>) -> bool {
    let Decisions { residuals, masks, fused, inlined, order, .. } = &lowering.decisions;
    let taken = (residuals, masks, fused, inlined);
    let epilogues = Epilogues::of(&lowering.uses, taken, order, |e| lowering.has_epilogue(e));
    lowering.decisions.epilogues = epilogues;
    !lowering.decisions.epilogues.at.is_empty()
}
