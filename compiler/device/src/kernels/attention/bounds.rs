//! Tiles that positions alone decide: all their scores are one number, for any queries and keys.

use meshwright_plan::expr::{BinaryFn, Reg, Scalar, UnaryFn};
use meshwright_plan::{Computed, DType, Expr};
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

/// The expression without selects that these indices decide, with numbers for the integers that they decide, and without dead
/// nodes: inside of a causal mask no position is read, and where all positions are in one range of a zigzag order they are
/// compared as they lie.
pub fn decided(of: &Computed, indices: &[Range<usize>]) -> Computed {
    let known = bounds(of, indices);
    let at = |r: Reg| known.get(usize::from(r)).copied().unwrap_or(Unknown);
    let always = |r: Reg| matches!(at(r), Between(low, _) if low > 0.0);
    let never = |r: Reg| matches!(at(r), Between(_, high) if high <= 0.0);
    // Each node's replacement.
    let (mut expr, mut to): (Expr, Vec<Reg>) = Default::default();
    for (node, known) in of.expr.nodes.iter().zip(&known) {
        let stands = |r: Reg| to[usize::from(r)];
        let made = match (node.scalar, *known) {
            (_, Between(low, high)) if low == high && !node.dtype.is_float() => {
                expr.constant(low, node.dtype)
            }
            (Scalar::Select(c, a, _), _) if always(c) => stands(a),
            (Scalar::Select(c, _, b), _) if never(c) => stands(b),
            (Scalar::Binary(BinaryFn::And, a, b), _) if always(a) => stands(b),
            (Scalar::Binary(BinaryFn::And, a, b), _) if always(b) => stands(a),
            (Scalar::Binary(BinaryFn::Or, a, b), _) if never(a) => stands(b),
            (Scalar::Binary(BinaryFn::Or, a, b), _) if never(b) => stands(a),
            (Scalar::Binary(BinaryFn::Add, a, b), _) if node.dtype == DType::I32 => {
                sum(&mut expr, stands(a), stands(b))
            }
            (Scalar::Binary(f, a, b), _) if f.is_comparison() && of.expr.dtype(a) == DType::I32 => {
                let (x, y) = compared(&mut expr, [stands(a), stands(b)], [at(a), at(b)]);
                expr.binary(f, x, y)
            }
            (scalar, _) => expr.push(scalar.map_reads(stands), node.dtype),
        };
        to.push(made);
    }
    alive(&expr, to[usize::from(of.reg)])
}

/// The integer that a register is the sum of another one and, with this one.
fn apart(expr: &Expr, r: Reg) -> (Option<Reg>, i32) {
    let number = |r: Reg| match expr.nodes[usize::from(r)].scalar {
        Scalar::Const(x) => Some(x as i32),
        _ => None,
    };
    match expr.nodes[usize::from(r)].scalar {
        Scalar::Const(x) => (None, x as i32),
        Scalar::Binary(BinaryFn::Add, a, b) => match (number(a), number(b)) {
            (None, Some(n)) => (Some(a), n),
            (Some(n), None) => (Some(b), n),
            _ => (Some(r), 0),
        },
        _ => (Some(r), 0),
    }
}

/// A register and an integer.
fn plus(expr: &mut Expr, of: Option<Reg>, n: i32) -> Reg {
    match of {
        Some(x) if n == 0 => x,
        _ => {
            let n = expr.constant(f64::from(n), DType::I32);
            of.map_or(n, |x| expr.binary(BinaryFn::Add, x, n))
        }
    }
}

/// The sum of two integers, with one number at most. Sums wrap in any order alike.
fn sum(expr: &mut Expr, a: Reg, b: Reg) -> Reg {
    let ((a, m), (b, n)) = (apart(expr, a), apart(expr, b));
    let both = match (a, b) {
        (Some(a), Some(b)) => Some(expr.binary(BinaryFn::Add, a, b)),
        _ => a.or(b),
    };
    plus(expr, both, m.wrapping_add(n))
}

/// Two integers that compare as these do, with a number on the right alone, where none of them wraps.
fn compared(expr: &mut Expr, [a, b]: [Reg; 2], known: [Bounds; 2]) -> (Reg, Reg) {
    let ((x, m), (y, n)) = (apart(expr, a), apart(expr, b));
    let safe = |known: Bounds| {
        let far = |at: f64| (at - f64::from(m)).abs() < f64::from(i32::MAX);
        matches!(known, Between(low, high) if far(low) && far(high))
    };
    match (x, y, n.checked_sub(m)) {
        (Some(x), Some(y), Some(n)) if known.into_iter().all(safe) => (x, plus(expr, Some(y), n)),
        _ => (a, b),
    }
}

/// The expression without what it does not need.
fn alive(expr: &Expr, reg: Reg) -> Computed {
    let mut needed = vec![false; expr.nodes.len()];
    needed[usize::from(reg)] = true;
    for (i, node) in expr.nodes.iter().enumerate().rev() {
        if needed[i] {
            node.scalar.reads().into_iter().for_each(|r| needed[usize::from(r)] = true);
        }
    }
    let (mut out, mut new) = (Expr::default(), vec![0; expr.nodes.len()]);
    for (i, node) in expr.nodes.iter().enumerate().filter(|(i, _)| needed[*i]) {
        new[i] = out.push(node.scalar.map_reads(|r| new[usize::from(r)]), node.dtype);
    }
    Computed { expr: out, reg: new[usize::from(reg)] }
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
        // where index(1) // 64 == index(0) // 64 { load(0) } else { -1e9 }, and a mask of positions in another order: those
        // beyond 63 count from the end.
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

    /// The position at a place in zigzag order, of two devices with ranges of 64.
    fn zigzag(expr: &mut Expr, along: u16) -> Reg {
        let [both, one, last] = [128.0, 64.0, 128.0].map(|n| expr.constant(n, DType::I32));
        let place = expr.push(Scalar::Index(along), DType::I32);
        let device = expr.binary(BinaryFn::FloorDiv, place, both);
        let before = expr.binary(BinaryFn::Mul, device, both);
        let before = expr.unary(UnaryFn::Neg, before);
        let within = expr.binary(BinaryFn::Add, place, before);
        let front = expr.binary(BinaryFn::Mul, device, one);
        let turned = expr.unary(UnaryFn::Neg, front);
        let end = expr.binary(BinaryFn::Add, last, turned);
        let is_front = expr.binary(BinaryFn::Lt, within, one);
        let begin = expr.select(is_front, front, end);
        expr.binary(BinaryFn::Add, begin, within)
    }

    /// `where position(1) <= position(0) + ahead { load(0) } else { -1e9 }`.
    fn causal(ahead: f64, position: fn(&mut Expr, u16) -> Reg) -> Computed {
        let (mut expr, regs) = Expr::of_operands([DType::F32]);
        let (key, query) = (position(&mut expr, 1), position(&mut expr, 0));
        let query = if ahead == 0.0 {
            query
        } else {
            let ahead = expr.constant(ahead, DType::I32);
            expr.binary(BinaryFn::Add, query, ahead)
        };
        let seen = expr.binary(BinaryFn::Le, key, query);
        let none = expr.constant(-1e9, DType::F32);
        let reg = expr.select(seen, regs[0], none);
        Computed { expr, reg }
    }

    #[test]
    fn positions_of_one_range_are_compared_as_they_lie() {
        let plain = |expr: &mut Expr, along| expr.push(Scalar::Index(along), DType::I32);
        let of = |ahead, tile: [Range<usize>; 2]| decided(&causal(ahead, zigzag), &tile);
        for range in [0..64, 64..128, 128..192, 192..256] {
            assert_eq!(of(0.0, [range.clone(), range]), causal(0.0, plain));
        }
        // Positions 64 to 127 lie at 128 to 191, those from 128 on behind them.
        assert_eq!(
            of(0.0, [192..256, 128..192]),
            decided(&causal(0.0, plain), &[64..128, 0..64]),
            "all are seen"
        );
        let wide = of(100.0, [0..64, 128..192]);
        assert_eq!(wide, causal(164.0, plain), "key - 64 <= query + 100");
        // On both sides of a device, where all that there is has to be computed.
        let both = causal(0.0, zigzag);
        assert_eq!(of(0.0, [64..192, 0..192]).expr.nodes.len(), both.expr.nodes.len());
    }

    #[test]
    fn numbers_beyond_integers_stay_where_they_are() {
        let far = f64::from(i32::MAX) - 10.0;
        let (mut expr, regs) = Expr::of_operands([DType::F32]);
        let [key, query] = [1, 0].map(|along| expr.push(Scalar::Index(along), DType::I32));
        let [most, least] = [far, -far].map(|n| expr.constant(n, DType::I32));
        let (key, query) = (expr.binary(BinaryFn::Add, key, most), expr.binary(BinaryFn::Add, query, least));
        let seen = expr.binary(BinaryFn::Gt, key, query);
        let none = expr.constant(-1e9, DType::F32);
        let reg = expr.select(seen, regs[0], none);
        let of = Computed { expr, reg };
        assert_eq!(decided(&of, &[0..64, 0..64]), of, "the greatest of the keys wraps");
    }
}
