//! Scalar expressions as kernels compute them. Every register is an `f32`: truth values are 0 and 1, and integers are the bits of
//! an `i32`.

use super::erf::{erf, rough_erf};
use super::exp2::exp;
use cubecl::prelude::*;
pub(crate) use meshwright_device::kernels::scalar::{Instruction, ScalarProgram};
use meshwright_plan::expr::{BinaryFn, UnaryFn};

/// Operands of an expression at one position.
#[derive(CubeType)]
pub(crate) struct ScalarInputs {
    pub(crate) loads: Sequence<f32>,
    /// The global position along each dim, where the expression asks for them.
    pub(crate) at: Sequence<u32>,
}

/// The value of an expression.
#[cube]
pub(crate) fn evaluate(element: &ScalarInputs, #[comptime] program: ScalarProgram) -> f32 {
    let results = evaluate_all(element, program);
    *results.index(0usize)
}

/// The values of several expressions.
#[cube]
pub(crate) fn evaluate_all(element: &ScalarInputs, #[comptime] program: ScalarProgram) -> Sequence<f32> {
    let mut registers = Sequence::<f32>::new();
    let many = comptime!(program.instructions.len());
    #[unroll]
    for i in 0..many {
        let value = computed(&registers, element, i, comptime!(program.instructions.clone()));
        registers.push(value);
    }
    let mut results = Sequence::<f32>::new();
    let many = comptime!(program.results.len());
    #[unroll]
    for i in 0..many {
        results.push(*registers.index(comptime!(program.results[i])));
    }
    results
}

#[cube]
fn computed(
    registers: &Sequence<f32>,
    element: &ScalarInputs,
    #[comptime] which: usize,
    #[comptime] program: Vec<Instruction>,
) -> f32 {
    match comptime!(program[which]) {
        Instruction::Load(n) => *element.loads.index(n),
        Instruction::Number(bits) => comptime!(f32::from_bits(bits)).runtime(),
        Instruction::Whole(n) => f32::reinterpret(comptime!(n).runtime()),
        Instruction::Index(dim) => f32::reinterpret(*element.at.index(dim)),
        Instruction::Unary(f, a) => unary(*registers.index(a), f),
        Instruction::RoughExp(a) => exp(*registers.index(a)),
        Instruction::RoughErf(a) => rough_erf(*registers.index(a)),
        Instruction::Binary(f, a, b) => binary(*registers.index(a), *registers.index(b), f),
        Instruction::OfIntegers(f, a, b) => {
            let a = integer(registers, a, comptime!(program.clone()));
            let b = integer(registers, b, comptime!(program.clone()));
            of_integers(a, b, f)
        }
        Instruction::Select(c, a, b) => {
            select(*registers.index(c) != 0.0f32, *registers.index(a), *registers.index(b))
        }
        Instruction::Float(a) => f32::cast_from(integer(registers, a, program)),
        Instruction::Integer(a) => f32::reinterpret(i32::cast_from(*registers.index(a))),
        Instruction::Truth(a) => truth(*registers.index(a) != 0.0f32),
        Instruction::TruthOfInteger(a) => truth(integer(registers, a, program) != 0i32),
    }
}

/// The integer in a register. A constant is not read from there: as the bits of a float it may be subnormal, and compilers take
/// that for 0 where the host does (ADR 35).
#[cube]
fn integer(
    registers: &Sequence<f32>,
    #[comptime] which: usize,
    #[comptime] program: Vec<Instruction>,
) -> i32 {
    match comptime!(program[which]) {
        Instruction::Whole(n) => comptime!(n).runtime(),
        _ => i32::reinterpret(*registers.index(which)),
    }
}

/// A truth value in a register.
#[cube]
pub(crate) fn truth(is: bool) -> f32 {
    select(is, 1.0f32, 0.0f32)
}

#[cube]
fn unary(x: f32, #[comptime] f: UnaryFn) -> f32 {
    match comptime!(f) {
        UnaryFn::Neg => -x,
        UnaryFn::Relu => select(x <= 0.0f32, 0.0f32, x),
        UnaryFn::Sqrt => x.sqrt(),
        UnaryFn::Rsqrt => 1.0f32 / x.sqrt(),
        UnaryFn::Recip => 1.0f32 / x,
        UnaryFn::Exp => x.exp(),
        UnaryFn::Log => x.ln(),
        UnaryFn::Abs => x.abs(),
        UnaryFn::Sign => {
            let below = select(x < 0.0f32, -1.0f32, x);
            select(x > 0.0f32, 1.0f32, below)
        }
        UnaryFn::Tanh => x.tanh(),
        UnaryFn::Sigmoid => {
            let e = (-x.abs()).exp();
            select(x < 0.0f32, e, 1.0f32) / (1.0f32 + e)
        }
        UnaryFn::Erf => erf(x),
        UnaryFn::Sin => x.sin(),
        UnaryFn::Cos => x.cos(),
        UnaryFn::Tan => x.tan(),
        UnaryFn::Log1p => x.log1p(),
        UnaryFn::Floor => x.floor(),
        UnaryFn::Ceil => x.ceil(),
        UnaryFn::Round => x.round(),
        UnaryFn::Tf32 => tf32(x),
        _ => truth(x == 0.0f32),
    }
}

/// As [`meshwright_plan::tf32`].
#[cube]
pub(crate) fn tf32(x: f32) -> f32 {
    let bits = u32::reinterpret(x);
    let even = (bits >> 13u32) & 1u32;
    let rounded = (bits + 0xfffu32 + even) & 0xffff_e000u32;
    select(x.is_nan(), x, f32::reinterpret(rounded))
}

#[cube]
fn binary(a: f32, b: f32, #[comptime] f: BinaryFn) -> f32 {
    match comptime!(f) {
        BinaryFn::Add => a + b,
        BinaryFn::Sub => a - b,
        BinaryFn::Mul => a * b,
        // As selects, which compilers merge into one condition.
        BinaryFn::And => select(a != 0.0f32, b, 0.0f32),
        BinaryFn::Or => select(a != 0.0f32, 1.0f32, b),
        BinaryFn::Div => a / b,
        BinaryFn::Pow => a.powf(b),
        // No number where one is none.
        BinaryFn::Min => min_nan(a, b),
        BinaryFn::Max => max_nan(a, b),
        BinaryFn::Lt => truth(a < b),
        BinaryFn::Le => truth(a <= b),
        BinaryFn::Gt => truth(a > b),
        BinaryFn::Ge => truth(a >= b),
        BinaryFn::Eq => truth(a == b),
        _ => truth(a != b),
    }
}

#[cube]
fn of_integers(a: i32, b: i32, #[comptime] f: BinaryFn) -> f32 {
    match comptime!(f) {
        BinaryFn::Add => f32::reinterpret(a + b),
        BinaryFn::Sub => f32::reinterpret(a - b),
        BinaryFn::Mul => f32::reinterpret(a * b),
        BinaryFn::FloorDiv => {
            let towards_zero = a / b;
            f32::reinterpret(select(towards_zero * b > a, towards_zero - 1i32, towards_zero))
        }
        BinaryFn::Min => f32::reinterpret(select(a <= b, a, b)),
        BinaryFn::Max => f32::reinterpret(select(a >= b, a, b)),
        BinaryFn::Lt => truth(a < b),
        BinaryFn::Le => truth(a <= b),
        BinaryFn::Gt => truth(a > b),
        BinaryFn::Ge => truth(a >= b),
        BinaryFn::Eq => truth(a == b),
        _ => truth(a != b),
    }
}
