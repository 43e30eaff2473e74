//! Texts and lines of the model, of which the page has each once: others refer to them by position.

use meshwright_diag::{Sources, Span};
use meshwright_ops::{Graph, Id};
use serde::Serialize;
use std::collections::BTreeMap;

/// A line of a text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct SourceLine {
    /// The file as messages name it.
    file: String,
    /// From 1.
    line: usize,
    /// What it says, without the blanks around it.
    text: String,
}

/// Texts of which each is kept once.
#[derive(Debug, Default)]
pub(super) struct TextPool {
    all: Vec<String>,
    known: BTreeMap<String, usize>,
}

impl TextPool {
    /// All texts, in order of their places.
    pub(super) fn done(self) -> Vec<String> {
        self.all
    }

    /// The place of a text among all.
    pub(super) fn at(&mut self, text: &str) -> usize {
        if let Some(at) = self.known.get(text) {
            return *at;
        }
        self.known.insert(text.into(), self.all.len());
        self.all.push(text.into());
        self.all.len() - 1
    }
}

/// Lines of the model of which each is kept once.
pub(super) struct LinePool<'a> {
    graph: &'a Graph,
    sources: &'a Sources,
    all: Vec<SourceLine>,
    known: BTreeMap<SourceLine, usize>,
}

impl<'a> LinePool<'a> {
    /// Of the values of a graph that was read from these texts.
    pub(super) fn new(graph: &'a Graph, sources: &'a Sources) -> Self {
        LinePool { graph, sources, all: Vec::new(), known: BTreeMap::new() }
    }

    /// All lines that somebody referred to.
    pub(super) fn done(self) -> Vec<SourceLine> {
        self.all
    }

    /// The line that a value of the partitioned step comes from.
    pub(super) fn of_value(&mut self, id: u32) -> Option<usize> {
        let span = self.graph.node(Id(id)).origin.span;
        if span == Span::default() {
            return None;
        }
        let place = self.sources.locate(span);
        let text = self.sources.text(span.file).lines().nth(place.line - 1).unwrap_or("").trim();
        let line = SourceLine { file: place.file, line: place.line, text: text.into() };
        let next = self.all.len();
        let at = *self.known.entry(line.clone()).or_insert(next);
        if at == next {
            self.all.push(line);
        }
        Some(at)
    }
}
