//! Element-wise steps: every register of the expression becomes a tensor, or stays a number.

pub(super) mod functions;
mod kernels;

use super::lower::{Lower, unsupported};
use crate::error::LoweringError;
use crate::lowering::graph::Val;
use crate::lowering::local::Local;
use crate::lowering::ops::Binary;
use crate::stored::{extents, stored_as};
use burn_ir::{FloatOperationIr as FloatOp, NumericOperationIr as Numeric};
use meshwright_plan::expr::{BinaryFn, Expr, Reg, Scalar};
use meshwright_plan::{Computed, DType, Step};

/// A register.
#[derive(Clone, Copy)]
enum Register {
    Tensor(Val),
    Number(f64),
}

impl Lower<'_> {
    /// See [`meshwright_plan::Prim::Map`].
    pub(crate) fn map(&mut self, step: &Step, expr: &Expr, regs: &[Reg]) -> Result<(), LoweringError> {
        if self.rounded_to_bytes(step).is_some() {
            return self.fp8_factors(&[step]);
        }
        let (inputs, outs) = (&step.reads, &step.writes);
        let inputs: Vec<Local> = inputs.iter().map(|o| self.local(o)).collect::<Result<_, _>>()?;
        let written: Vec<(Reg, Local)> = regs
            .iter()
            .zip(outs)
            .map(|(r, o)| Ok((*r, self.local(o)?)))
            .collect::<Result<_, LoweringError>>()?;
        let Some((_, first)) = written.first() else {
            return Err(LoweringError::Plan("a map without outputs".into()));
        };
        let all: Vec<&Local> = inputs.iter().chain(written.iter().map(|o| &o.1)).collect();
        self.context.check_aligned(&all, &[])?;
        if written.iter().any(|o| o.1.dims != first.dims) {
            return Err(LoweringError::Plan("the outputs of a map differ in dims".into()));
        }
        if inputs.iter().any(|i| i.dims.iter().any(|d| !first.dims.contains(d))) {
            return Err(LoweringError::Plan("a map reads a dim that it does not write".into()));
        }
        let mut held: Vec<Register> = vec![];
        for (at, node) in expr.nodes.iter().enumerate() {
            if node.scalar.reads().iter().any(|r| usize::from(*r) >= at) {
                return unsupported("an expression reads what is not computed yet");
            }
            held.push(self.scalar(expr, node.scalar, node.dtype, &held, &inputs, first)?);
        }
        for (reg, out) in &written {
            let Some(value) = held.get(usize::from(*reg)).copied() else {
                return unsupported(format!("there is no register {reg}"));
            };
            if expr.dtype(*reg) != out.dtype {
                return Err(LoweringError::Plan(format!("{} is stored as {}", expr.dtype(*reg), out.dtype)));
            }
            match value {
                Register::Number(x) => self.write_number(
                    if out.dtype == DType::Bool { f64::from(u8::from(x != 0.0)) } else { x },
                    out,
                ),
                Register::Tensor(val) => self.write_val(val, out),
            }
        }
        Ok(())
    }

    /// An expression of tensors of the dims of `space` (extents may be 1), as one with all its extents.
    pub(crate) fn expression(
        &mut self,
        of: &Computed,
        loads: &[Val],
        space: &Local,
    ) -> Result<Val, LoweringError> {
        let mut held: Vec<Register> = vec![];
        for node in &of.expr.nodes {
            held.push(match node.scalar {
                Scalar::Load(k) => match loads.get(usize::from(k)) {
                    Some(val) => Register::Tensor(*val),
                    None => return unsupported(format!("there is no operand {k}")),
                },
                other => self.scalar(&of.expr, other, node.dtype, &held, &[], space)?,
            });
        }
        let Some(result) = held.get(usize::from(of.reg)).copied() else {
            return unsupported(format!("there is no register {}", of.reg));
        };
        let val = self.tensor(result, of.expr.dtype(of.reg), space.dims.len());
        Ok(self.graph.expand(val, &extents(&space.shape)))
    }

    fn scalar(
        &mut self,
        expr: &Expr,
        scalar: Scalar,
        dtype: DType,
        held: &[Register],
        inputs: &[Local],
        first: &Local,
    ) -> Result<Register, LoweringError> {
        let rank = first.dims.len();
        let reg = |r: Reg| held[usize::from(r)];
        Ok(match scalar {
            Scalar::Const(x) => Register::Number(match dtype {
                DType::I32 | DType::U8 => x.trunc(),
                DType::BF16 => f64::from(half::bf16::from_f64(x)),
                DType::F16 => f64::from(half::f16::from_f64(x)),
                _ => x,
            }),
            Scalar::Load(k) => {
                let Some(input) = inputs.get(usize::from(k)) else {
                    return unsupported(format!("there is no operand {k}"));
                };
                let read = self.read(input);
                let val = self.align(&read, &first.dims);
                // Pairs are read by their index alone.
                Register::Tensor(if dtype == DType::Bool { self.truth(val) } else { val })
            }
            Scalar::Index(d) => {
                let at = usize::from(d);
                if at >= rank {
                    return unsupported(format!("there is no dim {d}"));
                }
                Register::Tensor(self.graph.count(rank, at, first.shape[at], first.ranges[at].start))
            }
            Scalar::PairIndex(r) => {
                let Some(Scalar::Load(k)) = expr.nodes.get(usize::from(r)).map(|n| n.scalar) else {
                    return unsupported("the index of a pair that is no operand");
                };
                let input = &inputs[usize::from(k)];
                if !input.dtype.is_pair() {
                    return unsupported(format!("the index of a {}", input.dtype));
                }
                let read = self.read_indices(input);
                Register::Tensor(self.align(&read, &first.dims))
            }
            Scalar::Unary(f, a) => {
                let val = self.tensor(reg(a), expr.dtype(a), rank);
                let val = self.wide(val);
                let done = self.function(f, val, expr.dtype(a).wide())?;
                Register::Tensor(self.rounded(done, dtype))
            }
            Scalar::Binary(f, a, b) => {
                let mut number = |h| match h {
                    Register::Tensor(v) => Register::Tensor(self.wide(v)),
                    number => number,
                };
                let (x, y) = (number(reg(a)), number(reg(b)));
                match self.pair_function(f, x, y, expr.dtype(a).wide(), rank)? {
                    Register::Tensor(v) => Register::Tensor(self.rounded(v, dtype)),
                    number => number,
                }
            }
            Scalar::Select(c, a, b) => {
                let mask = self.tensor(reg(c), DType::Bool, rank);
                Register::Tensor(self.select(mask, reg(a), reg(b), dtype, rank))
            }
            Scalar::Cast(a) => {
                let val = self.tensor(reg(a), expr.dtype(a), rank);
                Register::Tensor(if dtype == DType::Bool {
                    self.truth(val)
                } else {
                    self.convert(val, stored_as(dtype))
                })
            }
        })
    }

    fn select(&mut self, mask: Val, a: Register, b: Register, dtype: DType, rank: usize) -> Val {
        match (a, b) {
            (Register::Number(x), Register::Tensor(b)) => self.graph.fill(b, mask, x),
            (Register::Tensor(a), Register::Number(x)) => {
                let not = self.graph.not(mask);
                self.graph.fill(a, not, x)
            }
            (a, b) => {
                let (a, b) = (self.tensor(a, dtype, rank), self.tensor(b, dtype, rank));
                self.graph.choose(mask, a, b)
            }
        }
    }

    /// A value computed in `f32` for a half type is rounded at once, so that fusion changes no number.
    fn rounded(&mut self, val: Val, dtype: DType) -> Val {
        if dtype.is_half() { self.graph.cast(val, stored_as(dtype)) } else { val }
    }

    /// Whether each element is other than 0.
    pub(crate) fn truth(&mut self, val: Val) -> Val {
        if self.graph.is_truth(val) { val } else { self.graph.scalar(Binary::Ne, val, 0.0) }
    }

    /// A register as a tensor.
    fn tensor(&mut self, held: Register, dtype: DType, rank: usize) -> Val {
        match held {
            Register::Tensor(val) => val,
            Register::Number(x) => {
                let shape = vec![1; rank.max(1)];
                let stored = stored_as(dtype);
                let val = self.graph.full(&shape, stored, x);
                if dtype == DType::Bool { self.truth(val) } else { val }
            }
        }
    }

    fn pair_function(
        &mut self,
        f: BinaryFn,
        a: Register,
        b: Register,
        dtype: DType,
        rank: usize,
    ) -> Result<Register, LoweringError> {
        if dtype.is_pair() {
            return unsupported(format!("{f:?} of {dtype}"));
        }
        if dtype != DType::Bool {
            return Ok(Register::Tensor(self.numbers(f, a, b, dtype, rank)));
        }
        if let BinaryFn::And | BinaryFn::Or = f {
            let (a, b) = (self.tensor(a, dtype, rank), self.tensor(b, dtype, rank));
            let f = if f == BinaryFn::And { Binary::And } else { Binary::Or };
            return Ok(Register::Tensor(self.graph.binary(f, a, b)));
        }
        // As the numbers 0 and 1.
        let number = |l: &mut Self, h: Register| match h {
            Register::Tensor(v) => Register::Tensor(l.graph.cast(v, stored_as(DType::I32))),
            Register::Number(x) => Register::Number(f64::from(u8::from(x != 0.0))),
        };
        let (a, b) = (number(self, a), number(self, b));
        let done = self.numbers(f, a, b, DType::I32, rank);
        Ok(Register::Tensor(self.truth(done)))
    }

    /// A function of two numbers.
    fn numbers(&mut self, f: BinaryFn, a: Register, b: Register, dtype: DType, rank: usize) -> Val {
        let operation = |l: &mut Self, f| l.operation(f, a, b, dtype, rank);
        match f {
            BinaryFn::Add => operation(self, Binary::Add),
            BinaryFn::Sub => operation(self, Binary::Sub),
            BinaryFn::Mul => operation(self, Binary::Mul),
            BinaryFn::Lt => operation(self, Binary::Lt),
            BinaryFn::Le => operation(self, Binary::Le),
            BinaryFn::Gt => operation(self, Binary::Gt),
            BinaryFn::Ge => operation(self, Binary::Ge),
            BinaryFn::Eq => operation(self, Binary::Eq),
            BinaryFn::Ne => operation(self, Binary::Ne),
            BinaryFn::And => operation(self, Binary::And),
            BinaryFn::Or => operation(self, Binary::Or),
            BinaryFn::Div if dtype.is_float() => operation(self, Binary::Div),
            BinaryFn::Div | BinaryFn::FloorDiv | BinaryFn::Mod => {
                let (x, y) = (self.tensor(a, dtype, rank), self.tensor(b, dtype, rank));
                if dtype.is_float() { self.float_division(f, x, y) } else { self.int_division(f, x, y) }
            }
            BinaryFn::Pow => {
                let (x, y) = (self.tensor(a, dtype, rank), self.tensor(b, dtype, rank));
                let exponent = if let Register::Number(n) = b { Some(n) } else { None };
                self.power(x, y, exponent, dtype)
            }
            BinaryFn::Min | BinaryFn::Max => {
                let (x, y) = (self.tensor(a, dtype, rank), self.tensor(b, dtype, rank));
                self.extreme(f == BinaryFn::Max, x, y, dtype)
            }
        }
    }

    /// An operation of Burn; a number stays a number where there is such an operation.
    fn operation(&mut self, f: Binary, a: Register, b: Register, dtype: DType, rank: usize) -> Val {
        match (a, b) {
            (Register::Number(x), Register::Tensor(b)) if matches!(f, Binary::Add | Binary::Mul) => {
                self.graph.scalar(f, b, x)
            }
            (a, Register::Number(x)) => {
                let a = self.tensor(a, dtype, rank);
                self.graph.scalar(f, a, x)
            }
            (a, Register::Tensor(b)) => {
                let a = self.tensor(a, dtype, rank);
                self.graph.binary(f, a, b)
            }
        }
    }

    /// The greater or the lesser; NaN if either is.
    pub(in crate::burn) fn extreme(&mut self, greater: bool, a: Val, b: Val, dtype: DType) -> Val {
        let e = &mut self.graph;
        let mut first = e.binary(if greater { Binary::Gt } else { Binary::Lt }, a, b);
        if dtype.is_float() {
            let nan = e.is_nan(a);
            first = e.binary(Binary::Or, first, nan);
        }
        e.choose(first, a, b)
    }

    fn power(&mut self, a: Val, b: Val, exponent: Option<f64>, dtype: DType) -> Val {
        if let Some(n) = exponent.filter(|n| [2.0, 3.0, 4.0].contains(n)) {
            let square = self.graph.mul(a, a);
            return match n as u8 {
                2 => square,
                3 => self.graph.mul(square, a),
                _ => self.graph.mul(square, square),
            };
        }
        if dtype.is_float() {
            return match exponent {
                Some(n) => self.graph.scalar(Binary::Pow, a, n),
                None => self.graph.binary(Binary::Pow, a, b),
            };
        }
        self.int_power(a, b, exponent, dtype)
    }

    /// The quotient rounded down, or the remainder, with the divisor's sign.
    fn float_division(&mut self, f: BinaryFn, a: Val, b: Val) -> Val {
        let e = &mut self.graph;
        let rest = e.binary(Binary::Rem, a, b);
        if f == BinaryFn::Mod {
            return rest;
        }
        let less = e.sub(a, rest);
        let whole = e.binary(Binary::Div, less, b);
        let whole = e.float(FloatOp::Round, whole);
        // The rest is an infinity where the divisor is one, of the other sign.
        let size = e.numeric(Numeric::Abs, rest);
        let far = e.scalar(Binary::Eq, size, f64::INFINITY);
        let whole = e.fill(whole, far, -1.0);
        let none = e.scalar(Binary::Eq, b, 0.0);
        let quotient = e.binary(Binary::Div, a, b);
        e.choose(none, quotient, whole)
    }
}
