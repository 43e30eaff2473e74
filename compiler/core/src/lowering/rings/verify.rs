//! Where keys go around the devices, every shard counts once: what a turn gives is a sum with the terms of some shards, and nothing but a turn
//! or a sum goes on with it until it has the terms of all.

use super::super::per_buffer::PerBuffer;
use meshwright_plan::expr::{BinaryFn, Reg, Scalar};
use meshwright_plan::{AttentionPart, Axis, BufId, Collective, Dim, Expr, Extent, Operand, Plan, Prim, Step};
use std::collections::BTreeSet;

/// The terms of a sum along an axis, by the distances between the devices of queries and of keys.
type Terms = Option<(Axis, BTreeSet<u16>)>;

/// Adds what is wrong with the rings of a Plan.
pub(in crate::lowering) fn rings(plan: &Plan, v: &mut Vec<String>) {
    let mut check = Check { plan, terms: PerBuffer::new(plan, None) };
    for (i, step) in plan.steps.iter().enumerate().filter(|(_, s)| s.fits()) {
        let mut found = Vec::new();
        check.step(step, &mut found);
        v.extend(found.into_iter().map(|f| format!("step {i} ({}): {f}", step.name())));
    }
    let next = plan.program_inputs.iter().filter_map(|l| l.next);
    for b in plan.outputs.iter().map(|o| o.buf).chain(next) {
        if check.terms[b].is_some() {
            v.push(format!("buffer {} lacks terms where the step ends", b.0));
        }
    }
}

struct Check<'a> {
    plan: &'a Plan,
    /// Of sums that lack terms, those that they have.
    terms: PerBuffer<Terms>,
}

impl Check<'_> {
    fn along(&self, o: &Operand, dim: Dim) -> Option<&Extent> {
        o.dims.iter().position(|d| *d == dim).map(|i| &self.plan.buffer(o.buf).extents[i])
    }

    fn step(&mut self, step: &Step, v: &mut Vec<String>) {
        match &step.prim {
            Prim::Attention { .. } => self.turn(step, v),
            Prim::Collective(Collective::Rotate { axis, dim }) => self.rotation(step, (*axis, *dim), v),
            Prim::Collective(_) if step.all().any(|o| self.is_rotated(o)) => {
                v.push("moves the shard of another device".into());
            }
            Prim::Map { expr, regs } if step.reads.iter().any(|o| self.terms[o.buf].is_some()) => {
                self.sum(step, (expr, regs), v);
            }
            Prim::Wait => {}
            _ => self.needs_all(&step.reads, v),
        }
    }

    fn is_rotated(&self, o: &Operand) -> bool {
        self.plan.buffer(o.buf).extents.iter().any(|e| e.rotated.is_some())
    }

    fn needs_all(&self, reads: &[Operand], v: &mut Vec<String>) {
        for o in reads.iter().filter(|o| self.terms[o.buf].is_some()) {
            v.push(format!("reads buffer {}, which lacks terms", o.buf.0));
        }
    }

    /// Notes the terms of a sum, if some are lacking.
    fn note(&mut self, buf: BufId, axis: Axis, terms: BTreeSet<u16>) {
        let all = terms.len() == self.plan.mesh.size(axis);
        self.terms[buf] = (!all).then_some((axis, terms));
    }

    fn rotation(&mut self, step: &Step, (axis, dim): (Axis, Dim), v: &mut Vec<String>) {
        let ([from], [to]) = (&step.reads[..], &step.writes[..]) else { return };
        let distance = |e: &Extent| e.rotated.map_or(0, |r| r.1);
        for d in &from.dims {
            let (Some(a), Some(b)) = (self.along(from, *d), self.along(to, *d)) else { return };
            let one_on = (usize::from(distance(a)) + 1) % self.plan.mesh.size(axis);
            let turns = a.rotated.or(b.rotated).is_some_and(|r| r.0 == axis)
                && usize::from(distance(b)) == one_on
                && Extent { rotated: None, ..a.clone() } == Extent { rotated: None, ..b.clone() };
            if if *d == dim { !turns } else { a != b } {
                v.push("the result is not the shard of the device after it".into());
            }
        }
        self.terms[to.buf] = self.terms[from.buf].clone();
    }

    fn sum(&mut self, step: &Step, (expr, regs): (&Expr, &[Reg]), v: &mut Vec<String>) {
        let ([a, b], [out]) = (&step.reads[..], &step.writes[..]) else {
            return self.needs_all(&step.reads, v);
        };
        let (Some((axis, first)), Some((other, second))) = (&self.terms[a.buf], &self.terms[b.buf]) else {
            return self.needs_all(&step.reads, v);
        };
        if axis != other || !regs.iter().all(|r| adds_two(expr, *r)) {
            return self.needs_all(&step.reads, v);
        }
        if !first.is_disjoint(second) {
            v.push("counts the term of a shard twice".into());
        }
        let (axis, terms) = (*axis, first | second);
        self.note(out.buf, axis, terms);
    }

    /// A step of attention on the keys of a shard.
    fn turn(&mut self, step: &Step, v: &mut Vec<String>) {
        let Prim::Attention { spec, parts } = &step.prim else { return };
        let Some(keys) = step.reads.get(1).and_then(|k| self.along(k, spec.key)).cloned() else { return };
        if step.reads.iter().filter_map(|o| self.along(o, spec.key)).any(|e| *e != keys) {
            v.push("has the shards of different devices of what has keys".into());
        }
        let state = spec.state(parts).map(|at| at.map(|i| step.reads[i].buf));
        // Keys that no query goes along with are partial sums, which collectives fold.
        let of_queries =
            |axis: Axis| step.reads.first().is_some_and(|q| self.plan.buffer(q.buf).is_split_over(axis));
        let axis = keys.axes.iter().copied().find(|a| of_queries(*a));
        let (Some(axis), [_]) = (axis, &keys.axes[..]) else {
            if axis.is_some() || state.is_some() || keys.rotated.is_some() {
                v.push("has a part of the keys that is the shard of no ring".into());
            }
            return self.needs_all(&step.reads, v);
        };
        let own = keys.rotated.map_or(0, |r| r.1);
        let mut terms = BTreeSet::from([own]);
        let others = step.reads.iter().filter(|o| !state.is_some_and(|s| s.contains(&o.buf)));
        self.needs_all(&others.cloned().collect::<Vec<_>>(), v);
        if let Some(state) = state {
            let before = state.map(|b| self.terms[b].clone());
            match &before[0] {
                Some((along, before)) if *along == axis && !before.contains(&own) => terms.extend(before),
                _ => v.push("goes on with what has the term of its shard, or of all, already".into()),
            }
            if before.iter().any(|b| *b != before[0]) {
                v.push("goes on with a maximum, a sum and values of different terms".into());
            }
        }
        let all = terms.len() == self.plan.mesh.size(axis);
        for (part, out) in parts.iter().zip(&step.writes) {
            if *part == AttentionPart::Result && !all {
                v.push("gives a result that lacks terms".into());
            }
            let keeps = matches!(part, AttentionPart::Key | AttentionPart::Value);
            if keeps && self.along(out, spec.key) != Some(&keys) {
                v.push("gives the gradient of another shard than it has".into());
            }
            self.note(out.buf, axis, terms.clone());
        }
    }
}

/// Whether a register is the sum of the two operands, but for roundings.
fn adds_two(expr: &Expr, reg: Reg) -> bool {
    let exact = |reg: Reg| {
        let mut scalar = expr.nodes[usize::from(reg)].scalar;
        while let Scalar::Cast(from) = scalar {
            scalar = expr.nodes[usize::from(from)].scalar;
        }
        scalar
    };
    let Scalar::Binary(BinaryFn::Add, a, b) = exact(reg) else { return false };
    matches!((exact(a), exact(b)), (Scalar::Load(0), Scalar::Load(1)) | (Scalar::Load(1), Scalar::Load(0)))
}
