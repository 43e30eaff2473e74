//! Integers as positions: casts, and arithmetic that proves its range.

use super::*;
use meshwright_plan::Dim;

const HEAD: &str = "
dim batch = 6, seq = 4, back = seq, vocab = 7
model m {
    input x[batch, seq]: float
    input i[batch]: i32
    input t[batch, seq]: i32 in vocab
    input real[batch, seq]: bool
    let s = index(seq) + index(batch) * 0
";

fn one(body: &str) -> Program {
    program(&format!(
        "{HEAD} output all = sum[batch, seq](x) + sum[batch](cast(i, float)) + sum[batch, seq](real) {body} }}"
    ))
}

fn wrong(body: &str) -> String {
    errors(&format!(
        "{HEAD} output all = sum[batch, seq](x) + sum[batch](cast(i, float)) + sum[batch, seq](real) {body} }}"
    ))
}

fn range(body: &str) -> Option<String> {
    let p = one(body);
    let id = p.outputs.last().unwrap().id;
    p.graph.ty(id).range.map(|d: Dim| p.graph.dims.name(d).to_string())
}

#[test]
fn arithmetic_proves_its_range() {
    for index in [
        "i % size(seq)",
        "max(min(i, size(seq) - 1), 0)",
        "min(index(batch)//2, 3)",
        "(index(batch) * 5 + 1) % size(seq)",
        "cast(i > 2, i32) + cast(i > 1, i32) * 2",
        "min(argmax[seq](x) + 1, size(seq) - 1)",
        "max(argmax[seq](x) - 1, 0)",
        "size(seq) - 1 - argmax[seq](x)",
        "cast(real[seq = 1], i32)",
        "cast(i, i32 in seq, clamp = true)",
        "cast(argmax[seq](x)//2, i32 in seq)",
        "index(batch) % 3 + 1",
        "cast(9, i32 in seq, clamp = true)",
        "max[seq](t) % size(seq)",
        "min(min[seq](t), size(seq) - 1)",
    ] {
        let p = one(&format!("output o = x[seq = {index}] output h = one_hot[seq]({index})"));
        assert_eq!(p.outputs.len(), 3, "{index}");
    }
    // Another size needs another proof: it is captured.
    let p = one("output o = x[seq = i % size(seq)]");
    let captured: Vec<&str> = p.graph.captured.iter().map(|d| p.graph.dims.name(*d)).collect();
    assert!(captured.contains(&"seq"), "{captured:?}");
}

#[test]
fn only_the_dtype_of_a_cast_names_a_dim_of_positions() {
    for body in [
        "let y = cast(i in seq, i32)",
        "let y = cast(i in vocab, i32 in seq)",
        "param w[seq] = normal(0 in seq, 1)",
    ] {
        let found = wrong(&format!("{body} output o = x"));
        assert!(
            found.contains("E0212") && found.contains("only a cast names the dim of positions"),
            "{body}: {found}"
        );
    }
}

#[test]
fn what_may_be_outside_is_refused() {
    same(
        &wrong("output o = x[seq = argmax[seq](x) + 1]"),
        "E0205 these may be no positions along `seq`, which has 4
          ^ `argmax[seq](x) + 1`: may be from 1 to 4
          - `seq`: declared here
          help: keep them in: `cast(i, i32 in seq, clamp = true)` for the nearest position, `i % size(seq)` to go around",
    );
    same(
        &wrong("output o = cast(i, i32 in seq)"),
        "E0205 these may be no positions along `seq`, which has 4
          ^ `i`: may be any integer
          - `seq`: declared here
          help: keep them in: `cast(i, i32 in seq, clamp = true)` for the nearest position, `i % size(seq)` to go around",
    );
    for index in [
        "i + 1",
        "i//4",
        "i % size(vocab)",
        "max(i, 0)",
        "index(batch) - 1",
        "index(batch) * 1000000000 % 5",
        // The greatest product is 2^64, beyond what bounds are counted in.
        "cast(x[seq = 0] > 0, i32) * 65536 * 65536 * 65536 * 65536",
        "i % i",
    ] {
        assert!(wrong(&format!("output o = x[seq = {index}]")).starts_with("E0205"), "{index}");
    }
    same(
        &wrong("output o = cast(x, float in seq)"),
        "E0202 positions along `seq` are `i32`
          ^ `float`: another dtype
          fix!: write `i32`: `float` -> `i32`",
    );
    same(
        &wrong("output o = relu(x in seq)"),
        "E0212 `in seq` stands in a call of `relu`
          ^ `seq`: says nothing here
          help: only a cast names the dim of positions: `cast(i, i32 in seq)`",
    );
}

#[test]
fn integers_and_truth_values_are_indexed_and_sliced() {
    assert_eq!(range("output o = t[seq = 1]").as_deref(), Some("vocab"));
    assert_eq!(range("output o = t[seq = argmax[seq](x)]").as_deref(), Some("vocab"));
    assert_eq!(range("output o = shift[seq, by = 1, wrap = true](t)").as_deref(), Some("vocab"));
    assert_eq!(range("output o = t[seq -> back][back = 0..4 -> seq]").as_deref(), Some("vocab"));
    assert_eq!(range("output o = cast(i, i32 in vocab, clamp = true)").as_deref(), Some("vocab"));
    assert_eq!(range("output o = real[seq = 1]"), None);
}
