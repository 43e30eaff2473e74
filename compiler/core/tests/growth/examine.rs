//! All that `check`, `explain` and `fmt` make of a text, and the device plans for a CPU and a GPU.

use crate::constructs::{Formatter, Text};
use meshwright_core::explain::{explain, recomputed};
use meshwright_core::resolve::resolve;
use meshwright_core::step::evaluation;
use meshwright_core::{Layout, Program, Settings, StepGraph, compile, layout, training_step};
use meshwright_device::target::Target;
use meshwright_diag::{Diagnostic, Sources, has_errors, render};
use meshwright_syntax::{
    format_layout, format_model, parse_layout, parse_mesh, parse_model, parse_mtf_layout,
};

/// What is said of a text, as a user sees it.
pub(crate) fn examine(text: &Text) -> String {
    let mut sources = Sources::new();
    let (out, found) = match text.fmt {
        Some(language) => {
            let id = sources.add("text", text.model.as_str());
            let format = if language == Formatter::Model { format_model } else { format_layout };
            format(id, &text.model)
        }
        None => check(text, &mut sources),
    };
    render::full_all(&found, &sources, true)
        + &render::concise_all(&found, &sources)
        + &found.iter().map(|d| render::json(d, &sources)).collect::<String>()
        + &out.unwrap_or_default()
}

fn check(text: &Text, sources: &mut Sources) -> (Option<String>, Vec<Diagnostic>) {
    let id = sources.add("model.mw", text.model.as_str());
    let (tree, mut found) = parse_model(id, &text.model);
    let program = tree.and_then(|tree| {
        // The only file that there is.
        let mut load = |path: &str, _| ((path == "model.mw").then(|| tree.clone()), Vec::new());
        let (program, more) = resolve(&tree, None, &Settings::default(), &mut load);
        found.extend(more);
        program
    });
    let rules = layout_of(text, sources, program.as_ref(), &mut found);
    let (Some(program), Some(rules)) = (program, rules) else { return (None, found) };
    let mut steps: Vec<StepGraph> = training_step(&program).into_iter().collect();
    let (evaluation, more) = evaluation::evaluation(&program);
    found.extend(more);
    steps.extend(evaluation.map(|e| e.step));
    let mut out = String::new();
    for step in steps {
        let line_of = |span| sources.line(span) as u32;
        let (compiled, more) = compile::compile(&step, &rules, &line_of, &mut |_, _| {});
        found.extend(more);
        if let Some(compiled) = compiled {
            let mut report = explain(&compiled, &line_of);
            let again = |less: &Layout| compile::compile(&step, less, &line_of, &mut |_, _| {}).0;
            report.recompute = recomputed(&step, &rules, &compiled, again);
            out.push_str(&serde_json::to_string(&report).unwrap_or_default());
            out.push_str(&compiled.plan.hash());
            for target in [Target::cpu(), Target::cuda((9, 0), true)] {
                let device = meshwright_device::compile(&compiled.plan, 0, target);
                out.push_str(&device.map_or_else(|e| e.to_string(), |d| d.launches.len().to_string()));
            }
        }
    }
    (Some(out), found)
}

fn layout_of(
    text: &Text,
    sources: &mut Sources,
    program: Option<&Program>,
    found: &mut Vec<Diagnostic>,
) -> Option<Layout> {
    let rules = text.layout.clone().unwrap_or_default();
    let id = sources.add("rules.layout", rules.as_str());
    let parse = if text.mtf { parse_mtf_layout } else { parse_layout };
    let (file, more) = parse(id, &rules);
    found.extend(more);
    let mesh = text.mesh.as_ref().map(|mesh| {
        let id = sources.add("--mesh", mesh.as_str());
        parse_mesh(id, mesh)
    });
    let mesh = match mesh {
        Some((mesh, more)) => {
            found.extend(more);
            Some(mesh?)
        }
        None => None,
    };
    if has_errors(found) {
        return None;
    }
    let (layout, more) = layout(&file?, mesh.as_ref(), program?, !text.mtf);
    found.extend(more);
    layout
}
