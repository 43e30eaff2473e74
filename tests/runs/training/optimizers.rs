//! Optimizers against references written plainly in f64, on whole and on split parameters; and whole trainings with them.
//!
//! The loss is linear in the parameters, so the gradients are means of the inputs: what is tested is the update alone.

use crate::layouts::agree::agrees;
use crate::support::{Numbers, SMALL, SMALL_DIMS, apart, folder, options, tensors, trained};
use meshwright_core::training_step;
use meshwright_exec::{Cluster, ClusterOptions, HostData, HostTensor, LocalInput, Provider};
use meshwright_plan::{Arithmetic, DType};
use meshwright_sorted::SortedMap;
use meshwright_train::{Project, ProjectOptions, TrainOptions, train};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const BATCH: usize = 6;
const STEPS: usize = 20;

/// Parameters with the names and sizes of their dims. `k` has two equal dims, in the other order than they are declared in;
/// `one` starts at 0.
const PARAMS: &[(&str, &[(&str, usize)])] = &[
    ("w", &[("a", 3), ("b", 7), ("c", 5)]),
    ("v", &[("c", 5), ("b", 7)]),
    ("k", &[("e", 5), ("c", 5)]),
    ("thin", &[("a", 3), ("b", 7)]),
    ("one", &[("b", 7)]),
    ("number", &[]),
];

fn model(train: &str) -> String {
    let mut out = format!("dim batch = {BATCH}, a = 3, b = 7, c = 5, e = 5\nmodel m {{\n");
    let mut terms = Vec::new();
    for (name, dims) in PARAMS {
        let dims: Vec<&str> = dims.iter().map(|d| d.0).collect();
        let all = [&["batch"], &dims[..]].concat().join(", ");
        let dims = dims.join(", ");
        out += &format!("input of_{name}[{all}]: float\nparam {name}[{dims}] = 0\n");
        terms.push(format!("sum[{all}](of_{name} * {name}) / size(batch)"));
    }
    out + &format!("loss l = {}\n}}\ntrain m {{ minimize l {train} }}\n", terms.join(" + "))
}

/// Numbers in -1 to 1.
fn draw(numbers: &mut Numbers, n: usize) -> Vec<f64> {
    (0..n).map(|_| numbers.below(2001) as f64 / 1000.0 - 1.0).collect()
}

fn first_values(name: &str, n: usize) -> Vec<f64> {
    if name == "one" { vec![0.0; n] } else { draw(&mut Numbers(name.len() as u64 + 40), n) }
}

/// The input that gives a parameter its gradient. Some steps have gradients ten times as large, so that updates are clipped.
fn input(name: &str, step: usize, n: usize) -> Vec<f64> {
    let scale = if step % 6 == 4 { 10.0 } else { 1.0 };
    let seed = step as u64 * 1000 + name.bytes().map(u64::from).sum::<u64>();
    draw(&mut Numbers(seed), BATCH * n).into_iter().map(|x| x * scale).collect()
}

/// Everything after all steps under a layout: parameters by name, moments as `NAME/which`.
fn run(train: &str, mesh: &str, layout: &str) -> SortedMap<String, Vec<f64>> {
    run_in(DType::F64, Scales::default(), train, mesh, layout)
}

/// How much larger gradients are, and parameters.
#[derive(Clone, Copy, Debug)]
struct Scales {
    gradients: f64,
    parameters: f64,
}

impl Default for Scales {
    fn default() -> Self {
        Scales { gradients: 1.0, parameters: 1.0 }
    }
}

/// The same in some arithmetic.
fn run_in(
    float: DType,
    scales: Scales,
    train: &str,
    mesh: &str,
    layout: &str,
) -> SortedMap<String, Vec<f64>> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.mw");
    std::fs::write(&file, model(train)).unwrap();
    let o = options(&file.display().to_string(), mesh, layout, &[]);
    let loaded = Project::load(&ProjectOptions { precision: Some(float.into()), ..o });
    let project = loaded.project.unwrap_or_else(|| panic!("{train}: {:?}", loaded.diagnostics));
    let step = training_step(&project.program).unwrap();
    let plan = project.compile(&step, &loaded.sources).0.unwrap().plan;
    let mut cluster =
        Cluster::threads(&project.layout.mesh, &ClusterOptions::on(meshwright_cpu::device())).unwrap();
    let id = cluster.load(Arc::new(plan)).unwrap();
    cluster.init_state(id, 1).unwrap();
    for (name, dims) in PARAMS {
        let shape: Vec<usize> = dims.iter().map(|d| d.1).collect();
        let mut values = first_values(name, shape.iter().product());
        values.iter_mut().for_each(|x| *x *= scales.parameters);
        let values = HostData::from_f64(float, values);
        cluster.set_state(name, &HostTensor::new(shape, values).unwrap()).unwrap();
    }
    for t in 1..=STEPS {
        let whole: SortedMap<String, HostTensor> = PARAMS
            .iter()
            .map(|(name, dims)| {
                let mut shape: Vec<usize> = vec![BATCH];
                shape.extend(dims.iter().map(|d| d.1));
                let n = shape[1..].iter().product();
                let values = input(name, t, n).iter().map(|x| x * scales.gradients).collect();
                let tensor = HostTensor::new(shape, HostData::from_f64(float, values)).unwrap();
                (format!("of_{name}"), tensor)
            })
            .collect();
        let provider: Provider = Arc::new(move |_, leaves: &[LocalInput]| {
            Ok(leaves.iter().map(|l| whole[&l.name].slice(&l.ranges).unwrap()).collect())
        });
        cluster.run(id, t as u64, &provider).unwrap();
    }
    let names: Vec<String> = cluster.states().map(|s| s.name.clone()).collect();
    let out = names.into_iter().map(|n| (n.clone(), cluster.state(&n).unwrap().data.to_f64())).collect();
    cluster.shutdown();
    out
}

/// One parameter of a reference, row-major, with its moments by name.
pub(crate) struct Param {
    pub(crate) name: &'static str,
    shape: Vec<usize>,
    /// Which dims are the two largest; of equal ones the one declared first in the file comes first.
    two: Option<(usize, usize)>,
    pub(crate) x: Vec<f64>,
    pub(crate) moments: SortedMap<&'static str, Vec<f64>>,
}

impl Param {
    pub(crate) fn moment(&self, which: &str, n: usize) -> Vec<f64> {
        self.moments.get(which).cloned().unwrap_or_else(|| vec![0.0; n])
    }
}

/// All steps by a reference: `update(param, gradient, step)`.
fn reference(scale: f64, update: &dyn Fn(&mut Param, &[f64], f64)) -> SortedMap<String, Vec<f64>> {
    let mut out = SortedMap::new();
    for (name, dims) in PARAMS {
        let shape: Vec<usize> = dims.iter().map(|d| d.1).collect();
        let n: usize = shape.iter().product();
        let two = match *name {
            "w" => Some((1, 2)),
            "v" => Some((1, 0)),
            "k" => Some((1, 0)),
            "thin" => Some((1, 0)),
            _ => None,
        };
        let mut p = Param { name, shape, two, x: first_values(name, n), moments: SortedMap::new() };
        for t in 1..=STEPS {
            let all = input(name, t, n);
            let g: Vec<f64> = (0..n)
                .map(|i| (0..BATCH).map(|b| all[b * n + i]).sum::<f64>() * scale / BATCH as f64)
                .collect();
            update(&mut p, &g, t as f64);
        }
        out.insert(name.to_string(), p.x);
        out.extend(p.moments.into_iter().map(|(which, m)| (format!("{name}/{which}"), m)));
    }
    out
}

pub(crate) fn zip(a: &[f64], b: &[f64], f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    a.iter().zip(b).map(|(x, y)| f(*x, *y)).collect()
}

fn sum_of_squares(x: &[f64]) -> f64 {
    x.iter().map(|v| v * v).sum()
}

fn rms(x: &[f64]) -> f64 {
    (sum_of_squares(x) / x.len() as f64).sqrt()
}

/// The position in a tensor without the dim `dim` of the element that `i` is in a tensor of this shape.
fn without(shape: &[usize], dim: usize, i: usize) -> usize {
    let (mut rest, mut out, mut stride) = (i, 0, 1);
    for d in (0..shape.len()).rev() {
        let at = rest % shape[d];
        rest /= shape[d];
        if d != dim {
            out += at * stride;
            stride *= shape[d];
        }
    }
    out
}

fn mean_over(x: &[f64], shape: &[usize], dim: usize) -> Vec<f64> {
    let mut out = vec![0.0; x.len() / shape[dim]];
    for (i, v) in x.iter().enumerate() {
        out[without(shape, dim, i)] += v / shape[dim] as f64;
    }
    out
}

struct Adafactor {
    lr: fn(f64) -> f64,
    min_factored: usize,
    clip: Option<f64>,
    scale: bool,
    beta1: f64,
    decay: f64,
    weight_decay: f64,
}

const PLAIN: Adafactor = Adafactor {
    lr: |_| 1e-2,
    min_factored: 5,
    clip: Some(1.0),
    scale: true,
    beta1: 0.0,
    decay: 0.8,
    weight_decay: 0.0,
};

fn adafactor(o: Adafactor) -> impl Fn(&mut Param, &[f64], f64) {
    move |p, g, t| {
        let n = p.x.len();
        let beta2 = 1.0 - t.powf(-o.decay);
        let mix = |old: &[f64], new: &[f64]| zip(old, new, |a, b| beta2 * a + (1.0 - beta2) * b);
        let square: Vec<f64> = g.iter().map(|x| x * x + 1e-30).collect();
        let two = p.two.filter(|t| p.shape[t.1] >= o.min_factored);
        let v: Vec<f64> = match two {
            None => {
                let v = mix(&p.moment("v", n), &square);
                p.moments.insert("v", v.clone());
                v
            }
            Some((large, small)) => {
                let rows = mean_over(&square, &p.shape, large);
                let rows = mix(&p.moment("vr", rows.len()), &rows);
                let columns = mean_over(&square, &p.shape, small);
                let columns = mix(&p.moment("vc", columns.len()), &columns);
                // The small dim in the shape without the large one.
                let mut shape = p.shape.clone();
                shape.remove(large);
                let small_of_rows = if small > large { small - 1 } else { small };
                let means = mean_over(&rows, &shape, small_of_rows);
                let v = (0..n)
                    .map(|i| {
                        let row = without(&p.shape, large, i);
                        rows[row] * columns[without(&p.shape, small, i)]
                            / means[without(&shape, small_of_rows, row)]
                    })
                    .collect();
                p.moments.insert("vr", rows);
                p.moments.insert("vc", columns);
                v
            }
        };
        let mut u = zip(g, &v, |g, v| g / v.sqrt());
        if let Some(d) = o.clip {
            let over = (rms(&u) / d).max(1.0);
            u.iter_mut().for_each(|x| *x /= over);
        }
        let rate = (o.lr)(t);
        let scale = if o.scale { rms(&p.x).max(1e-3) } else { 1.0 };
        let mut step: Vec<f64> = u.iter().map(|x| x * rate * scale).collect();
        if o.beta1 > 0.0 {
            step = zip(&p.moment("m", n), &step, |m, s| o.beta1 * m + (1.0 - o.beta1) * s);
            p.moments.insert("m", step.clone());
        }
        let decay = if p.name == "one" { 0.0 } else { o.weight_decay };
        p.x = zip(&p.x, &step, |x, s| x - s - rate * decay * x);
    }
}

/// Bias-corrected Adam moments; the direction without decay.
pub(crate) fn adam(p: &mut Param, g: &[f64], t: f64, eps: f64) -> Vec<f64> {
    let (beta1, beta2) = (0.8, 0.95);
    let m = zip(&p.moment("m", g.len()), g, |m, g| beta1 * m + (1.0 - beta1) * g);
    let v = zip(&p.moment("v", g.len()), g, |v, g| beta2 * v + (1.0 - beta2) * g * g);
    let out = zip(&m, &v, |m, v| (m / (1.0 - beta1.powf(t))) / ((v / (1.0 - beta2.powf(t))).sqrt() + eps));
    p.moments.insert("m", m);
    p.moments.insert("v", v);
    out
}

/// Mesh and layout: whole parameters; split ones, evenly and not; moments, gradients and parameters split.
const LAYOUTS: &[(&str, &str)] = &[
    ("", ""),
    ("d=2", "batch -> d"),
    ("d=3", "b -> d"),
    ("d=2,m=2", "batch -> d; c -> m"),
    ("d=2,m=2", "c -> d, m"),
    ("d=2,m=2", "b -> d; c -> m"),
    ("data=4", "zero1"),
    ("data=3", "zero2"),
    ("data=4", "zero3"),
    ("d=2,m=2", "batch -> d; a -> m; moments: * -> d; params: c -> d"),
];

/// Parameters and moments after 20 steps are those of the reference, under every layout.
pub(crate) fn as_the_reference(train: &str, update: &dyn Fn(&mut Param, &[f64], f64)) {
    let want = reference(1.0, update);
    for (mesh, layout) in LAYOUTS {
        let got = run(train, mesh, layout);
        let names = |m: &SortedMap<String, Vec<f64>>| m.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&got), names(&want), "{train}");
        for (name, want) in &want {
            let off = apart(want, &got[name]);
            assert!(off <= 1e-12, "{train} on {mesh} with `{layout}`: {name} is {off:e} apart");
        }
    }
}

#[test]
fn sgd_is_as_its_reference() {
    as_the_reference(
        "optimizer sgd(lr = 0.1, momentum = 0.9, nesterov = true, weight_decay = 0.1)",
        &|p, g, _| {
            let g = zip(g, &p.x, |g, x| g + 0.1 * x);
            let m = zip(&p.moment("m", g.len()), &g, |m, g| 0.9 * m + g);
            let step = zip(&g, &m, |g, m| g + 0.9 * m);
            p.x = zip(&p.x, &step, |x, s| x - 0.1 * s);
            p.moments.insert("m", m);
        },
    );
}

#[test]
fn adam_is_as_its_reference() {
    let line =
        "optimizer adam(lr = 0.1 / (1 + step), beta1 = 0.8, beta2 = 0.95, eps = 1e-3, weight_decay = 0.1)";
    as_the_reference(line, &|p, g, t| {
        let g = zip(g, &p.x, |g, x| g + 0.1 * x);
        let step = adam(p, &g, t, 1e-3);
        p.x = zip(&p.x, &step, |x, s| x - 0.1 / (1.0 + t) * s);
    });
    let line = "optimizer adamw(lr = 0.1, beta1 = 0.8, beta2 = 0.95) weight_decay 0.1 except one";
    as_the_reference(line, &|p, g, t| {
        let step = adam(p, g, t, 1e-8);
        let decay = if p.name == "one" { 0.0 } else { 0.1 };
        p.x = zip(&p.x, &step, |x, s| x - 0.1 * (s + decay * x));
    });
}

#[test]
fn adafactor_is_as_its_reference() {
    as_the_reference("optimizer adafactor(lr = 1e-2, min_factored = 5)", &adafactor(PLAIN));
    let falling = Adafactor { lr: |t| 0.4f64.min(1.0 / t.sqrt()), ..PLAIN };
    let line = "optimizer adafactor(lr = 0.4, relative_step = true, min_factored = 5)";
    as_the_reference(line, &adafactor(falling));
    let all = Adafactor {
        lr: |t| 0.5 / (1.0 + t),
        min_factored: 3,
        clip: Some(0.7),
        beta1: 0.9,
        decay: 0.5,
        weight_decay: 0.1,
        ..PLAIN
    };
    let line = "optimizer adafactor(lr = 0.5 / (1 + step), min_factored = 3, clip = 0.7, beta1 = 0.9, decay = 0.5) weight_decay 0.1 except one";
    as_the_reference(line, &adafactor(all));
}

#[test]
fn adafactor_without_its_parts_is_as_its_reference() {
    let bare = Adafactor { min_factored: usize::MAX, clip: None, scale: false, ..PLAIN };
    let line = "optimizer adafactor(lr = 1e-2, factored = false, clip = false, scale_parameter = false)";
    as_the_reference(line, &adafactor(bare));
    // As the paper has it: no setting at all. No dim here is large enough to be factored.
    let paper = Adafactor { lr: |t| 1e-2f64.min(1.0 / t.sqrt()), min_factored: 128, ..PLAIN };
    as_the_reference("optimizer adafactor", &adafactor(paper));
}

#[test]
fn adafactor_bears_tiny_gradients_in_f32() {
    let line = "optimizer adafactor(lr = 1e-2, min_factored = 5)";
    for scale in [0.0, 1e-25, 1e-17, 1e-8] {
        let want = reference(scale, &adafactor(PLAIN));
        let scales = Scales { gradients: scale, ..Scales::default() };
        let got = run_in(DType::F32, scales, line, "", "");
        for (name, want) in &want {
            let off = apart(want, &got[name]);
            assert!(off <= 1e-5, "gradients of {scale}: {name} is {off:e} apart");
        }
    }
}

#[test]
fn lion_is_as_its_reference() {
    let line = "optimizer lion(lr = 0.01, beta1 = 0.8) weight_decay 0.1 except one";
    as_the_reference(line, &|p, g, _| {
        let m = p.moment("m", g.len());
        let step = zip(&m, g, |m, g| (0.8 * m + (1.0 - 0.8) * g).signum());
        let decay = if p.name == "one" { 0.0 } else { 0.1 };
        p.x = zip(&p.x, &step, |x, s| x - 0.01 * (s + decay * x));
        p.moments.insert("m", zip(&m, g, |m, g| 0.99 * m + (1.0 - 0.99) * g));
    });
}

#[test]
fn lamb_is_as_its_reference() {
    let line = "optimizer lamb(lr = 0.05, beta1 = 0.8, beta2 = 0.95, eps = 1e-5) weight_decay 0.1 except one";
    as_the_reference(line, &|p, g, t| {
        let step = adam(p, g, t, 1e-5);
        let decay = if p.name == "one" { 0.0 } else { 0.1 };
        let step = zip(&step, &p.x, |s, x| s + decay * x);
        let (size, length) = (sum_of_squares(&p.x).sqrt(), sum_of_squares(&step).sqrt());
        let ratio = if size > 0.0 && length > 0.0 { size / length } else { 1.0 };
        p.x = zip(&p.x, &step, |x, s| x - 0.05 * ratio * s);
    });
}

/// The shipped network with another optimizer.
fn small_mlp(folder: &std::path::Path, optimizer: &str, mesh: &str, layout: &str) -> ProjectOptions {
    let shipped = include_str!("../../../models/mlp.mw");
    assert!(shipped.contains("optimizer sgd(lr = lr)"));
    let file = folder.join("mlp.mw");
    std::fs::write(&file, shipped.replace("optimizer sgd(lr = lr)", optimizer)).unwrap();
    let dims = [SMALL_DIMS, &[("hidden", 11)]].concat();
    let o = options(&file.display().to_string(), mesh, layout, &dims);
    ProjectOptions { precision: Some(Arithmetic::F64), ..o }
}

const ADAFACTOR: &str = "optimizer adafactor(lr = 0.05, min_factored = 4, beta1 = 0.5)";

#[test]
fn networks_train_the_same_on_every_mesh() {
    let dir = folder(SMALL);
    let lines = [ADAFACTOR, "optimizer lion(lr = 1e-3)", "optimizer lamb(lr = 0.02)"];
    for (i, line) in lines.into_iter().enumerate() {
        let one = trained(&small_mlp(dir.path(), line, "", ""), dir.path(), &format!("one-{i}"), 100);
        assert!(one.losses[99] < 0.9 * one.losses[0], "{line}: {} to {}", one.losses[0], one.losses[99]);
        for (k, (mesh, layout)) in [
            ("all=4", "batch -> all"),
            ("all=4", "hidden -> all"),
            ("r=2,c=2", "batch -> r; hidden -> c"),
            ("a=3", "rows -> a"),
            ("data=4", "zero1"),
            ("data=4", "zero2"),
            ("data=3", "zero3"),
        ]
        .into_iter()
        .enumerate()
        {
            let o = small_mlp(dir.path(), line, mesh, layout);
            let other = trained(&o, dir.path(), &format!("{i}-{k}"), 100);
            agrees(&one, &other, &format!("{line} on {mesh} with `{layout}`"));
        }
    }
}

#[test]
fn factored_moments_are_saved_and_go_on_under_another_layout() {
    let dir = folder(SMALL);
    let straight = trained(&small_mlp(dir.path(), ADAFACTOR, "", ""), dir.path(), "straight", 60);
    let moments: Vec<&str> =
        straight.tensors.keys().map(String::as_str).filter(|n| n.contains('/')).collect();
    assert_eq!(
        moments,
        [
            "h.b/m",
            "h.b/v",
            "h.w/m",
            "h.w/vc",
            "h.w/vr",
            "logits.b/m",
            "logits.b/v",
            "logits.w/m",
            "logits.w/vc",
            "logits.w/vr"
        ]
    );
    trained(&small_mlp(dir.path(), ADAFACTOR, "data=4", "zero1"), dir.path(), "moved", 30);
    let loaded = Project::load(&small_mlp(dir.path(), ADAFACTOR, "r=2,c=2", "hidden -> c; params: * -> r"));
    let o = TrainOptions {
        data: Some(dir.path().join("data").display().to_string()),
        steps: Some(60),
        seed: Some(3),
        run: Some(dir.path().join("moved")),
        resume: true,
        ..TrainOptions::default()
    };
    let result = train(&loaded.project.unwrap(), &loaded.sources, &o, &AtomicBool::new(false), &mut |_| {});
    assert!(result.is_ok());
    for (name, tensor) in tensors(&dir.path().join("moved")) {
        let values = tensor.to_f64().unwrap();
        let off = apart(&straight.values(&name), &values);
        assert!(off <= 1e-9, "{name} is {off:e} apart");
    }
}

/// Squares of what fits in a dtype, and sums of them, may not: norms of it do.
#[test]
fn norms_of_what_fits_are_right_under_every_layout() {
    const LAYOUTS: [(&str, &str); 4] = [
        ("", ""),
        ("d=2", "batch -> d; grads: * -> d; moments: * -> d"),
        ("d=3", "batch -> d; params: * -> d"),
        ("x=2,y=2", "b -> x; c -> y"),
    ];
    let clipped = "optimizer sgd(lr = 0.1) clip global_norm = 1.0";
    let lamb = "optimizer lamb(lr = 0.01, weight_decay = 0.1)";
    let adafactor =
        "optimizer adafactor(lr = 0.01, relative_step = false, scale_parameter = true, min_factored = 3)";
    // The update of a clipped gradient does not depend on how large the gradient is; that of both others is relative to the
    // parameter.
    let cases = [
        (clipped, DType::F32, [1e30, 1.0], [1e6, 1.0]),
        (clipped, DType::F32, [1e38, 1.0], [1e6, 1.0]),
        (clipped, DType::F64, [1e300, 1.0], [1e6, 1.0]),
        (lamb, DType::F32, [1.0, 1e30], [1.0, 1e30]),
        (lamb, DType::F64, [1.0, 1e200], [1.0, 1e150]),
        (adafactor, DType::F32, [1.0, 1e25], [1.0, 1e25]),
        (adafactor, DType::F64, [1.0, 1e200], [1.0, 1e150]),
    ];
    for (train, float, large, smaller) in cases {
        let of = |[gradients, parameters]: [f64; 2]| Scales { gradients, parameters };
        let want = run_in(DType::F64, of(smaller), train, "", "");
        for (mesh, layout) in LAYOUTS {
            let got = run_in(float, of(large), train, mesh, layout);
            // What starts at 0 is no larger with the others.
            let relative = large[1] != smaller[1];
            for (name, _) in PARAMS.iter().filter(|(name, _)| !(relative && *name == "one")) {
                let want: Vec<f64> = want[*name].iter().map(|x| x / smaller[1]).collect();
                let got: Vec<f64> = got[*name].iter().map(|x| x / large[1]).collect();
                let off = apart(&want, &got);
                assert!(off <= 1e-4, "{train} in {float}, {large:?}, {mesh}: {name} is {off:e} apart");
            }
        }
    }
}
