//! When two expressions are the same function.

use meshwright_plan::Expr;
use meshwright_plan::expr::{BinaryFn, Reg, Scalar};

/// Nodes that are written out at most; each stands wherever it is used.
const MOST: usize = 400;

/// What a register is, however its sums and products are written down, and wherever it is rounded to a half type: equal texts are the same
/// function of the operands. None where it is long.
pub fn key_of(expr: &Expr, reg: Reg) -> Option<String> {
    Writer { expr, left: MOST }.key(reg)
}

struct Writer<'a> {
    expr: &'a Expr,
    left: usize,
}

impl Writer<'_> {
    fn key(&mut self, reg: Reg) -> Option<String> {
        self.left = self.left.checked_sub(1)?;
        let node = *self.expr.nodes.get(usize::from(reg))?;
        Some(match node.scalar {
            Scalar::Load(k) => format!("x{k}"),
            Scalar::Const(x) => number(x),
            Scalar::Cast(a) if self.only_rounds(reg) => return self.key(a),
            Scalar::Cast(a) => format!("{}({})", node.dtype, self.key(a)?),
            Scalar::Unary(f, a) => format!("{f:?}({})", self.key(a)?),
            Scalar::Binary(f @ (BinaryFn::Add | BinaryFn::Mul), ..) => self.combined(reg, f)?,
            Scalar::Binary(BinaryFn::Pow, _, n) if self.repeats(n).is_some() => {
                self.combined(reg, BinaryFn::Mul)?
            }
            Scalar::Binary(f, a, b) => format!("{f:?}({}, {})", self.key(a)?, self.key(b)?),
            Scalar::Index(_) | Scalar::PairIndex(_) | Scalar::Select(..) => return None,
        })
    }

    /// A sum or product with its parts in one order, and its numbers as one.
    fn combined(&mut self, reg: Reg, f: BinaryFn) -> Option<String> {
        let (mut parts, mut numbers) = (vec![], if f == BinaryFn::Add { 0.0 } else { 1.0 });
        let mut open = vec![reg];
        while let Some(reg) = open.pop() {
            self.left = self.left.checked_sub(1)?;
            match self.expr.nodes.get(usize::from(reg))?.scalar {
                Scalar::Binary(g, a, b) if g == f => open.extend([a, b]),
                Scalar::Binary(BinaryFn::Pow, a, n) if f == BinaryFn::Mul && self.repeats(n).is_some() => {
                    open.extend(std::iter::repeat_n(a, self.repeats(n)?));
                }
                Scalar::Cast(a) if self.only_rounds(reg) => open.push(a),
                Scalar::Const(x) if f == BinaryFn::Add => numbers += x,
                Scalar::Const(x) => numbers *= x,
                _ => parts.push(self.key(reg)?),
            }
        }
        parts.sort();
        Some(format!("{f:?}[{}; {}]", number(numbers), parts.join(", ")))
    }

    /// Whether a conversion changes the type of a float alone.
    fn only_rounds(&self, reg: Reg) -> bool {
        let node = self.expr.nodes[usize::from(reg)];
        matches!(node.scalar, Scalar::Cast(a) if node.dtype.is_float() && self.expr.dtype(a).is_float())
    }

    /// As an exponent, how many factors it stands for, if few.
    fn repeats(&self, reg: Reg) -> Option<usize> {
        match self.expr.nodes.get(usize::from(reg))?.scalar {
            Scalar::Const(x) if x.fract() == 0.0 && (1.0..=4.0).contains(&x) => Some(x as usize),
            Scalar::Cast(a) if self.only_rounds(reg) => self.repeats(a),
            _ => None,
        }
    }
}

/// To six digits after the point: constants of approximations are written with more or fewer.
fn number(x: f64) -> String {
    format!("{x:.6e}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use meshwright_plan::DType;

    #[test]
    fn order_powers_and_roundings_make_no_difference() {
        let (mut e, x) = Expr::of_operands([DType::BF16, DType::F32]);
        let a = e.cast(x[0], DType::F32);
        let three = e.constant(3.0, DType::F32);
        let cube = e.binary(BinaryFn::Pow, a, three);
        let sum = e.binary(BinaryFn::Add, cube, x[1]);
        let half = e.cast(sum, DType::BF16);
        let (mut f, y) = Expr::of_operands([DType::F32, DType::F32]);
        let square = f.binary(BinaryFn::Mul, y[0], y[0]);
        let cube = f.binary(BinaryFn::Mul, y[0], square);
        let other = f.binary(BinaryFn::Add, y[1], cube);
        let product = f.binary(BinaryFn::Mul, y[1], cube);
        assert_eq!(key_of(&e, half), key_of(&f, other));
        assert_ne!(key_of(&f, product), key_of(&f, other));
        assert_ne!(key_of(&f, square), key_of(&f, cube));
    }

    #[test]
    fn what_would_be_long_is_not_written() {
        let (mut e, x) = Expr::of_operands([DType::F32]);
        let mut reg = x[0];
        for _ in 0..40 {
            reg = e.binary(BinaryFn::Mul, reg, reg);
        }
        assert_eq!(key_of(&e, reg), None);
    }
}
