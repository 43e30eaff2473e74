//! What is accumulated over the batches of a data set.

use crate::devices::Loaded;
use crate::failure::Failure;
use meshwright_core::Evaluation;
use meshwright_diag::{Diagnostic, codes};
use meshwright_exec::HostTensor;
use meshwright_ops::F64Tensor;
use meshwright_plan::Dim;
use std::collections::BTreeMap;

/// The accumulators of an evaluation, over the batches so far.
pub(crate) struct Totals<'a> {
    evaluation: &'a Evaluation,
    total: Vec<Vec<f64>>,
    examples: usize,
}

impl<'a> Totals<'a> {
    /// Over no batch yet.
    pub(crate) fn new(evaluation: &'a Evaluation) -> Totals<'a> {
        Totals { evaluation, total: Vec::new(), examples: 0 }
    }

    /// Adds what `program` gave for a batch of its size.
    pub(crate) fn add(
        &mut self,
        program: &Loaded,
        outputs: &BTreeMap<String, HostTensor>,
    ) -> Result<(), Failure> {
        let mut values = Vec::new();
        for (k, goal) in self.evaluation.step.outputs[..self.evaluation.accumulate.len()].iter().enumerate() {
            let stored = program.plan.outputs.iter().find(|o| o.name == goal.name);
            let (Some(stored), Some(value)) = (stored, outputs.get(&goal.name)) else {
                return Err(Diagnostic::error(
                    codes::E0516,
                    format!("the devices gave no `{}` for a batch", goal.name),
                )
                .into());
            };
            let dims = in_batch(self.evaluation.dims(k), &stored.dims, program)?;
            values.push(F64Tensor::new(stored.dims.clone(), value.data.to_f64()).ordered(&dims).data);
        }
        self.evaluation.add(&mut self.total, self.examples, &values, program.examples);
        self.examples += program.examples;
        Ok(())
    }

    /// The results by name.
    pub(crate) fn finish(self) -> Vec<(String, F64Tensor)> {
        self.evaluation.finish(self.total)
    }
}

/// The dims of an accumulator as a batch has them, which may be of another size there: that is refused.
fn in_batch(dims: &[Dim], stored: &[Dim], program: &Loaded) -> Result<Vec<Dim>, Failure> {
    let mut out = Vec::new();
    for d in dims {
        let there = stored.iter().find(|s| s.id == d.id).copied().unwrap_or(*d);
        if there.size != d.size {
            let name = program.plan.dims.name(there);
            let message = format!(
                "what is accumulated over the batches has {} elements along `{name}` in a whole batch and {} in one of {} examples",
                d.size, there.size, program.examples
            );
            return Err(Diagnostic::error(codes::E0206, message)
                .help(format!("give `{name}` a size that does not depend on the batch"))
                .into());
        }
        out.push(there);
    }
    Ok(out)
}
