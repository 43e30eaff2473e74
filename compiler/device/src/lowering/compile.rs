//! The compilation of a Plan for one device, again without each group of matmuls whose tensors cannot lie as it needs.

use super::build::launches;
use crate::arena::layout::{arena_of, uneven};
use crate::error::{CompileError, LoweringError};
use crate::launch::DevicePlan;
use crate::slot::LaunchId;
use crate::target::Target;
use crate::verify::verify;
use meshwright_plan::Plan;
use meshwright_sorted::SortedSet;

/// Compiles a Plan for the device of that rank.
///
/// # Errors
/// If the Plan contradicts itself, or a step cannot be lowered; the error names the step.
pub fn compile(plan: &Plan, rank: usize, target: Target) -> Result<DevicePlan, CompileError> {
    let mut apart = SortedSet::new();
    loop {
        let mut device = launches((plan, rank, target), &apart, true)?;
        if target.has_arena() {
            match arena_of(plan, &device) {
                Ok(arena) => device.arena = arena,
                // Matmuls whose tensors cannot lie at equal distances are separate launches.
                Err(uneven) => {
                    part(&mut apart, &device, &uneven)?;
                    continue;
                }
            }
        }
        let failed = |problem| CompileError { step: None, source: LoweringError::Plan(problem) };
        verify(plan, &device).map_err(failed)?;
        return Ok(device);
    }
}

/// The launches of a Plan on one device, without places in memory and without verification: a fraction of the time, for
/// estimates.
///
/// # Errors
/// As for [`compile`].
pub fn compile_launches(plan: &Plan, rank: usize, target: Target) -> Result<DevicePlan, CompileError> {
    let mut apart = SortedSet::new();
    loop {
        let device = launches((plan, rank, target), &apart, false)?;
        let uneven = uneven(plan, &device);
        if uneven.is_empty() {
            return Ok(device);
        }
        part(&mut apart, &device, &uneven)?;
    }
}

/// Adds to `apart` the steps of launches whose tensors cannot lie at equal distances.
fn part(
    apart: &mut SortedSet<usize>,
    device: &DevicePlan,
    uneven: &SortedSet<LaunchId>,
) -> Result<(), CompileError> {
    let known = apart.len();
    apart.extend(uneven.iter().map(|id| device.launches[*id].step));
    // A launch that comes again would come for ever.
    let problem = || LoweringError::Plan("products that run apart are one launch".into());
    let failed =
        || CompileError { step: uneven.iter().next().map(|id| device.launches[*id].step), source: problem() };
    if apart.len() > known { Ok(()) } else { Err(failed()) }
}
