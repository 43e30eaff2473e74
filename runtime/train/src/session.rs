//! What a run begins with: what all processes must agree on, and the run's folder, which the first process alone touches.

use crate::checkpoint::{Checkpoint, Meta, Store};
use crate::data::{Dataset, Schedule};
use crate::devices::{compiled, dataset};
use crate::evaluator::data_failed;
use crate::failure::Failure;
use crate::project::Project;
use crate::run_dir::{MetricsLog, RunDir, read_settings};
use crate::settings::RunSettings;
use crate::training::TrainOptions;
use meshwright_core::training_step;
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_exec::Processes;
use meshwright_plan::Plan;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What every process needs before a run can begin.
pub(crate) struct Requirements {
    pub(crate) plan: Plan,
    pub(crate) set: Arc<Dataset>,
    pub(crate) test: Option<Dataset>,
    /// Examples in a batch.
    pub(crate) examples: usize,
}

impl Requirements {
    /// Compiles the training step and reads the data.
    pub(crate) fn of(
        project: &Project,
        sources: &Sources,
        options: &TrainOptions,
    ) -> Result<Requirements, Failure> {
        let Some(step) = training_step(&project.program) else {
            let model = &project.program.model;
            return Err(Diagnostic::error(codes::E0516, format!("the file has no `train {model}` block"))
                .help(format!("add one: `train {model} {{ minimize LOSS optimizer adam(lr = 1e-3) }}`"))
                .into());
        };
        let plan = compiled(project, &step, sources)?.plan;
        let set = match dataset(project, options.wanted(), "train", false)? {
            Some(s) => Arc::new(s),
            None => return Err(data_failed("there is no `train` split".into())),
        };
        let test = if options.eval { dataset(project, options.wanted(), "test", true)? } else { None };
        let examples = plan.inputs.first().and_then(|i| i.dims.first()).map_or(1, |d| plan.dims.size(*d));
        if Schedule::new(0, set.records(), examples).is_none() {
            let name = project.example_dim().map_or("?", |d| d.1);
            return Err(Diagnostic::error(
                codes::E0516,
                format!(
                    "`{name}` = {examples}, but there are only {} examples: not one whole batch",
                    set.records()
                ),
            )
            .help(format!("take a smaller batch: `--dim {name}={}`", set.records()))
            .into());
        }
        Ok(Requirements { plan, set, test, examples })
    }

    /// What all processes of a run must be asked for alike, by name.
    pub(crate) fn asked(
        &self,
        project: &Project,
        sources: &Sources,
        options: &TrainOptions,
    ) -> BTreeMap<String, String> {
        let settings = RunSettings::new(project, sources, options, options.seed.unwrap_or(0), &self.set);
        let mut asked = settings.agreed();
        asked.extend(common(&self.plan));
        asked.insert("`--resume`".into(), options.resume.to_string());
        asked.insert("`--no-overlap`".into(), (!project.compiling.overlap).to_string());
        asked.insert("the seed".into(), options.seed.map_or("none".into(), |s| s.to_string()));
        let test = self.test.as_ref().map(|t| format!("{} examples ({})", t.records(), t.fingerprint()));
        asked.insert("its test data".into(), test.unwrap_or_else(|| "none".into()));
        asked
    }
}

/// What all processes of any command must have alike, by name.
pub(crate) fn common(plan: &Plan) -> BTreeMap<String, String> {
    let version = env!("CARGO_PKG_VERSION").to_string();
    BTreeMap::from([("the plan".to_string(), plan.hash().to_string()), ("the version".to_string(), version)])
}

/// What the first process found in the folder of a run.
pub(crate) struct Session {
    pub(crate) run: Option<RunDir>,
    pub(crate) resumed: Option<Checkpoint>,
    pub(crate) notes: Vec<String>,
    start: StartPoint,
}

/// Where a run stands, and how far it is to go: what the first process tells the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StartPoint {
    pub(crate) seed: u64,
    pub(crate) epochs: Option<u32>,
    pub(crate) steps: Option<u64>,
    /// Of the checkpoint that the run goes on from.
    pub(crate) at: Option<Meta>,
}

impl Session {
    /// Opens the folder of a run to be resumed, and reads its newest checkpoint. Nothing is written for a new run: its
    /// folder is made when nothing can be wrong any more.
    pub(crate) fn of(
        project: &Project,
        sources: &Sources,
        options: &TrainOptions,
        set: &Dataset,
    ) -> Result<Session, Failure> {
        let mut session = Session {
            run: None,
            resumed: None,
            notes: Vec::new(),
            start: StartPoint {
                seed: options.seed.unwrap_or(0),
                epochs: options.epochs,
                steps: options.steps,
                at: None,
            },
        };
        if options.resume {
            let dir = session.resume(project, sources, options, set)?;
            session.resumed = newest(&dir, &mut session.notes)?;
            session.start.at = session.resumed.as_ref().map(|c| c.meta.clone());
            session.run = Some(dir);
        } else if let Some(path) = &options.run {
            RunDir::vacant(path)?;
        }
        Ok(session)
    }

    /// Opens the run's folder and checks that what is asked for is the same run. What is not asked for, seed and length,
    /// becomes the run's.
    fn resume(
        &mut self,
        project: &Project,
        sources: &Sources,
        options: &TrainOptions,
        set: &Dataset,
    ) -> Result<RunDir, Failure> {
        let Some(path) = &options.run else {
            return Err(Diagnostic::error(codes::E0516, "`--resume` needs the folder of the run")
                .help("name it: `--run DIR --resume`")
                .into());
        };
        let dir = RunDir::resume(path)?;
        let before: RunSettings = read_settings(path)?;
        let Ok(of_run) = before.seed.parse() else {
            let message = format!("`{}` cannot be used: its seed is `{}`", path.display(), before.seed);
            return Err(Diagnostic::error(codes::E0511, message).into());
        };
        self.start.seed = options.seed.unwrap_or(of_run);
        if (options.steps, options.epochs) == (None, None) {
            (self.start.steps, self.start.epochs) = (before.steps, before.epochs);
        }
        let now = RunSettings::new(project, sources, options, self.start.seed, set);
        self.notes.extend(before.resumed_as(&now)?);
        if dir.model_text()? != sources.text(project.texts.model) {
            let now = sources.name(project.texts.model);
            self.notes.push(format!(
                "the text of `{now}` has changed since the run was started; it goes on with the new one"
            ));
        }
        Ok(dir)
    }
}

fn newest(run: &RunDir, notes: &mut Vec<String>) -> Result<Option<Checkpoint>, Failure> {
    Ok(match run.checkpoints()?.newest()? {
        Some(found) => {
            notes.extend(found.skipped.iter().map(ToString::to_string));
            Some(found.checkpoint)
        }
        None => {
            notes.push("the run has no checkpoint yet: it starts again".into());
            None
        }
    })
}

/// Tells all processes where the run stands: the first knows.
pub(crate) fn start_point(processes: &Processes, session: Option<&Session>) -> Result<StartPoint, Failure> {
    let mine = session.map(|s| s.start.clone());
    let told = processes.broadcast("where the run starts".into(), mine)?;
    told.ok_or_else(|| {
        let message = "the first process does not know where the run starts";
        Diagnostic::error(codes::E0526, message).help("start all ranks with the same command line").into()
    })
}

/// What a run is written to; empty where nothing is, and on all processes but the first.
#[derive(Default)]
pub(crate) struct Written {
    pub(crate) run: Option<RunDir>,
    pub(crate) log: Option<MetricsLog>,
    pub(crate) store: Option<Store>,
}

impl Written {
    /// Makes the folder of a run, or takes the one that was opened, and writes what it is. `after` are the steps and epochs
    /// that `metrics.jsonl` is cut back to.
    pub(crate) fn of(
        session: Session,
        (project, sources): (&Project, &Sources),
        options: &TrainOptions,
        needs: (&Dataset, &Plan),
        after: (u64, u32),
    ) -> Result<Written, Failure> {
        let mut run = session.run;
        if let (None, Some(path)) = (&run, &options.run) {
            run = Some(RunDir::create(path)?);
        }
        let Some(run) = run else { return Ok(Written::default()) };
        let texts = &project.texts;
        let used: Vec<&str> = texts.used.iter().map(|id| sources.text(*id)).collect();
        run.write_texts(sources.text(texts.model), &used, texts.layout.map(|id| sources.text(id)))?;
        run.write_plan(&needs.1.to_json())?;
        // From here on it is a run.
        let of_run = session.start;
        let lasting = TrainOptions { steps: of_run.steps, epochs: of_run.epochs, ..options.clone() };
        run.write_settings(&RunSettings::new(project, sources, &lasting, of_run.seed, needs.0))?;
        let log = Some(run.metrics(after.0, after.1)?);
        let store = Some(run.checkpoints()?);
        Ok(Written { run: Some(run), log, store })
    }
}
