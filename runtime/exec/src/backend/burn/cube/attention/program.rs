//! Scalar expressions of an attention, as its kernels compute them. Every register is an `f32`: truth values are 0 and 1, and integers
//! are the bits of an `i32`.

use cubecl::prelude::*;
use meshwright_plan::expr::{BinaryFn, Node, Scalar, UnaryFn};
use meshwright_plan::{Computed, DType};

/// One operation, on registers before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Instruction {
    /// The product of query and key.
    Product,
    /// The element of an extra operand.
    Extra(usize),
    /// What is drawn.
    Drawn(usize),
    /// A number, by its bits.
    Number(u32),
    /// The global position along a dim of the scores.
    Index(usize),
    /// Of floats; of truth values `Not`.
    Unary(UnaryFn, usize),
    /// Of floats and truth values.
    Binary(BinaryFn, usize, usize),
    /// Of integers.
    OfIntegers(BinaryFn, usize, usize),
    /// The second where the first is true, else the third.
    Select(usize, usize, usize),
    /// Rounded to the half type of the queries.
    Half(usize),
    /// An integer as a float.
    Float(usize),
    /// A truth value as an integer.
    Integer(usize),
    /// Whether a float is not 0.
    Truth(usize),
}

/// A scalar expression.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ScoreProgram {
    instructions: Vec<Instruction>,
    result: usize,
}

impl ScoreProgram {
    /// An expression of so many extra operands where half types are `half`; none where kernels have no such function.
    pub(super) fn of(computed: &Computed, extras: usize, half: DType) -> Option<ScoreProgram> {
        let nodes = &computed.expr.nodes;
        let mut instructions = vec![];
        // Which instruction gives each node.
        let mut at: Vec<usize> = vec![];
        for node in nodes {
            let known = match node.dtype {
                dtype if dtype.is_half() => dtype == half,
                dtype => matches!(dtype, DType::F32 | DType::I32 | DType::Bool),
            };
            if !known {
                return None;
            }
            let instruction = match node.scalar {
                Scalar::Cast(from) => match cast(nodes, node, from, &at)? {
                    Ok(instruction) => instruction,
                    Err(same) => {
                        at.push(same);
                        continue;
                    }
                },
                _ => instruction(nodes, node, extras, &at)?,
            };
            instructions.push(instruction);
            let rounds =
                !matches!(instruction, Instruction::Product | Instruction::Extra(_) | Instruction::Half(_));
            if node.dtype.is_half() && rounds {
                instructions.push(Instruction::Half(instructions.len() - 1));
            }
            at.push(instructions.len() - 1);
        }
        Some(ScoreProgram { result: *at.get(usize::from(computed.reg))?, instructions })
    }
}

/// What computes a node that is no conversion; `at` says which instruction gives each node before it.
fn instruction(nodes: &[Node], node: &Node, extras: usize, at: &[usize]) -> Option<Instruction> {
    use UnaryFn::{Abs, Exp, Log, Neg, Not, Recip, Relu, Sqrt, Tanh};
    let reg = |r: u16| at.get(usize::from(r)).copied();
    let of_integers = |r: u16| nodes.get(usize::from(r)).is_some_and(|n| n.dtype == DType::I32);
    Some(match node.scalar {
        Scalar::Load(0) => Instruction::Product,
        Scalar::Load(n) if usize::from(n) <= extras => Instruction::Extra(usize::from(n) - 1),
        Scalar::Load(n) => Instruction::Drawn(usize::from(n) - 1 - extras),
        Scalar::Const(x) if node.dtype == DType::I32 => Instruction::Number(x as i32 as u32),
        Scalar::Const(x) => Instruction::Number((x as f32).to_bits()),
        Scalar::Index(k) => Instruction::Index(usize::from(k)),
        Scalar::Unary(f @ (Neg | Relu | Sqrt | Recip | Exp | Log | Abs | Tanh | Not), a)
            if !of_integers(a) =>
        {
            Instruction::Unary(f, reg(a)?)
        }
        Scalar::Binary(BinaryFn::Pow | BinaryFn::FloorDiv | BinaryFn::Mod, ..) => return None,
        Scalar::Binary(BinaryFn::Div, a, _) if of_integers(a) => return None,
        Scalar::Binary(f, a, b) if of_integers(a) => Instruction::OfIntegers(f, reg(a)?, reg(b)?),
        Scalar::Binary(f, a, b) => Instruction::Binary(f, reg(a)?, reg(b)?),
        Scalar::Select(c, a, b) => Instruction::Select(reg(c)?, reg(a)?, reg(b)?),
        _ => return None,
    })
}

/// What converts to the dtype of a node, or the instruction whose result is that already.
fn cast(nodes: &[Node], to: &Node, from: u16, at: &[usize]) -> Option<Result<Instruction, usize>> {
    let (reg, from) = (*at.get(usize::from(from))?, nodes.get(usize::from(from))?.dtype);
    Some(match (from, to.dtype) {
        (from, to) if from == to => Err(reg),
        (DType::I32, DType::Bool) => return None,
        (_, DType::Bool) => Ok(Instruction::Truth(reg)),
        (DType::Bool, DType::I32) => Ok(Instruction::Integer(reg)),
        (_, DType::I32) => return None,
        (DType::I32, _) => Ok(Instruction::Float(reg)),
        (_, to) if to.is_half() => Ok(Instruction::Half(reg)),
        _ => Err(reg),
    })
}

/// What an expression reads at one score.
#[derive(CubeType)]
pub(super) struct ScoreElement {
    pub(super) product: f32,
    pub(super) extras: Sequence<f32>,
    pub(super) drawn: Sequence<f32>,
    pub(super) at: Sequence<u32>,
}

/// The value of an expression; `E` is the half type.
#[cube]
pub(super) fn evaluate<E: Float>(element: &ScoreElement, #[comptime] program: ScoreProgram) -> f32 {
    let mut registers = Sequence::<f32>::new();
    let many = comptime!(program.instructions.len());
    #[unroll]
    for i in 0..many {
        let value = computed::<E>(&registers, element, comptime!(program.instructions[i]));
        registers.push(value);
    }
    *registers.index(comptime!(program.result))
}

#[cube]
fn computed<E: Float>(
    registers: &Sequence<f32>,
    element: &ScoreElement,
    #[comptime] instruction: Instruction,
) -> f32 {
    match comptime!(instruction) {
        Instruction::Product => element.product,
        Instruction::Extra(n) => *element.extras.index(n),
        Instruction::Drawn(n) => *element.drawn.index(n),
        Instruction::Number(bits) => comptime!(f32::from_bits(bits)).runtime(),
        Instruction::Index(dim) => f32::reinterpret(*element.at.index(dim)),
        Instruction::Unary(f, a) => unary(*registers.index(a), f),
        Instruction::Binary(f, a, b) => binary(*registers.index(a), *registers.index(b), f),
        Instruction::OfIntegers(f, a, b) => {
            of_integers(i32::reinterpret(*registers.index(a)), i32::reinterpret(*registers.index(b)), f)
        }
        Instruction::Select(c, a, b) => {
            select(*registers.index(c) != 0.0f32, *registers.index(a), *registers.index(b))
        }
        Instruction::Half(a) => f32::cast_from(E::cast_from(*registers.index(a))),
        Instruction::Float(a) => f32::cast_from(i32::reinterpret(*registers.index(a))),
        Instruction::Integer(a) => f32::reinterpret(i32::cast_from(*registers.index(a))),
        Instruction::Truth(a) => truth(*registers.index(a) != 0.0f32),
    }
}

#[cube]
fn truth(is: bool) -> f32 {
    select(is, 1.0f32, 0.0f32)
}

#[cube]
fn unary(x: f32, #[comptime] f: UnaryFn) -> f32 {
    match comptime!(f) {
        UnaryFn::Neg => -x,
        UnaryFn::Relu => select(x <= 0.0f32, 0.0f32, x),
        UnaryFn::Sqrt => x.sqrt(),
        UnaryFn::Recip => 1.0f32 / x,
        UnaryFn::Exp => x.exp(),
        UnaryFn::Log => x.ln(),
        UnaryFn::Abs => x.abs(),
        UnaryFn::Tanh => x.tanh(),
        _ => truth(x == 0.0f32),
    }
}

#[cube]
fn binary(a: f32, b: f32, #[comptime] f: BinaryFn) -> f32 {
    match comptime!(f) {
        BinaryFn::Add => a + b,
        BinaryFn::Sub => a - b,
        BinaryFn::Mul | BinaryFn::And => a * b,
        BinaryFn::Div => a / b,
        // The other where one is no number, but then the result is none either.
        BinaryFn::Min => select(a <= b || a.is_nan(), a, b),
        BinaryFn::Max | BinaryFn::Or => select(a >= b || a.is_nan(), a, b),
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
