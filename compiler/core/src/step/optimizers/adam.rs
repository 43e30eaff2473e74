//! Adam and AdamW.

use super::definition::any;
use super::{Choices, OptimizerDef, Range, Setting, Trained, Update};
use meshwright_ops::{Id, RECIP, SQRT};

/// Adam (Kingma & Ba 2015). Weight decay times the parameter is added to the gradient.
pub(super) static ADAM: OptimizerDef = OptimizerDef {
    name: "adam",
    doc: "Adam (Kingma & Ba 2015): the step is the mean of the gradients over the root of the mean of their squares, both \
          without bias. Weight decay times the parameter is added to the gradient; see `adamw`.",
    settings: &settings(0.0),
    check: any,
    update: |c, u, params| update(c, u, params, false),
};

/// AdamW (Loshchilov & Hutter 2019): Adam with weight decay decoupled, added to the step.
pub(super) static ADAMW: OptimizerDef = OptimizerDef {
    name: "adamw",
    doc: "Adam with decoupled weight decay (Loshchilov & Hutter 2019): `lr * weight_decay * p` is subtracted from a parameter \
          in addition to the step of Adam.",
    settings: &settings(0.01),
    check: any,
    update: |c, u, params| update(c, u, params, true),
};

const fn settings(decay: f64) -> [Setting; 5] {
    [
        Setting::required("lr", Range::NotNegative),
        Setting::scalar("beta1", Range::Decay, 0.9),
        Setting::scalar("beta2", Range::Decay, 0.999),
        Setting::scalar("eps", Range::NotNegative, 1e-8),
        Setting::scalar("weight_decay", Range::NotNegative, decay),
    ]
}

fn update(c: &Choices, u: &mut Update<'_>, params: &[Trained<'_>], decoupled: bool) {
    let decay = c.nonzero("weight_decay");
    for p in params {
        u.of(p);
        let grad = if decoupled { p.grad } else { u.decayed(p.grad, p, decay) };
        let step = direction(c, u, p, grad);
        let step = if decoupled { u.decayed(step, p, decay) } else { step };
        u.descend(p, &[c.scalar("lr"), step]);
    }
}

/// The moments `m` and `v` of a gradient, and `m / (sqrt(v) + eps)` with the bias of both undone.
pub(super) fn direction(c: &Choices, u: &mut Update<'_>, p: &Trained<'_>, grad: Id) -> Id {
    let (beta1, beta2) = (c.scalar("beta1"), c.scalar("beta2"));
    let (m, v) = (u.moment(p, "m"), u.moment(p, "v"));
    let new_m = u.mixed(beta1, m, &[grad]);
    let new_v = u.mixed(beta2, v, &[grad, grad]);
    u.next_moment(p, "m", m, new_m);
    u.next_moment(p, "v", v, new_v);
    let t = u.step_number();
    let scale_m = u.correction(beta1, t);
    let scale_v = u.correction(beta2, t);
    let hat_v = u.product(&[new_v, scale_v]);
    let root = u.graph().unary(&SQRT, hat_v);
    let below = u.sum(&[root, c.scalar("eps")]);
    let over = u.graph().unary(&RECIP, below);
    u.product(&[new_m, scale_m, over])
}
