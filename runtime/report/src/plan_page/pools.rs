//! Texts and lines of the model, each once in the page: others refer to them by position.

use meshwright_core::layout::Layout;
use meshwright_core::partition::{Instr, Spmd};
use meshwright_diag::{Sources, Span};
use meshwright_ops::{Graph, Id};
use meshwright_plan::Provenance;
use meshwright_sorted::{SortedMap, SortedSet};
use serde::Serialize;

/// A line of a text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct SourceLine {
    /// The file as messages name it.
    file: String,
    /// From 1.
    line: usize,
    /// The text, trimmed.
    text: String,
}

/// Texts, each kept once.
#[derive(Debug, Default)]
pub(super) struct TextPool {
    all: Vec<String>,
    known: SortedMap<String, usize>,
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

/// Lines of the model, each kept once.
pub(super) struct LinePool<'a> {
    graph: &'a Graph,
    sources: &'a Sources,
    all: Vec<SourceLine>,
    known: SortedMap<SourceLine, usize>,
}

impl<'a> LinePool<'a> {
    /// Of the values of a graph that was read from these texts.
    pub(super) fn new(graph: &'a Graph, sources: &'a Sources) -> Self {
        LinePool { graph, sources, all: Vec::new(), known: SortedMap::new() }
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

/// A rule of the layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct RuleView {
    /// Its number, as `--why` counts them.
    number: usize,
    /// Its line, from 1: one line may have several rules.
    line: usize,
    text: String,
}

/// Rules of the layout, each kept once. A Plan knows only the line of a rule; the partitioned step from which it was
/// made says which rule of that line it is.
pub(super) struct RulePool<'a> {
    layout: &'a Layout,
    sources: &'a Sources,
    /// By what is moved and why: where the rules stand.
    causes: SortedMap<(u32, &'a str), SortedSet<Span>>,
    all: Vec<RuleView>,
    known: SortedMap<Span, usize>,
}

impl<'a> RulePool<'a> {
    /// Of a step that was partitioned by a layout.
    pub(super) fn new(spmd: &'a Spmd, layout: &'a Layout, sources: &'a Sources) -> Self {
        let mut causes: SortedMap<(u32, &str), SortedSet<Span>> = SortedMap::new();
        for instr in &spmd.instrs {
            if let Instr::Reshard { from, cause, .. } = instr
                && let Some(rule) = cause.rule
            {
                causes.entry((spmd.copies[*from].value.0, &cause.because)).or_default().insert(rule);
            }
        }
        RulePool { layout, sources, causes, all: Vec::new(), known: SortedMap::new() }
    }

    /// All rules that somebody referred to.
    pub(super) fn done(self) -> Vec<RuleView> {
        self.all
    }

    /// The rules behind a collective, by their places: mostly one. They are the rules in the line that it names.
    pub(super) fn of(&mut self, o: &Provenance) -> Vec<usize> {
        let Some(line) = o.rule else { return Vec::new() };
        let spans = self.causes.get(&(o.id, &*o.because)).cloned().unwrap_or_default();
        let there = |span: &Span| self.sources.line(*span) == line as usize;
        let mut spans: SortedSet<Span> = spans.into_iter().filter(there).collect();
        if spans.is_empty() {
            // Moved by another name than it was partitioned under: the rules of its line.
            spans = self.layout.rules.iter().map(|r| r.span).filter(there).collect();
        }
        spans.into_iter().filter_map(|span| self.place(span, line as usize)).collect()
    }

    fn place(&mut self, span: Span, line: usize) -> Option<usize> {
        if let Some(at) = self.known.get(&span) {
            return Some(*at);
        }
        let rule = self.layout.rules.iter().find(|r| r.span == span)?;
        self.all.push(RuleView { number: rule.number, line, text: rule.text.clone() });
        self.known.insert(span, self.all.len() - 1);
        Some(self.all.len() - 1)
    }
}
