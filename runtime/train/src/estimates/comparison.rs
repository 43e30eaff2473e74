//! What was measured elsewhere, beside an estimate: a timeline that was written, or a run that is there.

use crate::estimates::measured_step::{Compared, MeasuredStep, compared};
use crate::estimates::{EstimateOptions, compiled, estimated, question, unusable};
use crate::failure::Failure;
use crate::project::Project;
use crate::recorded::Recorded;
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_exec::{Record, What};
use meshwright_files::Checked;
use meshwright_runs::RunSummary;
use serde::Deserialize;
use std::io::BufReader;
use std::path::Path;

/// An estimate beside what a timeline or a run has. Of a timeline the first rank counts, of a run the median of its steps, and it
/// says nothing of parts.
///
/// # Errors
/// Those of an estimate; and where `of` is neither, or is of another program.
pub fn against(
    project: &Project,
    sources: &Sources,
    options: &EstimateOptions,
    of: &Path,
) -> Result<Compared, Failure> {
    if of.is_dir() {
        let measured = step_of_run(project, of)?;
        let whole = estimated(project, sources, options)?;
        let (steps, seconds) = measured;
        return Ok(Compared {
            steps,
            estimated: whole.seconds,
            band: whole.error,
            measured: seconds,
            assumed_rates: whole.assumed_rates,
            parts: vec![],
            collectives: vec![],
        });
    }
    let timeline = read(of)?;
    let (plan, flops) = compiled(project, sources)?;
    if timeline.about.plan != plan.hash() {
        let message = format!(
            "the timeline `{}` is of another Plan: of `{}` on {}",
            of.display(),
            timeline.about.model,
            timeline.about.mesh
        );
        let help = "give the options of the run that wrote it: the model's sizes, its precision, its layout and its mesh, without reports";
        return Err(wrong(message).help(help).into());
    }
    let records: Vec<Record> = timeline.events.iter().filter_map(TimelineSlice::record).collect();
    let measured = MeasuredStep::of(&records).ok_or_else(|| {
        wrong(format!("the timeline `{}` has no whole training step of rank 0", of.display()))
    })?;
    compared(&plan, &question(project, options, flops), &measured).map_err(unusable)
}

fn wrong(message: impl Into<String>) -> Diagnostic {
    Diagnostic::error(codes::E0516, message.into())
}

/// Number of the steps of a run, and their median time.
fn step_of_run(project: &Project, of: &Path) -> Checked<(usize, f64)> {
    if !Recorded::is_run(of) {
        let message = format!("the folder `{}` holds no run", of.display());
        return Err(Box::new(Diagnostic::error(codes::E0510, message)));
    }
    let run = RunSummary::read(of)?;
    let ours = (
        project.program.model.clone(),
        project.layout.mesh.option(),
        project.program.float.name().to_string(),
    );
    let theirs = (run.model.clone(), run.mesh.clone(), run.precision.clone());
    let words = |(model, mesh, precision): &(String, String, String)| {
        let on = if mesh.is_empty() { "one device" } else { mesh };
        format!("`{model}` on {on} in {precision}")
    };
    let dims = &project.program.graph.dims;
    let size = |name: &str| dims.find(name).map(|d| dims.size(d));
    let other = run.dims.iter().find(|(name, n)| size(name).is_some_and(|own| own != **n));
    if ours != theirs || other.is_some() {
        let and = other.map_or(String::new(), |(name, n)| format!(", with {name}={n}"));
        let message = format!(
            "the run `{}` is of {}{and}; the estimate is of {}",
            of.display(),
            words(&theirs),
            words(&ours)
        );
        return Err(Box::new(wrong(message).help("give the options of the run")));
    }
    let rules: Vec<&str> = project.layout.rules.iter().map(|r| r.text.as_str()).collect();
    if rules != run.rules {
        let words = |rules: &str| if rules.is_empty() { "no rules".into() } else { format!("`{rules}`") };
        let message = format!(
            "the run `{}` has the layout {}; the estimate has {}",
            of.display(),
            words(&run.rules.join("; ")),
            words(&rules.join("; "))
        );
        return Err(Box::new(wrong(message).help("give the options of the run")));
    }
    let median = run.step_times.map(|t| t.median);
    let seconds = median.ok_or_else(|| wrong(format!("the run `{}` has done no step", of.display())))?;
    Ok((run.steps as usize, seconds))
}

/// A timeline, as far as it is compared.
#[derive(Deserialize)]
struct Timeline {
    #[serde(rename = "otherData")]
    about: TimelineHead,
    #[serde(rename = "traceEvents")]
    events: Vec<TimelineSlice>,
}

#[derive(Deserialize)]
struct TimelineHead {
    model: String,
    mesh: String,
    plan: String,
}

#[derive(Deserialize)]
struct TimelineSlice {
    ph: String,
    pid: usize,
    #[serde(default)]
    cat: String,
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    args: SliceArgs,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SliceArgs {
    step: u64,
    #[serde(rename = "plan step")]
    at: u32,
}

impl TimelineSlice {
    /// The record of rank 0 that it shows; where it began does not matter.
    fn record(&self) -> Option<Record> {
        if self.ph != "X" || self.pid != 0 {
            return None;
        }
        let what = match self.cat.as_str() {
            "step" => What::Step,
            "compute" => What::Compute,
            "wait" => What::Wait,
            "collective" => What::Start,
            _ => return None,
        };
        let end = (self.dur * 1e3).round() as u64;
        Some(Record { what, begin: 0, end, step_number: self.args.step, sequence: 0, at: self.args.at })
    }
}

fn read(of: &Path) -> Checked<Timeline> {
    let failed = |message: String| Diagnostic::error(codes::E0515, message);
    let file = std::fs::File::open(of).map_err(|e| failed(format!("cannot read `{}`: {e}", of.display())))?;
    serde_json::from_reader(BufReader::new(file)).map_err(|e| {
        let message = format!("`{}` is no timeline of a run: {e}", of.display());
        Box::new(
            failed(message)
                .help("`train --trace FILE` and `bench model --trace FILE` write one; a folder is a run"),
        )
    })
}
