//! The line `optimizer NAME(…)` of a `train` block: which one, and what is chosen for its settings.

use crate::resolve::Resolver;
use crate::resolve::call::args::Slot;
use crate::resolve::call::not_yet;
use crate::resolve::number::{Konst, Num};
use crate::resolve::report::{listed, nearest};
use crate::resolve::scope::Val;
use crate::step::optimizers::{self, Accepts, Choices, Chosen, OPTIMIZERS, Optimizer, Range, Setting};
use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_ops::Id;
use meshwright_plan::Dim;
use meshwright_sorted::SortedSet;
use meshwright_syntax::ast::{Call, Expr, Name};

/// Optimizers of other systems that are not built.
const NOT_YET: [&str; 5] = ["rmsprop", "adagrad", "shampoo", "muon", "lars"];

/// What lines `weight_decay` say for an optimizer.
#[derive(Clone, Copy, Default)]
pub(super) struct DecayLine<'a> {
    /// The number, and where it stands.
    pub(super) value: Option<(&'a Expr, Beside)>,
    /// A line without a number, beside the optimizer.
    pub(super) spares: Option<Span>,
}

/// Where a line `weight_decay` stands in relation to the optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beside {
    /// In the same block: only one of the two may give a number.
    Same,
    /// In a group that takes the optimizer of the block around it: the line counts.
    Group,
    /// In the block around the group of the optimizer: what the optimizer says counts.
    Around,
}

/// What is written for a scalar.
enum Hyper {
    Number(Num),
    Value(Id),
    Off,
}

impl<'a> Resolver<'a> {
    pub(super) fn optimizer(&mut self, call: &'a Call, decay: DecayLine<'a>) -> Option<Optimizer> {
        let name = call.name.text.as_str();
        let Some(def) = optimizers::find(name) else {
            self.unknown_optimizer(&call.name);
            return None;
        };
        let slots: Vec<Slot<'_>> =
            def.settings.iter().map(|s| Slot::built_in(s.name, s.is_required())).collect();
        if let Some(d) = crate::resolve::call::args::misplaced_dim(name, &call.args) {
            self.error(d);
            return None;
        }
        let mut args = self.bound(name, call.name.span, None, &slots, &call.args)?;
        let slot = def.settings.iter().position(|s| s.name == "weight_decay");
        if let (Some(i), Some((e, beside))) = (slot, decay.value) {
            if let (Beside::Same, Some(first)) = (beside, args[i]) {
                self.error(
                    Diagnostic::error(codes::E0210, "the weight decay is said twice")
                        .at(e.span, "here")
                        .and(first.span, "and here")
                        .help("leave one of them out; `weight_decay except …` keeps the optimizer's"),
                );
                return None;
            }
            args[i] = args[i].filter(|_| beside == Beside::Around).or(Some(e));
        }
        // All of them are looked at, so that all mistakes come in one run.
        let mut chosen = Choices::default();
        let mut good = true;
        for (setting, e) in def.settings.iter().zip(&args) {
            match self.chosen(setting, *e, call.name.span) {
                Some(c) => chosen.choose(setting.name, c, e.is_some()),
                None => good = false,
            }
        }
        if !good {
            return None;
        }
        if let Some(span) = decay.spares
            && chosen.nonzero("weight_decay").is_none()
        {
            self.error(
                Diagnostic::error(
                    codes::E0217,
                    format!("parameters are spared from weight decay, but `{name}` has none"),
                )
                .at(span, "has no effect")
                .and(call.name.span, "the optimizer")
                .help("give the decay: `weight_decay 0.01 except …`"),
            );
        }
        if let Some(wrong) = (def.check)(&chosen) {
            let given = def.settings.iter().zip(&args).find(|(s, _)| s.name == wrong.setting);
            let at = given.and_then(|g| *g.1).map_or(call.name.span, |e| e.span);
            self.error(Diagnostic::error(codes::E0217, wrong.text).at(at, wrong.label).help(wrong.help));
            return None;
        }
        Some(Optimizer { def, chosen })
    }

    /// The share of the old in moving averages: at least 0 and less than 1, or an expression of the step.
    pub(super) fn decay_of_averages(&mut self, e: &'a Expr) -> Option<Id> {
        match self.scalar("ema", Some(e), None, Range::Decay, false, e.span)? {
            Chosen::Scalar(id, _) => Some(id),
            _ => None,
        }
    }

    fn unknown_optimizer(&mut self, name: &Name) {
        let known = || OPTIMIZERS.iter().map(|o| o.name);
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

    /// What is chosen for a setting; `None` where it is in error.
    fn chosen(&mut self, setting: &Setting, e: Option<&'a Expr>, call: Span) -> Option<Chosen> {
        match setting.accepts {
            Accepts::Scalar(range, default) => self.scalar(setting.name, e, default, range, false, call),
            Accepts::ScalarOrOff(range, default) => self.scalar(setting.name, e, default, range, true, call),
            Accepts::Flag(default) => match e {
                Some(e) => self.flag(setting.name, e).map(Chosen::Flag),
                None => Some(Chosen::Flag(default)),
            },
            Accepts::Count(default) => match e {
                Some(e) => self.count(setting.name, e).map(Chosen::Count),
                None => Some(Chosen::Count(default)),
            },
        }
    }

    fn scalar(
        &mut self,
        what: &'static str,
        e: Option<&'a Expr>,
        default: Option<f64>,
        range: Range,
        or_off: bool,
        call: Span,
    ) -> Option<Chosen> {
        let hyper = match e {
            Some(e) => self.hyper(what, e, range, or_off)?,
            None => Hyper::Number(Num::real(default?)),
        };
        self.scope().call_values(what);
        match hyper {
            Hyper::Off => Some(Chosen::Off),
            Hyper::Value(id) => Some(Chosen::Scalar(id, None)),
            Hyper::Number(n) => {
                self.float_setting(Konst::Num(n), call).map(|id| Chosen::Scalar(id, Some(n.f64())))
            }
        }
    }

    /// The value of a hyperparameter, checked; `None` where it is in error.
    fn hyper(&mut self, what: &'static str, e: &'a Expr, range: Range, or_off: bool) -> Option<Hyper> {
        self.scope().call_values(what);
        match self.eval(e) {
            Val::Konst(Konst::Num(n)) => {
                if !range.has(n.f64()) {
                    let text = range.text();
                    let d = Diagnostic::error(codes::E0217, format!("`{what}` is {n}: it {text}"));
                    let d = d.at(e.span, text);
                    let off = or_off && n.f64() == 0.0;
                    self.error(if off { d.help(format!("`{what} = false` switches it off")) } else { d });
                    return None;
                }
                Some(Hyper::Number(n))
            }
            Val::Tensor(id) => {
                let ty = self.graph.ty(id);
                // Along a loop a setting may differ: each iteration has parameters of its own.
                let stacks = self.params.iter().flat_map(|p| &self.graph.ty(p.id).dims[..p.stack]);
                let loops: SortedSet<Dim> = stacks.copied().filter(|_| what != "ema").collect();
                if !ty.dims.iter().all(|d| loops.contains(d)) || !ty.dtype.is_float() {
                    let text = format!("`{what}` is not one float");
                    let d = Diagnostic::error(codes::E0216, text)
                        .at(e.span, format!("this is {}", self.shape(id)));
                    self.error(d);
                    return None;
                }
                Some(Hyper::Value(id))
            }
            Val::Konst(Konst::Bool(false)) if or_off => Some(Hyper::Off),
            Val::Konst(Konst::Bool(b)) => {
                let must = if or_off { "a number, or `false` for none" } else { "a number" };
                let d = Diagnostic::error(codes::E0213, format!("`{what}` is {b}: it must be {must}"));
                self.error(d.at(e.span, "a truth value"));
                None
            }
            _ => None,
        }
    }

    fn flag(&mut self, what: &'static str, e: &'a Expr) -> Option<bool> {
        match self.konst(e, &format!("`{what}`"))? {
            Konst::Bool(b) => Some(b),
            Konst::Num(n) => {
                let text = format!("`{what}` is {n}: it must be `true` or `false`");
                self.error(Diagnostic::error(codes::E0213, text).at(e.span, "a number"));
                None
            }
        }
    }

    fn count(&mut self, what: &'static str, e: &'a Expr) -> Option<usize> {
        let k = self.konst(e, &format!("`{what}`"))?;
        let count = match k {
            Konst::Num(n) => n.whole().and_then(|n| usize::try_from(n).ok()),
            Konst::Bool(_) => None,
        };
        if count.is_none() {
            let is = match k {
                Konst::Num(n) => n.to_string(),
                Konst::Bool(b) => b.to_string(),
            };
            let must = "must be a whole number, 0 or more";
            let d = Diagnostic::error(codes::E0217, format!("`{what}` is {is}: it {must}"));
            self.error(d.at(e.span, must));
        }
        count
    }
}
