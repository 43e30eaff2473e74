//! Model FLOPs utilization: the operations that are counted, and the peak that they are compared with.

use crate::support::{SMALL, folder, options, run};
use meshwright_core::{examined_step, model_flops, training_step};
use meshwright_train::{Project, ProjectOptions};
use serde_json::Value;

fn counted(o: &ProjectOptions) -> u64 {
    let loaded = Project::load(o);
    let project = loaded.project.unwrap_or_else(|| panic!("{o:?}: {:?}", loaded.diagnostics));
    model_flops(&training_step(&project.program).unwrap())
}

fn tiny(model: &str, layout: &str, dims: &[(&str, usize)]) -> ProjectOptions {
    ProjectOptions { preset: Some("tiny".into()), ..options(model, "", layout, dims) }
}

/// For each token `6 N + 12 L d seq`: `N` counts the weights of matrix products, of which the table of words is one. All that is
/// left of the parameters are biases, norms and places, 3 %.
#[test]
fn operations_of_a_transformer_are_those_of_the_closed_formula() {
    for (layers, d, seq, vocab, batch) in [(4, 128, 128, 4096, 16), (3, 128, 70, 900, 5)] {
        let dims = [("layers", layers), ("seq", seq), ("places", seq), ("vocab", vocab), ("batch", batch)];
        let weights = layers * 12 * d * d + vocab * d;
        let token = 6 * weights + 12 * layers * d * seq;
        let o = tiny("gpt", "", &dims);
        assert_eq!(counted(&o), (token * batch * seq) as u64);
        let all = Project::load(&o).project.unwrap().program.parameter_elements();
        let with_all = 6 * all + 12 * layers * d * seq;
        assert!((1.0..1.03).contains(&(with_all as f64 / token as f64)), "{with_all} and {token}");
    }
}

#[test]
fn what_a_layout_computes_again_or_in_parts_is_not_counted() {
    let plain = counted(&tiny("gpt", "", &[]));
    for layout in ["recompute layers.*", "microbatches 2", "recompute layers.*; microbatches 4"] {
        assert_eq!(counted(&tiny("gpt", layout, &[])), plain, "{layout}");
    }
}

/// Attention is counted as its equations are: scores once. What experts are sent and give back is indexing, and is not counted.
#[test]
fn attention_counts_as_the_products_that_it_stands_for() {
    for model in ["gpt", "bert", "llama", "switch", "t5", "vit"] {
        let project = Project::load(&tiny(model, "", &[])).project.unwrap();
        let op = training_step(&project.program).unwrap();
        let nodes = |s: &meshwright_core::StepGraph| {
            s.graph.ids().filter(|id| s.graph.node(*id).op.name() == "attention").count()
        };
        let equations = examined_step(&project.program).unwrap();
        assert!(nodes(&op) > 0 && nodes(&equations) == 0, "{model}");
        let dims = &project.program.graph.dims;
        let size = |name: &str| dims.find(name).map_or(1, |d| dims.size(d) as u64);
        // Five products, forward and backward, of tokens, experts, their slots and the width.
        let sent: u64 = ["layers", "batch", "seq", "choice", "slots", "d_model"].map(size).iter().product();
        let indexed = if model == "switch" { 5 * 2 * sent } else { 0 };
        assert_eq!(model_flops(&op) + indexed, model_flops(&equations), "{model}");
    }
}

#[test]
fn convolutions_count_each_position_of_their_kernels() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("conv.mw");
    let text = "use \"std:nn\"\ndim batch = 3, row = 9, col = 8, rgb = 3, kh = 3, kw = 3, deep = 5, classes = 4\n\
        model conv {\n    input x[batch, row, col, rgb]: float\n    input label[batch]: i32 in classes\n\
        \x20   param k[kh, kw, rgb, deep] = he_normal([kh, kw, rgb])\n\
        \x20   let h = relu(conv[row by kh, col by kw; rgb](x, k, padding = same))\n\
        \x20   loss xent = mean[batch](cross_entropy[classes](dense(mean[row, col](h), deep, classes) as head, label))\n}\n\
        train conv {\n    minimize xent\n    optimizer sgd(lr = 0.1)\n}\n";
    std::fs::write(&model, text).unwrap();
    // Forward, and the gradient of the kernel: nobody asks for that of the images. The head has both gradients.
    let convolved = 2 * 3 * (9 * 8) * (3 * 3) * 3 * 5;
    let head = 2 * 3 * 5 * 4;
    assert_eq!(counted(&options(&model.display().to_string(), "", "", &[])), 2 * convolved + 3 * head);
}

fn steps(out: &str) -> Vec<Value> {
    let events = out.lines().map(|l| serde_json::from_str::<Value>(l).unwrap());
    events.filter(|e| e["event"] == "step").collect()
}

#[test]
fn steps_tell_their_share_of_the_peak_that_is_given_or_measured() {
    let dir = folder(SMALL);
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (data, at) = (path("data"), path("run"));
    let dims = ["--dim", "batch=12", "--dim", "rows=5", "--dim", "cols=4", "--no-eval", "--format", "json"];
    let mesh = ["--mesh", "r=2,c=2", "--layout", "batch -> r; hidden -> c"];
    let number = |e: &Value, name: &str| e[name].as_f64().unwrap_or_else(|| panic!("{name}: {e}"));
    let share = |e: &Value| {
        let expected = number(e, "model_flops") / number(e, "seconds") / number(e, "peak_flops");
        assert!((number(e, "mfu") - expected).abs() <= 1e-12 * expected, "{e}");
    };
    let said =
        run(&[&["train", "mlp", "--data", &data, "--steps", "2", "--no-save"][..], &dims, &mesh].concat());
    let measured = steps(&said.out);
    assert_eq!(measured.len(), 2, "{}", said.err);
    for e in &measured {
        share(e);
        // All four devices together: more than a core of long ago, less than a rack.
        assert!((1e8..1e16).contains(&number(e, "peak_flops")), "{e}");
        assert_eq!(e["peak_flops"], measured[0]["peak_flops"]);
    }
    // Given for each of four devices, and kept with the run.
    let begun = ["train", "mlp", "--data", &data, "--steps", "2", "--run", &at, "--peak-flops", "2e12"];
    let said = run(&[&begun[..], &dims, &mesh].concat());
    assert!(said.out.contains("\"peak_flops\":8000000000000.0"), "{}{}", said.out, said.err);
    steps(&said.out).iter().for_each(share);
    let said = run(&["train", "--run", &at, "--resume", "--steps", "3", "--no-eval", "--format", "json"]);
    assert_eq!(steps(&said.out).len(), 1, "{}", said.err);
    assert!(said.out.contains("\"peak_flops\":8000000000000.0"), "{}", said.out);
    for wrong in ["0", "fast", "inf"] {
        let said = run(&["train", "mlp", "--peak-flops", wrong]);
        assert!(said.code == Some(2) && said.err.contains("such as 989e12"), "{wrong}: {}", said.err);
    }
}

/// A step that exceeds the peak shows that this is too low: it is said once, and what is not known is in no event.
#[test]
fn a_peak_that_steps_exceed_is_not_known() {
    let dir = folder(SMALL);
    let path = |name: &str| dir.path().join(name).display().to_string();
    let dims = ["--dim", "batch=12", "--dim", "rows=5", "--dim", "cols=4", "--no-eval"];
    let args = ["train", "mlp", "--data", &path("data"), "--steps", "4", "--run", &path("run")];
    let said = run(&[&args[..], &dims, &["--peak-flops", "1", "--format", "json"]].concat());
    let told = "MFU is not known from here on; `--peak-flops` says what a device reaches at most";
    assert_eq!((said.code, said.err.matches(told).count()), (Some(0), 1), "{}", said.err);
    let events = steps(&said.out);
    assert_eq!(events.len(), 4);
    for e in &events {
        assert!(
            e["model_flops"].as_u64() > Some(0) && e.get("mfu").is_none() && e.get("peak_flops").is_none(),
            "{e}"
        );
    }
    let shown = run(&["runs", "show", &path("run"), "--format", "json"]);
    let shown: Value = serde_json::from_str(&shown.out).unwrap();
    assert!(shown["mfu"].is_null() && shown.get("mfu").is_some(), "{shown}");
}
