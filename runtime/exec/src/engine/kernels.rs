//! The choice of kernels that were measured, agreed between devices.
//!
//! Devices agree when a Plan is loaded, on what they have kept from earlier runs, and after its first run, in which they
//! measure what none of them knew. So that run uses the same kernels on all devices too: those that the library proposes.

use super::{Engine, place};
use crate::backend::DeviceError;
use crate::error::ExecError;
use meshwright_comm::{Collectives, Group, Tag};
use meshwright_plan::Plan;

impl Engine {
    /// Takes on all devices what all of them propose.
    pub(super) fn agree_on_kernels(&mut self, plan: &Plan) -> Result<(), ExecError> {
        let at = || place(plan, self.rank, None, None);
        let failed = |DeviceError(problem): DeviceError| ExecError::Device { place: at(), problem };
        let Some(mine) = self.executor.proposed_kernels().map_err(failed)? else { return Ok(()) };
        let plan_error =
            |e: meshwright_comm::NotAGroup| ExecError::Plan { place: at(), problem: e.to_string() };
        let world = Group::world(self.transport.size(), self.rank).map_err(plan_error)?;
        self.sequence += 1;
        let tag = Tag::new(self.sequence, "the choice of kernels", 0);
        let all = self.transport.gather_values(&world, &tag, &mine);
        let all = all.map_err(|source| ExecError::Comm { place: at(), source })?;
        self.executor.choose_kernels(&all).map_err(failed)
    }

    /// Measures while a program runs for the first time; call it before, with `true`, and after.
    pub(super) fn measure_kernels(&mut self, plan: &Plan, measure: bool) -> Result<(), ExecError> {
        self.executor.measure_kernels(measure).map_err(|DeviceError(problem)| {
            let place = place(plan, self.rank, None, None);
            ExecError::Device { place, problem }
        })
    }
}
