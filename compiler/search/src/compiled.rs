//! A candidate, compiled and estimated.

use crate::base::BaseWork;
use crate::space::{SearchChoices, parts, recomputations};
use crate::text::{WrittenLayout, recompute_line};
use crate::work::ModelWork;
use meshwright_core::compile::Stage;
use meshwright_core::{
    CompileOptions, Compiled, Layout, PASSES, Program, SharedStep, StepGraph, compile_with, layout,
    training_step,
};
use meshwright_cost::engine::EngineKind;
use meshwright_cost::estimate::{Estimate, EstimateError, EstimateQuestion, estimate, estimate_of};
use meshwright_cost::kernels::program;
use meshwright_cost::machine::Machine;
use meshwright_cost::step::DeviceRates;
use meshwright_cost::work::DeviceWork;
use meshwright_device::compile_launches;
use meshwright_diag::{Diagnostic, FileId, Outcome, Severity, codes, has_errors};
use meshwright_plan::{Dim, Plan};
use meshwright_sorted::SortedMap;
use meshwright_syntax::{parse_layout, parse_mesh};
use std::sync::{Arc, Mutex, PoisonError};

/// Why a candidate has no Plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CandidateRefusal {
    /// It needs a gather that no rule implies (E0310).
    Gather,
    /// Rules that do not go together, or anything else that the compiler refuses.
    Conflict,
}

/// A result for a candidate, which may have no Plan, or a Plan without an estimate.
pub type CandidateResult<T> = Result<Result<T, EstimateError>, CandidateRefusal>;

/// What layouts are searched for, and the machine.
#[derive(Clone)]
pub struct Subject<'a> {
    /// The model.
    pub program: &'a Program,
    /// Its training step.
    pub step: &'a StepGraph,
    /// The machine.
    pub machine: &'a Machine,
    /// What executes the Plan.
    pub engine: EngineKind,
    /// Operations of the model in a step.
    pub model_flops: f64,
    /// Examples of a step.
    pub examples: usize,
    /// Tokens of a step, where the model has any.
    pub tokens: Option<usize>,
    /// What layouts share of its compilations.
    pub shared: SharedSteps,
}

/// A step that layouts are compiled for, and the same with fewer examples, by their number. Each is made when it is needed first.
#[derive(Clone, Debug, Default)]
pub struct SharedSteps(Arc<Mutex<SortedMap<usize, Arc<SharedStep>>>>);

impl SharedSteps {
    fn of(&self, examples: usize, make: impl FnOnce() -> Option<StepGraph>) -> Option<Arc<SharedStep>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = known.get(&examples) {
            return Some(there.clone());
        }
        let made = Arc::new(SharedStep::new(make()?));
        known.insert(examples, made.clone());
        Some(made)
    }
}

/// A step with fewer examples, the dim that counts them, and of how many times as many the whole step is.
type FewExamples = (Arc<SharedStep>, (Dim, f64));

impl Subject<'_> {
    /// The work of the step under any layout of these choices.
    ///
    /// # Errors
    /// If a device plan for one device is missing.
    pub fn work(&self, choices: &SearchChoices) -> Result<ModelWork, EstimateError> {
        let devices = choices.devices;
        let example = self.example();
        let dims = &self.program.graph.dims;
        // A step of one device with all examples may need tensors that no device could hold, in other kernels.
        let shrunk = self.shrunk(devices, 1);
        let step = shrunk.as_ref().map_or(self.step, |s| s.0.step());
        let last = PASSES.iter().position(|p| p.name == "joins");
        let mut work: Option<ModelWork> = None;
        for loops in recomputations(self.program, &choices.kept) {
            let text =
                WrittenLayout { lines: recompute_line(&loops).into_iter().collect(), mesh: String::new() };
            let mut graph = None;
            let plan = self.layout(&text).ok().and_then(|layout| {
                let observe = &mut |pass, stage: Stage<'_>| match stage {
                    Stage::Graph(g) if Some(pass) == last && loops.is_empty() => graph = Some(g.clone()),
                    _ => {}
                };
                let options = CompileOptions { verified: false, ..CompileOptions::default() };
                compiled(compile_with(step, &layout, &|_| 0, options, observe)).ok()
            });
            if let (None, Some(graph)) = (&work, &graph) {
                let rates = DeviceRates::new(self.machine, devices, &self.engine.attention());
                let parts = parts(example.map_or(1, |d| dims.size(d)), &choices.kept);
                work = Some(ModelWork::of(graph, rates, (example, &parts)));
            }
            match (&mut work, plan) {
                (Some(work), Some(plan)) => {
                    let device = compile_launches(&plan, 0, self.engine.target_on(self.machine))?;
                    let layers = self.program.layers().map(|l| l.0);
                    work.add(&plan, &program(&plan, &device), (shrunk.as_ref().map(|s| s.1), layers));
                }
                // A loop that cannot be computed again is not computed less.
                (Some(work), None) => work.kernels.extend(work.kernels.first().cloned()),
                (None, _) => {}
            }
        }
        Ok(work.unwrap_or_default())
    }

    /// The step with the examples of one of `devices` devices, but no fewer than `least`; the dim that counts them, and how many
    /// times as many the whole step has. None if that is the whole step.
    fn shrunk(&self, devices: usize, least: usize) -> Option<FewExamples> {
        let (d, dims) = (self.example()?, &self.program.graph.dims);
        let all = dims.size(d);
        let divides = |n: &usize| all.is_multiple_of(*n);
        let most = (1..=all.div_ceil(devices)).rev().find(divides)?;
        let few = (most.max(least)..all).find(divides)?;
        let step = || training_step(&self.program.rebind(&[(dims.name(d).to_string(), few)]).ok()?);
        Some((self.shared.of(few, step)?, (d, all as f64 / few as f64)))
    }

    /// The bound of all candidates in which some axes, of `size` devices together, split as in a layout of these alone. Others
    /// divide the examples.
    pub fn alone(
        &self,
        text: &WrittenLayout,
        work: &ModelWork,
        (size, devices): (usize, usize),
    ) -> CandidateResult<BaseWork> {
        self.of_shrunk(text, work, self.shrunk(devices / size, size))
    }

    /// Bounds of candidates with the rules of a layout, by a step with fewer examples if there is one.
    fn of_shrunk(
        &self,
        text: &WrittenLayout,
        work: &ModelWork,
        shrunk: Option<FewExamples>,
    ) -> CandidateResult<BaseWork> {
        let Some((step, shrunk)) = shrunk else { return self.base(text, work).map(|b| b.map(|b| b.1)) };
        // The number of operations is that of the whole step.
        let few = Subject { model_flops: self.model_flops / shrunk.1, ..self.clone() };
        few.bounded(Some(&step), text, (work, Some(shrunk))).map(|b| b.map(|b| b.1))
    }

    /// The dim that counts examples.
    pub(crate) fn example(&self) -> Option<Dim> {
        self.program.inputs.first().and_then(|i| i.0.dims.first()).copied()
    }

    /// The Plan of a layout, verified where that is asked for.
    pub fn plan(&self, text: &WrittenLayout, verified: bool) -> Result<Plan, CandidateRefusal> {
        self.compiled(None, text, verified)
    }

    /// The estimate of a layout.
    pub fn estimate(&self, text: &WrittenLayout) -> CandidateResult<Estimate> {
        self.plan(text, false).map(|plan| self.estimated(&plan))
    }

    /// Bounds of pipelines whose stages have the rules of a layout and this number of devices each. All examples at once might
    /// need tensors that no stage could hold, in other kernels.
    pub fn stage(&self, text: &WrittenLayout, work: &ModelWork, devices: usize) -> CandidateResult<BaseWork> {
        let shrunk = self.shrunk(usize::MAX, devices);
        self.of_shrunk(text, work, shrunk)
    }

    /// The estimate of a layout, and what bounds other layouts with its rules.
    pub fn base(&self, text: &WrittenLayout, work: &ModelWork) -> CandidateResult<(Estimate, BaseWork)> {
        self.bounded(None, text, (work, None))
    }

    fn bounded(
        &self,
        step: Option<&SharedStep>,
        text: &WrittenLayout,
        (work, shrunk): (&ModelWork, Option<(Dim, f64)>),
    ) -> CandidateResult<(Estimate, BaseWork)> {
        let plan = self.compiled(step, text, false)?;
        let bounded = |(estimate, run): (Estimate, DeviceWork)| {
            let waits = estimate.seconds / (estimate.seconds - estimate.breakdown.straggler);
            let base = BaseWork::of((&plan, &run), (work, self.example(), shrunk), waits);
            (estimate, base)
        };
        Ok(estimate_of(&plan, &self.question()).map(bounded))
    }

    /// The estimate of a Plan.
    ///
    /// # Errors
    /// If a device plan is missing, or the machine file is wrong.
    pub fn estimated(&self, plan: &Plan) -> Result<Estimate, EstimateError> {
        estimate(plan, &self.question())
    }

    pub(crate) fn question(&self) -> EstimateQuestion<'_> {
        let (engine, tokens) = (self.engine.clone(), self.tokens);
        let (machine, model_flops, examples) = (self.machine, self.model_flops, self.examples);
        EstimateQuestion { machine, engine, model_flops, examples, tokens, pipe: None, slowest: 1.0 }
    }

    /// The Plan of a layout for a step, or for the whole one.
    fn compiled(
        &self,
        step: Option<&SharedStep>,
        text: &WrittenLayout,
        verified: bool,
    ) -> Result<Plan, CandidateRefusal> {
        let layout = self.layout(text).map_err(|found| refusal(&found))?;
        let options = CompileOptions { verified, ..CompileOptions::default() };
        if let Some(step) = step {
            return compiled(step.compiled(&layout, options));
        }
        let whole = self
            .shared
            .of(self.example().map_or(1, |d| self.program.graph.dims.size(d)), || Some(self.step.clone()));
        whole.map_or(Err(CandidateRefusal::Conflict), |step| compiled(step.compiled(&layout, options)))
    }

    fn layout(&self, text: &WrittenLayout) -> Result<Layout, Vec<Diagnostic>> {
        let (file, found) = parse_layout(FileId(0), &text.lines.join("\n"));
        let file = file.ok_or(found)?;
        let mesh = match text.mesh.as_str() {
            "" => None,
            mesh => {
                let (mesh, found) = parse_mesh(FileId(1), mesh);
                Some(mesh.ok_or(found)?)
            }
        };
        // Kept lines may be those of a file that several models share.
        let (layout, found) = layout(&file, mesh.as_ref(), self.program, true);
        layout.ok_or(found)
    }
}

fn compiled((compiled, found): Outcome<Compiled>) -> Result<Plan, CandidateRefusal> {
    compiled.filter(|_| !has_errors(&found)).map(|c| c.plan).ok_or_else(|| refusal(&found))
}

fn refusal(found: &[Diagnostic]) -> CandidateRefusal {
    let mut errors = found.iter().filter(|d| d.severity == Severity::Error).peekable();
    let gather = errors.peek().is_some() && errors.all(|d| d.code == codes::E0310);
    if gather { CandidateRefusal::Gather } else { CandidateRefusal::Conflict }
}
