//! Stochastic gradient descent.

use super::{Choices, OptimizerDef, Range, Setting, Trained, Update, Wrong};

/// `p -= lr * g`. With momentum `m = momentum * m + g` and `p -= lr * m` (Polyak 1964), or with `nesterov`
/// `p -= lr * (g + momentum * m)`. Weight decay times the parameter is added to the gradient.
pub(super) static SGD: OptimizerDef = OptimizerDef {
    name: "sgd",
    doc: "Stochastic gradient descent: `p -= lr * g`. With `momentum`, `m = momentum * m + g` and `p -= lr * m`; with `nesterov` as \
          well, `p -= lr * (g + momentum * m)`. Weight decay times the parameter is added to the gradient.",
    settings: &[
        Setting::required("lr", Range::NotNegative),
        Setting::scalar("momentum", Range::NotNegative, 0.0),
        Setting::flag("nesterov", false),
        Setting::scalar("weight_decay", Range::NotNegative, 0.0),
    ],
    check: |c| {
        (c.flag("nesterov") && c.nonzero("momentum").is_none()).then_some(Wrong {
            setting: "nesterov",
            text: "`nesterov` looks ahead along the momentum, but there is none",
            label: "without momentum",
            help: "add `momentum = 0.9`",
        })
    },
    update,
};

fn update(c: &Choices, u: &mut Update<'_>, params: &[Trained<'_>]) {
    for p in params {
        u.of(p);
        let grad = u.decayed(p.grad, p, c.nonzero("weight_decay"));
        let step = match c.nonzero("momentum") {
            None => grad,
            Some(mu) => {
                let m = u.moment(p, "m");
                let old = u.product(&[mu, m]);
                let new = u.sum(&[old, grad]);
                u.next_moment(p, "m", m, new);
                if c.flag("nesterov") {
                    let ahead = u.product(&[mu, new]);
                    u.sum(&[grad, ahead])
                } else {
                    new
                }
            }
        };
        u.descend(p, &[c.scalar("lr"), step]);
    }
}
