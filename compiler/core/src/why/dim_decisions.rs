//! What the partitioner decided about a dim of a value, in words.

use super::{Fact, RuleReport, Teller};
use crate::layout::{Assigned, Rule, RuleDim, Scope};
use crate::partition::{Reason, Refusal};
use meshwright_ops::{Id, Kind};
use meshwright_plan::{Axis, Dim, Splits};
use meshwright_sorted::SortedSet;

impl Teller<'_> {
    /// Appends the facts of one reason to `facts`, and to `next` the values and dims that it refers to.
    pub(super) fn facts(
        &self,
        id: Id,
        dim: Dim,
        reason: &Reason,
        facts: &mut Vec<Fact>,
        next: &mut Vec<(Id, Dim)>,
    ) {
        let (kind, text) = match reason {
            Reason::Rules { asked, said } if asked.contains(&dim) => return self.rules(dim, said, facts),
            Reason::Rules { .. } => {
                let op = self.spmd.step.graph.spelled(id);
                ("replicated", format!("`{op}` needs `{}` replicated, so no rule applies", self.name(dim)))
            }
            Reason::Wanted { splits, users } => ("wanted", self.wanted(dim, splits, users, next)),
            // Of interest to a dim that would be split over that axis.
            Reason::Partial { axis, operands } if self.ruled(id, dim).contains(axis) => {
                ("partial", self.partial(*axis, operands))
            }
            Reason::Followed { dim: d, axis, operand, on, finish, gather } if *d == dim => {
                next.push((*operand, *on));
                ("followed", self.followed(*axis, (*operand, *on), (*finish, *gather)))
            }
            Reason::Refused { dim: d, axis, operand, why } if *d == dim => {
                ("refused", self.refused(id, *axis, *operand, why))
            }
            Reason::Partial { .. } | Reason::Followed { .. } | Reason::Refused { .. } => return,
            Reason::Renamed { from, to, operand } => {
                next.push((*operand, if *to == dim { *from } else { dim }));
                ("renamed", self.renamed(dim, (*from, *to), *operand))
            }
            Reason::Scattered { splits, reduce, gather } => {
                ("scattered", self.scattered(dim, splits, *reduce, *gather))
            }
            Reason::Rematerializable => (
                "rematerializable",
                "it can be made in any placement at no cost: each user gets it as it needs it".into(),
            ),
            Reason::Reduced { to, by_rules } => {
                let to = match to.describe(&self.spmd.step.graph.dims, &self.spmd.mesh) {
                    all if all == "-" => "replicated".to_string(),
                    split => split,
                };
                let whose = if *by_rules { "as the rules place it" } else { "as its users want it" };
                ("reduced", format!("its partial sum is reduced {whose}, which moves the fewest bytes: {to}"))
            }
        };
        facts.push(Fact { kind, text, rule: None });
    }

    fn name(&self, dim: Dim) -> &str {
        self.spmd.step.graph.dims.name(dim)
    }

    /// Each value once, quoted.
    fn listed(&self, values: &[Id]) -> Vec<String> {
        let mut all: Vec<String> = values.iter().map(|v| format!("`{}`", self.describe(*v))).collect();
        all.dedup();
        all
    }

    fn wanted(&self, dim: Dim, splits: &Splits, users: &[Id], next: &mut Vec<(Id, Dim)>) -> String {
        if let Some(u) = users.first() {
            let on = match self.spmd.step.graph.node(*u).op.kind() {
                Kind::Rename { from, to } if from == dim => to,
                _ => dim,
            };
            next.push((*u, on));
        }
        let who = self.listed(users);
        let verb = if who.len() == 1 { "wants" } else { "want" };
        let how = match splits.get(&dim) {
            Some(axes) => format!("`{}` over {}", self.name(dim), quoted(&self.axis_names(axes))),
            None => format!("`{}` replicated", self.name(dim)),
        };
        format!("it costs nothing to compute, so it is computed as {} {verb} it: {how}", who.join(", "))
    }

    fn partial(&self, axis: Axis, operands: &[Id]) -> String {
        let who = self.listed(operands);
        let verb = if who.len() == 1 { "is" } else { "are" };
        let a = self.spmd.mesh.name(axis);
        format!(
            "{} {verb} partial over `{a}`, and so is this: none of its dims is split over `{a}`",
            who.join(", ")
        )
    }

    /// Costs are in units of 1 / axis size.
    fn followed(&self, axis: Axis, (operand, on): (Id, Dim), (reduce, gather): (u64, u64)) -> String {
        let size = self.spmd.mesh.size(axis).max(1) as u64;
        let [reduced, gathered] = [reduce / size, gather / size];
        let cost = match reduce {
            0 => "at no cost".to_string(),
            _ if reduce <= gather => {
                format!("as reducing the result moves {reduced} B, gathering the operands {gathered} B")
            }
            _ => format!(
                "which moves {reduced} B to reduce the result; gathering the operands would move {gathered} B, but no rule implies that"
            ),
        };
        format!(
            "the rules leave `{}` free here, and it follows `{}`, of which `{}` is split over it, {cost}",
            self.spmd.mesh.name(axis),
            self.describe(operand),
            self.name(on),
        )
    }

    fn refused(&self, id: Id, axis: Axis, operand: Id, why: &Refusal) -> String {
        let axis_name = self.spmd.mesh.name(axis);
        let size = self.spmd.mesh.size(axis).max(1) as u64;
        let why = match why {
            Refusal::NeedsWhole => {
                format!("`{}` needs it replicated", self.spmd.step.graph.spelled(id))
            }
            Refusal::Taken => format!("`{axis_name}` is taken by another dim or by a partial sum here"),
            Refusal::Order => "it is split over other axes first there".into(),
            Refusal::Dearer(reduce, gather) => format!(
                "reducing the result would move {} B, gathering the operands {} B",
                reduce / size,
                gather / size
            ),
            Refusal::Downstream(after, gather) => format!(
                "the sums of what follows from it would move {} B, gathering it once {} B",
                after / size,
                gather / size
            ),
            Refusal::Gradient => "the parameter is not stored so, and gathering its gradient moves less \
                                  than gathering its update"
                .into(),
            Refusal::Parameter => "that is how a parameter is stored, and values do not follow it".into(),
        };
        format!("`{}` is split over `{axis_name}`, which is not followed: {why}", self.describe(operand))
    }

    fn renamed(&self, dim: Dim, (from, to): (Dim, Dim), operand: Id) -> String {
        let how = if to == dim {
            format!("with `{}` renamed to `{}`; it is split as that dim is", self.name(from), self.name(to))
        } else {
            "with another dim renamed; this dim is split as there".into()
        };
        format!("it is `{}` {how}", self.describe(operand))
    }

    /// Costs are in quarters of a byte.
    fn scattered(&self, dim: Dim, splits: &Splits, reduce: u64, gather: u64) -> String {
        let over = splits.get(&dim).map(|axes| quoted(&self.axis_names(axes)));
        let over = over.map_or("replicated".to_string(), |axes| format!("split over {axes}"));
        format!(
            "it is stored split, and each device adds into its own shard: gathering the operands moves {} B, reducing the whole gradient {} B; `{}` is {over}",
            gather / 4,
            reduce / 4,
            self.name(dim),
        )
    }

    fn rules(&self, dim: Dim, said: &Assigned, facts: &mut Vec<Fact>) {
        let g = &self.spmd.step.graph;
        let mesh = &self.spmd.mesh;
        let rule = |i: usize| &self.layout.rules[i];
        let short = |i: usize| format!("rule {} `{}`", rule(i).number, rule(i).text);
        let mut say = |kind, text: String, i: Option<usize>| {
            let rule = i.map(|i| self.rule_report(rule(i)));
            facts.push(Fact { kind, text, rule });
        };
        let mut spoke = false;
        for (i, _) in said.spoke.iter().filter(|s| s.1 == dim) {
            spoke = true;
            let r = rule(*i);
            let got: Vec<Axis> = r.axes.iter().copied().filter(|a| said.by.get(a) == Some(i)).collect();
            let one: Vec<Axis> = r.axes.iter().copied().filter(|a| mesh.size(*a) == 1).collect();
            let scope = scope_words(&r.scope);
            if r.axes.is_empty() {
                say("rule", format!("{} keeps it replicated; it applies to {scope}", short(*i)), Some(*i));
            } else if !got.is_empty() {
                let over = quoted(&self.axis_names(&got));
                say("rule", format!("{} splits it over {over}; it applies to {scope}", short(*i)), Some(*i));
            } else if one.len() == r.axes.len() {
                let over = quoted(&self.axis_names(&one));
                say("rule", format!("{} names {over}, which has one device", short(*i)), Some(*i));
            }
            for (_, owner, axis) in said.yielded.iter().filter(|y| y.0 == *i) {
                let taken = said.spoke.iter().find(|s| s.0 == *owner).map_or("", |s| g.dims.name(s.1));
                let text = format!(
                    "{} yields `{}` to {}, which splits `{taken}` of this value over it",
                    short(*i),
                    mesh.name(*axis),
                    short(*owner),
                );
                say("yielded", text, Some(*i));
            }
        }
        for (silent, other) in &said.silenced {
            let about = said.spoke.iter().any(|s| s.0 == *other && s.1 == dim);
            if about {
                let text = format!(
                    "{} does not apply: it is for {}, and rule {} is more specific, for {}",
                    short(*silent),
                    scope_words(&rule(*silent).scope),
                    rule(*other).number,
                    scope_words(&rule(*other).scope),
                );
                say("overridden", text, Some(*silent));
            }
        }
        let first = self.layout.first_name(dim);
        if first != dim {
            let (name, first) = (g.dims.name(dim), g.dims.name(first));
            let text = format!(
                "`{name}` is `{first}` under a second name, and follows its rules: no rule names `{name}`"
            );
            say("second_name", text, None);
        } else if !spoke {
            say("no_rule", format!("no rule for this value names `{}`", g.dims.name(dim)), None);
        }
        for (i, other) in said.spoke.iter().filter(|s| s.1 != dim && rule(s.0).dim == RuleDim::Any) {
            let text = format!("{} took `{}`, the largest dim that was free", short(*i), g.dims.name(*other));
            say("elsewhere", text, Some(*i));
        }
        let asked: SortedSet<usize> =
            said.spoke.iter().map(|s| s.0).chain(said.silenced.iter().map(|s| s.0)).collect();
        for (i, r) in self.layout.rules.iter().enumerate() {
            if r.dim == RuleDim::Dim(self.layout.first_name(dim)) && !asked.contains(&i) {
                let text = format!("{} applies to {}, which this is not", short(i), scope_words(&r.scope));
                say("elsewhere", text, Some(i));
            }
        }
    }

    fn rule_report(&self, r: &Rule) -> RuleReport {
        RuleReport { number: r.number, text: r.text.clone(), place: (self.place_of)(r.span) }
    }
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ")
}

/// The values that a scope is for.
fn scope_words(s: &Scope) -> String {
    use crate::layout::ScopeClass as C;
    let kind = s.kind.map(|k| match k {
        C::Params => "parameters",
        C::Grads => "gradients",
        C::Moments => "optimizer state",
    });
    match (kind, &s.path) {
        (None, None) => "all values".into(),
        (Some(k), None) => k.into(),
        (None, Some(p)) => format!("values under `{p}`"),
        (Some(k), Some(p)) => format!("{k} under `{p}`"),
    }
}
