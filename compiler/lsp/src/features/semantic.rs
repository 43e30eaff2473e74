//! Kinds of words, for colors: what a name is declared as, which a grammar cannot know.

use super::place::text;
use crate::project::{Analysis, Projects};
use crate::snapshot::Snapshot;
use crate::text::{LanguageKind, LineIndex, path_of};
use lsp_types::{
    SemanticToken, SemanticTokenModifier, SemanticTokenType, SemanticTokens, SemanticTokensLegend,
    SemanticTokensParams, SemanticTokensResult,
};
use meshwright_core::names::SymbolKind;
use meshwright_diag::{FileId, Span};
use meshwright_ops::reference::named as ops;
use meshwright_sorted::SortedSet;
use meshwright_syntax::{Language, TokenKind, keywords, layout_keywords, tokens as scanned};

const TYPES: [SemanticTokenType; 13] = [
    SemanticTokenType::KEYWORD,
    SemanticTokenType::COMMENT,
    SemanticTokenType::STRING,
    SemanticTokenType::NUMBER,
    SemanticTokenType::OPERATOR,
    SemanticTokenType::FUNCTION,
    SemanticTokenType::TYPE,
    SemanticTokenType::VARIABLE,
    SemanticTokenType::PARAMETER,
    SemanticTokenType::PROPERTY,
    SemanticTokenType::ENUM_MEMBER,
    SemanticTokenType::CLASS,
    SemanticTokenType::STRUCT,
];

const MODIFIERS: [SemanticTokenModifier; 3] = [
    SemanticTokenModifier::DECLARATION,
    SemanticTokenModifier::READONLY,
    SemanticTokenModifier::DEFAULT_LIBRARY,
];

/// The names of kinds and modifiers, in the order in which answers number them.
pub(crate) fn legend() -> SemanticTokensLegend {
    SemanticTokensLegend { token_types: TYPES.to_vec(), token_modifiers: MODIFIERS.to_vec() }
}

/// A piece of a text with its kind and its modifiers.
type ColoredToken = (usize, usize, SemanticTokenType, u32);

/// Answers a request for all tokens of a text.
pub(crate) fn tokens(
    snapshot: &Snapshot,
    projects: &mut Projects,
    params: &SemanticTokensParams,
) -> Option<SemanticTokensResult> {
    let path = path_of(&params.text_document.uri);
    let source = snapshot.read(&path).ok()?;
    let kind = snapshot.documents.get(&path).map_or_else(|| LanguageKind::of(&path), |d| d.kind);
    let known = text(snapshot, projects, &params.text_document.uri);
    let pieces = pieces(&source, kind, known.as_ref().map(|(a, file)| (&**a, *file)));
    let data = encoded(&source, &pieces);
    Some(SemanticTokensResult::Tokens(SemanticTokens { result_id: None, data }))
}

fn pieces(source: &str, kind: LanguageKind, known: Option<(&Analysis, FileId)>) -> Vec<ColoredToken> {
    let (language, words): (_, SortedSet<&str>) = match kind {
        LanguageKind::Model => (Language::Model, keywords().collect()),
        LanguageKind::Layout => (Language::Layout, layout_keywords().collect()),
    };
    let scanned = scanned(source, language);
    let mut out: Vec<ColoredToken> =
        scanned.comments.iter().map(|c| (c.start, c.end, SemanticTokenType::COMMENT, 0)).collect();
    for t in &scanned.tokens {
        let word = &source[t.start..t.end];
        let named = known.and_then(|(a, file)| {
            let at = Span::new(file, t.start, t.end);
            let (span, symbol) = a.names.at(file, at.start).filter(|(span, _)| *span == at)?;
            let symbol = &a.names.symbols[symbol];
            Some(of_symbol(symbol.kind, symbol.at == span))
        });
        let (ty, modifiers) = match (t.kind, named) {
            (_, Some(found)) => found,
            (TokenKind::Number, _) => (SemanticTokenType::NUMBER, 0),
            (TokenKind::Text, _) => (SemanticTokenType::STRING, 0),
            (TokenKind::Word, _) if words.contains(word) => (SemanticTokenType::KEYWORD, 0),
            (TokenKind::Word, _) if kind == LanguageKind::Model && !ops(word).is_empty() => {
                (SemanticTokenType::FUNCTION, 4)
            }
            (TokenKind::Sign, _) if !"()[]{},;:.".contains(word) => (SemanticTokenType::OPERATOR, 0),
            _ => continue,
        };
        out.push((t.start, t.end, ty, modifiers));
    }
    out.sort_by_key(|p| p.0);
    out
}

fn of_symbol(kind: SymbolKind, declares: bool) -> (SemanticTokenType, u32) {
    use SymbolKind as K;
    let ty = match kind {
        K::Dim => SemanticTokenType::TYPE,
        K::Layer => SemanticTokenType::FUNCTION,
        K::Argument => SemanticTokenType::PARAMETER,
        K::Model => SemanticTokenType::CLASS,
        K::Preset => SemanticTokenType::STRUCT,
        K::Axis => SemanticTokenType::ENUM_MEMBER,
        K::Param | K::State | K::Loss | K::Metric | K::Output | K::Label => SemanticTokenType::PROPERTY,
        K::Const | K::Input | K::Value | K::Index => SemanticTokenType::VARIABLE,
    };
    (ty, u32::from(declares) | if kind == K::Const { 2 } else { 0 })
}

/// As the protocol has it: each relative to the one before, in UTF-16.
fn encoded(source: &str, pieces: &[ColoredToken]) -> Vec<SemanticToken> {
    let lines = LineIndex::of(source);
    let mut out = Vec::new();
    let (mut line, mut column) = (0, 0);
    for (start, end, ty, modifiers) in pieces {
        let range = lines.range(source, *start, *end);
        let at = range.start;
        // A string that is not closed may end on another line.
        if range.end.line != at.line || range.end.character == at.character {
            continue;
        }
        out.push(SemanticToken {
            delta_line: at.line - line,
            delta_start: if at.line == line { at.character - column } else { at.character },
            length: range.end.character - at.character,
            token_type: TYPES.iter().position(|t| t == ty).unwrap_or_default() as u32,
            token_modifiers_bitset: *modifiers,
        });
        (line, column) = (at.line, at.character);
    }
    out
}
