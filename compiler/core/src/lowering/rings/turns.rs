//! The steps of one attention whose keys go around devices.

use super::collectives::Scattered;
use super::ring_errors::Gathers;
use meshwright_plan::expr::{BinaryFn, Scalar};
use meshwright_plan::{
    AttentionPart, Axis, BufId, Buffer, Collective, Dim, Expr, Operand, Plan, Prim, Provenance, Step,
};
use meshwright_sorted::SortedMap;

/// What goes around: the positions among the operands, each with its names of the dims, the device's own shard, and the cause of
/// the gather that it replaces.
pub(super) struct Shard {
    pub(super) positions: Vec<(usize, Vec<Dim>)>,
    pub(super) own: Operand,
    pub(super) origin: Provenance,
}

/// The gradient of what goes around: one result, or both of keys that are values too, by position with their dims; their sum, and
/// what scatters it.
pub(super) struct Gradient {
    pub(super) of: Vec<(usize, Vec<Dim>)>,
    pub(super) sum: Operand,
    pub(super) scattered: Scattered,
}

/// An attention whose keys and values go around.
pub(super) struct Ring {
    /// The axes that split the keys, major first.
    pub(super) axes: Vec<Axis>,
    pub(super) key: Dim,
    pub(super) shards: Vec<Shard>,
    /// What gathers gave.
    pub(super) gathered: Vec<BufId>,
    pub(super) gradients: Vec<Gradient>,
}

impl Ring {
    /// Whether an operand goes around.
    pub(super) fn takes(&self, position: usize) -> bool {
        self.shards.iter().any(|s| s.positions.iter().any(|p| p.0 == position))
    }

    /// The gathers that it replaces.
    pub(super) fn gathers(&self) -> Gathers {
        self.shards.iter().flat_map(|s| self.axes.iter().map(|a| (s.origin.id, *a))).collect()
    }

    /// Buffers that other steps give and that are no longer needed of these.
    pub(super) fn replaced(&self) -> impl Iterator<Item = BufId> + '_ {
        let of_gradient = |g: &Gradient| {
            let added = (g.of.len() > 1).then_some(g.sum.buf);
            g.scattered.passed.iter().copied().chain(added).collect::<Vec<_>>()
        };
        self.gathered.iter().copied().chain(self.gradients.iter().flat_map(of_gradient))
    }

    /// The steps in the place of an attention over all keys.
    pub(super) fn steps(&self, plan: &mut Plan, step: &Step) -> Vec<Step> {
        let Prim::Attention { parts, .. } = &step.prim else { return vec![step.clone()] };
        let gradient = parts.iter().any(|p| p.is_gradient());
        let devices = self.axes.iter().map(|a| plan.mesh.size(*a)).product::<usize>() as u16;
        let order: Vec<u16> = match gradient {
            true => (1..devices).chain([0]).collect(),
            false => (0..devices).collect(),
        };
        let mut turns = Turns { ring: self, plan, step, out: Vec::new(), sums: SortedMap::new() };
        let own: Vec<Operand> = self.shards.iter().map(|s| s.own.clone()).collect();
        let mut held = if gradient { turns.sent_on(&own, 1) } else { own.clone() };
        let mut state: Option<Vec<Operand>> = None;
        for (n, by) in order.iter().enumerate() {
            let next = order.get(n + 1).copied();
            let here = if *by == 0 { own.clone() } else { held.clone() };
            if let Some(next) = next.filter(|next| *next > 0) {
                held = turns.sent_on(&held, next);
            }
            let reads = turns.operands(&here, *by);
            if gradient {
                turns.backward(reads, *by, next);
            } else {
                state = Some(turns.forward(reads, state, next.is_none()));
            }
        }
        turns.out
    }
}

/// The steps of a ring as they are made.
struct Turns<'a> {
    ring: &'a Ring,
    plan: &'a mut Plan,
    step: &'a Step,
    out: Vec<Step>,
    /// Of each gradient, by the position of its first result, the sum of the terms so far: of queries on this device, of keys and
    /// values where the shard is next.
    sums: SortedMap<usize, Operand>,
}

impl Turns<'_> {
    /// One more buffer.
    fn buffer(&mut self, like: BufId, change: impl FnOnce(&mut Buffer)) -> BufId {
        let mut buffer = self.plan.buffer(like).clone();
        change(&mut buffer);
        self.plan.buffers.push(buffer);
        BufId(self.plan.buffers.len() as u32 - 1)
    }

    /// A buffer like another one, of the shard of the device that is `by` places after this one.
    fn shard(&mut self, like: &Operand, by: u16) -> Operand {
        let Ring { axes, key, .. } = self.ring;
        let along = like.dims.iter().position(|d| d == key);
        let buf = self.buffer(like.buf, |b| {
            if let Some(extent) = along.and_then(|k| b.extents.get_mut(k)) {
                extent.axes.clone_from(axes);
                extent.rotated = by;
            }
        });
        Operand { buf, dims: like.dims.clone() }
    }

    /// Adds a step; what its new results are partial over follows from it.
    fn push(&mut self, prim: Prim, reads: Vec<Operand>, writes: Vec<Operand>, origin: Vec<Provenance>) {
        let step = Step { phase: self.step.phase, origin, ..Step::new(prim, reads, writes) };
        let inferred = step.partial(self.plan).unwrap_or_default();
        for (o, partial) in step.writes.iter().zip(inferred) {
            self.plan.buffers[o.buf.0 as usize].partial = partial;
        }
        self.out.push(step);
    }

    fn rotate(&mut self, from: &Operand, by: u16, origin: &Provenance) -> Operand {
        let (axes, dim) = (self.ring.axes.clone(), self.ring.key);
        let to = self.shard(from, by);
        let over: Vec<String> = axes.iter().map(|a| format!("`{}`", self.plan.mesh.name(*a))).collect();
        let because = format!("`{}` goes around {}", self.plan.dims.name(dim), over.join(", "));
        let prim = Prim::Collective(Collective::Rotate { axes, dim });
        let origin = vec![Provenance { because: because.into(), ..origin.clone() }];
        let step = Step::new(prim, vec![from.clone()], vec![to.clone()]);
        self.out.push(Step { phase: self.step.phase, origin, ..step });
        to
    }

    /// Keys and values of the device after that whose shards are here.
    fn sent_on(&mut self, held: &[Operand], by: u16) -> Vec<Operand> {
        let ring = self.ring;
        held.iter().zip(&ring.shards).map(|(o, shard)| self.rotate(o, by, &shard.origin)).collect()
    }

    /// The operands of a turn: those besides queries, keys and values are cut.
    fn operands(&mut self, shards: &[Operand], by: u16) -> Vec<Operand> {
        let mut reads = self.step.reads.clone();
        for (i, read) in reads.iter_mut().enumerate() {
            let found = self.ring.shards.iter().zip(shards);
            let mut found = found.flat_map(|(s, held)| s.positions.iter().map(move |p| (p, held)));
            if let Some(((_, dims), held)) = found.find(|((p, _), _)| *p == i) {
                *read = Operand { buf: held.buf, dims: dims.clone() };
            } else if read.dims.contains(&self.ring.key) {
                let part = self.shard(read, by);
                let whole = std::mem::replace(read, part.clone());
                let origin = self.step.origin.first().cloned().into_iter().collect();
                self.push(Prim::Copy, vec![whole], vec![part], origin);
            }
        }
        reads
    }

    /// A turn of the forward pass; gives the maximum, the sum and the values.
    fn forward(&mut self, mut reads: Vec<Operand>, state: Option<Vec<Operand>>, last: bool) -> Vec<Operand> {
        let Prim::Attention { spec, parts } = &self.step.prim else { return Vec::new() };
        let (mut spec, mut parts) = (spec.clone(), parts.clone());
        spec.continues = state.is_some();
        reads.extend(state.into_iter().flatten());
        let mut writes = self.step.writes.clone();
        if !last {
            for o in &mut writes {
                o.buf = self.buffer(o.buf, |b| b.dtype = b.dtype.wide());
            }
            parts = vec![AttentionPart::Max, AttentionPart::Sum, AttentionPart::Values];
        }
        self.push(Prim::Attention { spec, parts }, reads, writes.clone(), self.step.origin.clone());
        writes
    }

    /// A turn of the backward pass, and what it adds to the gradients.
    fn backward(&mut self, reads: Vec<Operand>, by: u16, next: Option<u16>) {
        let ring = self.ring;
        let goes = |i: usize| ring.gradients.iter().any(|g| g.of.iter().any(|(j, _)| *j == i));
        let mut terms = self.step.writes.clone();
        for (i, term) in terms.iter_mut().enumerate() {
            *term = match goes(i) {
                true => self.shard(term, by),
                false => Operand { buf: self.buffer(term.buf, |b| b.dtype = b.dtype.wide()), ..term.clone() },
            };
        }
        self.push(self.step.prim.clone(), reads, terms.clone(), self.step.origin.clone());
        for (i, term) in terms.iter().enumerate().filter(|(i, _)| !goes(*i)) {
            let to = next.is_none().then(|| self.step.writes[i].clone());
            let sum = self.summed(i, term.clone(), to);
            self.sums.insert(i, sum);
        }
        for Gradient { of, sum, scattered } in &ring.gradients {
            let named = |(i, dims): &(usize, Vec<Dim>)| Operand { buf: terms[*i].buf, dims: dims.clone() };
            let term = match &of[..] {
                [one, other] => {
                    let both = self.shard(sum, by);
                    self.add([named(one), named(other)], both.clone());
                    both
                }
                _ => named(&of[0]),
            };
            let term = self.part(term, &scattered.sum, by);
            let own = (next.is_none() && !scattered.whole)
                .then(|| Operand { buf: scattered.sum.buf, dims: sum.dims.clone() });
            let mut sum = self.summed(of[0].0, term, own);
            match next {
                Some(next) => sum = self.rotate(&sum, next, &scattered.origin),
                None if scattered.whole => self.gather(&sum, scattered),
                None => {}
            }
            self.sums.insert(of[0].0, sum);
        }
    }

    /// The part of a term that a device stores, if that is less than all of the dims besides keys.
    fn part(&mut self, term: Operand, stored: &Operand, by: u16) -> Operand {
        let extents = |o: &Operand| self.plan.buffer(o.buf).extents.clone();
        let along = term.dims.iter().position(|d| *d == self.ring.key);
        let of = extents(&term).into_iter().zip(extents(stored)).enumerate();
        if of.into_iter().all(|(i, (a, b))| a == b || Some(i) == along) {
            return term;
        }
        let part = self.shard(&Operand { buf: stored.buf, dims: term.dims.clone() }, by);
        let origin = self.step.origin.first().cloned().into_iter().collect();
        self.push(Prim::Copy, vec![term], vec![part.clone()], origin);
        part
    }

    /// A term and what came before it, in a buffer of its own if none is given.
    fn summed(&mut self, gradient: usize, term: Operand, to: Option<Operand>) -> Operand {
        let Some(before) = self.sums.remove(&gradient) else { return term };
        let to = to.unwrap_or_else(|| Operand { buf: self.buffer(term.buf, |_| {}), ..term.clone() });
        self.add([before, term], to.clone());
        to
    }

    /// All of a sum, from its shards: an axis after the other, the last one first.
    fn gather(&mut self, own: &Operand, to: &Scattered) {
        let mut from = Operand { buf: own.buf, dims: to.sum.dims.clone() };
        let Some(along) = own.dims.iter().position(|d| *d == self.ring.key) else { return };
        let dim = from.dims[along];
        for (i, axis) in self.ring.axes.iter().enumerate().rev() {
            let buf = match i {
                0 => to.sum.buf,
                _ => self.buffer(from.buf, |b| b.extents[along].axes.truncate(i)),
            };
            let joined = Operand { buf, dims: from.dims.clone() };
            let because = format!("`{}` is used whole", self.plan.dims.name(dim));
            let prim = Prim::Collective(Collective::AllGather { axis: *axis, dims: vec![dim] });
            let origin = vec![Provenance { because: because.into(), ..to.origin.clone() }];
            self.push(prim, vec![from], vec![joined.clone()], origin);
            from = joined;
        }
    }

    fn add(&mut self, terms: [Operand; 2], to: Operand) {
        let dtype = |o: &Operand| self.plan.buffer(o.buf).dtype;
        let (mut expr, loads) = Expr::of_operands(terms.iter().map(dtype));
        let wide = dtype(&to).wide();
        let read = [expr.cast(loads[0], wide), expr.cast(loads[1], wide)];
        let sum = expr.push(Scalar::Binary(BinaryFn::Add, read[0], read[1]), wide);
        let reg = expr.cast(sum, dtype(&to));
        let origin = self.step.origin.first().cloned().into_iter().collect();
        self.push(Prim::Map { expr, regs: vec![reg] }, terms.to_vec(), vec![to], origin);
    }
}
