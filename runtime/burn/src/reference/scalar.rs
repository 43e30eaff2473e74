//! Scalar programs, one element at a time.

use meshwright_cpu::kernels::{DrawBlock, KernelError};
use meshwright_device::kernels::random::RandomBlock;
use meshwright_device::kernels::scalar::{Instruction, ScalarProgram};
use meshwright_exec::HostTensor;
use meshwright_exec::backend::RngState;
use meshwright_plan::Monoid;
use meshwright_plan::expr::{BinaryFn, UnaryFn};

/// The nearest `f32`.
pub(super) fn rounded(x: f64) -> f64 {
    f64::from(x as f32)
}

/// The results of a program at an element: `load` gives its operands, `index` its global position along each dim.
pub(super) fn computed(
    program: &ScalarProgram,
    load: impl Fn(usize) -> f64,
    index: impl Fn(usize) -> usize,
) -> Vec<f64> {
    let instructions = &program.instructions;
    let mut made: Vec<f64> = Vec::with_capacity(instructions.len());
    // CUDA's compiler joins a product with the sum that reads it, and rounds once. A program may not count on a rounding in
    // between.
    let unrounded = |made: &[f64], at: usize| match instructions[at] {
        Instruction::Binary(BinaryFn::Mul, a, b) => made[a] * made[b],
        _ => made[at],
    };
    for instruction in instructions {
        made.push(match *instruction {
            Instruction::Load(n) => load(n),
            Instruction::Number(bits) => f64::from(f32::from_bits(bits)),
            Instruction::Whole(n) => f64::from(n),
            Instruction::Index(dim) => index(dim) as f64,
            Instruction::Unary(f, a) => rounded(f.of(made[a])),
            Instruction::RoughExp(a) => rounded(made[a].exp()),
            Instruction::RoughErf(a) => rounded(UnaryFn::Erf.of(made[a])),
            Instruction::Binary(f @ (BinaryFn::Add | BinaryFn::Sub), a, b) => {
                rounded(of_floats(f, unrounded(&made, a), unrounded(&made, b)))
            }
            Instruction::Binary(f, a, b) => rounded(of_floats(f, made[a], made[b])),
            Instruction::OfIntegers(f, a, b) => of_integers(f, made[a] as i32, made[b] as i32),
            Instruction::Select(c, a, b) => made[if made[c] != 0.0 { a } else { b }],
            Instruction::Float(a) => rounded(made[a]),
            Instruction::Integer(a) => made[a],
            Instruction::Truth(a) | Instruction::TruthOfInteger(a) => truth(made[a] != 0.0),
        });
    }
    program.results.iter().map(|at| made[*at]).collect()
}

fn truth(is: bool) -> f64 {
    f64::from(u8::from(is))
}

fn compared(f: BinaryFn, order: Option<std::cmp::Ordering>) -> f64 {
    truth(match f {
        BinaryFn::Lt => order.is_some_and(|o| o.is_lt()),
        BinaryFn::Le => order.is_some_and(|o| o.is_le()),
        BinaryFn::Gt => order.is_some_and(|o| o.is_gt()),
        BinaryFn::Ge => order.is_some_and(|o| o.is_ge()),
        BinaryFn::Eq => order.is_some_and(|o| o.is_eq()),
        _ => order.is_none_or(|o| o.is_ne()),
    })
}

fn of_floats(f: BinaryFn, a: f64, b: f64) -> f64 {
    match f {
        BinaryFn::Add => a + b,
        BinaryFn::Sub => a - b,
        BinaryFn::Mul => a * b,
        BinaryFn::Div => a / b,
        BinaryFn::Pow => a.powf(b),
        BinaryFn::And => truth(a != 0.0 && b != 0.0),
        BinaryFn::Or => truth(a != 0.0 || b != 0.0),
        BinaryFn::Min => joined(Monoid::Min, a, b),
        BinaryFn::Max => joined(Monoid::Max, a, b),
        other => compared(other, a.partial_cmp(&b)),
    }
}

fn of_integers(f: BinaryFn, a: i32, b: i32) -> f64 {
    f64::from(match f {
        BinaryFn::Add => a.wrapping_add(b),
        BinaryFn::Sub => a.wrapping_sub(b),
        BinaryFn::Mul => a.wrapping_mul(b),
        BinaryFn::Min => a.min(b),
        BinaryFn::Max => a.max(b),
        BinaryFn::FloorDiv => a.div_euclid(b),
        other => return compared(other, Some(a.cmp(&b))),
    })
}

/// The initial value of a fold.
pub(super) fn nothing(monoid: Monoid) -> f64 {
    match monoid {
        Monoid::Max => f64::NEG_INFINITY,
        Monoid::Min => f64::INFINITY,
        _ => 0.0,
    }
}

/// Two values of a fold: no number where one is none.
pub(super) fn joined(monoid: Monoid, a: f64, b: f64) -> f64 {
    match monoid {
        Monoid::Max | Monoid::Min if a.is_nan() || b.is_nan() => f64::NAN,
        Monoid::Max => a.max(b),
        Monoid::Min => a.min(b),
        _ => a + b,
    }
}

/// Random values of a block, by its own dims.
pub(super) fn drawn(block: &RandomBlock, rng: RngState) -> Result<Vec<f64>, KernelError> {
    let mut host = HostTensor::zeros(block.dtype(), block.shape());
    block.run(rng.seed, rng.moment(), rng.first_example, host.data.view_mut())?;
    Ok(host.data.to_f64())
}
