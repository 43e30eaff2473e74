//! Declarations, and the places that mean them.

use meshwright_diag::{FileId, Span};

/// Kinds of declarations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SymbolKind {
    /// `dim`.
    Dim,
    /// `const`.
    Const,
    /// `size NAME { … }`.
    Preset,
    /// `layer`.
    Layer,
    /// An argument of a layer.
    Argument,
    /// `model`.
    Model,
    /// `input`.
    Input,
    /// `param`.
    Param,
    /// `state`.
    State,
    /// `let`.
    Value,
    /// The position of a loop.
    Index,
    /// `loss`.
    Loss,
    /// `metric`.
    Metric,
    /// `output`.
    Output,
    /// `as NAME` behind a call.
    Label,
    /// An axis of the mesh.
    Axis,
}

impl SymbolKind {
    /// In lowercase, as messages have it.
    pub fn text(self) -> &'static str {
        match self {
            SymbolKind::Dim => "dim",
            SymbolKind::Const => "const",
            SymbolKind::Preset => "preset",
            SymbolKind::Layer => "layer",
            SymbolKind::Argument => "argument",
            SymbolKind::Model => "model",
            SymbolKind::Input => "input",
            SymbolKind::Param => "param",
            SymbolKind::State => "state",
            SymbolKind::Value => "value",
            SymbolKind::Index => "position of a loop",
            SymbolKind::Loss => "loss",
            SymbolKind::Metric => "metric",
            SymbolKind::Output => "output",
            SymbolKind::Label => "label",
            SymbolKind::Axis => "axis",
        }
    }

    /// True if paths of parameters and values have it as an element.
    pub(super) fn in_paths(self) -> bool {
        use SymbolKind::{Dim, Input, Label, Layer, Loss, Metric, Output, Param, State, Value};
        matches!(self, Dim | Input | Label | Layer | Loss | Metric | Output | Param | State | Value)
    }
}

/// A declaration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Its kind.
    pub kind: SymbolKind,
    /// The name.
    pub name: String,
    /// The place of the name.
    pub at: Span,
    /// All of the declaration.
    pub item: Span,
    /// The `///` comments above, a line each.
    pub doc: String,
    /// The layer, the model or the file that it is declared in: where the name can be read.
    pub scope: Option<Span>,
}

/// An element of a path such as `layers.attention.*`, with the declarations that it may mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathElement {
    /// Its place.
    pub at: Span,
    /// The whole path.
    pub path: Span,
    /// True for the last element.
    pub last: bool,
    /// Positions among the symbols.
    pub symbols: Vec<usize>,
}

/// The declarations of some files, and the places that mean them.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// The declarations.
    pub symbols: Vec<Symbol>,
    /// Places where one is named, its declaration included, with its position among the symbols; in order of place.
    pub uses: Vec<(Span, usize)>,
    /// Elements of paths.
    pub paths: Vec<PathElement>,
}

impl Names {
    /// The symbol that is named at a place, and where its name stands there.
    pub fn at(&self, file: FileId, offset: u32) -> Option<(Span, usize)> {
        let around = |s: &Span| s.file == file && s.start <= offset && offset <= s.end;
        let behind = self.uses.partition_point(|(s, _)| (s.file, s.start) <= (file, offset));
        let found = self.uses[..behind].iter().rev().take(2).find(|(s, _)| around(s)).copied();
        let element = || {
            let e = self.paths.iter().find(|e| around(&e.at))?;
            Some((e.at, *e.symbols.first()?))
        };
        found.or_else(element)
    }

    /// The places that name a symbol, its declaration included.
    pub fn uses_of(&self, symbol: usize) -> impl Iterator<Item = Span> {
        self.uses.iter().filter(move |u| u.1 == symbol).map(|u| u.0)
    }

    /// The elements of paths that may mean a symbol.
    pub fn paths_of(&self, symbol: usize) -> impl Iterator<Item = &PathElement> {
        self.paths.iter().filter(move |e| e.symbols.contains(&symbol))
    }

    /// All that can be named at a place: what its layer or model has declared so far, and what all files declare.
    pub fn visible(&self, file: FileId, offset: u32) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().filter(move |s| match s.scope {
            None => true,
            Some(scope) => {
                scope.file == file && s.at.end <= offset && offset <= scope.end && scope.start <= offset
            }
        })
    }

    pub(super) fn declare(&mut self, symbol: Symbol) -> usize {
        let number = self.symbols.len();
        self.uses.push((symbol.at, number));
        self.symbols.push(symbol);
        number
    }
}

impl Names {
    /// Declarations of a kind.
    pub fn of_kind(&self, kind: SymbolKind) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().filter(move |s| s.kind == kind)
    }
}
