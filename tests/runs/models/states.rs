//! What is drawn in each step, and what is kept from step to step: noise, dropout and batch norm under many layouts, through
//! checkpoints, in evaluation.

use crate::support::{SMALL, Trained, apart, folder, options, tensors, told};
use meshwright_plan::DType;
use meshwright_plan::random::{Distribution, Key, draw, draw_f32};
use meshwright_runs::metrics::{Evaluation, Event};
use meshwright_train::{
    EvalOptions, PredictOptions, Progress, Project, ProjectOptions, TrainOptions, evaluate, predict, train,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

const MODEL: &str = "
dim batch = 12, rows = 5, cols = 4, hidden = 11, classes = 10
const rate = 0.3, noise = 0.1

// The bias of what is normalized has no gradient but rounding.
layer linear(x, in, out) {
    param w[in, out] = he_normal(in)
    return sum[in](x * w)
}

layer dense(x, in, out) {
    param w[in, out] = glorot_uniform(in, out)
    param b[out]     = 0
    return sum[in](x * w) + b
}

layer batch_norm(x, channels, over, momentum = 0.9, eps = 1e-5) {
    param scale[channels]    = 1
    param shift[channels]    = 0
    state average[channels]  = 0
    state variance[channels] = 1
    let m = mean[over](x)
    let v = mean[over]((x - m) ** 2)
    average  = momentum * average + (1 - momentum) * m
    variance = momentum * variance + (1 - momentum) * v
    let center = where(training, m, average)
    let width  = where(training, v, variance)
    return (x - center) * rsqrt(width + eps) * scale + shift
}

model m {
    input image[batch, rows, cols]: u8
    input label[batch]: i32 in classes
    state last[rows, batch]  = 0
    state normal[cols, rows] = 0
    state steps[]            = 0
    steps = steps + 1
    last  = random_uniform[rows, batch](-1, 2)
    let drawn = random_normal[rows, cols](0.5, 2)
    normal = drawn

    let x      = dropout(cast(image, float) / 255, rate, shared = [cols]) + noise * drawn * random_uniform(0, 1)
    // Bent, or the next norm would undo the shift.
    let flat   = tanh(batch_norm(x, [cols], [batch, rows]) as pixels)
    let h      = dropout(relu(batch_norm(linear(flat, [rows, cols], [hidden]), [hidden], [batch])), rate)
    let logits = dense(h, hidden, classes)
    loss   xent     = mean[batch](cross_entropy[classes](logits, label))
    metric accuracy = mean[batch](argmax[classes](logits) == label)
    // Read in evaluations alone.
    param probe[classes] = uniform(0.5, 1)
    state still[classes] = 0.5
    metric probed   = mean[batch](sum[classes](softmax[classes](logits) * probe * still))
    output score    = logits
    output noise    = random_normal[rows, batch, cols](0, 1)
}
train m {
    minimize xent
    optimizer sgd(lr = 0.1, momentum = 0.9)
    freeze probe
}
";

/// Mesh and layout.
const LAYOUTS: &[(&str, &str)] = &[
    ("all=4", "batch -> all"),
    ("a=3", "hidden -> a; params: cols -> a when free"),
    ("r=2,c=2", "batch -> r; hidden -> c"),
    ("x=2,y=3", "batch -> y, x"),
    ("x=3,y=2", "rows -> x; cols -> y"),
    ("data=4", "zero3"),
    ("a=7", "cols -> a"),
];

struct Site {
    dir: tempfile::TempDir,
    precision: DType,
}

impl Site {
    fn new(precision: DType) -> Site {
        let dir = folder(SMALL);
        std::fs::write(dir.path().join("m.mw"), MODEL).unwrap();
        Site { dir, precision }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn project(&self, mesh: &str, layout: &str, sets: &[(&str, f64)]) -> (Project, meshwright_diag::Sources) {
        let o = ProjectOptions {
            precision: Some(self.precision.into()),
            sets: sets.iter().map(|(n, v)| (n.to_string(), *v)).collect(),
            ..options(&self.at("m.mw").display().to_string(), mesh, layout, &[])
        };
        let loaded = Project::load(&o);
        let found = loaded.diagnostics;
        (loaded.project.unwrap_or_else(|| panic!("{mesh}: {found:?}")), loaded.sources)
    }

    /// Trains up to a step, on from where the run's folder stands.
    fn train(&self, mesh: &str, layout: &str, run: &str, steps: u64) -> Trained {
        let (project, sources) = self.project(mesh, layout, &[]);
        let run = self.at(run);
        let o = TrainOptions {
            data: Some(self.at("data").display().to_string()),
            steps: Some(steps),
            seed: Some(3),
            resume: run.exists(),
            run: Some(run.clone()),
            ..TrainOptions::default()
        };
        let mut losses = Vec::new();
        let done = train(&project, &sources, &o, &AtomicBool::new(false), &mut |p| {
            if let Progress::Event { event: Event::Step(s), .. } = p {
                losses.push(s.loss);
            }
        });
        assert_eq!(done.unwrap_or_else(|e| panic!("{mesh}: {}", told(&e))).steps, steps);
        Trained { losses, gradient_norm: None, tensors: tensors(&run) }
    }

    fn eval_options(&self, run: &str) -> EvalOptions {
        EvalOptions {
            data: Some(self.at("data").display().to_string()),
            split: "test".into(),
            checkpoint: self.at(run),
            ..EvalOptions::default()
        }
    }

    fn eval(&self, mesh: &str, layout: &str, run: &str, sets: &[(&str, f64)]) -> Evaluation {
        let (project, sources) = self.project(mesh, layout, sets);
        let e = evaluate(&project, &sources, &self.eval_options(run), &mut |_, _| {});
        e.unwrap_or_else(|e| panic!("{mesh}: {}", told(&e))).evaluation
    }

    fn predict(&self, mesh: &str, layout: &str, run: &str) -> Vec<(String, Vec<f64>)> {
        let (project, sources) = self.project(mesh, layout, &[]);
        let o = PredictOptions { eval: self.eval_options(run), ..PredictOptions::default() };
        let out = predict(&project, &sources, &o, &mut |_, _| {});
        let out = out.unwrap_or_else(|e| panic!("{mesh}: {}", told(&e)));
        out.outputs.into_iter().map(|o| (o.name, o.tensor.data.to_f64())).collect()
    }
}

/// All losses within 1e-12, all that is kept within 1e-9.
fn agrees(one: &Trained, other: &Trained, name: &str) {
    assert_eq!(one.losses.len(), other.losses.len(), "{name}");
    for (step, (a, b)) in one.losses.iter().zip(&other.losses).enumerate() {
        assert!((a - b).abs() <= 1e-12 * a.abs(), "{name}: step {}: {a} and {b}", step + 1);
    }
    assert_eq!(one.tensors.keys().collect::<Vec<_>>(), other.tensors.keys().collect::<Vec<_>>(), "{name}");
    for path in one.tensors.keys() {
        let off = apart(&one.values(path), &other.values(path));
        assert!(off <= 1e-9, "{name}: {path} is {off:e} apart");
    }
}

fn close(a: &Evaluation, b: &Evaluation, name: &str) {
    assert!((a.loss - b.loss).abs() <= 1e-11 * a.loss.abs(), "{name}: {a:?} and {b:?}");
    for ((metric, a), (_, b)) in a.metrics.iter().zip(&b.metrics) {
        assert!((a - b).abs() <= 1e-11 * a.abs(), "{name}: {metric}: {a} and {b}");
    }
    assert_eq!(a.metrics.len(), b.metrics.len(), "{name}");
}

#[test]
fn dropout_and_batch_norm_are_the_same_under_every_layout_and_through_checkpoints() {
    let site = Site::new(DType::F64);
    let one = site.train("", "", "one", 60);
    assert!(one.losses[59] < 0.9 * one.losses[0], "the loss does not go down: {:?}", one.losses);
    let measured = site.eval("", "", "one", &[]);
    let states: Vec<&String> =
        one.tensors.keys().filter(|k| k.contains("average") || k.contains("variance")).collect();
    assert_eq!(states.len(), 4, "{:?}", one.tensors.keys().collect::<Vec<_>>());
    assert!(
        !one.tensors.keys().any(|k| k.contains("average/") || k.contains("steps/")),
        "states have no moments"
    );
    assert_eq!(one.values("steps"), [60.0]);
    assert_eq!(one.values("still"), [0.5; 10]);
    assert!(one.tensors.contains_key("probe"), "what is frozen is kept");
    assert!(measured.metrics[1].1 > 0.25 && measured.metrics[1].1 < 0.5, "{measured:?}");
    // The variance of what is divided by its spread was 1 at first; the averages have moved.
    for name in states {
        assert!(one.values(name).iter().all(|v| *v != 0.0 && *v != 1.0), "{name}");
    }
    for (k, (mesh, layout)) in LAYOUTS.iter().enumerate() {
        let run = format!("layout-{k}");
        let other = site.train(mesh, layout, &run, 60);
        agrees(&one, &other, mesh);
        close(&measured, &site.eval(mesh, layout, &run, &[]), mesh);
        close(&measured, &site.eval("", "", &run, &[]), mesh);
        // What was drawn is equal to the last bit.
        for name in ["last", "normal"] {
            assert_eq!(one.values(name), other.values(name), "{mesh}: {name}");
        }
    }
    // A run that stops in the middle of an epoch and goes on, on the same layout and on another.
    let (mesh, layout) = LAYOUTS[2];
    let straight = site.train(mesh, layout, "straight", 60);
    let mut resumed = site.train(mesh, layout, "resumed", 31);
    let rest = site.train(mesh, layout, "resumed", 60);
    resumed.losses.extend(rest.losses);
    resumed.tensors = rest.tensors;
    assert_eq!(resumed.losses, straight.losses);
    assert_eq!(resumed.tensors, straight.tensors);
    let mut moved = site.train("", "", "moved", 31);
    let rest = site.train("x=3,y=2", "rows -> x; cols -> y", "moved", 60);
    moved.losses.extend(rest.losses);
    moved.tensors = rest.tensors;
    agrees(&one, &moved, "moved");
}

#[test]
fn evaluation_drops_nothing_and_changes_nothing() {
    let site = Site::new(DType::F32);
    site.train("", "", "one", 30);
    let before = tensors(&site.at("one"));
    let with = site.eval("", "", "one", &[]);
    assert_eq!(with, site.eval("", "", "one", &[]), "an evaluation is reproducible");
    assert_eq!(with, site.eval("", "", "one", &[("rate", 0.0)]), "dropout is in training alone");
    assert_ne!(
        with.loss,
        site.eval("", "", "one", &[("noise", 0.0)]).loss,
        "other noise is drawn in evaluations too"
    );
    assert_eq!(before, tensors(&site.at("one")));
    // The averages, not the batch: predictions of an example do not depend on the others.
    let all = site.predict("", "", "one");
    let (project, sources) = site.project("", "", &[]);
    let few = PredictOptions { eval: site.eval_options("one"), limit: Some(5), ..PredictOptions::default() };
    let few = predict(&project, &sources, &few, &mut |_, _| {}).unwrap_or_else(|e| panic!("{}", told(&e)));
    let score = few.outputs[0].tensor.data.to_f64();
    assert_eq!(score.len(), 50);
    assert!(apart(&score, &all[0].1[..50]) < 1e-6);
}

/// The bits are a promise: streams by source path, the seed of the run, the number of the step, the position in the whole.
#[test]
fn what_a_step_draws_is_told_by_seed_stream_step_and_position() {
    for precision in [DType::F32, DType::F64] {
        let site = Site::new(precision);
        let expected = |d: Distribution, stream: &str, n: u64| -> Vec<f64> {
            let key = Key::of_step(3, stream, 4);
            let of =
                |i| if precision == DType::F32 { f64::from(draw_f32(&d, key, i)) } else { draw(&d, key, i) };
            (0..n).map(of).collect()
        };
        for (k, (mesh, layout)) in [("", "")].iter().chain(LAYOUTS).enumerate() {
            let done = site.train(mesh, layout, &format!("{k}"), 4);
            let uniform = expected(Distribution::Uniform { low: -1.0, high: 2.0 }, "last/random_uniform", 60);
            assert_eq!(done.values("last"), uniform, "{mesh}");
            let normal = expected(Distribution::Normal { mean: 0.5, std: 2.0 }, "drawn/random_normal", 20);
            // The state has the dims in another order.
            let turned: Vec<f64> = (0..20).map(|i| normal[i % 5 * 4 + i / 5]).collect();
            assert_eq!(done.values("normal"), turned, "{mesh}");
        }
        let noise = |mesh, layout| site.predict(mesh, layout, "0").remove(1).1;
        let one = noise("", "");
        assert_eq!(one.len(), 50 * 5 * 4);
        for (mesh, layout) in LAYOUTS {
            assert_eq!(one, noise(mesh, layout), "{mesh}");
        }
    }
}

#[test]
fn a_resumed_run_keeps_its_seed() {
    let site = Site::new(DType::F64);
    let whole = site.train("", "", "whole", 6);
    site.train("", "", "parts", 3);
    let parts = site.train("", "", "parts", 6);
    assert_eq!(whole.tensors, parts.tensors);
    assert!(Path::new(&site.at("parts")).exists());
}
