//! What a text declares, as a tree.

use super::place::text;
use crate::project::Projects;
use crate::snapshot::Snapshot;
use crate::text::{LanguageKind, LineIndex, path_of};
use lsp_types::{DocumentSymbol, DocumentSymbolParams, DocumentSymbolResponse, Range, SymbolKind as Shown};
use meshwright_core::names::{Symbol, SymbolKind};
use meshwright_diag::{FileId, Span};
use meshwright_syntax::ast::LayoutKind;
use meshwright_syntax::read_layout;

/// Answers a request for the outline of a text.
pub(crate) fn symbols(
    snapshot: &Snapshot,
    projects: &mut Projects,
    params: &DocumentSymbolParams,
) -> Option<DocumentSymbolResponse> {
    let path = path_of(&params.text_document.uri);
    let source = snapshot.read(&path).ok()?;
    let kind = snapshot.documents.get(&path).map_or_else(|| LanguageKind::of(&path), |d| d.kind);
    let lines = LineIndex::of(&source);
    let range = |s: Span| lines.range(&source, s.start as usize, s.end as usize);
    if kind == LanguageKind::Layout {
        return Some(DocumentSymbolResponse::Nested(of_layout(&source, &range)));
    }
    let (a, file) = text(snapshot, projects, &params.text_document.uri)?;
    let own = || a.names.symbols.iter().filter(|s| s.at.file == file);
    let entry = |s: &Symbol| shown(&s.name, a.shape(s), of_kind(s.kind), (range(s.item), range(s.at)));
    let top = own().filter(|s| s.scope.is_none() && s.kind != SymbolKind::Axis).map(|s| {
        let within: Vec<DocumentSymbol> =
            own().filter(|c| c.scope == Some(s.item) && c.kind != SymbolKind::Argument).map(entry).collect();
        DocumentSymbol { children: (!within.is_empty()).then_some(within), ..entry(s) }
    });
    Some(DocumentSymbolResponse::Nested(top.collect()))
}

impl crate::project::Analysis {
    /// The first type of a value.
    fn shape(&self, symbol: &Symbol) -> Option<String> {
        symbol.scope?;
        self.meanings(symbol.at).next().map(|m| self.signature(m))
    }
}

fn of_layout(source: &str, range: &dyn Fn(Span) -> Range) -> Vec<DocumentSymbol> {
    let (tree, _) = read_layout(FileId(0), source);
    let entry = |item: &meshwright_syntax::ast::LayoutItem| {
        let text = source.get(item.span.start as usize..item.span.end as usize).unwrap_or_default();
        let name = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let kind = match item.kind {
            LayoutKind::Mesh(_) => Shown::NAMESPACE,
            LayoutKind::Rule(_) => Shown::OPERATOR,
            _ => Shown::PROPERTY,
        };
        shown(&name, None, kind, (range(item.span), range(item.span)))
    };
    tree.items.iter().map(entry).collect()
}

fn of_kind(kind: SymbolKind) -> Shown {
    match kind {
        SymbolKind::Dim => Shown::TYPE_PARAMETER,
        SymbolKind::Const => Shown::CONSTANT,
        SymbolKind::Preset => Shown::STRUCT,
        SymbolKind::Layer => Shown::FUNCTION,
        SymbolKind::Model => Shown::CLASS,
        SymbolKind::Param | SymbolKind::State => Shown::FIELD,
        SymbolKind::Loss | SymbolKind::Metric | SymbolKind::Output => Shown::EVENT,
        SymbolKind::Axis => Shown::ENUM_MEMBER,
        SymbolKind::Argument
        | SymbolKind::Input
        | SymbolKind::Value
        | SymbolKind::Index
        | SymbolKind::Label => Shown::VARIABLE,
    }
}

#[allow(deprecated, reason = "the type has a deprecated field, which must be given a value")]
fn shown(
    name: &str,
    detail: Option<String>,
    kind: Shown,
    (range, selection_range): (Range, Range),
) -> DocumentSymbol {
    DocumentSymbol {
        name: name.to_string(),
        detail,
        kind,
        tags: None,
        deprecated: None,
        range,
        selection_range,
        children: None,
    }
}
