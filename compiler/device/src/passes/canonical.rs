//! When two expressions are the same function.

use meshwright_plan::expr::{BinaryFn, Reg, Scalar, UnaryFn};
use meshwright_plan::{DType, Expr};

/// Nodes of a canonical form at most; each stands wherever it is used.
const MOST: usize = 400;

/// An expression, however its sums and products are written down, and wherever it is rounded to a half type: equal ones are the
/// same function of the operands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Canonical {
    /// An operand, by number.
    Operand(u16),
    /// A constant.
    Number(Number),
    /// A conversion that does not round a float.
    Cast(DType, Box<Canonical>),
    /// A function of one number.
    Unary(UnaryFn, Box<Canonical>),
    /// A function of two, but a sum or a product.
    Binary(BinaryFn, Box<[Canonical; 2]>),
    /// A sum, or a product, of all its constants as one and its other parts in ascending order.
    Combined(BinaryFn, Number, Vec<Canonical>),
}

/// A constant to six digits after the point, as digits and a power of ten: constants of approximations are written with more or
/// fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Number {
    digits: i64,
    power: i32,
}

impl Number {
    fn of(x: f64) -> Number {
        if x == 0.0 || !x.is_finite() {
            // Infinities and NaN compare by all their bits.
            return Number { digits: x.to_bits().cast_signed(), power: i32::MAX };
        }
        let power = x.abs().log10().floor();
        let digits = (x / 10f64.powf(power) * 1e6).round();
        let carry = digits.abs() >= 1e7;
        let (digits, power) = if carry { (digits / 10.0, power + 1.0) } else { (digits, power) };
        Number { digits: digits as i64, power: power as i32 }
    }
}

/// The canonical form of a register. None if it is long, or has an unknown part.
pub fn canonical(expr: &Expr, reg: Reg) -> Option<Canonical> {
    Canonicalization { expr, left: MOST }.form(reg)
}

struct Canonicalization<'a> {
    expr: &'a Expr,
    left: usize,
}

impl Canonicalization<'_> {
    fn form(&mut self, reg: Reg) -> Option<Canonical> {
        self.left = self.left.checked_sub(1)?;
        let node = *self.expr.nodes.get(usize::from(reg))?;
        Some(match node.scalar {
            Scalar::Load(k) => Canonical::Operand(k),
            Scalar::Const(x) => Canonical::Number(Number::of(x)),
            Scalar::Cast(a) if self.only_rounds(reg) => return self.form(a),
            Scalar::Cast(a) => Canonical::Cast(node.dtype, Box::new(self.form(a)?)),
            Scalar::Unary(f, a) => Canonical::Unary(f, Box::new(self.form(a)?)),
            Scalar::Binary(f @ (BinaryFn::Add | BinaryFn::Mul), ..) => self.combined(reg, f)?,
            Scalar::Binary(BinaryFn::Pow, _, n) if self.repeats(n).is_some() => {
                self.combined(reg, BinaryFn::Mul)?
            }
            Scalar::Binary(f, a, b) => Canonical::Binary(f, Box::new([self.form(a)?, self.form(b)?])),
            Scalar::Index(_) | Scalar::PairIndex(_) | Scalar::Select(..) => return None,
        })
    }

    /// A sum or product with its parts in one order, and its numbers as one.
    fn combined(&mut self, reg: Reg, f: BinaryFn) -> Option<Canonical> {
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
                _ => parts.push(self.form(reg)?),
            }
        }
        parts.sort();
        Some(Canonical::Combined(f, Number::of(numbers), parts))
    }

    /// Whether a conversion only rounds a float.
    fn only_rounds(&self, reg: Reg) -> bool {
        let node = self.expr.nodes[usize::from(reg)];
        matches!(node.scalar, Scalar::Cast(a) if node.dtype.is_float() && self.expr.dtype(a).is_float())
    }

    /// Number of factors that it stands for as an exponent, if small.
    fn repeats(&self, reg: Reg) -> Option<usize> {
        match self.expr.nodes.get(usize::from(reg))?.scalar {
            Scalar::Const(x) if x.fract() == 0.0 && (1.0..=4.0).contains(&x) => Some(x as usize),
            Scalar::Cast(a) if self.only_rounds(reg) => self.repeats(a),
            _ => None,
        }
    }
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
        assert_eq!(canonical(&e, half), canonical(&f, other));
        assert_ne!(canonical(&f, product), canonical(&f, other));
        assert_ne!(canonical(&f, square), canonical(&f, cube));
    }

    #[test]
    fn what_would_be_long_has_no_canonical_form() {
        let (mut e, x) = Expr::of_operands([DType::F32]);
        let mut reg = x[0];
        for _ in 0..40 {
            reg = e.binary(BinaryFn::Mul, reg, reg);
        }
        assert_eq!(canonical(&e, reg), None);
    }

    #[test]
    fn numbers_are_equal_to_six_digits() {
        assert_eq!(Number::of(0.797_884_560_802_865_4), Number::of(0.797_884_6));
        assert_eq!(Number::of(9.999_999_99), Number::of(10.0));
        assert_ne!(Number::of(0.5), Number::of(-0.5));
        assert_ne!(Number::of(0.5), Number::of(0.05));
        assert_ne!(Number::of(0.0), Number::of(f64::INFINITY));
    }
}
