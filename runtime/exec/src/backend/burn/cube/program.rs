//! Scalar expressions as kernels compute them. Every register is an `f32`: truth values are 0 and 1, and integers are the bits of an
//! `i32`.

use cubecl::prelude::*;
#[cfg(feature = "cuda")]
use meshwright_plan::Computed;
use meshwright_plan::DType;
use meshwright_plan::expr::{BinaryFn, Expr, Node, Reg, Scalar, UnaryFn};

/// The functions that kernels have; of others there are operations of Burn.
const UNARY: &[UnaryFn] = &[
    UnaryFn::Neg,
    UnaryFn::Relu,
    UnaryFn::Sqrt,
    UnaryFn::Rsqrt,
    UnaryFn::Recip,
    UnaryFn::Exp,
    UnaryFn::Log,
    UnaryFn::Abs,
    UnaryFn::Sign,
    UnaryFn::Tanh,
    UnaryFn::Sigmoid,
    UnaryFn::Erf,
    UnaryFn::Sin,
    UnaryFn::Cos,
    UnaryFn::Tan,
    UnaryFn::Log1p,
    UnaryFn::Floor,
    UnaryFn::Ceil,
    UnaryFn::Round,
    UnaryFn::Not,
];

/// One operation, on registers before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Instruction {
    /// What is loaded.
    Load(usize),
    /// A float or a truth value, by its bits.
    Number(u32),
    /// An integer.
    Whole(i32),
    /// The global position along a dim.
    Index(usize),
    /// Of floats; of truth values `Not`.
    Unary(UnaryFn, usize),
    /// Of floats and truth values.
    Binary(BinaryFn, usize, usize),
    /// Of integers.
    OfIntegers(BinaryFn, usize, usize),
    /// The second where the first is true, else the third.
    Select(usize, usize, usize),
    /// Rounded to the half type of the kernel.
    Half(usize),
    /// An integer as a float.
    Float(usize),
    /// A truth value as an integer.
    Integer(usize),
    /// Whether a float is not 0.
    Truth(usize),
    /// Whether an integer is not 0.
    TruthOfInteger(usize),
}

/// Scalar expressions that share registers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ScalarProgram {
    instructions: Vec<Instruction>,
    results: Vec<usize>,
}

impl ScalarProgram {
    /// An expression whose half types are `half`; none where kernels have no such function.
    #[cfg(feature = "cuda")]
    pub(super) fn of(computed: &Computed, half: DType) -> Option<ScalarProgram> {
        ScalarProgram::of_several(&computed.expr, &[computed.reg], half)
    }

    /// Several results of one expression.
    pub(super) fn of_several(expr: &Expr, results: &[Reg], half: DType) -> Option<ScalarProgram> {
        let mut instructions = vec![];
        // Which instruction gives each node.
        let mut at: Vec<usize> = vec![];
        for node in &expr.nodes {
            let known = match node.dtype {
                dtype if dtype.is_half() => dtype == half,
                // Bytes are numbers to be converted.
                DType::U8 => matches!(node.scalar, Scalar::Load(_)),
                dtype => matches!(dtype, DType::F32 | DType::I32 | DType::Bool),
            };
            if !known {
                return None;
            }
            let instruction = match node.scalar {
                Scalar::Cast(from) => match cast(&expr.nodes, node, from, &at)? {
                    Ok(instruction) => instruction,
                    Err(same) => {
                        at.push(same);
                        continue;
                    }
                },
                Scalar::Binary(BinaryFn::Pow, a, b) => power(&mut instructions, &expr.nodes, (a, b), &at)?,
                _ => instruction(&expr.nodes, node, &at)?,
            };
            instructions.push(instruction);
            let rounds = !matches!(instruction, Instruction::Load(_) | Instruction::Half(_));
            if node.dtype.is_half() && rounds {
                instructions.push(Instruction::Half(instructions.len() - 1));
            }
            at.push(instructions.len() - 1);
        }
        let results = results.iter().map(|reg| at.get(usize::from(*reg)).copied());
        Some(ScalarProgram { results: results.collect::<Option<_>>()?, instructions })
    }

    /// What is loaded, as it is.
    #[cfg(feature = "cuda")]
    pub(super) fn identity() -> ScalarProgram {
        ScalarProgram { instructions: vec![Instruction::Load(0)], results: vec![0] }
    }

    /// Whether positions are asked for.
    pub(super) fn has_positions(&self) -> bool {
        self.instructions.iter().any(|i| matches!(i, Instruction::Index(_)))
    }
}

/// What computes a node that is neither a conversion nor a power; `at` says which instruction gives each node before it.
fn instruction(nodes: &[Node], node: &Node, at: &[usize]) -> Option<Instruction> {
    let reg = |r: Reg| at.get(usize::from(r)).copied();
    let of = |r: Reg| nodes.get(usize::from(r)).map(|n| n.dtype);
    Some(match node.scalar {
        Scalar::Load(n) => Instruction::Load(usize::from(n)),
        Scalar::Const(x) if node.dtype == DType::I32 => Instruction::Whole(x as i32),
        Scalar::Const(x) if node.dtype == DType::Bool => {
            Instruction::Number(f32::from(u8::from(x != 0.0)).to_bits())
        }
        Scalar::Const(x) => Instruction::Number((x as f32).to_bits()),
        Scalar::Index(k) => Instruction::Index(usize::from(k)),
        Scalar::Unary(f, a) if UNARY.contains(&f) && f.takes(of(a)?) && !of(a)?.is_int() => {
            Instruction::Unary(f, reg(a)?)
        }
        Scalar::Binary(f, a, b) => match (f, of(a)?) {
            (BinaryFn::Pow | BinaryFn::FloorDiv | BinaryFn::Mod, _) | (BinaryFn::Div, DType::I32) => {
                return None;
            }
            (f, DType::I32) => Instruction::OfIntegers(f, reg(a)?, reg(b)?),
            (f, _) => Instruction::Binary(f, reg(a)?, reg(b)?),
        },
        Scalar::Select(c, a, b) => Instruction::Select(reg(c)?, reg(a)?, reg(b)?),
        _ => return None,
    })
}

/// The last instruction of a power of floats; the others are added.
fn power(
    instructions: &mut Vec<Instruction>,
    nodes: &[Node],
    (base, exponent): (Reg, Reg),
    at: &[usize],
) -> Option<Instruction> {
    let to = at.get(usize::from(exponent)).copied();
    let [of, exponent] = [base, exponent].map(|r| nodes.get(usize::from(r)));
    if !of?.dtype.is_float() || !exponent?.dtype.is_float() {
        return None;
    }
    let x = *at.get(usize::from(base))?;
    let times = |a, b| Instruction::Binary(BinaryFn::Mul, a, b);
    match exponent?.scalar {
        Scalar::Const(2.0) => Some(times(x, x)),
        Scalar::Const(n @ (3.0 | 4.0)) => {
            instructions.push(times(x, x));
            let square = instructions.len() - 1;
            Some(times(square, if n == 3.0 { x } else { square }))
        }
        _ => Some(Instruction::Binary(BinaryFn::Pow, x, to?)),
    }
}

/// What converts to the dtype of a node, or the instruction whose result is that already.
fn cast(nodes: &[Node], to: &Node, from: Reg, at: &[usize]) -> Option<Result<Instruction, usize>> {
    let (reg, from) = (*at.get(usize::from(from))?, nodes.get(usize::from(from))?.dtype);
    Some(match (from, to.dtype) {
        (from, to) if from == to => Err(reg),
        (DType::U8, DType::I32) => Err(reg),
        (DType::I32 | DType::U8, DType::Bool) => Ok(Instruction::TruthOfInteger(reg)),
        (_, DType::Bool) => Ok(Instruction::Truth(reg)),
        (DType::Bool, DType::I32) => Ok(Instruction::Integer(reg)),
        // A bound that no `i32` has is left to operations that know it.
        (_, DType::I32 | DType::U8) => return None,
        (DType::I32 | DType::U8, _) => Ok(Instruction::Float(reg)),
        (_, to) if to.is_half() => Ok(Instruction::Half(reg)),
        _ => Err(reg),
    })
}

/// What an expression reads at one position.
#[derive(CubeType)]
pub(super) struct ScalarInputs {
    pub(super) loads: Sequence<f32>,
    /// The global position along each dim, where the expression asks for them.
    pub(super) at: Sequence<u32>,
}

/// The value of an expression; `E` is the half type.
#[cfg(feature = "cuda")]
#[cube]
pub(super) fn evaluate<E: Float>(element: &ScalarInputs, #[comptime] program: ScalarProgram) -> f32 {
    let results = evaluate_all::<E>(element, program);
    *results.index(0usize)
}

/// The values of several expressions.
#[cube]
pub(super) fn evaluate_all<E: Float>(
    element: &ScalarInputs,
    #[comptime] program: ScalarProgram,
) -> Sequence<f32> {
    let mut registers = Sequence::<f32>::new();
    let many = comptime!(program.instructions.len());
    #[unroll]
    for i in 0..many {
        let value = computed::<E>(&registers, element, i, comptime!(program.instructions.clone()));
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
fn computed<E: Float>(
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
        Instruction::Binary(f, a, b) => binary(*registers.index(a), *registers.index(b), f),
        Instruction::OfIntegers(f, a, b) => {
            let a = integer(registers, a, comptime!(program.clone()));
            let b = integer(registers, b, comptime!(program.clone()));
            of_integers(a, b, f)
        }
        Instruction::Select(c, a, b) => {
            select(*registers.index(c) != 0.0f32, *registers.index(a), *registers.index(b))
        }
        Instruction::Half(a) => f32::cast_from(E::cast_from(*registers.index(a))),
        Instruction::Float(a) => f32::cast_from(integer(registers, a, program)),
        Instruction::Integer(a) => f32::reinterpret(i32::cast_from(*registers.index(a))),
        Instruction::Truth(a) => truth(*registers.index(a) != 0.0f32),
        Instruction::TruthOfInteger(a) => truth(integer(registers, a, program) != 0i32),
    }
}

/// The integer in a register. A constant is not read from there: as the bits of a float it may be subnormal, and compilers take that
/// for 0 where the host does (ADR 35).
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
pub(super) fn truth(is: bool) -> f32 {
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
        UnaryFn::Erf => Erf::erf(x),
        UnaryFn::Sin => x.sin(),
        UnaryFn::Cos => x.cos(),
        UnaryFn::Tan => x.tan(),
        UnaryFn::Log1p => x.log1p(),
        UnaryFn::Floor => x.floor(),
        UnaryFn::Ceil => x.ceil(),
        UnaryFn::Round => x.round(),
        _ => truth(x == 0.0f32),
    }
}

#[cube]
fn binary(a: f32, b: f32, #[comptime] f: BinaryFn) -> f32 {
    match comptime!(f) {
        BinaryFn::Add => a + b,
        BinaryFn::Sub => a - b,
        BinaryFn::Mul => a * b,
        // As selections, which compilers make one condition of.
        BinaryFn::And => select(a != 0.0f32, b, 0.0f32),
        BinaryFn::Or => select(a != 0.0f32, 1.0f32, b),
        BinaryFn::Div => a / b,
        BinaryFn::Pow => a.powf(b),
        // The other where one is no number, but then the result is none either.
        BinaryFn::Min => select(a <= b || a.is_nan(), a, b),
        BinaryFn::Max => select(a >= b || a.is_nan(), a, b),
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
