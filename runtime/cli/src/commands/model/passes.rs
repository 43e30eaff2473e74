//! Compiles a step with `--emit` and `--time-passes`.

use crate::args::{DeviceChoice, MemoryArgs, PassArgs, ProgramChoice};
use crate::commands::project;
use crate::output::console::Console;
use crate::output::patience::patiently;
use crate::output::table::{Align, Table};
use crate::stop::Stop;
use crate::value_parsers::Emit;
use meshwright_core::{
    Compiled, Evaluation, Layout, PASSES, StepGraph, diagnose, prediction, refused_outputs, training_step,
};
use meshwright_device::DevicePlan;
use meshwright_device::target::Target;
use meshwright_device::text::text;
use meshwright_diag::{Diagnostic, Sources, codes, has_errors};
use meshwright_plan::Plan;
use meshwright_train::{Loaded, Project, ProjectOptions, fits_device};
use serde_json::json;
use std::time::{Duration, Instant};

/// A model, compiled.
pub(in crate::commands) struct Made {
    /// The project.
    pub(in crate::commands) project: Project,
    /// Its texts.
    pub(in crate::commands) sources: Sources,
    /// The program that was asked for, before it was placed.
    pub(in crate::commands) step: StepGraph,
    /// The same, compiled.
    pub(in crate::commands) compiled: Compiled,
    /// Whether it is a training step.
    pub(in crate::commands) trains: bool,
}

impl Made {
    /// The same step under another layout.
    pub(super) fn under(&self, layout: &Layout) -> Option<Compiled> {
        let mut project = self.project.clone();
        project.layout = layout.clone();
        project.compile(&self.step, &self.sources).0
    }

    /// Says what to do where devices of a kind that have so much memory cannot hold it.
    pub(in crate::commands) fn fits(
        &self,
        memory: MemoryArgs,
        device: Option<DeviceChoice>,
        console: &mut Console,
    ) -> Result<(), Stop> {
        let Some(memory) = memory.bytes() else { return Ok(()) };
        let of = (&self.project, &self.sources);
        fits_device(of, (&self.step, &self.compiled.plan), (memory, target(device.unwrap_or_default())))
            .map_err(|failure| console.failed(failure, &self.sources))
    }
}

/// Reads, checks and compiles the training step and the evaluation, and says nothing: all there is to say is in the
/// result's diagnostics.
pub(super) fn examine(options: &ProjectOptions) -> Loaded {
    let mut loaded = Project::load(options);
    if let Some(project) = &loaded.project {
        let (evaluation, mut found) = evaluation(project);
        found.extend(refused_outputs(&project.program));
        for step in training_step(&project.program).into_iter().chain(evaluation.map(|e| e.step)) {
            found.extend(project.compile(&step, &loaded.sources).1);
        }
        loaded.diagnostics.extend(found);
    }
    loaded
}

/// Reads, checks and compiles. `None` where `--emit` asked for something else than the report, which is then printed.
pub(in crate::commands) fn make(
    options: &ProjectOptions,
    program: Option<ProgramChoice>,
    passes: &PassArgs,
    console: &mut Console,
) -> Result<Option<Made>, Stop> {
    let of_device = matches!(passes.emit, Some(Emit::Device | Emit::Burn));
    if passes.rank.is_some() && !of_device {
        return Err(Stop::Usage("`--rank` chooses the device of `--emit device` and `--emit burn`".into()));
    }
    if passes.device.is_some() && passes.emit.is_some() && !of_device {
        return Err(Stop::Usage("`--device` is for `--emit device`, `--emit burn` and the report".into()));
    }
    if console.json() && matches!(passes.emit, Some(Emit::After(_) | Emit::Burn)) {
        return Err(Stop::Usage(
            "of the stages only `--emit plan` and `--emit device` have a JSON form".into(),
        ));
    }
    let begin = Instant::now();
    let (project, sources) = project::load(options, console)?;
    if of_device || passes.device.is_some() {
        let of = target(passes.device.unwrap_or(DeviceChoice::Cpu));
        super::note_8_bits(project.program.float, of, console);
    }
    let mut times = vec![("resolve", begin.elapsed())];
    let begin = Instant::now();
    let steps = Steps::of(&project, program);
    times.push(("step", begin.elapsed()));
    let (compiled, found) = steps.compiled(&project, passes, &sources, &mut times, console)?;
    console.diagnostics(&found, &sources);
    if passes.time_passes {
        say_times(&times, console);
    }
    match compiled.zip(steps.shown) {
        Some((compiled, step)) if !has_errors(&found) => {
            emit(&compiled, passes, console)?;
            let trains = steps.trains;
            Ok(passes.emit.is_none().then_some(Made { project, sources, step, compiled, trains }))
        }
        _ => Err(Stop::Diagnosed),
    }
}

/// The evaluation as it runs: in the parts in which a training step takes its batch, where it can.
fn evaluation(project: &Project) -> (Option<Evaluation>, Vec<Diagnostic>) {
    match project.evaluated_in_parts() {
        Ok(Some(part)) => part.evaluation(),
        _ => project.evaluation(),
    }
}

/// What is shown unasked of a model without a `train` block, by the name of the program.
pub(in crate::commands) fn unasked(program: &str) -> &'static str {
    if program == "predict" { "a prediction" } else { "an evaluation step" }
}

/// The step graphs of a program, independent of its layout.
pub(in crate::commands) struct Steps {
    /// The step graph that is shown.
    pub(in crate::commands) shown: Option<StepGraph>,
    /// Whether that is a training step.
    pub(in crate::commands) trains: bool,
    /// The evaluation, beside a training step that is shown unasked: `train` needs both.
    beside: Option<StepGraph>,
    found: Vec<Diagnostic>,
}

impl Steps {
    /// The program that is asked for; the training step as a rule. Where there is no training it is the evaluation, or where
    /// there is nothing to evaluate the prediction.
    pub(in crate::commands) fn of(project: &Project, asked: Option<ProgramChoice>) -> Steps {
        let program = &project.program;
        let lacks = |d: Diagnostic| Steps { shown: None, trains: false, beside: None, found: vec![d] };
        match asked {
            None => {
                let (evaluation, mut found) = evaluation(project);
                found.extend(refused_outputs(program));
                let (evaluation, training) = (evaluation.map(|e| e.step), training_step(program));
                match training {
                    Some(step) => Steps { shown: Some(step), trains: true, beside: evaluation, found },
                    None if program.losses.is_empty()
                        && program.metrics.is_empty()
                        && !program.outputs.is_empty() =>
                    {
                        Steps::of(project, Some(ProgramChoice::Predict))
                    }
                    None => Steps { shown: evaluation, trains: false, beside: None, found },
                }
            }
            Some(ProgramChoice::Train) => match training_step(program) {
                Some(step) => Steps { shown: Some(step), trains: true, beside: None, found: Vec::new() },
                None => lacks(
                    Diagnostic::error(codes::E0516, "there is no `train` block, so no training step to show")
                        .help("add a `train` block to the model file, or show `--program eval`"),
                ),
            },
            Some(ProgramChoice::Eval) => {
                let (evaluation, found) = evaluation(project);
                Steps { shown: evaluation.map(|e| e.step), trains: false, beside: None, found }
            }
            Some(ProgramChoice::Predict) if program.outputs.is_empty() => lacks(
                Diagnostic::error(codes::E0516, format!("the model `{}` declares no output", program.model))
                    .help("declare one: `output class = argmax[classes](logits)`"),
            ),
            Some(ProgramChoice::Predict) => {
                let names: Vec<String> = program.outputs.iter().map(|o| o.name.clone()).collect();
                let (predicted, found) = prediction(program, &names);
                Steps { shown: predicted.map(|e| e.step), trains: false, beside: None, found }
            }
        }
    }

    /// The program for the layout of a project, and all that is to be said of it.
    pub(in crate::commands) fn compiled(
        &self,
        project: &Project,
        passes: &PassArgs,
        sources: &Sources,
        times: &mut Vec<(&'static str, Duration)>,
        console: &mut Console,
    ) -> Result<(Option<Compiled>, Vec<Diagnostic>), Stop> {
        let mut found = self.found.clone();
        let compiled = match &self.shown {
            Some(step) => compiled(project, step, passes, sources, times, &mut found, console)?,
            None => None,
        };
        if passes.emit.is_none()
            && let Some(step) = &self.beside
        {
            // A training step contains all of the evaluation but the metrics.
            found.extend(diagnose(step, &project.layout));
        }
        let mut distinct: Vec<Diagnostic> = Vec::new();
        found.into_iter().for_each(|d| {
            if !distinct.contains(&d) {
                distinct.push(d);
            }
        });
        Ok((compiled, distinct))
    }
}

/// Prints what runs, if `--emit` asks for that.
fn emit(compiled: &Compiled, passes: &PassArgs, console: &mut Console) -> Result<(), Stop> {
    let plan = &compiled.plan;
    match passes.emit {
        Some(Emit::Plan) if console.json() => console.out(&(plan.to_json() + "\n")),
        Some(Emit::Plan) => console.out(&meshwright_core::print::plan(plan)),
        Some(stage @ (Emit::Device | Emit::Burn)) => {
            let (rank, devices) = (passes.rank.unwrap_or(0), plan.mesh.devices());
            if rank >= devices {
                let ranks =
                    if devices == 1 { "are 0 alone".into() } else { format!("are 0 to {}", devices - 1) };
                let problem = format!("there is no rank {rank}: ranks of this mesh {ranks}");
                return Err(Stop::Usage(problem));
            }
            let target = target(passes.device.unwrap_or_default());
            let device = device_plan((plan, rank, target), console)?;
            match console.json() {
                true => console.out_json(&device.view(plan)),
                false => console.out(&text(plan, &device, stage == Emit::Burn)),
            }
        }
        Some(Emit::After(_)) | None => Ok(()),
    }
}

/// The device plan of a rank for a kind of device.
pub(super) fn device_plan(
    (plan, rank, target): (&Plan, usize, Target),
    console: &mut Console,
) -> Result<DevicePlan, Stop> {
    let what = format!("compiling the Plan for {target}");
    let compiled = patiently(&what, console, || meshwright_device::compile(plan, rank, target));
    compiled.map_err(|e| Stop::Internal(Some(e.to_string())))
}

/// The target of a device that was asked for.
pub(super) fn target(kind: DeviceChoice) -> Target {
    match kind {
        DeviceChoice::Cpu => Target::cpu(),
        DeviceChoice::Cuda => Target::h100(),
        DeviceChoice::CubeclCpu => Target::compiled_on_host(),
    }
}

fn compiled(
    project: &Project,
    step: &StepGraph,
    passes: &PassArgs,
    sources: &Sources,
    times: &mut Vec<(&'static str, Duration)>,
    found: &mut Vec<Diagnostic>,
    console: &mut Console,
) -> Result<Option<Compiled>, Stop> {
    let mut begin = Instant::now();
    let mut shown = None;
    let (compiled, said) = project.compile_observed(step, sources, &mut |i, stage| {
        times.push((PASSES[i].name, begin.elapsed()));
        if passes.emit == Some(Emit::After(i)) {
            shown = Some(stage.print());
        }
        begin = Instant::now();
    });
    found.extend(said);
    if let Some(text) = shown {
        console.out(&text)?;
    }
    Ok(compiled)
}

pub(super) fn say_times(times: &[(&str, Duration)], console: &mut Console) {
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    let total: Duration = times.iter().map(|t| t.1).sum();
    if console.json() {
        let list: Vec<_> = times.iter().map(|(name, d)| json!({ "pass": name, "ms": ms(*d) })).collect();
        return console.err(&format!("{}\n", json!({ "passes": list, "total_ms": ms(total) })));
    }
    let mut t = Table::new(&[Align::Left, Align::Right]);
    for (name, d) in times.iter().chain(&[("total", total)]) {
        t.row([name.to_string(), format!("{:.2} ms", ms(*d))]);
    }
    console.err(&t.render());
}
