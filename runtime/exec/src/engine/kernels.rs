//! The choice of kernels that were measured, agreed between devices.
//!
//! Devices agree when a Plan is loaded, on times from earlier runs, and after its first run, which measures the others.
//! That run also uses the same kernels on all devices: the library's proposals.

use super::{Engine, place};
use crate::backend::DeviceError;
use crate::error::ExecError;
use meshwright_comm::{Collectives, Group, Tag};
use meshwright_gpu::matmuls::KernelProposal;
use meshwright_plan::Plan;

impl Engine {
    /// Chooses the same kernels on all devices, by all proposals.
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
        self.products_note = products_note(&all);
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

/// Note if only some ranks compute matmuls by cuBLASLt: ranks without proposals for it lack it.
fn products_note(all: &[KernelProposal]) -> Option<String> {
    let without: Vec<String> = all
        .iter()
        .enumerate()
        .filter(|(_, (library, _))| library.is_empty())
        .map(|(rank, _)| rank.to_string())
        .collect();
    if without.is_empty() || without.len() == all.len() {
        return None;
    }
    let (ranks, have) = if without.len() == 1 { ("rank", "has") } else { ("ranks", "have") };
    Some(format!(
        "{ranks} {} {have} no cuBLASLt, the others do: the others wait for them, and replicated values may differ in their last bits",
        without.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::products_note;

    #[test]
    fn ranks_that_lack_the_library_of_the_others_are_named() {
        let [has, lacks] = ["a GPU, cuBLASLt 130200", ""].map(|of| (of.to_string(), String::new()));
        let note = |all: &[&(String, String)]| {
            products_note(&all.iter().map(|p| (*p).clone()).collect::<Vec<_>>()).unwrap_or_default()
        };
        assert_eq!([note(&[&has, &has]), note(&[&lacks, &lacks]), note(&[])], ["", "", ""]);
        assert!(note(&[&has, &lacks]).starts_with("rank 1 has no cuBLASLt, the others do: "));
        assert!(note(&[&lacks, &has, &lacks]).starts_with("ranks 0, 2 have no cuBLASLt"));
    }
}
