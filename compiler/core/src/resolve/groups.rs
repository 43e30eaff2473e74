//! Which parameters are trained for which loss, by which optimizer, and which of them are averaged.

use super::Resolver;
use super::optimizer::{Beside, DecayLine};
use super::report::listed;
use super::train::Lines;
use crate::optimizers::Optimizer;
use crate::program::{Objective, Turn};
use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_ops::Id;
use meshwright_syntax::ast::{Expr, Minimize, ParamGroup, PathGlob};

impl<'a> Resolver<'a> {
    /// The lines `minimize`: each parameter that is trained has one of them.
    pub(super) fn objectives(&mut self, all: &Lines<'a>) -> Option<Vec<Objective>> {
        let mut out = Some(Vec::new());
        let mut owner: Vec<Option<usize>> = vec![None; self.params.len()];
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
            self.claim(&line.of, k, &mut owner, &|k| ("minimized", spans(k)));
        }
        for (p, owner) in self.params.iter_mut().zip(&owner) {
            p.objective = owner.or(rest).unwrap_or(0);
        }
        let left = |(p, owner): (&crate::program::ParamDecl, &Option<usize>)| {
            (owner.is_none() && !p.frozen).then(|| p.path.clone())
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
                let n = self.whole(every, "`every`", u64::MAX)?;
                let from = line.from.as_ref().map_or(Some(n), |e| self.whole(e, "`from`", n))?;
                Some(Turn { every: n, from }).filter(|t| t.every > 1)
            }
        };
        Some(Objective { loss: loss?, turn })
    }

    /// A whole number from 1 to `most`.
    fn whole(&mut self, e: &'a Expr, what: &str, most: u64) -> Option<u64> {
        // Steps are counted in floats, which are exact up to here.
        let most = most.min(1 << 20);
        let n = self.konst(e, what)?.num();
        let found = n.whole().and_then(|n| u64::try_from(n).ok()).filter(|n| (1..=most).contains(n));
        if found.is_none() {
            let must = format!("must be a whole number from 1 to {most}");
            let text = format!("{what} is {n}: it {must}");
            self.error(Diagnostic::error(codes::E0217, text).at(e.span, must));
        }
        found
    }

    /// Gives all parameters that patterns match to `k`; one that has an owner is reported.
    fn claim(
        &mut self,
        globs: &'a [PathGlob],
        k: usize,
        owner: &mut [Option<usize>],
        told: &dyn Fn(usize) -> (&'static str, Span),
    ) {
        for g in globs {
            let mut twice = None;
            for i in self.matched(std::slice::from_ref(g)) {
                match owner[i] {
                    Some(first) if first != k => twice = twice.or(Some((i, first))),
                    _ => owner[i] = Some(k),
                }
            }
            let Some((i, first)) = twice else { continue };
            let (what, at) = told(first);
            let text = format!("`{}` is {what} twice: `{}` matches it too", self.params[i].path, g.text);
            self.error(
                Diagnostic::error(codes::E0217, text)
                    .at(g.span, "matches it")
                    .and(at, "this has it already")
                    .help("write patterns that have no parameter in common"),
            );
        }
    }

    /// The optimizer of the block, if parameters of no group need it, and those of its groups.
    pub(super) fn optimizers(
        &mut self,
        all: &Lines<'a>,
        groups: &[(Lines<'a>, &'a ParamGroup)],
    ) -> Option<Vec<Optimizer>> {
        let mut owner: Vec<Option<usize>> = vec![None; self.params.len()];
        let mut out = Vec::new();
        let mut good = true;
        if let Some(call) = all.optimizer {
            let decay = DecayLine {
                value: all.decay.and_then(|d| d.0).map(|e| (e, Beside::Same)),
                spares: all.decay.filter(|d| d.0.is_none()).map(|d| d.2),
            };
            match self.optimizer(call, decay) {
                Some(o) => out.push(o),
                None => good = false,
            }
        }
        for (k, (lines, group)) in groups.iter().enumerate() {
            let place = |k: usize| groups[k].1.of.first().map_or(Span::default(), |g| g.span);
            self.claim(&group.of, k, &mut owner, &|k| ("in a group", place(k)));
            for (_, except, _) in lines.decay.iter() {
                for i in self.matched(except) {
                    self.params[i].no_decay |= owner[i] == Some(k);
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
            for (p, _) in self.params.iter_mut().zip(&owner).filter(|(_, o)| **o == Some(k)) {
                p.optimizer = out.len();
            }
            out.extend(optimizer);
        }
        let left = self.params.iter().zip(&owner).filter(|(p, o)| o.is_none() && !p.frozen);
        let left: Vec<String> = left.map(|(p, _)| p.path.clone()).collect();
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
        (good && !out.is_empty()).then_some(out)
    }

    /// `ema 0.999 of gen.*`: the share of the old average.
    pub(super) fn ema(&mut self, decay: &'a Expr, of: &'a [PathGlob], span: Span) -> Option<Id> {
        let all: Vec<usize> = if of.is_empty() { (0..self.params.len()).collect() } else { self.matched(of) };
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
