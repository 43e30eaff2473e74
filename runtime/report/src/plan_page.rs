//! A Plan as the data of a page: its steps in order, where on the mesh each value is, what a device holds at each step, and what there
//! is to estimate times from. What the page shows of bytes is the Plan's own; nothing is counted in the browser that Rust knows.
//!
//! A page is of one program under one or several layouts. Each has a [`LayoutView`]; what differs between them is given to
//! [`data`] by whoever compares layouts elsewhere too.

mod memory;
mod placed;
mod pools;
mod steps;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
mod tests;

use crate::Page;
use memory::HeldBuffer;
use meshwright_core::Compiled;
use meshwright_core::explain::{DeviceReport, Report, TrafficReport};
use meshwright_diag::{FileId, Sources};
use placed::{ExtentView, PlacedType, PlacedTypes};
use pools::{LinePool, SourceLine, TextPool};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use steps::{LoopView, StepView};

const SCRIPT: &str = concat!(
    include_str!("assets/plan_mesh.js"),
    include_str!("assets/plan_charts.js"),
    include_str!("assets/plan.js")
);
const STYLE: &str = include_str!("assets/plan.css");

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
    /// The layout's among them.
    pub rules: Option<FileId>,
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
    totals: Vec<TrafficReport>,
    /// Texts that others refer to by position: paths, names of dims.
    texts: Vec<String>,
    extents: Vec<ExtentView>,
    types: Vec<PlacedType>,
    buffers: Vec<HeldBuffer>,
    steps: Vec<StepView>,
    loops: Vec<LoopView>,
    /// Lines of the model, to which values refer by position.
    lines: Vec<SourceLine>,
    /// Lines of the layout, by their numbers.
    rules: BTreeMap<u32, String>,
}

impl LayoutView {
    /// Of a program under a layout.
    #[must_use]
    pub fn of(planned: &PlannedLayout<'_>) -> LayoutView {
        let plan = &planned.compiled.plan;
        let shown = placed::shown(&plan.mesh);
        let mut texts = TextPool::default();
        let mut types = PlacedTypes::new(plan, &shown);
        let mut lines = LinePool::new(&planned.compiled.spmd.step.graph, planned.sources);
        let buffers = memory::held(planned.compiled, &mut types, &mut texts);
        let steps = steps::all(plan, &mut types, &mut texts, &mut lines);
        let rules = rules(planned, &steps);
        let lines = lines.done();
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
        }
    }
}

/// The lines of the layout that brought collectives about.
fn rules(planned: &PlannedLayout<'_>, steps: &[StepView]) -> BTreeMap<u32, String> {
    let Some(file) = planned.rules else { return BTreeMap::new() };
    let text = planned.sources.text(file);
    let line = |n: u32| text.lines().nth(n as usize - 1).unwrap_or("").trim().to_string();
    steps.iter().flat_map(StepView::rules).filter(|n| *n > 0).map(|n| (n, line(n))).collect()
}

/// What the page of a program draws: each layout, and how the first differs from each other one.
#[must_use]
pub fn data(model: &str, program: &str, layouts: &[LayoutView], differences: Value) -> Value {
    json!({
        "model": model,
        "program": program,
        "kinds": memory::KINDS,
        "layouts": layouts,
        "differences": differences,
        "most_devices": placed::MOST_DEVICES,
    })
}

/// The file of the page.
#[must_use]
pub fn html(title: &str, data: Value) -> String {
    Page { title, data, script: SCRIPT, style: STYLE }.html()
}
