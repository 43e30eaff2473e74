//! Names to a graph: a model file, with what the command line sets, becomes a [`Program`].
//!
//! Layers are laid out in full at every call. An expression in error becomes a poison value, on which nothing is reported
//! again, so that one run reports all independent mistakes.

mod body;
mod call;
mod declarations;
mod expr;
mod glob;
mod inspect;
mod number;
mod repeat;
mod report;
mod resolver;
mod scope;
#[cfg(test)]
mod tests;
mod train;

use crate::program::{Program, Settings};
pub use glob::matches;
pub(crate) use glob::{PathIndex, PatternIndex};
pub use inspect::{Inspection, Meaning};
use meshwright_diag::{Diagnostic, Near, Outcome, codes, has_errors};
use meshwright_ops::{Graph, Origin};
use meshwright_sorted::{SortedMap, SortedSet};
use meshwright_syntax::ast::{ItemKind, Model, ModelFile, Train};
use report::{Report, listed, nearest};
use resolver::{PathOrigin, Resolver};

pub(crate) use declarations::declare::INITIALIZERS;
pub(crate) use declarations::fans::BY_FAN;
pub(crate) use declarations::globals::evaluated;
pub use declarations::load::Loader;
pub use declarations::presets::is_preset;
#[cfg(test)]
pub(crate) use declarations::reserved_words::SPECIAL;
pub(crate) use expr::too_large;
pub(crate) use train::learning_rate::LEARNING_RATES;

/// Stack of the thread that resolves: 32 KiB for each level.
const STACK: usize = 64 << 20;

/// Resolves a model of a file: the one named `model`, or the only one.
///
/// `load` gives the files that `use` names. Diagnostics come in source order; the program is `None` where one of them is an
/// error.
pub fn resolve(
    file: &ModelFile,
    model: Option<&str>,
    settings: &Settings,
    load: &mut Loader<'_>,
) -> Outcome<Program> {
    let (program, found, _) = resolved(file, model, settings, load, false);
    (program, found)
}

/// [`resolve`], with what stands at each place. There is some of it where the text has errors, too.
pub fn inspect(
    file: &ModelFile,
    model: Option<&str>,
    settings: &Settings,
    load: &mut Loader<'_>,
) -> (Option<Program>, Vec<Diagnostic>, Inspection) {
    resolved(file, model, settings, load, true)
}

/// [`resolve`], with what stands at each place of the text where that is asked for.
fn resolved(
    file: &ModelFile,
    model: Option<&str>,
    settings: &Settings,
    load: &mut Loader<'_>,
    inspected: bool,
) -> (Option<Program>, Vec<Diagnostic>, Inspection) {
    let mut report = Report::default();
    let used = declarations::load::used_files(file, load, &mut report);
    // Expressions recurse as deep as they are nested; a thread of our own makes the room independent of the caller's.
    std::thread::scope(|scope| {
        let run = || resolve_loaded(file, &used, (model, settings, inspected), report);
        match std::thread::Builder::new().name("resolve".into()).stack_size(STACK).spawn_scoped(scope, run) {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(e) => {
                let text = format!("the system gives no thread to resolve names on: {e}");
                (None, vec![Diagnostic::error(codes::E0219, text)], Inspection::default())
            }
        }
    })
}

fn resolve_loaded(
    file: &ModelFile,
    used: &[ModelFile],
    (model, settings, inspected): (Option<&str>, &Settings, bool),
    mut report: Report,
) -> (Option<Program>, Vec<Diagnostic>, Inspection) {
    let files: Vec<&ModelFile> = used.iter().chain([file]).collect();
    let mut globals = declarations::globals::globals(&files, settings, &mut report);
    let chosen = choose_model(file, model, &mut report);
    let train = choose_train(file, chosen, &mut report);
    let precision = train::precision::precision(train, settings, &mut report);
    let Some(chosen) = chosen else { return (None, report.finish(), Inspection::default()) };
    let mut r = Resolver {
        float: precision.wide(),
        graph: Graph::new(std::mem::take(&mut globals.names)),
        globals,
        report,
        scopes: Vec::new(),
        params: Vec::new(),
        states: Vec::new(),
        assigned: SortedMap::new(),
        paths: SortedMap::new(),
        inputs: Vec::new(),
        losses: Vec::new(),
        metrics: Vec::new(),
        outputs: Vec::new(),
        model_consts: SortedSet::new(),
        step: None,
        training: None,
        streams: SortedMap::new(),
        calls: SortedMap::new(),
        owners: SortedMap::new(),
        named: SortedMap::new(),
        bounds: Vec::new(),
        open_repeats: Vec::new(),
        depth: 0,
        work: 0,
        stopped: false,
        poisoned: SortedSet::new(),
        facts: inspected.then(Vec::new),
    };
    r.model(chosen);
    r.unassigned();
    let mut train = train.and_then(|t| r.train(t));
    if let Some(t) = train.as_mut().filter(|_| settings.no_ema) {
        t.ema = None;
    }
    let inspection = if inspected { Inspection::of(&mut r) } else { Inspection::default() };
    let found = r.report.finish();
    if has_errors(&found) {
        return (None, found, inspection);
    }
    let dim_spans = r.globals.dims.values().filter_map(|(span, dim)| Some((((*dim)?), *span))).collect();
    let (consts, declarations) = (r.globals.consts(), std::mem::take(&mut r.globals.declarations));
    r.graph.cursor = Origin::default();
    let program = Program {
        model: chosen.name.text.clone(),
        graph: r.graph,
        float: precision,
        consts,
        model_consts: r.model_consts.iter().map(ToString::to_string).collect(),
        declarations,
        dim_spans,
        inputs: r.inputs,
        params: r.params,
        states: r.states,
        losses: r.losses,
        metrics: r.metrics,
        outputs: r.outputs,
        named: r.named,
        train,
    };
    (Some(program), found, inspection)
}

fn models(file: &ModelFile) -> impl Iterator<Item = &Model> {
    file.items.iter().filter_map(|i| match &i.kind {
        ItemKind::Model(m) => Some(m),
        _ => None,
    })
}

fn choose_model<'a>(file: &'a ModelFile, wanted: Option<&str>, report: &mut Report) -> Option<&'a Model> {
    let all: Vec<&Model> = models(file).collect();
    let mut first_of: SortedMap<&str, &Model> = SortedMap::new();
    for m in &all {
        let first = *first_of.entry(&m.name.text).or_insert(m);
        if !std::ptr::eq(first, *m) {
            report.push(
                Diagnostic::error(codes::E0210, format!("model `{}` is declared twice", m.name.text))
                    .at(m.name.span, "declared again here")
                    .and(first.name.span, "first declared here")
                    .help("give one of them another name"),
            );
        }
    }
    let names = || all.iter().map(|m| m.name.text.as_str());
    let d = match (wanted, all.as_slice()) {
        (None, [only]) => return Some(only),
        (None, []) => {
            let d = Diagnostic::error(codes::E0220, "the file has no model");
            let d = match file.items.last() {
                Some(item) => d.at(item.span, "the file ends here, without one"),
                None => d,
            };
            d.help("write `model NAME { … }` with inputs and a loss")
        }
        (None, [_, second, ..]) => {
            Diagnostic::error(codes::E0220, format!("the file has {} models: {}", all.len(), listed(names())))
                .at(second.name.span, "which one is meant is not said")
                .and(all[0].name.span, "another model")
                .help("keep one model in a file, and move the other to a file of its own")
        }
        (Some(name), _) => {
            if let Some(m) = all.iter().find(|m| m.name.text == name) {
                return Some(m);
            }
            let d = Diagnostic::error(codes::E0201, format!("the file has no model `{name}`"))
                .note(format!("its models: {}", listed(names())));
            match nearest(name, names()) {
                Some(near) => d.help(format!("did you mean `{near}`?")),
                None => d,
            }
        }
    };
    report.push(d);
    None
}

/// The `train` block of a model, if there is one; that all blocks name models is checked here.
fn choose_train<'a>(file: &'a ModelFile, model: Option<&Model>, report: &mut Report) -> Option<&'a Train> {
    let mut seen: SortedMap<&'a str, &'a Train> = SortedMap::new();
    let known: SortedSet<&str> = models(file).map(|m| m.name.text.as_str()).collect();
    for item in &file.items {
        let ItemKind::Train(t) = &item.kind else { continue };
        if report.is_full_of_errors() {
            break;
        }
        if !known.contains(t.model.text.as_str()) {
            let names = || models(file).map(|m| m.name.text.as_str());
            let d = Diagnostic::error(codes::E0201, format!("there is no model `{}` to train", t.model.text))
                .at(t.model.span, "no such model")
                .note(format!("models of this file: {}", listed(names())));
            // With a single model there is no doubt which one is meant.
            let near = nearest(&t.model.text, names())
                .or_else(|| names().next().filter(|_| names().count() == 1).map(Near::only));
            report.push(match near {
                Some(near) => d.fix(format!("write `{near}`"), t.model.span, near, near.sure),
                None => d,
            });
        }
        if let Some(first) = seen.get(t.model.text.as_str()) {
            report.push(
                Diagnostic::error(codes::E0210, format!("model `{}` has two `train` blocks", t.model.text))
                    .at(t.model.span, "the second one")
                    .and(first.model.span, "the first one")
                    .help("leave one of them out"),
            );
        } else {
            seen.insert(&t.model.text, t);
        }
    }
    seen.get(model?.name.text.as_str()).copied()
}
