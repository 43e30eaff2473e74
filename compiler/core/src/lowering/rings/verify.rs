//! Where keys go around the devices, every shard counts once: what a turn gives is a sum with the terms of some shards, and
//! nothing but a turn or a sum goes on with it until it has the terms of all.

use super::super::per_buffer::PerBuffer;
use meshwright_plan::expr::{BinaryFn, Reg, Scalar};
use meshwright_plan::{AttentionPart, Axis, BufId, Collective, Dim, Expr, Extent, Operand, Plan, Prim, Step};
use meshwright_sorted::SortedSet;

/// The terms that a sum has: results of attention for shards, which are distances between the devices of queries and of keys in
/// the order of these axes.
#[derive(Clone, PartialEq, Eq)]
struct Terms {
    axes: Vec<Axis>,
    parts: SortedSet<AttentionPart>,
    shards: SortedSet<u16>,
}

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
    /// The terms of sums that lack some.
    terms: PerBuffer<Option<Terms>>,
}

impl Check<'_> {
    fn along(&self, o: &Operand, dim: Dim) -> Option<&Extent> {
        o.dims.iter().position(|d| *d == dim).map(|i| &self.plan.buffer(o.buf).extents[i])
    }

    fn step(&mut self, step: &Step, v: &mut Vec<String>) {
        match &step.prim {
            Prim::Attention { .. } => self.turn(step, v),
            Prim::Collective(Collective::Rotate { axes, dim }) => self.rotation(step, (axes, *dim), v),
            Prim::Collective(_) if step.all().any(|o| self.is_rotated(o)) => {
                v.push("moves the shard of another device".into());
            }
            Prim::Map { expr, regs } if step.reads.iter().any(|o| self.terms[o.buf].is_some()) => {
                self.sum(step, (expr, regs), v);
            }
            Prim::Wait => {}
            Prim::Copy if step.reads.iter().any(|o| self.terms[o.buf].is_some()) => self.part(step, v),
            _ => self.needs_all(&step.reads, v),
        }
    }

    fn is_rotated(&self, o: &Operand) -> bool {
        self.plan.buffer(o.buf).extents.iter().any(|e| e.rotated > 0)
    }

    fn needs_all(&self, reads: &[Operand], v: &mut Vec<String>) {
        for o in reads.iter().filter(|o| self.terms[o.buf].is_some()) {
            v.push(format!("reads buffer {}, which lacks terms", o.buf.0));
        }
    }

    fn devices(&self, axes: &[Axis]) -> usize {
        axes.iter().map(|a| self.plan.mesh.size(*a)).product()
    }

    /// Notes the terms of a sum, if some are lacking.
    fn note(&mut self, buf: BufId, terms: Terms) {
        let all = terms.shards.len() == self.devices(&terms.axes);
        self.terms[buf] = (!all).then_some(terms);
    }

    fn rotation(&mut self, step: &Step, (axes, dim): (&[Axis], Dim), v: &mut Vec<String>) {
        let ([from], [to]) = (&step.reads[..], &step.writes[..]) else { return };
        for d in &from.dims {
            let (Some(a), Some(b)) = (self.along(from, *d), self.along(to, *d)) else { return };
            let turns = a.axes == axes
                && usize::from(b.rotated) == (usize::from(a.rotated) + 1) % self.devices(axes)
                && Extent { rotated: 0, ..a.clone() } == Extent { rotated: 0, ..b.clone() };
            if if *d == dim { !turns } else { a != b } {
                v.push("the result is not the shard of the device after it".into());
            }
        }
        self.terms[to.buf] = self.terms[from.buf].clone();
    }

    /// A part of a sum along dims that no ring has.
    fn part(&mut self, step: &Step, v: &mut Vec<String>) {
        let ([from], [to]) = (&step.reads[..], &step.writes[..]) else { return };
        let Some(terms) = self.terms[from.buf].clone() else { return };
        let extents = |o: &Operand| &self.plan.buffer(o.buf).extents;
        let apart = extents(from).iter().zip(extents(to)).any(|(a, b)| a != b && a.axes == terms.axes);
        if from.dims != to.dims || apart {
            return self.needs_all(&step.reads, v);
        }
        self.terms[to.buf] = Some(terms);
    }

    /// A sum of the same results for different shards, or of different results for the same ones: gradients of keys that are
    /// values too.
    fn sum(&mut self, step: &Step, (expr, regs): (&Expr, &[Reg]), v: &mut Vec<String>) {
        let ([a, b], [out]) = (&step.reads[..], &step.writes[..]) else {
            return self.needs_all(&step.reads, v);
        };
        let (Some(first), Some(second)) = (&self.terms[a.buf], &self.terms[b.buf]) else {
            return self.needs_all(&step.reads, v);
        };
        if first.axes != second.axes || !regs.iter().all(|r| adds_two(expr, *r)) {
            return self.needs_all(&step.reads, v);
        }
        let of_others = first.parts == second.parts && first.shards.is_disjoint(&second.shards);
        let of_keys =
            |t: &Terms| t.parts.iter().all(|p| matches!(p, AttentionPart::Key | AttentionPart::Value));
        let of_same = first.shards == second.shards
            && first.parts.is_disjoint(&second.parts)
            && of_keys(first)
            && of_keys(second);
        if !of_others && !of_same {
            v.push("counts the term of a shard twice".into());
        }
        let terms = Terms {
            axes: first.axes.clone(),
            parts: &first.parts | &second.parts,
            shards: &first.shards | &second.shards,
        };
        self.note(out.buf, terms);
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
            |axis: &Axis| step.reads.first().is_some_and(|q| self.plan.buffer(q.buf).is_split_over(*axis));
        if keys.axes.is_empty() || !keys.axes.iter().all(of_queries) {
            if keys.axes.iter().any(of_queries) || state.is_some() || keys.rotated > 0 {
                v.push("has a part of the keys that is the shard of no ring".into());
            }
            return self.needs_all(&step.reads, v);
        }
        let own = keys.rotated;
        let mut shards = SortedSet::from([own]);
        let others = step.reads.iter().filter(|o| !state.is_some_and(|s| s.contains(&o.buf)));
        self.needs_all(&others.cloned().collect::<Vec<_>>(), v);
        if let Some(state) = state {
            let before = state.map(|b| self.terms[b].clone());
            match &before[0] {
                Some(t) if t.axes == keys.axes && !t.shards.contains(&own) => shards.extend(&t.shards),
                _ => v.push("goes on with what has the term of its shard, or of all, already".into()),
            }
            let of = |terms: &Option<Terms>| terms.as_ref().map(|t| (t.axes.clone(), t.shards.clone()));
            if before.iter().any(|b| of(b) != of(&before[0])) {
                v.push("goes on with a maximum, a sum and values of different terms".into());
            }
        }
        let all = shards.len() == self.devices(&keys.axes);
        for (part, out) in parts.iter().zip(&step.writes) {
            if *part == AttentionPart::Result && !all {
                v.push("gives a result that lacks terms".into());
            }
            let keeps = matches!(part, AttentionPart::Key | AttentionPart::Value);
            if keeps && self.along(out, spec.key) != Some(&keys) {
                v.push("gives the gradient of another shard than it has".into());
            }
            let parts = SortedSet::from([*part]);
            self.note(out.buf, Terms { axes: keys.axes.clone(), parts, shards: shards.clone() });
        }
    }
}

/// Whether a register is the sum of the two operands, but for roundings.
pub(super) fn adds_two(expr: &Expr, reg: Reg) -> bool {
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
