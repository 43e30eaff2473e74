//! Matrix products that share a factor.

use super::values::RefTensor;
use super::{Reference, other_operands};
use meshwright_device::KernelError;
use meshwright_device::kernels::call::Computes;
use meshwright_device::kernels::matmul_group::{GroupEpilogue, MatmulGroupCall};

/// A factor as a matrix.
struct Factor<'a> {
    tensor: &'a RefTensor,
    /// Elements from one row to the next, and from one column to the next.
    steps: [usize; 2],
}

impl Factor<'_> {
    fn at(&self, row: usize, column: usize) -> f64 {
        self.tensor.numbers[row * self.steps[0] + column * self.steps[1]]
    }
}

impl Computes<MatmulGroupCall> for Reference<'_> {
    /// Results: the products, then their sums.
    fn compute(self, call: &MatmulGroupCall) -> Result<(), KernelError> {
        let Reference { inputs, outputs, .. } = self;
        let [rows, columns, summed] = call.sizes;
        let [of_left, of_right] = [0, 1].map(|side: usize| {
            let [down, across] = call.factors()[side];
            if call.by_columns[side] { [1, down] } else { [across, 1] }
        });
        let (Some(own), Some(vectors)) = (inputs.get(call.own()), inputs.get(call.vectors())) else {
            return Err(other_operands());
        };
        for (n, tensor) in own.iter().enumerate() {
            let (left, right) = if call.shares_left { (&inputs[0], tensor) } else { (tensor, &inputs[0]) };
            let left = Factor { tensor: left, steps: of_left };
            let right = Factor { tensor: right, steps: of_right };
            let bias = vectors.get(n);
            let made = &mut outputs[n].numbers;
            for (at, element) in made.iter_mut().enumerate() {
                let (row, column) = (at / columns, at % columns);
                let sum = (0..summed).fold(0.0, |sum, k| sum + left.at(row, k) * right.at(k, column));
                *element = sum + bias.map_or(0.0, |b| b.numbers[column]);
            }
            if let GroupEpilogue::Sums { .. } = call.beside {
                let sum = |i: usize| {
                    let term = |k| if call.shares_left { right.at(k, i) } else { left.at(i, k) };
                    (0..summed).fold(0.0, |sum, k| sum + term(k))
                };
                let many = if call.shares_left { columns } else { rows };
                outputs[call.count + n].numbers = (0..many).map(sum).collect();
            }
        }
        Ok(())
    }
}
