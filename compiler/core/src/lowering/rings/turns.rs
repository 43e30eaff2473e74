//! The steps of one attention whose keys go around the devices of an axis.

use meshwright_plan::expr::{BinaryFn, Scalar};
use meshwright_plan::{
    AttentionPart, Axis, BufId, Buffer, Collective, Dim, Expr, Operand, Plan, Prim, Provenance, Step,
};
use std::collections::BTreeMap;

/// What goes around: the position among the operands, the device's own shard, and the cause of the gather that it replaces.
pub(super) struct Shard {
    pub(super) position: usize,
    pub(super) own: Operand,
    pub(super) origin: Provenance,
}

/// An attention whose keys and values go around.
pub(super) struct Ring {
    pub(super) axis: Axis,
    pub(super) key: Dim,
    pub(super) shards: Vec<Shard>,
    /// What gathers gave.
    pub(super) gathered: Vec<BufId>,
    /// By positions of gradients among the results, the buffer of the device's own shard of their sum, and the cause of the reduce-scatter.
    pub(super) scattered: BTreeMap<usize, (BufId, Provenance)>,
}

impl Ring {
    /// Buffers that collectives give and that are no longer needed of these.
    pub(super) fn replaced(&self) -> impl Iterator<Item = BufId> + '_ {
        self.gathered.iter().copied().chain(self.scattered.values().map(|s| s.0))
    }

    /// The steps in the place of an attention over all keys.
    pub(super) fn steps(&self, plan: &mut Plan, step: &Step) -> Vec<Step> {
        let Prim::Attention { parts, .. } = &step.prim else { return vec![step.clone()] };
        let gradient = parts.iter().any(|p| p.is_gradient());
        let devices = plan.mesh.size(self.axis) as u16;
        let order: Vec<u16> = match gradient {
            true => (1..devices).chain([0]).collect(),
            false => (0..devices).collect(),
        };
        let mut turns =
            Turns { ring: self, plan, step, out: Vec::new(), sums: vec![None; step.writes.len()] };
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
    /// Of each gradient, the sum of the terms so far: of queries on this device, of keys and values where the shard is next.
    sums: Vec<Option<Operand>>,
}

impl Turns<'_> {
    /// One more buffer.
    fn buffer(&mut self, like: BufId, change: impl FnOnce(&mut Buffer)) -> BufId {
        let mut buffer = self.plan.buffer(like).clone();
        change(&mut buffer);
        self.plan.buffers.push(buffer);
        BufId(self.plan.buffers.len() as u32 - 1)
    }

    /// A buffer like another one, of the shard of the device that is so many places after this one.
    fn shard(&mut self, like: &Operand, by: u16) -> Operand {
        let Ring { axis, key, .. } = *self.ring;
        let along = like.dims.iter().position(|d| *d == key);
        let buf = self.buffer(like.buf, |b| {
            if let Some(extent) = along.and_then(|k| b.extents.get_mut(k)) {
                extent.axes = vec![axis];
                extent.rotated = (by > 0).then_some((axis, by));
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
        let Ring { axis, key, .. } = *self.ring;
        let to = self.shard(from, by);
        let (name, over) = (self.plan.dims.name(key), self.plan.mesh.name(axis));
        let because = format!("`{name}` goes around `{over}`");
        let prim = Prim::Collective(Collective::Rotate { axis, dim: key });
        let origin = vec![Provenance { because, ..origin.clone() }];
        let step = Step::new(prim, vec![from.clone()], vec![to.clone()]);
        self.out.push(Step { phase: self.step.phase, origin, ..step });
        to
    }

    /// Keys and values of the device after that whose shards are here.
    fn sent_on(&mut self, held: &[Operand], by: u16) -> Vec<Operand> {
        let ring = self.ring;
        held.iter().zip(&ring.shards).map(|(o, shard)| self.rotate(o, by, &shard.origin)).collect()
    }

    /// The operands of a turn: what is beside queries, keys and values is cut.
    fn operands(&mut self, shards: &[Operand], by: u16) -> Vec<Operand> {
        let mut reads = self.step.reads.clone();
        for (i, read) in reads.iter_mut().enumerate() {
            if let Some(k) = self.ring.shards.iter().position(|s| s.position == i) {
                *read = shards[k].clone();
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
        let mut terms = self.step.writes.clone();
        for (i, term) in terms.iter_mut().enumerate() {
            *term = match ring.scattered.contains_key(&i) {
                true => self.shard(term, by),
                false => Operand { buf: self.buffer(term.buf, |b| b.dtype = b.dtype.wide()), ..term.clone() },
            };
        }
        self.push(self.step.prim.clone(), reads, terms.clone(), self.step.origin.clone());
        for (i, term) in terms.into_iter().enumerate() {
            let scattered = ring.scattered.get(&i);
            let sum = match self.sums[i].take() {
                None => term,
                Some(before) => {
                    let to = match (next, scattered) {
                        (None, None) => self.step.writes[i].clone(),
                        (None, Some((out, _))) => Operand { buf: *out, ..term.clone() },
                        _ => Operand { buf: self.buffer(term.buf, |_| {}), ..term.clone() },
                    };
                    self.add([before, term], to.clone());
                    to
                }
            };
            self.sums[i] = match (next, scattered) {
                (Some(next), Some((_, origin))) => Some(self.rotate(&sum, next, origin)),
                _ => Some(sum),
            };
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
