//! The `train` block.

pub(super) mod learning_rate;
pub(super) mod optimizer;
pub(super) mod precision;
pub(super) mod trained_parameters;

use super::call::args::Slot;
use super::glob::LoopPositions;
use super::report::{listed, nearest};
use super::scope::{NameScope, ScopeKind};
use super::{Resolver, glob};
use crate::program::{ClipSpec, LossDecl, TrainSpec};
use crate::step::stack_part::StackPart;
use meshwright_diag::{Diagnostic, Near, Span, codes};
use meshwright_syntax::ast::{
    Call, Expr, Minimize, Name, ParamGroup, PathGlob, Train, TrainKind, TrainSetting,
};
use precision::PrecisionSettings;

/// A line `weight_decay`: its number, whom it spares, and its place.
pub(super) type DecaySetting<'a> = (Option<&'a Expr>, &'a [PathGlob], Span);

/// The lines of a `train` block or of a group.
#[derive(Default)]
pub(super) struct Lines<'a> {
    pub(super) minimize: Vec<(&'a Minimize, Span)>,
    pub(super) optimizer: Option<&'a Call>,
    pub(super) decay: Option<DecaySetting<'a>>,
    clip: Option<(&'a Call, Span)>,
    freeze: Vec<&'a [PathGlob]>,
    groups: Vec<&'a ParamGroup>,
    ema: Option<(&'a Expr, &'a [PathGlob], Span)>,
    precision: Option<(&'a Call, Span)>,
}

impl<'a> Resolver<'a> {
    /// The block of the model that has been resolved.
    pub(super) fn train(&mut self, t: &'a Train) -> Option<TrainSpec> {
        self.scopes.push(NameScope::new(ScopeKind::Train, &t.model.text, t.model.span, "".into()));
        let spec = self.train_settings(t);
        self.scopes.pop();
        spec
    }

    fn train_settings(&mut self, t: &'a Train) -> Option<TrainSpec> {
        let all = self.lines(&t.settings, false);
        self.required(&all, t);
        for globs in &all.freeze {
            for (i, part) in self.matched_parts(globs) {
                self.params[i].frozen_at.push(part);
            }
        }
        for i in 0..self.params.len() {
            let parts = std::mem::take(&mut self.params[i].frozen_at);
            self.params[i].frozen = !parts.is_empty() && self.covered(i, &parts);
            self.params[i].frozen_at = if self.params[i].frozen { Vec::new() } else { parts };
        }
        let groups: Vec<(Lines<'a>, &'a ParamGroup)> =
            all.groups.iter().map(|g| (self.lines(&g.settings, true), *g)).collect();
        let objectives = self.objectives(&all);
        for (_, except, _) in all.decay.iter() {
            for (i, part) in self.matched_parts(except) {
                self.spare(i, part);
            }
        }
        if self.params.iter().all(|p| p.frozen) && !self.report.any_error() {
            let why = if self.params.is_empty() { "the model has none" } else { "all of them are frozen" };
            let text = format!("there is no parameter to train: {why}");
            self.error(Diagnostic::error(codes::E0217, text).at(t.model.span, "nothing to train"));
        }
        let optimizers = self.optimizers(&all, &groups);
        let clip = all.clip.and_then(|(call, span)| self.clip(call, span));
        let ema = all.ema.and_then(|(decay, of, span)| self.ema(decay, of, span));
        let settings = all.precision.map(|(call, span)| self.precision_settings(call, span));
        let PrecisionSettings { scaling, scale_history } = settings.unwrap_or_default();
        Some(TrainSpec {
            objectives: objectives?,
            optimizers: optimizers?,
            clip,
            ema,
            scaling,
            scale_history,
        })
    }

    /// The lines of a block, sorted; one that is said twice is reported.
    fn lines(&mut self, settings: &'a [TrainSetting], in_group: bool) -> Lines<'a> {
        let mut out = Lines::default();
        let mut seen: Vec<(&str, Span)> = Vec::new();
        for s in settings {
            let word = word(s);
            if in_group && !matches!(s.kind, TrainKind::Optimizer(_) | TrainKind::WeightDecay { .. }) {
                self.error(
                    Diagnostic::error(codes::E0217, format!("`{word}` stands in a `group`"))
                        .at(s.span, "not here")
                        .help("a group has `optimizer` and `weight_decay`; move this out of it"),
                );
                continue;
            }
            let many = matches!(word, "freeze" | "minimize" | "group");
            if let Some((_, first)) = seen.iter().find(|f| f.0 == word && !many) {
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
                TrainKind::Minimize(m) => out.minimize.push((m, s.span)),
                TrainKind::Optimizer(call) => out.optimizer = Some(call),
                TrainKind::Clip(call) => out.clip = Some((call, s.span)),
                TrainKind::Precision(call) => out.precision = Some((call, s.span)),
                TrainKind::Freeze(globs) => out.freeze.push(globs),
                TrainKind::WeightDecay { value, except } => {
                    out.decay = Some((value.as_ref(), except, s.span))
                }
                TrainKind::Group(group) => out.groups.push(group),
                TrainKind::Ema { decay, of } => out.ema = Some((decay, of, s.span)),
            }
        }
        out
    }

    /// What every block must say.
    fn required(&mut self, all: &Lines<'a>, t: &'a Train) {
        let own = |g: &&ParamGroup| g.settings.iter().any(|s| matches!(s.kind, TrainKind::Optimizer(_)));
        // With an optimizer in each group, those of no group are looked at later.
        let optimizer = all.optimizer.is_some() || !all.groups.is_empty() && all.groups.iter().all(own);
        for (said, word, example) in [
            (!all.minimize.is_empty(), "minimize", self.loss_example()),
            (optimizer, "optimizer", "sgd(lr = 0.1)".to_string()),
        ] {
            if !said {
                let text = format!("the `train` block of `{}` does not say `{word}`", t.model.text);
                self.error(
                    Diagnostic::error(codes::E0217, text)
                        .at(t.model.span, "is trained")
                        .help(format!("add a line `{word} {example}`")),
                );
            }
        }
    }

    fn loss_example(&self) -> String {
        self.losses.first().map_or("LOSS".to_string(), |l| l.name.clone())
    }

    pub(super) fn minimized(&mut self, name: &Name) -> Option<LossDecl> {
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
            Diagnostic::error(codes::E0217, format!("`{}` is minimized, but it is no loss", name.text))
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

    /// Weight decay spares a part of a parameter.
    pub(super) fn spare(&mut self, i: usize, part: StackPart) {
        let p = &mut self.params[i];
        match part.is_whole() {
            true => p.no_decay = true,
            false => p.no_decay_at.push(part),
        }
    }

    /// Whether parts are all of a parameter.
    pub(super) fn covered(&self, i: usize, parts: &[StackPart]) -> bool {
        let p = &self.params[i];
        let loops = &self.graph.ty(p.id).dims[..p.stack];
        StackPart::cover(parts, StackPart(loops.iter().map(|d| (*d, 0..self.graph.dims.size(*d))).collect()))
    }

    /// Positions of the parameters that patterns match, which are whole ones; a pattern that matches none is reported.
    pub(super) fn matched(&mut self, what: &str, globs: &[PathGlob]) -> Vec<usize> {
        if let Some(g) = globs.iter().find(|g| g.text.contains('[')) {
            let (plain, _) = glob::positions(&g.text);
            let d = Diagnostic::error(
                codes::E0217,
                format!("`{what}` is of whole parameters, and `{}` of parts", g.text),
            );
            let d = d.at(g.span, "some iterations of a loop");
            self.error(d.fix("name all of them", g.span, plain, false));
            return Vec::new();
        }
        self.matched_parts(globs).into_iter().map(|m| m.0).collect()
    }

    /// Positions of the parameters that patterns match, and which part of each; one that matches none is reported.
    pub(super) fn matched_parts(&mut self, globs: &[PathGlob]) -> Vec<(usize, StackPart)> {
        let mut out = Vec::new();
        let paths: Vec<String> = self.params.iter().map(|p| p.path.clone()).collect();
        let index = glob::PathIndex::new(paths.iter().map(String::as_str));
        for g in globs {
            if self.report.is_full_of_errors() {
                break;
            }
            let (plain, positions) = glob::positions(&g.text);
            let hits = index.matching(&plain);
            // Where the model has errors, parameters may be missing for no fault of the pattern.
            if hits.is_empty() && !self.report.any_error() {
                self.unmatched(g, &plain);
            }
            for i in hits {
                match self.part(i, g, &positions) {
                    Some(part) => out.push((i, part)),
                    None => break,
                }
            }
        }
        out
    }

    /// The part of a parameter that is at some positions of its loops; `None` where it has not these.
    fn part(&mut self, i: usize, g: &PathGlob, positions: &[LoopPositions<'_>]) -> Option<StackPart> {
        let p = &self.params[i];
        let loops = self.graph.ty(p.id).dims[..p.stack].to_vec();
        let mut part = StackPart::default();
        for (name, from, to) in positions {
            let table = &self.graph.dims;
            let Some(dim) = loops.iter().copied().find(|d| table.name(*d) == *name) else {
                let text = format!("`{}` is in no loop over `{name}`", p.path);
                let d = Diagnostic::error(codes::E0217, text).at(g.span, "matches it");
                let d = d.and(p.span, "declared here");
                let names: Vec<&str> = loops.iter().map(|d| table.name(*d)).collect();
                let d = match names.as_slice() {
                    [] => d.help(
                        "positions in `[…]` are iterations of a `repeat`: name this parameter without them",
                    ),
                    names => d.help(format!("its loops are over {}", listed(names.iter().copied()))),
                };
                self.error(d);
                return None;
            };
            let size = table.size(dim);
            let range = from.unwrap_or(0)..to.unwrap_or(size);
            if range.is_empty() || range.end > size {
                let text =
                    format!("`{}` has no iterations {}..{} of `{name}`", p.path, range.start, range.end);
                let d = Diagnostic::error(codes::E0217, text).at(g.span, "out of range");
                self.error(
                    d.help(format!("`{name}` has {size}: from `{name}[0..1]` to `{name}[0..{size}]`")),
                );
                return None;
            }
            // With another size these may be other iterations, or none.
            self.graph.captured.insert(dim);
            if range != (0..size) {
                part = part.and(&StackPart(vec![(dim, range)]))?;
            }
        }
        Some(part)
    }

    fn unmatched(&mut self, g: &PathGlob, plain: &str) {
        let paths: Vec<&str> = self.params.iter().map(|p| p.path.as_str()).collect();
        let d = Diagnostic::error(codes::E0217, format!("`{}` matches no parameter", g.text))
            .at(g.span, "matches nothing");
        let some = if paths.len() > 12 { &paths[..12] } else { &paths[..] };
        let more = if paths.len() > 12 { format!(" and {} more", paths.len() - 12) } else { String::new() };
        let d = d.note(format!("parameters: {}{more}", some.join(", ")));
        let under = format!("{plain}.");
        let d = if paths.iter().any(|p| p.starts_with(&under)) {
            d.fix("match all parameters below it", g.span, format!("{}.*", g.text), true)
        } else if let Some(near) = nearest(plain, paths.iter().copied()) {
            d.fix(format!("write `{near}`"), g.span, near, near.sure)
        } else {
            d
        };
        self.error(d);
    }
}

fn word(s: &TrainSetting) -> &'static str {
    match s.kind {
        TrainKind::Minimize(_) => "minimize",
        TrainKind::Optimizer(_) => "optimizer",
        TrainKind::Clip(_) => "clip",
        TrainKind::Precision(_) => "precision",
        TrainKind::Freeze(_) => "freeze",
        TrainKind::WeightDecay { .. } => "weight_decay",
        TrainKind::Group(_) => "group",
        TrainKind::Ema { .. } => "ema",
    }
}
