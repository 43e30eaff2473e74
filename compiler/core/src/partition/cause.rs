//! Why a reshard step is there, in words; and whether a gather is one that the rules imply.
//!
//! Only a gather of the forward pass may be refused. The backward pass is the forward pass transposed: where a device took its
//! part of a value, which costs nothing, the gradient is gathered; where devices added up what they had, each needs the gradient
//! whole. So a layout that fits what a model computes fits its gradient too.

use super::propagation::Walk;
use super::reshard::Reshard;
use super::spmd::Cause;
use crate::layout::{RuleDim, assign};
use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_ops::{AttentionGrad, AttentionPass, Class, Id, Kind};
use meshwright_plan::{Axis, Collective, CollectiveSpec, Dim, Dims, Monoid, Phase, Placement, Window};
use meshwright_sorted::SortedSet;

impl Walk<'_> {
    /// Why a reshard step is there, which may be one in `bf16`; a gather that no rule implies is an error.
    pub(super) fn cause(
        &mut self,
        id: Id,
        (kind, in_bf16): (&Reshard, bool),
        user: Option<Id>,
        phase: Phase,
        source: &Placement,
    ) -> Cause {
        let because =
            kind.collective().map_or_else(String::new, |c| self.because(id, (&c.spec(), in_bf16), user));
        let gather = match kind.collective() {
            // A path may take turns: what is gathered is the dim that the axis split where the path begins.
            Some(Collective::AllGather { axis, dims }) => {
                let split = source.splits.iter().find(|(_, axes)| axes.contains(axis));
                Some((*axis, split.map_or(dims[0], |s| *s.0)))
            }
            _ => None,
        };
        if let Some((axis, dim)) = gather.filter(|_| phase == Phase::Forward) {
            self.check_gather(id, axis, dim, user);
        }
        let rule = self.rule_of(id, kind);
        let stored = gather.is_some_and(|(axis, _)| self.stored_split(id, axis, user));
        Cause { user, phase, because: because.into(), rule, gathered: gather.map(|g| g.1), stored }
    }

    /// Why a collective is there.
    fn because(&self, id: Id, (c, in_bf16): (&CollectiveSpec<'_>, bool), user: Option<Id>) -> String {
        let name = |d: Dim| self.facts.graph().dims.name(d);
        if let Some((dim, window)) = c.window {
            return self.halo(c.axes, dim, &window, user);
        }
        let folded = |m: Monoid| self.folded(id, c.axes, m) + if in_bf16 { " in `bf16`" } else { "" };
        if c.root.is_some() {
            let axes: Vec<&str> = c.axes.iter().map(|a| self.facts.mesh.name(*a)).collect();
            return format!("one stage of `{}` alone has it", axes.join(", "));
        }
        match (c.monoid, c.join.first().copied(), c.split.first().copied()) {
            (Some(m), _, None) => folded(m),
            (Some(m), _, Some(d)) => {
                format!("{}, and `{}` is split where it goes", folded(m), name(d))
            }
            (None, Some(join), Some(split)) => {
                format!("`{}` is split instead of `{}`", name(split), name(join))
            }
            (None, Some(d), None) => match user {
                Some(u) => format!("`{}` is used whole by {}", name(d), self.facts.graph().describe(u)),
                None => format!("`{}` is stored whole", name(d)),
            },
            (None, None, _) => String::new(),
        }
    }

    /// Which dims are folded over the axes.
    fn folded(&self, id: Id, axes: &[Axis], m: Monoid) -> String {
        let folded = axes.iter().flat_map(|a| self.state.summed.get(&(id, *a)).into_iter().flatten());
        let all: SortedSet<Dim> = folded.copied().collect();
        let names: Vec<_> = all.iter().map(|d| format!("`{}`", self.facts.graph().dims.name(*d))).collect();
        let verb = if m == Monoid::Sum { "summed".into() } else { format!("folded by {m}") };
        format!("{} {} {verb}", names.join(", "), if all.len() == 1 { "is" } else { "are" })
    }

    /// Why elements of a dim come from other devices.
    fn halo(&self, axes: &[Axis], dim: Dim, window: &Window, user: Option<Id>) -> String {
        let (name, size) = (self.facts.graph().dims.name(dim), self.facts.graph().dims.size(dim));
        let most = window.missing(size, axes, self.facts.mesh);
        let user = user.map_or_else(String::new, |u| format!(" for {}", self.facts.graph().describe(u)));
        if window.mul == 1 && window.div == 1 && window.before <= 0 && window.after >= 0 && window.of == size
        {
            let (low, high) = (-window.before, window.after);
            format!("halo of `{name}`{user}: {low} before and {high} after each block")
        } else {
            let verb = if most == 1 { "lies" } else { "lie" };
            format!("up to {most} of `{name}` {verb} on other devices{user}")
        }
    }

    fn rule_of(&self, id: Id, kind: &Reshard) -> Option<Span> {
        let axis = match kind {
            Reshard::Collective(c) => *c.axes().first()?,
            Reshard::SliceWindow { axes, .. } => *axes.first()?,
            Reshard::Slice { axis, .. } => *axis,
        };
        let dims = self
            .state
            .summed
            .get(&(id, axis))
            .cloned()
            .unwrap_or_else(|| self.facts.graph().ty(id).dims.clone());
        let n = self.facts.node(id);
        let by = assign(&self.facts.rules, n.origin.class, &n.origin.path, &dims, &self.facts.graph().dims);
        by.by.get(&axis).map(|r| self.facts.layout.rules[*r].span)
    }

    fn check_gather(&mut self, id: Id, axis: Axis, dim: Dim, user: Option<Id>) {
        if !self.implied(id, axis, dim, user) && self.told.insert((dim, axis)) {
            let d = unasked_gather(self, id, axis, dim, user);
            self.diagnostics.push(d);
        }
        let Some(ring) = self.facts.layout.rings.get(&dim).copied() else { return };
        let attends = user.is_some_and(|u| {
            let op = self.facts.node(u).op.as_any();
            op.is::<AttentionPass>() || op.is::<AttentionGrad>()
        });
        let gathers = attends || self.facts.layout.gathers.contains(&dim);
        let is_new = !self.told.iter().any(|(d, _)| *d == dim);
        // A rule that yields permits a gather where nothing says that keys go around.
        if !gathers && is_new && !self.implied_by_storage(id, axis, dim, user) {
            self.told.insert((dim, axis));
            let d = no_ring(self, (id, dim), user, ring);
            self.diagnostics.push(d);
        }
    }

    /// Whether the rules imply that a value is gathered, or the layout permits it.
    pub(super) fn implied(&self, id: Id, axis: Axis, dim: Dim, user: Option<Id>) -> bool {
        self.facts.layout.joins(dim)
            || self.implied_by_storage(id, axis, dim, user)
            || self.facts.layout.rules.iter().any(|r| r.free)
                && self.names_of(id, dim).iter().any(|dim| self.free_rule(*dim, axis))
    }

    /// Whether it is gathered since what is stored is, or since it is a gradient.
    fn implied_by_storage(&self, id: Id, axis: Axis, dim: Dim, user: Option<Id>) -> bool {
        let class = self.facts.node(id).origin.class;
        let user_class = user.map_or(Class::OptimizerState, |u| self.facts.node(u).origin.class);
        self.stored_split(id, axis, user)
            || self.finished_split(id, axis, dim)
            || self.gradient_of_sum(id, axis)
            || self.gradient_of_whole(id, axis, dim)
            || user.is_some_and(|u| self.makes_gradient_of_whole(id, axis, dim, u))
            || matches!(class, Class::OptimizerState | Class::Grad)
            || matches!(user_class, Class::OptimizerState)
            // What becomes a gradient is stored as the parameter is.
            || user.is_some_and(|u| self.facts.becomes_gradient(u) || self.scattered.contains(&u))
    }

    /// A dim of a value, with the names that it had before renames.
    fn named_before(&self, id: Id, dim: Dim) -> Vec<Dim> {
        let (mut at, mut names) = (id, vec![dim]);
        while let [x] = self.facts.node(at).inputs[..] {
            if let Kind::Rename { from, to } = self.facts.node(at).op.kind()
                && names.last() == Some(&to)
            {
                names.push(from);
            }
            at = x;
        }
        names
    }

    /// The same; and in the backward pass, where renames run the other way, all names from which the forward pass makes them.
    fn names_of(&self, id: Id, dim: Dim) -> SortedSet<Dim> {
        let mut names: SortedSet<Dim> = self.named_before(id, dim).into_iter().collect();
        if self.facts.node(id).origin.phase != Phase::Backward {
            return names;
        }
        let g = self.facts.graph();
        let forward = g.ids().map(|x| g.node(x)).filter(|n| n.origin.phase == Phase::Forward);
        let renames = forward.filter_map(|n| match n.op.kind() {
            Kind::Rename { from, to } => Some((from, to)),
            _ => None,
        });
        let renames: SortedSet<(Dim, Dim)> = renames.collect();
        loop {
            let before = names.len();
            names.extend(renames.iter().filter(|r| names.contains(&r.1)).map(|r| r.0).collect::<Vec<_>>());
            if names.len() == before {
                return names;
            }
        }
    }

    fn free_rule(&self, dim: Dim, axis: Axis) -> bool {
        let mut rules = self.facts.layout.rules.iter();
        let named = RuleDim::Dim(self.facts.layout.first_name(dim));
        rules.any(|r| r.free && r.axes.contains(&axis) && r.dim == named)
    }

    /// Whether a parameter, or a function of one, is split over an axis by a rule that does not speak of its user: a scope
    /// stores it split.
    fn stored_split(&self, id: Id, axis: Axis, user: Option<Id>) -> bool {
        if !self.facts.param_like(id) {
            return false;
        }
        let mut root = id;
        while let [x] = self.facts.node(root).inputs[..] {
            root = x;
        }
        let by = [root, id].into_iter().find_map(|x| {
            let n = self.facts.node(x);
            assign(&self.facts.rules, n.origin.class, &n.origin.path, &n.ty.dims, &self.facts.graph().dims)
                .by
                .get(&axis)
                .copied()
        });
        let (Some(by), Some(user)) = (by, user) else { return true };
        let o = &self.facts.node(user).origin;
        match self.facts.layout.rules[by].dim {
            RuleDim::Any => true,
            RuleDim::Dim(d) => {
                assign(&self.facts.rules, o.class, &o.path, &[d], &self.facts.graph().dims).by.get(&axis)
                    != Some(&by)
            }
        }
    }
}

/// The error for a ring whose shards something else than attention needs all at once.
fn no_ring(walk: &Walk, (id, dim): (Id, Dim), user: Option<Id>, ring: Span) -> Diagnostic {
    let g = walk.facts.graph();
    let (value, name) = (g.describe(id), g.dims.name(dim));
    let text =
        format!("`{value}` is needed whole along `{name}`, which goes around its devices shard by shard");
    let mut d = Diagnostic::error(codes::E0317, text);
    if let Some(u) = user {
        let wanted = g.describe(u);
        d = d.at(g.node(u).origin.span, format!("`{wanted}` needs all of `{name}` at once"));
    }
    d.and(ring, "the ring")
        .note("attention alone takes keys and values shard by shard: a softmax over products of queries and keys, of which nothing else reads either")
        .help(format!("what is no attention may gather if the layout says so too: `gather {name}`"))
}

/// The error for a gather that no rule implies.
fn unasked_gather(walk: &Walk, id: Id, axis: Axis, dim: Dim, user: Option<Id>) -> Diagnostic {
    let g = walk.facts.graph();
    let (value, name, over) = (g.describe(id), g.dims.name(dim), walk.facts.mesh.name(axis));
    let whole = walk.facts.bytes(id, &Placement::replicated());
    let mut d = Diagnostic::error(
        codes::E0310,
        format!(
            "`{value}` would be gathered along `{name}` over `{over}`, {whole} bytes on every device, and no rule implies it"
        ),
    );
    let rules = &walk.facts.layout.rules;
    // A rule has no name for a dim that the compiler added.
    let declared = g.dims.declared(dim).map(|of| walk.facts.layout.first_name(of));
    let named = declared.map(RuleDim::Dim);
    let of_dim = rules.iter().find(|r| Some(r.dim) == named);
    let by = walk.splitting_rule(id, axis).map(|rule| &rules[rule]).or(of_dim);
    let by = by.or_else(|| rules.iter().find(|r| r.axes.contains(&axis)));
    if let Some(u) = user {
        let wanted = g.describe(u);
        d = d.at(g.node(u).origin.span, format!("`{wanted}` needs `{name}` whole here"));
    }
    if user.is_none_or(|u| g.node(u).origin.span != g.node(id).origin.span) {
        d = d.and(g.node(id).origin.span, "the value that is split");
    }
    if let Some(r) = by {
        d = d.and(r.span, format!("rule {} splits it: `{}`", r.number, r.text));
    }
    ways_out(d, (&g.dims, dim), (of_dim.is_some(), over))
}

/// The ways out of a gather along a dim over the axis `over`. A layout has no name for what the compiler added.
fn ways_out(d: Diagnostic, (dims, dim): (&Dims, Dim), (ruled, over): (bool, &str)) -> Diagnostic {
    let Some(name) = dims.declared(dim).map(|of| dims.name(of)) else {
        let name = dims.name(dim);
        return d.help(format!("the model has no dim `{name}`: split another dim over `{over}`"));
    };
    let d = d.help(format!("if the gather is meant, say so in the layout: `gather {name}`"));
    if ruled { d } else { d.help(format!("or give `{name}` a rule of its own")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The dim of the program, in place of one that counts the same; nothing for what counts nothing that the program has.
    #[test]
    fn ways_out_name_dims_of_the_program() {
        let mut dims = Dims::default();
        let batch = dims.add("batch", 8);
        let whole = dims.make("batch*microbatch", 8, Some(batch));
        let counts = dims.make("fp8_logarithm", 252, None);
        let of = |dim| ways_out(Diagnostic::error(codes::E0310, ""), (&dims, dim), (false, "a")).helps;
        assert_eq!(of(whole), of(batch));
        assert!(of(batch)[1].contains("give `batch` a rule"), "{:?}", of(batch));
        assert_eq!(of(counts), ["the model has no dim `fp8_logarithm`: split another dim over `a`"]);
    }
}
