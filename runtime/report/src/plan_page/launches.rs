//! The launches of a device, each with the steps of the Plan that it computes and what it costs.

use meshwright_device::DevicePlan;
use meshwright_device::costs::{CostTable, LaunchCosts, Totals};
use meshwright_device::launch::{Launch, LaunchKind};
use meshwright_device::slot::LaunchId;
use meshwright_plan::Plan;
use serde::Serialize;

/// A device plan as a page shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct LaunchesView {
    /// Kind of the device.
    device: String,
    totals: Totals,
    /// In their order, those of a loop behind it.
    launches: Vec<LaunchRow>,
}

/// A launch that computes or moves something.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct LaunchRow {
    /// Its number, as `explain --emit device` has it.
    id: u32,
    kind: String,
    /// Steps that it computes; the step that it prepares if there are none.
    steps: Vec<usize>,
    /// Number of runs in a step of training.
    times: u64,
    /// Number of loops around it.
    depth: usize,
    /// Costs of one run.
    #[serde(flatten)]
    costs: LaunchCosts,
}

impl LaunchesView {
    pub(super) fn of(plan: &Plan, device: &DevicePlan) -> LaunchesView {
        let mut view =
            LaunchesView { device: device.target.to_string(), totals: device.totals(plan), launches: vec![] };
        view.add((plan, &device.costs(plan)), device, &device.body, (1, 0));
        view
    }

    fn add(
        &mut self,
        (plan, costs): (&Plan, &CostTable<'_>),
        device: &DevicePlan,
        ids: &[LaunchId],
        (times, depth): (u64, usize),
    ) {
        for id in ids {
            let launch: &Launch = &device.launches[*id];
            let mut inner = (times, depth);
            let shown = match &launch.kind {
                LaunchKind::Free => false,
                LaunchKind::Kernel(kernel) => !kernel.moves_nothing() && !device.arena.in_place.contains(id),
                LaunchKind::Loop(of) => {
                    inner = (times * (plan.dims.size(of.dim) - of.from) as u64, depth + 1);
                    true
                }
                LaunchKind::Burn(_) | LaunchKind::Collective(_) | LaunchKind::Wait { .. } => true,
            };
            if shown {
                let steps = if launch.steps.is_empty() { vec![launch.step] } else { launch.steps.clone() };
                self.launches.push(LaunchRow {
                    id: id.0,
                    kind: launch.kind.name().into(),
                    steps,
                    times,
                    depth,
                    costs: costs.of(*id),
                });
            }
            self.add((plan, costs), device, &device.inner(launch).collect::<Vec<_>>(), inner);
        }
    }
}
