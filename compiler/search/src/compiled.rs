//! A candidate, compiled and estimated.

use crate::text::WrittenLayout;
use crate::work::ModelWork;
use meshwright_core::compile::{Observer, Stage};
use meshwright_core::{
    CompileOptions, Layout, PASSES, Program, StepGraph, compile_with, layout, training_step,
};
use meshwright_cost::engine::EngineKind;
use meshwright_cost::estimate::{Estimate, EstimateError, EstimateQuestion, estimate};
use meshwright_cost::kernels::program;
use meshwright_cost::machine::Machine;
use meshwright_cost::step::DeviceRates;
use meshwright_device::compile_launches;
use meshwright_diag::{Diagnostic, FileId, Severity, codes, has_errors};
use meshwright_plan::Plan;
use meshwright_syntax::{parse_layout, parse_mesh};

/// Why a candidate has no Plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CandidateRefusal {
    /// It needs a gather that no rule implies (E0310).
    Gather,
    /// Rules that do not go together, or anything else that the compiler refuses.
    Conflict,
}

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
}

impl Subject<'_> {
    /// What the step has to do under any layout on so many devices.
    ///
    /// # Errors
    /// Where there is no device plan for one device.
    pub fn work(&self, devices: usize) -> Result<ModelWork, EstimateError> {
        let example = self.program.inputs.first().and_then(|i| i.0.dims.first()).copied();
        let dims = &self.program.graph.dims;
        // A step of one device with all examples may need tensors that no device could hold, in other kernels.
        let shrunk = example.and_then(|d| {
            let all = dims.size(d);
            let few = (1..=all.div_ceil(devices)).rev().find(|n| all.is_multiple_of(*n))?;
            let program = self.program.rebind(&[(dims.name(d).to_string(), few)]).ok()?;
            Some((training_step(&program)?, (d, all as f64 / few as f64)))
        });
        let whole = Subject { step: shrunk.as_ref().map_or(self.step, |s| &s.0), ..self.clone() };
        let mut graph = None;
        let last = PASSES.iter().position(|p| p.name == "adds");
        let plan = whole.compiled(&Layout::default(), true, &mut |pass, stage| {
            if let (true, Stage::Graph(g)) = (Some(pass) == last, stage) {
                graph = Some(g.clone());
            }
        });
        let (Ok(plan), Some(graph)) = (plan, graph) else { return Ok(ModelWork::default()) };
        let device = compile_launches(&plan, 0, self.engine.target())?;
        let rates = DeviceRates::new(self.machine, devices, &self.engine.attention());
        Ok(ModelWork::of(&graph, &plan, &program(&plan, &device), &rates, shrunk.map(|s| s.1)))
    }

    /// The Plan of a layout, verified where that is asked for.
    pub fn plan(&self, text: &WrittenLayout, verified: bool) -> Result<Plan, CandidateRefusal> {
        let layout = self.layout(text).map_err(|found| refusal(&found))?;
        self.compiled(&layout, verified, &mut |_, _| {})
    }

    /// Whether a layout is legal.
    pub fn probe(&self, text: &WrittenLayout) -> Result<(), CandidateRefusal> {
        self.plan(text, false).map(|_| ())
    }

    /// The estimate of a layout.
    pub fn estimate(
        &self,
        text: &WrittenLayout,
    ) -> Result<Result<Estimate, EstimateError>, CandidateRefusal> {
        self.plan(text, false).map(|plan| self.estimated(&plan))
    }

    /// The estimate of a Plan.
    ///
    /// # Errors
    /// Where there is no device plan, or the machine file is wrong.
    pub fn estimated(&self, plan: &Plan) -> Result<Estimate, EstimateError> {
        let (engine, tokens) = (self.engine.clone(), self.tokens);
        let (machine, model_flops, examples) = (self.machine, self.model_flops, self.examples);
        estimate(
            plan,
            &EstimateQuestion { machine, engine, model_flops, examples, tokens, pipe: None, slowest: 1.0 },
        )
    }

    fn compiled(
        &self,
        layout: &Layout,
        verified: bool,
        observe: &mut Observer<'_>,
    ) -> Result<Plan, CandidateRefusal> {
        let options = CompileOptions { verified, ..CompileOptions::default() };
        let (compiled, found) = compile_with(self.step, layout, &|_| 0, options, observe);
        compiled.filter(|_| !has_errors(&found)).map(|c| c.plan).ok_or_else(|| refusal(&found))
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

fn refusal(found: &[Diagnostic]) -> CandidateRefusal {
    let mut errors = found.iter().filter(|d| d.severity == Severity::Error).peekable();
    let gather = errors.peek().is_some() && errors.all(|d| d.code == codes::E0310);
    if gather { CandidateRefusal::Gather } else { CandidateRefusal::Conflict }
}
