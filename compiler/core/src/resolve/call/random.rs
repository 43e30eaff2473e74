//! Random values of the model: `random_uniform`, `random_normal`, `dropout`, and the truth value `training` that tells
//! training from evaluation.
//!
//! A call draws from a stream that is called by its source path: the path of the layer call and the statement, as in
//! `block1.attention.mixed/dropout`, and a number where a statement has several. So edits elsewhere leave its numbers alone.

use super::args::Slot;
use super::operand::Operand;
use crate::resolve::Resolver;
use crate::resolve::scope::{ScopeKind, Val};
use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_ops::{Id, Random, Training, Value};
use meshwright_plan::random::Distribution;
use meshwright_plan::{DType, Dim, Init};
use meshwright_syntax::ast::{Arg, Call, Expr};

impl<'a> Resolver<'a> {
    /// `random_uniform[dims](low, high)` and `random_normal[dims](mean, std)`; without dims, one number.
    pub(in crate::resolve) fn random(
        &mut self,
        name: &str,
        dims: Option<Vec<Dim>>,
        args: &'a [Arg],
        span: Span,
    ) -> Val {
        if !self.drawn_in_a_model(name, span) {
            return Val::Poison;
        }
        let slots = if name == "random_uniform" { ["low", "high"] } else { ["mean", "std"] };
        let built_in = slots.map(|s| Slot::built_in(s, true));
        let Some(given) = self.bound(name, span, None, &built_in, args) else { return Val::Poison };
        let mut numbers = Vec::new();
        for (e, slot) in given.iter().zip(slots) {
            numbers.push(e.and_then(|e| self.konst(e, &format!("`{slot}` of `{name}`"))));
        }
        let (Some(dims), [Some(a), Some(b)]) = (dims, numbers.as_slice()) else { return Val::Poison };
        if let Some(k) = (1..dims.len()).find(|k| dims[..*k].contains(&dims[*k])) {
            let text = format!("`{name}[…]` names `{}` twice", self.graph.dims.name(dims[k]));
            self.error(Diagnostic::error(codes::E0203, text).at(span, "a tensor never holds one dim twice"));
            return Val::Poison;
        }
        let at = given[1].map_or(span, |e| e.span);
        let distribution = match self.distribution(name, a.num().f64(), b.num().f64(), at) {
            Some(Init::Uniform { low, high }) => Distribution::Uniform { low, high },
            Some(Init::Normal { mean, std }) => Distribution::Normal { mean, std },
            _ => return Val::Poison,
        };
        let (stream, dtype) = (self.stream(name), self.float);
        self.make(&[], span, |g| Ok(g.op(Random { stream, distribution, dims, dtype }, &[])))
    }

    /// `dropout(x, rate)`: in training steps, each element is 0 with probability `rate` and else divided by `1 - rate`
    /// (inverted dropout, Srivastava et al. 2014); `x` itself elsewhere. Along the dims of `shared` the mask is one.
    pub(in crate::resolve) fn dropout(&mut self, call: &'a Call, span: Span) -> Val {
        if !self.drawn_in_a_model("dropout", span) {
            return Val::Poison;
        }
        let slots =
            [Slot::built_in("x", true), Slot::built_in("rate", true), Slot::built_in("shared", false)];
        let Some(given) = self.bound("dropout", span, None, &slots, &call.args) else { return Val::Poison };
        let (Some(of), Some(rate)) = (given[0], given[1]) else { return Val::Poison };
        let x = self.operand(of);
        let rate = self.rate(rate);
        let shared = match given[2] {
            Some(e) => self.dim_argument("shared", e),
            None => Some(Vec::new()),
        };
        let (Some(x), Some(rate), Some(shared)) = (x, rate, shared) else { return Val::Poison };
        let Value::Tensor(id) = x.value else {
            let d = Diagnostic::error(
                codes::E0213,
                "`dropout` of a number: nothing would be drawn for each element",
            );
            self.error(d.at(of.span, "a number").help("give it a tensor"));
            return Val::Poison;
        };
        let ty = self.graph.ty(id).clone();
        if !ty.dtype.is_float() {
            let d = Diagnostic::error(codes::E0202, format!("`dropout` takes floats, not {}", ty.dtype))
                .at(of.span, format!("this is {}", self.shape(id)))
                .help("convert it: `cast(…, float)`");
            let d = self.declared(d, of);
            self.error(d);
            return Val::Poison;
        }
        if let Some(d) = shared.iter().find(|d| !ty.has(**d)) {
            let name = self.graph.dims.name(*d).to_string();
            let text = format!(
                "the mask is shared along `{name}`, which the value lacks: it has {}",
                self.graph.dims.list(&ty.dims)
            );
            let at = given[2].map_or(span, |e| e.span);
            let d = Diagnostic::error(codes::E0203, text).at(at, "no dim of it");
            self.error(
                d.and(of.span, format!("this is {}", self.shape(id))).help(format!("leave `{name}` out")),
            );
            return Val::Poison;
        }
        if rate == 0.0 {
            return Val::Tensor(id);
        }
        let training = self.training(span);
        let dims: Vec<Dim> = ty.dims.iter().copied().filter(|d| !shared.contains(d)).collect();
        let (stream, distribution) = (self.stream("dropout"), Distribution::Bernoulli { rate });
        self.make(&[Operand::of(Value::Tensor(id), of)], span, |g| {
            let kept = g.op(Random { stream, distribution, dims, dtype: DType::Bool }, &[]);
            let masked = g.masked(kept, id);
            let scaled = g.scaled(masked, 1.0 / (1.0 - rate));
            Ok(g.choose(training, scaled, id))
        })
    }

    /// The share of elements that dropout drops.
    fn rate(&mut self, e: &'a Expr) -> Option<f64> {
        let n = self.konst(e, "the rate of `dropout`")?.num();
        if !(0.0..1.0).contains(&n.f64()) {
            let text = format!("the rate of `dropout` is {n}: it must be at least 0 and less than 1");
            let d =
                Diagnostic::error(codes::E0214, text).at(e.span, "the share of elements that are dropped");
            self.error(d.help("`dropout(x, 0.1)` drops one element in ten"));
            return None;
        }
        Some(n.f64())
    }

    /// Whether the program trains, as a truth value.
    pub(in crate::resolve) fn training(&mut self, at: Span) -> Id {
        if let Some(id) = self.training {
            return id;
        }
        self.point(at);
        self.graph.cursor.name = "training".into();
        let scope = self.graph.scope.take();
        let id = self.graph.op(Training, &[]);
        self.graph.scope = scope;
        self.training = Some(id);
        id
    }

    fn drawn_in_a_model(&mut self, name: &str, span: Span) -> bool {
        let in_train = self.scopes.last().is_some_and(|s| s.kind == ScopeKind::Train);
        if in_train {
            let text = format!("`{name}` stands in a `train` block: random values are drawn in the model");
            self.error(
                Diagnostic::error(codes::E0213, text).at(span, "not a number or a learning-rate schedule"),
            );
        }
        !in_train
    }

    /// The name of a stream of its own for a call that stands here.
    fn stream(&mut self, what: &str) -> String {
        let scope = self.scope();
        let returned = scope.name.is_empty() || scope.path.rsplit('.').next() == Some(&*scope.name);
        let place = match (scope.path.is_empty(), returned) {
            (true, _) => scope.name.to_string(),
            (false, true) => scope.path.to_string(),
            (false, false) => format!("{}.{}", scope.path, scope.name),
        };
        let name = format!("{place}/{what}");
        let count = self.streams.entry(name.clone()).or_insert(0);
        *count += 1;
        if *count == 1 { name } else { format!("{name} {count}") }
    }
}
