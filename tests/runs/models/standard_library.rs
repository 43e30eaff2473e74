//! The layers of the standard library against PyTorch, with the same weights, in f32 and f64: the loss, every gradient, and the
//! states after the step. `pytorch/make.py` made what PyTorch gives; the models beside it are those that are run here.

use crate::support::{options, root};
use meshwright_core::training_step;
use meshwright_exec::{Cluster, ClusterOptions, HostData, HostTensor, LocalInput, Provider};
use meshwright_plan::{Arithmetic, DType};
use meshwright_sorted::SortedMap;
use meshwright_train::project::standard_library::layers;
use meshwright_train::{Project, ProjectOptions};
use safetensors::{Dtype, SafeTensors};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Tensors by what they are, `param/y.w`.
pub(crate) type Given = SortedMap<String, (Vec<usize>, Vec<f64>)>;

fn folder() -> PathBuf {
    root().join("tests/runs/pytorch")
}

/// What a file of PyTorch has, by model.
pub(crate) fn given(file: &Path) -> SortedMap<String, Given> {
    let bytes = std::fs::read(file).unwrap();
    let mut out: SortedMap<String, Given> = SortedMap::new();
    for (key, t) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
        let (model, what) = key.split_once('/').unwrap();
        let words = |data: &[u8]| data.as_chunks().0.to_vec();
        let values = match t.dtype() {
            Dtype::F32 => words(t.data()).into_iter().map(|w| f64::from(f32::from_le_bytes(w))).collect(),
            Dtype::F64 => t.data().as_chunks().0.iter().map(|w| f64::from_le_bytes(*w)).collect(),
            Dtype::I32 => words(t.data()).into_iter().map(|w| f64::from(i32::from_le_bytes(w))).collect(),
            Dtype::BOOL => t.data().iter().map(|b| f64::from(*b)).collect(),
            other => panic!("{key} is {other:?}"),
        };
        out.entry(model.into()).or_default().insert(what.into(), (t.shape().to_vec(), values));
    }
    out
}

/// The loss, and the parameters and states after a step, by the names of `given`; in `f16` with a scale at which none overflows.
pub(crate) fn step(o: &ProjectOptions, given: &Given) -> SortedMap<String, Vec<f64>> {
    let loaded = Project::load(o);
    let model = &o.model;
    let project = loaded.project.unwrap_or_else(|| panic!("{model}: {:?}", loaded.diagnostics));
    let program = &project.program;
    let float = program.float;
    assert_eq!(Some(float), o.precision);
    let plan = project.compile(&training_step(program).unwrap(), &loaded.sources).0.unwrap().plan;
    let mut cluster =
        Cluster::threads(&project.layout.mesh, &ClusterOptions::on(meshwright_cpu::device())).unwrap();
    let id = cluster.load(Arc::new(plan)).unwrap();
    cluster.init_state(id, 1).unwrap();
    let host = |what: String, dtype| {
        let (shape, values) = given.get(&what).unwrap_or_else(|| panic!("{model}: no {what}"));
        HostTensor::new(shape.clone(), HostData::from_f64(dtype, values.clone())).unwrap()
    };
    let params = program.params.iter().map(|p| ("param", &p.path));
    let states = program.states.iter().map(|s| ("state", &s.path));
    let kept: Vec<(&str, &String)> = params.chain(states).collect();
    for (kind, path) in &kept {
        cluster.set_state(path, &host(format!("{kind}/{path}"), float.wide())).unwrap();
    }
    if float == Arithmetic::F16 {
        let scale = HostTensor::new(vec![], HostData::from_f64(DType::F32, vec![64.0])).unwrap();
        cluster.set_state("loss_scale/value", &scale).unwrap();
    }
    let inputs =
        program.inputs.iter().map(|i| (i.0.name.clone(), host(format!("input/{}", i.0.name), i.0.dtype)));
    let whole: SortedMap<String, HostTensor> = inputs.collect();
    let provider: Provider = Arc::new(move |_, leaves: &[LocalInput]| {
        Ok(leaves.iter().map(|l| whole[&l.name].slice(&l.ranges).unwrap()).collect())
    });
    let report = cluster.run(id, 1, &provider).unwrap();
    let mut out = SortedMap::from([(
        "loss".to_string(),
        report.outputs[&program.train.as_ref().unwrap().loss().name].data.to_f64(),
    )]);
    for (kind, path) in kept {
        out.insert(format!("{kind}/{path}"), cluster.state(path).unwrap().data.to_f64());
    }
    cluster.shutdown();
    out
}

pub(crate) fn norm(v: impl IntoIterator<Item = f64>) -> f64 {
    v.into_iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// How far values are apart, in parts of their norm, or of 1 where that is less. The gradient of a bias before a softmax is 0,
/// and what `f32` gives is the rounding of a sum of others: it counts in parts of `all`, the norm of all gradients.
fn apart(got: &[f64], want: &[f64], all: f64) -> f64 {
    assert_eq!(got.len(), want.len());
    let size = norm(want.iter().copied());
    let scale = if size < 1e-9 * all { all } else { size };
    norm(got.iter().zip(want).map(|(g, w)| g - w)) / scale.max(1.0)
}

#[test]
fn layers_give_what_pytorch_gives_with_the_same_weights() {
    let (mut checked, mut wrong) = (0, Vec::new());
    for (name, given) in given(&folder().join("nn.safetensors")) {
        let model = folder().join(format!("{name}.mw")).display().to_string();
        let gradients = given.iter().filter(|(k, _)| k.starts_with("grad/")).flat_map(|(_, g)| &g.1);
        let all = norm(gradients.copied());
        // What PyTorch gave is kept in f32.
        let ways = [(DType::F64, 1e-6, 0.0), (DType::F32, 1e-5, all)];
        let meshes = [("", ""), ("a=2", "batch -> a")];
        for ((float, most, all), (mesh, layout)) in ways.into_iter().flat_map(|w| meshes.map(|m| (w, m))) {
            let o = ProjectOptions { precision: Some(float.into()), ..options(&model, mesh, layout, &[]) };
            let got = step(&o, &given);
            for (what, values) in &got {
                let (was, after) = match what.split_once('/') {
                    None => (&vec![0.0; 1], values.clone()),
                    // A step of 1 along the gradient.
                    Some(("param", path)) => {
                        let was = &given[what].1;
                        let gradient: Vec<f64> = was.iter().zip(values).map(|(p, q)| p - q).collect();
                        (&given[&format!("grad/{path}")].1, gradient)
                    }
                    Some((_, path)) => (&given[&format!("next/{path}")].1, values.clone()),
                };
                let want = if what == "loss" { &given["loss"].1 } else { was };
                let off = apart(&after, want, all);
                if off.is_nan() || off > most {
                    wrong.push(format!(
                        "{name}, {float}, {mesh:?}: {what} is {off:e} apart: {after:?}, not {want:?}"
                    ));
                }
                checked += 1;
            }
            let asked = given.keys().filter(|k| ["param/", "state/"].iter().any(|p| k.starts_with(p)));
            assert_eq!(asked.count() + 1, got.len(), "{name}: as many parameters and states");
        }
    }
    assert!(wrong.is_empty() && checked > 400, "{} of {checked}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_layer_is_in_a_model_that_is_compared() {
    let mut texts = String::new();
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "mw") {
            texts += &std::fs::read_to_string(path).unwrap();
        }
    }
    let all = layers();
    // Directly, or through a layer that is.
    let mut used: Vec<&str> = Vec::new();
    loop {
        let more = all.iter().filter(|l| !used.contains(&l.name.as_str()));
        let calls = |text: &str, name: &str| {
            text.match_indices(name).any(|(i, _)| {
                let before = text[..i].chars().next_back();
                text[i + name.len()..].starts_with('(')
                    && !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
            })
        };
        let by_used = |l: &str| all.iter().any(|u| used.contains(&u.name.as_str()) && calls(u.text, l));
        let new: Vec<&str> =
            more.map(|l| l.name.as_str()).filter(|l| calls(&texts, l) || by_used(l)).collect();
        if new.is_empty() {
            break;
        }
        used.extend(new);
    }
    // What is random has no like in PyTorch.
    let rest: Vec<&str> = all.iter().map(|l| l.name.as_str()).filter(|l| !used.contains(l)).collect();
    assert_eq!(rest, ["drop_path"]);
}

#[test]
fn whole_examples_are_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.mw");
    let text = "use \"std:nn\"\ndim batch = 32, a = 3, b = 2\nmodel m {\n input x[batch]: float\n param p[a, b] = 1\n \
                let y = drop_path(x * p, 0.5, [a, b])\n loss l = sum[batch, a, b](y)\n}\ntrain m { minimize l optimizer sgd(lr = 1) }\n";
    std::fs::write(&file, text).unwrap();
    let given = Given::from([
        ("input/x".to_string(), (vec![32], vec![1.0; 32])),
        ("param/p".to_string(), (vec![3, 2], vec![0.0; 6])),
    ]);
    let o = ProjectOptions {
        precision: Some(Arithmetic::F32),
        ..options(&file.display().to_string(), "", "", &[])
    };
    let got = step(&o, &given);
    // The gradient of each element is the number of examples that are left, each twice.
    let left: Vec<f64> = got["param/p"].iter().map(|p| -p / 2.0).collect();
    assert!(left.iter().all(|l| *l == left[0] && l.fract() == 0.0 && (1.0..32.0).contains(l)), "{left:?}");
}
