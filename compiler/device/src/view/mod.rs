//! A device plan for other programs: the output of `explain --emit device --format json`.

mod kinds;
mod tensor;

pub use kinds::{CallView, CarryView, CollectiveView, KindView, LoopView, OperationView};
pub use tensor::TensorView;

use crate::arena::Spot;
use crate::costs::{CostTable, LaunchCosts, Totals};
use crate::launch::{DevicePlan, Launch};
use crate::slot::{LaunchId, TensorSlot};
use meshwright_plan::{ArenaId, Plan, ProgramInput};
use serde::Serialize;

/// Version of the JSON format.
pub const VERSION: u32 = 1;

/// A device plan for other programs.
#[derive(Debug, Serialize)]
pub struct DevicePlanView {
    /// [`VERSION`].
    pub version: u32,
    /// The kind of device.
    pub target: String,
    /// Rank of the device.
    pub rank: usize,
    /// [`DevicePlan::hash`]: equal for equal plans.
    pub hash: String,
    /// Sums of the costs of all launches, each multiplied by its number of runs.
    pub totals: Totals,
    /// The values that a step gets from outside: batches, parameters, states.
    pub inputs: Vec<InputView>,
    /// The launches outside of loops, in their order.
    pub body: Vec<u32>,
    /// All launches; the id of each is its index here.
    pub launches: Vec<LaunchView>,
}

/// A value that a step gets from outside.
#[derive(Debug, Serialize)]
pub struct InputView {
    /// Its storage.
    pub slot: String,
    /// Its name in the model.
    pub name: String,
    /// Dtype of its elements.
    pub dtype: &'static str,
    /// Extents of the device's part.
    pub shape: Vec<usize>,
}

/// A launch.
#[derive(Debug, Serialize)]
pub struct LaunchView {
    /// Index among all launches.
    pub id: u32,
    /// The kernel, `burn`, `loop`, or the collective.
    pub kind: String,
    /// The step of the Plan that it stands at: the last of `steps`, or the one that needs it.
    pub step: usize,
    /// The steps of the Plan that it computes.
    pub steps: Vec<usize>,
    /// Value of the model that the last of `steps` computes; empty if it has no name.
    pub value: String,
    /// Line of `value` in the model; 0 if it has none.
    pub line: u32,
    /// The tensors that a kernel reads.
    pub reads: Vec<TensorView>,
    /// The tensors that a kernel writes.
    pub writes: Vec<TensorView>,
    /// Whether its result lies where its operand is, so that nothing moves.
    pub in_place: bool,
    /// Tensors that are freed after it.
    pub frees: Vec<String>,
    /// Costs of one run.
    #[serde(flatten)]
    pub traffic: LaunchCosts,
    /// The launches within it.
    pub inner: Vec<u32>,
    /// The parts that only its kind has.
    #[serde(flatten)]
    pub parts: KindView,
}

impl DevicePlan {
    /// The plan in the form for other programs.
    pub fn view(&self, plan: &Plan) -> DevicePlanView {
        let mut spots: Vec<Vec<Spot>> = vec![vec![]; self.launches.len()];
        self.arena.of.iter().zip(&self.arena.spots).for_each(|(id, spot)| spots[id.position()].push(*spot));
        let costs = self.costs(plan);
        let view = |id: LaunchId| self.launch_view((plan, &costs), id, &spots[id.position()]);
        let launches = self.launches.ids().map(view);
        DevicePlanView {
            version: VERSION,
            target: self.target.to_string(),
            rank: self.rank,
            hash: self.hash(),
            totals: self.totals(plan),
            inputs: self.input_views(plan),
            body: self.body.iter().map(|id| id.0).collect(),
            launches: launches.collect(),
        }
    }

    fn input_views(&self, plan: &Plan) -> Vec<InputView> {
        let coords = plan.mesh.coords(self.rank);
        let view = |input: &ProgramInput| {
            let buffer = plan.buffer(input.buf);
            InputView {
                slot: TensorSlot::Buffer(input.buf).to_string(),
                name: input.name.to_string(),
                dtype: buffer.dtype.name(),
                shape: buffer.shape(&plan.mesh, &coords).to_vec(),
            }
        };
        plan.program_inputs.iter().map(view).collect()
    }

    fn launch_view(
        &self,
        (plan, costs): (&Plan, &CostTable<'_>),
        id: LaunchId,
        spots: &[Spot],
    ) -> LaunchView {
        let launch: &Launch = &self.launches[id];
        let origin = launch.steps.last().and_then(|step| plan.steps[*step].origin.first());
        let many = launch.writes.len().max(1);
        let places = |k: usize| {
            let of = spots.iter().skip(k).step_by(many);
            let mut at: Vec<u64> =
                of.filter_map(|s| if let Spot::At { start, .. } = s { Some(*start) } else { None }).collect();
            at.dedup();
            at
        };
        LaunchView {
            id: id.0,
            kind: launch.kind.name().into(),
            step: launch.step,
            steps: launch.steps.clone(),
            value: origin.map_or_else(String::new, |o| o.path.to_string()),
            line: origin.map_or(0, |o| o.line),
            reads: launch.reads.iter().map(|t| TensorView::of(&self.slots, t, vec![])).collect(),
            writes: launch
                .writes
                .iter()
                .enumerate()
                .map(|(k, t)| TensorView::of(&self.slots, t, places(k)))
                .collect(),
            in_place: self.arena.in_place.contains(&id),
            frees: launch.frees.iter().map(|id| self.slots.name(*id)).collect(),
            traffic: costs.of(id),
            inner: self.inner(launch).map(|id| id.0).collect(),
            parts: KindView::of(self, plan, &launch.kind),
        }
    }
}
