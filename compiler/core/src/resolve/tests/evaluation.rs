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

/// The results of an evaluation of two batches of one example each, whose accumulators are as given.
fn finished(body: &str, batches: [&[f64]; 2]) -> Vec<(String, f64)> {
    let ((p, _), _) = run(&format!("{HEAD} {body} }}"), &Settings::default());
    let e = evaluation(&p.unwrap()).0.unwrap();
    let mut total = Vec::new();
    for (before, batch) in batches.iter().enumerate() {
        let batch: Vec<Vec<f64>> = batch.iter().map(|v| vec![*v]).collect();
        assert_eq!(batch.len(), e.accumulate.len());
        e.add(&mut total, before, &batch, 1);
    }
    e.finish(total).into_iter().map(|(name, v)| (name, v.data[0])).collect()
}

/// A device runs a loop over constants: the host, which computes the rest of the expression, runs no loops.
#[test]
fn results_of_loops_are_accumulators() {
    for of in ["repeat d { z = z * 2 }", "scan d { z = z * 2 let all = z } let last = max[d](all)"] {
        let body =
            format!("let m = mean[batch, d](x) let z = 1 {of} metric a = m / RESULT metric b = RESULT");
        let body = body.replace("RESULT", if of.contains("last") { "last" } else { "z" });
        let (how, told) = found(&body);
        assert_eq!((how.unwrap(), told.as_str()), (vec![Accumulate::Mean, Accumulate::Same], ""), "{of}");
        let all = finished(&body, [&[1.0, 8.0], &[3.0, 8.0]]);
        assert_eq!(all, [("a".to_string(), 0.25), ("b".to_string(), 8.0)], "{of}");
    }
}

/// Values along the example dim differ between batches, even if they read no data.
#[test]
fn values_along_the_example_dim_are_of_each_batch() {
    let ones = "cast(index(batch) >= 0, float)";
    for (metric, how) in [
        (format!("sum[batch]({ones})"), Accumulate::Sum),
        (format!("mean[batch, d](x) / sum[batch]({ones})"), Accumulate::Sum),
        (format!("max[batch]({ones})"), Accumulate::Max),
        ("sum[batch](random_uniform[batch](0, 1))".into(), Accumulate::Sum),
    ] {
        let (found, told) = found(&format!("metric a = {metric}"));
        assert_eq!((found.unwrap().last(), told.as_str()), (Some(&how), ""), "{metric}");
    }
    // A value carried from example to example is another one in another batch.
    let (how, told) = found("let z = 1 scan batch { z = z * 2 let all = z } metric a = sum[batch](all)");
    assert!(how.unwrap() == [Accumulate::Mean] && told.starts_with("E0206 `a`"), "{told}");
    assert!(told.contains("mixes the examples of a batch: a loop over `batch`"), "{told}");
    // A parameter along it is the same in all batches.
    let (found, told) = found("param p[batch] = 1 metric a = sum[batch](p)");
    assert_eq!((found.unwrap(), told.as_str()), (vec![Accumulate::Same], ""));
}

/// A prediction warns of rows that depend on the other examples of the batch.
#[test]
fn rows_that_mix_examples() {
    let outputs = "let h = 0 scan batch { h = h + y let each = h }
         output a = cumsum[batch](y) output b = y - mean[batch](y) output c = softmax[batch](y) output e = each
         output f = argmax[d](softmax[batch](y)) output g = softmax[d](y) output h2 = random_uniform[batch, d](0, 1)";
    let ((p, _), sources) = run(&format!("{HEAD} {outputs} }}"), &Settings::default());
    let p = p.unwrap();
    let names: Vec<String> = p.outputs.iter().map(|o| o.name.clone()).collect();
    let (e, told) = prediction(&p, &names);
    assert!(e.is_some_and(|e| e.step.outputs.len() == 7));
    let told: Vec<&str> = told.iter().map(|d| d.message.as_str()).collect();
    let of = |n: &str| format!("`{n}` is evaluated for each batch by itself");
    assert_eq!(told, ["a", "b", "c", "e", "f"].map(of));
    same(
        &show(&prediction(&p, &["b".to_string()]).1, &sources),
        "E0206 `b` is evaluated for each batch by itself
          ^ `mean[batch](y)`: mixes the examples of a batch: `mean` along `batch`
          - `b`: a row depends on the other examples of its batch
          note: it depends on the size of the batches, and on which examples meet in one
          help: `--dim batch=N` sets the size of the batches",
    );
    assert!(refused_outputs(&p).is_empty());
}
