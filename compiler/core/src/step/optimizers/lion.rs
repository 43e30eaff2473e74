//! Lion.

use super::definition::any;
use super::{Choices, OptimizerDef, Range, Setting, Trained, Update};
use meshwright_ops::SIGN;

/// Lion (Chen et al. 2023, arXiv 2302.06675, algorithm 2): `p -= lr * (sign(beta1 m + (1 - beta1) g) + decay p)`, then
/// `m = beta2 m + (1 - beta2) g`. One moment, and a step of one length in every direction: where it is exactly 0 there is no
/// step.
pub(super) static LION: OptimizerDef = OptimizerDef {
    name: "lion",
    doc: "Lion (Chen et al. 2023): a step of length `lr` along `sign(beta1 * m + (1 - beta1) * g)`. It needs an `lr` three to ten \
          times smaller than AdamW, and a larger decay.",
    settings: &[
        Setting::required("lr", Range::NotNegative),
        Setting::scalar("beta1", Range::Decay, 0.9),
        Setting::scalar("beta2", Range::Decay, 0.99),
        Setting::scalar("weight_decay", Range::NotNegative, 0.0),
    ],
    check: any,
    update,
};

fn update(c: &Choices, u: &mut Update<'_>, params: &[Trained<'_>]) {
    for p in params {
        u.of(p);
        let m = u.moment(p, "m");
        let between = u.mixed(c.scalar("beta1"), m, &[p.grad]);
        let step = u.graph().unary(&SIGN, between);
        let new = u.mixed(c.scalar("beta2"), m, &[p.grad]);
        u.next_moment(p, "m", m, new);
        let step = u.decayed(step, p, c.nonzero("weight_decay"));
        u.descend(p, &[c.scalar("lr"), step]);
    }
}
