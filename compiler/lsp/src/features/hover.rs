//! What is shown at a name: its declaration, its type with sizes, its documentation, and where the layout puts it.

use super::pages;
use super::place::RequestPlace;
use crate::project::{Analysis, Projects};
use crate::snapshot::Snapshot;
use crate::text::{LanguageKind, LineIndex, path_of};
use lsp_types::{Hover, HoverContents, HoverParams, MarkupContent, MarkupKind, Range};
use meshwright_core::names::{Symbol, SymbolKind};
use meshwright_core::resolve::Meaning;
use meshwright_diag::Span;
use meshwright_syntax::{Language, Token, TokenKind, tokens};

/// Most calls of a layer for which a value in it is described.
const CALLS: usize = 6;

/// Answers a hover.
pub(crate) fn hover(snapshot: &Snapshot, projects: &mut Projects, params: &HoverParams) -> Option<Hover> {
    let at = &params.text_document_position_params;
    let path = path_of(&at.text_document.uri);
    let text = snapshot.read(&path).ok()?;
    let kind = snapshot.documents.get(&path).map_or_else(|| LanguageKind::of(&path), |d| d.kind);
    let lines = LineIndex::of(&text);
    let offset = lines.offset(&text, at.position);
    let word = word_at(&text, kind, offset)?;
    let range = lines.range(&text, word.start, word.end);
    let name = &text[word.start..word.end];
    let Some(place) = RequestPlace::of(snapshot, projects, at) else {
        return pages::of_word(name, kind).map(|text| shown(text, range));
    };
    let a = &place.analysis;
    let word = Span::new(place.file, word.start, word.end);
    let named = a.names.at(place.file, place.offset).filter(|(span, _)| *span == word);
    let text = match named {
        Some((_, symbol)) => Some(a.symbol(&a.names.symbols[symbol], word)),
        None => pages::of_word(name, kind),
    };
    let result = a.results(word);
    let parts = text.into_iter().chain(a.described(&result, "gives "));
    let all: Vec<String> = parts.collect();
    (!all.is_empty()).then(|| shown(all.join("\n\n---\n\n"), range))
}

/// The word or the sign at an offset.
pub(super) fn word_at(text: &str, kind: LanguageKind, offset: usize) -> Option<Token> {
    let language = match kind {
        LanguageKind::Model => Language::Model,
        LanguageKind::Layout => Language::Layout,
    };
    let all = tokens(text, language).tokens;
    let behind = all.partition_point(|t| t.start <= offset);
    let around = all[..behind].iter().rev().take(2).filter(|t| t.end >= offset);
    let mut around: Vec<Token> = around.copied().collect();
    // Between two tokens a word is meant.
    around.sort_by_key(|t| t.kind != TokenKind::Word);
    around.first().copied()
}

fn shown(value: String, range: Range) -> Hover {
    let contents = HoverContents::Markup(MarkupContent { kind: MarkupKind::Markdown, value });
    Hover { contents, range: Some(range) }
}

impl Analysis {
    /// A name with its declaration, its documentation and what it stands for.
    fn symbol(&self, symbol: &Symbol, word: Span) -> String {
        let mut parts = vec![format!("```meshwright\n{}\n```", self.declaration(symbol))];
        if !symbol.doc.is_empty() {
            parts.push(symbol.doc.clone());
        }
        match symbol.kind {
            SymbolKind::Dim => {
                let dim = self.inspection.dims.get(&symbol.name);
                parts.extend(dim.map(|d| format!("`{}`", self.sizes(&[*d]))));
                parts.extend(self.splits_of(&symbol.name));
            }
            SymbolKind::Const => {
                let value = self.inspection.consts.get(&symbol.name);
                parts.extend(value.map(|v| format!("`{} = {v}`", symbol.name)));
            }
            SymbolKind::Axis => parts.extend(self.split_over(&symbol.name)),
            _ => {
                // A carried value has another type and placement in each place.
                let here: Vec<&Meaning> = self.meanings(word).collect();
                let here = if here.is_empty() { self.meanings(symbol.at).collect() } else { here };
                parts.extend(self.described(&here, ""));
            }
        }
        parts.join("\n\n")
    }

    /// What stands at a place, for each call that comes by there.
    pub(super) fn described(&self, meanings: &[&Meaning], prefix: &str) -> Option<String> {
        let mut parts: Vec<String> = Vec::new();
        let mut told: Vec<&Meaning> = Vec::new();
        let distinct = meanings.iter().filter(|m| {
            let new = !told.contains(m);
            told.push(m);
            new
        });
        let distinct: Vec<&&Meaning> = distinct.collect();
        for meaning in distinct.iter().take(CALLS) {
            let mut text = format!("{prefix}`{}`", self.signature(meaning));
            if let Some(extent) = self.extent(meaning) {
                text.push_str(&format!("  \n{extent}"));
            }
            if !parts.contains(&text) {
                parts.push(text);
            }
        }
        let mut placed: Vec<String> = Vec::new();
        for meaning in distinct.iter().take(CALLS) {
            let Meaning::Value(id) = meaning else { continue };
            let path = self.inspection.graph.path(*id);
            let text = Some(path).filter(|p| !p.is_empty()).and_then(|p| self.placement(p));
            placed.extend(text.filter(|t| !placed.contains(t)));
        }
        if distinct.len() > CALLS {
            parts.push(format!("and in {} more calls", distinct.len() - CALLS));
        }
        parts.extend(placed);
        (!parts.is_empty()).then(|| parts.join("\n\n"))
    }

    /// The rules of the layout that name a dim.
    fn splits_of(&self, dim: &str) -> Option<String> {
        let layout = self.bound.as_ref()?;
        let of_dim = |r: &&meshwright_core::layout::Rule| {
            let name = r.text.rsplit(": ").next().and_then(|t| t.split(" ->").next());
            name == Some(dim)
        };
        let rules: Vec<String> =
            layout.rules.iter().filter(of_dim).map(|r| format!("`{}`", r.text)).collect();
        let name = self.pair.layout.as_ref()?.name();
        Some(match rules.is_empty() {
            true => format!("no rule of `{name}` splits it by name"),
            false => format!("under `{name}`: {}", rules.join(", ")),
        })
    }

    /// What is split over an axis, and what is communicated over it.
    fn split_over(&self, axis: &str) -> Option<String> {
        let report = self.placed()?.report.as_ref()?;
        let over = report.collectives.iter().filter(|c| c.axes.iter().any(|a| a == axis));
        let (mut count, mut bytes) = (0u64, 0u64);
        for c in over {
            count += c.times;
            bytes = bytes.saturating_add(c.times.saturating_mul(c.bytes as u64));
        }
        Some(format!("{count} collectives a step over it, {} on each device", super::values::bytes(bytes)))
    }
}
