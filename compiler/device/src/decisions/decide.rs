//! The passes for devices in order, with a verifier after each that decides anything. A new pass is a file in `passes`, a field
//! of [`Decisions`] and a row of [`PASSES`]; one that finds what a fused kernel computes is in the folder of the kernel.

use crate::decisions::Decisions;
use crate::decisions::fused::FusedGroup;
use crate::decisions::verify_decisions::{left, verify};
use crate::error::{CompileError, LoweringError};
use crate::kernels::table::kernels;
use crate::lowering::Lowering;
use crate::passes::attention_bits::AttentionBits;
use crate::passes::epilogues::Epilogues;
use crate::passes::fp8_matmuls::Fp8Matmuls;
use crate::passes::inlined::InlinedValues;
use crate::passes::masks::Masks;
use crate::passes::residuals::Residuals;
use crate::passes::rounded_factors::rounded_buffers;
use crate::passes::step_order::StepOrder;
use crate::target::Target;
use meshwright_plan::{BufId, Plan};
use meshwright_sorted::SortedSet;

/// A pass over a Plan, which decides how a device computes its steps.
pub struct DevicePass {
    /// Its name.
    pub name: &'static str,
    /// Gives whether it has decided anything.
    run: fn(&mut Lowering<'_>) -> bool,
}

macro_rules! passes {
    ($($(#[$doc:meta])* $name:ident($call:ty) $(fuses $folder:ident::$pass:ident)?;)*) => {
        /// Every pass in order. Those of fused kernels are named by their rows in the table of kernels.
        pub static PASSES: &[DevicePass] = &[
            DevicePass { name: "rounded_factors", run: rounded_factors },
            DevicePass { name: "fp8_matmuls", run: fp8_matmuls },
            DevicePass { name: "residuals", run: residuals },
            DevicePass { name: "masks", run: masks },
            $($(DevicePass {
                name: stringify!($pass),
                run: |lowering| fused(lowering, crate::kernels::$folder::$pass::groups),
            },)?)*
            DevicePass { name: "inlined", run: inlined },
            DevicePass { name: "step_order", run: step_order },
            DevicePass { name: "attention_bits", run: attention_bits },
            DevicePass { name: "epilogues", run: epilogues },
        ];
    };
}

kernels!(passes);

/// Runs all passes, and the verifier after each that decides anything if asked to. Gives the buffers that are live at the end of
/// the Plan.
pub(crate) fn decide(lowering: &mut Lowering<'_>, verified: bool) -> Result<SortedSet<BufId>, CompileError> {
    let failed = |step, problem| CompileError { step, source: LoweringError::Plan(problem) };
    let left = left(&lowering.uses).map_err(|(step, problem)| failed(step, problem))?;
    for pass in PASSES {
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

fn fp8_matmuls(lowering: &mut Lowering<'_>) -> bool {
    // Of a Plan that contradicts itself the lowering of its steps says where.
    let local = |operand: &_| lowering.context.local(operand);
    let found = Fp8Matmuls::of(&lowering.uses, &lowering.graph.target, local);
    lowering.decisions.fp8 = found.unwrap_or_default();
    !lowering.decisions.fp8.factors.is_empty()
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

/// Adds the groups of a fused kernel.
fn fused(lowering: &mut Lowering<'_>, groups: fn(&Lowering<'_>) -> Vec<FusedGroup>) -> bool {
    let found = groups(lowering);
    let any = !found.is_empty();
    lowering.decisions.fused.extend(found);
    any
}

fn inlined(lowering: &mut Lowering<'_>) -> bool {
    let computes = |i: &_, value| lowering.computes(i, value);
    let writes = |s: &_| lowering.groups(s).is_some();
    lowering.decisions.inlined =
        InlinedValues::of(&lowering.uses, &lowering.decisions.fused, computes, writes);
    !lowering.decisions.inlined.values.is_empty()
}

fn step_order(lowering: &mut Lowering<'_>) -> bool {
    let Decisions { fused, inlined, fp8, .. } = &lowering.decisions;
    let order = StepOrder::of(&lowering.uses, fused, inlined, lowering.graph.target.maps);
    lowering.decisions.order = order.with_scales(&lowering.uses, fp8);
    true
}

fn attention_bits(lowering: &mut Lowering<'_>) -> bool {
    let plan = lowering.context.plan;
    let key = |step: usize| lowering.attention_bits_of(&plan.steps[step]);
    lowering.decisions.attention_bits = AttentionBits::of(&lowering.uses, key);
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
