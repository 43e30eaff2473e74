//! Where names are declared, and where they are used.

use super::place::{RequestPlace, location};
use crate::project::{Analysis, Projects};
use crate::snapshot::Snapshot;
use lsp_types::{
    DocumentHighlight, DocumentHighlightKind, DocumentHighlightParams, GotoDefinitionParams,
    GotoDefinitionResponse, Location, ReferenceParams,
};
use meshwright_diag::Span;
use meshwright_syntax::ast::ItemKind;
use std::sync::Arc;

/// Where the name at a place is declared; of an element of a path that may mean several things, each of them. Of a file that
/// `use` names it is the file.
pub(crate) fn definition(
    snapshot: &Snapshot,
    projects: &mut Projects,
    params: &GotoDefinitionParams,
) -> Option<GotoDefinitionResponse> {
    let place = RequestPlace::of(snapshot, projects, &params.text_document_position_params)?;
    let a = &place.analysis;
    if let Some(file) = used(&place) {
        return location(snapshot, a, file).map(GotoDefinitionResponse::Scalar);
    }
    let (at, symbol) = a.names.at(place.file, place.offset)?;
    let of_path = a.names.paths.iter().find(|e| e.at == at).map(|e| e.symbols.clone());
    let symbols = of_path.unwrap_or_else(|| vec![symbol]);
    let found = symbols.iter().filter_map(|s| location(snapshot, a, a.names.symbols[*s].at));
    Some(GotoDefinitionResponse::Array(found.collect()))
}

/// The start of the file that the `use` at a place names.
fn used(place: &RequestPlace) -> Option<Span> {
    let a = &place.analysis;
    let (_, tree) = a.trees.iter().find(|t| t.0 == place.file)?;
    let path = tree.items.iter().find_map(|i| match &i.kind {
        ItemKind::Use(u) if (u.path_span.start..=u.path_span.end).contains(&place.offset) => Some(&u.path),
        _ => None,
    })?;
    let user = &a.files[place.file.0 as usize].path;
    let file = a.file(std::path::Path::new(path)).or_else(|| a.file(&crate::project::beside(user, path)))?;
    Some(Span::new(file, 0, 0))
}

/// All places that mean the name at a place, in all models of the workspace that read its declaration.
pub(crate) fn references(
    snapshot: &Snapshot,
    projects: &mut Projects,
    params: &ReferenceParams,
) -> Option<Vec<Location>> {
    let place = RequestPlace::of(snapshot, projects, &params.text_document_position)?;
    let (_, symbol) = place.analysis.names.at(place.file, place.offset)?;
    let declared = location(snapshot, &place.analysis, place.analysis.names.symbols[symbol].at)?;
    let mut out: Vec<Location> = Vec::new();
    for (a, symbol) in sharing(snapshot, projects, &place.analysis, symbol) {
        let spans = a.names.uses_of(symbol).chain(a.names.paths_of(symbol).map(|e| e.at));
        out.extend(spans.filter_map(|s| location(snapshot, &a, s)));
    }
    let key = |l: &Location| (l.uri.as_str().to_string(), l.range.start, l.range.end);
    out.sort_by_key(key);
    out.dedup();
    if !params.context.include_declaration {
        out.retain(|l| *l != declared);
    }
    Some(out)
}

/// The analyses in which a symbol of one is declared at the same place, with its number in each: models that use the same file,
/// and layouts of the same model.
pub(super) fn sharing(
    snapshot: &Snapshot,
    projects: &mut Projects,
    of: &Arc<Analysis>,
    symbol: usize,
) -> Vec<(Arc<Analysis>, usize)> {
    let declared = &of.names.symbols[symbol];
    let path = of.file_of(declared.at).map(|f| f.path.clone());
    let mut out = vec![(of.clone(), symbol)];
    for a in projects.around(snapshot, of) {
        let Some(file) = path.as_ref().and_then(|p| a.file(p)) else { continue };
        let at = Span { file, ..declared.at };
        let same = a.names.symbols.iter().position(|s| s.at == at && s.name == declared.name);
        out.extend(same.map(|s| (a, s)));
    }
    out
}

/// The places of one text that mean the name at a place.
pub(crate) fn highlights(
    snapshot: &Snapshot,
    projects: &mut Projects,
    params: &DocumentHighlightParams,
) -> Option<Vec<DocumentHighlight>> {
    let place = RequestPlace::of(snapshot, projects, &params.text_document_position_params)?;
    let a = &place.analysis;
    let (_, symbol) = a.names.at(place.file, place.offset)?;
    let here = a.names.uses_of(symbol).filter(|s| s.file == place.file);
    let shown = here.filter_map(|s| {
        let declares = s == a.names.symbols[symbol].at;
        let kind = if declares { DocumentHighlightKind::WRITE } else { DocumentHighlightKind::READ };
        Some(DocumentHighlight { range: location(snapshot, a, s)?.range, kind: Some(kind) })
    });
    Some(shown.collect())
}
