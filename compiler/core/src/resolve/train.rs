//! The `train` block.

use super::args::Slot;
use super::call::not_yet;
use super::number::{Konst, Num};
use super::report::{Report, listed, nearest};
use super::scope::{Scope, ScopeKind, Val};
use super::{Resolver, glob};
use crate::program::{ClipSpec, LossDecl, Optimizer, Settings, TrainSpec};
use meshwright_diag::{Diagnostic, Near, Span, codes};
use meshwright_ops::Id;
use meshwright_plan::DType;
use meshwright_syntax::ast::{Call, Expr, Name, PathGlob, Train, TrainKind, TrainSetting};

/// Optimisers with their settings; the first is required.
const OPTIMIZERS: [(&str, &[&str]); 3] = [
    ("sgd", &["lr", "momentum", "nesterov", "weight_decay"]),
    ("adam", &["lr", "beta1", "beta2", "eps", "weight_decay"]),
    ("adamw", &["lr", "beta1", "beta2", "eps", "weight_decay"]),
];

/// Optimisers of other systems, and of this language, that are not built.
const NOT_YET: [&str; 8] = ["adafactor", "lamb", "lion", "rmsprop", "adagrad", "shampoo", "muon", "lars"];

/// What a hyperparameter may be.
#[derive(Clone, Copy)]
enum Range {
    /// 0 or more.
    NotNegative,
    /// At least 0, less than 1.
    Decay,
}

/// A hyperparameter: a number, or a scalar of the graph.
#[derive(Clone, Copy)]
enum Hyper {
    Number(Num),
    Value(Id),
}

/// The arithmetic type: of the command line, else of the `train` block, else `f32`.
pub(super) fn precision(train: Option<&Train>, settings: &Settings, report: &mut Report) -> DType {
    let written = train.into_iter().flat_map(|t| &t.settings).find_map(|s| match &s.kind {
        TrainKind::Precision(name) => Some(name),
        _ => None,
    });
    if let Some(float) = settings.float {
        return float;
    }
    let Some(name) = written else { return DType::F32 };
    match name.text.as_str() {
        "f32" => DType::F32,
        "f64" => DType::F64,
        "bf16" => {
            let d = not_yet("`precision bf16`", name.span)
                .fix("write `f32`", name.span, "f32", false)
                .help("or leave the file as it is and run with `--precision f32`");
            report.push(d);
            DType::F32
        }
        other => {
            let d = Diagnostic::error(codes::E0201, format!("there is no precision `{other}`"))
                .at(name.span, "not known")
                .note("precisions: `f32` and `f64`");
            report.push(match nearest(other, ["f32", "f64", "bf16"]) {
                Some(near) => d.fix(format!("write `{near}`"), name.span, near, near.sure),
                None => d,
            });
            DType::F32
        }
    }
}

impl<'a> Resolver<'a> {
    /// The block of the model that has been resolved.
    pub(super) fn train(&mut self, t: &'a Train) -> Option<TrainSpec> {
        self.scopes.push(Scope::new(ScopeKind::Train, &t.model.text, t.model.span, "".into()));
        let spec = self.train_settings(t);
        self.scopes.pop();
        spec
    }

    fn train_settings(&mut self, t: &'a Train) -> Option<TrainSpec> {
        let (mut minimize, mut optimizer, mut clip) = (None, None, None);
        let mut decay: Option<(Option<&'a Expr>, &'a [PathGlob], Span)> = None;
        let mut seen: Vec<(&str, Span)> = Vec::new();
        for s in &t.settings {
            let word = word(s);
            if let Some((_, first)) = seen.iter().find(|f| f.0 == word && word != "freeze") {
                self.error(
                    Diagnostic::error(codes::E0210, format!("`{word}` is said twice"))
                        .at(s.span, "again here")
                        .and(*first, "first here")
                        .help("leave one of them out"),
                );
                continue;
            }
            seen.push((word, s.span));
            match &s.kind {
                TrainKind::Minimize(name) => minimize = self.minimized(name),
                TrainKind::Optimizer(call) => optimizer = Some(call),
                TrainKind::Clip(call) => clip = self.clip(call, s.span),
                TrainKind::Precision(_) => {}
                TrainKind::Freeze(globs) => {
                    for i in self.matched(globs) {
                        self.params[i].frozen = true;
                    }
                }
                TrainKind::WeightDecay { value, except } => decay = Some((value.as_ref(), except, s.span)),
            }
        }
        for (word, example) in [("minimize", self.loss_example()), ("optimizer", "sgd(lr = 0.1)".to_string())]
        {
            if !seen.iter().any(|s| s.0 == word) {
                let text = format!("the `train` block of `{}` does not say `{word}`", t.model.text);
                self.error(
                    Diagnostic::error(codes::E0217, text)
                        .at(t.model.span, "is trained")
                        .help(format!("add a line `{word} {example}`")),
                );
            }
        }
        if let Some((_, except, _)) = decay {
            for i in self.matched(except) {
                self.params[i].no_decay = true;
            }
        }
        if self.params.iter().all(|p| p.frozen) && !self.report.any_error() {
            let why = if self.params.is_empty() { "the model has none" } else { "all of them are frozen" };
            let text = format!("there is no parameter to train: {why}");
            self.error(Diagnostic::error(codes::E0217, text).at(t.model.span, "nothing to train"));
        }
        let optimizer = optimizer.and_then(|call| self.optimizer(call, decay.map(|d| (d.0, d.2))));
        Some(TrainSpec { minimize: minimize?, optimizer: optimizer?, clip })
    }

    fn loss_example(&self) -> String {
        self.losses.first().map_or("LOSS".to_string(), |l| l.name.clone())
    }

    fn minimized(&mut self, name: &Name) -> Option<LossDecl> {
        if let Some(loss) = self.losses.iter().find(|l| l.name == name.text) {
            return Some(loss.clone());
        }
        let model = self.scopes.last().map_or("", |s| s.title);
        if self.poisoned.contains(&name.text) {
            return None;
        }
        let other = self.metrics.iter().chain(&self.outputs).find(|l| l.name == name.text);
        let names = || self.losses.iter().map(|l| l.name.as_str());
        let d = if let Some(other) = other {
            Diagnostic::error(codes::E0217, format!("`{}` is minimised, but it is no loss", name.text))
                .at(name.span, "not a loss")
                .and(other.span, "declared here")
                .help(format!("declare it as a loss: `loss {} = …`", name.text))
        } else {
            let d = Diagnostic::error(codes::E0201, format!("model `{model}` has no loss `{}`", name.text))
                .at(name.span, "no such loss")
                .note(format!("its losses: {}", listed(names())));
            let near = nearest(&name.text, names())
                .or_else(|| names().next().filter(|_| names().count() == 1).map(Near::only));
            match near {
                Some(near) => d.fix(format!("write `{near}`"), name.span, near, near.sure),
                None => d.help(format!("declare it in the model: `loss {} = mean[…](…)`", name.text)),
            }
        };
        self.error(d);
        None
    }

    fn clip(&mut self, call: &'a Call, span: Span) -> Option<ClipSpec> {
        if call.name.text != "global_norm" {
            let d = Diagnostic::error(codes::E0201, format!("there is no clipping by `{}`", call.name.text))
                .at(call.name.span, "not known")
                .fix("clip by the norm of all gradients", call.name.span, "global_norm", false);
            self.error(d);
            return None;
        }
        let args = self.bound("global_norm", span, None, &[Slot::built_in("limit", true)], &call.args)?;
        let e = args[0]?;
        let limit = self.konst(e, "the norm that gradients are clipped to")?.num();
        if limit.f64() <= 0.0 {
            let text = format!("gradients are clipped to a norm of {limit}: nothing would be left");
            self.error(Diagnostic::error(codes::E0214, text).at(e.span, "must be more than 0"));
            return None;
        }
        Some(ClipSpec::GlobalNorm(limit.f64()))
    }

    /// Positions of the parameters that patterns match; one that matches none is reported.
    fn matched(&mut self, globs: &[PathGlob]) -> Vec<usize> {
        let mut out = Vec::new();
        for g in globs {
            let hits = self.params.iter().enumerate().filter(|(_, p)| glob::matches(&g.text, &p.path));
            let hits: Vec<usize> = hits.map(|(i, _)| i).collect();
            // Where the model has errors, parameters may be missing for no fault of the pattern.
            if hits.is_empty() && !self.report.any_error() {
                self.unmatched(g);
            }
            out.extend(hits);
        }
        out
    }

    fn unmatched(&mut self, g: &PathGlob) {
        let paths: Vec<&str> = self.params.iter().map(|p| p.path.as_str()).collect();
        let d = Diagnostic::error(codes::E0217, format!("`{}` matches no parameter", g.text))
            .at(g.span, "matches nothing");
        let some = if paths.len() > 12 { &paths[..12] } else { &paths[..] };
        let more = if paths.len() > 12 { format!(" and {} more", paths.len() - 12) } else { String::new() };
        let d = d.note(format!("parameters: {}{more}", some.join(", ")));
        let under = format!("{}.", g.text);
        let d = if paths.iter().any(|p| p.starts_with(&under)) {
            d.fix("match all parameters below it", g.span, format!("{}.*", g.text), true)
        } else if let Some(near) = nearest(&g.text, paths.iter().copied()) {
            d.fix(format!("write `{near}`"), g.span, near, near.sure)
        } else {
            d
        };
        self.error(d);
    }

    fn optimizer(&mut self, call: &'a Call, decay: Option<(Option<&'a Expr>, Span)>) -> Option<Optimizer> {
        let name = call.name.text.as_str();
        let Some((_, settings)) = OPTIMIZERS.iter().find(|o| o.0 == name) else {
            self.unknown_optimizer(&call.name);
            return None;
        };
        let slots: Vec<Slot<'_>> = settings.iter().map(|s| Slot::built_in(s, *s == "lr")).collect();
        let args = self.bound(name, call.name.span, None, &slots, &call.args)?;
        let given = |what: &str| settings.iter().position(|s| *s == what).and_then(|i| args[i]);
        let lr = self.hyper("lr", given("lr"), 0.0, Range::NotNegative);
        let weight_decay = self.weight_decay(call, given("weight_decay"), decay);
        if name == "sgd" {
            let momentum = self.hyper("momentum", given("momentum"), 0.0, Range::NotNegative);
            let nesterov =
                given("nesterov").map_or(Some(Konst::Bool(false)), |e| self.konst(e, "`nesterov`"));
            let nesterov = nesterov?.num().f64() != 0.0;
            let (lr, momentum, weight_decay) = (lr?, momentum?, weight_decay?);
            if nesterov && is_zero(momentum) {
                let at = given("nesterov").map_or(call.name.span, |e| e.span);
                self.error(
                    Diagnostic::error(
                        codes::E0217,
                        "`nesterov` looks ahead along the momentum, but there is none",
                    )
                    .at(at, "without momentum")
                    .help("add `momentum = 0.9`"),
                );
                return None;
            }
            let momentum =
                if is_zero(momentum) { None } else { Some(self.hyper_id("momentum", momentum, call)?) };
            let lr = self.hyper_id("lr", lr, call)?;
            let weight_decay = self.optional_id("weight_decay", weight_decay, call)?;
            return Some(Optimizer::Sgd { lr, momentum, nesterov, weight_decay });
        }
        let beta1 = self.hyper("beta1", given("beta1"), 0.9, Range::Decay);
        let beta2 = self.hyper("beta2", given("beta2"), 0.999, Range::Decay);
        let eps = self.hyper("eps", given("eps"), 1e-8, Range::NotNegative);
        let (lr, beta1, beta2, eps, weight_decay) = (lr?, beta1?, beta2?, eps?, weight_decay?);
        Some(Optimizer::Adam {
            lr: self.hyper_id("lr", lr, call)?,
            beta1: self.hyper_id("beta1", beta1, call)?,
            beta2: self.hyper_id("beta2", beta2, call)?,
            eps: self.hyper_id("eps", eps, call)?,
            weight_decay: self.optional_id("weight_decay", weight_decay, call)?,
            decoupled: name == "adamw",
        })
    }

    /// The weight decay, of the optimiser or of a line of its own.
    fn weight_decay(
        &mut self,
        call: &'a Call,
        given: Option<&'a Expr>,
        line: Option<(Option<&'a Expr>, Span)>,
    ) -> Option<Hyper> {
        let default = if call.name.text == "adamw" { 0.01 } else { 0.0 };
        let (value, span) = line.unwrap_or((None, call.name.span));
        if let (Some(e), Some(first)) = (value, given) {
            self.error(
                Diagnostic::error(codes::E0210, "the weight decay is said twice")
                    .at(e.span, "here")
                    .and(first.span, "and here")
                    .help("leave one of them out; `weight_decay except …` keeps the optimizer's"),
            );
            return None;
        }
        let out = self.hyper("weight_decay", value.or(given), default, Range::NotNegative);
        if let (Some(h), Some(_), None) = (out, line, value)
            && is_zero(h)
        {
            let text = format!("parameters are spared from weight decay, but `{}` has none", call.name.text);
            self.error(
                Diagnostic::error(codes::E0217, text)
                    .at(span, "has no effect")
                    .and(call.name.span, "the optimizer")
                    .help("give the decay: `weight_decay 0.01 except …`"),
            );
        }
        out
    }

    fn unknown_optimizer(&mut self, name: &Name) {
        let known = || OPTIMIZERS.iter().map(|o| o.0);
        let d = if NOT_YET.contains(&name.text.as_str()) {
            not_yet(&format!("optimizer `{}`", name.text), name.span)
                .help("use `adam(lr = …)` or `sgd(lr = …, momentum = 0.9)` until then")
        } else {
            let d = Diagnostic::error(codes::E0201, format!("there is no optimizer `{}`", name.text))
                .at(name.span, "not known")
                .note(format!("optimizers: {}", listed(known())));
            match nearest(&name.text, known()) {
                Some(near) => d.fix(format!("write `{near}`"), name.span, near, near.sure),
                None => d,
            }
        };
        self.error(d);
    }

    /// The value of a hyperparameter, checked; `None` where it is in error.
    fn hyper(&mut self, what: &str, e: Option<&'a Expr>, default: f64, range: Range) -> Option<Hyper> {
        let Some(e) = e else { return Some(Hyper::Number(Num::real(default))) };
        self.scope().name = what.into();
        match self.eval(e) {
            Val::Konst(Konst::Num(n)) => {
                let v = n.f64();
                let (fits, text) = match range {
                    Range::NotNegative => (v >= 0.0, "must be 0 or more"),
                    Range::Decay => ((0.0..1.0).contains(&v), "must be at least 0 and less than 1"),
                };
                if !fits {
                    let d = Diagnostic::error(codes::E0217, format!("`{what}` is {n}: it {text}"));
                    self.error(d.at(e.span, text));
                    return None;
                }
                Some(Hyper::Number(n))
            }
            Val::Tensor(id) => {
                let ty = self.graph.ty(id);
                if !ty.dims.is_empty() || !ty.dtype.is_float() {
                    let text = format!("`{what}` is not one float");
                    let d = Diagnostic::error(codes::E0216, text)
                        .at(e.span, format!("this is {}", self.shape(id)));
                    self.error(d);
                    return None;
                }
                Some(Hyper::Value(id))
            }
            Val::Konst(Konst::Bool(b)) => {
                let d = Diagnostic::error(codes::E0213, format!("`{what}` is {b}: it must be a number"));
                self.error(d.at(e.span, "a truth value"));
                None
            }
            _ => None,
        }
    }

    fn hyper_id(&mut self, what: &str, h: Hyper, call: &'a Call) -> Option<Id> {
        self.scope().name = what.into();
        match h {
            Hyper::Value(id) => Some(id),
            Hyper::Number(n) => self.constant(Konst::Num(n), call.name.span),
        }
    }

    /// The outer `None` is an error, the inner one a zero.
    #[expect(clippy::option_option, reason = "an error is not a zero")]
    fn optional_id(&mut self, what: &str, h: Hyper, call: &'a Call) -> Option<Option<Id>> {
        if is_zero(h) { Some(None) } else { self.hyper_id(what, h, call).map(Some) }
    }
}

fn is_zero(h: Hyper) -> bool {
    matches!(h, Hyper::Number(n) if n.f64() == 0.0)
}

fn word(s: &TrainSetting) -> &'static str {
    match s.kind {
        TrainKind::Minimize(_) => "minimize",
        TrainKind::Optimizer(_) => "optimizer",
        TrainKind::Clip(_) => "clip",
        TrainKind::Precision(_) => "precision",
        TrainKind::Freeze(_) => "freeze",
        TrainKind::WeightDecay { .. } => "weight_decay",
    }
}
