//! Why a move is there, in words; and whether a gather is one that the rules imply.

use super::pass::Pass;
use super::reshard::Reshard;
use super::spmd::Cause;
use crate::layout::{RuleDim, assign};
use meshwright_ops::{Class, Id};
use meshwright_plan::{Axis, Collective, Dim, Monoid, Phase, Placement, Window};

impl Pass<'_> {
    /// Why a move is there; a gather that no rule implies is an error.
    pub(super) fn cause(
        &mut self,
        id: Id,
        kind: &Reshard,
        user: Option<Id>,
        phase: Phase,
        source: &Placement,
    ) -> Cause {
        let names = &self.step.graph.dims;
        let dims = |list: &[Dim]| {
            list.iter().map(|d| format!("`{}`", names.name(*d))).collect::<Vec<_>>().join(", ")
        };
        let folded = |axes: &[Axis], m: Monoid| {
            let mut all: Vec<Dim> =
                axes.iter().flat_map(|a| self.summed.get(&(id, *a)).cloned().unwrap_or_default()).collect();
            all.sort();
            all.dedup();
            let verb = if m == Monoid::Sum { "summed".into() } else { format!("folded by {m}") };
            format!("{} {} {verb}", dims(&all), if all.len() == 1 { "is" } else { "are" })
        };
        let because = match kind.collective() {
            None => String::new(),
            Some(Collective::AllReduce { axes, monoid }) => folded(axes, *monoid),
            Some(Collective::ReduceScatter { axis, monoid, dim }) => {
                format!("{}, and `{}` is split where it goes", folded(&[*axis], *monoid), names.name(*dim))
            }
            Some(Collective::AllGather { dim, .. }) => match user {
                Some(u) => format!("`{}` is used whole by {}", names.name(*dim), self.graph().describe(u)),
                None => format!("`{}` is stored whole", names.name(*dim)),
            },
            Some(Collective::AllToAll { join, split, .. }) => {
                format!("`{}` is split instead of `{}`", names.name(*split), names.name(*join))
            }
            Some(Collective::Permute { axes, dim, window }) => self.halo(axes, *dim, window, user),
        };
        if let Some(Collective::AllGather { axis, dim }) = kind.collective() {
            // A way may take turns: what is gathered is the dim that the axis split where the way begins.
            let split = source.splits.iter().find(|(_, axes)| axes.contains(axis)).map_or(*dim, |s| *s.0);
            self.check_gather(id, *axis, split, user);
        }
        let rule = self.rule_of(id, kind);
        Cause { user, phase, because, rule }
    }

    /// Why elements of a dim come from other devices.
    fn halo(&self, axes: &[Axis], dim: Dim, window: &Window, user: Option<Id>) -> String {
        let (name, size) = (self.graph().dims.name(dim), self.graph().dims.size(dim));
        let most = window.missing(size, axes, self.mesh);
        let user = user.map_or_else(String::new, |u| format!(" for {}", self.graph().describe(u)));
        if window.mul == 1 && window.div == 1 && window.before <= 0 && window.after >= 0 && window.of == size
        {
            let (low, high) = (-window.before, window.after);
            format!("halo of `{name}`{user}: {low} before and {high} after each block")
        } else {
            let verb = if most == 1 { "lies" } else { "lie" };
            format!("up to {most} of `{name}` {verb} on other devices{user}")
        }
    }

    fn rule_of(&self, id: Id, kind: &Reshard) -> Option<meshwright_diag::Span> {
        let axis = match kind {
            Reshard::Collective(c) => *c.axes().first()?,
            Reshard::SliceWindow { axes, .. } => *axes.first()?,
            Reshard::Slice { axis, .. } => *axis,
        };
        let dims = self.summed.get(&(id, axis)).cloned().unwrap_or_else(|| self.graph().ty(id).dims.clone());
        let n = self.node(id);
        let by = assign(self.layout, n.origin.class, &n.origin.path, &dims, &self.graph().dims);
        by.by.get(&axis).map(|r| self.layout.rules[*r].span)
    }

    fn check_gather(&mut self, id: Id, axis: Axis, dim: Dim, user: Option<Id>) {
        let class = self.node(id).origin.class;
        let user_class = user.map_or(Class::OptimizerState, |u| self.node(u).origin.class);
        let implied = self.stored_split(id, axis, user)
            || matches!(class, Class::OptimizerState | Class::Grad)
            || matches!(user_class, Class::OptimizerState)
            // What becomes a gradient is stored as the parameter is.
            || user.is_some_and(|u| self.is_gradient(u))
            || self.layout.gathers.contains(&dim)
            || self
                .layout
                .rules
                .iter()
                .any(|r| r.free && r.axes.contains(&axis) && r.dim == RuleDim::Dim(dim));
        if !implied && self.told.insert((dim, axis)) {
            let d = super::follow::unasked_gather(self, id, axis, dim, user);
            self.diagnostics.push(d);
        }
    }

    /// Whether a parameter, or a function of one, is split over an axis by a rule that does not speak of its user: a scope
    /// stores it split.
    fn stored_split(&self, id: Id, axis: Axis, user: Option<Id>) -> bool {
        if !self.param_like(id) {
            return false;
        }
        let mut root = id;
        while let [x] = self.node(root).inputs[..] {
            root = x;
        }
        let by = [root, id].into_iter().find_map(|x| {
            let n = self.node(x);
            assign(self.layout, n.origin.class, &n.origin.path, &n.ty.dims, &self.graph().dims)
                .by
                .get(&axis)
                .copied()
        });
        let (Some(by), Some(user)) = (by, user) else { return true };
        let o = &self.node(user).origin;
        match self.layout.rules[by].dim {
            RuleDim::Any => true,
            RuleDim::Dim(d) => {
                assign(self.layout, o.class, &o.path, &[d], &self.graph().dims).by.get(&axis) != Some(&by)
            }
        }
    }
}
