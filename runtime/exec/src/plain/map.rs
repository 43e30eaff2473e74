//! Element-wise steps: every register of the expression becomes a tensor, or stays a number.

use super::emit::Val;
use super::lower::{Lower, is_pair, stored, unsupported};
use super::ops::{Binary, Unary};
use crate::local::Local;
use crate::own::Unprepared;
use meshwright_plan::expr::{BinaryFn, Expr, Reg, Scalar, UnaryFn};
use meshwright_plan::{DType, Operand};

/// A register.
#[derive(Clone, Copy)]
enum Held {
    Tensor(Val),
    Number(f64),
}

impl Lower<'_> {
    /// See [`meshwright_plan::Prim::Map`].
    pub(super) fn map(
        &mut self,
        expr: &Expr,
        regs: &[Reg],
        inputs: &[Operand],
        outs: &[Operand],
    ) -> Result<(), Unprepared> {
        let inputs: Vec<Local> = inputs.iter().map(|o| self.local(o)).collect::<Result<_, _>>()?;
        let written: Vec<(Reg, Local)> = regs
            .iter()
            .zip(outs)
            .map(|(r, o)| Ok((*r, self.local(o)?)))
            .collect::<Result<_, Unprepared>>()?;
        let Some((_, first)) = written.first() else {
            return Err(Unprepared::Plan("a map without outputs".into()));
        };
        let all: Vec<&Local> = inputs.iter().chain(written.iter().map(|o| &o.1)).collect();
        self.here.check_aligned(&all, &[])?;
        if written.iter().any(|o| o.1.dims != first.dims) {
            return Err(Unprepared::Plan("the outputs of a map differ in dims".into()));
        }
        if inputs.iter().any(|i| i.dims.iter().any(|d| !first.dims.contains(d))) {
            return Err(Unprepared::Plan("a map reads a dim that it does not write".into()));
        }
        let mut held: Vec<Held> = vec![];
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
                return Err(Unprepared::Plan(format!("{} is stored as {}", expr.dtype(*reg), out.dtype)));
            }
            match value {
                Held::Number(x) => self.write_number(
                    if out.dtype == DType::Bool { f64::from(u8::from(x != 0.0)) } else { x },
                    out,
                ),
                Held::Tensor(val) => self.write_val(val, out),
            }
        }
        Ok(())
    }

    fn scalar(
        &mut self,
        expr: &Expr,
        scalar: Scalar,
        dtype: DType,
        held: &[Held],
        inputs: &[Local],
        first: &Local,
    ) -> Result<Held, Unprepared> {
        let rank = first.dims.len();
        let reg = |r: Reg| held[usize::from(r)];
        Ok(match scalar {
            Scalar::Const(x) => Held::Number(match dtype {
                DType::I32 | DType::U8 => x.trunc(),
                DType::BF16 => f64::from(half::bf16::from_f64(x)),
                _ => x,
            }),
            Scalar::Load(k) => {
                let Some(input) = inputs.get(usize::from(k)) else {
                    return unsupported(format!("there is no operand {k}"));
                };
                let read = self.read(input);
                let val = self.align(&read, &first.dims);
                // Pairs are read by their index alone.
                Held::Tensor(if dtype == DType::Bool { self.truth(val) } else { val })
            }
            Scalar::Index(d) => {
                let at = usize::from(d);
                if at >= rank {
                    return unsupported(format!("there is no dim {d}"));
                }
                Held::Tensor(self.emit.count(rank, at, first.shape[at], first.ranges[at].start))
            }
            Scalar::PairIndex(r) => {
                let Some(Scalar::Load(k)) = expr.nodes.get(usize::from(r)).map(|n| n.scalar) else {
                    return unsupported("the index of a pair that is no operand");
                };
                let input = &inputs[usize::from(k)];
                if !is_pair(input.dtype) {
                    return unsupported(format!("the index of a {}", input.dtype));
                }
                let read = self.read_indices(input);
                Held::Tensor(self.align(&read, &first.dims))
            }
            Scalar::Unary(f, a) => {
                let val = self.tensor(reg(a), expr.dtype(a), rank);
                let val = self.wide(val);
                let done = self.function(f, val, expr.dtype(a).wide())?;
                Held::Tensor(self.rounded(done, dtype))
            }
            Scalar::Binary(f, a, b) => {
                let mut number = |h| match h {
                    Held::Tensor(v) => Held::Tensor(self.wide(v)),
                    number => number,
                };
                let (x, y) = (number(reg(a)), number(reg(b)));
                match self.pair_function(f, x, y, expr.dtype(a).wide(), rank)? {
                    Held::Tensor(v) => Held::Tensor(self.rounded(v, dtype)),
                    number => number,
                }
            }
            Scalar::Select(c, a, b) => {
                let mask = self.tensor(reg(c), DType::Bool, rank);
                Held::Tensor(match (reg(a), reg(b)) {
                    (Held::Number(x), Held::Tensor(b)) => self.emit.fill(b, mask, x),
                    (Held::Tensor(a), Held::Number(x)) => {
                        let not = self.emit.not(mask);
                        self.emit.fill(a, not, x)
                    }
                    (a, b) => {
                        let (a, b) = (self.tensor(a, dtype, rank), self.tensor(b, dtype, rank));
                        self.emit.choose(mask, a, b)
                    }
                })
            }
            Scalar::Cast(a) => {
                let val = self.tensor(reg(a), expr.dtype(a), rank);
                Held::Tensor(if dtype == DType::Bool {
                    self.truth(val)
                } else {
                    self.convert(val, stored(dtype))
                })
            }
        })
    }

    /// What is computed in `f32` for `bf16` is rounded at once, so that it does not matter what is fused.
    fn rounded(&mut self, val: Val, dtype: DType) -> Val {
        if dtype == DType::BF16 { self.emit.cast(val, stored(dtype)) } else { val }
    }

    /// Whether each element is other than 0.
    pub(super) fn truth(&mut self, val: Val) -> Val {
        if self.emit.is_truth(val) { val } else { self.emit.scalar(Binary::Ne, val, 0.0) }
    }

    /// A register as a tensor.
    fn tensor(&mut self, held: Held, dtype: DType, rank: usize) -> Val {
        match held {
            Held::Tensor(val) => val,
            Held::Number(x) => {
                let shape = vec![1; rank.max(1)];
                let stored = stored(dtype);
                let val = self.emit.full(&shape, stored, x);
                if dtype == DType::Bool { self.truth(val) } else { val }
            }
        }
    }

    fn function(&mut self, f: UnaryFn, a: Val, dtype: DType) -> Result<Val, Unprepared> {
        let e = &mut self.emit;
        let plain = |f: UnaryFn| -> Option<Unary> {
            Some(match f {
                UnaryFn::Neg => Unary::Neg,
                UnaryFn::Abs => Unary::Abs,
                UnaryFn::Exp => Unary::Exp,
                UnaryFn::Log => Unary::Log,
                UnaryFn::Log1p => Unary::Log1p,
                UnaryFn::Sqrt => Unary::Sqrt,
                UnaryFn::Recip => Unary::Recip,
                UnaryFn::Tanh => Unary::Tanh,
                UnaryFn::Erf => Unary::Erf,
                UnaryFn::Sin => Unary::Sin,
                UnaryFn::Cos => Unary::Cos,
                UnaryFn::Tan => Unary::Tan,
                UnaryFn::Floor => Unary::Floor,
                UnaryFn::Ceil => Unary::Ceil,
                UnaryFn::Round => Unary::Round,
                UnaryFn::Not => Unary::Not,
                _ => return None,
            })
        };
        let float = dtype.is_float();
        let known = match f {
            UnaryFn::Not => dtype == DType::Bool,
            UnaryFn::Neg | UnaryFn::Abs | UnaryFn::Sign | UnaryFn::Relu => dtype != DType::Bool,
            _ => float,
        };
        if !known || is_pair(dtype) {
            return unsupported(format!("{f:?} of {dtype}"));
        }
        if let Some(f) = plain(f) {
            return Ok(e.unary(f, a));
        }
        Ok(match f {
            UnaryFn::Rsqrt => {
                let root = e.unary(Unary::Sqrt, a);
                e.unary(Unary::Recip, root)
            }
            UnaryFn::Sigmoid => {
                let minus = e.unary(Unary::Neg, a);
                let exp = e.unary(Unary::Exp, minus);
                let sum = e.scalar(Binary::Add, exp, 1.0);
                e.unary(Unary::Recip, sum)
            }
            UnaryFn::Relu => {
                // What is no number stays.
                let below = e.scalar(Binary::Le, a, 0.0);
                e.fill(a, below, 0.0)
            }
            UnaryFn::Sign => {
                let (over, under) = (e.scalar(Binary::Gt, a, 0.0), e.scalar(Binary::Lt, a, 0.0));
                let one = e.fill(a, over, 1.0);
                e.fill(one, under, -1.0)
            }
            // exp(x) - 1 loses digits near 0: there its series, to the precision of the dtype.
            UnaryFn::Expm1 => {
                let terms = if dtype == DType::F64 { 17 } else { 9 };
                let size = e.unary(Unary::Abs, a);
                let near = e.scalar(Binary::Lt, size, 0.5);
                let mut sum = e.scalar(Binary::Mul, a, 1.0 / f64::from(terms));
                for k in (1..terms).rev() {
                    // x / k * (1 + sum)
                    let next = e.scalar(Binary::Add, sum, 1.0);
                    let scaled = e.scalar(Binary::Mul, a, 1.0 / f64::from(k));
                    sum = e.mul(next, scaled);
                }
                let exp = e.unary(Unary::Exp, a);
                let far = e.scalar(Binary::Sub, exp, 1.0);
                e.choose(near, sum, far)
            }
            other => return unsupported(format!("{other:?} of {dtype}")),
        })
    }

    fn pair_function(
        &mut self,
        f: BinaryFn,
        a: Held,
        b: Held,
        dtype: DType,
        rank: usize,
    ) -> Result<Held, Unprepared> {
        if is_pair(dtype) {
            return unsupported(format!("{f:?} of {dtype}"));
        }
        let simple = match f {
            BinaryFn::Add => Some(Binary::Add),
            BinaryFn::Sub => Some(Binary::Sub),
            BinaryFn::Mul => Some(Binary::Mul),
            BinaryFn::Div if dtype.is_float() => Some(Binary::Div),
            BinaryFn::Lt => Some(Binary::Lt),
            BinaryFn::Le => Some(Binary::Le),
            BinaryFn::Gt => Some(Binary::Gt),
            BinaryFn::Ge => Some(Binary::Ge),
            BinaryFn::Eq => Some(Binary::Eq),
            BinaryFn::Ne => Some(Binary::Ne),
            BinaryFn::And => Some(Binary::And),
            BinaryFn::Or => Some(Binary::Or),
            _ => None,
        };
        if dtype == DType::Bool && matches!(f, BinaryFn::And | BinaryFn::Or) {
            let (a, b) = (self.tensor(a, dtype, rank), self.tensor(b, dtype, rank));
            return Ok(Held::Tensor(self.emit.binary(simple.unwrap_or(Binary::And), a, b)));
        }
        if dtype == DType::Bool {
            // As numbers 0 and 1.
            let number = |l: &mut Self, h: Held| match h {
                Held::Tensor(v) => Held::Tensor(l.emit.cast(v, stored(DType::I32))),
                Held::Number(x) => Held::Number(f64::from(u8::from(x != 0.0))),
            };
            let (a, b) = (number(self, a), number(self, b));
            let done = self.pair_function(f, a, b, DType::I32, rank)?;
            return Ok(match done {
                Held::Tensor(v) => Held::Tensor(self.truth(v)),
                number => number,
            });
        }
        let numbers = (a, b);
        let first = self.tensor(a, dtype, rank);
        if let (Some(f), Held::Number(x)) = (simple, numbers.1) {
            return Ok(Held::Tensor(self.emit.scalar(f, first, x)));
        }
        if let (Some(f @ (Binary::Add | Binary::Mul)), Held::Number(x), Held::Tensor(b)) = (simple, a, b) {
            return Ok(Held::Tensor(self.emit.scalar(f, b, x)));
        }
        let second = self.tensor(b, dtype, rank);
        if let Some(f) = simple {
            return Ok(Held::Tensor(self.emit.binary(f, first, second)));
        }
        let exponent = match numbers.1 {
            Held::Number(x) => Some(x),
            Held::Tensor(_) => None,
        };
        Ok(Held::Tensor(match f {
            BinaryFn::Pow => self.power(first, second, exponent, dtype),
            BinaryFn::Min => self.extreme(false, first, second, dtype),
            BinaryFn::Max => self.extreme(true, first, second, dtype),
            BinaryFn::FloorDiv | BinaryFn::Mod | BinaryFn::Div => {
                if dtype.is_float() {
                    self.float_division(f, first, second)
                } else {
                    self.int_division(f, first, second)
                }
            }
            other => return unsupported(format!("{other:?} of {dtype}")),
        }))
    }

    /// The greater or the lesser; NaN if either is.
    fn extreme(&mut self, greater: bool, a: Val, b: Val, dtype: DType) -> Val {
        let e = &mut self.emit;
        let mut first = e.binary(if greater { Binary::Gt } else { Binary::Lt }, a, b);
        if dtype.is_float() {
            let nan = e.unary(Unary::IsNan, a);
            first = e.binary(Binary::Or, first, nan);
        }
        e.choose(first, a, b)
    }

    fn power(&mut self, a: Val, b: Val, exponent: Option<f64>, dtype: DType) -> Val {
        if let Some(n) = exponent.filter(|n| [2.0, 3.0, 4.0].contains(n)) {
            let square = self.emit.mul(a, a);
            return match n as u8 {
                2 => square,
                3 => self.emit.mul(square, a),
                _ => self.emit.mul(square, square),
            };
        }
        if dtype.is_float() {
            return match exponent {
                Some(n) => self.emit.scalar(Binary::Pow, a, n),
                None => self.emit.binary(Binary::Pow, a, b),
            };
        }
        self.int_power(a, b, exponent, dtype)
    }

    /// The quotient rounded down, or what remains then, of the divisor's sign.
    fn float_division(&mut self, f: BinaryFn, a: Val, b: Val) -> Val {
        let e = &mut self.emit;
        let rest = e.binary(Binary::Rem, a, b);
        if f == BinaryFn::Mod {
            return rest;
        }
        let less = e.sub(a, rest);
        let whole = e.binary(Binary::Div, less, b);
        let whole = e.unary(Unary::Round, whole);
        let none = e.scalar(Binary::Eq, b, 0.0);
        let quotient = e.binary(Binary::Div, a, b);
        e.choose(none, quotient, whole)
    }
}
