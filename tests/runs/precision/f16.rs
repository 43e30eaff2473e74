//! Trainings in `f16`: beside `f32` and on several meshes; what loss scaling keeps from underflow, and what it skips.

use crate::precision::bf16::{falls, kept_in_full, near, precise, write_block};
use crate::support::{SMALL, SMALL_DIMS, Trained, folder, options, run, tensors, told, trained};
use crate::training::text::tokenized;
use meshwright_files::RawTensor;
use meshwright_plan::DType;
use meshwright_runs::metrics::{Event, StepMetrics};
use meshwright_sorted::SortedMap;
use meshwright_train::{Failure, Progress, Project, ProjectOptions, TrainOptions, train};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Data, tensor and fully sharded parallelism on 2 and 4 devices.
const LAYOUTS: [(&str, &str); 7] = [
    ("data=2", "batch -> data"),
    ("data=4", "batch -> data"),
    ("model=2", "SPLIT -> model"),
    ("model=4", "SPLIT -> model"),
    ("data=2", "zero3"),
    ("data=4", "zero3"),
    ("data=2", "batch -> data; params: * -> data; microbatches 2; keep params"),
];

/// The same training in `f32` and in `f16`, then under all layouts with `split` in place of tensor parallelism.
fn trains_like_f32(o: &dyn Fn(&str, &str) -> ProjectOptions, at: &Path, split: &str, steps: u64) {
    let one = |precision: DType, mesh: &str, layout: &str, name: &str| {
        trained(&precise(o(mesh, &layout.replace("SPLIT", split)), precision), at, name, steps)
    };
    let wide = one(DType::F32, "", "", "f32");
    let narrow = one(DType::F16, "", "", "f16");
    falls(&narrow, "f16");
    kept_in_full(&narrow);
    near(&wide, &narrow, 0.002, "f16 beside f32");
    assert_ne!(wide.losses, narrow.losses, "nothing was rounded");
    for (mesh, layout) in LAYOUTS {
        let name = format!("{mesh} {layout}");
        let split = one(DType::F16, mesh, layout, &name.replace(|c: char| !c.is_alphanumeric(), "-"));
        near(&wide, &split, 0.002, &name);
    }
}

#[test]
fn a_perceptron_trains_like_f32_under_every_layout() {
    let dir = folder(SMALL);
    let dims = [SMALL_DIMS, &[("hidden1", 48), ("hidden2", 32)]].concat();
    trains_like_f32(&|mesh, layout| options("mnist_mlp", mesh, layout, &dims), dir.path(), "hidden1", 60);
}

#[test]
fn a_transformer_trains_like_f32_under_every_layout() {
    let dir = tempfile::tempdir().unwrap();
    let model = write_block(dir.path());
    trains_like_f32(&|mesh, layout| options(&model, mesh, layout, &[]), dir.path(), "heads, ff", 60);
}

#[test]
fn gpt_trains_like_f32_under_every_layout() {
    let dir = tempfile::tempdir().unwrap();
    tokenized(dir.path(), &["--train", "bpe", "--vocab", "320"]);
    let sizes = [("batch", 8), ("seq", 14), ("vocab", 320), ("layers", 2), ("heads", 4), ("d_head", 4)];
    let sizes = [&sizes[..], &[("d_ff", 16), ("places", 16)]].concat();
    let o = |mesh: &str, layout: &str| ProjectOptions {
        preset: Some("tiny".into()),
        sets: [("lr", 1e-2), ("warmup", 4.0)].map(|(name, x)| (name.into(), x)).into(),
        ..options("gpt", mesh, layout, &sizes)
    };
    trains_like_f32(&o, dir.path(), "heads, d_ff", 40);
}

#[test]
fn loops_microbatches_and_averages_are_scaled_too() {
    let dir = folder(SMALL);
    let text = std::fs::read_to_string(crate::support::root().join("models/mlp.mw")).unwrap();
    let model = dir.path().join("averaged.mw");
    let minimized = text.replace("minimize xent", "minimize xent\n    ema 0.9\n    clip global_norm = 0.5");
    assert_ne!(text, minimized);
    std::fs::write(&model, minimized).unwrap();
    let o = |layout: &str| options(&model.display().to_string(), "", layout, SMALL_DIMS);
    let wide = trained(&precise(o(""), DType::F32), dir.path(), "wide", 30);
    for (name, layout) in [("whole", ""), ("parts", "microbatches 4")] {
        let narrow = trained(&precise(o(layout), DType::F16), dir.path(), name, 30);
        near(&wide, &narrow, 0.002, name);
        for path in ["h.w", "h.w/ema", "logits.b"] {
            let off = crate::support::apart(&wide.values(path), &narrow.values(path));
            assert!(off < 0.01, "{name}: {path} is {off:e} apart");
        }
    }
}

/// Steps as they were measured, and how the run ended.
fn measured(o: &ProjectOptions, at: &Path, run: &str, steps: u64) -> (Vec<StepMetrics>, Result<(), Failure>) {
    let loaded = Project::load(o);
    let project = loaded.project.unwrap_or_else(|| panic!("{o:?}: {:?}", loaded.diagnostics));
    let wanted = TrainOptions {
        data: Some(at.join("data").display().to_string()),
        steps: Some(steps),
        seed: Some(3),
        run: Some(at.join(run)),
        ..TrainOptions::default()
    };
    let mut all = Vec::new();
    let result = train(&project, &loaded.sources, &wanted, &AtomicBool::new(false), &mut |p| {
        if let Progress::Event { event: Event::Step(s), .. } = p {
            all.push(s.clone());
        }
    });
    (all, result.map(|_| ()))
}

/// A layer under a product and a loss; `scaling` are the settings of `f16`, `by` makes the loss small or large.
fn two_layers(at: &Path, name: &str, scaling: &str, by: &str, optimizer: &str) -> String {
    let text = format!(
        "dim batch = 12, rows = 5, cols = 4, hidden = 16, classes = 10
model small {{
    input image[batch, rows, cols]: u8
    input label[batch]: i32 in classes
    param w[rows, cols, hidden] = normal(0, 0.3)
    param v[hidden, classes]    = normal(0, 0.3)
    let h = tanh(sum[rows, cols](cast(image, float) / 255 * w))
    let y = sum[hidden](h * v)
    loss l = mean[batch](cross_entropy[classes](y, label)) * ({by})
}}
train small {{
    minimize l
    optimizer {optimizer}
    precision f16{scaling}
}}
"
    );
    let path = at.join(format!("{name}.mw"));
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// How far a step of the parameter `w` goes.
fn first_move(o: &ProjectOptions, at: &Path, name: &str) -> Vec<f64> {
    let still = ProjectOptions { sets: vec![("rate".into(), 0.0)], ..o.clone() };
    let value = |o: &ProjectOptions, name: String| {
        measured(o, at, &name, 1).1.unwrap_or_else(|e| panic!("{}", told(&e)));
        tensors(&at.join(name))["w"].to_f64().unwrap()
    };
    let (before, after) = (value(&still, format!("{name}-0")), value(o, format!("{name}-1")));
    after.iter().zip(before).map(|(a, b)| a - b).collect()
}

#[test]
fn gradients_that_f16_does_not_hold_are_not_lost() {
    let dir = folder(SMALL);
    // Cotangents of `h` are about 1e-8: the least number of f16 is 6e-8.
    let optimizer = "sgd(lr = rate)";
    let model = |name: &str, scaling: &str| {
        let path = two_layers(dir.path(), name, scaling, "1e-6", optimizer);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("const rate = 1e6\n{text}")).unwrap();
        options(&path, "", "", &[])
    };
    let wide = first_move(&precise(model("wide", ""), DType::F32), dir.path(), "wide");
    let most = wide.iter().fold(0f64, |m, x| m.max(x.abs()));
    assert!(most > 0.001, "{most:e}");
    for (name, scaling) in [("scaled", ""), ("more", "(scale = 1048576)")] {
        let scaled = first_move(&model(name, scaling), dir.path(), name);
        let off = crate::support::apart(&wide, &scaled);
        assert!(off < 0.01, "{name}: {off:e} apart");
    }
    let plain = first_move(&model("plain", "(scale = 1)"), dir.path(), "plain");
    let off = crate::support::apart(&wide, &plain);
    assert!(off > 0.2, "without a scale the gradients are only {off:e} apart");
}

fn scales(steps: &[StepMetrics]) -> Vec<f64> {
    steps.iter().map(|s| s.loss_scale.unwrap()).collect()
}

fn skips(steps: &[StepMetrics]) -> usize {
    let first = steps.iter().take_while(|s| s.skipped == Some(true)).count();
    assert!(steps[first..].iter().all(|s| s.skipped == Some(false)), "{:?}", scales(steps));
    first
}

const MESHES: [(&str, &str); 4] =
    [("", ""), ("data=2", "batch -> data"), ("model=4", "hidden -> model"), ("data=4", "zero3")];

#[test]
fn an_overflow_skips_the_step_and_halves_the_scale() {
    let dir = folder(SMALL);
    let still = two_layers(dir.path(), "still", "", "1e3", "adam(lr = 0)");
    let first = trained(&precise(options(&still, "", "", &[]), DType::F32), dir.path(), "first", 1);
    let model = two_layers(dir.path(), "large", "(scale = 16777216)", "1e3", "adam(lr = 1e-3)");
    for (mesh, layout) in MESHES {
        let name = format!("large-{mesh}");
        let (steps, ended) = measured(&options(&model, mesh, layout, &[]), dir.path(), &name, 24);
        ended.unwrap_or_else(|e| panic!("{}", told(&e)));
        let skipped = skips(&steps);
        assert!((3..20).contains(&skipped), "{mesh}: {skipped}");
        let wanted: Vec<f64> = (0..24).map(|n| 16_777_216.0 / 2f64.powi(skipped.min(n) as i32)).collect();
        assert_eq!(scales(&steps), wanted, "{mesh}");
        // As long as steps are skipped, nothing changes but the scale.
        let name = format!("skipped-{mesh}");
        let (_, ended) = measured(&options(&model, mesh, layout, &[]), dir.path(), &name, skipped as u64);
        assert!(ended.is_ok());
        let now = tensors(&dir.path().join(name));
        for (path, tensor) in &now {
            match path.as_str() {
                "loss_scale/value" => assert_eq!(one(tensor), wanted[skipped]),
                "loss_scale/good_steps" => assert_eq!(one(tensor), 0.0),
                "loss_scale/skipped_updates" => assert_eq!(one(tensor), skipped as f64),
                _ => assert_eq!(tensor, &first_or_zero(&first, path), "{mesh}: {path}"),
            }
        }
    }
}

fn one(tensor: &meshwright_files::RawTensor) -> f64 {
    tensor.to_f64().unwrap()[0]
}

/// A parameter as it is at first; a moment is 0.
fn first_or_zero(first: &Trained, path: &str) -> meshwright_files::RawTensor {
    let tensor = first.tensors[path].clone();
    let zeros = vec![0; tensor.data.len()];
    if path.contains('/') { meshwright_files::RawTensor { data: zeros, ..tensor } } else { tensor }
}

/// What a skipped step leaves is what a run begins with: Adam does not count it either.
#[test]
fn a_skipped_step_is_as_if_it_had_not_been() {
    let dir = folder(crate::support::Sizes { examples: 12, ..SMALL });
    let data = dir.path().join("data");
    // All examples are alike, so that all batches are.
    for name in ["train-image", "train-label"] {
        let bytes = std::fs::read(data.join(name)).unwrap();
        let head = if name.ends_with("image") { 16 } else { 8 };
        let one = bytes[head..head + (bytes.len() - head) / 12].to_vec();
        std::fs::write(data.join(name), [&bytes[..head], &one.repeat(12)].concat()).unwrap();
    }
    let o = |name: &str, scale: f64| {
        let optimizer = "adam(lr = 0.01)\n    ema 0.9";
        let path = two_layers(dir.path(), name, &format!("(scale = {scale})"), "1e3", optimizer);
        options(&path, "", "", &[])
    };
    let (steps, _) = measured(&o("late", 16_777_216.0), dir.path(), "late", 24);
    let skipped = skips(&steps);
    assert!((3..20).contains(&skipped), "{skipped}");
    let scale = steps[skipped].loss_scale.unwrap();
    let (at_once, _) = measured(&o("at-once", scale), dir.path(), "at-once", 24 - skipped as u64);
    assert_eq!(skips(&at_once), 0);
    let losses = |steps: &[StepMetrics]| steps.iter().map(|s| s.loss).collect::<Vec<_>>();
    assert_eq!(losses(&steps[skipped..]), losses(&at_once));
    let same = || {
        let [mut late, early] = ["late", "at-once"].map(|run| tensors(&dir.path().join(run)));
        let count = late.remove("loss_scale/skipped_updates").map(|t| one(&t));
        assert_eq!(count, Some(skipped as f64));
        let counts = |t: &SortedMap<String, RawTensor>| t.contains_key("loss_scale/skipped_updates");
        let none = if counts(&early) { Some(0.0) } else { None };
        let mut early = early;
        assert_eq!(early.remove("loss_scale/skipped_updates").map(|t| one(&t)), none);
        assert_eq!(late, early);
    };
    same();
    // In every precision that the runs go on in.
    for (k, precision) in ["f32", "bf16", "f64", "f16"].into_iter().enumerate() {
        for (name, steps) in [("late", 24), ("at-once", 24 - skipped)] {
            resumed(&o(name, scale).model, dir.path(), name, precision, steps + 2 * (k + 1));
        }
        same();
    }
}

/// Evaluations read the averages, and a run may start from other values than those that would be drawn for them.
#[test]
fn an_average_is_the_parameter_while_all_steps_are_skipped() {
    let dir = folder(SMALL);
    let model =
        two_layers(dir.path(), "averaged", "(scale = 16777216)", "1e3", "adam(lr = 0.01)\n    ema 0.9");
    let (_, ended) = measured(&options(&model, "", "", &[]), dir.path(), "from", 24);
    assert!(ended.is_ok());
    let [data, from] = ["data", "from"].map(|p| dir.path().join(p).display().to_string());
    for (mesh, layout) in MESHES {
        let to = dir.path().join(format!("to-{mesh}"));
        let args = ["train", &model, "--data", &data, "--init", &from, "--steps", "2", "--seed", "9"];
        let split: &[&str] = if mesh.is_empty() { &[] } else { &["--mesh", mesh, "--layout", layout] };
        let said = run(&[&args[..], split, &["--run", &to.display().to_string()]].concat());
        assert_eq!(said.code, Some(0), "{mesh}: {}", said.err);
        let now = tensors(&to);
        assert_eq!(one(&now["loss_scale/skipped_updates"]), 2.0, "{mesh}");
        for path in ["w", "v"] {
            assert_eq!(now[path], now[&format!("{path}/ema")], "{mesh}: {path}");
        }
    }
}

/// Trains on from the checkpoint of a run in another precision.
fn resumed(model: &str, at: &Path, run_name: &str, precision: &str, steps: usize) {
    let [data, folder] = ["data", run_name].map(|p| at.join(p).display().to_string());
    let steps = steps.to_string();
    let args = ["train", model, "--data", &data, "--run", &folder, "--steps", &steps, "--seed", "3"];
    let said = run(&[&args[..], &["--resume", "--precision", precision]].concat());
    assert_eq!(said.code, Some(0), "{precision}: {}", said.err);
}

/// Of two losses each has its turns; what is skipped counts for the one that was due.
#[test]
fn losses_in_turn_count_their_own_updates() {
    let dir = folder(SMALL);
    let model = two_layers(dir.path(), "turns", "(scale = 16777216)", "1e3", "adam(lr = 0.05)");
    let text = std::fs::read_to_string(&model).unwrap();
    let second = "    minimize l of w\n    minimize other of v every 3 from 2\n";
    let text = text.replace("    minimize l\n", second);
    let text = text.replace("loss l =", "loss other = mean[batch, classes](y * y)\n    loss l =");
    std::fs::write(&model, text).unwrap();
    for (mesh, layout) in MESHES {
        let name = format!("turns-{mesh}");
        let (steps, ended) = measured(&options(&model, mesh, layout, &[]), dir.path(), &name, 40);
        ended.unwrap_or_else(|e| panic!("{}", told(&e)));
        let skipped = skips(&steps);
        assert!((3..20).contains(&skipped), "{mesh}: {skipped}");
        let now = tensors(&dir.path().join(&name));
        let due = (1..=skipped).filter(|step| step % 3 == 2).count();
        assert_eq!(one(&now["loss_scale/skipped_updates"]), skipped as f64, "{mesh}");
        assert_eq!(one(&now["loss_scale/skipped_updates_2"]), due as f64, "{mesh}");
        if mesh.is_empty() {
            resumed(&model, dir.path(), &name, "f32", 43);
            let later = tensors(&dir.path().join(&name));
            for count in ["loss_scale/skipped_updates", "loss_scale/skipped_updates_2"] {
                assert_eq!(later[count], now[count], "{count}");
            }
        }
        let mean = |of: &[StepMetrics]| of.iter().map(|s| s.loss).sum::<f64>() / of.len() as f64;
        let (first, last) = (mean(&steps[..8]), mean(&steps[32..]));
        assert!(last < 0.9 * first, "{mesh}: {first} to {last}");
    }
}

#[test]
fn the_scale_grows_and_a_resumed_run_keeps_it() {
    let dir = folder(SMALL);
    let model = two_layers(dir.path(), "grows", "(scale = 4, growth = 3)", "1", "adam(lr = 1e-3)");
    let (whole, ended) = measured(&options(&model, "", "", &[]), dir.path(), "whole", 14);
    assert!(ended.is_ok());
    assert_eq!(scales(&whole), [4, 4, 4, 8, 8, 8, 16, 16, 16, 32, 32, 32, 64, 64].map(f64::from));
    assert!(measured(&options(&model, "", "", &[]), dir.path(), "parts", 7).1.is_ok());
    let (data, at) = (dir.path().join("data"), dir.path().join("parts"));
    let [data, at] = [data, at].map(|p| p.display().to_string());
    let args = ["train", &model, "--data", &data, "--run", &at, "--steps", "14", "--seed", "3", "--resume"];
    let said = run(&args);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let [one, other] = ["whole", "parts"].map(|run| tensors(&dir.path().join(run)));
    assert_eq!(one, other);
    // Every step is in the log once, with its scale.
    let log = std::fs::read_to_string(dir.path().join("parts/metrics.jsonl")).unwrap();
    let lines = log.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
    let told: Vec<f64> = lines.filter_map(|l| l["loss_scale"].as_f64()).collect();
    assert_eq!(told, scales(&whole));
}

#[test]
fn a_run_goes_on_in_f16_and_out_of_it() {
    let dir = folder(SMALL);
    let [at, data] = ["run", "data"].map(|p| dir.path().join(p).display().to_string());
    let sizes = ["--dim", "batch=12", "--dim", "rows=5", "--dim", "cols=4", "--dim", "hidden=32"];
    for (i, precision) in ["f32", "f16", "bf16", "f16"].into_iter().enumerate() {
        let steps = format!("{}", 10 * (i + 1));
        let mut args = vec!["train", "mlp", "--data", &data, "--run", &at, "--steps", &steps];
        args.extend(["--precision", precision]);
        args.extend(sizes);
        args.extend((i > 0).then_some("--resume"));
        let said = run(&args);
        assert_eq!(said.code, Some(0), "{precision}: {}", said.err);
        let scaled = tensors(&dir.path().join("run")).contains_key("loss_scale/value");
        assert_eq!(scaled, precision == "f16", "{precision}");
    }
    let out = dir.path().join("out.npz").display().to_string();
    for more in [&["eval"][..], &["predict", "--to", &out]] {
        let said = run(&[more, &[&at, "--data", &data]].concat());
        assert_eq!(said.code, Some(0), "{more:?}: {}", said.err);
    }
}

#[test]
fn a_scale_below_one_ends_the_run() {
    let dir = folder(SMALL);
    // The slope of the square root at 0 is infinite, the loss is not.
    let path = two_layers(
        dir.path(),
        "endless",
        "(scale = 4)",
        "1 + sqrt(sum[hidden, classes](v * 0))",
        "sgd(lr = 0.1)",
    );
    for (mesh, layout) in MESHES {
        let name = format!("endless-{mesh}");
        let (steps, ended) = measured(&options(&path, mesh, layout, &[]), dir.path(), &name, 10);
        assert_eq!(scales(&steps), [4.0, 2.0, 1.0], "{mesh}");
        let said = told(&ended.unwrap_err());
        assert!(said.contains("E0517: the loss scale falls below 1 at step 3"), "{mesh}: {said}");
    }
    let data = dir.path().join("data").display().to_string();
    let said = run(&["train", &path, "--data", &data, "--no-save", "--steps", "10"]);
    assert_eq!(said.code, Some(1), "{}", said.err);
    for part in [
        "step 1 updates nothing",
        "loss scale of 4, which is halved",
        "derivative of `sqrt` at 0 is infinite",
    ] {
        assert!(said.err.contains(part), "`{part}` is not in\n{}", said.err);
    }
}

#[test]
fn an_activation_beyond_f16_is_named() {
    let dir = folder(SMALL);
    let path = two_layers(dir.path(), "beyond", "", "1", "sgd(lr = 0.1)");
    let text = std::fs::read_to_string(&path).unwrap();
    let large = text.replace(
        "tanh(sum[rows, cols](cast(image, float) / 255 * w))",
        "sum[rows, cols](cast(image, float) * 255 * w)",
    );
    assert_ne!(text, large);
    std::fs::write(&path, large).unwrap();
    let data = dir.path().join("data").display().to_string();
    let said = run(&["train", &path, "--data", &data, "--no-save", "--steps", "3"]);
    assert_eq!(said.code, Some(1), "{}", said.err);
    for part in ["error[E0517]", "the first value that is not finite is `h`", "beyond 65504"] {
        assert!(said.err.contains(part), "`{part}` is not in\n{}", said.err);
    }
    let said = run(&["train", &path, "--data", &data, "--no-save", "--steps", "3", "--precision", "bf16"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
}
