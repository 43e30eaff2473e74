//! Compiles all combinations before one of them runs, and looks at their data: what cannot run is known then.

use super::combination::Combination;
use meshwright_core::training_step;
use meshwright_diag::{Diagnostic, Sources, codes, has_errors};
use meshwright_sorted::SortedMap;
use meshwright_train::{Project, ProjectOptions};
use std::rc::Rc;

/// What is known of a combination before it runs.
#[derive(Clone)]
pub(crate) enum Verdict {
    /// It can run.
    Runs(Runnable),
    /// It does not compile, or its data does not fit.
    Rejected(Rejected),
}

/// What tells a run from others, as its folder has it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Runnable {
    /// The mesh, as `r=2,c=2`.
    pub(crate) mesh: String,
    /// Its devices.
    pub(crate) devices: usize,
    /// Bytes that all of them take at the peak of a step, by the Plan.
    pub(crate) bytes: u64,
    /// The rules of the layout.
    pub(crate) rules: Vec<String>,
    /// Its other lines but the mesh.
    pub(crate) settings: Vec<String>,
    /// The type that it computes in.
    pub(crate) precision: String,
    /// The metrics of the model.
    pub(crate) metrics: Vec<String>,
    /// All that an evaluation or a step of it may tell: these, and the losses.
    pub(crate) measured: Vec<String>,
}

/// Why a combination cannot run.
#[derive(Clone)]
pub(crate) struct Rejected {
    pub(crate) found: Vec<Diagnostic>,
    pub(crate) sources: Rc<Sources>,
}

impl Rejected {
    /// Its first error, in a line.
    pub(crate) fn reason(&self) -> String {
        let first = self.found.iter().find(|d| d.is_error());
        first.map_or(String::new(), |d| format!("{}: {}", d.code.id, d.message))
    }
}

/// So many are compiled. Beyond, one that differs in its consts alone from one that can run is taken to be like that; if it is
/// not, it fails when it runs.
const MOST_COMPILED: usize = 200;

/// Says what is wrong with the data of a project.
pub(crate) type DataCheck<'a> = &'a dyn Fn(&Project) -> Vec<Diagnostic>;

/// Compiles training and evaluation of each; what differs in its seed alone is compiled once, and the text is read once for each
/// choice of sizes and consts. The data is looked at once for each choice of sizes.
pub(crate) fn check(all: &[Combination], given: &ProjectOptions, data: DataCheck<'_>) -> Vec<Verdict> {
    let mut sizes: SortedMap<String, Vec<Diagnostic>> = SortedMap::new();
    let mut out: Vec<Verdict> = Vec::new();
    let mut known: SortedMap<String, usize> = SortedMap::new();
    let mut loaded: SortedMap<String, Result<(Project, Sources), Rejected>> = SortedMap::new();
    let mut alike: SortedMap<String, usize> = SortedMap::new();
    for c in all {
        let name = Combination { seed: 0, ..c.clone() }.name();
        if let Some(at) = known.get(&name) {
            out.push(out[*at].clone());
            continue;
        }
        let like = Combination { seed: 0, sets: Vec::new(), ..c.clone() }.name();
        if let Some(at) = alike.get(&like).filter(|_| known.len() >= MOST_COMPILED) {
            known.insert(name, *at);
            out.push(out[*at].clone());
            continue;
        }
        known.insert(name, out.len());
        let alone = c.on_one_device();
        let read = loaded.entry(Combination { seed: 0, ..alone.clone() }.name());
        let load = || {
            let (project, sources) = load(&alone.options(given))?;
            let dims = &project.program.graph.dims;
            let key = format!("{:?}", dims.iter().map(|(d, name)| (name, dims.size(d))).collect::<Vec<_>>());
            match sizes.entry(key).or_insert_with(|| data(&project)).clone() {
                found if found.is_empty() => Ok((project, sources)),
                found => Err(Rejected { found, sources: Rc::new(sources) }),
            }
        };
        out.push(match read.or_insert_with(load) {
            Ok((project, sources)) => compiled(project, sources, &c.options(given)),
            Err(bad) => Verdict::Rejected(bad.clone()),
        });
        if matches!(out.last(), Some(Verdict::Runs(_))) {
            alike.entry(like).or_insert(out.len() - 1);
        }
    }
    out
}

fn load(options: &ProjectOptions) -> Result<(Project, Sources), Rejected> {
    let loaded = Project::load(options);
    let (project, sources) = (loaded.project, loaded.sources);
    project
        .map(|p| (p, sources.clone()))
        .ok_or_else(|| Rejected { found: loaded.diagnostics, sources: Rc::new(sources) })
}

fn compiled(project: &Project, sources: &Sources, options: &ProjectOptions) -> Verdict {
    let mut sources = sources.clone();
    let (placed, mut found) = project.with_layout(options, &mut sources);
    let Some(placed) = placed else {
        return Verdict::Rejected(Rejected { found, sources: Rc::new(sources) });
    };
    let (evaluation, more) = placed.evaluation();
    found.extend(more);
    let training = training_step(&placed.program);
    if training.is_none() {
        let message = format!("`{}` has no `train` block: there is nothing to train", placed.program.model);
        let help = "add one: `train NAME { minimize LOSS optimizer adam(lr = 1e-3) }`";
        found.push(Diagnostic::error(codes::E0516, message).help(help));
    }
    let mut peak = 0;
    for step in training.into_iter().chain(evaluation.map(|e| e.step)) {
        let (compiled, more) = placed.compile(&step, &sources);
        peak = compiled.map_or(0, |c| c.plan.summary.peak_bytes).max(peak);
        found.extend(more);
    }
    if has_errors(&found) {
        return Verdict::Rejected(Rejected { found, sources: Rc::new(sources) });
    }
    let (mesh, rules) = (&placed.layout.mesh, &placed.layout.rules);
    let metrics: Vec<String> = placed.program.metrics.iter().map(|m| m.name.clone()).collect();
    let losses = placed.program.losses.iter().map(|l| l.name.clone());
    Verdict::Runs(Runnable {
        mesh: mesh.option(),
        devices: mesh.devices(),
        bytes: peak.saturating_mul(mesh.devices() as u64),
        rules: rules.iter().map(|r| r.text.clone()).collect(),
        settings: placed.layout.settings.clone(),
        precision: placed.program.float.name().into(),
        measured: std::iter::once("loss".into()).chain(losses).chain(metrics.clone()).collect(),
        metrics,
    })
}
