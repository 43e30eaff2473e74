//! Tiles that positions alone decide: all their scores are one number, for any queries and keys.

use meshwright_plan::expr::{BinaryFn, Reg, Scalar, UnaryFn};
use meshwright_plan::{Computed, Expr};
use std::ops::Range;

/// Bounds of a register in a whole tile. Truth values are 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bounds {
    /// Between two numbers, inclusive.
    Between(f64, f64),
    /// Anything.
    Unknown,
}

use Bounds::{Between, Unknown};

/// The only number that an expression can be where the index along dim `k` is one of `indices[k]`.
pub fn constant(of: &Computed, indices: &[Range<usize>]) -> Option<f64> {
    match bounds(of, indices).get(usize::from(of.reg)) {
        Some(Between(low, high)) if low == high => Some(*low),
        _ => None,
    }
}

/// The expression without selects that these indices decide, and without their dead operands: inside of a causal mask
/// no position is read.
pub fn decided(of: &Computed, indices: &[Range<usize>]) -> Computed {
    let known = bounds(of, indices);
    let always = |r: Reg| matches!(known.get(usize::from(r)), Some(Between(low, _)) if *low > 0.0);
    let never = |r: Reg| matches!(known.get(usize::from(r)), Some(Between(_, high)) if *high <= 0.0);
    let nodes = &of.expr.nodes;
    // Replacement of each node: an earlier one, or itself.
    let mut to: Vec<Reg> = Vec::with_capacity(nodes.len());
    for (i, node) in nodes.iter().enumerate() {
        let stands = |r: Reg| to.get(usize::from(r)).copied().unwrap_or(r);
        to.push(match node.scalar {
            Scalar::Select(c, a, _) if always(c) => stands(a),
            Scalar::Select(c, _, b) if never(c) => stands(b),
            Scalar::Binary(BinaryFn::And, a, b) if always(a) => stands(b),
            Scalar::Binary(BinaryFn::And, a, b) if always(b) => stands(a),
            Scalar::Binary(BinaryFn::Or, a, b) if never(a) => stands(b),
            Scalar::Binary(BinaryFn::Or, a, b) if never(b) => stands(a),
            _ => i as Reg,
        });
    }
    let mut needed = vec![false; nodes.len()];
    needed[usize::from(to[usize::from(of.reg)])] = true;
    for (i, node) in nodes.iter().enumerate().rev() {
        if needed[i] {
            node.scalar.reads().into_iter().for_each(|r| needed[usize::from(to[usize::from(r)])] = true);
        }
    }
    let (mut expr, mut new) = (Expr::default(), vec![0; nodes.len()]);
    for (i, node) in nodes.iter().enumerate().filter(|(i, _)| needed[*i]) {
        new[i] = expr.push(node.scalar.map_reads(|r| new[usize::from(to[usize::from(r)])]), node.dtype);
    }
    Computed { expr, reg: new[usize::from(to[usize::from(of.reg)])] }
}

fn bounds(of: &Computed, indices: &[Range<usize>]) -> Vec<Bounds> {
    let mut known: Vec<Bounds> = Vec::with_capacity(of.expr.nodes.len());
    for node in &of.expr.nodes {
        let at = |r: Reg| known.get(usize::from(r)).copied().unwrap_or(Unknown);
        known.push(match node.scalar {
            Scalar::Const(x) if !x.is_nan() => Between(x, x),
            Scalar::Index(k) => match indices.get(usize::from(k)) {
                Some(r) if !r.is_empty() => Between(r.start as f64, (r.end - 1) as f64),
                _ => Unknown,
            },
            Scalar::Unary(UnaryFn::Neg, a) if !node.dtype.is_float() => match at(a) {
                Between(low, high) => Between(-high, -low),
                Unknown => Unknown,
            },
            Scalar::Unary(UnaryFn::Not, a) => match at(a) {
                Between(low, high) => Between(1.0 - high, 1.0 - low),
                Unknown => Unknown,
            },
            // Rounded values are left to the map.
            Scalar::Binary(f, a, b) if !of.expr.dtype(a).is_float() => binary(f, at(a), at(b)),
            Scalar::Select(c, a, b) => match at(c) {
                Between(low, _) if low > 0.0 => at(a),
                Between(_, high) if high <= 0.0 => at(b),
                _ => match (at(a), at(b)) {
                    (Between(a, c), Between(b, d)) => Between(a.min(b), c.max(d)),
                    _ => Unknown,
                },
            },
            _ => Unknown,
        });
    }
    known
}

/// A function of two integers or truth values.
fn binary(f: BinaryFn, a: Bounds, b: Bounds) -> Bounds {
    let never = |x: Bounds| matches!(x, Between(_, high) if high <= 0.0);
    let always = |x: Bounds| matches!(x, Between(low, _) if low > 0.0);
    match f {
        BinaryFn::And if never(a) || never(b) => return Between(0.0, 0.0),
        BinaryFn::Or if always(a) || always(b) => return Between(1.0, 1.0),
        _ => {}
    }
    let (Between(a, c), Between(b, d)) = (a, b) else { return Unknown };
    let truth = |always: bool, never: bool| match (always, never) {
        (true, _) => Between(1.0, 1.0),
        (_, true) => Between(0.0, 0.0),
        _ => Between(0.0, 1.0),
    };
    // Beyond these, integers wrap.
    let safe = |x: f64| x.abs() < f64::from(i32::MAX);
    let within = |low: f64, high: f64| if safe(low) && safe(high) { Between(low, high) } else { Unknown };
    match f {
        BinaryFn::Add => within(a + b, c + d),
        BinaryFn::Sub => within(a - d, c - b),
        BinaryFn::Mul => {
            let all = [a * b, a * d, c * b, c * d];
            within(all.into_iter().fold(f64::MAX, f64::min), all.into_iter().fold(f64::MIN, f64::max))
        }
        BinaryFn::Min => Between(a.min(b), c.min(d)),
        BinaryFn::Max => Between(a.max(b), c.max(d)),
        // By one number, as positions are by the size of a block.
        BinaryFn::FloorDiv if b == d && b > 0.0 => Between((a / b).floor(), (c / b).floor()),
        BinaryFn::Mod if b == d && b > 0.0 && (a / b).floor() == (c / b).floor() => {
            let whole = (a / b).floor() * b;
            Between(a - whole, c - whole)
        }
        BinaryFn::Mod if b == d && b > 0.0 => Between(0.0, b - 1.0),
        BinaryFn::Lt => truth(c < b, a >= d),
        BinaryFn::Le => truth(c <= b, a > d),
        BinaryFn::Gt => truth(a > d, c <= b),
        BinaryFn::Ge => truth(a >= d, c < b),
        BinaryFn::Eq => truth(a == c && b == d && a == b, c < b || d < a),
        BinaryFn::Ne => truth(c < b || d < a, a == c && b == d && a == b),
        BinaryFn::And => truth(a > 0.0 && b > 0.0, false),
        BinaryFn::Or => truth(false, c <= 0.0 && d <= 0.0),
        _ => Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshwright_plan::DType;

    #[test]
    fn tiles_that_positions_decide_are_known() {
        // where index(1) <= index(0) && load(1) { load(0) } else { -1e9 }
        let mut expr = Expr::default();
        let x = expr.push(Scalar::Load(0), DType::F32);
        let real = expr.push(Scalar::Load(1), DType::Bool);
        let (i, j) = (expr.push(Scalar::Index(0), DType::I32), expr.push(Scalar::Index(1), DType::I32));
        let seen = expr.binary(BinaryFn::Le, j, i);
        let seen = expr.binary(BinaryFn::And, seen, real);
        let none = expr.constant(-1e9, DType::F32);
        let reg = expr.select(seen, x, none);
        let of = Computed { expr, reg };
        assert_eq!(constant(&of, &[0..64, 64..128]), Some(-1e9));
        assert_eq!(constant(&of, &[0..65, 64..128]), None);
        assert_eq!(constant(&of, &[64..128, 0..64]), None, "the other operand decides");
        assert_eq!(decided(&of, &[0..65, 64..128]), of, "positions do not decide");
        let (mut expr, regs) = Expr::of_operands([DType::F32]);
        let real = expr.push(Scalar::Load(1), DType::Bool);
        let none = expr.constant(-1e9, DType::F32);
        let reg = expr.select(real, regs[0], none);
        assert_eq!(decided(&of, &[64..128, 0..64]), Computed { expr, reg }, "the other operand alone");
        // where index(1) // 64 == index(0) // 64 { load(0) } else { -1e9 }, and a mask of positions in another order: those beyond 63 count
        // from the end.
        let (mut expr, regs) = Expr::of_operands([DType::F32]);
        let size = expr.constant(64.0, DType::I32);
        let [i, j] = [0, 1].map(|k| expr.push(Scalar::Index(k), DType::I32));
        let [of_i, of_j] = [i, j].map(|at| expr.binary(BinaryFn::FloorDiv, at, size));
        let seen = expr.binary(BinaryFn::Eq, of_j, of_i);
        let none = expr.constant(-1e9, DType::F32);
        let reg = expr.select(seen, regs[0], none);
        let blocks = Computed { expr: expr.clone(), reg };
        assert_eq!(constant(&blocks, &[0..64, 64..128]), Some(-1e9));
        assert_eq!(constant(&blocks, &[0..65, 64..128]), None);
        let end = expr.constant(191.0, DType::I32);
        let [true_i, true_j] = [i, j].map(|at| {
            let (first, turned) = (expr.binary(BinaryFn::Lt, at, size), expr.binary(BinaryFn::Sub, end, at));
            expr.select(first, at, turned)
        });
        let seen = expr.binary(BinaryFn::Le, true_j, true_i);
        let reg = expr.select(seen, regs[0], none);
        let ordered = Computed { expr, reg };
        assert_eq!(constant(&ordered, &[0..64, 64..128]), Some(-1e9));
        assert_eq!(constant(&ordered, &[64..96, 0..64]), None);
        assert_eq!(constant(&ordered, &[96..128, 64..96]), Some(-1e9), "in turned order");
        assert_eq!(constant(&ordered, &[32..96, 64..128]), None, "on both sides");
        let (expr, regs) = Expr::of_operands([DType::F32]);
        let plain = Computed { expr, reg: regs[0] };
        assert_eq!(decided(&plain, &[0..64, 0..64]), plain);
    }
}
