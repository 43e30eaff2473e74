//! `critic(fake) sharing d`: a call that has the parameters and states of an earlier one.

use crate::resolve::Resolver;
use crate::resolve::report::{listed, nearest};
use crate::resolve::scope::Val;
use meshwright_diag::{Diagnostic, Near, Span, codes};
use meshwright_ops::{Id, InputOp, Kind, RepeatId};
use meshwright_sorted::SortedSet;
use meshwright_syntax::ast::{Call, Layer, Variable};
use std::sync::Arc;

impl<'a> Resolver<'a> {
    /// Whether a call has the parameters of an earlier one, and the loops around it in which that one was not; `None` where it
    /// says so of a call that there is not. `path` becomes that of the earlier call.
    pub(in crate::resolve) fn shares(
        &mut self,
        layer: &'a Layer,
        call: &'a Call,
        path: &mut Arc<str>,
        span: Span,
    ) -> Option<(bool, Vec<RepeatId>)> {
        let name = layer.name.text.as_str();
        let Some(label) = call.label.as_ref().filter(|l| l.shares) else {
            self.owners.entry(path.clone()).or_insert((name, span));
            return Some((self.scope().shared, self.scope().outside.clone()));
        };
        let first = &label.name.text;
        let mut outside = self.scope().outside.clone();
        // In the body of a loop, a call there or else one around the loop.
        for (base, loops) in self.paths_around() {
            let there =
                if base.is_empty() { first.as_str().into() } else { format!("{base}.{first}").into() };
            if self.owners.contains_key(&there) {
                *path = there;
                outside.extend(loops);
                break;
            }
        }
        let d = match self.owners.get(path) {
            Some((of, _)) if *of == name && self.globals.layers.owning.contains(name) => {
                return Some((true, outside));
            }
            Some((of, _)) if *of == name => {
                Diagnostic::error(codes::E0212, format!("layer `{name}` has no parameters to share"))
                    .at(label.span, "shares nothing")
                    .and(layer.name.span, "declares no `param` and no `state`")
                    .fix("leave it out", label.span, "", true)
            }
            Some((of, at)) => {
                let text = format!("`{first}` is a call of `{of}`: `{name}` cannot share its parameters");
                Diagnostic::error(codes::E0215, text)
                    .at(label.name.span, format!("a call of `{of}`"))
                    .and(*at, "this call")
                    .help(format!("share those of an earlier call of `{name}`"))
            }
            None => self.no_such_call(name, first, label.name.span),
        };
        if !self.report.any_error() || self.owners.contains_key(path) {
            self.error(d);
        }
        None
    }

    /// The path of the statements that are being resolved, then those of what is around the loops in whose bodies they are, each
    /// with the loops between.
    fn paths_around(&self) -> Vec<(Arc<str>, Vec<RepeatId>)> {
        let mut all: Vec<_> = self.scopes.last().map(|s| (s.path.clone(), Vec::new())).into_iter().collect();
        let mut between = Vec::new();
        for open in self.open_repeats.iter().rev().take_while(|o| o.depth == self.scopes.len()) {
            between.push(open.of);
            all.push((open.around.clone(), between.clone()));
        }
        all
    }

    fn no_such_call(&mut self, layer: &str, first: &str, at: Span) -> Diagnostic {
        let bases = self.paths_around();
        let below = |path: &'_ Arc<str>| {
            bases.iter().find_map(|(base, _)| {
                let rest =
                    if base.is_empty() { path } else { path.strip_prefix(&**base)?.strip_prefix('.')? };
                (!rest.contains('.')).then(|| rest.to_string())
            })
        };
        let of = self.owners.iter().filter(|(_, o)| o.0 == layer);
        let names: SortedSet<String> = of.filter_map(|(path, _)| below(path)).collect();
        let each = || names.iter().map(String::as_str);
        let d = Diagnostic::error(codes::E0201, format!("no call of `{layer}` before this one is `{first}`"))
            .at(at, "not known");
        if let Some(near) =
            nearest(first, each()).or_else(|| each().next().filter(|_| names.len() == 1).map(Near::only))
        {
            return d.fix(format!("write `{near}`"), at, near, near.sure);
        }
        if !names.is_empty() {
            return d.note(format!("calls of `{layer}` so far: {}", listed(each())));
        }
        let open = self.open_repeats.last().filter(|o| o.depth == self.scopes.len() && !o.scan);
        let Some(open) = open else {
            return d.help("the first call makes the parameters: leave `sharing` out");
        };
        let dim = self.graph.dims.name(self.graph.repeats[open.of].dim);
        d.and(open.span, format!("each of its iterations has a `{layer}` of its own"))
            .help(format!(
                "write `scan {dim}` and leave `sharing` out: the iterations of a `scan` share its parameters"
            ))
            .help(format!("or call `{layer}` once in front of the loop, and share that call in it"))
    }

    /// The parameter or state of the first call, which must be as it is declared here. A state has the next value that earlier
    /// calls give it.
    pub(in crate::resolve) fn shared_variable(&mut self, p: &'a Variable, path: &str, leaf: &InputOp) -> Val {
        let Some(id) = self.paths.get(path).and_then(|o| o.id) else { return Val::Poison };
        let Some(state) = self.states.iter().find(|s| s.id == id) else {
            let same = self.same_leaf(p, path, leaf, id);
            return if same { Val::Tensor(self.at_iteration(id, p.name.span)) } else { Val::Poison };
        };
        let next = state.next;
        if !self.same_leaf(p, path, leaf, id) {
            return Val::Poison;
        }
        let Some(next) = next else { return Val::Tensor(id) };
        // Only training changes states.
        let training = self.training(p.name.span);
        self.make(&[], p.name.span, |g| Ok(g.choose(training, next, id)))
    }

    fn same_leaf(&mut self, p: &'a Variable, path: &str, leaf: &InputOp, id: Id) -> bool {
        let node = self.graph.node(id);
        let (first, here) = (self.shape(id), &leaf.ty);
        let text = if node.ty.dims != here.dims || node.ty.dtype != here.dtype {
            let here = format!("{} {}", here.dtype, self.graph.dims.list(&here.dims));
            format!("the shared `{path}` is {first}, but this call needs {here}")
        } else if node.op.kind() != Kind::Input(leaf.input.clone()) {
            format!("the shared `{path}` has another initial value in this call")
        } else {
            return true;
        };
        let call = self.scopes.last().map(|s| s.call);
        self.report.push(
            Diagnostic::error(codes::E0215, text)
                .at(call.unwrap_or(p.name.span), "this call shares it")
                .and(p.name.span, "declared here")
                .help("give it the dims and numbers of the first call, or parameters of its own: `as NAME`"),
        );
        false
    }
}
