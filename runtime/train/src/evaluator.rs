//! Losses and metrics over a whole data set: full batches on one program, the remainder on another, accumulated so that
//! the result does not depend on the batch size.

use crate::data::Dataset;
use crate::devices::{Loaded, batch, compiled, load, prefetch, provide};
use crate::failure::Failure;
use crate::metrics;
use crate::project::Project;
use meshwright_core::Evaluation;
use meshwright_diag::Sources;
use meshwright_exec::Cluster;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The programs that evaluate a project on one data set.
pub(crate) struct Evaluator {
    evaluation: Evaluation,
    full: Option<Loaded>,
    rest: Option<Loaded>,
    set: Arc<Dataset>,
    losses: usize,
}

impl Evaluator {
    /// Compiles and loads the programs for a data set of `set.records()` examples.
    pub(crate) fn new(
        project: &Project,
        sources: &Sources,
        cluster: &mut Cluster,
        set: Arc<Dataset>,
    ) -> Result<Evaluator, Failure> {
        let size = project.example_dim().map_or(1, |d| d.0.size).max(1);
        let (full, rest) = (set.records() / size, set.records() % size);
        let of = |p: &Project| match p.evaluation() {
            (Some(e), _) => Ok(e),
            (None, d) => Err(Failure::Diagnostics(d)),
        };
        let evaluation = of(project)?;
        let mut make = |p: &Project| -> Result<Loaded, Failure> {
            let e = of(p)?;
            load(cluster, compiled(p, &e.step, sources)?.plan)
        };
        let full = if full > 0 { Some(make(project)?) } else { None };
        let rest = match project.with_batch(rest) {
            Some(p) if rest > 0 => Some(make(&p)?),
            _ => None,
        };
        Ok(Evaluator { evaluation, full, rest, set, losses: project.program.losses.len() })
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
        let mut total: Vec<Vec<f64>> = Vec::new();
        let mut dims = Vec::new();
        let mut done = 0;
        // Whether to stop.
        let mut step = |program: &Loaded, b| -> Result<bool, Failure> {
            let report = cluster.run(program.id, 1, &provide(b))?;
            let mut values = Vec::new();
            for goal in &self.evaluation.step.goals {
                values.push(report.outputs.get(&goal.name).map_or(vec![f64::NAN], |t| t.data.to_f64()));
            }
            if dims.is_empty() {
                dims = program.plan.outputs.iter().map(|o| o.dims.clone()).collect();
            }
            self.evaluation.add(&mut total, done, &values, program.examples);
            done += program.examples;
            progress(done, records);
            Ok(done < records && stop.load(Ordering::Relaxed))
        };
        if let Some(program) = &self.full {
            let (set, needs) = (self.set.clone(), program.needs.clone());
            let source = prefetch(0..batches, move |n| {
                let first = n as usize * size;
                Ok(batch(&set, &needs, &(first..first + size).collect::<Vec<_>>()))
            })?;
            for b in source {
                if step(program, b.map_err(data_failed)?)? {
                    return Ok(None);
                }
            }
        }
        if let Some(program) = &self.rest {
            let first = records - program.examples;
            step(program, batch(&self.set, &program.needs, &(first..records).collect::<Vec<_>>()))?;
        }
        let accumulators: Vec<_> = dims.into_iter().zip(total).collect();
        let mut results = self.evaluation.finish(&accumulators);
        let metrics = results.split_off(self.losses.min(results.len()));
        let loss = results.first().map_or(f64::NAN, |l| l.1);
        Ok(Some(metrics::Evaluation { loss, metrics }))
    }
}

/// The error of the thread that reads data.
pub(crate) fn data_failed(why: String) -> Failure {
    meshwright_diag::Diagnostic::error(meshwright_diag::codes::E0516, format!("reading data failed: {why}"))
        .into()
}
