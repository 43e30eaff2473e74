//! What `predict` takes and gives: the inputs that are read and no others, any value by its name, files that others read, and
//! random values that belong to an example.

use crate::support::folder;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

const MODEL: &str = "
dim batch = 12, features = 3, hidden = 4, classes = 5
layer dense(x, in, out) {
    param w[in, out] = normal(0, 1)
    let y = sum[in](x * w)
    return y
}
layer block(x) {
    let up = dense(x, [features], [hidden])
    return tanh(up)
}
model guess {
    input x[batch, features]: float
    input label[batch]: i32 in classes
    let h      = block(x) as b1
    let logits = dense(h, [hidden], [classes]) as head
    loss   l        = mean[batch](cross_entropy[classes](logits, label))
    output class    = argmax[classes](logits)
    output sure     = max[classes](softmax[classes](logits)) > 0.5
    output sampled  = logits + random_normal[classes, batch](0, 1)
    output dreamed  = random_uniform[batch, hidden](0, 1)
}
train guess {
    minimize l
    optimizer sgd(lr = 0.1)
}
";

const LABELED: usize = 30;
const NEW: usize = 17;

/// An `.npy` file of `descr` elements.
fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    out.extend((header.len() as u16).to_le_bytes());
    out.extend(header.as_bytes());
    out.extend(data);
    out
}

/// A folder with a trained run `a`, and examples without labels in `new.npy`.
fn prepared(name: &str) -> PathBuf {
    let at = folder(name);
    std::fs::write(at.join("guess.mw"), MODEL).unwrap();
    let floats = |n: usize| -> Vec<u8> {
        let x = |i: usize| ((i * 37 % 101) as f32 / 50.0 - 1.0).to_le_bytes();
        (0..n * 3).flat_map(x).collect()
    };
    std::fs::write(at.join("x.npy"), npy("<f4", &format!("({LABELED}, 3)"), &floats(LABELED))).unwrap();
    let labels: Vec<u8> = (0..LABELED as i32).flat_map(|i| (i % 5).to_le_bytes()).collect();
    std::fs::write(at.join("label.npy"), npy("<i4", &format!("({LABELED},)"), &labels)).unwrap();
    std::fs::write(at.join("new.npy"), npy("<f4", &format!("({NEW}, 3)"), &floats(NEW))).unwrap();
    let args = ["train", "guess.mw", "--data", "x=x.npy,label=label.npy", "--run", "a", "--epochs", "1"];
    let (code, _, err) = run(&at, &args);
    assert_eq!(code, 0, "{err}");
    at
}

fn run(at: &Path, args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_meshwright")).args(args).current_dir(at).output().unwrap();
    let text = |b: Vec<u8>| String::from_utf8(b).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// What is printed of a prediction that must succeed, without its first line.
fn rows(at: &Path, more: &[&str]) -> Vec<Value> {
    let args = [&["predict", "a", "--data", "x=new.npy", "--format", "json"], more].concat();
    let (code, out, err) = run(at, &args);
    assert_eq!(code, 0, "{more:?}: {err}");
    out.lines().skip(1).map(|l| serde_json::from_str(l).unwrap()).collect()
}

fn failed(at: &Path, args: &[&str]) -> String {
    let (code, _, err) = run(at, args);
    assert_eq!(code, 1, "{args:?}: {err}");
    err
}

#[test]
fn only_the_inputs_that_are_read_need_data() {
    let at = prepared("predict-inputs");
    let all = rows(&at, &["--output", "class"]);
    assert_eq!(all.len(), NEW);
    assert_eq!(rows(&at, &["--output", "class", "--limit", "5"]), all[..5]);
    // A file for an input that is not read is no mistake; one for no input at all is.
    let both = ["predict", "a", "--data", "x=new.npy,label=nowhere.npy", "--output", "class"];
    assert_eq!(run(&at, &both).0, 0);
    let wrong = failed(&at, &["predict", "a", "--data", "x=new.npy,lable=label.npy", "--output", "class"]);
    assert!(wrong.contains("no input `lable`"), "{wrong}");
    // The loss reads the labels.
    let needs = failed(&at, &["predict", "a", "--data", "x=new.npy", "--value", "l"]);
    assert!(needs.contains("input `label` has no file"), "{needs}");
    // Without an input it must be said how many there are.
    let unknown = failed(&at, &["predict", "a", "--data", "nowhere", "--output", "dreamed"]);
    assert!(unknown.contains("how many examples") && unknown.contains("--limit 100"), "{unknown}");
    // A value that is not of examples needs no number.
    let (code, out, err) = run(&at, &["predict", "a", "--value", "head.w"]);
    assert!(code == 0 && out.starts_with("head.w [["), "{out}{err}");
    let (code, out, err) = run(&at, &["predict", "a", "--output", "dreamed", "--limit", "100"]);
    assert_eq!((code, out.lines().count()), (0, 100), "{err}");
}

#[test]
fn any_value_has_a_name() {
    let at = prepared("predict-values");
    let logits = rows(&at, &["--value", "head.y"]);
    assert_eq!(logits[0]["head.y"].as_array().unwrap().len(), 5);
    for name in ["logits", "head"] {
        let same = rows(&at, &["--value", name]);
        let key = same[0].as_object().unwrap().keys().find(|k| *k != "example").unwrap().clone();
        assert!(same.iter().zip(&logits).all(|(a, b)| a[&key] == b["head.y"]), "{name}: {}", same[0]);
    }
    // The end of a path is enough where one value alone ends so, and values and outputs may be asked for together.
    assert_eq!(rows(&at, &["--value", "b1.up"]), rows(&at, &["--value", "up"]));
    let mixed = rows(&at, &["--value", "b1.up", "--output", "class"]);
    assert!(mixed[0]["b1.up"].is_array() && mixed[0]["class"].is_u64(), "{}", mixed[0]);
    let wrong = failed(&at, &["predict", "a", "--data", "x=new.npy", "--value", "b1.upp"]);
    assert!(wrong.contains("did you mean `b1.up`?"), "{wrong}");
    let wrong = failed(&at, &["predict", "a", "--data", "x=new.npy", "--value", "w"]);
    assert!(wrong.contains("values are called `w`") && wrong.contains("`head.w`"), "{wrong}");
    let wrong = failed(&at, &["predict", "a", "--data", "x=new.npy", "--output", "up"]);
    assert!(wrong.contains("--value up"), "{wrong}");
    let help = failed(&at, &["predict", "a", "--data", "x=new.npy", "--output", "clas"]);
    assert!(help.contains("did you mean `class`?"), "{help}");
}

#[test]
fn what_is_drawn_belongs_to_the_example() {
    let at = prepared("predict-random");
    let drawn = |more: &[&str]| -> Vec<Value> {
        let rows = rows(&at, &[&["--output", "dreamed", "--output", "sampled"], more].concat());
        rows.into_iter().map(|r| r["dreamed"].clone()).collect()
    };
    let one = drawn(&[]);
    assert_eq!(one.len(), NEW);
    let mut distinct: Vec<String> = one.iter().map(Value::to_string).collect();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), NEW, "examples draw numbers of their own");
    for more in [
        &["--dim", "batch=5"][..],
        &["--dim", "batch=17"],
        &["--dim", "batch=1", "--limit", "17"],
        &["--layout", "batch -> a", "--mesh", "a=4"],
        &["--layout", "batch -> a; hidden -> b", "--mesh", "a=2,b=3", "--dim", "batch=7"],
        &["--seed", "0"],
    ] {
        assert_eq!(drawn(more), one, "{more:?}");
    }
    let other = drawn(&["--seed", "1"]);
    assert!(one.iter().zip(&other).all(|(a, b)| a != b), "another seed draws other numbers");
    // Also where the dim of the examples is not the first of what is drawn.
    let sampled = |more: &[&str]| -> Vec<f64> {
        let rows = rows(&at, &[&["--output", "sampled", "--precision", "f64"], more].concat());
        rows.iter()
            .flat_map(|r| r["sampled"].as_array().unwrap().clone())
            .map(|x| x.as_f64().unwrap())
            .collect()
    };
    let one = sampled(&[]);
    for more in [&["--dim", "batch=5"][..], &["--layout", "batch -> a; classes -> b", "--mesh", "a=2,b=2"]] {
        let apart = one.iter().zip(sampled(more)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(apart < 1e-12, "{more:?}: {apart}");
    }
}

#[test]
fn outputs_are_written_to_files() {
    let at = prepared("predict-files");
    let predict = |more: &[&str]| {
        let (code, out, err) = run(&at, &[&["predict", "a", "--data", "x=new.npy"], more].concat());
        assert_eq!(code, 0, "{more:?}: {err}");
        out
    };
    let out = predict(&["--output", "class", "-o", "class.npy"]);
    assert_eq!(out, "class.npy: class[batch=17] i32\n");
    let bytes = std::fs::read(at.join("class.npy")).unwrap();
    let (header, data) = bytes.split_at(bytes.len() - 4 * NEW);
    assert!(header.starts_with(b"\x93NUMPY\x01\x00") && header.len() % 64 == 0 && header.ends_with(b"\n"));
    let header = String::from_utf8_lossy(&header[10..]).trim_end().to_string();
    assert_eq!(header, "{'descr': '<i4', 'fortran_order': False, 'shape': (17,), }");
    let written: Vec<i32> = data.chunks(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect();
    let printed: Vec<i32> =
        rows(&at, &["--output", "class"]).iter().map(|r| r["class"].as_i64().unwrap() as i32).collect();
    assert_eq!(written, printed);
    assert_eq!(std::fs::metadata(at.join("class.npy")).unwrap().len() as usize, bytes.len());

    // Several go into one file by name, or into a folder; what was there before is replaced.
    let several = ["--output", "class", "--output", "sure", "--value", "b1.up", "-o"];
    predict(&[&several[..], &["all.npz"]].concat());
    predict(&[&several[..], &["all.npz"]].concat());
    predict(&[&several[..], &["all.safetensors"]].concat());
    let listed = predict(&[&several[..], &["all"]].concat());
    assert_eq!(listed.lines().count(), 3, "{listed}");
    let logits = std::fs::read(at.join("all/b1.up.npy")).unwrap();
    // Each is read back as the data of another prediction.
    let reader = "dim batch = 17, hidden = 4
model read {
    input up[batch, hidden]: float
    input class[batch]: i32
    output same = up
    output number = class
    param p[] = 0
    loss l = p ** 2
}
train read { minimize l optimizer sgd(lr = 1) }";
    std::fs::write(at.join("read.mw"), reader).unwrap();
    let (code, _, err) = run(
        &at,
        &["train", "read.mw", "--data", "up=all/b1.up.npy,class=class.npy", "--steps", "1", "--run", "r"],
    );
    assert_eq!(code, 0, "{err}");
    for data in
        ["up=all.npz:b1.up,class=all.npz:class", "up=all.safetensors:b1.up,class=all.safetensors:class"]
    {
        let (code, _, err) = run(&at, &["predict", "r", "--data", data, "-o", "back"]);
        assert_eq!(code, 0, "{data}: {err}");
        assert_eq!(std::fs::read(at.join("back/same.npy")).unwrap(), logits, "{data}");
        assert_eq!(std::fs::read(at.join("back/number.npy")).unwrap(), bytes, "{data}");
    }
    let left: Vec<String> =
        std::fs::read_dir(&at).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    assert!(left.iter().all(|n| !n.starts_with(".tmp")), "{left:?}");
}

#[test]
fn what_cannot_be_written_is_said_before_anything_is_computed() {
    let at = prepared("predict-refused");
    let refused = |more: &[&str]| failed(&at, &[&["predict", "a", "--data", "x=new.npy"], more].concat());
    let said = refused(&["-o", "all.npy"]);
    assert!(said.contains("holds one tensor, and there are 4") && said.contains("all.npz"), "{said}");
    assert!(!at.join("all.npy").exists());
    let said = refused(&["-o", "all.csv"]);
    assert!(said.contains("nothing is written as `.csv`"), "{said}");
    let said = refused(&["-o", "nowhere/all.npz"]);
    assert!(said.contains("there is no folder `nowhere`"), "{said}");
    let said = refused(&["-o", "guess.mw/"]);
    assert!(said.contains("cannot be written"), "{said}");
    std::fs::write(at.join("plain"), "text").unwrap();
    let said = refused(&["-o", "plain"]);
    assert!(said.contains("is a file"), "{said}");
    assert_eq!(std::fs::read_to_string(at.join("plain")).unwrap(), "text");
}

/// Names of classes that data has stay with the run: what is a position along their dim is said by its number and its name, also
/// where the data is gone.
/// A file that examples are read from is not replaced by what is computed of them, however it is spelled.
#[test]
fn outputs_never_replace_what_they_are_computed_of() {
    let at = prepared("predict-own-input");
    let before = std::fs::read(at.join("new.npy")).unwrap();
    std::fs::create_dir(at.join("out")).unwrap();
    std::fs::copy(at.join("new.npy"), at.join("out/class.npy")).unwrap();
    std::os::unix::fs::symlink("new.npy", at.join("link.npy")).unwrap();
    for (data, to) in [("x=new.npy", "new.npy"), ("x=new.npy", "./link.npy"), ("x=out/class.npy", "out")] {
        let err = failed(&at, &["predict", "a", "--data", data, "--output", "class", "-o", to]);
        assert!(err.contains("E0516") && err.contains("is read for its examples"), "{to}: {err}");
    }
    assert_eq!(std::fs::read(at.join("new.npy")).unwrap(), before);
    let other = ["predict", "a", "--data", "x=new.npy", "--output", "class", "-o", "other.npy"];
    assert_eq!(run(&at, &other).0, 0);
}

#[test]
fn classes_are_called_by_the_names_that_the_data_has() {
    let at = prepared("predict-names");
    let names = ["red", "blue", "a \"b\"", "-1", "\u{1b}[31mred"];
    let list = serde_json::to_string(&names).unwrap().replace("\\u001b", "\\u001B");
    let rows = |i: usize| format!("{}\n", ["red", "blue", "\"a \"\"b\"\"\"", "-1", "3"][i % 5]);
    std::fs::create_dir(at.join("data")).unwrap();
    std::fs::copy(at.join("x.npy"), at.join("data/x.npy")).unwrap();
    std::fs::write(at.join("data/l.csv"), "kind\n".to_string() + &(0..LABELED).map(rows).collect::<String>())
        .unwrap();
    let toml = format!("[train]\nx = \"x.npy\"\nlabel = {{ file = \"l.csv:kind\", classes = {list} }}\n");
    std::fs::write(at.join("data/data.toml"), toml).unwrap();
    let args = ["train", "guess.mw", "--data", "data", "--run", "n", "--epochs", "1", "--no-eval"];
    assert_eq!(run(&at, &args).0, 0);
    std::fs::remove_dir_all(at.join("data")).unwrap();

    let outputs = ["--output", "class", "--output", "sure", "--value", "logits"];
    let predict = |from: &str, more: &[&str]| {
        let (code, out, err) =
            run(&at, &[&["predict", from, "--data", "x=new.npy"], &outputs[..], more].concat());
        assert_eq!(code, 0, "{more:?}: {err}");
        out
    };
    let json = |from: &str| -> Vec<Value> {
        predict(from, &["--format", "json"]).lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    };
    let said = json("n");
    assert_eq!(said[0]["class_names"], serde_json::json!({ "classes": names }));
    let of = |i: usize| said[0]["outputs"][i]["position_in"].clone();
    assert_eq!((of(0), of(1), of(2)), ("classes".into(), Value::Null, Value::Null));
    assert_eq!(said.len(), NEW + 1);
    for row in &said[1..] {
        let class = row["class"].as_u64().unwrap() as usize;
        assert_eq!(row["names"], serde_json::json!({ "class": names[class] }), "{row}");
    }
    // As text, where no name steers the terminal.
    let text = predict("n", &[]);
    for (line, row) in text.lines().zip(&said[1..]) {
        let name = names[row["class"].as_u64().unwrap() as usize].replace('\u{1b}', "\\u{1b}");
        assert!(line.contains(&format!("  class {} ({name})  sure ", row["class"])), "{line}");
    }
    let written = predict("n", &["-o", "all.npz"]);
    assert!(written.contains("class[batch=17] i32 (0 red, 1 blue, 2 a \"b\", 3 -1, 4 "), "{written}");
    // A run without names says numbers alone, and other numbers of classes have no names.
    assert!(json("a").iter().all(|row| row.get("names").is_none() && row.get("class_names").is_none()));
}

/// Before the training whose result could not be predicted with.
#[test]
fn an_output_that_is_refused_is_named_at_check_and_train() {
    let at = prepared("predict-no-mean");
    let best = "    output best = argmax[batch](logits[classes = 0])\n    output class ";
    std::fs::write(at.join("best.mw"), MODEL.replacen("    output class ", best, 1)).unwrap();
    let train =
        ["train", "best.mw", "--data", "x=x.npy,label=label.npy", "--no-save", "--no-eval", "--steps", "1"];
    for args in [&["check", "best.mw"][..], &train] {
        let (code, _, err) = run(&at, args);
        assert!(code == 0 && err.matches("warning[E0206]").count() == 1, "{err}");
        assert!(err.contains("`best` is i32 of each batch, and has no mean: `predict` refuses it"), "{err}");
    }
    let err = failed(&at, &["predict", "best.mw", "--checkpoint", "a", "--data", "x=new.npy"]);
    assert!(err.contains("error[E0206]: `best` is i32 of each batch, and has no mean\n"), "{err}");
    let (_, _, err) = run(&at, &["check", "guess.mw"]);
    assert!(!err.contains("E0206"), "{err}");
}

const LOOPS: &str = "
dim batch = 4, features = 3, layers = 3, steps = 2
layer twice(x) {
    repeat steps {
        let inner = x * 0.5
        x = x + inner
    }
    return x
}
model loops {
    input x[batch, features]: float
    param b[features] = normal(0, 1)
    let y = x + b
    repeat layers {
        param w[features] = normal(0, 1)
        let u = tanh(twice(y) as deep * w)
        y = y + u
    }
    output o = y + 0
    loss l   = mean[batch, features](y * y)
}
train loops {
    minimize l
    optimizer sgd(lr = 0.1)
}
";

/// A value of the body of a loop has the loop's dim, in every precision: what an iteration adds is what its sum grows by.
#[test]
fn values_of_loops_are_those_of_all_iterations() {
    let at = prepared("predict-loops");
    std::fs::write(at.join("loops.mw"), LOOPS).unwrap();
    let numbers =
        |v: &Value| -> Vec<f64> { v.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect() };
    for precision in ["f64", "f32", "bf16"] {
        let args = ["train", "loops.mw", "--data", "x=x.npy", "--run", precision, "--steps", "1"];
        let (code, _, err) = run(&at, &[&args, &["--precision", precision, "--no-eval"][..]].concat());
        assert_eq!(code, 0, "{err}");
        let asked = ["layers.u", "layers.y", "layers.deep.steps.inner"].map(|v| ["--value", v]).concat();
        let args = ["predict", precision, "--data", "x=new.npy", "--format", "json", "--output", "o"];
        let (code, out, err) = run(&at, &[&args, &asked[..]].concat());
        assert_eq!(code, 0, "{err}");
        let near = if precision == "bf16" { 0.1 } else { 1e-5 };
        let mut lines = out.lines().map(|l| serde_json::from_str::<Value>(l).unwrap());
        let dims = |v: &Value| {
            v["outputs"].as_array().unwrap().iter().map(|o| o["dims"].to_string()).collect::<Vec<_>>()
        };
        let shapes = dims(&lines.next().unwrap());
        assert_eq!(
            shapes,
            [
                r#"["features"]"#,
                r#"["layers","features"]"#,
                r#"["layers","features"]"#,
                r#"["layers","steps","features"]"#
            ]
        );
        let rows: Vec<Value> = lines.collect();
        assert_eq!(rows.len(), NEW);
        for row in &rows {
            let [u, y] =
                ["layers.u", "layers.y"].map(|v| (0..3).map(|l| numbers(&row[v][l])).collect::<Vec<_>>());
            let inner = &row["layers.deep.steps.inner"];
            for f in 0..3 {
                assert!((numbers(&row["o"])[f] - y[2][f]).abs() <= near, "{precision}: {row}");
                for l in 1..3 {
                    assert!((y[l][f] - y[l - 1][f] - u[l][f]).abs() <= near, "{precision}: {row}");
                    // The sum is half as large when the inner loop begins, and grows by half of itself.
                    let [first, second] = [0, 1].map(|s| numbers(&inner[l][s])[f]);
                    assert!((first - y[l - 1][f] / 2.0).abs() <= near, "{precision}: {row}");
                    assert!((second - 1.5 * first).abs() <= near, "{precision}: {row}");
                }
            }
        }
    }
}
