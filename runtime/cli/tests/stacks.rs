//! Parts of a stack: what a `train` block and `--init-map` say of some iterations of a loop is what they would say of a loop of
//! its own.

use crate::support::{self, data, events, folder, run_in as run, steps};
use meshwright_sorted::SortedMap;
use std::path::{Path, PathBuf};

/// Six layers in one loop.
const ONE: &str = "
dim batch = 10, features = 4, classes = 2, layers = 6, d = 4
layer block(h) {
    param w[features, d] = normal(0, 0.5)
    param b[d] = 0.1
    return sum[features](h * w) + b
}
model sums {
    input x[batch, features]: float
    input y[batch]: i32 in classes
    param head[features, classes] = normal(0, 0.5)
    let h = x
    repeat layers { h = h + tanh(block(h) as up)[d -> features] }
    let logits = sum[features](h * head)
    loss l = mean[batch](cross_entropy[classes](logits, y))
}
";

/// The same six in three loops.
fn three() -> String {
    let loops = ["low", "mid", "high"]
        .map(|l| format!("    repeat {l} {{ h = h + tanh(block(h) as up)[d -> features] }}\n"));
    ONE.replace("layers = 6", "low = 2, mid = 3, high = 1")
        .replace("    repeat layers { h = h + tanh(block(h) as up)[d -> features] }\n", &loops.concat())
}

fn prepared(name: &str) -> PathBuf {
    let at = folder(name);
    data(&at);
    at
}

fn write(at: &Path, name: &str, model: &str, train: &str) {
    std::fs::write(at.join(name), format!("{model}train sums {{\n    minimize l\n{train}\n}}\n")).unwrap();
}

/// The tensors of a run's newest checkpoint, `f64` of all of them.
fn tensors(at: &Path, name: &str) -> SortedMap<String, (Vec<usize>, Vec<f64>)> {
    let read = meshwright_train::read_checkpoint(&at.join(name), meshwright_runs::checkpoint::Which::Newest)
        .unwrap();
    let all = read.checkpoint.whole().unwrap();
    all.into_iter().map(|(n, t)| (n, (t.shape.clone(), t.to_f64().unwrap()))).collect()
}

const SPLIT: &str = "low.* = layers.*[0..2]; mid.* = layers.*[2..5]; high.* = layers.*[5..6]; head = head";

/// What is said of parts, and the same of loops of their own.
const CASES: [(&str, &str); 6] = [
    (
        "freeze layers[..2].*\noptimizer adam(lr = 0.01)\nclip global_norm = 0.05",
        "freeze low.*\noptimizer adam(lr = 0.01)\nclip global_norm = 0.05",
    ),
    (
        "freeze layers[5].*.b\ngroup layers[0..2].* { optimizer sgd(lr = 0.3, momentum = 0.5) }\ngroup layers[2..5].* { weight_decay 0.1 except *.b }\noptimizer sgd(lr = 0.1)",
        "freeze high.*.b\ngroup low.* { optimizer sgd(lr = 0.3, momentum = 0.5) }\ngroup mid.* { weight_decay 0.1 except *.b }\noptimizer sgd(lr = 0.1)",
    ),
    (
        "optimizer adamw(lr = 0.01, weight_decay = 0.5)\nweight_decay except layers[2..5].*, head",
        "optimizer adamw(lr = 0.01, weight_decay = 0.5)\nweight_decay except mid.*, head",
    ),
    (
        "group layers[0..2].* { optimizer lamb(lr = 0.01) }\ngroup layers[2..].* { optimizer lamb(lr = 0.02, beta1 = 0.5) }\noptimizer lamb(lr = 0.05)",
        "group low.* { optimizer lamb(lr = 0.01) }\ngroup mid.*, high.* { optimizer lamb(lr = 0.02, beta1 = 0.5) }\noptimizer lamb(lr = 0.05)",
    ),
    (
        "group layers[0..2].* { optimizer adafactor(lr = 0.01, min_factored = 2) }\noptimizer adafactor(lr = 0.05, min_factored = 2)",
        "group low.* { optimizer adafactor(lr = 0.01, min_factored = 2) }\noptimizer adafactor(lr = 0.05, min_factored = 2)",
    ),
    (
        "group layers.* { optimizer lion(lr = 0.01 * (1 + cast(index(layers), float))) }\noptimizer lion(lr = 0.01)",
        "group low.* { optimizer lion(lr = 0.01 * (1 + cast(index(low), float))) }\ngroup mid.* { optimizer lion(lr = 0.01 * (3 + cast(index(mid), float))) }\ngroup high.* { optimizer lion(lr = 0.06) }\noptimizer lion(lr = 0.01)",
    ),
];

#[test]
fn parts_of_a_loop_are_trained_as_loops_of_their_own() {
    let at = prepared("stacks-train");
    write(&at, "start.mw", ONE, "    optimizer sgd(lr = 0.3)");
    events(
        &at,
        &[
            "train",
            "start.mw",
            "--data",
            "data",
            "--precision",
            "f64",
            "--run",
            "start",
            "--steps",
            "3",
            "--no-eval",
        ],
    );
    let layouts: [&[&str]; 5] = [
        &[],
        &["--layout", "recompute layers.*"],
        &["--layout", "batch -> a; microbatches 5", "--mesh", "a=2"],
        &["--layout", "batch -> a; params: * -> a", "--mesh", "a=3"],
        &["--layout", "zero2", "--mesh", "data=2"],
    ];
    for (i, (parts, loops)) in CASES.iter().enumerate() {
        write(&at, "parts.mw", ONE, parts);
        write(&at, "loops.mw", &three(), loops);
        let train = |model: &str, dir: &str, more: &[&str]| {
            let args = [
                "train",
                model,
                "--data",
                "data",
                "--precision",
                "f64",
                "--init",
                "start",
                "--no-eval",
                "--steps",
                "6",
            ];
            let told =
                events(&at, &[&args[..], &["--run", dir, "--metrics", "gradient_norm"], more].concat());
            let norms = told.iter().filter_map(|e| e["gradient_norm"].as_f64()).collect::<Vec<_>>();
            (steps(&told), norms)
        };
        let want = train("loops.mw", &format!("loops{i}"), &["--init-map", SPLIT]);
        assert_eq!(want.1.len(), 6);
        for (k, layout) in layouts.iter().enumerate() {
            let dir = format!("parts{i}-{k}");
            let got = train("parts.mw", &dir, layout);
            for ((a, b), (na, nb)) in got.0.iter().zip(&want.0).zip(got.1.iter().zip(&want.1)) {
                assert!(
                    (a.1 - b.1).abs() <= 1e-10 && (na - nb).abs() <= 1e-10,
                    "{parts} {layout:?}: {a:?} {b:?} {na} {nb}"
                );
            }
            let (mine, theirs) = (tensors(&at, &dir), tensors(&at, &format!("loops{i}")));
            for name in ["up.w", "up.b"] {
                let all = ["low", "mid", "high"].map(|l| theirs[&format!("{l}.{name}")].1.clone()).concat();
                let differ =
                    mine[&format!("layers.{name}")].1.iter().zip(&all).find(|(a, b)| (*a - *b).abs() > 1e-10);
                assert_eq!(differ, None, "{parts} {layout:?} {name}");
            }
        }
    }
    // What is frozen stays to the bit.
    let (before, after) = (tensors(&at, "start"), tensors(&at, "parts0-3"));
    for name in ["layers.up.w", "layers.up.b"] {
        let (was, is) = (&before[name].1, &after[name].1);
        let n = was.len() / 6;
        assert!(
            was[..2 * n] == is[..2 * n] && was[2 * n..].iter().zip(&is[2 * n..]).all(|(a, b)| a != b),
            "{name}"
        );
    }
}

/// The backward loop leaves the first iterations out where nothing in them or before them is trained.
#[test]
fn gradients_end_behind_iterations_that_are_frozen() {
    let at = prepared("stacks-frozen");
    let emitted = |train: &str, model: &str, form: &[&str]| {
        write(&at, "parts.mw", model, &format!("    freeze {train}\n    optimizer sgd(lr = 0.1)"));
        let (code, out, err) = run(&at, &[&["explain", "parts.mw", "--emit"], form].concat());
        assert_eq!(code, 0, "{train}: {err}");
        out
    };
    for (freeze, from) in [
        ("layers[..2].*", 2),
        ("layers[..2].*, layers[..5].*.b", 2),
        ("layers[..2].*, layers[2..5].*.w, layers[2..3].*.b", 3),
        ("layers[1..].*", 0),
        ("layers[..2].*.w", 0),
    ] {
        let plan = emitted(freeze, ONE, &["plan"]);
        let (steps, on) = match from {
            0 => (String::new(), String::new()),
            n => (format!("from {n} "), format!(" from {n} on")),
        };
        assert!(plan.contains(&format!("= repeat layers reversed {steps}(")), "{freeze}: {plan}");
        // That of a GPU is verified, with its places in memory.
        let device = emitted(freeze, ONE, &["device", "--device", "cuda"]);
        let over = format!("over the {} positions of layers{on}, from the last", 6 - from);
        assert!(device.contains(&over), "{freeze}: {device}");
    }
    // What is before the loop and trained needs the gradients of all.
    let model = ONE.replace("let h = x\n", "param first[features] = 1\n    let h = x * first\n");
    let plan = emitted("layers[..2].*", &model, &["plan"]);
    assert!(plan.contains("repeat layers reversed") && !plan.contains("reversed from"), "{plan}");
}

#[test]
fn first_values_are_taken_in_part() {
    let at = prepared("stacks-init");
    write(&at, "one.mw", ONE, "    optimizer sgd(lr = 0)");
    write(&at, "three.mw", &three(), "    optimizer sgd(lr = 0)");
    let train = |model: &str, dir: &str, more: &[&str]| {
        let args = ["train", model, "--data", "data", "--no-eval", "--steps", "1", "--run", dir];
        let (code, _, err) = run(&at, &[&args[..], more].concat());
        assert_eq!(code, 0, "{err}");
        err
    };
    train("three.mw", "three", &["--seed", "1"]);
    train("one.mw", "drawn", &["--seed", "5"]);
    // The same parts, with both ends and without one.
    let rules = [
        "layers[2..5].up.w = mid.up.w; layers[0].up.w = high.up.w; head[.., 1..2] = head[.., 0..1]",
        "layers[2..5].up.w = mid.up.w; layers[..1].up.w = high.up.w; head[.., 1..] = head[.., ..1]",
    ];
    let more: [&[&str]; 2] = [&[], &["--layout", "batch -> a; params: * -> a", "--mesh", "a=3"]];
    for (i, (layout, rules)) in more.iter().zip(rules).enumerate() {
        let dir = format!("part{i}");
        let err = train(
            "one.mw",
            &dir,
            &[&["--seed", "5", "--init", "three", "--init-map", rules], *layout].concat(),
        );
        let note = "took 2 of 3 parameters, drew layers.up.b; of head took [.., 1..2], drew the rest; of layers.up.w took [2..5] and [0..1], drew the rest";
        assert!(err.contains(note), "{err}");
        let (from, drawn, got) = (tensors(&at, "three"), tensors(&at, "drawn"), tensors(&at, &dir));
        let (w, d) = (&got["layers.up.w"].1, &drawn["layers.up.w"].1);
        assert_eq!(w[..16], from["high.up.w"].1);
        assert_eq!((&w[16..32], &w[80..]), (&d[16..32], &d[80..]));
        assert_eq!(w[32..80], from["mid.up.w"].1);
        for row in 0..4 {
            assert_eq!(got["head"].1[2 * row], drawn["head"].1[2 * row]);
            assert_eq!(got["head"].1[2 * row + 1], from["head"].1[2 * row]);
        }
        assert_eq!(got["layers.up.b"], drawn["layers.up.b"]);
    }
}

#[test]
fn a_vocabulary_grows_and_shrinks() {
    let at = prepared("stacks-vocabulary");
    write(&at, "one.mw", ONE, "    optimizer sgd(lr = 0)");
    let train = |dir: &str, more: &[&str]| {
        let args = ["train", "one.mw", "--no-eval", "--steps", "1", "--run", dir];
        run(&at, &[&args[..], more].concat())
    };
    assert_eq!(train("two", &["--data", "data"]).0, 0);
    for (classes, rule) in [("3", "head[.., 0..2] = head"), ("1", "head = head[.., 0..1]")] {
        let dim = format!("classes={classes}");
        let size = ["--dim", &dim, "--init", "two", "--data", "x=data/train_x.npy,y=zeros.npy"];
        support::npy(&at.join("zeros.npy"), "<i4", "(100,)", &[0; 400]);
        let (code, _, err) = train("other", &size);
        assert!(
            code == 1 && err.contains("E0513") && err.contains(&format!("`--init-map '{rule}'`")),
            "{err}"
        );
        // The rule that it proposes is the one that works.
        let dir = format!("of{classes}");
        let (code, _, err) = train(&dir, &[&size[..], &["--init-map", rule]].concat());
        assert_eq!(code, 0, "{err}");
        assert_eq!(err.contains("of head took [.., 0..2], drew the rest"), classes == "3", "{err}");
        let (was, is) = (tensors(&at, "two"), tensors(&at, &dir));
        let n: usize = classes.parse().unwrap();
        for row in 0..4 {
            for class in 0..n.min(2) {
                assert_eq!(is["head"].1[row * n + class], was["head"].1[row * 2 + class]);
            }
        }
    }
    // New classes may also come first: an end that is left out is that of the dim.
    let size = ["--dim", "classes=3", "--init", "two", "--data", "x=data/train_x.npy,y=zeros.npy"];
    let (code, _, err) = train("before", &[&size[..], &["--init-map", "head[.., 1..] = head"]].concat());
    assert!(code == 0 && err.contains("of head took [.., 1..3], drew the rest"), "{err}");
    let (was, is) = (tensors(&at, "two"), tensors(&at, "before"));
    let moved = |row: usize| is["head"].1[row * 3 + 1..][..2] == was["head"].1[row * 2..][..2];
    assert!((0..4).all(moved), "{is:?}");
    for (rule, why) in [
        ("head[.., 0..9] = head", "a part that `head` has not"),
        ("head[.., 2..] = head", "it is [features=4 classes=2], without a position 2"),
        ("layers[0..9].* = layers.*", "a part that `layers.up.w` has not"),
        ("rows[0..2].head = head", "no parameter is named `rows.head`"),
        ("layers[0..1, 0..2].* = layers.*", "has the iterations of one loop"),
    ] {
        let (code, _, err) = train("wrong", &["--data", "data", "--init", "two", "--init-map", rule]);
        assert!(code == 1 && err.contains(why), "{rule}: {err}");
    }
}
