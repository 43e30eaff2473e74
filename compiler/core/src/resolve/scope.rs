//! Values at compile time, and the scopes that hold them.

use super::number::Konst;
use meshwright_diag::Span;
use meshwright_ops::{Id, RepeatId};
use meshwright_plan::{Dim, Phase};
use meshwright_sorted::{SortedMap, SortedSet};
use std::sync::Arc;

/// Value of an expression.
#[derive(Clone, Debug)]
pub(super) enum Val {
    /// A value of the graph.
    Tensor(Id),
    /// Known at compile time.
    Konst(Konst),
    /// A list of dims: only as an argument of a layer.
    Dims(Vec<Dim>),
    /// The results of a layer with several.
    Tuple(Vec<Val>),
    /// In error, and reported: nothing that depends on it is reported again.
    Poison,
}

/// Owner of a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScopeKind {
    Model,
    Layer,
    Train,
}

/// A name with its value and the place of its declaration.
#[derive(Clone, Debug)]
pub(super) struct Local {
    pub(super) val: Val,
    pub(super) span: Span,
    /// Whether anything reads it.
    pub(super) used: bool,
}

/// The names of a model, or of one call of a layer.
#[derive(Clone)]
pub(super) struct NameScope<'a> {
    pub(super) kind: ScopeKind,
    /// Name of the model or layer.
    pub(super) title: &'a str,
    /// The call of the layer.
    pub(super) call: Span,
    /// The place for `as name`, with the text before the name: the existing label, or the end of the call.
    pub(super) label: Option<(Span, &'static str)>,
    pub(super) locals: SortedMap<&'a str, Local>,
    /// Losses, metrics and outputs so far; a local of the same name comes first.
    pub(super) results: SortedMap<&'a str, Local>,
    /// Names of unread inputs of a model: they are warned of.
    pub(super) inputs: SortedSet<&'a str>,
    /// Part of the step.
    pub(super) phase: Phase,
    /// Path of the call, as the rules address it.
    pub(super) path: Arc<str>,
    /// The same, with a number where an earlier call has that path: `relu6#2`. Paths of values begin with it.
    pub(super) own: Arc<str>,
    /// The name of the current statement; empty for what a layer returns.
    pub(super) name: Arc<str>,
    /// Path of the values of the current statement.
    pub(super) value: Arc<str>,
    /// Path of what the layer returns, and of each of several results where the caller names them.
    pub(super) result: Arc<str>,
    pub(super) results_named: Vec<Arc<str>>,
    /// The names that the current statement gives to several results.
    pub(super) names: Vec<&'a str>,
    /// The expression that is all of the current statement's value.
    pub(super) whole: Option<Span>,
    /// The name of the `let` that is being evaluated, where it has a single one.
    pub(super) statement: Option<&'a str>,
    /// Number of calls in the current statement that hold parameters.
    pub(super) owning_calls: usize,
    /// Whether it has the parameters and states of an earlier call.
    pub(super) shared: bool,
    /// Loops around it in whose bodies that call was not: what it shares is the same in all their iterations.
    pub(super) outside: Vec<RepeatId>,
}

impl<'a> NameScope<'a> {
    pub(super) fn new(kind: ScopeKind, title: &'a str, call: Span, path: Arc<str>) -> Self {
        NameScope {
            kind,
            title,
            call,
            label: None,
            locals: SortedMap::new(),
            results: SortedMap::new(),
            inputs: SortedSet::new(),
            phase: if kind == ScopeKind::Train { Phase::Update } else { Phase::Forward },
            own: path.clone(),
            name: "".into(),
            value: path.clone(),
            result: path.clone(),
            results_named: Vec::new(),
            names: Vec::new(),
            whole: None,
            path,
            statement: None,
            owning_calls: 0,
            shared: false,
            outside: Vec::new(),
        }
    }

    /// Begins a statement, or a part of one, whose values bear a name.
    pub(super) fn call_values(&mut self, name: &str) {
        self.name = name.into();
        self.value = self.path_of(name);
    }

    /// The path of a parameter or a state that is declared in this scope.
    pub(super) fn declared_path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_string() } else { format!("{}.{name}", self.path) }
    }

    /// The path of a name in this scope.
    pub(super) fn path_of(&self, name: &str) -> Arc<str> {
        if self.own.is_empty() { name.into() } else { format!("{}.{name}", self.own).into() }
    }
}

/// A `repeat` whose body is being resolved.
#[derive(Clone)]
pub(super) struct OpenRepeat<'a> {
    /// Number of open scopes around it: a layer that the body calls has names of its own.
    pub(super) depth: usize,
    /// Its place.
    pub(super) span: Span,
    /// The loop.
    pub(super) of: RepeatId,
    /// Whether it is a `scan`: then its iterations share parameters.
    pub(super) scan: bool,
    /// The path of what stands around it.
    pub(super) around: Arc<str>,
    /// The names that go from one iteration to the next, and where each is first assigned.
    pub(super) carried: SortedMap<&'a str, Span>,
}
