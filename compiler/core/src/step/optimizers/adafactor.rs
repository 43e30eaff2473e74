//! Adafactor.

use super::{Choices, OptimizerDef, Range, Setting, Trained, Update, Wrong};
use crate::passes::squares::Squares;
use meshwright_ops::{Id, NEG, RECIP, RSQRT};
use meshwright_plan::{Dim, Dims, Monoid};

/// Adafactor (Shazeer & Stern 2018, arXiv 1804.04235, algorithms 4 to 6).
///
/// The second moment of a parameter is kept as its means over its largest dim (`PATH/vr`) and over its second largest
/// (`PATH/vc`): for a matrix, a row and a column in place of the matrix. Their product over the mean of either is the
/// estimate. All further dims stay. A parameter whose second largest dim is smaller than `min_factored` keeps the whole
/// moment (`PATH/v`).
///
/// - `beta2 = 1 - t^-decay`, so that no bias is to be undone (section 7.2).
/// - `u = g / sqrt(v)`, divided by `max(1, rms(u) / clip)` (section 6).
/// - The step is `lr * u`, times `max(eps2, rms(p))` with `scale_parameter` (section 8).
/// - With `relative_step`, `lr` is at most `1 / sqrt(t)` (section 9).
/// - With `beta1` the average of the steps (`PATH/m`) is taken in place of the step.
/// - Weight decay is decoupled, as in AdamW: `lr * weight_decay * p` is taken off as well.
pub(super) static ADAFACTOR: OptimizerDef = OptimizerDef {
    name: "adafactor",
    doc: "Adafactor (Shazeer & Stern 2018): the mean of squares of a matrix is stored as one vector for its rows and one for its \
          columns. With `scale_parameter`, `lr` is relative to the size of the parameter.",
    settings: &[
        Setting::scalar("lr", Range::NotNegative, 1e-2),
        Setting::flag("factored", true),
        Setting::or_off("clip", Range::Positive, 1.0),
        Setting::flag("scale_parameter", true),
        Setting::flag("relative_step", false),
        Setting::scalar("beta1", Range::Decay, 0.0),
        Setting::scalar("decay", Range::Positive, 0.8),
        Setting::scalar("eps1", Range::Positive, 1e-30),
        Setting::scalar("eps2", Range::NotNegative, 1e-3),
        Setting::count("min_factored", 128),
        Setting::scalar("weight_decay", Range::NotNegative, 0.0),
    ],
    check: |c| {
        let idle = |setting, switch: &str, text, help| {
            (c.written(setting) && !c.flag(switch)).then_some(Wrong {
                setting,
                text,
                label: "has no effect",
                help,
            })
        };
        let unfactored = "`min_factored` says what is factored, but `factored` is false";
        let unscaled = "`eps2` bounds the scale of a parameter, but `scale_parameter` is false";
        idle("min_factored", "factored", unfactored, "leave one of them out")
            .or_else(|| idle("eps2", "scale_parameter", unscaled, "leave one of them out"))
    },
    update,
};

/// The second moment of one parameter.
enum Second {
    /// Means over the largest dim and over the second largest, and the mean of either, inverted.
    Factored { rows: Id, columns: Id, over_mean: Id },
    /// All of it.
    Whole(Id),
}

// In rounds over all parameters, so that all-reduces of split sums stand together and share a bucket.
fn update(c: &Choices, u: &mut Update<'_>, params: &[Trained<'_>]) {
    let Some(first) = params.first() else { return };
    u.of(first);
    let t = u.step_number();
    let rate = rate(c, u, t);
    let beta2 = {
        let exponent = u.graph().unary(&NEG, c.scalar("decay"));
        let power = u.graph().binary("pow", t, exponent);
        u.complement(power)
    };

    let mut sums = Vec::new();
    for p in params {
        u.of(p);
        let moments = second(c, u, p, beta2);
        let size = c.flag("scale_parameter").then(|| u.squares(p, p.decl.id));
        sums.push((moments, size));
    }
    let mut scales = Vec::new();
    for (p, (moments, size)) in params.iter().zip(&mut sums) {
        u.of(p);
        if let Second::Factored { over_mean, .. } = moments {
            *over_mean = u.graph().unary(&RECIP, *over_mean);
        }
        scales.push(match size {
            None => rate,
            Some(squares) => {
                let rms = rms(u, p, *squares);
                let scale = u.graph().binary("max", rms, c.scalar("eps2"));
                u.product(&[rate, scale])
            }
        });
    }
    let clip = c.nonzero("clip");
    let mut steps = Vec::new();
    for (p, (moments, _)) in params.iter().zip(&sums) {
        u.of(p);
        let step = normalized(u, p, moments);
        let squares = clip.map(|_| u.squares(p, step));
        steps.push((step, squares));
    }
    for (scale, (p, (_, squares))) in scales.iter_mut().zip(params.iter().zip(&steps)) {
        let (Some(limit), Some(squares)) = (clip, squares) else { continue };
        u.of(p);
        // limit / max(rms, limit): exactly 1 below the limit.
        let rms = rms(u, p, *squares);
        let larger = u.graph().binary("max", rms, limit);
        let factor = u.graph().binary("/", limit, larger);
        *scale = u.product(&[*scale, factor]);
    }
    for (p, ((step, _), scale)) in params.iter().zip(steps.iter().zip(scales)) {
        u.of(p);
        descend(c, u, p, rate, &[scale, *step]);
    }
}

/// The learning rate: `rho` of the paper.
fn rate(c: &Choices, u: &mut Update<'_>, t: Id) -> Id {
    let lr = c.scalar("lr");
    let relative = if c.written("relative_step") { c.flag("relative_step") } else { !c.written("lr") };
    if !relative {
        return lr;
    }
    let falling = u.graph().unary(&RSQRT, t);
    u.graph().binary("min", lr, falling)
}

/// The two dims over which the second moment of a parameter is factored: the largest first, of equal ones the one that is
/// declared first.
fn factored(c: &Choices, dims: &[Dim], table: &Dims) -> Option<[Dim; 2]> {
    let mut sorted = dims.to_vec();
    sorted.sort_by_key(|d| (std::cmp::Reverse(table.size(*d)), *d));
    match sorted[..] {
        [first, second, ..] if c.flag("factored") && table.size(second) >= c.count("min_factored") => {
            Some([first, second])
        }
        _ => None,
    }
}

/// The moments with the new gradient mixed in. `over_mean` is not inverted yet.
fn second(c: &Choices, u: &mut Update<'_>, p: &Trained<'_>, beta2: Id) -> Second {
    let dims = u.dims(p);
    let eps = c.scalar("eps1");
    let own = u.own_dims(p);
    let Some([large, small]) = factored(c, &own, &u.graph().dims) else {
        let square = u.product(&[p.grad, p.grad]);
        let square = u.sum(&[square, eps]);
        return Second::Whole(mixed(u, p, "v", &dims, beta2, square));
    };
    let without = |d: Dim| -> Vec<Dim> { dims.iter().copied().filter(|x| *x != d).collect() };
    let mut mean = |which: &str, over: Dim| {
        let keep = without(over);
        let sum = u.graph().contract_to(&[p.grad, p.grad], &keep);
        let size = u.graph().dims.size(over);
        let mean = u.graph().scaled(sum, 1.0 / size as f64);
        let square = u.sum(&[mean, eps]);
        mixed(u, p, which, &keep, beta2, square)
    };
    let (rows, columns) = (mean("vr", large), mean("vc", small));
    let sum = u.graph().reduce(Monoid::Sum, rows, &[small]);
    let size = u.graph().dims.size(small);
    let over_mean = u.graph().scaled(sum, 1.0 / size as f64);
    Second::Factored { rows, columns, over_mean }
}

/// A moment of some dims with a new value mixed in.
fn mixed(u: &mut Update<'_>, p: &Trained<'_>, which: &str, dims: &[Dim], beta2: Id, new: Id) -> Id {
    let old = u.moment_over(p, which, dims.to_vec());
    let next = u.mixed(beta2, old, &[new]);
    u.next_moment(p, which, old, next);
    next
}

/// The gradient over the root of its second moment. The roots of both factors are taken each by itself: their product may be
/// too small for an `f32`.
fn normalized(u: &mut Update<'_>, p: &Trained<'_>, moments: &Second) -> Id {
    match moments {
        Second::Whole(v) => {
            let over = u.graph().unary(&RSQRT, *v);
            u.product(&[p.grad, over])
        }
        Second::Factored { rows, columns, over_mean } => {
            let relative = u.product(&[*rows, *over_mean]);
            let row = u.graph().unary(&RSQRT, relative);
            let column = u.graph().unary(&RSQRT, *columns);
            u.product(&[p.grad, row, column])
        }
    }
}

/// The root of the mean of squares over a whole parameter, from their sums.
fn rms(u: &mut Update<'_>, p: &Trained<'_>, squares: Squares) -> Id {
    let dims = u.own_dims(p);
    let n = u.graph().dims.elements(&dims);
    squares.root(u.graph(), 1.0 / n as f64)
}

/// Takes the step, or the average of the steps, and the decay off the parameter.
fn descend(c: &Choices, u: &mut Update<'_>, p: &Trained<'_>, rate: Id, step: &[Id]) {
    let beta1 = c.nonzero("beta1");
    let decay = c.nonzero("weight_decay").filter(|_| !p.decl.no_decay);
    if beta1.is_none() && decay.is_none() {
        return u.descend(p, step);
    }
    let mut step = u.product(step);
    if let Some(beta1) = beta1 {
        let m = u.moment(p, "m");
        step = u.mixed(beta1, m, &[step]);
        u.next_moment(p, "m", m, step);
    }
    if let Some(decay) = decay {
        let pull = u.product(&[rate, decay, p.decl.id]);
        step = u.sum(&[step, pull]);
    }
    u.descend(p, &[step]);
}
