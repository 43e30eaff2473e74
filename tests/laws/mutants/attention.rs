//! Faults in steps of attention, as a wrong lowering or a wrong merge would make them.

use super::plans::{Fault, R, all_caught, faults, steps};
use super::sites::Site;
use meshwright_plan::expr::Scalar;
use meshwright_plan::{AttentionPart, AttentionSpec, Plan, Prim};

/// Seeds a fault in the `k`-th attention that it changes.
fn attentions(p: &mut Plan, k: usize, seed: fn(&mut AttentionSpec, &[AttentionPart]) -> Option<()>) -> Site {
    steps(p, k, |p, i| {
        let Prim::Attention { spec, parts } = &mut p.steps[i].prim else { return None };
        seed(spec, parts)
    })
}

pub(super) const FAULTS: &[Fault] = faults![
    "the scores of an attention are the products", R, |p, k| {
        attentions(p, k, |spec, parts| {
            // Exponentials relative to any number are as good.
            if *parts == [AttentionPart::Max] {
                return None;
            }
            let product = spec.score.expr.nodes.iter().position(|n| n.scalar == Scalar::Load(0))?;
            spec.score.reg = product as u16;
            Some(())
        })
    };
    "the slope of scores is 1", R, |p, k| {
        attentions(p, k, |spec, parts| {
            let changes = parts.iter().any(|p| matches!(p, AttentionPart::Query | AttentionPart::Key));
            let dtype = spec.slope.expr.dtype(spec.slope.reg);
            spec.slope.reg = spec.slope.expr.constant(1.0, dtype);
            changes.then_some(())
        })
    };
    "the slope of scores by their bias is 1", R, |p, k| {
        attentions(p, k, |spec, parts| {
            let slope = &mut spec.bias.as_mut()?.slope;
            slope.reg = slope.expr.constant(1.0, slope.expr.dtype(slope.reg));
            parts.contains(&AttentionPart::Bias).then_some(())
        })
    };
    "an attention draws from another stream", R, |p, k| {
        attentions(p, k, |spec, parts| {
            spec.draws.first_mut()?.stream.push('x');
            parts.iter().any(|p| !p.is_of_query()).then_some(())
        })
    };
    "the weights of an attention have no factor", R, |p, k| {
        attentions(p, k, |spec, parts| {
            spec.weight.take()?;
            parts.iter().any(|p| !p.is_of_query()).then_some(())
        })
    };
    "the gradients of queries and keys change places", R, |p, k| {
        steps(p, k, |p, i| {
            let Prim::Attention { parts, .. } = &mut p.steps[i].prim else { return None };
            let at = |of| parts.iter().position(|p| *p == of);
            let (q, k) = (at(AttentionPart::Query)?, at(AttentionPart::Key)?);
            parts.swap(q, k);
            Some(())
        })
    };
];

#[test]
fn every_wrong_attention_is_caught() {
    all_caught("attention", FAULTS);
}
