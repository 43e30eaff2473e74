//! What is accumulated over the batches of a data set.

use crate::devices::LoadedProgram;
use crate::failure::Failure;
use meshwright_core::Evaluation;
use meshwright_diag::{Diagnostic, codes};
use meshwright_exec::HostTensor;
use meshwright_ops::F64Tensor;
use meshwright_plan::Dim;
use meshwright_runs::metrics;
use meshwright_sorted::SortedMap;
use std::borrow::Borrow;

/// The accumulators of an evaluation, over the batches so far.
pub(crate) struct Totals<E> {
    evaluation: E,
    total: Vec<Vec<f64>>,
    examples: usize,
}

impl<E: Borrow<Evaluation>> Totals<E> {
    /// Over no batch yet.
    pub(crate) fn new(evaluation: E) -> Totals<E> {
        Totals { evaluation, total: Vec::new(), examples: 0 }
    }

    /// Adds what `program` gave for a batch of its size.
    pub(crate) fn add(
        &mut self,
        program: &LoadedProgram,
        outputs: &SortedMap<String, HostTensor>,
    ) -> Result<(), Failure> {
        let mut values = Vec::new();
        let evaluation = self.evaluation.borrow();
        for (k, goal) in evaluation.step.outputs[..evaluation.accumulate.len()].iter().enumerate() {
            let stored = program.plan.outputs.iter().find(|o| o.name == goal.name);
            let (Some(stored), Some(value)) = (stored, outputs.get(&goal.name)) else {
                return Err(Diagnostic::error(
                    codes::E0516,
                    format!("the devices gave no `{}` for a batch", goal.name),
                )
                .into());
            };
            let dims = evaluation.dims(k);
            same_sizes(evaluation, dims, program)?;
            values.push(
                F64Tensor::new(&program.plan.dims, stored.dims.clone(), value.data.to_f64())
                    .ordered(dims)
                    .data,
            );
        }
        evaluation.add(&mut self.total, self.examples, &values, program.examples);
        self.examples += program.examples;
        Ok(())
    }

    /// The results by name.
    pub(crate) fn finish(self) -> Vec<(String, F64Tensor)> {
        self.evaluation.borrow().finish(self.total)
    }

    /// The results of an evaluation, of which `loss` is the loss.
    pub(crate) fn finish_as(self, loss: Option<&str>) -> metrics::Evaluation {
        let mut evaluation = metrics::Evaluation { loss: f64::NAN, metrics: Vec::new() };
        for (name, value) in self.finish() {
            let value = value.data.first().copied().unwrap_or(f64::NAN);
            if loss == Some(&name) {
                evaluation.loss = value;
            } else {
                evaluation.metrics.push((name, value));
            }
        }
        evaluation
    }
}

/// Refuses an accumulator that has another size in a batch than in a whole one.
fn same_sizes(evaluation: &Evaluation, dims: &[Dim], program: &LoadedProgram) -> Result<(), Failure> {
    let (whole, here) = (&evaluation.step.graph.dims, &program.plan.dims);
    let Some(d) = dims.iter().find(|d| whole.size(**d) != here.size(**d)) else { return Ok(()) };
    let message = format!(
        "what is accumulated over the batches has {} elements along `{}` in a whole batch and {} in one of {} examples",
        whole.size(*d),
        here.name(*d),
        here.size(*d),
        program.examples
    );
    Err(Diagnostic::error(codes::E0206, message)
        .help(format!("give `{}` a size that does not depend on the batch", here.name(*d)))
        .into())
}
