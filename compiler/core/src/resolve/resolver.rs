//! State of a resolution, and its limits.

use super::declarations::globals::{Globals, MAX_DEPTH};
use super::report::Report;
use super::scope::OpenRepeat;
use super::scope::{NameScope, ScopeKind, Val};
use crate::declarations::{LossDecl, ParamDecl, StateDecl};
use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_ops::{Graph, Id};
use meshwright_plan::{DType, InputDecl};
use meshwright_sorted::{SortedMap, SortedSet};
use std::sync::Arc;

/// The most values of a graph: about 300 blocks of a transformer. The gradient of a value has a part for each use of
/// it, and an expression over that many operands still has registers of 16 bits for all of them and for their sums.
const MAX_VALUES: usize = 30_000;
/// The most expressions and calls evaluated: layers without values would otherwise escape [`MAX_VALUES`].
const MAX_WORK: usize = 4_000_000;

/// Origin of a parameter's path: the calls that lead to its declaration.
#[derive(Clone)]
pub(super) struct PathOrigin {
    pub(super) calls: Vec<Span>,
    /// Its leaf, once it has one.
    pub(super) id: Option<Id>,
}

/// The state of one resolution.
#[derive(Clone)]
pub(super) struct Resolver<'a> {
    pub(super) float: DType,
    pub(super) globals: Globals<'a>,
    pub(super) graph: Graph,
    pub(super) report: Report,
    /// The model's scope, and those of the layer calls that are open.
    pub(super) scopes: Vec<NameScope<'a>>,
    pub(super) params: Vec<ParamDecl>,
    pub(super) states: Vec<StateDecl>,
    /// The assignment of each state's next value, by position.
    pub(super) assigned: SortedMap<usize, Span>,
    pub(super) paths: SortedMap<String, PathOrigin>,
    pub(super) inputs: Vec<(InputDecl, Id, Span)>,
    pub(super) losses: Vec<LossDecl>,
    pub(super) metrics: Vec<LossDecl>,
    pub(super) outputs: Vec<LossDecl>,
    /// Consts that are read outside of a `train` block.
    pub(super) model_consts: SortedSet<&'a str>,
    /// The leaf of the number of the step.
    pub(super) step: Option<Id>,
    /// The truth value `training`.
    pub(super) training: Option<Id>,
    /// Number of random streams of each name.
    pub(super) streams: SortedMap<String, usize>,
    /// Number of calls of layers with each path.
    pub(super) calls: SortedMap<Arc<str>, usize>,
    /// The least and the greatest that the elements of each value may be, as far as they have been asked for.
    pub(super) bounds: Vec<(i64, i64)>,
    /// The first call that has each path, with its layer: what it declares can be shared.
    pub(super) owners: SortedMap<Arc<str>, (&'a str, Span)>,
    /// The value of each name, by its path.
    pub(super) named: SortedMap<Arc<str>, Id>,
    /// The loops whose bodies are being resolved, outermost first.
    pub(super) open_repeats: Vec<OpenRepeat<'a>>,
    pub(super) depth: usize,
    pub(super) work: usize,
    /// Whether a limit was hit: nothing is evaluated from then on.
    pub(super) stopped: bool,
    /// Names of losses that are declared, but in error.
    pub(super) poisoned: SortedSet<String>,
    /// Places with what stands there, if that is asked for.
    pub(super) facts: Option<Vec<(Span, Val)>>,
}

impl<'a> Resolver<'a> {
    /// The innermost scope.
    pub(super) fn scope(&mut self) -> &mut NameScope<'a> {
        let last = self.scopes.len() - 1;
        &mut self.scopes[last]
    }

    /// Reports a mistake; inside of a layer with the calls that led there.
    pub(super) fn error(&mut self, mut d: Diagnostic) {
        let calls = self.scopes.iter().rev().filter(|s| s.kind == ScopeKind::Layer);
        for s in calls.take(3) {
            d = d.and(s.call, format!("in this call of `{}`", s.title));
        }
        self.report.push(d);
    }

    /// Whether nothing more is evaluated: a limit was hit, or there are as many errors as are reported.
    pub(super) fn ended(&self) -> bool {
        self.stopped || self.report.is_full_of_errors()
    }

    /// Goes one level deeper, unless a limit is hit.
    pub(super) fn enter(&mut self, at: Span) -> bool {
        if self.ended() {
            return false;
        }
        self.work += 1;
        let what = if self.graph.nodes.len() > MAX_VALUES {
            format!("more than {MAX_VALUES} values")
        } else if self.work > MAX_WORK {
            format!("more than {MAX_WORK} expressions, all calls of layers written out")
        } else if self.depth >= MAX_DEPTH {
            format!("expressions and calls of layers are nested more than {MAX_DEPTH} deep")
        } else {
            self.depth += 1;
            return true;
        };
        self.stopped = true;
        self.error(
            Diagnostic::error(codes::E0219, format!("the model is too large: {what}"))
                .at(at, "the limit is reached here")
                .help("layers that call layers multiply: call them fewer times"),
        );
        false
    }

    /// Keeps what stands at a place, for whoever inspects the text.
    pub(super) fn fact(&mut self, at: Span, val: &Val) {
        if let Some(facts) = &mut self.facts {
            facts.push((at, val.clone()));
        }
    }

    pub(super) fn leave(&mut self) {
        self.depth -= 1;
    }
}
