//! New names for dims, values and axes, in the model, in what it uses and in its layouts.

use super::definition::sharing;
use super::place::{RequestPlace, location};
use crate::project::{Analysis, Projects};
use crate::snapshot::Snapshot;
use crate::text::path_of;
use lsp_types::{
    PrepareRenameResponse, RenameParams, TextDocumentPositionParams, TextEdit, Uri, WorkspaceEdit,
};
use meshwright_core::names::{PathElement, Symbol, SymbolKind};
use meshwright_core::resolve::matches;
use meshwright_diag::{Span, has_errors};
use meshwright_sorted::SortedSet;
use meshwright_syntax::{Language, TokenKind, keywords, layout_keywords, tokens};
use std::collections::HashMap;
use std::sync::Arc;

/// The name that would be renamed.
///
/// # Errors
/// Why it cannot be.
pub(crate) fn prepare(
    snapshot: &Snapshot,
    projects: &mut Projects,
    at: &TextDocumentPositionParams,
) -> Result<Option<PrepareRenameResponse>, String> {
    let Some(place) = RequestPlace::of(snapshot, projects, at) else { return Ok(None) };
    let a = &place.analysis;
    let Some((span, symbol)) = a.names.at(place.file, place.offset) else { return Ok(None) };
    let symbol = &a.names.symbols[symbol];
    renamable(a, symbol)?;
    let placeholder = symbol.name.clone();
    let range = location(snapshot, a, span).map(|l| l.range);
    Ok(range.map(|range| PrepareRenameResponse::RangeWithPlaceholder { range, placeholder }))
}

/// What ships is not renamed.
fn renamable(a: &Analysis, symbol: &Symbol) -> Result<(), String> {
    match a.file_of(symbol.at) {
        Some(file) if file.on_disk => Ok(()),
        Some(file) => Err(format!("`{}` is declared in `{}`, which ships", symbol.name, file.path.display())),
        None => Err(format!("`{}` is declared in no file", symbol.name)),
    }
}

/// The edits that give the name at a place another one everywhere. Its texts are read again with these edits: where a mistake
/// would follow, nothing is renamed.
///
/// # Errors
/// Why the new name cannot be.
pub(crate) fn rename(
    snapshot: &Snapshot,
    projects: &mut Projects,
    params: &RenameParams,
) -> Result<Option<WorkspaceEdit>, String> {
    let Some(place) = RequestPlace::of(snapshot, projects, &params.text_document_position) else {
        return Ok(None);
    };
    let Some((_, number)) = place.analysis.names.at(place.file, place.offset) else { return Ok(None) };
    let (a, new) = (&place.analysis, params.new_name.as_str());
    let symbol = &a.names.symbols[number];
    renamable(a, symbol)?;
    if new == symbol.name {
        return Ok(None);
    }
    is_name(new)?;
    let all = sharing(snapshot, projects, a, number);
    let mut edits: SortedSet<(String, u32, u32)> = SortedSet::new();
    let mut changes: HashMap<Uri, Vec<TextEdit>> = HashMap::new();
    for (a, symbol) in &all {
        let paths: Result<Vec<Span>, String> =
            a.names.paths_of(*symbol).filter_map(|e| of_path(a, *symbol, e)).collect();
        for span in a.names.uses_of(*symbol).chain(paths?) {
            let Some(at) = location(snapshot, a, span) else { continue };
            if edits.insert((at.uri.as_str().into(), span.start, span.end)) {
                let edit = TextEdit { range: at.range, new_text: new.to_string() };
                changes.entry(at.uri).or_default().push(edit);
            }
        }
    }
    still_right(snapshot, projects, &all, &changes)?;
    Ok(Some(WorkspaceEdit::new(changes)))
}

/// Whether a word can be a name.
fn is_name(word: &str) -> Result<(), String> {
    let all = tokens(word, Language::Model).tokens;
    let single = matches!(all.as_slice(), [t] if t.kind == TokenKind::Word && t.end - t.start == word.len());
    if !single {
        return Err(format!("`{word}` is no name: it takes letters, digits and `_`"));
    }
    match keywords().chain(layout_keywords()).any(|k| k == word) {
        true => Err(format!("`{word}` is a word of the language")),
        false => Ok(()),
    }
}

/// The place of an element of a path, if it means the symbol.
///
/// Errors where it means other declarations too.
fn of_path(a: &Analysis, symbol: usize, element: &PathElement) -> Option<Result<Span, String>> {
    let glob = a.sources.slice(element.path);
    let named = &a.names.symbols[symbol];
    // The parameters that the path means say which declaration its last element is.
    if let (true, SymbolKind::Param, Some(program)) = (element.last, named.kind, &a.program) {
        let meant: Vec<Span> =
            program.params.iter().filter(|p| matches(glob, &p.path)).map(|p| p.span).collect();
        let own =
            |s: &Span| s.file == named.at.file && (named.item.start..=named.item.end).contains(&s.start);
        if meant.iter().all(own) && !meant.is_empty() {
            return Some(Ok(element.at));
        }
        if !meant.iter().any(own) {
            return None;
        }
    } else if element.symbols == [symbol] {
        return Some(Ok(element.at));
    }
    Some(Err(format!(
        "the path `{glob}` names other declarations beside `{}`: give those paths of their own first",
        named.name
    )))
}

/// Whether the texts are as right with the edits as without.
fn still_right(
    snapshot: &Snapshot,
    projects: &mut Projects,
    all: &[(Arc<Analysis>, usize)],
    changes: &HashMap<Uri, Vec<TextEdit>>,
) -> Result<(), String> {
    let mut edited = snapshot.clone();
    let documents = Arc::make_mut(&mut edited.documents);
    let mut uris: Vec<&Uri> = changes.keys().collect();
    uris.sort();
    for uri in uris {
        let path = path_of(uri);
        let text = snapshot.read(&path)?;
        documents.edit(&path, text, &changes[uri]);
    }
    for (before, _) in all {
        let errors = |a: &Analysis| a.diagnostics().filter(|d| d.is_error()).count();
        let path = before.files[before.layout.unwrap_or(before.model).0 as usize].path.clone();
        let path = if before.layout.is_some_and(|l| before.files[l.0 as usize].on_disk) {
            path
        } else {
            before.pair.model.clone()
        };
        let Some(after) = projects.fresh(&edited, &path) else { continue };
        let found: Vec<_> = after.diagnostics().cloned().collect();
        if has_errors(&found) && errors(&after) > errors(before) {
            let first = found.iter().find(|d| d.is_error()).map_or("", |d| &d.message);
            return Err(format!("a mistake would follow: {first}"));
        }
    }
    Ok(())
}
