//! Shapes behind the names of values.

use super::place::text;
use crate::project::Projects;
use crate::snapshot::Snapshot;
use lsp_types::{InlayHint, InlayHintKind, InlayHintLabel, InlayHintParams, InlayHintTooltip};
use meshwright_core::names::SymbolKind;
use meshwright_core::resolve::Meaning;
use meshwright_ops::Id;
use meshwright_plan::Dim;

/// The dims of each value that a range of a text declares with `let`, and what `loss`, `metric` and `output` are. In a layer they
/// are shown where all calls agree.
pub(crate) fn hints(
    snapshot: &Snapshot,
    projects: &mut Projects,
    params: &InlayHintParams,
) -> Option<Vec<InlayHint>> {
    let (a, file) = text(snapshot, projects, &params.text_document.uri)?;
    let source = a.sources.text(file);
    let lines = a.files[file.0 as usize].lines();
    let range = lines.offset(source, params.range.start)..=lines.offset(source, params.range.end);
    let kinds = [SymbolKind::Value, SymbolKind::Output];
    let shown = a
        .names
        .symbols
        .iter()
        .filter(|s| s.at.file == file && range.contains(&(s.at.end as usize)) && kinds.contains(&s.kind));
    let g = &a.inspection.graph;
    let hint = |s: &meshwright_core::names::Symbol| {
        let mut ids = a.meanings(s.at).filter_map(|m| match m {
            Meaning::Value(id) => Some(*id),
            _ => None,
        });
        let first: Id = ids.next()?;
        let dims: &[Dim] = &g.ty(first).dims;
        if ids.any(|id| g.ty(id).dims != dims) {
            return None;
        }
        Some(InlayHint {
            position: lines.position(source, s.at.end as usize),
            label: InlayHintLabel::String(g.dims.list(dims)),
            kind: Some(InlayHintKind::TYPE),
            text_edits: None,
            tooltip: a.extent(&Meaning::Value(first)).map(InlayHintTooltip::String),
            padding_left: Some(true),
            padding_right: None,
            data: None,
        })
    };
    Some(shown.filter_map(hint).collect())
}
