//! What `eval` and `predict` say of a whole data set: of every example, whatever the batch, and of the right loss.

use crate::support::{SMALL, folder, run, tensors};
use serde_json::Value;
use std::path::Path;
use tempfile::TempDir;

/// A linear model of the small data; `more` are further statements of it.
fn model(dims: &str, more: &str) -> String {
    format!(
        "dim batch = 12, rows = 5, cols = 4, classes = 10\n{dims}\n\
         model m {{\n\
         \x20   input image[batch, rows, cols]: u8\n\
         \x20   input label[batch]: i32 in classes\n\
         \x20   param w[rows, cols, classes] = normal(0, 0.1)\n\
         \x20   let x = cast(image, float) / 255\n\
         \x20   let logits = sum[rows, cols](x * w)\n\
         {more}\n\
         }}\n\
         train m {{\n    minimize l\n    optimizer sgd(lr = 0.1)\n}}\n"
    )
}

pub(crate) const LOSS: &str = "    loss l = mean[batch](cross_entropy[classes](logits, label))";

/// The small data, and a model in `m.mw`.
pub(crate) struct Place {
    dir: TempDir,
    data: String,
    file: String,
}

impl Place {
    pub(crate) fn new(dims: &str, more: &str) -> Place {
        let dir = folder(SMALL);
        let path = |n: &str| dir.path().join(n).display().to_string();
        let (data, file) = (path("data"), path("m.mw"));
        std::fs::write(&file, model(dims, more)).unwrap();
        Place { dir, data, file }
    }

    fn at(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// The events of a training of an epoch in the folder `to`.
    pub(crate) fn trained(&self, to: &str, more: &[&str]) -> Vec<Value> {
        let to = self.at(to);
        let args =
            ["train", &self.file, "--data", &self.data, "--run", &to, "--epochs", "1", "--format", "json"];
        lines(&[&args[..], more].concat())
    }

    /// `eval` or `predict` of the run in `from`.
    pub(crate) fn of(&self, command: &str, from: &str, more: &[&str]) -> Vec<Value> {
        let from = self.at(from);
        let args = [command, &self.file, "--data", &self.data, "--checkpoint", &from, "--format", "json"];
        let mut lines = lines(&[&args[..], more].concat());
        if command == "predict" {
            assert!(lines.remove(0)["outputs"].is_array(), "predictions begin with what their values are");
        }
        lines
    }
}

fn lines(args: &[&str]) -> Vec<Value> {
    let said = run(args);
    assert_eq!(said.code, Some(0), "{args:?}: {}", said.err);
    said.out.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

fn numbers(v: &Value) -> Vec<f64> {
    match v {
        Value::Array(items) => items.iter().flat_map(numbers).collect(),
        other => vec![other.as_f64().unwrap()],
    }
}

#[test]
fn the_loss_of_an_evaluation_is_the_one_that_is_minimized() {
    let aux = "    loss aux = 1000 * mean[batch](sum[classes](logits * logits))";
    let two = Place::new("", &format!("{aux}\n{LOSS}"));
    let one = Place::new("", LOSS);
    let epoch = |p: &Place| p.trained("run", &[]).into_iter().find(|e| e["event"] == "epoch").unwrap();
    let (two_said, one_said) = (epoch(&two), epoch(&one));
    assert_eq!(two_said["eval_loss"], one_said["eval_loss"]);
    assert!(two_said["eval_aux"].as_f64().unwrap() > 10.0, "{two_said}");
    let eval = two.of("eval", "run", &[]);
    assert_eq!(
        (&eval[0]["eval_loss"], &eval[0]["eval_aux"]),
        (&two_said["eval_loss"], &two_said["eval_aux"])
    );
    // For people the other loss is a column.
    let args = ["train", &two.file, "--data", &two.data, "--no-save", "--epochs", "1"];
    let table = run(&args).out;
    assert!(table.contains("eval loss") && table.contains("aux"), "{table}");
    // Without a set to evaluate on they would hold nothing.
    let inputs = std::fs::read_to_string(format!("{}/data.toml", two.data)).unwrap();
    let (train, _) = inputs.split_once("[test]").unwrap();
    std::fs::write(format!("{}/data.toml", two.data), train).unwrap();
    let table = run(&args).out;
    assert!(table.contains("train loss  seconds") && !table.contains("aux"), "{table}");
}

#[test]
fn examples_that_no_batch_can_hold_are_an_error() {
    // 50 test examples in batches of 15 leave 5, a third of which is no size.
    let p =
        Place::new("dim third = batch / 3", &format!("{LOSS}\n    output class = argmax[classes](logits)"));
    p.trained("run", &["--no-eval", "--dim", "batch=15"]);
    let from = p.at("run");
    for command in ["eval", "predict"] {
        let args = [command, &p.file, "--data", &p.data, "--checkpoint", &from, "--dim", "batch=15"];
        let said = run(&args);
        assert_eq!((said.code, said.out.as_str()), (Some(1), ""), "{command}: {}", said.err);
        for part in ["E0516", "`batch` = 5", "multiple of 15", "third"] {
            assert!(said.err.contains(part), "{command}: {part}: {}", said.err);
        }
    }
    // Nothing is left over: every example has its line.
    let all = p.of("predict", "run", &["--dim", "batch=15", "--limit", "45"]);
    assert_eq!(all.len(), 45);
    // Nor does a training begin that could not be evaluated; a size that works is named.
    let q = Place::new("dim less = batch - 5", LOSS);
    let to = q.at("run");
    let said = run(&["train", &q.file, "--data", &q.data, "--run", &to]);
    assert_eq!(said.code, Some(1), "{}", said.err);
    assert!(said.err.contains("--dim batch=10") && said.err.contains("--no-eval"), "{}", said.err);
    assert!(!Path::new(&to).exists());
    q.trained("run", &["--dim", "batch=10"]);
}

#[test]
fn an_output_without_examples_is_of_all_of_them() {
    let outputs = "    output total = sum[batch](logits)\n    output greatest = sqrt(max[batch, classes](exp(logits)))\n\
                   \x20   output class = argmax[classes](logits)\n    output bias = sum[rows, cols](w)";
    let p = Place::new("", &format!("{LOSS}\n{outputs}"));
    p.trained("run", &[]);
    let reference = p.of("predict", "run", &["--dim", "batch=50"]);
    assert_eq!(reference.len(), 3 + SMALL.test);
    let find = |lines: &[Value], name: &str| -> Vec<f64> {
        let found: Vec<&Value> = lines.iter().filter(|l| l.get(name).is_some()).collect();
        assert_eq!(found.len(), 1, "{name}");
        numbers(&found[0][name])
    };
    assert_eq!(find(&reference, "total").len(), 10);
    for more in [
        &["--dim", "batch=12"][..],
        &["--dim", "batch=7", "--mesh", "a=2,b=2", "--layout", "batch -> a; classes -> b"],
        &["--dim", "batch=64", "--mesh", "a=3", "--layout", "classes -> a"],
    ] {
        let other = p.of("predict", "run", more);
        assert_eq!(other.len(), reference.len(), "{more:?}");
        for name in ["total", "greatest", "bias"] {
            for (a, b) in find(&reference, name).iter().zip(find(&other, name)) {
                assert!((a - b).abs() <= 1e-4 * a.abs().max(1.0), "{more:?}: {name}: {a} and {b}");
            }
        }
        let classes =
            |l: &[Value]| -> Vec<Value> { l.iter().filter_map(|l| l.get("class").cloned()).collect() };
        assert_eq!(classes(&other), classes(&reference), "{more:?}");
    }

    // What mixes the examples of a batch otherwise is of each batch, and that is said.
    let p = Place::new(
        "",
        &format!("{LOSS}\n    output spread = max[batch](softmax[batch](sum[classes](logits)))"),
    );
    p.trained("run", &[]);
    let from = p.at("run");
    let said = run(&["predict", &p.file, "--data", &p.data, "--checkpoint", &from]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.out.contains("spread") && said.err.contains("warning[E0206]: `spread`"), "{}", said.err);
    assert!(said.err.contains("mixes the examples of a batch: `softmax` along `batch`"), "{}", said.err);
}

#[test]
fn every_parameter_has_a_value_and_is_kept() {
    let more = format!(
        "{LOSS}\n    param t[classes] = normal(0, 1)\n    param f[classes] = normal(0, 1)\n    param o[classes] = normal(0, 1)\n\
         \x20   metric tilt = mean[batch](sum[classes](logits * t * f))\n    output tilted = sum[classes](logits * o)"
    );
    for frozen in ["", "    freeze f\n", "    freeze t\n    freeze f\n    freeze o\n"] {
        let p = Place::new("", &more);
        let text = std::fs::read_to_string(&p.file)
            .unwrap()
            .replace("    minimize l\n", &format!("    minimize l\n{frozen}"));
        std::fs::write(&p.file, text).unwrap();
        let mut evaluated = Vec::new();
        for (k, mesh) in
            [&[][..], &["--mesh", "a=2,b=2", "--layout", "batch -> a; classes -> b"]].iter().enumerate()
        {
            let to = format!("run{k}");
            let epoch = p.trained(&to, mesh).into_iter().find(|e| e["event"] == "epoch").unwrap();
            let kept = tensors(Path::new(&p.at(&to)));
            assert_eq!(kept.keys().collect::<Vec<_>>(), ["f", "o", "t", "w"], "{frozen}");
            assert!(kept["o"].data.iter().any(|b| *b != 0));
            let eval = p.of("eval", &to, mesh);
            assert_eq!(eval[0]["eval_tilt"], epoch["eval_tilt"], "{frozen}");
            evaluated.push(eval[0]["eval_tilt"].as_f64().unwrap());
            assert_eq!(p.of("predict", &to, mesh).len(), SMALL.test);
            // A run goes on with them.
            let again = p.at(&to);
            let args = ["train", &p.file, "--data", &p.data, "--run", &again, "--resume", "--epochs", "2"];
            assert_eq!(run(&[&args[..], mesh].concat()).code, Some(0));
        }
        assert!(
            (evaluated[0] - evaluated[1]).abs() < 1e-4 * evaluated[0].abs().max(1.0),
            "{frozen}: {evaluated:?}"
        );
    }
}

/// Under `microbatches` an evaluation takes as much memory as a part, and has the same results.
#[test]
fn an_evaluation_takes_its_batches_in_the_parts_of_a_step() {
    let metrics = "    metric hits = sum[batch](argmax[classes](logits) == label)
    metric best = max[batch](max[classes](logits))
    metric ratio = sum[batch](sum[classes](logits ** 2)) / sum[batch](sum[classes](abs(logits)))";
    let p = Place::new("", &format!("{LOSS}\n{metrics}"));
    p.trained("run", &["--precision", "f64"]);
    let whole = p.of("eval", "run", &["--precision", "f64"]);
    let names = ["eval_loss", "eval_hits", "eval_best", "eval_ratio"];
    for parts in ["microbatches 4", "microbatches 12", "batch -> data; microbatches 4"] {
        let mesh = if parts.starts_with('b') { "data=2" } else { "" };
        let args = ["--precision", "f64", "--layout", parts, "--mesh", mesh];
        let in_parts = p.of("eval", "run", if mesh.is_empty() { &args[..4] } else { &args });
        for name in names {
            let [a, b] = [&whole, &in_parts].map(|e| e[0][name].as_f64().unwrap());
            assert!((a - b).abs() <= 1e-13 * a.abs(), "{parts}: {name}: {a} and {b}");
        }
    }
    let workspace = |layout: &str| {
        let args = ["explain", &p.file, "--program", "eval", "--format", "json", "--layout", layout];
        lines(&args)[0]["per_device"]["workspace_bytes"].as_u64().unwrap()
    };
    let [one, four] = [workspace("batch -> -"), workspace("microbatches 4")];
    assert!(four * 2 < one, "{one} B, and in parts {four} B");

    // Where a result would be another, batches are whole, which is said.
    for (dims, more, why) in [
        ("", "    metric odd = sum[batch](logits[classes = 0]) / size(batch)", "the size of `batch`"),
        (
            "",
            "    metric mixed = sum[batch](softmax[batch](logits[classes = 0]) ** 2)",
            "mixes the examples of a batch",
        ),
        ("dim half = batch / 5", "", "cannot be made for `batch` = 2"),
    ] {
        let q = Place::new(dims, &format!("{LOSS}\n{more}"));
        q.trained("run", &["--no-eval", "--dim", "batch=10"]);
        let from = q.at("run");
        let args = ["eval", &q.file, "--data", &q.data, "--checkpoint", &from, "--dim", "batch=10"];
        let (alone, said) = (run(&args), run(&[&args[..], &["--layout", "microbatches 5"]].concat()));
        assert_eq!((said.code, alone.code), (Some(0), Some(0)), "{why}: {}", said.err);
        let found = |more: &[&str]| q.of("eval", "run", &[&["--dim", "batch=10"], more].concat()).remove(0);
        let (a, b) = (found(&[]), found(&["--layout", "microbatches 5"]));
        for name in ["eval_loss", "eval_odd", "eval_mixed"] {
            assert_eq!(a[name], b[name], "{why}");
        }
        let wanted = "an evaluation takes its batches of 10 whole: ";
        assert!(said.err.contains(wanted) && said.err.contains(why), "{why}: {}", said.err);
        assert!(!alone.err.contains(wanted), "{}", alone.err);
    }
}

/// Loops over constants and positions along the batch count in evaluations and predictions, whatever the batch size.
#[test]
fn values_that_read_no_data_are_of_the_whole_set() {
    for (of, z) in [
        ("repeat l3 { z = z * 2 }", "z"),
        ("scan l3 { z = z * 2\n let each = z }\n let u = max[l3](each)", "u"),
    ] {
        let more = format!(
            "let z = 1\n {of}\n let m = mean[batch, rows, cols](x)\n {LOSS} + {z}\n \
             metric light = m / {z}\n metric count = sum[batch](cast(index(batch) >= 0, float))\n \
             output c = {z}\n output k = 3\n output s = {z} * m"
        );
        let p = Place::new("dim l3 = 3", &more);
        p.trained("run", &[]);
        let mut evaluated = Vec::new();
        for batch in ["batch=12", "batch=5"] {
            let eval = p.of("eval", "run", &["--dim", batch]).remove(0);
            let number = |name: &str| eval[name].as_f64().unwrap();
            assert!(number("eval_loss") > 8.0, "{eval}");
            // A line for each result of all examples.
            let predicted = |more: &[&str]| -> Vec<f64> {
                let lines = p.of("predict", "run", &[&["--dim", batch], more].concat());
                lines.iter().flat_map(|l| l.as_object().unwrap().values().flat_map(numbers)).collect()
            };
            let all = predicted(&[]);
            assert!(all[..2] == [8.0, 3.0] && (all[2] - 64.0 * number("eval_light")).abs() < 1e-3, "{all:?}");
            assert_eq!(
                (predicted(&["--output", "c"]), predicted(&["--output", "k"])),
                (vec![8.0], vec![3.0])
            );
            evaluated.push([number("eval_count"), number("eval_light")]);
        }
        let [a, b] = [evaluated[0], evaluated[1]];
        assert!(a[0] == b[0] && a[0] > 12.0 && (a[1] - b[1]).abs() < 1e-5, "{evaluated:?}");
    }
}
