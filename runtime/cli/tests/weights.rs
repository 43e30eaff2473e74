//! First values from elsewhere (`train --init`), and work on checkpoints (`ckpt`).

use crate::support::{self, events, file, lines, prepared, run_in as run, steps};
use serde_json::Value;
use std::path::Path;

/// The model with another head: what was `w` is `body.w`, and `head.b` is new.
const TUNED: &str = "
dim batch = 10, features = 4, classes = 2
const lr = 0.5
layer body(x) {
    param w[features, classes] = normal(0, 0.1)
    return sum[features](x * w)
}
layer head(x) {
    param b[classes] = uniform(-1, 1)
    return x + b
}
model tuned {
    input x[batch, features]: float
    input y[batch]: i32 in classes
    let logits = head(body(x) as body) as head
    loss l = mean[batch](cross_entropy[classes](logits, y))
    output class = argmax[classes](logits)
}
train tuned {
    minimize l
    optimizer adam(lr = lr)
    freeze body.*
}
";

/// A folder with a run `a` of the small model, and the other model beside it.
fn trained(name: &str) -> std::path::PathBuf {
    let at = prepared(name);
    std::fs::write(at.join("tuned.mw"), TUNED).unwrap();
    events(&at, &["train", "sums.mw", "--data", "data", "--run", "a", "--steps", "30"]);
    at
}

/// The tensors of a checkpoint that was exported, by name: dtype, shape and bytes.
fn tensors(path: &Path) -> Vec<(String, Vec<usize>, Vec<u8>)> {
    let bytes = std::fs::read(path).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    let tensors = header.as_object().unwrap().iter().filter(|t| t.0 != "__metadata__");
    let mut list: Vec<_> = tensors
        .map(|(name, t)| {
            let shape = serde_json::from_value(t["shape"].clone()).unwrap();
            let [from, to]: [usize; 2] = serde_json::from_value(t["data_offsets"].clone()).unwrap();
            (name.clone(), shape, bytes[8 + len + from..8 + len + to].to_vec())
        })
        .collect();
    list.sort();
    list
}

/// A file as other frameworks write it: f32 tensors.
fn foreign(path: &Path, tensors: &[(&str, &[usize], Vec<f32>)]) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape, values) in tensors {
        let from = data.len();
        data.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        let info = serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [from, data.len()]});
        header.insert(name.to_string(), info);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let file = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
    std::fs::write(path, file).unwrap();
}

fn exported(at: &Path, run_folder: &str) -> Vec<(String, Vec<usize>, Vec<u8>)> {
    let (code, _, err) = run(at, &["ckpt", "export", run_folder, "-o", "out.safetensors", "--params-only"]);
    assert_eq!(code, 0, "{err}");
    tensors(&at.join("out.safetensors"))
}

#[test]
fn a_run_begins_with_the_values_of_another() {
    let at = trained("init");
    let old = exported(&at, "a");
    assert_eq!(old.len(), 1);
    let tune =
        ["train", "tuned.mw", "--data", "data", "--steps", "12", "--init", "a", "--init-map", "body.* = *"];
    let (code, _, err) = run(&at, &[&tune[..], &["--run", "b"]].concat());
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("from `a` (step 30 of `sums`): took 1 of 2 parameters, drew head.b"), "{err}");
    assert!(!err.contains("never trained"), "a frozen parameter that was taken is no reason to warn: {err}");
    let new = exported(&at, "b");
    assert_eq!((new[0].0.as_str(), &new[0].2), ("body.w", &old[0].2), "what is frozen stays what it was");
    // A layout changes nothing, and neither does where the parameter lies.
    let two = ["--layout", "features -> r", "--mesh", "r=2", "--run", "c"];
    let one = steps(&lines(&file(&at, "b/metrics.jsonl")));
    for ((_, a), (_, b)) in one.iter().zip(steps(&events(&at, &[&tune[..], &two].concat()))) {
        assert!((a - b).abs() <= 1e-6 * a.abs(), "{a} {b}");
    }
    // The run goes on as it began, without the file, and run.toml keeps where it came from.
    std::fs::rename(at.join("a"), at.join("gone")).unwrap();
    let more = events(&at, &["train", "--run", "b", "--resume", "--steps", "14"]);
    assert_eq!(steps(&more).len(), 2);
    assert!(file(&at, "b/run.toml").contains("/init/a\"\n"), "{}", file(&at, "b/run.toml"));
    // Where it broke before its first checkpoint it begins again, with the same values.
    std::fs::remove_dir_all(at.join("b/checkpoints")).unwrap();
    std::fs::rename(at.join("gone"), at.join("a")).unwrap();
    let again = events(&at, &["train", "--run", "b", "--resume", "--steps", "12"]);
    assert_eq!(steps(&again), one);
}

#[test]
fn files_of_other_frameworks_are_turned() {
    let at = trained("init-foreign");
    let old = exported(&at, "a");
    let values: Vec<f32> = old[0].2.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    let turned: Vec<f32> =
        (0..2).flat_map(|c| (0..4).map(move |f| (c, f))).map(|(c, f)| values[f * 2 + c]).collect();
    let bias: Vec<f32> = vec![9.0, 9.0, 0.25, -0.5];
    foreign(&at.join("torch.safetensors"), &[("fc.weight", &[2, 4], turned), ("fc.bias", &[4], bias)]);
    std::fs::write(
        at.join("names.map"),
        "body.w = fc.weight transposed  # [out, in]\nhead.b = fc.bias[2..4]\n",
    )
    .unwrap();
    let tune = ["train", "tuned.mw", "--data", "data", "--steps", "1", "--init", "torch.safetensors"];
    let (code, _, err) =
        run(&at, &[&tune[..], &["--run", "b", "--init-map", "names.map", "--set", "lr=0"]].concat());
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("took 2 of 2 parameters\n"), "{err}");
    let new = exported(&at, "b");
    assert_eq!(new[0].2, old[0].2);
    assert_eq!(new[1].2, [0.25f32, -0.5].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>());

    // What does not fit is an error that says how it would, and leaves no run behind.
    let refused = |map: &[&str]| {
        let map: Vec<&str> = map.iter().flat_map(|m| ["--init-map", *m]).collect();
        let (code, _, err) = run(&at, &[&tune[..], &["--run", "c"], &map].concat());
        assert_eq!(code, 1, "{err}");
        assert!(!at.join("c").exists());
        err
    };
    let err = refused(&["body.w = fc.weight"]);
    assert!(
        err.contains("E0513") && err.contains("`body.w` is [features=4 classes=2] in the model"),
        "{err}"
    );
    let err = refused(&[]);
    assert!(
        err.contains("has nothing that the model has") && err.contains("it has `fc.bias`, `fc.weight`"),
        "{err}"
    );
    assert!(refused(&["body.x = fc.weight"]).contains("did you mean `body.w`?"));
    assert!(refused(&["body.w = fc.weigth"]).contains("did you mean `fc.weight`?"));
    assert!(refused(&["body.* = fc"]).contains("have not the same number of `*`"));
    foreign(&at.join("torch.safetensors"), &[("body.w", &[4, 2], vec![f32::NAN; 8])]);
    assert!(refused(&[]).contains("its element 0 is NaN"), "{}", refused(&[]));
    // The step whose loss is not finite is run again from the values that were taken.
    foreign(&at.join("torch.safetensors"), &[("body.w", &[4, 2], vec![3e38; 8])]);
    let (code, _, err) = run(&at, &[&tune[..], &["--run", "d"]].concat());
    assert!(code == 1 && err.contains("the first value that is not finite is"), "{err}");
    std::fs::write(at.join("torch.safetensors"), "no tensors").unwrap();
    assert!(refused(&[]).contains("E0512"), "{}", refused(&[]));
}

#[test]
fn checkpoints_are_listed_exported_and_compared() {
    let at = trained("ckpt");
    let (_, out, err) = run(&at, &["ckpt", "list", "a"]);
    assert!(out.contains("  w  f32 [features=4 classes=2]\n"), "{out}{err}");
    let json = events(&at, &["ckpt", "list", "a"]);
    assert_eq!(json[0]["tensors"][0]["dims"], serde_json::json!(["features", "classes"]));

    events(&at, &["train", "--run", "a", "--resume", "--steps", "40"]);
    let (code, out, err) = run(&at, &["ckpt", "diff", "a@30", "a", "--exit-code"]);
    assert_eq!((code, err.as_str()), (1, ""));
    assert!(
        out.contains("w  f32 [4 2]  8 elements, by up to ")
            && out.ends_with("different: 1 tensor, equal: none\n"),
        "{out}"
    );
    let same = ["ckpt", "diff", "a@40", "a", "--exit-code"];
    assert_eq!(run(&at, &same), (0, "equal, bit for bit: 1 tensor\n".into(), String::new()));
    let json = events(&at, &["ckpt", "diff", "a@30", "a"]);
    assert!(json[0]["tensor"] == "w" && json[0]["max_difference"].as_f64().unwrap() > 0.0, "{json:?}");
    assert_eq!(json[1], serde_json::json!({"equal": 0, "different": 1}));

    // What is exported evaluates as the run does.
    let moments = ["train", "tuned.mw", "--data", "data", "--run", "t", "--steps", "10"];
    events(&at, &moments);
    run(&at, &["ckpt", "export", "t", "-o", "all.safetensors"]);
    assert_eq!(tensors(&at.join("all.safetensors")).len(), 4, "with the moments of what is trained");
    let names: Vec<_> = exported(&at, "t").into_iter().map(|t| t.0).collect();
    assert_eq!(names, ["body.w", "head.b"]);
    let loss = |e: &[Value]| e[0]["eval_loss"].as_f64().unwrap();
    let file = ["eval", "tuned.mw", "--data", "data", "--checkpoint", "out.safetensors"];
    assert_eq!(loss(&events(&at, &file)), loss(&events(&at, &["eval", "t"])));
    // Where another model or another type reads it, that is said.
    std::fs::write(at.join("other.mw"), TUNED.replace("tuned", "other")).unwrap();
    let other =
        ["eval", "other.mw", "--data", "data", "--checkpoint", "out.safetensors", "--precision", "f64"];
    let (code, _, err) = run(&at, &other);
    assert!(code == 0 && err.contains("written by the model `tuned`, and this is `other`"), "{err}");
    assert!(err.contains("the parameters of the checkpoint are f32, those of the model f64"), "{err}");
    let (code, _, err) = run(&at, &["ckpt", "export", "t", "-o", "no/where.safetensors"]);
    assert!(code == 1 && err.contains("E0514"), "{err}");
}

#[test]
fn tensors_get_other_names_with_their_moments() {
    let at = trained("ckpt-rename");
    let train = ["train", "tuned.mw", "--data", "data", "--run", "t", "--steps", "10"];
    events(&at, &train);
    let text = TUNED.replace("as head", "as top").replace("body", "base");
    std::fs::write(at.join("tuned.mw"), text).unwrap();
    let goes_on = ["train", "tuned.mw", "--run", "t", "--resume", "--steps", "20"];
    let (code, _, err) = run(&at, &goes_on);
    assert!(code == 1 && err.contains("E0513"), "{err}");
    let (code, _, err) = run(&at, &["ckpt", "rename", "t", "head.* = top.*"]);
    assert!(code == 1 && err.contains("the new name comes first: `top.* = head.*`"), "{err}");
    let (code, _, err) = run(&at, &["ckpt", "rename", "t", "top.* = head.*; top.b = body.w"]);
    assert!(code == 1 && err.contains("would both be named `top.b`"), "{err}");
    let (code, out, err) = run(&at, &["ckpt", "rename", "t", "top.b = head.b; base.* = body.*"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("head.b/m  ->  top.b/m") && out.contains("renamed in step 10"), "{out}");
    assert_eq!(std::fs::read_dir(at.join("t/checkpoints")).unwrap().count(), 2, "nothing is left over");
    let (code, _, err) = run(&at, &goes_on);
    assert_eq!(code, 0, "{err}");
    let (code, _, err) = run(&at, &["ckpt", "rename", "t", "x = top.b transposed"]);
    assert!(code == 1 && err.contains("changes only names"), "{err}");
}

/// A file of parameters that another framework wrote is read by its names, as `--init` reads it.
#[test]
fn plain_files_of_parameters_are_evaluated() {
    let at = support::prepared("plain");
    events(&at, &["train", "sums.mw", "--data", "data", "--run", "a", "--steps", "9", "--precision", "f64"]);
    let checkpoint = at.join("a/checkpoints");
    let tensors = std::fs::read_dir(&checkpoint).unwrap().map(|e| e.unwrap().path());
    let newest = tensors.filter(|p| p.extension().is_some_and(|e| e == "safetensors")).max().unwrap();
    let newest = meshwright_runs::checkpoint::read_file(&newest).unwrap();
    let w = newest.tensor("w").unwrap();
    let write = |name: &str, tensors: &[(&str, &str, &[u8])]| {
        let (mut head, mut bytes) = (String::from("{"), Vec::new());
        for (name, about, data) in tensors {
            let from = bytes.len();
            bytes.extend_from_slice(data);
            let comma = if head.len() > 1 { "," } else { "" };
            head += &format!("{comma}\"{name}\":{{{about},\"data_offsets\":[{from},{}]}}", bytes.len());
        }
        head += "}";
        let all = [&(head.len() as u64).to_le_bytes()[..], head.as_bytes(), &bytes].concat();
        std::fs::write(at.join(name), all).unwrap();
    };
    let about = "\"dtype\":\"F64\",\"shape\":[4,2]";
    write("w.safetensors", &[("w", about, &w.data), ("count", "\"dtype\":\"I64\",\"shape\":[1]", &[0; 8])]);
    write("other.safetensors", &[("weight", about, &w.data)]);
    write("whole.safetensors", &[("w", "\"dtype\":\"I64\",\"shape\":[4,2]", &w.data)]);
    write("small.safetensors", &[("w", "\"dtype\":\"F64\",\"shape\":[2,2]", &w.data[..32])]);
    let with = ["--data", "data", "--precision", "f64", "--checkpoint"];
    let of_run = &events(&at, &["eval", "a"])[0];
    let plain = &events(&at, &[&["eval", "sums.mw"], &with[..], &["w.safetensors"]].concat())[0];
    assert_eq!(
        (&plain["eval_loss"], &plain["eval_accuracy"]),
        (&of_run["eval_loss"], &of_run["eval_accuracy"])
    );
    let predict = events(&at, &[&["predict", "sums.mw"], &with[..], &["w.safetensors"]].concat());
    assert_eq!(predict[1..], events(&at, &["predict", "a"])[1..]);
    let (_, _, err) = support::run_in(&at, &[&["eval", "sums.mw"], &with[..], &["w.safetensors"]].concat());
    assert!(
        err.contains("`w.safetensors` is no checkpoint of a run: parameters are taken by their paths"),
        "{err}"
    );
    assert!(err.contains("the model has no `count`: left out"), "{err}");
    for (file, why, help) in [
        ("other.safetensors", "`other.safetensors` has no `w`", "--init FILE --init-map RULES"),
        ("small.safetensors", "`w` is [2, 2] in `small.safetensors`, [4, 2] in the model", "`--dim`"),
        (
            "whole.safetensors",
            "`w` of `whole.safetensors` has elements of I64, not f64",
            "write it as floats",
        ),
    ] {
        let (code, _, err) = support::run_in(&at, &[&["eval", "sums.mw"], &with[..], &[file]].concat());
        assert!(code == 1 && err.contains("E0513") && err.contains(why) && err.contains(help), "{err}");
    }
    // The index of several files, which may be named by their folder.
    let index = |name: &str, file: &str| {
        std::fs::write(at.join(name), format!("{{\"weight_map\": {{\"w\": \"{file}\"}}}}"))
    };
    std::fs::create_dir(at.join("parts")).unwrap();
    write("parts/model-1-of-2.safetensors", &[("w", about, &w.data)]);
    write("parts/model-2-of-2.safetensors", &[("count", "\"dtype\":\"I64\",\"shape\":[1]", &[0; 8])]);
    let eval = |what: &str| {
        support::run_in(&at, &[&["eval", "sums.mw", "--format", "json"], &with[..], &[what]].concat())
    };
    let (code, _, err) = eval("parts");
    assert!(code == 1 && err.contains("E0512"), "{err}");
    index("parts/model.safetensors.index.json", "model-1-of-2.safetensors").unwrap();
    for parts in ["parts", "parts/model.safetensors.index.json"] {
        let (code, out, err) = eval(parts);
        assert!(code == 0 && out.contains(&format!("\"eval_loss\":{}", of_run["eval_loss"])), "{out}{err}");
    }
    index("parts/model.safetensors.index.json", "model-2-of-2.safetensors").unwrap();
    let (code, _, err) = eval("parts");
    assert!(code == 1 && err.contains("E0512") && err.contains("has no `w`, as the index says"), "{err}");
    std::fs::remove_file(at.join("parts/model.safetensors.index.json")).unwrap();
    std::fs::remove_file(at.join("parts/model-2-of-2.safetensors")).unwrap();
    assert_eq!(eval("parts").0, 0);
}
