//! Models that mix the examples of a batch: evaluated for each batch, with a warning at the op.

use super::*;
use crate::step::evaluation::{Accumulate, evaluation, prediction, refused_outputs};

const HEAD: &str =
    "dim batch = 4, key = batch, d = 3 model m { input x[batch, d]: float param w[d] = 1 let y = x * w";

fn found(body: &str) -> (Option<Vec<Accumulate>>, String) {
    let ((p, _), sources) = run(&format!("{HEAD} {body} }}"), &Settings::default());
    let p = p.unwrap();
    let (e, found) = evaluation(&p);
    (e.map(|e| e.accumulate), show(&found, &sources))
}

#[test]
fn batch_statistics_in_a_loss() {
    let (how, told) =
        found("let c = y - mean[batch](y) loss l = mean[batch, d](c * c) metric m = mean[batch, d](y)");
    assert_eq!(how.unwrap(), [Accumulate::Mean, Accumulate::Mean]);
    same(
        &told,
        "E0206 `l` is evaluated for each batch by itself
          ^ `mean[batch](y)`: mixes the examples of a batch: `mean` along `batch`
          - `l`: the mean over the batches is reported, weighted by their examples
          note: it depends on the size of the batches, and on which examples meet in one
          help: for a value of the whole set, fold `batch` first, by `sum`, `mean`, `max` or `min`",
    );
}

#[test]
fn contrast_and_routing() {
    // Every example with every other, and the best examples for an expert.
    for body in [
        "let s = sum[d](y * y[batch -> key]) loss l = mean[batch](logsumexp[key](s))",
        "loss l = mean[d](y[batch = 0])",
        "loss l = mean[d](max[batch](softmax[batch](y)))",
    ] {
        let ((p, _), _) = run(&format!("{HEAD} {body} }}"), &Settings::default());
        let (e, told) = evaluation(&p.unwrap());
        let e = e.unwrap_or_else(|| panic!("{body}: {told:?}"));
        assert!(e.accumulate.contains(&Accumulate::Mean) && told.len() == 1, "{body}: {told:?}");
        assert!(
            told[0].severity == meshwright_diag::Severity::Warning && told[0].labels.len() == 2,
            "{body}"
        );
    }
}

#[test]
fn integers_have_no_mean() {
    let ((p, _), sources) =
        run(&format!("{HEAD} output o = argmax[d](y[batch = 0]) }}"), &Settings::default());
    let (e, told) = prediction(&p.unwrap(), &["o".to_string()]);
    assert!(
        e.is_none() && show(&told, &sources).starts_with("E0206 `o` is i32 of each batch, and has no mean")
    );
}

/// What `predict` refuses after a training is named before it, at the same place and with the same help.
#[test]
fn outputs_that_are_refused_are_named_by_a_warning() {
    let outputs =
        "let z = sum[d](y) loss l = mean[batch](z) output o = argmax[batch](z) output f = z[batch = 0]
         output rows = argmax[d](y) output steps = argmax[d](w) output most = max[batch](argmax[d](y))";
    let ((p, _), sources) = run(&format!("{HEAD} {outputs} }}"), &Settings::default());
    let p = p.unwrap();
    same(
        &show(&refused_outputs(&p), &sources),
        "E0206 `o` is i32 of each batch, and has no mean: `predict` refuses it
          ^ `argmax[batch](z)`: mixes the examples of a batch: `argmax` along `batch`
          - `o`: declared here
          help: for a value of the whole set, fold `batch` first, by `sum`, `mean`, `max` or `min`",
    );
    assert!(refused_outputs(&p).iter().all(|d| d.severity == meshwright_diag::Severity::Warning));
    let (e, refused) = prediction(&p, &["o".to_string()]);
    assert!(e.is_none() && refused[0].helps == refused_outputs(&p)[0].helps);
    assert_eq!(evaluation(&p).1.len(), 0);
}
