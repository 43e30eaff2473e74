//! Matrix products with an epilogue.

use super::maps::maps;
use super::values::RefTensor;
use super::{Reference, other_operands};
use meshwright_device::KernelError;
use meshwright_device::kernels::call::Computes;
use meshwright_device::kernels::fp8_factor::Fp8FactorCalls;
use meshwright_device::kernels::matmul::{EpilogueFunction, FactorDigits, MatmulCall, MatmulEpilogue};
use meshwright_plan::Fp8;
use meshwright_plan::expr::UnaryFn;

impl Computes<MatmulCall> for Reference<'_> {
    /// Results: of the epilogue, then its second result.
    fn compute(self, call: &MatmulCall) -> Result<(), KernelError> {
        let Reference { inputs: [left, right, rest @ ..], outputs, .. } = self else {
            return Err(other_operands());
        };
        let [rows, columns] = call.matrices;
        let (scales, rest) = rest.split_at_checked(call.digits.scales()).ok_or_else(other_operands)?;
        let of_codes = match (call.digits, scales) {
            (FactorDigits::Fp8(formats), [by_left, by_right]) => {
                let right = turned(&decoded(right, formats[1], by_right)?, columns);
                Some([decoded(left, formats[0], by_left)?, right])
            }
            _ => None,
        };
        let [left, right] = of_codes.as_ref().map_or([left, right], |[left, right]| [left, right]);
        let steps = left.numbers.len() / rows;
        let mut sums = vec![0.0; rows * columns];
        for row in 0..rows {
            for step in 0..steps {
                let x = left.numbers[row * steps + step];
                let of_row = &mut sums[row * columns..][..columns];
                of_row.iter_mut().zip(&right.numbers[step * columns..]).for_each(|(sum, y)| *sum += x * y);
            }
        }
        let bias = rest.first().filter(|_| call.biased);
        let biased: Vec<f64> =
            sums.iter().enumerate().map(|(i, x)| x + bias.map_or(0.0, |b| b.numbers[i % columns])).collect();
        match &call.beside {
            MatmulEpilogue::Nothing => outputs[0].numbers = sums,
            MatmulEpilogue::Map { function, .. } => {
                outputs[0].numbers = biased.iter().map(|x| applied(*function, *x)).collect();
                if call.keeps_bits {
                    let bits = &mut outputs[1].numbers;
                    biased
                        .iter()
                        .enumerate()
                        .for_each(|(i, x)| set(bits, (i / columns, i % columns), rows, *x > 0.0));
                }
            }
            MatmulEpilogue::GeluKeeping { .. } => {
                outputs[0].numbers = biased.iter().map(|x| applied(EpilogueFunction::GeluTanh, *x)).collect();
                outputs[1].numbers = biased;
            }
            MatmulEpilogue::ReluGrad { .. } => {
                let through = |i: usize| is_set(&rest[0].numbers, (i / columns, i % columns), rows);
                outputs[0].numbers =
                    sums.iter().enumerate().map(|(i, x)| if through(i) { *x } else { 0.0 }).collect();
            }
            MatmulEpilogue::GeluGrad { .. } => {
                outputs[0].numbers =
                    sums.iter().zip(&rest[0].numbers).map(|(dy, x)| dy * slope(*x)).collect();
            }
            MatmulEpilogue::FactorSums { .. } => outputs[0].numbers = sums,
            MatmulEpilogue::Adds { .. } => {
                outputs[0].numbers =
                    sums.iter().zip(&rest[0].numbers).map(|(sum, value)| value + sum).collect();
            }
        }
        if let Some(of_right) = call.beside.summed() {
            let folded = &mut outputs[1].numbers;
            let (factor, kept) = if of_right { (right, columns) } else { (left, rows) };
            for (i, x) in factor.numbers.iter().enumerate() {
                folded[if of_right { i % kept } else { i / steps }] += x;
            }
        }
        Ok(())
    }
}

impl Computes<Fp8FactorCalls> for Reference<'_> {
    /// Results of each: the codes by rows, then those of the transposed matrix.
    fn compute(self, calls: &Fp8FactorCalls) -> Result<(), KernelError> {
        let Reference { rng, mut inputs, outputs, .. } = self;
        let mut outs = outputs.iter_mut();
        for call in &calls.0 {
            let (own, others) =
                inputs.split_at_checked(call.map.operands.len()).ok_or_else(other_operands)?;
            inputs = others;
            let mut value = [RefTensor::zeros(call.map.sizes.clone())];
            maps(std::slice::from_ref(&call.map), rng, own, &mut value)?;
            let code = |x: &f64| f64::from(call.format.code(call.format.round(*x as f32)));
            let codes = value[0].numbers.iter().map(code).collect();
            let codes = RefTensor { shape: call.matrix.to_vec(), numbers: codes };
            if call.plain {
                outs.next().ok_or_else(other_operands)?.numbers.clone_from(&codes.numbers);
            }
            if call.turned {
                outs.next().ok_or_else(other_operands)?.numbers = turned(&codes, call.matrix[0]).numbers;
            }
        }
        Ok(())
    }
}

/// The transposed matrix of one with this number of rows.
fn turned(of: &RefTensor, rows: usize) -> RefTensor {
    let columns = of.numbers.len() / rows;
    let at = |i: usize| of.numbers[i % rows * columns + i / rows];
    RefTensor { shape: vec![columns, rows], numbers: (0..of.numbers.len()).map(at).collect() }
}

/// The numbers of codes, times a scale.
fn decoded(codes: &RefTensor, format: Fp8, scale: &RefTensor) -> Result<RefTensor, KernelError> {
    let scale = scale.numbers.first().ok_or_else(other_operands)?;
    let number = |code: &f64| f64::from(format.number(*code as u8)) * scale;
    Ok(RefTensor { shape: codes.shape.clone(), numbers: codes.numbers.iter().map(number).collect() })
}

/// The byte and the bit of an element, in rows as long as those of [`relu_bits`](meshwright_device::kernels::matmul::relu_bits).
fn bit(bits: &[f64], (row, column): (usize, usize), rows: usize) -> (usize, u32) {
    (row * (bits.len() / rows) + column / 8, column as u32 % 8)
}

fn set(bits: &mut [f64], at: (usize, usize), rows: usize, is: bool) {
    let (byte, bit) = bit(bits, at, rows);
    bits[byte] += if is { f64::from(1_u32 << bit) } else { 0.0 };
}

fn is_set(bits: &[f64], at: (usize, usize), rows: usize) -> bool {
    let (byte, bit) = bit(bits, at, rows);
    bits[byte] as u32 >> bit & 1 == 1
}

fn applied(function: EpilogueFunction, x: f64) -> f64 {
    match function {
        EpilogueFunction::Identity => x,
        EpilogueFunction::Relu => UnaryFn::Relu.of(x),
        EpilogueFunction::GeluTanh => 0.5 * x * (1.0 + inner(x).tanh()),
    }
}

/// The argument of `tanh` in the approximation of `gelu`.
fn inner(x: f64) -> f64 {
    (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x)
}

/// The derivative of that approximation.
fn slope(x: f64) -> f64 {
    let t = inner(x).tanh();
    let of_inner = (2.0 / std::f64::consts::PI).sqrt() * (1.0 + 3.0 * 0.044_715 * x * x);
    0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * of_inner
}
