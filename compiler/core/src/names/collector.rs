//! Names on their way: what has been declared so far.

use super::symbols::{Names, Symbol, SymbolKind};
use meshwright_diag::{FileId, Sources, Span};
use meshwright_sorted::SortedMap;
use meshwright_syntax::ast::Name;

/// Names that are being collected.
pub(super) struct Collector<'a> {
    pub(super) names: Names,
    pub(super) sources: &'a Sources,
    pub(super) dims: SortedMap<&'a str, usize>,
    pub(super) consts: SortedMap<&'a str, usize>,
    pub(super) layers: SortedMap<&'a str, usize>,
    /// The arguments of each layer.
    pub(super) arguments: SortedMap<(&'a str, &'a str), usize>,
    /// Losses, metrics and outputs, by model and name.
    pub(super) results: SortedMap<(&'a str, &'a str), usize>,
    pub(super) models: SortedMap<&'a str, usize>,
    /// The model's own file.
    pub(super) main: Option<FileId>,
    /// Paths, whose elements are known when everything is declared.
    pub(super) globs: Vec<Span>,
}

/// The names of a layer or a model so far.
#[derive(Clone, Default)]
pub(super) struct BodyNames<'a> {
    /// All of it.
    pub(super) span: Option<Span>,
    /// The name of the layer.
    pub(super) layer: Option<&'a str>,
    /// The name of the model.
    pub(super) model: Option<&'a str>,
    pub(super) values: SortedMap<&'a str, usize>,
    pub(super) results: SortedMap<&'a str, usize>,
    pub(super) labels: SortedMap<&'a str, usize>,
}

impl Collector<'_> {
    /// Declares a name that is known everywhere, or in a scope.
    pub(super) fn declared(
        &mut self,
        kind: SymbolKind,
        name: &Name,
        (item, doc, scope): (Span, &str, Option<Span>),
    ) -> usize {
        let doc = doc.lines().map(str::trim).collect::<Vec<_>>().join("\n");
        self.names.declare(Symbol { kind, name: name.text.clone(), at: name.span, item, doc, scope })
    }

    pub(super) fn use_of(&mut self, at: Span, symbol: Option<usize>) {
        self.names.uses.extend(symbol.map(|s| (at, s)));
    }
}
