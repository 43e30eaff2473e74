//! The place of a step of a Plan, for errors.

use crate::error::{ExecError, Place};
use meshwright_device::{CompileError, LoweringError};
use meshwright_plan::Plan;

/// The place of a step of a Plan, for errors.
pub fn place(plan: &Plan, rank: usize, step_number: Option<u64>, step: Option<usize>) -> Box<Place> {
    let found = step.and_then(|i| plan.steps.get(i).map(|s| (i, s)));
    let origin = found.and_then(|(_, s)| s.origin.first());
    Box::new(Place {
        rank,
        step_number,
        step: found.map(|(i, s)| (i, s.name())),
        value: origin.map_or_else(String::new, |o| o.path.to_string()),
        line: origin.map_or(0, |o| o.line),
    })
}

/// The error of a Plan that could not be compiled for the device of that rank.
pub(crate) fn not_compiled(plan: &Plan, rank: usize, error: CompileError) -> ExecError {
    let place = place(plan, rank, None, error.step);
    match error.source {
        LoweringError::Plan(problem) => ExecError::Plan { place, problem },
        LoweringError::Kernel(source) => ExecError::Kernel { place, source },
    }
}
