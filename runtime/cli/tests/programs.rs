//! Which program of a model commands show unasked.

use crate::support::{folder, run};

/// Without a `train` block a command shows the evaluation, and without a loss the prediction.
#[test]
fn what_is_shown_of_a_model_without_training() {
    let at = folder("untrained");
    let text = "dim batch = 2\nmodel none {\n    input x[batch]: float\n    loss l = mean[batch](x)\n}\n";
    let outputs = text.replace("loss l = mean[batch](x)", "output y = x * 2");
    for (name, text, program, shown) in
        [("none.mw", text, "eval", "an evaluation step"), ("outputs.mw", &outputs, "predict", "a prediction")]
    {
        let model = at.join(name).display().to_string();
        std::fs::write(&model, text).unwrap();
        let (code, out, _) = run(&["explain", &model, "--format", "json"]);
        let found: serde_json::Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
        assert!(code == 0 && found["program"] == program, "{out}");
        let (_, _, err) = run(&["explain", &model, "--no-pager"]);
        assert!(err.contains(&format!("no `train` block: this is {shown}")), "{err}");
        let (_, out, _) = run(&["check", &model]);
        assert!(out.contains(&format!("for {shown}; it has no `train` block")), "{out}");
        let (_, out, _) = run(&["explain", &model, "--emit", "device"]);
        assert!(!out.contains(": 0 kernels"), "{out}");
    }
}
