//! A project on its devices, a step at a time: batches come from a program that runs the steps itself. A step computes the bits
//! that `train` computes of the same batch.

pub(crate) mod batch_blocks;
pub(crate) mod batch_reader;
mod saving;

use crate::arrays::PredictedOutput;
use crate::devices::{LoadedProgram, compiled, hold_rest, init_all, load, provide, restore, start};
use crate::failure::Failure;
use crate::inference::read_checkpoint;
use crate::init::{Initializer, initialize};
use crate::prediction::{PredictOptions, described, in_order, prediction, total, wanted};
use crate::project::Project;
use crate::stepping::batch_blocks::{BatchNeeds, GivenBlocks, InputForm, input_forms};
use crate::training::TrainOptions;
use crate::training::session::training_plan;
use crate::training::step_metrics::StepOf;
use crate::training::totals::Totals;
use crate::training::utilization::Utilization;
use meshwright_core::Evaluation;
use meshwright_diag::{Diagnostic, Sources};
use meshwright_exec::{Cluster, ExampleDraws, HostTensor};
use meshwright_plan::random::FIXED_SEED;
use meshwright_runs::checkpoint::Which;
use meshwright_runs::metrics::{self, Event, StepMetrics};
use meshwright_runs::settings::InitFrom;
use meshwright_sorted::SortedMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A project on its devices. Dropping it ends them.
pub struct StepSession {
    project: Project,
    sources: Sources,
    options: TrainOptions,
    seed: u64,
    cluster: Cluster,
    /// The training step, where the model has one.
    program: Option<LoadedProgram>,
    utilization: Utilization,
    /// What evaluations take their batches of, and their programs by the number of examples.
    evaluated: Project,
    evaluations: SortedMap<usize, LoadedProgram>,
    /// Steps done.
    steps: u64,
    /// Those since the last save.
    events: Vec<Event>,
    /// The folder of the last save, and the steps that were done then.
    saved: Option<(PathBuf, u64)>,
}

/// An evaluation that takes batches.
pub struct OpenEvaluation {
    totals: Totals<Evaluation>,
    loss: Option<String>,
    done: usize,
}

/// The program of some outputs, for batches of one size.
pub struct OpenPrediction {
    project: Project,
    prediction: Evaluation,
    program: LoadedProgram,
    /// What is to be known of the outputs.
    pub warnings: Vec<Diagnostic>,
}

impl StepSession {
    /// Starts the devices, loads the training step and sets first values, those of `options.init` among them.
    ///
    /// # Errors
    /// Where a layout does not fit the devices, or their memory, and where first values cannot be taken.
    pub fn start(project: Project, sources: Sources, options: TrainOptions) -> Result<StepSession, Failure> {
        // A peak is measured for runs alone.
        let options = TrainOptions { measure_peak: false, ..options };
        let mut cluster = start(&project, options.cores, &options.devices)?;
        let trains = project.program.train.is_some();
        let plan = trains.then(|| training_plan(&project, &sources)).transpose()?;
        let of = Some((&project, &sources));
        let program = plan.map(|plan| load(&mut cluster, plan, of)).transpose()?;
        let rest = hold_rest(&project, &sources, &mut cluster)?;
        let seed = options.seed.unwrap_or(0);
        init_all(&cluster, program.iter().chain(&rest), seed)?;
        let evaluated = project.evaluated_in_parts().ok().flatten().unwrap_or_else(|| project.clone());
        let utilization = Utilization::of(&project, &options, &cluster)?;
        let init = options.init.clone();
        let mut session = StepSession {
            project,
            sources,
            options,
            seed,
            cluster,
            program,
            utilization,
            evaluated,
            evaluations: SortedMap::new(),
            steps: 0,
            events: Vec::new(),
            saved: None,
        };
        init.map(|from| session.load(&from)).transpose()?;
        Ok(session)
    }

    /// The project.
    pub fn project(&self) -> &Project {
        &self.project
    }

    /// The texts of the project, to render what is wrong.
    pub fn sources(&self) -> &Sources {
        &self.sources
    }

    /// The inputs as a batch of a step has them.
    pub fn inputs(&self) -> Vec<InputForm> {
        input_forms(&self.project)
    }

    /// Steps done.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// What a step takes of a batch.
    ///
    /// # Errors
    /// E0516 where the model does not train.
    pub fn step_needs(&self) -> Result<BatchNeeds, Failure> {
        match &self.program {
            Some(program) => Ok(BatchNeeds::new(program, &self.project, self.options.allow_nonfinite)),
            None => Err(match training_plan(&self.project, &self.sources) {
                Err(failure) => failure,
                Ok(_) => Failure::Diagnostics(Vec::new()),
            }),
        }
    }

    /// Trains on a batch.
    ///
    /// # Errors
    /// Where the model does not train, or a device fails.
    pub fn step(&mut self, given: GivenBlocks) -> Result<StepMetrics, Failure> {
        let Some(program) = &self.program else {
            return Err(self.step_needs().err().unwrap_or(Failure::Elsewhere));
        };
        let begin = Instant::now();
        let report = self.cluster.run(program.id, self.steps + 1, &provide(program, given.0))?;
        self.steps += 1;
        let of = StepOf {
            program: &self.project.program,
            plan: &program.plan,
            examples: program.examples,
            tokens: self.project.tokens(),
            utilization: &self.utilization,
        };
        let measured = of.measured(self.steps, &report, begin.elapsed());
        self.events.push(Event::Step(measured.clone()));
        Ok(measured)
    }

    /// Begins an evaluation.
    ///
    /// # Errors
    /// Where the model has nothing to evaluate.
    pub fn evaluation(&self) -> Result<OpenEvaluation, Failure> {
        match self.evaluated.evaluation() {
            (Some(e), _) => Ok(OpenEvaluation {
                totals: Totals::new(e),
                loss: self.project.loss().map(String::from),
                done: 0,
            }),
            (None, found) => Err(Failure::Diagnostics(found)),
        }
    }

    /// The inputs of an evaluation of a batch of `examples`; its program is made where there is none yet.
    ///
    /// # Errors
    /// Where the model cannot be made with a batch of this size.
    pub fn evaluation_needs(&mut self, examples: usize) -> Result<BatchNeeds, Failure> {
        let project = self.evaluated.with_batch(examples)?;
        if !self.evaluations.contains_key(&examples) {
            let (Some(e), _) = project.evaluation() else {
                return Err(Failure::Diagnostics(project.evaluation().1));
            };
            let plan = compiled(&project, &e.step, &self.sources)?.plan;
            self.evaluations.insert(examples, load(&mut self.cluster, plan, None)?);
        }
        let program = &self.evaluations[&examples];
        Ok(BatchNeeds::new(program, &project, self.options.allow_nonfinite))
    }

    /// Evaluates a batch of `examples`, after the batches before it.
    ///
    /// # Errors
    /// Where a device fails.
    pub fn evaluate(
        &self,
        open: &mut OpenEvaluation,
        examples: usize,
        given: GivenBlocks,
    ) -> Result<(), Failure> {
        let Some(program) = self.evaluations.get(&examples) else { return Err(Failure::Elsewhere) };
        let draws = ExampleDraws { seed: FIXED_SEED, first: open.done as u64 };
        let report = self.cluster.run_drawing(program.id, draws, &provide(program, given.0))?;
        open.done += examples;
        open.totals.add(program, &report.outputs)
    }

    /// The program of outputs, all where none are named, and of values, for batches of `examples`.
    ///
    /// # Errors
    /// Where the model has no such output or value, or cannot be made with a batch of this size.
    pub fn prediction(
        &mut self,
        outputs: &[String],
        values: &[String],
        examples: usize,
    ) -> Result<(OpenPrediction, BatchNeeds), Failure> {
        let asked = PredictOptions {
            outputs: outputs.to_vec(),
            values: values.to_vec(),
            ..PredictOptions::default()
        };
        let project = wanted(&self.project.with_batch(examples)?, &asked)?;
        let (prediction, warnings) = prediction(&project)?;
        let plan = compiled(&project, &prediction.step, &self.sources)?.plan;
        let program = load(&mut self.cluster, plan, None)?;
        let needs = BatchNeeds::new(&program, &project, self.options.allow_nonfinite);
        Ok((OpenPrediction { project, prediction, program, warnings }, needs))
    }

    /// The outputs of a batch.
    ///
    /// # Errors
    /// Where a device fails.
    pub fn predict(
        &self,
        open: &OpenPrediction,
        given: GivenBlocks,
    ) -> Result<Vec<PredictedOutput>, Failure> {
        let OpenPrediction { project, prediction, program, .. } = open;
        let draws = ExampleDraws { seed: 0, first: 0 };
        let report = self.cluster.run_drawing(program.id, draws, &provide(program, given.0))?;
        let rows = &prediction.step.outputs[prediction.accumulate.len()..];
        let mut totals = Totals::new(prediction);
        totals.add(program, &report.outputs)?;
        let totals = totals.finish();
        let tensor = |decl: &meshwright_core::LossDecl| {
            let row = rows.iter().find(|r| r.name == decl.name);
            let row =
                row.and_then(|r| in_order(project, &program.plan, &r.name, report.outputs.get(&r.name)?));
            let sum = || total(project, decl, &totals.iter().find(|t| t.0 == decl.name)?.1);
            row.or_else(sum)
        };
        let decls = project.program.outputs.iter();
        Ok(decls.filter_map(|decl| Some(described(project, decl, tensor(decl)?))).collect())
    }

    /// All parameters in declared order: path, names of dims, and values, whole; on the first process, where there are several.
    ///
    /// # Errors
    /// Where a device fails.
    pub fn parameters(&self) -> Result<Vec<(String, Vec<String>, HostTensor)>, Failure> {
        let (program, mut out) = (&self.project.program, Vec::new());
        for p in &program.params {
            let Some(whole) = self.cluster.gathered_state(&p.path)? else { continue };
            let dims = &program.graph.ty(p.id).dims;
            let names = dims.iter().map(|d| program.graph.dims.name(*d).to_string()).collect();
            out.push((p.path.clone(), names, whole));
        }
        Ok(out)
    }

    /// Sets parameters and states to tensors of a file or a run, as `train --init` does; gives what there is to say of it.
    ///
    /// # Errors
    /// E0512 where there is no such file, E0513 where a tensor does not fit or nothing is taken, E0516 for rules that are none.
    pub fn load(&mut self, from: &InitFrom) -> Result<Vec<String>, Failure> {
        let initializer = Initializer::of(from, &self.project)?;
        initialize(&self.cluster, Some(&initializer), &initializer.paths())?;
        Ok(initializer.notes())
    }

    /// Goes on from the newest checkpoint of a run: its parameters, moments and number of steps.
    ///
    /// # Errors
    /// E0512 and E0513 where there is none, or one of another model.
    pub fn resume(&mut self, run: &Path) -> Result<(), Failure> {
        let checkpoint = read_checkpoint(run, Which::default())?.checkpoint;
        restore(&self.cluster, Some(&checkpoint), false)?;
        self.steps = checkpoint.meta.step;
        self.events.clear();
        self.saved = None;
        Ok(())
    }
}

impl OpenEvaluation {
    /// Examples so far.
    pub fn examples(&self) -> usize {
        self.done
    }

    /// Losses and metrics over all batches.
    pub fn finish(self) -> metrics::Evaluation {
        self.totals.finish_as(self.loss.as_deref())
    }
}
