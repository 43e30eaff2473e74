//! `state` and its next value: `state average[d] = 0`, and `average = …` in the same model or layer.

use crate::program::StateDecl;
use crate::resolve::Resolver;
use crate::resolve::scope::Val;
use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_ops::{Crossing, Id};
use meshwright_plan::Dim;
use meshwright_sorted::SortedSet;
use meshwright_syntax::ast::{Expr, Name};

impl<'a> Resolver<'a> {
    /// `names = value`, where all names are states or in error; false, with nothing done, where one is not.
    pub(in crate::resolve) fn assigns_states(&mut self, names: &'a [Name], value: &'a Expr) -> bool {
        let mut targets = Vec::new();
        for n in names {
            let Some(local) = self.scopes.last().and_then(|s| s.locals.get(n.text.as_str())) else {
                return false;
            };
            targets.push(match &local.val {
                Val::Tensor(_) => match self.state_named(&n.text) {
                    Some(state) => Some(state),
                    None => return false,
                },
                Val::Poison => None,
                _ => return false,
            });
        }
        let values = self.bound_values(names, value, "new ");
        for ((state, name), val) in targets.into_iter().zip(names).zip(values) {
            let id = match val {
                Val::Tensor(id) => Some(id),
                Val::Konst(k) => self.constant(k, value.span),
                _ => None,
            };
            if let Some(state) = state {
                self.assign(state, (&name.text, name.span), id, value.span);
            }
        }
        true
    }

    /// The state that a name of the innermost scope is. Another name of a state's value, or a parameter of a layer that is given
    /// it, is not the state.
    pub(in crate::resolve) fn state_named(&self, name: &str) -> Option<usize> {
        let scope = self.scopes.last()?;
        let local = scope.locals.get(name)?;
        let Val::Tensor(id) = &local.val else { return None };
        let path = scope.declared_path(name);
        let same = |s: &StateDecl| s.span == local.span && s.path == path;
        // States are declared in the order of their ids; a call that shares one has its next value at hand.
        let found = self.states.binary_search_by_key(id, |s| s.id).ok();
        found.filter(|k| same(&self.states[*k])).or_else(|| self.states.iter().position(same))
    }

    /// Gives a state its next value; in loops, of each iteration its own.
    pub(in crate::resolve) fn assign(
        &mut self,
        state: usize,
        (name, at): (&str, Span),
        id: Option<Id>,
        value: Span,
    ) {
        // A call that shares the state goes on from its next value.
        let first = self.assigned.get(&state).copied().filter(|_| !self.scope().shared);
        if let Some(first) = first {
            let text = format!("state `{name}` is given two next values");
            self.error(
                Diagnostic::error(codes::E0210, text)
                    .at(at, "again here")
                    .and(first, "first here")
                    .help("leave one of them out: a state has one value a step"),
            );
            return;
        }
        self.assigned.insert(state, at);
        let loops = self.loops_of_variables();
        if loops.len() < self.open_loops().len() {
            self.one_next_value(state, name, at);
            return;
        }
        let Some(mut id) = id.filter(|id| self.fits(state, name, *id, value)) else { return };
        for of in loops.into_iter().rev() {
            self.point(at);
            id = self.graph.cross(of, Crossing::Stack, id);
        }
        self.states[state].next = Some(id);
    }

    /// The error for a state that a loop would give a next value in each of its iterations.
    fn one_next_value(&mut self, state: usize, name: &str, at: Span) {
        let shared = self.scope().outside.last().copied();
        let (text, help) = match shared {
            Some(of) => {
                let dim = self.graph.dims.name(self.graph.repeats[of].dim);
                (
                    format!(
                        "state `{name}` is shared in a loop over `{dim}`, which would give it a next value in each iteration"
                    ),
                    "call the layer outside of the loop, or let each iteration have its own: leave `sharing` out",
                )
            }
            None => (
                format!(
                    "state `{name}` is declared in a `scan`, which would give it a next value at each position"
                ),
                "declare it in front of the `scan`, which then carries it from position to position",
            ),
        };
        let d = Diagnostic::error(codes::E0218, text).at(at, "assigned here");
        self.error(d.and(self.states[state].span, "declared here").help(help));
    }

    /// The next value has the dims and the dtype of the state.
    fn fits(&mut self, state: usize, name: &str, id: Id, at: Span) -> bool {
        // In loops the state has their dims, and its next value in an iteration lacks them.
        let loops: Vec<Dim> =
            self.loops_of_variables().into_iter().map(|of| self.graph.repeats[of].dim).collect();
        let (decl, graph) = (&self.states[state], &self.graph);
        let (mut old, new) = (graph.ty(decl.id).clone(), graph.ty(id));
        old.dims.retain(|d| !loops.contains(d));
        let dims_fit = old.dims.len() == new.dims.len() && old.dims.iter().all(|d| new.has(*d));
        if dims_fit && old.dtype == new.dtype {
            return true;
        }
        let (code, help) = if dims_fit {
            (codes::E0202, format!("convert it: `{name} = cast(…, {})`", old.dtype))
        } else if let Some(d) = new.dims.iter().find(|d| !old.has(**d)) {
            let d = graph.dims.name(*d);
            (codes::E0203, format!("fold what the state lacks: `{name} = mean[{d}](…)`"))
        } else {
            (codes::E0203, "a next value has every dim of its state".to_string())
        };
        let was = format!("{} {}", old.dtype, graph.dims.list(&old.dims));
        let text = format!("state `{name}` is {was}, its next value {}", self.shape(id));
        let d = Diagnostic::error(code, text).at(at, format!("this is {}", self.shape(id)));
        let d = d.and(decl.span, "the state").help(help);
        self.error(d);
        false
    }

    /// Warns of states that keep their first value for ever.
    pub(in crate::resolve) fn unassigned(&mut self) {
        if self.report.any_error() {
            return;
        }
        let mut told: SortedSet<Span> = SortedSet::new();
        for (i, s) in self.states.iter().enumerate() {
            // A layer that is called several times is told of once.
            if self.assigned.contains_key(&i) || !told.insert(s.span) {
                continue;
            }
            let name = s.path.rsplit('.').next().unwrap_or(&s.path);
            self.report.push(
                Diagnostic::warning(codes::E0225, format!("state `{name}` is never given a next value"))
                    .at(s.span, "keeps its first value")
                    .help(format!("give it one, `{name} = …`, or make it a `let`")),
            );
        }
    }
}
