//! Which parameters are trained for which loss, by which optimizer, and which of them are averaged.

use super::Lines;
use super::optimizer::{Beside, DecayLine};
use crate::program::{Objective, Turn};
use crate::resolve::Resolver;
use crate::resolve::report::listed;
use crate::step::optimizers::Optimizer;
use crate::step::stack_part::StackPart;
use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_ops::Id;
use meshwright_syntax::ast::{Expr, Minimize, ParamGroup, PathGlob};

/// What lines have of a parameter, each with its number.
type Owners = Vec<(StackPart, usize)>;

/// The most lines `minimize`: each has a backward pass of its own.
const MOST_OBJECTIVES: usize = 64;

impl<'a> Resolver<'a> {
    /// The lines `minimize`: each parameter that is trained has one of them.
    pub(in crate::resolve) fn objectives(&mut self, all: &Lines<'a>) -> Option<Vec<Objective>> {
        if let Some((_, span)) = all.minimize.get(MOST_OBJECTIVES) {
            let text = format!("a step minimizes {} losses, more than {MOST_OBJECTIVES}", all.minimize.len());
            self.error(
                Diagnostic::error(codes::E0219, text)
                    .at(*span, "one too many")
                    .help("add them up: `loss all = first + second`, and `minimize all`"),
            );
            return None;
        }
        let mut out = Some(Vec::new());
        let mut owner: Vec<Owners> = vec![Owners::new(); self.params.len()];
        let mut rest = None;
        for (k, (line, span)) in all.minimize.iter().enumerate() {
            match (self.objective(line), &mut out) {
                (Some(o), Some(out)) => out.push(o),
                _ => out = None,
            }
            if line.of.is_empty() {
                if let Some(first) = rest.replace(k) {
                    self.error(
                        Diagnostic::error(codes::E0210, "`minimize` is said twice")
                            .at(*span, "again here")
                            .and(all.minimize[first].1, "first here")
                            .help("leave one of them out, or say which parameters each is for: `minimize LOSS of gen.*`"),
                    );
                    out = None;
                }
                continue;
            }
            let spans = |k: usize| all.minimize[k].1;
            for g in &line.of {
                let whole = self.matched("minimize", std::slice::from_ref(g));
                let whole = whole.into_iter().map(|i| (i, StackPart::default())).collect();
                self.claim((g, whole), k, &mut owner, &|k| ("minimized", spans(k)));
            }
        }
        for (p, owner) in self.params.iter_mut().zip(&owner) {
            p.objective = owner.first().map(|o| o.1).or(rest).unwrap_or(0);
        }
        let left = |(p, owner): (&crate::program::ParamDecl, &Owners)| {
            (owner.is_empty() && !p.frozen).then(|| p.path.clone())
        };
        let left: Vec<String> = self.params.iter().zip(&owner).filter_map(left).collect();
        if rest.is_none() && !left.is_empty() && !self.report.any_error() {
            let at = all.minimize.last().map_or(Span::default(), |m| m.1);
            let one = &left[0];
            self.error(
                Diagnostic::error(codes::E0217, format!("no loss is minimized for {}", some(&left)))
                    .at(at, "the last of the losses")
                    .help(format!("name it in one of the lines, or keep it as it is: `freeze {one}`"))
                    .help("a line without `of` is for all parameters that no other line names"),
            );
        }
        out
    }

    fn objective(&mut self, line: &'a Minimize) -> Option<Objective> {
        let loss = self.minimized(&line.loss);
        let turn = match &line.every {
            None => None,
            Some(every) => {
                let n = self.whole(every, "`every`")?;
                let from = line.from.as_ref().map_or(Some(n), |e| self.whole(e, "`from`"))?;
                Some(Turn { every: n, from }).filter(|t| t.every > 1 || t.from > 1)
            }
        };
        Some(Objective { loss: loss?, turn })
    }

    /// A number of steps: whole, and at least 1.
    fn whole(&mut self, e: &'a Expr, what: &str) -> Option<u64> {
        // Steps are counted in floats, which are exact up to here.
        let most = 1 << 20;
        let n = self.konst(e, what)?.num();
        let found = n.whole().and_then(|n| u64::try_from(n).ok()).filter(|n| (1..=most).contains(n));
        if found.is_none() {
            let must = format!("must be a whole number from 1 to {most}");
            let text = format!("{what} is {n}: it {must}");
            self.error(Diagnostic::error(codes::E0217, text).at(e.span, must));
        }
        found
    }

    /// Gives what a pattern matches to `k`; what has an owner is reported.
    fn claim(
        &mut self,
        (g, matched): (&PathGlob, Vec<(usize, StackPart)>),
        k: usize,
        owner: &mut [Owners],
        told: &dyn Fn(usize) -> (&'static str, Span),
    ) {
        let mut twice = None;
        for (i, part) in matched {
            match owner[i].iter().find(|(p, first)| *first != k && p.and(&part).is_some()) {
                Some((_, first)) => twice = twice.or(Some((i, *first))),
                None => owner[i].push((part, k)),
            }
        }
        let Some((i, first)) = twice else { return };
        let (what, at) = told(first);
        let text = format!("`{}` is {what} twice: `{}` matches it too", self.params[i].path, g.text);
        self.error(
            Diagnostic::error(codes::E0217, text)
                .at(g.span, "matches it")
                .and(at, "this has it already")
                .help("write patterns that have no parameter in common"),
        );
    }

    /// The optimizer of the block, if parameters of no group need it, and those of its groups.
    pub(in crate::resolve) fn optimizers(
        &mut self,
        all: &Lines<'a>,
        groups: &[(Lines<'a>, &'a ParamGroup)],
    ) -> Option<Vec<Optimizer>> {
        let mut owner: Vec<Owners> = vec![Owners::new(); self.params.len()];
        let mut out = Vec::new();
        // Where the line of each stands.
        let mut places = Vec::new();
        let mut good = true;
        if let Some(call) = all.optimizer {
            let decay = DecayLine {
                value: all.decay.and_then(|d| d.0).map(|e| (e, Beside::Same)),
                spares: all.decay.filter(|d| d.0.is_none()).map(|d| d.2),
            };
            match self.optimizer(call, decay) {
                Some(o) => {
                    out.push(o);
                    places.push(call.name.span);
                }
                None => good = false,
            }
        }
        for (k, (lines, group)) in groups.iter().enumerate() {
            let place = |k: usize| groups[k].1.of.first().map_or(Span::default(), |g| g.span);
            for g in &group.of {
                let matched = self.matched_parts(std::slice::from_ref(g));
                self.claim((g, matched), k, &mut owner, &|k| ("in a group", place(k)));
            }
            for (_, except, _) in lines.decay.iter() {
                for (i, part) in self.matched_parts(except) {
                    let mine = owner[i].iter().filter(|o| o.1 == k).filter_map(|o| o.0.and(&part));
                    for both in mine.collect::<Vec<_>>() {
                        self.spare(i, both);
                    }
                }
            }
            let own = lines.decay.and_then(|d| d.0);
            let around = all.decay.and_then(|d| d.0).map(|e| (e, Beside::Around));
            let (call, beside) = match lines.optimizer {
                Some(call) => (call, Beside::Same),
                None => match all.optimizer {
                    Some(call) => (call, Beside::Group),
                    None => continue,
                },
            };
            let value = own.map(|e| (e, beside)).or(around);
            let spares = lines.decay.filter(|d| d.0.is_none() && beside == Beside::Same).map(|d| d.2);
            let optimizer = self.optimizer(call, DecayLine { value, spares });
            good &= optimizer.is_some();
            for (p, owners) in self.params.iter_mut().zip(&owner) {
                for (part, _) in owners.iter().filter(|o| o.1 == k) {
                    match part.is_whole() {
                        true => p.optimizer = out.len(),
                        false => p.optimizer_at.push((part.clone(), out.len())),
                    }
                }
            }
            if let Some(optimizer) = optimizer {
                out.push(optimizer);
                places.push(call.name.span);
            }
        }
        self.none_is_left(all, groups, &owner);
        if good && !self.report.any_error() {
            self.rates_by_position(all.optimizer.is_some(), &out, &places);
        }
        (good && !out.is_empty()).then_some(out)
    }

    /// That each parameter which is trained has an optimizer, with all of its parts.
    fn none_is_left(&mut self, all: &Lines<'a>, groups: &[(Lines<'a>, &'a ParamGroup)], owner: &[Owners]) {
        let has_none = |i: usize| {
            let parts = owner[i].iter().map(|o| &o.0).chain(&self.params[i].frozen_at);
            !self.params[i].frozen && !self.covered(i, &parts.cloned().collect::<Vec<_>>())
        };
        let left = (0..self.params.len()).filter(|i| has_none(*i));
        let left: Vec<String> = left.map(|i| self.params[i].path.clone()).collect();
        if let (None, Some((_, group)), false) = (all.optimizer, groups.last(), left.is_empty())
            && !self.report.any_error()
        {
            let at = group.of.last().map_or(Span::default(), |g| g.span);
            self.error(
                Diagnostic::error(codes::E0217, format!("no optimizer trains {}", some(&left)))
                    .at(at, "the last of the groups")
                    .help("add a line `optimizer sgd(lr = 0.1)` beside the groups: it trains all others"),
            );
        }
    }

    /// That settings which differ along loops are those of parameters in these loops, and that the parts of a parameter are
    /// trained by one kind of optimizer.
    fn rates_by_position(&mut self, around: bool, all: &[Optimizer], places: &[Span]) {
        let mut wrong = Vec::new();
        for p in &mut self.params {
            if let (false, Some((_, first))) = (around, p.optimizer_at.first()) {
                // No part is left to the optimizer of the block: there is none.
                p.optimizer = *first;
            }
        }
        for p in self.params.iter().filter(|p| !p.frozen) {
            let loops = &self.graph.ty(p.id).dims[..p.stack];
            for k in std::iter::once(p.optimizer).chain(p.optimizer_at.iter().map(|o| o.1)) {
                let along = |id: &Id| self.graph.ty(*id).dims.iter().copied().find(|d| !loops.contains(d));
                if let Some((what, dim)) =
                    all[k].chosen.scalars().find_map(|(what, id)| Some((what, along(&id)?)))
                {
                    let dim = self.graph.dims.name(dim);
                    let text =
                        format!("`{what}` differs along `{dim}`, and `{}` is in no loop over it", p.path);
                    let d = Diagnostic::error(codes::E0217, text).at(places[k], "trains it");
                    let help =
                        format!("train what is in the loop in a group: `group {dim}.* {{ optimizer … }}`");
                    wrong.push(d.and(p.span, "declared here").help(help));
                    break;
                }
                if let Some(why) = all[p.optimizer].differs(&all[k]) {
                    let text = format!("parts of `{}` are trained by optimizers of two kinds: {why}", p.path);
                    let d = Diagnostic::error(codes::E0217, text).at(places[k], "trains a part");
                    let d = d.and(places[p.optimizer], "trains another");
                    wrong.push(d.help("let them differ in numbers alone, such as `lr`: parts share the state of their optimizer"));
                    break;
                }
            }
        }
        wrong.into_iter().take(1).for_each(|d| self.error(d));
    }

    /// `ema 0.999 of gen.*`: the share of the old average.
    pub(in crate::resolve) fn ema(&mut self, decay: &'a Expr, of: &'a [PathGlob], span: Span) -> Option<Id> {
        let all: Vec<usize> =
            if of.is_empty() { (0..self.params.len()).collect() } else { self.matched("ema", of) };
        let before: Vec<usize> = all.into_iter().filter(|i| !self.params[*i].frozen).collect();
        if before.is_empty() && !self.report.any_error() {
            self.error(
                Diagnostic::error(
                    codes::E0217,
                    "there is nothing to average: none of these parameters is trained",
                )
                .at(span, "has no effect")
                .help("leave it out"),
            );
        }
        for i in before {
            self.params[i].averaged = true;
        }
        self.decay_of_averages(decay)
    }
}

/// `a`, `b` and 3 more.
fn some(paths: &[String]) -> String {
    let first = listed(paths.iter().take(3).map(String::as_str));
    if paths.len() > 3 { format!("{first} and {} more", paths.len() - 3) } else { first }
}
