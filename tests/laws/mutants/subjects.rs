//! Small training programs that between them have every collective, bucket, window and random stream.
//!
//! The logits are so far apart that `exp` of them overflows unless their greatest is taken off before: else a least in the
//! place of that greatest would change nothing.

use super::run::{Conduct, Shard, run};
use meshwright_core::partition::Spmd;
use meshwright_core::{Program, StepGraph, prediction, training_step};
use meshwright_diag::Sources;
use meshwright_plan::{Arithmetic, Plan};
use meshwright_train::{Project, ProjectOptions};

/// A program under a layout, and what it gives on one device.
pub(crate) struct Planned {
    pub(crate) name: &'static str,
    pub(crate) spmd: Spmd,
    pub(crate) plan: Plan,
    pub(crate) alone: Shard,
}

const DENSE: &str = "
dim batch = 7, rows = 5, hidden = 6, mid = 6, classes = 4
layer dense(x, in, out) {
    param w[in, out] = normal(0, 1)
    param b[out] = normal(0, 1)
    return sum[in](x * w) + b
}
model m {
    input image[batch, rows]: float
    input label[batch]: i32 in classes
    let h = tanh(dense(image, [rows], [hidden]))
    let g = tanh(dense(h, [hidden], [mid]))
    let logits = 300 * dense(g, [mid], [classes])
    loss xent = mean[batch](cross_entropy[classes](logits, label))
    metric accuracy = mean[batch](argmax[classes](logits) == label)
}
train m {
    minimize xent
    optimizer adam(lr = 0.05)
    clip global_norm = 1.0
}
";

const MOVING: &str = "
dim batch = 4, seq = 7, d = 5, two = 14, part = 4
model m {
    input x[batch, seq, d]: float
    param w[d] = normal(0, 1)
    param u[d] = normal(0, 1)
    let h = dropout(x * w, 0.25)
    let n = shift[seq, by = 1](h) + random_normal[batch, seq, d](0, 0.5) * u
    let k = concat[seq, seq -> two](n, h)
    let c = cumsum[seq](reverse[seq](h) * u)
    let s = n[seq = 2..6 -> part]
    let r = random_uniform[batch, seq, d](0, 1)
    loss l = mean[batch, seq, d](c * n * r) + mean[batch, two, d](k * k) + mean[batch, part, d](s * s)
}
train m { minimize l optimizer sgd(lr = 0.1, momentum = 0.9) }
";

const TURNED: &str = "
dim batch = 4, heads = 4, d_head = 6, d_model = 24
model m {
    input x[batch, heads, d_head]: float
    param w[d_head] = normal(0, 1)
    param v[d_model] = normal(0, 1)
    let y = (x * w)[heads * d_head -> d_model]
    loss l = mean[batch, d_model](y * y * v)
}
train m { minimize l optimizer sgd(lr = 0.1) }
";

const VOCABULARY: &str = "
dim batch = 4, seq = 5, vocab = 11, d = 6
model m {
    input token[batch, seq]: i32 in vocab
    input target[batch, seq]: i32 in vocab
    param word[vocab, d] = normal(0, 1)
    param bias[vocab] = 0
    let x = word[vocab = token]
    let z = sum[d](tanh(x) * word) + bias
    let low = cast(index(vocab) < 4, float) + cast(index(vocab) == 5, float) + cast(index(vocab) == 9, float)
    let logits = z - 1000 * low
    loss xent = mean[batch, seq](cross_entropy[vocab](logits, target))
}
train m { minimize xent optimizer sgd(lr = 0.1, momentum = 0.9) }
";

pub(super) const ATTENTION: &str = "
dim batch = 4, seq = 5, heads = 2, d = 3, key = seq
model m {
    input x[batch, seq]: float
    input real[batch, seq]: bool
    param wq[heads, d] = normal(0, 1)
    param wk[heads, d] = normal(0, 1)
    param wv[heads, d] = normal(0, 1)
    let q = x * wq
    let k = tanh(x * wk)[seq -> key]
    let v = (x * wv)[seq -> key]
    let score = tanh(sum[d](q * k) / 3) * 2
    let seen = where(index(key) <= index(seq), where(real[seq -> key], score, -5), -1e9)
    let y = sum[key](dropout(softmax[key](seen), 0.25) * v)
    loss l = mean[batch, seq, heads, d](y * y)
}
train m { minimize l optimizer sgd(lr = 0.1) }
";

/// Attention with a bias that learns, which is added before a function of the scores.
const BIASED: &str = "
dim batch = 4, seq = 5, heads = 2, d = 3, key = seq
model m {
    input x[batch, seq]: float
    param w[heads, d] = normal(0, 1)
    param near[heads, seq, key] = normal(0, 1)
    let q = x * w
    let score = 3 * tanh(sum[d](q * tanh(q)[seq -> key]) / 2 + near)
    let y = sum[key](softmax[key](score) * q[seq -> key])
    loss l = mean[batch, seq, heads, d](y * y * y)
}
train m { minimize l optimizer sgd(lr = 0.1) }
";

/// A model whose gradients have a norm, and no sum of their squares.
pub(super) const STEEP: &str = "
dim batch = 4, d = 6, e = 5
model m {
    input x[batch, d]: float
    param w[d, e] = normal(0, 1)
    loss l = 1e170 * mean[batch, e](tanh(sum[d](x * w)) ** 2)
}
train m {
    minimize l
    optimizer sgd(lr = 0.1)
    clip global_norm = 1.0
}
";

/// Name, model, mesh, layout.
const SUBJECTS: &[(&str, &str, &str, &str)] = &[
    ("dense", DENSE, "r=2,c=3", "batch -> r; hidden, classes -> c"),
    ("sharded", DENSE, "a=3", "batch -> a; params: * -> a; moments: * -> a; grads: * -> a"),
    ("folded", DENSE, "r=2,c=2", "batch -> c, r; params: hidden -> r, c"),
    ("moving", MOVING, "a=3,b=2", "seq, two, part -> a; d -> b; gather seq"),
    ("turned", TURNED, "a=2,b=2", "d_head, d_model -> a; batch -> b"),
    ("attention", ATTENTION, "a=2,b=2", "batch -> a; seq -> b; gather key"),
    ("keys", ATTENTION, "a=3", "key -> a; gather seq"),
    ("biased", BIASED, "a=2,b=2", "batch -> a; heads -> b"),
    ("vocabulary", VOCABULARY, "a=3,b=2", "vocab -> a; batch -> b"),
];

/// A model under a layout.
pub(crate) fn loaded(text: &str, mesh: &str, layout: &str) -> (Project, Sources) {
    let option = |s: &str| (!s.is_empty()).then(|| s.to_string());
    let loaded = Project::load(&ProjectOptions {
        model: "m.mw".into(),
        mesh: option(mesh),
        layout: option(layout),
        precision: Some(Arithmetic::F64),
        texts: [("m.mw".to_string(), text.to_string())].into(),
        ..ProjectOptions::default()
    });
    let project = loaded.project.unwrap_or_else(|| panic!("{mesh} {layout}: {:?}", loaded.diagnostics));
    (project, loaded.sources)
}

/// The program of a model that is compiled.
type StepOf = fn(&Program) -> StepGraph;

fn compiled(of: StepOf, text: &str, mesh: &str, layout: &str) -> (Spmd, Plan) {
    let (project, sources) = loaded(text, mesh, layout);
    let step = of(&project.program);
    let (done, found) = project.compile(&step, &sources);
    let done = done.unwrap_or_else(|| panic!("{mesh} {layout}: {found:?}"));
    (done.spmd, done.plan)
}

/// A training step, compiled, and what it gives on one device.
pub(super) fn planned_from(name: &'static str, text: &str, mesh: &str, layout: &str) -> Planned {
    program_from(|p| training_step(p).unwrap(), name, text, (mesh, layout))
}

/// All outputs of a model, compiled, and what they are on one device.
pub(super) fn predicted_from(name: &'static str, text: &str, mesh: &str, layout: &str) -> Planned {
    let of = |p: &Program| {
        let names: Vec<String> = p.outputs.iter().map(|o| o.name.clone()).collect();
        prediction(p, &names).0.unwrap().step
    };
    program_from(of, name, text, (mesh, layout))
}

fn program_from(of: StepOf, name: &'static str, text: &str, (mesh, layout): (&str, &str)) -> Planned {
    let alone = run(&compiled(of, text, "", "").1, &Conduct::default()).unwrap().swap_remove(0);
    let (mut spmd, plan) = compiled(of, text, mesh, layout);
    // They are no part of the program, and large.
    spmd.decisions.clear();
    Planned { name, spmd, plan, alone }
}

/// All of them, compiled.
pub(crate) fn planned() -> Vec<Planned> {
    SUBJECTS.iter().map(|(name, text, mesh, layout)| planned_from(name, text, mesh, layout)).collect()
}
