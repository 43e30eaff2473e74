//! What a shell completes: the names that ship, codes and words, and the dims of the model that a command line names.

use crate::commands::new_run::RUNS;
use crate::machines::MACHINES;
use clap_complete::CompletionCandidate;
use clap_complete::engine::{PathCompleter, ValueCompleter};
use meshwright_core::reference::pages;
use meshwright_diag::codes;
use meshwright_ops::families;
use meshwright_ops::signature::Form;
use meshwright_runs::catalog::{LAYOUTS, MAPS, MODELS, Shipped, find};
use meshwright_runs::runs_below;
use meshwright_sorted::SortedSet;
use meshwright_train::project::standard_library::layers;
use meshwright_train::{Project, ProjectOptions};
use std::ffi::OsStr;
use std::path::Path;

/// Names that begin with what is typed.
fn beginning(current: &OsStr, names: impl IntoIterator<Item = String>) -> Vec<CompletionCandidate> {
    let typed = current.to_string_lossy();
    let names: SortedSet<String> = names.into_iter().filter(|n| n.starts_with(&*typed)).collect();
    names.into_iter().map(CompletionCandidate::new).collect()
}

/// What ships, and files of that extension.
fn shipped(current: &OsStr, list: &[Shipped], extension: &'static str) -> Vec<CompletionCandidate> {
    let files = PathCompleter::any().filter(move |p| p.extension().is_some_and(|e| e == extension));
    let mut all = beginning(current, list.iter().map(|s| s.name.to_string()));
    all.extend(files.complete(current));
    all
}

/// Models.
pub(crate) fn models(current: &OsStr) -> Vec<CompletionCandidate> {
    shipped(current, MODELS, "mw")
}

/// Layouts.
pub(crate) fn layouts(current: &OsStr) -> Vec<CompletionCandidate> {
    shipped(current, LAYOUTS, "layout")
}

/// Maps.
pub(crate) fn maps(current: &OsStr) -> Vec<CompletionCandidate> {
    shipped(current, MAPS, "toml")
}

/// What ships, of the kind that the command is about.
pub(crate) fn listed(current: &OsStr) -> Vec<CompletionCandidate> {
    let asks = |kind: &str| words().iter().any(|w| w == kind);
    let list = match () {
        () if asks("layouts") => LAYOUTS,
        () if asks("maps") => MAPS,
        () if asks("machines") => &MACHINES,
        () => MODELS,
    };
    beginning(current, list.iter().map(|s| s.name.to_string()))
}

/// What `explain` has a page or a report of.
pub(crate) fn topics(current: &OsStr) -> Vec<CompletionCandidate> {
    let ops = families().filter(|f| f.signature.form == Form::Named).map(|f| f.name.to_string());
    let words = pages().into_iter().map(|p| p.name.to_string());
    let codes = codes::ALL.iter().map(|c| c.id.to_string());
    let mut all = models(current);
    let layers = layers().into_iter().map(|l| l.name);
    all.extend(beginning(current, ops.chain(words).chain(codes).chain(layers)));
    all
}

/// `NAME=` for each dim of the model.
pub(crate) fn dims(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(project) = model() else { return Vec::new() };
    beginning(current, project.program.graph.dims.iter().map(|(_, name)| format!("{name}=")))
}

/// `NAME=` for each const of the model.
pub(crate) fn consts(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(project) = model() else { return Vec::new() };
    beginning(current, project.program.consts.keys().map(|name| format!("{name}=")))
}

/// Runs in `runs`, by their names there, and folders.
pub(crate) fn runs(current: &OsStr) -> Vec<CompletionCandidate> {
    let root = Path::new(RUNS);
    let found = runs_below(root).unwrap_or_default().found;
    let below = found.iter().filter_map(|r| Some(r.strip_prefix(root).ok()?.to_str()?.to_string()));
    let mut all = beginning(current, below.filter(|n| !n.is_empty()));
    all.extend(PathCompleter::dir().complete(current));
    all
}

/// The words of the command line that is completed.
fn words() -> Vec<String> {
    let all = std::env::args().skip_while(|word| word != "--").skip(1);
    all.collect()
}

/// The model that the command line names. One with errors has no dims to offer.
fn model() -> Option<Project> {
    let is_model = |w: &String| find(MODELS, w).is_some() || w.ends_with(".mw") && Path::new(w).is_file();
    let model = words().into_iter().skip(1).find(is_model)?;
    Project::load(&ProjectOptions { model, ..ProjectOptions::default() }).project
}
