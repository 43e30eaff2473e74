//! Faults in the order of positions: masks, lookups and draws by where positions lie.

use super::plans::{Fault, R, faults, seeded, steps};
use super::sites::Site;
use super::subjects::{ATTENTION, planned_from};
use super::{Row, judge};
use meshwright_plan::expr::{BinaryFn, Reg, Scalar};
use meshwright_plan::{DType, Dims, Expr, Plan, Prim};

/// The place along a dim of the space of an expression, where its positions are computed.
fn place(e: &Expr, along: usize) -> Option<Reg> {
    let at = e.nodes.iter().position(|n| n.scalar == Scalar::Index(along as u16))?;
    let divided = |n: &Scalar| matches!(n, Scalar::Binary(BinaryFn::FloorDiv, a, _) if usize::from(*a) == at);
    e.nodes.iter().any(|n| divided(&n.scalar)).then_some(at as Reg)
}

/// Masks an attention by the places of its queries or its keys, which are along one side of a comparison.
fn by_places(p: &mut Plan, i: usize, keys: bool) -> Option<()> {
    let Prim::Attention { spec, .. } = &mut p.steps[i].prim else { return None };
    let mut dims = spec.space.iter().enumerate();
    let (along, _) =
        dims.find(|(at, d)| (**d == spec.key) == keys && place(&spec.score.expr, *at).is_some())?;
    for of in [&mut spec.score, &mut spec.slope] {
        let place = place(&of.expr, along)?;
        // The key is on the left: `index(key) <= index(seq)`.
        let seen = of.expr.nodes.iter_mut().find_map(|n| match &mut n.scalar {
            Scalar::Binary(BinaryFn::Le, key, query) => Some(if keys { key } else { query }),
            _ => None,
        });
        *seen? = place;
    }
    Some(())
}

/// Changes the computation of positions in a step.
fn positions(p: &mut Plan, i: usize, change: fn(&mut Expr) -> Option<()>) -> Option<()> {
    match &mut p.steps[i].prim {
        Prim::Attention { spec, .. } => {
            change(&mut spec.score.expr)?;
            change(&mut spec.slope.expr)
        }
        Prim::Map { expr, .. } => change(expr),
        _ => None,
    }
}

/// Takes the range from the front for that of the end.
fn turned(e: &mut Expr) -> Option<()> {
    let is_int = |e: &Expr, r: Reg| e.nodes[usize::from(r)].dtype == DType::I32;
    let at = (0..e.nodes.len())
        .find(|at| matches!(e.nodes[*at].scalar, Scalar::Select(_, a, _) if is_int(e, a)))?;
    let Scalar::Select(c, a, b) = e.nodes[at].scalar else { return None };
    e.nodes[at].scalar = Scalar::Select(c, b, a);
    Some(())
}

const FAULTS: &[Fault] = faults![
    "keys are masked by where they lie, queries by what they are", R, |p, k| {
        steps(p, k, |p, i| by_places(p, i, true))
    };
    "queries are masked by where they lie, keys by what they are", R, |p, k| {
        steps(p, k, |p, i| by_places(p, i, false))
    };
    "the range of the end counts as that of the front", R, |p, k| steps(p, k, |p, i| positions(p, i, turned));
    "inputs are looked up at places", R, |p, k| {
        steps(p, k, |p, i| {
            let Prim::Map { expr, regs } = &mut p.steps[i].prim else { return None };
            let [reg] = &mut regs[..] else { return None };
            (expr.dtype(*reg) == DType::I32).then_some(())?;
            *reg = place(expr, 0)?;
            Some(())
        })
    };
    "random values are those of places", R, |p, k| {
        if k > 0 {
            return Site::End;
        }
        let mut dims = Dims::default();
        for (dim, name) in p.dims.iter() {
            dims.add(name, p.dims.size(dim));
        }
        p.dims = dims;
        Site::Seeded
    };
];

#[test]
fn every_wrong_order_is_caught() {
    // Of keys too something is looked up that differs from place to place.
    let text = ATTENTION
        .replace("seq = 5", "seq = 12")
        .replace("where(real[seq -> key],", "where(x[seq -> key] > 0,");
    assert!(text.contains("> 0"));
    let subjects = [
        planned_from("around", &text, "a=3", "seq -> a; ring key; order seq zigzag a"),
        planned_from("gathered", &text, "b=2,a=2", "batch -> b; seq -> a; gather key; order seq zigzag a"),
    ];
    let rows: Vec<Row> = FAULTS.iter().map(|fault| seeded(fault, &subjects)).collect();
    judge("orders", &rows);
}
