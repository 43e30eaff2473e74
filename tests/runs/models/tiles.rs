//! Attention over more keys than a tile has, under masks of which positions decide a part.

use crate::models::loops::{after_steps, same};
use meshwright_core::{examined_step, training_step};

/// Tiles above the diagonal, below it and across it; rows whose keys are all masked; positions that begin later on a second
/// device.
#[test]
fn attention_in_tiles_is_what_its_equations_are() {
    let text = |mask: &str| {
        format!(
            "
dim batch = 2, seq = 300, key = seq, d = 4
model m {{
    input x[batch, seq, d]: float
    param q[d] = normal(0, 1)
    param k[d] = normal(0, 1)
    param v[d] = normal(0, 1)
    let real = sum[d](x) > 0
    let score = sum[d](x * q * (x * k)[seq -> key])
    let weight = dropout(softmax[key](where({mask}, score / 2, -1e9)), 0.2)
    let y = sum[key](weight * (x * v)[seq -> key])
    loss l = mean[batch, seq, d]((y - x) * (y - x))
}}
train m {{ minimize l optimizer sgd(lr = 0.3) }}
"
        )
    };
    let causal = "index(key) <= index(seq)";
    for mask in [causal, "index(key) <= index(seq) and real[seq -> key]", "index(key) > index(seq) or real"] {
        let text = text(mask);
        let equations = after_steps(&text, ("", ""), |p| examined_step(p).unwrap());
        for layout in [("", ""), ("a=2", "seq -> a; gather key")] {
            same(mask, &equations, &after_steps(&text, layout, |p| training_step(p).unwrap()));
        }
    }
}
