//! What `explain` says of pipelines: the toy program's messages, and what papers say of published runs.

use crate::support::run;
use serde_json::Value;

fn pipeline(args: &[&str]) -> Value {
    let (code, out, err) = run(&[&["explain"], args, &["--format", "json"]].concat());
    assert_eq!(code, 0, "{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    report["pipeline"].clone()
}

/// The figure of each stage.
fn of<'v>(p: &'v Value, name: &'v str) -> impl Iterator<Item = u64> + 'v {
    p["stages"].as_array().unwrap().iter().map(move |s| s[name].as_u64().unwrap())
}

/// A small program of two matrices a layer.
const TOY: &str = "
dim batch = 16, d = 8, d_ff = 12, layers = 8
model m {
    input x[batch, d]: float
    let y = x
    repeat layers {
        param a[d, d_ff] = normal(0, 0.1)
        param b[d_ff, d] = normal(0, 0.1)
        y = y + sum[d_ff](tanh(sum[d](y * a)) * b)
    }
    loss l = mean[batch, d](y * y)
}
train m { minimize l optimizer adam(lr = 0.1) }
";

fn toy(dir: &std::path::Path) -> String {
    let file = dir.join("m.mw");
    std::fs::write(&file, TOY).unwrap();
    file.to_str().unwrap().to_string()
}

/// Messages, microbatches in flight and bubbles of each schedule, by the formulas of the papers.
#[test]
fn stages_are_told_with_what_they_hold_and_send() {
    let dir = tempfile::tempdir().unwrap();
    let model = toy(dir.path());
    let told = |layout: &str| {
        pipeline(&[
            &model,
            "--mesh",
            "pipe=2",
            "--layout",
            &format!("layers -> pipe; microbatches 4; {layout}"),
        ])
    };
    // A message has an activation of a microbatch, 4 x 8 numbers of 4 bytes.
    for (schedule, in_flight, bubble) in
        [("gpipe", [4, 4], 1.0 / 4.0), ("1f1b", [2, 1], 1.0 / 4.0), ("zb_h1", [2, 2], 1.0 / 12.0)]
    {
        let p = told(&format!("schedule {schedule}"));
        assert_eq!((&p["axis"], &p["schedule"]), (&"pipe".into(), &schedule.into()));
        assert_eq!((&p["microbatches"], &p["chunks"]), (&4.into(), &1.into()));
        assert_eq!(of(&p, "in_flight").collect::<Vec<_>>(), in_flight, "{schedule}");
        assert_eq!(of(&p, "layers").collect::<Vec<_>>(), [4, 4]);
        assert_eq!(of(&p, "sends").collect::<Vec<_>>(), [4, 4]);
        assert_eq!(of(&p, "send_bytes").collect::<Vec<_>>(), [4 * 128, 4 * 128]);
        assert_eq!(of(&p, "parameter_bytes").collect::<Vec<_>>(), [4 * 2 * 96 * 4; 2]);
        assert_eq!(of(&p, "optimizer_state_bytes").collect::<Vec<_>>(), [4 * 2 * 2 * 96 * 4; 2]);
        let got = p["bubble_equal_stages"].as_f64().unwrap();
        assert!((got - bubble).abs() < 1e-9, "{schedule}: {got}");
    }
    // Of two chunks each device sends twice as often, but for what begins and ends there.
    let p = told("chunks 2");
    assert_eq!(of(&p, "sends").collect::<Vec<_>>(), [12, 12]);
    assert_eq!(of(&p, "in_flight").collect::<Vec<_>>(), [5, 3]);
    assert!((p["bubble_equal_stages"].as_f64().unwrap() - 1.0 / 8.0).abs() < 1e-9);
    // Fewer layers take fewer bytes and operations, and the line that balances them is printed.
    let p = told("stages 2, 6");
    assert_eq!(of(&p, "layers").collect::<Vec<_>>(), [2, 6]);
    assert_eq!(of(&p, "parameter_bytes").collect::<Vec<_>>(), [2 * 2 * 96 * 4, 6 * 2 * 96 * 4]);
    assert!(of(&p, "flops").is_sorted() && p["bubble"].as_f64() > p["bubble_equal_stages"].as_f64());
    assert_eq!(p["balanced"], "stages 4, 4");
    let all = told("stages 4, 4");
    let sum = |p: &Value| of(p, "flops").sum::<u64>();
    assert_eq!((sum(&all), &all["balanced"]), (sum(&p), &Value::Null));
}

/// What stands in front of the layers and behind them is computed by the first and the last stage besides their layers, which
/// then should have fewer of them. The line that is printed has its effect.
#[test]
fn a_stage_with_a_heavy_end_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("heavy.mw");
    let head = "    let head = sum[d](y * out)\n    loss l = mean[batch, many](head * head)\n";
    let text = TOY.replace("    loss l = mean[batch, d](y * y)\n", head);
    let text = text.replace("    let y = x\n", "    param out[d, many] = normal(0, 0.1)\n    let y = x\n");
    std::fs::write(&model, text.replace("layers = 8", "layers = 8, many = 48")).unwrap();
    let model = model.to_str().unwrap();
    let longest = |p: &Value| of(p, "flops").max().unwrap();
    for (more, first) in [("", "stages 5, 3"), ("; chunks 2", "stages 3, 3, 2, 0")] {
        let told = |stages: &str| {
            let layout = format!("layers -> pipe; microbatches 4{more}{stages}");
            let args = [model, "--mesh", "pipe=2", "--layout", &layout];
            let (code, text, err) = run(&[&["explain"], &args[..]].concat());
            assert_eq!(code, 0, "{err}");
            (pipeline(&args), text)
        };
        let (even, text) = told("");
        assert_eq!(even["balanced"], first);
        let wanted = format!("stage 1 has most to compute; `{first}` would share the work better");
        assert!(text.contains(&wanted), "{text}");
        let (better, text) = told(&format!("; {first}"));
        assert!(longest(&better) < longest(&even), "{better} {even}");
        assert_eq!(better["balanced"], Value::Null);
        assert!(text.contains("has most to compute\n"), "{text}");
    }
}

/// A Plan has as many steps for 512 microbatches as for 2.
#[test]
fn microbatches_are_no_steps() {
    let steps = |m: usize| {
        let (layout, batch) = (format!("layers -> pipe; microbatches {m}"), "batch=512");
        let words =
            ["explain", "gpt", "--preset", "tiny", "--mesh", "pipe=2", "--emit", "plan", "--format", "json"];
        let (code, out, err) = run(&[&words[..], &["--layout", &layout, "--dim", batch]].concat());
        assert_eq!(code, 0, "{err}");
        let plan: Value = serde_json::from_str(&out).unwrap();
        plan["steps"].as_array().unwrap().len()
    };
    assert_eq!(steps(2), steps(512));
}

/// Gradients of weights apart are not computed twice, with recomputation neither; the activations that they read live longer.
#[test]
fn gradients_of_weights_apart_are_no_more_work() {
    for recompute in ["", "; recompute layers.*"] {
        let told = |schedule: &str| {
            let layout = format!("layers -> pipe; microbatches 8; schedule {schedule}{recompute}");
            pipeline(&["gpt", "--preset", "tiny", "--mesh", "pipe=4", "--layout", &layout])
        };
        let [before, apart] = ["1f1b", "zb_h1"].map(told);
        assert_eq!(of(&before, "flops").sum::<u64>(), of(&apart, "flops").sum::<u64>(), "{recompute}");
        assert_eq!(of(&apart, "in_flight").collect::<Vec<_>>(), [4; 4]);
        // Of 8 microbatches through 4 stages, 3/8 and, with W a third of the work, 1/8.
        let bubbles = [&before, &apart].map(|p| (8.0 * p["bubble_equal_stages"].as_f64().unwrap()).round());
        assert_eq!(bubbles, [3.0, 1.0]);
    }
}

/// Narayanan et al. 2021 and Korthikanti et al. 2022, tables of runs: bubbles, chunks in flight on the first stage, and messages.
#[test]
fn published_runs_have_the_bubbles_of_their_papers() {
    // A batch of an example for each microbatch.
    let large = |layers: usize, p: usize, m: usize, chunks: usize| {
        let (batch, layers, mesh) =
            (format!("batch={m}"), format!("layers={layers}"), format!("pipe={p},model=8"));
        let layout = format!(
            "layers -> pipe; chunks {chunks}; microbatches {m}; heads, d_ff, vocab -> model; seq -> model when free"
        );
        pipeline(&[
            "gpt",
            "--preset",
            "gpt3_175b",
            "--precision",
            "bf16",
            "--dim",
            &layers,
            "--dim",
            &batch,
            "--mesh",
            &mesh,
            "--layout",
            &layout,
        ])
    };
    let bubble = |p: &Value| p["bubble_equal_stages"].as_f64().unwrap();
    let near = |p: &Value, wanted: f64| assert!((bubble(p) - wanted).abs() < 1e-9, "{} {wanted}", bubble(p));
    let p = large(96, 8, 64, 3);
    near(&p, 7.0 / 192.0);
    assert_eq!((of(&p, "in_flight").next(), of(&p, "layers").next()), (Some(31), Some(12)));
    // Half of the messages go forward.
    assert_eq!(of(&p, "sends").sum::<u64>(), 2 * 1_472);
    assert_eq!(of(&p, "send_bytes").sum::<u64>(), 2 * 1_472 * 6_291_456);
    let p = large(105, 35, 280, 3);
    near(&p, 34.0 / 840.0);
    assert_eq!((of(&p, "in_flight").next(), of(&p, "layers").next()), (Some(139), Some(3)));
    near(&large(128, 64, 512, 1), 63.0 / 512.0);
    // 405 billion parameters in 126 layers: two chunks against one (published 1.28).
    let [one, two] = [1, 2].map(|chunks| large(126, 8, 8, chunks));
    let gain = (1.0 + bubble(&one)) / (1.0 + bubble(&two));
    assert!((gain - 1.304).abs() < 5e-4, "{gain}");
}
