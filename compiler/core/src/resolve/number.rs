//! Numbers known at compile time: exact fractions as long as they fit, else `f64`.

use meshwright_ops::Value;
use meshwright_plan::expr::UnaryFn;
use meshwright_syntax::ast::BinaryOp;

/// A number. Whole results are always [`Num::Ratio`], so that sizes stay exact.
#[derive(Clone, Copy, Debug)]
pub(super) enum Num {
    /// `n / d` in lowest terms, `d > 0`.
    Ratio { n: i128, d: i128 },
    /// Anything else; finite.
    Real(f64),
}

/// A number or truth value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Konst {
    Num(Num),
    Bool(bool),
}

/// Integers up to here are exact in `f64`.
const EXACT: f64 = 9_007_199_254_740_992.0;

impl Num {
    pub(super) const ONE: Num = Num::Ratio { n: 1, d: 1 };

    pub(super) fn int(v: impl Into<i128>) -> Num {
        Num::Ratio { n: v.into(), d: 1 }
    }

    pub(super) fn real(v: f64) -> Num {
        if v.fract() == 0.0 && v.abs() <= EXACT { Num::int(v as i128) } else { Num::Real(v) }
    }

    pub(super) fn f64(self) -> f64 {
        match self {
            Num::Ratio { n, d: 1 } => n as f64,
            Num::Ratio { n, d } => n as f64 / d as f64,
            Num::Real(v) => v,
        }
    }

    /// The number where it is an integer.
    pub(super) fn whole(self) -> Option<i128> {
        match self {
            Num::Ratio { n, d: 1 } => Some(n),
            _ => None,
        }
    }

    fn ratio(n: Option<i128>, d: Option<i128>) -> Option<Num> {
        let (n, d) = (n?, d?);
        let (n, d) = if d < 0 { (n.checked_neg()?, d.checked_neg()?) } else { (n, d) };
        let g = gcd(n.unsigned_abs(), d.unsigned_abs());
        let g = i128::try_from(g).ok().filter(|g| *g > 0)?;
        Some(Num::Ratio { n: n / g, d: d / g })
    }
}

impl std::fmt::Display for Num {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Num::Ratio { n, d: 1 } => write!(f, "{n}"),
            n if n.f64().abs() >= 1e16 || n.f64().abs() < 1e-4 => write!(f, "{:e}", n.f64()),
            n => write!(f, "{}", n.f64()),
        }
    }
}

impl std::fmt::Display for Konst {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Konst::Num(n) => n.fmt(f),
            Konst::Bool(b) => b.fmt(f),
        }
    }
}

impl Konst {
    /// Truth values count as 0 and 1.
    pub(super) fn num(self) -> Num {
        match self {
            Konst::Num(n) => n,
            Konst::Bool(b) => Num::int(i128::from(b)),
        }
    }

    /// As an argument of an op.
    pub(super) fn value(self) -> Value {
        match self {
            Konst::Num(n) => Value::Number(n.f64()),
            Konst::Bool(b) => Value::Bool(b),
        }
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A result in `f64`, where the exact one does not fit.
fn finite(v: f64, what: impl FnOnce() -> String) -> Result<Num, String> {
    if v.is_finite() {
        Ok(Num::real(v))
    } else if v.is_nan() {
        Err(format!("{} is not a number", what()))
    } else {
        Err(format!("{} is too large: numbers end at about 1.8e308", what()))
    }
}

/// `-a`.
pub(super) fn neg(a: Num) -> Num {
    match a {
        Num::Ratio { n, d } => {
            n.checked_neg().map_or(Num::Real(-(n as f64) / d as f64), |n| Num::Ratio { n, d })
        }
        Num::Real(v) => Num::Real(-v),
    }
}

/// `a op b`, or what is wrong with it.
pub(super) fn binary(op: BinaryOp, a: Konst, b: Konst) -> Result<Konst, String> {
    if let BinaryOp::And | BinaryOp::Or = op {
        return match (a, b) {
            (Konst::Bool(a), Konst::Bool(b)) => {
                Ok(Konst::Bool(if op == BinaryOp::And { a && b } else { a || b }))
            }
            _ => Err(format!("`{}` takes truth values, not {a} and {b}", op.symbol())),
        };
    }
    let (x, y) = (a.num(), b.num());
    if let Some(holds) = comparison(op) {
        return Ok(Konst::Bool(holds(order(x, y))));
    }
    arithmetic(op, x, y).map(Konst::Num)
}

fn comparison(op: BinaryOp) -> Option<fn(std::cmp::Ordering) -> bool> {
    Some(match op {
        BinaryOp::Eq => |o| o.is_eq(),
        BinaryOp::Ne => |o| o.is_ne(),
        BinaryOp::Lt => |o| o.is_lt(),
        BinaryOp::Le => |o| o.is_le(),
        BinaryOp::Gt => |o| o.is_gt(),
        BinaryOp::Ge => |o| o.is_ge(),
        _ => return None,
    })
}

fn order(x: Num, y: Num) -> std::cmp::Ordering {
    if let (Num::Ratio { n: a, d: b }, Num::Ratio { n: c, d }) = (x, y)
        && let (Some(l), Some(r)) = (a.checked_mul(d), c.checked_mul(b))
    {
        return l.cmp(&r);
    }
    x.f64().total_cmp(&y.f64())
}

fn arithmetic(op: BinaryOp, x: Num, y: Num) -> Result<Num, String> {
    let text = || format!("{x} {} {y}", op.symbol());
    let zero = y.f64() == 0.0;
    if zero && matches!(op, BinaryOp::Div | BinaryOp::IntDiv | BinaryOp::Rem) {
        return Err(format!("{} divides by zero", text()));
    }
    if let BinaryOp::IntDiv | BinaryOp::Rem = op {
        let (Some(a), Some(b)) = (x.whole(), y.whole()) else {
            return Err(format!("`{}` takes integers: {} has a fraction", op.symbol(), text()));
        };
        let (Some(quotient), Some(rest)) = (a.checked_div_euclid(b), a.checked_rem_euclid(b)) else {
            return Err(format!("{} is too large", text()));
        };
        // Floor division: the remainder has the sign of the divisor.
        let (quotient, rest) = if b < 0 && rest != 0 { (quotient - 1, rest + b) } else { (quotient, rest) };
        return Ok(Num::int(if op == BinaryOp::IntDiv { quotient } else { rest }));
    }
    let exact = match (x, y) {
        (Num::Ratio { n: a, d: b }, Num::Ratio { n: c, d }) => match op {
            BinaryOp::Add => Num::ratio(cross(a, d, c, b, i128::checked_add), b.checked_mul(d)),
            BinaryOp::Sub => Num::ratio(cross(a, d, c, b, i128::checked_sub), b.checked_mul(d)),
            BinaryOp::Mul => Num::ratio(a.checked_mul(c), b.checked_mul(d)),
            BinaryOp::Div => Num::ratio(a.checked_mul(d), b.checked_mul(c)),
            _ => power(a, b, y),
        },
        _ => None,
    };
    if let Some(n) = exact {
        return Ok(n);
    }
    let (a, b) = (x.f64(), y.f64());
    let v = match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div => a / b,
        _ => a.powf(b),
    };
    finite(v, text)
}

fn cross(a: i128, d: i128, c: i128, b: i128, f: fn(i128, i128) -> Option<i128>) -> Option<i128> {
    f(a.checked_mul(d)?, c.checked_mul(b)?)
}

fn power(n: i128, d: i128, exponent: Num) -> Option<Num> {
    let e = i32::try_from(exponent.whole()?).ok()?;
    if n == 0 && e < 0 {
        return None;
    }
    let (top, bottom) = (n.checked_pow(e.unsigned_abs()), d.checked_pow(e.unsigned_abs()));
    if e < 0 { Num::ratio(bottom, top) } else { Num::ratio(top, bottom) }
}

/// The greatest integer that is not greater.
fn floor(x: Num) -> Num {
    match x {
        Num::Ratio { n, d } => Num::int(n.div_euclid(d)),
        Num::Real(v) => Num::real(v.floor()),
    }
}

/// The nearest integer; of two equally near the even one.
fn round(x: Num) -> Num {
    match x {
        Num::Ratio { n, d } => {
            let (down, rest) = (n.div_euclid(d), n.rem_euclid(d));
            // Compared with what is left to the next integer, so that nothing overflows.
            let up = rest > d - rest || rest == d - rest && down % 2 != 0;
            Num::int(down + i128::from(up))
        }
        Num::Real(v) => Num::real(v.round_ties_even()),
    }
}

/// Scalar functions that models have for values alone.
const OF_VALUES: [UnaryFn; 10] = [
    UnaryFn::Neg,
    UnaryFn::Relu,
    UnaryFn::Recip,
    UnaryFn::Sigmoid,
    UnaryFn::Erf,
    UnaryFn::Tf32,
    UnaryFn::RoundE4m3,
    UnaryFn::RoundE5m2,
    UnaryFn::PowerOfTwo,
    UnaryFn::Not,
];

/// Functions of numbers besides the scalar functions, with how many they take.
const FURTHER: [(&str, usize); 4] = [("square", 1), ("min", 2), ("max", 2), ("pow", 2)];

/// The functions of numbers, with how many they take.
pub(super) fn functions() -> impl Iterator<Item = (&'static str, usize)> {
    let scalar = UnaryFn::ALL.iter().filter(|f| !OF_VALUES.contains(f));
    scalar.map(|f| (f.name(), 1)).chain(FURTHER)
}

/// Number of arguments of a function; `None` if it is not a function of numbers.
pub(super) fn arity(name: &str) -> Option<usize> {
    functions().find(|f| f.0 == name).map(|f| f.1)
}

/// `name(args)`, or what is wrong with it; `None` if it is not a function of numbers. The number of arguments must be right.
pub(super) fn function(name: &str, args: &[Konst]) -> Option<Result<Num, String>> {
    if args.len() != arity(name)? {
        return None;
    }
    let (x, y) = (args[0].num(), args.get(1).map_or(Num::ONE, |y| y.num()));
    let v = x.f64();
    // Exact results stay exact; all others are computed in `f64`.
    Some(match name {
        "min" => Ok(if order(x, y).is_le() { x } else { y }),
        "max" => Ok(if order(x, y).is_ge() { x } else { y }),
        "pow" => arithmetic(BinaryOp::Pow, x, y),
        "abs" => Ok(if v < 0.0 { neg(x) } else { x }),
        "sign" => Ok(Num::int(i128::from(v > 0.0) - i128::from(v < 0.0))),
        "square" => arithmetic(BinaryOp::Mul, x, x),
        "floor" => Ok(floor(x)),
        "ceil" => Ok(neg(floor(neg(x)))),
        "round" => Ok(round(x)),
        _ => finite(UnaryFn::named(name)?.of(v), || format!("{name}({x})")),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn calc(op: BinaryOp, a: f64, b: f64) -> Result<String, String> {
        binary(op, Konst::Num(Num::real(a)), Konst::Num(Num::real(b))).map(|k| k.to_string())
    }

    #[test]
    fn fractions_are_exact_and_integers_floor() {
        let third = arithmetic(BinaryOp::Div, Num::int(512), Num::int(3)).unwrap();
        assert_eq!(arithmetic(BinaryOp::Mul, third, Num::int(3)).unwrap().whole(), Some(512));
        assert_eq!(calc(BinaryOp::IntDiv, -7.0, 2.0).unwrap(), "-4");
        assert_eq!(calc(BinaryOp::Rem, -7.0, 2.0).unwrap(), "1");
        assert_eq!(calc(BinaryOp::IntDiv, 7.0, -2.0).unwrap(), "-4");
        assert_eq!(calc(BinaryOp::Rem, 7.0, -2.0).unwrap(), "-1");
        assert_eq!(calc(BinaryOp::IntDiv, 6.0, -2.0).unwrap(), "-3");
        assert_eq!(calc(BinaryOp::Pow, 2.0, -2.0).unwrap(), "0.25");
        assert_eq!(calc(BinaryOp::Le, 1.0, 1.0).unwrap(), "true");
        let of = |name: &str, n: i128, d: i128| {
            let x = arithmetic(BinaryOp::Div, Num::int(n), Num::int(d)).unwrap();
            function(name, &[Konst::Num(x)]).unwrap().unwrap().whole()
        };
        assert_eq!(
            [of("floor", -7, 2), of("ceil", -7, 2), of("round", -7, 2)],
            [Some(-4), Some(-3), Some(-4)]
        );
        assert_eq!([of("round", 5, 2), of("round", 7, 3), of("round", 8, 3)], [Some(2), Some(2), Some(3)]);
        assert_eq!([of("floor", 6, 2), of("ceil", 6, 2), of("round", 6, 2)], [Some(3); 3]);
        assert_eq!(function("sqrt", &[Konst::Num(Num::int(256))]).unwrap().unwrap().whole(), Some(16));
    }

    #[test]
    fn what_has_no_value_is_said() {
        assert_eq!(calc(BinaryOp::Div, 1.0, 0.0).unwrap_err(), "1 / 0 divides by zero");
        assert_eq!(
            calc(BinaryOp::IntDiv, 1.5, 1.0).unwrap_err(),
            "`//` takes integers: 1.5 // 1 has a fraction"
        );
        assert!(calc(BinaryOp::Pow, 1e300, 2.0).unwrap_err().contains("too large"));
        assert!(calc(BinaryOp::Pow, 0.0, -1.0).unwrap_err().contains("too large"));
        assert!(function("sqrt", &[Konst::Num(Num::int(-1))]).unwrap().unwrap_err().contains("not a number"));
        // Beyond i128 it goes on in f64.
        assert_eq!(calc(BinaryOp::Pow, 10.0, 100.0).unwrap(), "1e100");
    }
}
