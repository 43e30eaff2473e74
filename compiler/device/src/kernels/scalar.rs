//! Scalar expressions as programs of kernels. Every register is an `f32`: truth values are 0 and 1, and integers are the bits of
//! an `i32`.

use meshwright_plan::expr::{BinaryFn, Expr, Node, Reg, Scalar, UnaryFn};
use meshwright_plan::{Computed, DType, Fp8};
use serde::{Deserialize, Serialize};

/// Functions that kernels have. Burn's operations compute the others.
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
    UnaryFn::Tf32,
    UnaryFn::Not,
];

/// An operation on the results of earlier instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Instruction {
    /// An operand.
    Load(usize),
    /// A float or a truth value, by its bits.
    Number(u32),
    /// An integer.
    Whole(i32),
    /// The global position along a dim.
    Index(usize),
    /// A function of a float, or `Not` of a truth value.
    Unary(UnaryFn, usize),
    /// An exponential whose result meets values of a half type: within 2 units in the last place of the exponent's
    /// product with the logarithm of e, in two instructions instead of nine.
    RoughExp(usize),
    /// An error function there: within 2e-5 of itself, in half the instructions.
    RoughErf(usize),
    /// A function of floats or truth values.
    Binary(BinaryFn, usize, usize),
    /// A function of integers. A quotient is of a positive constant.
    OfIntegers(BinaryFn, usize, usize),
    /// Condition, value if it is true, value if it is not.
    Select(usize, usize, usize),
    /// An integer as a float.
    Float(usize),
    /// A truth value as an integer.
    Integer(usize),
    /// A float as a truth value: it is not 0.
    Truth(usize),
    /// An integer as a truth value: it is not 0.
    TruthOfInteger(usize),
}

/// Scalar expressions that share registers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ScalarProgram {
    /// Instructions in order.
    pub instructions: Vec<Instruction>,
    /// Index of the instruction that computes each result.
    pub results: Vec<usize>,
}

impl ScalarProgram {
    /// Compiles an expression whose half type is `half`: a value of it has the digits of an `f32` until it is stored. None if
    /// kernels lack a function or dtype of it.
    pub fn of(computed: &Computed, half: DType) -> Option<ScalarProgram> {
        ScalarProgram::of_several(&computed.expr, &[computed.reg], half)
    }

    /// Compiles several results of one expression.
    pub fn of_several(expr: &Expr, results: &[Reg], half: DType) -> Option<ScalarProgram> {
        let mut instructions = vec![];
        // Index of the instruction that computes each node.
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
                Scalar::Unary(UnaryFn::Neg, of) if node.dtype == DType::I32 => {
                    instructions.push(Instruction::Whole(0));
                    let of = *at.get(usize::from(of))?;
                    Instruction::OfIntegers(BinaryFn::Sub, instructions.len() - 1, of)
                }
                Scalar::Unary(f, of) if node.dtype.is_float() => {
                    let x = *at.get(usize::from(of))?;
                    match expanded(&mut instructions, f, x) {
                        Some(last) => last,
                        None => instruction(&expr.nodes, node, &at)?,
                    }
                }
                _ => instruction(&expr.nodes, node, &at)?,
            };
            instructions.push(instruction);
            at.push(instructions.len() - 1);
        }
        let results = results.iter().map(|reg| at.get(usize::from(*reg)).copied());
        let program = ScalarProgram { results: results.collect::<Option<_>>()?, instructions };
        Some(if expr.nodes.iter().any(|n| n.dtype.is_half()) { program.beside_halves() } else { program })
    }

    /// Replaces exponentials and error functions by rough ones, whose error is smaller than the rounding of the half type of
    /// other values.
    pub fn beside_halves(mut self) -> ScalarProgram {
        for instruction in &mut self.instructions {
            *instruction = match *instruction {
                Instruction::Unary(UnaryFn::Exp, of) => Instruction::RoughExp(of),
                Instruction::Unary(UnaryFn::Erf, of) => Instruction::RoughErf(of),
                other => other,
            };
        }
        self
    }

    /// The first thing, in words, for which [`ScalarProgram::of`] gives none.
    pub fn lacking(computed: &Computed, half: DType) -> String {
        let nodes = &computed.expr.nodes;
        let lacks = |n: &usize| {
            let first = Expr { nodes: nodes[..=*n].to_vec() };
            ScalarProgram::of_several(&first, &[], half).is_none()
        };
        let Some(node) = (0..nodes.len()).find(lacks).map(|n| nodes[n]) else { return "nothing".into() };
        match node.scalar {
            Scalar::Unary(f, _) => format!("`{}` of `{}`", f.name(), node.dtype),
            Scalar::Binary(f, of, _) => {
                let name = match f {
                    BinaryFn::FloorDiv => "//",
                    BinaryFn::Mod => "%",
                    BinaryFn::Pow => "**",
                    _ => "/",
                };
                format!("`{name}` of `{}`", computed.expr.dtype(of))
            }
            Scalar::Cast(from) => {
                format!("a conversion of `{}` to `{}`", computed.expr.dtype(from), node.dtype)
            }
            _ => format!("values of `{}`", node.dtype),
        }
    }

    /// A copy of the operand.
    pub fn identity() -> ScalarProgram {
        ScalarProgram { instructions: vec![Instruction::Load(0)], results: vec![0] }
    }

    /// Whether an instruction reads a position.
    pub fn has_positions(&self) -> bool {
        self.instructions.iter().any(|i| matches!(i, Instruction::Index(_)))
    }
}

/// Instruction of a node that is neither a conversion nor a power; `at` has the instruction of each earlier node.
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
            // Places in zigzag order are divided by a length.
            (BinaryFn::FloorDiv, DType::I32) if is_positive(nodes, b) => {
                Instruction::OfIntegers(f, reg(a)?, reg(b)?)
            }
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

/// Whether it is a constant above 0.
fn is_positive(nodes: &[Node], of: Reg) -> bool {
    nodes.get(usize::from(of)).is_some_and(|n| matches!(n.scalar, Scalar::Const(x) if x > 0.0))
}

/// Adds the instructions of a power of floats, except the last, which is returned.
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

/// Conversion to the dtype of a node, or as `Err` the instruction whose result can be used as it is.
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
        _ => Err(reg),
    })
}

/// Expands a function that kernels lack, such as rounding to 8 bits, into sums and comparisons. Adds all instructions but the
/// last, and returns that one. `None` for other functions.
fn expanded(all: &mut Vec<Instruction>, f: UnaryFn, of: usize) -> Option<Instruction> {
    let mut list = InstructionList(all);
    match (f, f.rounds_to()) {
        (_, Some(format)) => Some(list.rounded(format, of)),
        (UnaryFn::PowerOfTwo, _) => {
            let size = list.push(Instruction::Unary(UnaryFn::Abs, of));
            Some(list.power_of_two(size))
        }
        _ => None,
    }
}

/// Instructions behind others.
struct InstructionList<'a>(&'a mut Vec<Instruction>);

impl InstructionList<'_> {
    fn push(&mut self, instruction: Instruction) -> usize {
        self.0.push(instruction);
        self.0.len() - 1
    }

    fn number(&mut self, x: f64) -> usize {
        self.push(Instruction::Number((x as f32).to_bits()))
    }

    fn binary(&mut self, f: BinaryFn, a: usize, b: usize) -> usize {
        self.push(Instruction::Binary(f, a, b))
    }

    fn with_number(&mut self, f: BinaryFn, a: usize, x: f64) -> usize {
        let x = self.number(x);
        self.binary(f, a, x)
    }

    /// [`Fp8::round`]; the sign of 0 is lost.
    fn rounded(&mut self, format: Fp8, x: usize) -> Instruction {
        let most = f64::from(format.greatest());
        let x = self.with_number(BinaryFn::Min, x, most);
        let x = self.with_number(BinaryFn::Max, x, -most);
        let size = self.push(Instruction::Unary(UnaryFn::Abs, x));
        let power = self.power_below(size);
        let power = self.with_number(BinaryFn::Max, power, format.least_normal().into());
        let sum = self.with_number(BinaryFn::Mul, power, format.rounding_sum(f32::MANTISSA_DIGITS));
        let up = self.binary(BinaryFn::Add, x, sum);
        Instruction::Binary(BinaryFn::Sub, up, sum)
    }

    /// [`meshwright_plan::power_of_two`] of a magnitude.
    fn power_of_two(&mut self, size: usize) -> Instruction {
        // Scales the operand down where `c` of `power_below` would overflow.
        let large = self.with_number(BinaryFn::Gt, size, 2f64.powi(64));
        let smaller = self.with_number(BinaryFn::Mul, size, 2f64.powi(-32));
        let x = self.push(Instruction::Select(large, smaller, size));
        let power = self.power_below(x);
        let larger = self.with_number(BinaryFn::Mul, power, 2f64.powi(32));
        let power = self.push(Instruction::Select(large, larger, power));
        let infinite = self.with_number(BinaryFn::Gt, size, f32::MAX.into());
        Instruction::Select(infinite, size, power)
    }

    /// The first digit of a magnitude of at most 2^64, rounded: `c - (c - x)` with `c = x (2^23 + 1)` (Dekker 1971, section 5).
    ///
    /// A compiler may fuse a product with the sum that reads it, without rounding in between. So `c` is `2^23 x + x`, whose
    /// product is exact.
    fn power_below(&mut self, x: usize) -> usize {
        let scaled = self.with_number(BinaryFn::Mul, x, 2f64.powi(23));
        let c = self.binary(BinaryFn::Add, scaled, x);
        let rest = self.binary(BinaryFn::Sub, c, x);
        let upper = self.binary(BinaryFn::Sub, c, rest);
        let above = self.binary(BinaryFn::Gt, upper, x);
        let half = self.with_number(BinaryFn::Mul, upper, 0.5);
        self.push(Instruction::Select(above, half, upper))
    }
}
