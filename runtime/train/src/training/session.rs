//! The begin of a run: agreement of all processes, and the run's folder, which the first process alone touches.

use crate::devices::{compiled, dataset};
use crate::estimates::run_estimate;
use crate::failure::Failure;
use crate::init::Initializer;
use crate::project::Project;
use crate::training::TrainOptions;
use crate::training::evaluator::data_failed;
use crate::training::history::HistoryEvent;
use crate::training::run_description::{MEASURED, settings_of};
use meshwright_core::{LOSS_SCALE, is_skip_count, training_step};
use meshwright_data::corpus::TextTokenizer;
use meshwright_data::{BatchSampler, Dataset};
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_exec::Processes;
use meshwright_files::text::counted;
use meshwright_plan::Plan;
use meshwright_runs::RunCosts;
use meshwright_runs::checkpoint::{Checkpoint, EpochLosses, Meta, Store, Which};
use meshwright_runs::logs;
use meshwright_runs::logs::{LogStart, MetricsFile};
use meshwright_runs::metrics_log::{MetricsLog, Stands, changed, summary};
use meshwright_runs::policies::Seen;
use meshwright_runs::run_dir::{RunDir, unusable_settings};
use meshwright_runs::settings::InitFrom;
use meshwright_runs::settings::RunSettings;
use meshwright_sorted::SortedMap;
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::sync::Arc;

/// Needs of every process before a run can begin.
pub(crate) struct Requirements {
    pub(crate) plan: Plan,
    pub(crate) set: Arc<Dataset>,
    pub(crate) validation: Option<Dataset>,
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
        let plan = training_plan(project, sources)?;
        let (set, validation) = trained_on(project, options)?;
        let test = evaluated_on(project, options, "test")?;
        let examples = RunCosts::of(&plan).batch;
        has_whole_batch(project, &set, examples)?;
        Ok(Requirements { plan, set: Arc::new(set), validation, test, examples })
    }

    /// Settings that all processes of a run must share, by name.
    pub(crate) fn asked(
        &self,
        project: &Project,
        sources: &Sources,
        options: &TrainOptions,
    ) -> SortedMap<String, String> {
        let settings = settings_of(project, sources, options, options.seed.unwrap_or(0), Some(&self.set));
        let mut asked = settings.agreed();
        asked.extend(common(&self.plan));
        asked.insert("`--resume`".into(), options.resume.to_string());
        asked.insert("`--no-overlap`".into(), (!project.compiling.overlap).to_string());
        asked.insert("the seed".into(), options.seed.map_or("none".into(), |s| s.to_string()));
        for (what, set) in [("its validation data", &self.validation), ("its test data", &self.test)] {
            let set = set.as_ref().map(|t| format!("{} examples ({})", t.records(), t.fingerprint()));
            asked.insert(what.into(), set.unwrap_or_else(|| "none".into()));
        }
        asked.extend(policies(options).map(|(name, value)| (name.into(), value)));
        asked.insert("`--from`".into(), options.from.to_string());
        // Their paths may differ, since the first process alone writes there. That it does decides what all exchange.
        asked.insert("`--metrics-file`".into(), options.metrics_file.is_some().to_string());
        asked.insert("`--no-save`".into(), options.run.is_none().to_string());
        asked.insert("`--trace`".into(), options.trace.is_some().to_string());
        let traced = options.trace.as_ref().and_then(|t| t.steps.as_ref());
        asked.insert("`--trace-steps`".into(), shown(traced.map(|s| format!("{}..{}", s.start(), s.end()))));
        let init = options.init.as_ref();
        asked.insert("`--init`".into(), shown(init.map(|i| i.path.display())));
        asked.insert("`--init-map`".into(), shown(init.map(|i| i.map.join(", ")).filter(|m| !m.is_empty())));
        asked.insert("`--from` of `--init`".into(), shown(init.map(|i| i.which)));
        asked
    }
}

/// When a run saves and evaluates, by option.
fn policies(options: &TrainOptions) -> [(&'static str, String); 8] {
    let (saves, evaluation) = (&options.saves, &options.evaluation);
    [
        ("`--checkpoint-every`", shown(saves.every)),
        ("`--keep`", saves.keep.to_string()),
        ("`--keep-best`", shown(saves.best.as_ref())),
        ("`--eval-every`", shown(evaluation.every)),
        ("`--patience`", shown(evaluation.patience)),
        ("`--monitor`", evaluation.monitor.to_string()),
        ("`--validation`", shown(evaluation.validation)),
        ("`--peak-flops`", shown(options.policies.peak_flops)),
    ]
}

/// An option's value for a message.
pub(crate) fn shown(value: Option<impl Display>) -> String {
    value.map_or("none".into(), |v| v.to_string())
}

/// Checks that the data of a run has what it trains on: at least one whole batch. Nothing is compiled.
///
/// # Errors
///
/// E0516 where it has too few examples, and the errors of the data.
pub fn has_data(project: &Project, options: &TrainOptions) -> Result<(), Failure> {
    let (set, _) = trained_on(project, options)?;
    has_whole_batch(project, &set, project.batch())
}

/// The examples that a run trains on, and those that it validates on.
fn trained_on(project: &Project, options: &TrainOptions) -> Result<(Dataset, Option<Dataset>), Failure> {
    let Some(set) = dataset(project, options.wanted()?, "train", false)? else {
        return Err(data_failed("there is no `train` split".into()));
    };
    let validation = evaluated_on(project, options, "validation")?;
    let Some(share) = options.evaluation.validation else { return Ok((set, validation)) };
    let (rest, held) = held_out(&set, share, validation.is_some())?;
    Ok((rest, Some(held)))
}

fn evaluated_on(project: &Project, options: &TrainOptions, split: &str) -> Result<Option<Dataset>, Failure> {
    match options.eval {
        true => dataset(project, options.wanted()?, split, true),
        false => Ok(None),
    }
}

fn has_whole_batch(project: &Project, set: &Dataset, examples: usize) -> Result<(), Failure> {
    let records = set.records();
    if BatchSampler::new(0, records, examples).is_some() {
        return Ok(());
    }
    let name = project.example_dim().map_or("?", |d| d.1);
    let message =
        format!("`{name}` = {examples}, but there are only {records} examples: not one whole batch");
    let d = Diagnostic::error(codes::E0516, message);
    Err(match records {
        0 => d,
        _ => d.help(format!("take a smaller batch: `--dim {name}={records}`")),
    }
    .into())
}

/// The Plan of a training step.
pub(crate) fn training_plan(project: &Project, sources: &Sources) -> Result<Plan, Failure> {
    let Some(step) = training_step(&project.program) else {
        let model = &project.program.model;
        return Err(Diagnostic::error(codes::E0516, format!("the file has no `train {model}` block"))
            .help(format!("add one: `train {model} {{ minimize LOSS optimizer adam(lr = 1e-3) }}`"))
            .into());
    };
    Ok(compiled(project, &step, sources)?.plan)
}

/// Parts a training set in what is trained on and the share that is validated on: the same examples in every run.
fn held_out(set: &Dataset, share: f64, has_own: bool) -> Result<(Dataset, Dataset), Failure> {
    const SEED: u64 = 0;
    let refused = |message: String, help: &str| -> Failure {
        Diagnostic::error(codes::E0516, message).help(help).into()
    };
    if has_own {
        let message = format!("`--validation {share}`, but the data has a validation set of its own");
        return Err(refused(message, "leave `--validation` out, or take `[validation]` out of data.toml"));
    }
    set.split(share, SEED).ok_or_else(|| {
        let message =
            format!("a share of {share} of {} cannot be held out", counted(set.records() as u64, "example"));
        match set.share_to_hold_out(SEED) {
            Some(fits) => {
                let help =
                    format!("give a share of which both parts have examples, such as `--validation {fits}`");
                refused(message, &help)
            }
            None => refused(message, "leave `--validation` out, or take a training set of more examples"),
        }
    })
}

/// Settings that all processes of any command must share, by name.
pub(crate) fn common(plan: &Plan) -> SortedMap<String, String> {
    let version = env!("CARGO_PKG_VERSION").to_string();
    SortedMap::from([("the plan".to_string(), plan.hash().to_string()), ("the version".to_string(), version)])
}

/// The first process's reading of a run's folder.
pub(crate) struct Session {
    pub(crate) run: Option<RunDir>,
    pub(crate) resumed: Option<Checkpoint>,
    pub(crate) initializer: Option<Initializer>,
    pub(crate) notes: Vec<String>,
    /// Source of first values when the run began.
    init: Option<InitFrom>,
    start: StartPoint,
}

/// Position and length of a run, sent by the first process to the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StartPoint {
    pub(crate) seed: u64,
    pub(crate) epochs: Option<u32>,
    pub(crate) steps: Option<u64>,
    /// Of the checkpoint that the run goes on from.
    pub(crate) at: Option<Meta>,
    /// The evaluations until then.
    pub(crate) seen: Vec<Seen>,
    /// The parameters and states whose first values come from elsewhere.
    pub(crate) initialized: Vec<String>,
    /// Whether updates were skipped until then, which optimizers do not count.
    pub(crate) skips: bool,
}

impl Session {
    /// Opens the folder of a run to be resumed, and reads its newest checkpoint. Nothing is written for a new run: its
    /// folder is made when nothing can be wrong any more.
    pub(crate) fn of(
        project: &Project,
        sources: &Sources,
        options: &TrainOptions,
        needs: &Requirements,
    ) -> Result<Session, Failure> {
        let mut session = Session {
            run: None,
            resumed: None,
            initializer: None,
            notes: Vec::new(),
            init: options.init.clone(),
            start: StartPoint {
                seed: options.seed.unwrap_or(0),
                epochs: options.epochs,
                steps: options.steps,
                at: None,
                seen: Vec::new(),
                initialized: Vec::new(),
                skips: false,
            },
        };
        if let Some(file) = &options.metrics_file {
            MetricsFile::writable(file)?;
        }
        if options.resume {
            let dir = session.resume(project, sources, options, &needs.set)?;
            session.resumed = checkpoint(&dir, options.from, &mut session.notes)?;
            session.start.at = session.resumed.as_ref().map(|c| c.meta.clone());
            session.start.skips = session.resumed.as_ref().map_or(Ok(false), skips)?;
            let during = if needs.validation.is_some() { "validation" } else { "test" };
            session.reads_log(&dir, during)?;
            session.run = Some(dir);
        } else if let Some(path) = &options.run {
            RunDir::vacant(path)?;
        }
        session.takes(project, options)?;
        Ok(session)
    }

    /// Opens what first values are taken from, where the run begins.
    fn takes(&mut self, project: &Project, options: &TrainOptions) -> Result<(), Failure> {
        let Some(from) = &self.init else { return Ok(()) };
        if let Some(at) = &self.start.at {
            if options.init.is_some() {
                let path = from.path.display();
                self.notes.push(format!("the run goes on from step {}: `{path}` is not read again", at.step));
            }
            return Ok(());
        }
        let initializer = Initializer::of(from, project)?;
        self.notes.extend(initializer.notes());
        self.start.initialized = initializer.paths();
        self.initializer = Some(initializer);
        Ok(())
    }

    /// Reads from the log facts that a checkpoint lacks: the evaluations, and whether the end of the current epoch was
    /// logged after the checkpoint was made.
    fn reads_log(&mut self, dir: &RunDir, set: &str) -> Result<(), Failure> {
        let Some(meta) = &mut self.start.at else { return Ok(()) };
        let log = summary(&dir.metrics_text()?, meta.step, set, meta.log.as_ref());
        if meta.position == 0 && log.epochs == meta.epoch {
            meta.losses = EpochLosses::default();
        }
        if !log.unchanged {
            self.notes.push(changed());
        }
        self.start.seen = log.seen;
        Ok(())
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
        let before = RunSettings::read(path)?;
        let Ok(of_run) = before.seed.parse() else {
            let why = format!("its `seed` is `{}`, which is not a whole number", before.seed);
            return Err(unusable_settings(path, &why).into());
        };
        self.start.seed = options.seed.unwrap_or(of_run);
        if (options.steps, options.epochs) == (None, None) {
            (self.start.steps, self.start.epochs) = (before.steps, before.epochs);
        }
        self.init = self.init.take().or_else(|| before.init.clone());
        let now = settings_of(project, sources, options, self.start.seed, Some(set));
        self.notes.extend(before.resumed_as(&now, &project.program.model_consts)?);
        if dir.model_text()? != sources.text(project.texts.model) {
            let now = sources.name(project.texts.model);
            self.notes.push(format!(
                "the text of `{now}` has changed since the run was started; it goes on with the new one"
            ));
        }
        Ok(dir)
    }
}

/// Whether a checkpoint counts updates that were skipped.
fn skips(checkpoint: &Checkpoint) -> Result<bool, Failure> {
    for t in checkpoint.tensors.iter().filter(|t| is_skip_count(&t.name)) {
        let count = checkpoint.tensor(&t.name)?.to_f64().filter(|n| n.len() == 1);
        if count.is_some_and(|n| n[0] > 0.0) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn checkpoint(run: &RunDir, which: Which, notes: &mut Vec<String>) -> Result<Option<Checkpoint>, Failure> {
    Ok(match run.checkpoints()?.find(which)? {
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

/// Sinks of a run; empty without any, and on all processes but the first.
#[derive(Default)]
pub(crate) struct Written {
    pub(crate) run: Option<RunDir>,
    pub(crate) log: Option<MetricsLog>,
    pub(crate) store: Option<Store>,
    pub(crate) notes: Vec<String>,
}

impl Written {
    /// Makes the folder of a run, or takes the one that was opened, and writes what it is. `metrics.jsonl` is
    /// cut back to where the run stands.
    pub(crate) fn of(
        session: Session,
        (project, sources): (&Project, &Sources),
        options: &TrainOptions,
        needs: (&Dataset, &Plan),
        stands: Stands,
    ) -> Result<Written, Failure> {
        let mut run = session.run;
        if let (None, Some(path)) = (&run, &options.run) {
            run = Some(RunDir::create(path)?);
        }
        let Some(run) = run else { return Ok(Written::default()) };
        let texts = &project.texts;
        let used: Vec<&str> = texts.used.iter().map(|id| sources.text(*id)).collect();
        run.write_texts(sources.text(texts.model), &used, texts.layout.map(|id| sources.text(id)))?;
        // The corpus that the run has found is made into tokens by this one whenever it is read.
        if let (Some(tokenizer), false) = (options.own_tokenizer()?, options.resume) {
            run.write_tokenizer("tokenizer.json", &TextTokenizer::open(&tokenizer, false)?.json()?)?;
        }
        run.write_plan(&needs.1.to_json())?;
        let named = options.machine.as_ref();
        let (estimate, mut notes) = match named.map(|m| run_estimate(project, sources, m)).transpose()? {
            Some((estimate, notes)) => (Some(estimate), notes),
            None => (None, vec![]),
        };
        run.write_costs(&RunCosts { estimate, ..RunCosts::of(needs.1) })?;
        let event = if options.resume { "resume" } else { "start" };
        run.remember(&HistoryEvent::new((project, sources), options, (event, stands.steps)))?;
        let outputs: Vec<&str> = needs.1.outputs.iter().skip(1).map(|o| o.name.as_str()).collect();
        let (log, note) = run.metrics(stands, |kept| {
            let start = LogStart {
                run: run.path(),
                kept,
                step: stands.steps,
                train: outputs.iter().filter(|n| !MEASURED.contains(n)).map(|n| n.to_string()).collect(),
                scaled: outputs.contains(&LOSS_SCALE),
                eval: project.metrics().map(String::from).collect(),
            };
            options.logs.iter().map(|format| logs::open(*format, &start)).collect()
        })?;
        let store = Some(run.checkpoints()?.keeping(options.saves.keep));
        // From here on it is a run; a start that fails before leaves nothing behind.
        let of_run = session.start;
        let (steps, epochs, init) = (of_run.steps, of_run.epochs, session.init);
        let lasting = TrainOptions { steps, epochs, init, ..options.clone() };
        run.write_settings(&settings_of(project, sources, &lasting, of_run.seed, Some(needs.0)))?;
        notes.extend(note);
        Ok(Written { run: Some(run), log: Some(log), store, notes })
    }
}
