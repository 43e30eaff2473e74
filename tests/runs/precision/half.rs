//! Every layer of the standard library, every model that ships, and loops as users write them, trained in `bf16` and `f16`:
//! beside `f32`, with the same weights and data.

use crate::models::standard_library::{given, norm, step};
use crate::support::{Numbers, options, root};
use meshwright_core::training_step;
use meshwright_exec::{Cluster, ClusterOptions, HostData, HostTensor, LocalInput, Provider};
use meshwright_plan::DType;
use meshwright_runs::catalog::MODELS;
use meshwright_sorted::SortedMap;
use meshwright_train::{Project, ProjectOptions};
use std::sync::Arc;

const HALVES: [DType; 2] = [DType::BF16, DType::F16];

/// How far the losses of a precision may be from those of `f32`, relative to the first.
fn tolerance(half: DType) -> f64 {
    if half == DType::BF16 { 0.05 } else { 0.01 }
}

/// Whole inputs that suit the declarations, the same in every precision.
fn data(project: &Project) -> Provider {
    let mut numbers = Numbers(5);
    let mut whole: SortedMap<String, HostTensor> = SortedMap::new();
    for (decl, ..) in &project.program.inputs {
        let dims = &project.program.graph.dims;
        let shape = dims.shape(&decl.dims);
        let below = decl.range.map_or(200, |r| dims.size(r));
        let mut value = || match decl.dtype {
            DType::Bool => 1.0,
            d if d.is_float() => numbers.below(2_000) as f64 / 1_000.0 - 1.0,
            _ => numbers.below(below) as f64,
        };
        let values = (0..shape.iter().product()).map(|_| value()).collect();
        whole.insert(
            decl.name.clone(),
            HostTensor::new(shape, HostData::from_f64(decl.dtype, values)).unwrap(),
        );
    }
    Arc::new(move |_, leaves: &[LocalInput]| {
        Ok(leaves.iter().map(|l| whole[&l.name].slice(&l.ranges).unwrap()).collect())
    })
}

/// The losses of some steps on the same batch.
fn losses(o: &ProjectOptions, precision: DType, steps: u64) -> Vec<f64> {
    let name = format!("{} in {precision} with {:?}", o.model, o.layout);
    let loaded = Project::load(&ProjectOptions { precision: Some(precision.into()), ..o.clone() });
    let project = loaded.project.unwrap_or_else(|| panic!("{name}: {:?}", loaded.diagnostics));
    let step = training_step(&project.program).unwrap();
    let (compiled, found) = project.compile(&step, &loaded.sources);
    let plan = compiled.unwrap_or_else(|| panic!("{name}: {found:?}")).plan;
    let loss = project.program.train.as_ref().unwrap().loss().name.clone();
    let mut cluster = Cluster::threads(&plan.mesh, &ClusterOptions::on(meshwright_cpu::device())).unwrap();
    let id = cluster.load(Arc::new(plan)).unwrap();
    cluster.init_state(id, 7).unwrap();
    let data = data(&project);
    let mut out = Vec::new();
    for step in 1..=steps {
        let report = cluster.run(id, step, &data).unwrap_or_else(|e| panic!("{name}: {e}"));
        out.push(report.outputs[&loss].scalar().unwrap());
    }
    cluster.shutdown();
    out
}

/// Trains in `f32` and in both half types, on one device and under the layouts.
fn trains_alike(o: &ProjectOptions, steps: u64, layouts: &[(&str, &str)]) {
    let wide = losses(o, DType::F32, steps);
    assert!(wide.iter().all(|l| l.is_finite() && *l != 0.0), "{}: {wide:?}", o.model);
    for half in HALVES {
        for (mesh, layout) in [("", "")].iter().chain(layouts) {
            let placed = options(&o.model, mesh, layout, &[]);
            let o = ProjectOptions { layout: placed.layout, mesh: placed.mesh, ..o.clone() };
            let narrow = losses(&o, half, steps);
            let off = wide.iter().zip(&narrow).map(|(a, b)| (a - b).abs() / wide[0].abs());
            let off = off.fold(0.0, f64::max);
            assert!(off < tolerance(half), "{}, {half}, {layout}: {narrow:?}, in f32 {wide:?}", o.model);
        }
    }
}

#[test]
fn every_model_that_ships_is_trained_in_half_precision() {
    for model in MODELS {
        let tiny = model.text.contains("size tiny");
        let mut dims = vec![("batch", 4)];
        dims.extend(model.text.contains("dim vocab").then_some(("vocab", 96)));
        dims.extend(model.text.contains("vocab = ").then_some(("vocab", 96)));
        dims.dedup();
        let preset = tiny.then(|| "tiny".to_string());
        let o = ProjectOptions { preset, ..options(model.name, "", "", &dims) };
        let long = std::env::var_os("LONG").is_some();
        let layouts: &[(&str, &str)] = if long { &[("data=2", "zero3"), ("data=2", "dp")] } else { &[] };
        trains_alike(&o, if long { 3 } else { 1 }, layouts);
    }
}

/// The loss is that of PyTorch, and all gradients together are, but for what is rounded.
#[test]
fn every_layer_of_the_standard_library_is_trained_in_half_precision() {
    let folder = root().join("tests/runs/pytorch");
    for (name, given) in given(&folder.join("nn.safetensors")) {
        let model = folder.join(format!("{name}.mw")).display().to_string();
        for (half, mesh, layout) in HALVES.iter().flat_map(|h| [(h, "", ""), (h, "a=2", "batch -> a")]) {
            let o = ProjectOptions { precision: Some((*half).into()), ..options(&model, mesh, layout, &[]) };
            let got = step(&o, &given);
            let (mut far, mut all) = (0.0, 0.0);
            for (what, values) in got.iter().filter(|(what, _)| what.starts_with("param/")) {
                let path = what.trim_start_matches("param/");
                let (was, want) = (&given[what].1, &given[&format!("grad/{path}")].1);
                let off = was.iter().zip(values).zip(want).map(|((p, q), g)| p - q - g);
                far += norm(off).powi(2);
                all += norm(want.iter().copied()).powi(2);
            }
            let off = [(got["loss"][0] / given["loss"].1[0] - 1.0).abs(), (far / all).sqrt()];
            let most = if *half == DType::BF16 { 0.1 } else { 0.02 };
            assert!(
                off.iter().all(|o| *o < most),
                "{name}, {half}, {layout}: the loss and gradients are {off:?} apart"
            );
        }
    }
}

/// Two values that become each other, with a product between them.
const COUPLED: &str = r"
dim batch = 4, d = 6, e = d, n = 3
model m {
    input x[batch, d]: float
    param w[d, e] = normal(0, 0.4)
    param start[d] = normal(0, 1)
    let a = x + start
    let b = max[batch](x) * 0.1 + x * 0
    repeat n {
        let t = sum[d](a * w)[e -> d]
        a = b
        b = b + t
    }
    loss l = mean[batch, d](a * a + b)
}
train m { minimize l optimizer sgd(lr = 0.1) }
";

/// Three that go round; none is computed.
const ROUND: &str = r"
dim batch = 4, d = 6, e = d, n = 4
model m {
    input x[batch, d]: float
    param w[d, e] = normal(0, 0.4)
    let a = sum[d](x * w)[e -> d]
    let b = x
    let c = softmax[d](x)
    repeat n {
        let old = a
        a = b
        b = c
        c = old
    }
    loss l = mean[batch, d](a * b + c * c)
}
train m { minimize l optimizer sgd(lr = 0.1) }
";

/// Affine coupling layers (Dinh et al. 2017): the halves of what is transformed take turns.
const COUPLING: &str = r"
dim batch = 6, d = 4, hidden = 8, layers = 3
model flow {
    input x[batch, d]: float
    input y[batch, d]: float
    let a = x
    let b = y
    let log_det = 0.0
    repeat layers {
        param w[d, hidden] = normal(0, 0.5)
        param scale[hidden, d] = normal(0, 0.2)
        param shift[hidden, d] = normal(0, 0.2)
        let h = tanh(sum[d](a * w))
        let s = tanh(sum[hidden](h * scale))
        let moved = b * exp(s) + sum[hidden](h * shift)
        log_det = log_det + sum[d](s)
        b = a
        a = moved
    }
    loss l = mean[batch](0.5 * sum[d](a * a + b * b) - log_det)
}
train flow { minimize l optimizer adam(lr = 0.01) }
";

/// Routing by agreement (Sabour et al. 2017).
const CAPSULES: &str = r"
dim batch = 3, lower = 6, in = 4, upper = 5, out = 4, rounds = 3
layer squash(s) {
    let n = sum[out](s * s)
    return s * n / (1 + n) * rsqrt(n + 1e-4)
}
model capsules {
    input u[batch, lower, in]: float
    param w[lower, in, upper, out] = normal(0, 0.5)
    let votes = sum[in](u * w)
    let b = 0.0 * mean[out](votes)
    let v = mean[lower](votes)
    repeat rounds {
        let c = softmax[upper](b)
        v = squash(sum[lower](c * votes))
        b = b + sum[out](votes * v)
    }
    loss l = mean[batch, upper](sum[out](v * v))
}
train capsules { minimize l optimizer sgd(lr = 0.1) }
";

/// What one scan collects, though no position changes it, and another reads.
const COLLECTED: &str = r"
dim batch = 4, seq = 3, h = 5, b = h
model m {
    input x[batch, seq, h]: float
    param w[b, h] = normal(0, 1)
    param k[h] = normal(0, 1)
    let a = max[seq](x) * k
    let c = a * 2
    scan seq { let v = tanh(sum[b](c[h -> b] * w))  a = a + x }
    scan seq { a = tanh(sum[b]((x * v)[h -> b] * w)) }
    loss l = mean[batch, h](a * a)
}
train m { minimize l optimizer sgd(lr = 0.1) }
";

/// Layers of a recurrent network, one of them over a sequence that the other has collected.
const RECURRENT: &str = r#"
use "std:nn"
dim batch = 3, seq = 7, d = 4, hidden = 5, before = hidden, units = hidden
model m {
    input x[batch, seq, d]: float
    let low  = lstm(x, seq, d, hidden, before) as low
    let high = gru(low[hidden -> units], seq, units, hidden, before) as high
    loss l = mean[batch, seq, hidden](high * high)
}
train m { minimize l optimizer adam(lr = 0.1) }
"#;

/// A parameter that no iteration changes, summed and kept over the parts of a batch.
const NESTED: &str = r"
dim batch = 8, seq = 4, layers = 3, d = 5, e = d
model m {
    input x[batch, seq, d]: float
    param start[d] = normal(0, 1)
    let y = x * start
    let last = mean[seq](y)
    repeat layers {
        param w[d, e] = normal(0, 0.4)
        let g = tanh(start)
        scan seq {
            let z = tanh(sum[d](y * w)[e -> d] + last) * g
            last = where(index(seq) < 2, z, last)
        }
        y = y + z
    }
    loss l = mean[batch, seq, d](y * y) + mean[batch, d](last)
}
train m { minimize l optimizer sgd(lr = 0.1) }
";

#[test]
fn loops_are_trained_in_half_precision() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text, split) in [
        ("coupled", COUPLED, "d -> a; gather e"),
        ("round", ROUND, "d -> a; gather e"),
        ("coupling", COUPLING, "hidden -> a"),
        ("capsules", CAPSULES, "upper -> a"),
        ("collected", COLLECTED, "h -> a; gather b"),
        ("recurrent", RECURRENT, "hidden -> a; gather before, units"),
        ("nested", NESTED, "e -> a; gather d"),
    ] {
        let file = dir.path().join(format!("{name}.mw"));
        std::fs::write(&file, text).unwrap();
        let o = options(&file.display().to_string(), "", "", &[]);
        trains_alike(&o, 3, &[("a=2", "batch -> a"), ("a=2", split)]);
    }
}
