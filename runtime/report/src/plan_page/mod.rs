//! A Plan as the data of a page: its steps in order, where on the mesh each value is, what a device holds at each step, and,
//! where a machine was named, when what runs on it. What the page shows of bytes and times is the Plan's and its estimate's own.
//!
//! A page is of one program under one or several layouts. Each has a [`LayoutView`]; what differs between them is given to
//! [`data`] by whoever compares layouts elsewhere too.

mod launches;
mod memory;
mod pools;
mod stages;
mod steps;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
mod tests;
mod value_placement;

use crate::Page;
use launches::LaunchesView;
use memory::HeldBuffer;
use meshwright_core::Compiled;
use meshwright_core::explain::{DeviceReport, Report};
use meshwright_core::layout::Layout;
use meshwright_device::DevicePlan;
use meshwright_diag::Sources;
use meshwright_plan::memory::MemoryKind;
use meshwright_plan::{CollectiveTotal, Plan};
use pools::{LinePool, RulePool, RuleView, SourceLine, TextPool};
use serde::Serialize;
use serde_json::{Value, json};
use stages::PipelineView;
use steps::{LoopView, StepView};
use value_placement::{ExtentView, PlacedType, PlacedTypes};

const SCRIPT: &str = concat!(
    include_str!("../assets/plan_mesh.js"),
    include_str!("../assets/plan_charts.js"),
    include_str!("../assets/plan_pipeline.js"),
    include_str!("../assets/plan.js")
);
const STYLE: &str = include_str!("../assets/plan.css");

/// A program under a layout, and where its texts are.
#[derive(Clone, Copy, Debug)]
pub struct PlannedLayout<'a> {
    /// The layout as it was given.
    pub name: &'a str,
    /// What was made of it.
    pub compiled: &'a Compiled,
    /// What `explain` says of it.
    pub report: &'a Report,
    /// All texts.
    pub sources: &'a Sources,
    /// The layout itself, whose rules collectives come from.
    pub layout: &'a Layout,
}

/// What the page shows of a program under one layout.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayoutView {
    name: String,
    /// Name and size of each axis.
    mesh: Vec<(String, usize)>,
    devices: usize,
    /// For each axis the positions that are drawn.
    shown: Vec<Vec<usize>>,
    per_device: DeviceReport,
    totals: Vec<CollectiveTotal>,
    /// Texts that others refer to by position: paths, names of dims.
    texts: Vec<String>,
    extents: Vec<ExtentView>,
    types: Vec<PlacedType>,
    buffers: Vec<HeldBuffer>,
    steps: Vec<StepView>,
    loops: Vec<LoopView>,
    /// Lines of the model, to which values refer by position.
    lines: Vec<SourceLine>,
    /// Rules of the layout, to which collectives refer by position.
    rules: Vec<RuleView>,
    /// The launches of a device, if they are asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    launches: Option<LaunchesView>,
    /// The stages of a pipeline, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pipeline: Option<PipelineView>,
    /// The step on a machine, if one was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    estimate: Option<EstimatedStep>,
}

/// A step on a machine that need not be here, as it is drawn.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EstimatedStep {
    /// The machine, in words.
    pub machine: String,
    /// Seconds.
    pub seconds: f64,
    /// The band of these, in words.
    pub band: String,
    /// Seconds for which kernels wait for collectives.
    pub waited: f64,
    /// Bytes that a device needs, with what it reserves; and those that it has.
    pub memory: (u64, u64),
    /// Collectives: the step of the Plan, seconds of all times together, and those of them that kernels wait for.
    pub collectives: Vec<(usize, f64, f64)>,
    /// Kernels and collectives: the step of the Plan, 1 if it communicates, its start and its end.
    pub bars: Vec<(usize, u8, f64, f64)>,
    /// Number of those that are not drawn.
    pub left_out: usize,
}

impl LayoutView {
    /// Of a program under a layout.
    #[must_use]
    pub fn of(planned: &PlannedLayout<'_>) -> LayoutView {
        let plan = &planned.compiled.plan;
        let shown = value_placement::shown(&plan.mesh);
        let mut texts = TextPool::default();
        let mut types = PlacedTypes::new(plan, &shown);
        let mut lines = LinePool::new(&planned.compiled.spmd.step.graph, planned.sources);
        let buffers = memory::held(planned.compiled, &mut types, &mut texts);
        let mut rules = RulePool::new(&planned.compiled.spmd, planned.layout, planned.sources);
        let steps = steps::all(plan, &mut types, &mut texts, &mut lines, &mut rules);
        let (lines, rules) = (lines.done(), rules.done());
        let (extents, types) = types.done();
        LayoutView {
            name: planned.name.into(),
            mesh: plan.mesh.axes.iter().map(|a| (a.name.clone(), a.size)).collect(),
            devices: plan.mesh.devices(),
            shown,
            per_device: planned.report.per_device,
            totals: planned.report.totals.clone(),
            loops: steps::loops(plan),
            texts: texts.done(),
            extents,
            types,
            buffers,
            steps,
            lines,
            rules,
            launches: None,
            pipeline: planned.report.pipeline.as_ref().map(PipelineView::of),
            estimate: None,
        }
    }

    /// The same with the launches of a device.
    #[must_use]
    pub fn launched(self, plan: &Plan, device: &DevicePlan) -> LayoutView {
        LayoutView { launches: Some(LaunchesView::of(plan, device)), ..self }
    }

    /// The same with a step on a machine.
    #[must_use]
    pub fn estimated(self, estimate: EstimatedStep) -> LayoutView {
        LayoutView { estimate: Some(estimate), ..self }
    }
}

/// What the page of a program draws: each layout, and how the first differs from each other one.
#[must_use]
pub fn data(model: &str, program: &str, layouts: &[LayoutView], differences: Value) -> Value {
    json!({
        "model": model,
        "program": program,
        "kinds": MemoryKind::ALL.map(MemoryKind::name),
        "layouts": layouts,
        "differences": differences,
    })
}

/// The file of the page.
#[must_use]
pub fn html(title: &str, data: Value) -> String {
    Page { title, data, script: SCRIPT, style: STYLE }.html()
}
