//! `state` and its next value: `state average[d] = 0`, and `average = …` in the same model or layer.

use super::Resolver;
use super::scope::Val;
use crate::program::StateDecl;
use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_ops::Id;
use meshwright_syntax::ast::{Expr, Name};
use std::collections::BTreeSet;

impl<'a> Resolver<'a> {
    /// `names = value`, where all names are states or in error; false, with nothing done, where one is not.
    pub(super) fn assigns_states(&mut self, names: &'a [Name], value: &'a Expr) -> bool {
        let mut targets = Vec::new();
        for n in names {
            let Some(local) = self.scopes.last().and_then(|s| s.locals.get(n.text.as_str())) else {
                return false;
            };
            // Another name of a state's value, or a parameter of a layer that is given it, is not the state.
            let at = local.span;
            let path = self.scopes.last().map_or(String::new(), |s| s.declared_path(&n.text));
            targets.push(match &local.val {
                Val::Tensor(id) => {
                    let same = |s: &StateDecl| s.span == at && s.path == path;
                    // States are declared in the order of their ids; a call that shares one has its next value at hand.
                    let found = self.states.binary_search_by_key(id, |s| s.id).ok();
                    let found = found.filter(|k| same(&self.states[*k]));
                    match found.or_else(|| self.states.iter().position(same)) {
                        Some(state) => Some(state),
                        None => return false,
                    }
                }
                Val::Poison => None,
                _ => return false,
            });
        }
        let values = self.bound_values(names, value, "new ");
        for ((state, name), val) in targets.into_iter().zip(names).zip(values) {
            if let Some(state) = state {
                self.assign(state, name, val, value);
            }
        }
        true
    }

    fn assign(&mut self, state: usize, name: &'a Name, val: Val, value: &'a Expr) {
        // A call that shares the state goes on from its next value.
        let first = self.assigned.get(&state).copied().filter(|_| !self.scope().shared);
        if let Some(first) = first {
            let text = format!("state `{}` is given two next values", name.text);
            self.error(
                Diagnostic::error(codes::E0210, text)
                    .at(name.span, "again here")
                    .and(first, "first here")
                    .help("leave one of them out: a state has one value a step"),
            );
            return;
        }
        self.assigned.insert(state, name.span);
        let id = match val {
            Val::Tensor(id) => id,
            Val::Konst(k) => match self.constant(k, value.span) {
                Some(id) => id,
                None => return,
            },
            _ => return,
        };
        if self.fits(state, name, id, value.span) {
            self.states[state].next = Some(id);
        }
    }

    /// The next value has the dims and the dtype of the state.
    fn fits(&mut self, state: usize, name: &'a Name, id: Id, at: Span) -> bool {
        let (decl, graph) = (&self.states[state], &self.graph);
        let (old, new) = (graph.ty(decl.id), graph.ty(id));
        let dims_fit = old.dims.len() == new.dims.len() && old.dims.iter().all(|d| new.has(*d));
        if dims_fit && old.dtype == new.dtype {
            return true;
        }
        let (code, help) = if dims_fit {
            (codes::E0202, format!("convert it: `{} = cast(…, {})`", name.text, old.dtype))
        } else if let Some(d) = new.dims.iter().find(|d| !old.has(**d)) {
            let d = graph.dims.name(*d);
            (codes::E0203, format!("fold what the state lacks: `{} = mean[{d}](…)`", name.text))
        } else {
            (codes::E0203, "a next value has every dim of its state".to_string())
        };
        let text =
            format!("state `{}` is {}, its next value {}", name.text, self.shape(decl.id), self.shape(id));
        let d = Diagnostic::error(code, text).at(at, format!("this is {}", self.shape(id)));
        let d = d.and(decl.span, "the state").help(help);
        self.error(d);
        false
    }

    /// Warns of states that keep their first value for ever.
    pub(super) fn unassigned(&mut self) {
        if self.report.any_error() {
            return;
        }
        let mut told: BTreeSet<Span> = BTreeSet::new();
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
