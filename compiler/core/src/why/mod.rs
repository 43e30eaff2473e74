//! Why a dim of a value is split as it is: the reasons that the partitioner kept, told as a chain from the value to the
//! rules, and the collectives that follow. Nothing is decided again here.

mod caused;
mod find;
mod text;

pub use text::text;

use crate::explain::shown;
use crate::layout::{Layout, Rule, RuleDim, Scope};
use crate::partition::{CopyId, Instr, Reason, Refusal, Spmd};
use meshwright_diag::{Diagnostic, Location, Span};
use meshwright_ops::{Id, Kind};
use meshwright_plan::{Axis, Dim, Phase, largest_shard};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Where a span stands; `None` for a place that is nowhere.
pub type PlaceOf<'a> = dyn Fn(Span) -> Option<Location> + 'a;

/// A rule that is spoken of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RuleReport {
    /// Its number in the layout, from 1.
    pub number: usize,
    /// Its text, for one dim.
    pub text: String,
    /// Where it stands.
    pub place: Option<Location>,
}

/// One fact.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fact {
    /// `rule`, `silenced`, `yielded`, `elsewhere`, `no_rule`, `whole`, `followed`, `refused`, `wanted`, `renamed`,
    /// `unfinished`, `finished`, `folded` or `anywhere`.
    pub kind: &'static str,
    /// It in words.
    pub text: String,
    /// The rule it is about, if it is about one.
    pub rule: Option<RuleReport>,
}

/// What is known of a dim of one value of the chain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Link {
    /// The value.
    pub value: String,
    /// The dim.
    pub dim: String,
    /// The op that makes it.
    pub op: String,
    /// Where the model says so.
    pub place: Option<Location>,
    /// The facts, in the order in which they were decided.
    pub facts: Vec<Fact>,
}

/// A collective that the split brings about.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Caused {
    /// `all_reduce` and so on.
    pub op: String,
    /// Its axes.
    pub axes: Vec<String>,
    /// Bytes of one device's buffer: what goes in, or for an all-gather what comes out.
    pub bytes: usize,
    /// Part of the step.
    pub phase: Phase,
    /// The value that is moved.
    pub value: String,
    /// Where the model says so.
    pub place: Option<Location>,
    /// Why.
    pub because: String,
}

/// The answer for one value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Why {
    /// The value with its dims.
    pub value: String,
    /// The path of the layer call or parameter it belongs to; empty at the top.
    pub path: String,
    /// The dim.
    pub dim: String,
    /// Its size.
    pub size: usize,
    /// Axes that split it where the value is made, major first.
    pub axes: Vec<String>,
    /// The largest block of it on one device.
    pub block: usize,
    /// The whole placement, as `explain` shows it.
    pub split_by: String,
    /// From the value to what decided, the value itself first.
    pub chain: Vec<Link>,
    /// Collectives that the split brings about, in order.
    pub collectives: Vec<Caused>,
}

/// Answers `VALUE.DIM` for a partitioned step; for each value, where several of different layer calls bear the name.
///
/// # Errors
/// Where no value has that name, or it has no such dim.
pub fn why(
    spmd: &Spmd,
    layout: &Layout,
    question: &str,
    place_of: &PlaceOf,
) -> Result<Vec<Why>, Box<Diagnostic>> {
    let t = Teller { spmd, layout, place_of, names: find::names(spmd) };
    let (ids, dim) = t.find(question)?;
    Ok(ids.into_iter().map(|id| t.answer(id, dim)).collect())
}

struct Teller<'a> {
    spmd: &'a Spmd,
    layout: &'a Layout,
    place_of: &'a PlaceOf<'a>,
    names: BTreeMap<String, Vec<Id>>,
}

impl Teller<'_> {
    fn describe(&self, id: Id) -> String {
        let g = &self.spmd.step.graph;
        match shown(g, id, self.spmd) {
            Some(name) => format!("{name}{}", g.dims.list(&g.ty(id).dims)),
            None => g.describe(id),
        }
    }

    /// The version in which a value is made.
    fn made(&self, id: Id) -> Option<CopyId> {
        let moved = |i: &&Instr| !matches!(i, Instr::Reshard { .. });
        let mut outs = self.spmd.instrs.iter().filter(moved).map(Instr::out);
        outs.find(|v| self.spmd.copy(*v).value == id)
    }

    fn axes(&self, id: Id, dim: Dim) -> &[Axis] {
        self.made(id).map_or(&[], |v| self.spmd.copy(v).placement.axes(dim))
    }

    fn place(&self, id: Id) -> Option<Location> {
        (self.place_of)(self.spmd.step.graph.node(id).origin.span)
    }

    fn answer(&self, id: Id, dim: Dim) -> Why {
        let g = &self.spmd.step.graph;
        let axes = self.axes(id, dim);
        let placement = self.made(id).map(|v| self.spmd.copy(v).placement.clone()).unwrap_or_default();
        let mut chain = Vec::new();
        self.tell(id, dim, &mut chain, &mut BTreeSet::new());
        Why {
            value: self.describe(id),
            path: g.node(id).origin.path.to_string(),
            dim: g.dims.name(dim).into(),
            size: g.dims.size(dim),
            axes: self.axis_names(axes),
            block: largest_shard(g.dims.size(dim), axes, &self.spmd.mesh),
            split_by: placement.describe(&g.dims, &self.spmd.mesh),
            chain,
            collectives: self.caused(id, dim),
        }
    }

    fn axis_names(&self, axes: &[Axis]) -> Vec<String> {
        axes.iter().map(|a| self.spmd.mesh.name(*a).to_string()).collect()
    }

    // --------------------------------------------------------------------------------------------- the chain

    /// The axes that the rules give a dim of a value.
    fn ruled(&self, id: Id, dim: Dim) -> Vec<Axis> {
        let reasons = self.spmd.reasons.get(&id).into_iter().flatten();
        let said = reasons.filter_map(|r| match r {
            Reason::Rules { said, .. } => said.splits.get(&dim),
            _ => None,
        });
        said.flatten().copied().collect()
    }

    fn tell(&self, id: Id, dim: Dim, chain: &mut Vec<Link>, told: &mut BTreeSet<(Id, Dim)>) {
        if !told.insert((id, dim)) {
            return;
        }
        let g = &self.spmd.step.graph;
        let mut facts = Vec::new();
        let mut next = Vec::new();
        if !g.ty(id).dims.contains(&dim) {
            let text = format!("`{}` folds it away", g.node(id).op.name());
            facts.push(Fact { kind: "folded", text, rule: None });
        }
        for reason in self.spmd.reasons.get(&id).into_iter().flatten() {
            self.facts(id, dim, reason, &mut facts, &mut next);
        }
        chain.push(Link {
            value: self.describe(id),
            dim: g.dims.name(dim).into(),
            op: g.node(id).op.name().into(),
            place: self.place(id),
            facts,
        });
        for (id, dim) in next {
            self.tell(id, dim, chain, told);
        }
    }

    fn facts(&self, id: Id, dim: Dim, reason: &Reason, facts: &mut Vec<Fact>, next: &mut Vec<(Id, Dim)>) {
        let g = &self.spmd.step.graph;
        let mesh = &self.spmd.mesh;
        let name = |d: Dim| g.dims.name(d);
        let mut say = |kind, text: String| facts.push(Fact { kind, text, rule: None });
        match reason {
            Reason::Rules { asked, said } => {
                if !asked.contains(&dim) {
                    let op = g.node(id).op.name();
                    return say("whole", format!("`{op}` needs `{}` whole, so no rule is asked", name(dim)));
                }
                self.rules(dim, said, facts);
            }
            Reason::Wanted { splits, users } => {
                let who: Vec<String> = users.iter().map(|u| format!("`{}`", self.describe(*u))).collect();
                let how = match splits.get(&dim) {
                    Some(axes) => format!("`{}` over {}", name(dim), quoted(&self.axis_names(axes))),
                    None => format!("`{}` whole", name(dim)),
                };
                let verb = if who.len() == 1 { "wants" } else { "want" };
                let who = who.join(", ");
                say(
                    "wanted",
                    format!("it costs nothing to compute, so it is computed as {who} {verb} it: {how}"),
                );
                if let Some(u) = users.first() {
                    let on = match g.node(*u).op.kind() {
                        Kind::Rename { from, to } if from == dim => to,
                        _ => dim,
                    };
                    next.push((*u, on));
                }
            }
            // Of interest to a dim that would be split over that axis.
            Reason::Partial { axis, .. } if !self.ruled(id, dim).contains(axis) => {}
            Reason::Partial { axis, operands } => {
                let who: Vec<String> = operands.iter().map(|o| format!("`{}`", self.describe(*o))).collect();
                let verb = if who.len() == 1 { "is" } else { "are" };
                say(
                    "unfinished",
                    format!(
                        "{} {verb} unfinished over `{a}` and so is this: nothing of it is split over `{a}`",
                        who.join(", "),
                        a = mesh.name(*axis)
                    ),
                );
            }
            Reason::Followed { dim: d, axis, operand, on, finish, gather } if *d == dim => {
                let size = mesh.size(*axis).max(1) as u64;
                let cost = match finish {
                    0 => "at no cost".to_string(),
                    _ => format!(
                        "as finishing the result moves {} B, gathering the operands {} B",
                        finish / size,
                        gather / size
                    ),
                };
                say(
                    "followed",
                    format!(
                        "the rules leave `{}` free here, and it follows `{}`, of which `{}` is split over it, {cost}",
                        mesh.name(*axis),
                        self.describe(*operand),
                        name(*on),
                    ),
                );
                next.push((*operand, *on));
            }
            Reason::Refused { dim: d, axis, operand, why } if *d == dim => {
                let axis_name = mesh.name(*axis);
                let why = match why {
                    Refusal::NeedsWhole => format!("`{}` needs it whole", g.node(id).op.name()),
                    Refusal::Taken => {
                        format!("`{axis_name}` is taken by another dim or by an unfinished sum here")
                    }
                    Refusal::Order => "it is split over other axes first there".into(),
                    Refusal::Dearer(finish, gather) => {
                        let size = mesh.size(*axis).max(1) as u64;
                        format!(
                            "finishing the result would move {} B, gathering the operands {} B",
                            finish / size,
                            gather / size
                        )
                    }
                    Refusal::Parameter => {
                        "that is how a parameter is stored, and it ends where values begin".into()
                    }
                };
                say(
                    "refused",
                    format!(
                        "`{}` is split over `{axis_name}`, which is not followed: {why}",
                        self.describe(*operand)
                    ),
                );
            }
            Reason::Followed { .. } | Reason::Refused { .. } => {}
            Reason::Renamed { from, to, operand } => {
                let on = if *to == dim { *from } else { dim };
                let called = if *to == dim {
                    format!("with `{}` called `{}`; it is split as that one is", name(*from), name(*to))
                } else {
                    "with another name for another dim; this one is split as there".into()
                };
                say("renamed", format!("it is `{}` {called}", self.describe(*operand)));
                next.push((*operand, on));
            }
            Reason::Rematerializable => {
                say(
                    "anywhere",
                    "it can be made in any placement at no cost: each user has it as it needs it".into(),
                );
            }
            Reason::Reduced { to, by_rules } => {
                let to = match to.describe(&g.dims, mesh) {
                    whole if whole == "-" => "whole".to_string(),
                    split => split,
                };
                let whose = if *by_rules { "as the rules place it" } else { "as its users want it" };
                say("finished", format!("its sum is finished {whose}, which moves the least: {to}"));
            }
        }
    }

    fn rules(&self, dim: Dim, said: &crate::layout::Assigned, facts: &mut Vec<Fact>) {
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
                say("rule", format!("{} keeps it whole; it speaks of {scope}", short(*i)), Some(*i));
            } else if !got.is_empty() {
                let over = quoted(&self.axis_names(&got));
                say("rule", format!("{} splits it over {over}; it speaks of {scope}", short(*i)), Some(*i));
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
                    "{} is not asked: it speaks of {}, and rule {} more specifically of {}",
                    short(*silent),
                    scope_words(&rule(*silent).scope),
                    rule(*other).number,
                    scope_words(&rule(*other).scope),
                );
                say("silenced", text, Some(*silent));
            }
        }
        if !spoke {
            say("no_rule", format!("no rule for this value names `{}`", g.dims.name(dim)), None);
        }
        for (i, other) in said.spoke.iter().filter(|s| s.1 != dim && rule(s.0).dim == RuleDim::Any) {
            let text = format!("{} took `{}`, the largest dim that was free", short(*i), g.dims.name(*other));
            say("elsewhere", text, Some(*i));
        }
        let asked: BTreeSet<usize> =
            said.spoke.iter().map(|s| s.0).chain(said.silenced.iter().map(|s| s.0)).collect();
        for (i, r) in self.layout.rules.iter().enumerate() {
            if r.dim == RuleDim::Dim(dim) && !asked.contains(&i) {
                let text = format!("{} speaks of {}, and this is none", short(i), scope_words(&r.scope));
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

/// What a scope speaks of.
fn scope_words(s: &Scope) -> String {
    use crate::layout::ScopeClass as C;
    let kind = s.kind.map(|k| match k {
        C::Params => "parameters",
        C::Grads => "gradients",
        C::Moments => "moments",
    });
    match (kind, &s.path) {
        (None, None) => "all values".into(),
        (Some(k), None) => k.into(),
        (None, Some(p)) => format!("values under `{p}`"),
        (Some(k), Some(p)) => format!("{k} under `{p}`"),
    }
}
