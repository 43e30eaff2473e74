//! Losses and metrics over a whole data set: full batches on one program, the remainder on another, accumulated so that the
//! result does not depend on the batch size; what is drawn at random for an example depends on its number. A batch is that of
//! training, or a part of it where training takes it in parts.

use crate::devices::consensus::synchronized_stop;
use crate::devices::{LoadedProgram, batch, compiled, load, prefetch, provide, remainder};
use crate::failure::Failure;
use crate::project::Project;
use crate::training::totals::Totals;
use meshwright_core::Evaluation;
use meshwright_data::{Dataset, EpochSeed};
use meshwright_diag::Sources;
use meshwright_exec::{Cluster, ExampleDraws};
use meshwright_plan::random::FIXED_SEED;
use meshwright_runs::metrics;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The programs that evaluate a project on one data set.
pub(crate) struct Evaluator {
    evaluation: Evaluation,
    full: Option<LoadedProgram>,
    rest: Option<LoadedProgram>,
    set: Arc<Dataset>,
    /// Which of the results is the loss.
    loss: Option<String>,
    /// Why batches are whole, where the training step takes them in parts.
    whole: Option<String>,
}

impl Evaluator {
    /// Compiles and loads the programs for a data set of `set.records()` examples.
    pub(crate) fn new(
        project: &Project,
        sources: &Sources,
        cluster: &mut Cluster,
        set: Arc<Dataset>,
    ) -> Result<Evaluator, Failure> {
        let parts = project.evaluated_in_parts();
        let whole = parts.as_ref().err().cloned();
        let project = parts.as_ref().ok().and_then(Option::as_ref).unwrap_or(project);
        let size = project.batch();
        let full = set.records() / size;
        let of = |p: &Project| match p.evaluation() {
            (Some(e), _) => Ok(e),
            (None, d) => Err(Failure::Diagnostics(d)),
        };
        let evaluation = of(project)?;
        let mut make = |p: &Project| -> Result<LoadedProgram, Failure> {
            let e = of(p)?;
            load(cluster, compiled(p, &e.step, sources)?.plan, None)
        };
        let remainder = remainder(project, set.records())?;
        let full = if full > 0 { Some(make(project)?) } else { None };
        let rest = remainder.as_ref().map(make).transpose()?;
        Ok(Evaluator { evaluation, full, rest, set, loss: project.loss().map(String::from), whole })
    }

    /// The programs.
    pub(crate) fn programs(&self) -> impl Iterator<Item = &LoadedProgram> {
        self.full.iter().chain(&self.rest)
    }

    /// Why its batches are whole, where training takes them in parts.
    pub(crate) fn whole_batches(&self) -> Option<String> {
        self.whole.clone()
    }

    /// What there is to say of it and its data set.
    pub(crate) fn notes(&self) -> Vec<String> {
        let of_set = self.set.notes().into_iter().map(|n| format!("of the set to evaluate on, {n}"));
        of_set.chain(self.whole_batches()).collect()
    }

    /// Runs over the data set once; `stop` ends it after the batch at hand, with no result, unless that was the last.
    /// `progress` is told examples done and their number.
    pub(crate) fn run(
        &self,
        cluster: &Cluster,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Option<metrics::Evaluation>, Failure> {
        let records = self.set.records();
        let size = self.full.as_ref().map_or(0, |f| f.examples);
        let batches = records.checked_div(size).unwrap_or(0) as u64;
        let mut totals = Totals::new(&self.evaluation);
        let mut done = 0;
        // Whether to stop.
        let mut step = |program: &LoadedProgram, b| -> Result<bool, Failure> {
            let draws = ExampleDraws { seed: FIXED_SEED, first: done as u64 };
            let report = cluster.run_drawing(program.id, draws, &provide(program, b))?;
            let failed = totals.add(program, &report.outputs).err();
            done += program.examples;
            progress(done, records);
            let about = "the batch of an evaluation".into();
            let wishes = [stop.load(Ordering::Relaxed), false];
            let [stopped, _] = synchronized_stop(cluster.processes(), about, wishes, failed)?;
            Ok(done < records && stopped)
        };
        if let Some(program) = &self.full {
            let (set, needs) = (self.set.clone(), program.needs.clone());
            let source = prefetch(0..batches, self.set.readers(), move |n| {
                let first = n as usize * size;
                let records: Vec<usize> = (first..first + size).collect();
                batch(&set, &needs, (&records, EpochSeed::default()))
            })?;
            for b in source {
                if step(program, b?)? {
                    return Ok(None);
                }
            }
        }
        if let Some(program) = &self.rest {
            let first = records - program.examples;
            let last: Vec<usize> = (first..records).collect();
            step(program, batch(&self.set, &program.needs, (&last, EpochSeed::default()))?)?;
        }
        Ok(Some(totals.finish_as(self.loss.as_deref())))
    }
}

/// The error of the thread that reads data.
pub(crate) fn data_failed(why: String) -> Failure {
    meshwright_diag::Diagnostic::error(meshwright_diag::codes::E0516, format!("reading data failed: {why}"))
        .into()
}
