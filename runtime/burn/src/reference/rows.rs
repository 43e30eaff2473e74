//! Row groups, pass by pass.

use super::Reference;
use super::maps::StepInputs;
use super::scalar::{computed, joined, nothing, rounded};
use super::values::{RefTensor, positions, row_major};
use meshwright_device::KernelError;
use meshwright_device::kernels::call::Computes;
use meshwright_device::kernels::rows::passes::{RowPart, RowSource, RowTarget};
use meshwright_device::kernels::rows::{ResultOf, RowCall};

/// State of a row.
struct RowState {
    values: Vec<f64>,
    /// Results of folds of earlier passes, and of the current pass.
    folds: Vec<f64>,
    folding: Vec<f64>,
    /// Kept values of each element.
    held: Vec<Vec<f64>>,
}

struct RowRun<'a> {
    call: &'a RowCall,
    operands: StepInputs<'a>,
}

impl Computes<RowCall> for Reference<'_> {
    fn compute(self, call: &RowCall) -> Result<(), KernelError> {
        let Reference { rng, inputs, outputs } = self;
        let operands = StepInputs::new(&call.operands, rng, &mut inputs.iter())?;
        let group = RowRun { call, operands };
        let (of_rows, along) = call.sizes.split_at(call.rows);
        let length: usize = along.iter().product();
        for row in positions(of_rows) {
            let none: Vec<f64> = call.folds.iter().map(|monoid| nothing(*monoid)).collect();
            let mut known = RowState {
                values: vec![0.0; call.values],
                folds: none.clone(),
                folding: none,
                held: vec![vec![0.0; call.held]; length],
            };
            for pass in &call.passes {
                let first = [row.clone(), vec![0; along.len()]].concat();
                group.part(&pass.row, &first, (&mut known, None), outputs);
                for (element, position) in positions(along).enumerate() {
                    let position = [row.clone(), position].concat();
                    group.part(&pass.elements, &position, (&mut known, Some(element)), outputs);
                }
                known.folds.clone_from(&known.folding);
            }
        }
        Ok(())
    }
}

impl RowRun<'_> {
    /// Computes a part of a pass, of the row or of one of its elements.
    fn part(
        &self,
        part: &RowPart,
        position: &[usize],
        (row, element): (&mut RowState, Option<usize>),
        outputs: &mut [RefTensor],
    ) {
        let load = |n: usize| match part.loads[n] {
            RowSource::Operand(which) => self.operands.at(which, position),
            RowSource::Held(place) => element.map_or(f64::NAN, |element| row.held[element][place]),
            RowSource::Value(place) => row.values[place],
            RowSource::Fold(fold) => row.folds[fold],
        };
        let made = computed(&part.program, load, |dim| self.call.starts[dim] + position[dim]);
        for (target, x) in part.targets.iter().zip(made) {
            match *target {
                RowTarget::Hold(place) => element.into_iter().for_each(|e| row.held[e][place] = x),
                RowTarget::Value(place) => row.values[place] = x,
                RowTarget::Fold(fold) => {
                    row.folding[fold] = joined(self.call.folds[fold], row.folding[fold], x);
                }
                RowTarget::Result(result) => {
                    let out = &mut outputs[result];
                    let place = out.place(&self.call.dims_of(self.call.results[result].1), position);
                    out.numbers[place] = x;
                }
                RowTarget::Column(column) => {
                    let first = self.call.results.iter().position(|r| r.1 == ResultOf::Columns).unwrap_or(0);
                    let out = &mut outputs[first + column];
                    let along = self.call.rows..;
                    let place = row_major(&self.call.sizes[along.clone()], &position[along]);
                    out.numbers[place] += rounded(x);
                }
            }
        }
    }
}
