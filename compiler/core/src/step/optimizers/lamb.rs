//! LAMB.

use super::definition::any;
use super::{Choices, OptimizerDef, Range, Setting, Trained, Update, adam};
use crate::passes::squares::Squares;
use meshwright_ops::Id;

/// LAMB (You et al. 2020, arXiv 1904.00962, algorithm 2 with the identity for phi): `r` is the direction of Adam, bias
/// undone, plus decay times the parameter; `p -= lr * |p| / |r| * r` with 2-norms over the whole parameter. Where either norm
/// is 0 the ratio is 1.
pub(super) static LAMB: OptimizerDef = OptimizerDef {
    name: "lamb",
    doc: "LAMB (You et al. 2020): the step of AdamW, scaled by the ratio of the norm of the whole parameter to that of the \
          whole step.",
    settings: &[
        Setting::required("lr", Range::NotNegative),
        Setting::scalar("beta1", Range::Decay, 0.9),
        Setting::scalar("beta2", Range::Decay, 0.999),
        Setting::scalar("eps", Range::NotNegative, 1e-6),
        Setting::scalar("weight_decay", Range::NotNegative, 0.01),
    ],
    check: any,
    update,
};

// In rounds over all parameters, so that the all-reduces of split norms stand together and share a bucket.
fn update(c: &Choices, u: &mut Update<'_>, params: &[Trained<'_>]) {
    let mut steps = Vec::new();
    for p in params {
        u.of(p);
        let step = adam::direction(c, u, p, p.grad);
        let step = u.decayed(step, p, c.nonzero("weight_decay"));
        let squares = (u.squares(p, p.decl.id), u.squares(p, step));
        steps.push((step, squares));
    }
    let mut ratios = Vec::new();
    for (p, (_, (weight, step))) in params.iter().zip(&steps) {
        u.of(p);
        ratios.push(ratio(u, *weight, *step));
    }
    for (p, ((step, _), ratio)) in params.iter().zip(steps.iter().zip(ratios)) {
        u.of(p);
        u.descend(p, &[c.scalar("lr"), ratio, *step]);
    }
}

/// The trust ratio, the quotient of both norms.
fn ratio(u: &mut Update<'_>, weight: Squares, step: Squares) -> Id {
    let g = u.graph();
    let (weight, step) = (weight.root(g, 1.0), step.root(g, 1.0));
    let (zero, one) = (u.number(0.0, weight), u.number(1.0, weight));
    let g = u.graph();
    let quotient = g.binary("/", weight, step);
    let has_weight = g.binary(">", weight, zero);
    let has_step = g.binary(">", step, zero);
    let both = g.binary("and", has_weight, has_step);
    g.choose(both, quotient, one)
}
