//! Resolution of whole texts.

#![allow(clippy::unwrap_used, reason = "tests")]

mod declarations;
mod errors;
mod evaluation;
mod foreign;
mod groups;
mod limits;
mod models;
mod positions;
mod random;
mod rebind;
mod repeat;
mod share;
mod train;

use crate::program::{Program, Settings};
use crate::resolve::resolve;
use meshwright_diag::{Diagnostic, FileId, Outcome, Sources};
use meshwright_syntax::parse_model;

/// What every test model begins with.
const DENSE: &str = "
layer dense(x, in, out) {
    param w[in, out] = normal(0, 1 / sqrt(size(in)))
    param b[out]     = 0
    return sum[in](x * w) + b
}
";

/// Files by name; the first is the one that is resolved.
fn run_files(
    files: &[(&str, &str)],
    model: Option<&str>,
    settings: &Settings,
) -> (Outcome<Program>, Sources) {
    let mut sources = Sources::new();
    for (name, text) in files {
        sources.add(*name, *text);
    }
    let parse = |i: usize| parse_model(FileId(i as u32), files[i].1);
    let (tree, found) = parse(0);
    let tree = tree.unwrap_or_else(|| panic!("does not parse: {found:?}"));
    let library = sources.add("std:nn", include_str!("../../../../../models/std/nn.mw"));
    let mut load = |path: &str, _| match files.iter().position(|f| f.0 == path) {
        Some(file) => parse(file),
        None => parse_model(library, include_str!("../../../../../models/std/nn.mw")),
    };
    (resolve(&tree, model, settings, &mut load), sources)
}

fn run(text: &str, settings: &Settings) -> (Outcome<Program>, Sources) {
    run_files(&[("m.mw", text)], None, settings)
}

fn program_with(text: &str, settings: &Settings) -> Program {
    let ((program, found), sources) = run(text, settings);
    program.unwrap_or_else(|| panic!("{}", show(&found, &sources)))
}

fn program(text: &str) -> Program {
    program_with(text, &Settings::default())
}

/// `E0201 message | `marked text`: label | … | note: … | help: … | fix: marked -> new`, a line each.
fn show(found: &[Diagnostic], sources: &Sources) -> String {
    let mut out = String::new();
    for d in found {
        out += &format!("{} {}\n", d.code.id, d.message);
        for l in &d.labels {
            let mark = if l.primary { "^" } else { "-" };
            out += &format!("  {mark} `{}`: {}\n", sources.slice(l.span), l.text);
        }
        d.notes.iter().for_each(|n| out += &format!("  note: {n}\n"));
        d.helps.iter().for_each(|h| out += &format!("  help: {h}\n"));
        for f in &d.fixes {
            let sure = if f.sure { "!" } else { "" };
            out += &format!("  fix{sure}: {}: `{}` -> `{}`\n", f.title, sources.slice(f.span), f.replacement);
        }
    }
    out
}

fn errors_with(text: &str, settings: &Settings) -> String {
    let ((program, found), sources) = run(text, settings);
    assert_eq!(program.is_none(), meshwright_diag::has_errors(&found));
    show(&found, &sources)
}

fn errors(text: &str) -> String {
    errors_with(text, &Settings::default())
}

/// The diagnostics of a model with the given body over a few dims and inputs.
fn body(text: &str) -> String {
    errors(&format!("{HEAD}{text}\n}}\n"))
}

const HEAD: &str = "
dim batch = 6, seq = 4, key = seq, d = 3, e = 5, vocab = 7
const half = 0.5
layer dense(x, in, out) {
    param w[in, out] = normal(0, 1)
    return sum[in](x * w)
}
layer two(x) {
    return x, x * 2
}
model m {
    input x[batch, d]: float
    input label[batch]: i32 in vocab
    input pixel[batch, d]: u8
    input real[batch, seq]: bool
    loss all = sum[batch, d](x) + sum[batch](cast(label, float)) + sum[batch, d](cast(pixel, float)) + sum[batch, seq](real)
";

/// Checks diagnostics in full.
#[track_caller]
fn same(found: &str, expected: &str) {
    let expected: Vec<&str> = expected.lines().map(|l| l.strip_prefix("        ").unwrap_or(l)).collect();
    let expected = expected.join("\n");
    assert_eq!(found.trim(), expected.trim(), "\n--- found ---\n{found}");
}
