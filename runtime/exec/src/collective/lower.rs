//! Collectives between tensors of a device: operations of the graph pack what is sent and unpack what is received; the
//! transport sees flat memory.
//!
//! Where pairs of value and index are stored in two parts, no transport folds them: all of them are gathered, and each device
//! folds what it got.

use super::calls::{CallPiece, TransportCall};
use super::halo::Halo;
use super::pack::{Blocked, PackedBlock, StridedView, in_turn};
use super::{Blocks, CollectiveShape, Prepared};
use crate::backend::Backend;
use crate::engine::context::Local;
use crate::engine::graph::{TensorSlot, Val};
use crate::engine::lowering::{Lowering, LoweringError, Plane, stored_as, stored_shape};
use meshwright_comm::Layout;
use meshwright_plan::{CollectiveKind, DType, Monoid};
use std::ops::Range;
use std::sync::Arc;

/// How what was received becomes a buffer.
enum Unpack {
    /// The blocks of a dim, from their places among `elements` that were received.
    Blocks { axis: usize, blocks: Vec<PackedBlock>, from: Plane, elements: usize, to: Plane, local: Local },
    /// What came from others between what the device has itself of the operand.
    Halo {
        halo: Box<Halo>,
        axis: usize,
        from: Option<Plane>,
        own: Option<(Plane, Local)>,
        to: Plane,
        local: Local,
    },
    /// Values and indices of pairs from each member, to be folded; the shape is that of the result.
    Fold { greatest: bool, members: usize, from: Vec<Plane>, to: Vec<Plane>, local: Local },
}

/// A buffer of which ranges of an axis are sent or received.
struct Sliced<'x> {
    plane: Plane,
    local: &'x Local,
    axis: usize,
    ranges: Vec<Range<usize>>,
}

impl Sliced<'_> {
    fn view(&self) -> StridedView {
        StridedView::new(&self.local.shape, self.axis)
    }

    /// Elements of a block.
    fn block(&self, k: usize) -> usize {
        self.ranges.get(k).map_or(0, |r| self.view().block(r.len()))
    }

    fn elements(&self) -> usize {
        (0..self.ranges.len()).map(|k| self.block(k)).sum()
    }
}

/// The only range of what is not sliced.
fn whole(local: &Local, axis: usize) -> Vec<Range<usize>> {
    std::iter::once(0..local.shape[axis]).collect()
}

/// What is left to do when a collective has ended.
pub(crate) struct Arrival {
    unpack: Vec<Unpack>,
    /// What the unpacking reads, of the collective's own, and nobody after it.
    pub(crate) ending: Vec<TensorSlot>,
    /// Buffers that the unpacking reads.
    pub(crate) reads: Vec<TensorSlot>,
}

/// Records what packs a collective's operands; gives the calls to make then, and what is to be done at their end.
pub(crate) fn pack<B: Backend>(
    lowering: &mut Lowering<'_, B::Kernel>,
    prepared: &Prepared,
) -> Result<(Vec<TransportCall>, Arrival), LoweringError> {
    let arrival = Arrival { unpack: vec![], ending: vec![], reads: vec![] };
    let mut packing = Packing::<B> { lowering, prepared, calls: vec![], arrival };
    match (&prepared.shape, prepared.from.as_slice(), prepared.to.as_slice()) {
        (CollectiveShape::AllReduce(monoid), ..) => packing.all_reduce(*monoid),
        (CollectiveShape::ReduceScatter(monoid, blocks), [from], [to]) => {
            packing.reduce_scatter(*monoid, &blocks[0], from, to)
        }
        (CollectiveShape::ReduceScatter(monoid, blocks), from, to) => {
            let sliced = packing.slices(from, |k, _| (blocks[k].axis, blocks[k].ranges.clone()))?;
            let kept = packing.slices(to, |k, local| (blocks[k].axis, whole(local, blocks[k].axis)))?;
            packing.bucket(CollectiveKind::ReduceScatter, Some(*monoid), sliced, kept);
        }
        (CollectiveShape::AllGather(blocks), from, to) if blocks.len() > 1 => {
            let sent = packing.slices(from, |k, local| (blocks[k].axis, whole(local, blocks[k].axis)))?;
            let joined = packing.slices(to, |k, _| (blocks[k].axis, blocks[k].ranges.clone()))?;
            packing.bucket(CollectiveKind::AllGather, None, sent, joined);
        }
        (shape, [from], [to]) => {
            let lowering = &packing.lowering;
            let planes = [from, to].map(|l| lowering.planes(l.buf, l.dtype));
            let [sources, targets] = planes;
            for (source, target) in sources.into_iter().zip(targets) {
                packing.exchange(shape, (source, from), (target, to));
            }
        }
        _ => return Err(LoweringError::Plan("a collective of nothing".into())),
    }
    Ok((packing.calls, packing.arrival))
}

/// The packing of one collective.
struct Packing<'l, 'a, B: Backend> {
    lowering: &'l mut Lowering<'a, B::Kernel>,
    prepared: &'l Prepared,
    calls: Vec<TransportCall>,
    arrival: Arrival,
}

impl<B: Backend> Packing<'_, '_, B> {
    fn call(&mut self, kind: CollectiveKind, layouts: [Layout; 2], send: CallPiece, receive: CallPiece) {
        let (send, receive) = (vec![send], vec![receive]);
        self.calls.push(TransportCall { kind, monoid: None, layouts, send, receive });
    }

    /// A buffer as it is.
    fn whole(&self, plane: Plane, local: &Local, ends: bool) -> CallPiece {
        let slot = self.lowering.exists(local.elements()).then_some(plane.slot);
        CallPiece { slot, dtype: plane.dtype, shape: local.shape.clone(), ends }
    }

    /// Blocks of a buffer, packed where they do not lie one after the other.
    fn blocks(&mut self, plane: Plane, local: &Local, blocks: &Blocks) -> CallPiece {
        if blocks.view.is_contiguous() || local.elements() == 0 {
            return self.whole(plane, local, self.prepared.ends[0]);
        }
        self.packed(&[Sliced { plane, local, axis: blocks.axis, ranges: blocks.ranges.clone() }])
    }

    /// Blocks of some buffers of one dtype, in turn; there is a block with elements.
    fn packed(&mut self, slices: &[Sliced<'_>]) -> CallPiece {
        let mut arrays = vec![];
        for Sliced { plane, local, axis, ranges } in slices.iter().filter(|c| c.local.elements() > 0) {
            let val = self.lowering.read_plane(local, *plane);
            arrays.push(Blocked { val, local, axis: *axis, ranges: ranges.clone() });
        }
        let packed = B::pack(self.lowering, &arrays);
        let slot = self.lowering.graph.fresh();
        self.lowering.graph.store(packed, slot);
        let shape = vec![slices.iter().map(Sliced::elements).sum()];
        CallPiece { slot: Some(slot), dtype: slices[0].plane.dtype, shape, ends: true }
    }

    /// How a bucket's buffers are sliced, each along an axis into ranges.
    fn slices<'x>(
        &self,
        locals: &'x [Local],
        sliced: impl Fn(usize, &Local) -> (usize, Vec<Range<usize>>),
    ) -> Result<Vec<Sliced<'x>>, LoweringError> {
        let one = |(k, local): (usize, &'x Local)| {
            let (axis, ranges) = sliced(k, local);
            match self.lowering.planes(local.buf, local.dtype)[..] {
                [plane] => Ok(Sliced { plane, local, axis, ranges }),
                _ => Err(LoweringError::Plan("pairs are in a bucket".into())),
            }
        };
        locals.iter().enumerate().map(one).collect()
    }

    /// Gathers or scatters several buffers at once: of each member the blocks of all of them, one after the other.
    fn bucket(
        &mut self,
        kind: CollectiveKind,
        monoid: Option<Monoid>,
        send: Vec<Sliced<'_>>,
        receive: Vec<Sliced<'_>>,
    ) {
        let gathers = kind == CollectiveKind::AllGather;
        let members = self.prepared.group.size();
        let layouts = [(&send, !gathers), (&receive, gathers)].map(|(slices, pieces)| match pieces {
            true => Layout::Pieces((0..members).map(|m| slices.iter().map(|c| c.block(m)).sum()).collect()),
            false => Layout::Whole,
        });
        let dtype = receive[0].plane.dtype;
        let sent = match send.iter().map(Sliced::elements).sum() {
            0usize => CallPiece::none(dtype),
            _ => self.packed(&send),
        };
        let views: Vec<_> = receive.iter().map(|c| (c.view(), c.ranges.as_slice())).collect();
        let (blocks, elements) = in_turn(&views);
        let (from, received) = self.scratch(dtype, elements);
        for (Sliced { plane, local, axis, .. }, blocks) in receive.iter().zip(blocks) {
            if self.lowering.exists(local.elements()) {
                let (axis, to, local) = (*axis, *plane, (*local).clone());
                self.arrival.unpack.push(Unpack::Blocks { axis, blocks, from, elements, to, local });
            }
        }
        let (send, receive) = (vec![sent], vec![received]);
        self.calls.push(TransportCall { kind, monoid, layouts, send, receive });
    }

    /// Memory for so many elements that are received and then unpacked.
    fn scratch(&mut self, dtype: DType, elements: usize) -> (Plane, CallPiece) {
        let slot = self.lowering.graph.fresh();
        let exists = self.lowering.exists(elements);
        if exists {
            self.arrival.ending.push(slot);
        }
        let piece = CallPiece { slot: exists.then_some(slot), dtype, shape: vec![elements], ends: true };
        (Plane { slot, dtype }, piece)
    }

    /// Where a buffer is received: in its place where the blocks lie there one after the other.
    fn landing(&mut self, plane: Plane, local: &Local, blocks: &Blocks) -> CallPiece {
        if blocks.view.is_contiguous() || local.elements() == 0 {
            return self.whole(plane, local, false);
        }
        let (from, piece) = self.scratch(plane.dtype, local.elements());
        let (places, elements) = in_turn(&[(blocks.view, &blocks.ranges)]);
        let (axis, blocks, local) = (blocks.axis, places.into_iter().flatten().collect(), local.clone());
        self.arrival.unpack.push(Unpack::Blocks { axis, blocks, from, elements, to: plane, local });
        piece
    }

    /// Gathers and exchanges, which compute nothing.
    fn exchange(
        &mut self,
        shape: &CollectiveShape,
        (source, from): (Plane, &Local),
        (target, to): (Plane, &Local),
    ) {
        match shape {
            CollectiveShape::AllReduce(_) | CollectiveShape::ReduceScatter(..) => {}
            CollectiveShape::AllGather(blocks) => {
                let send = self.whole(source, from, self.prepared.ends[0]);
                let receive = self.landing(target, to, &blocks[0]);
                let layouts = [Layout::Whole, Layout::Pieces(blocks[0].counts.clone())];
                self.call(CollectiveKind::AllGather, layouts, send, receive);
            }
            CollectiveShape::AllToAll { send: sliced, receive: joined } => {
                let send = self.blocks(source, from, sliced);
                let receive = self.landing(target, to, joined);
                let layouts = [sliced, joined].map(|blocks| Layout::Pieces(blocks.counts.clone()));
                self.call(CollectiveKind::AllToAll, layouts, send, receive);
            }
            CollectiveShape::Permute(halo, axis) => {
                let send = match halo.send.elements {
                    0 => CallPiece::none(source.dtype),
                    _ => {
                        let ranges = halo.send.blocks.iter().map(|b| b.range.clone()).collect();
                        self.packed(&[Sliced { plane: source, local: from, axis: *axis, ranges }])
                    }
                };
                let (received, receive) = match halo.receive.elements {
                    0 => (None, CallPiece::none(target.dtype)),
                    n => {
                        let (plane, piece) = self.scratch(target.dtype, n);
                        (Some(plane), piece)
                    }
                };
                let own = halo.own.is_some().then(|| (source, from.clone()));
                self.arrival.reads.extend(own.as_ref().map(|o| o.0.slot));
                let (to, local) = (target, to.clone());
                let unpack = Unpack::Halo {
                    halo: Box::new(halo.clone()),
                    axis: *axis,
                    from: received,
                    own,
                    to,
                    local,
                };
                self.arrival.unpack.push(unpack);
                let layouts = [&halo.send, &halo.receive].map(|side| Layout::Parts(side.parts.clone()));
                self.call(CollectiveKind::Permute, layouts, send, receive);
            }
        }
    }

    fn reduce_scatter(&mut self, monoid: Monoid, blocks: &Blocks, from: &Local, to: &Local) {
        let planes = [from, to].map(|l| self.lowering.planes(l.buf, l.dtype));
        let [sources, targets] = planes;
        if let ([source], [target]) = (&sources[..], &targets[..]) {
            let send = self.blocks(*source, from, blocks);
            let receive = self.whole(*target, to, false);
            let (send, receive) = (vec![send], vec![receive]);
            let layouts = [Layout::Pieces(blocks.counts.clone()), Layout::Whole];
            let (kind, monoid) = (CollectiveKind::ReduceScatter, Some(monoid));
            self.calls.push(TransportCall { kind, monoid, layouts, send, receive });
            return;
        }
        // Each member's part of this device's block, to be folded here.
        let members = blocks.counts.len();
        let mut received = vec![];
        for source in sources {
            let send = self.blocks(source, from, blocks);
            let (plane, receive) = self.scratch(source.dtype, to.elements() * members);
            received.push(plane);
            let own: Arc<[usize]> = vec![to.elements(); members].into();
            let layouts = [blocks.counts.clone(), own].map(Layout::Pieces);
            self.call(CollectiveKind::AllToAll, layouts, send, receive);
        }
        self.fold(monoid, members, received, targets, to);
    }

    fn all_reduce(&mut self, monoid: Monoid) {
        let mut bucket = TransportCall {
            kind: CollectiveKind::AllReduce,
            monoid: Some(monoid),
            layouts: [Layout::Whole, Layout::Whole],
            send: vec![],
            receive: vec![],
        };
        let members = self.prepared.group.size();
        for ((from, to), ends) in self.prepared.from.iter().zip(&self.prepared.to).zip(&self.prepared.ends) {
            let planes = [from, to].map(|l| self.lowering.planes(l.buf, l.dtype));
            let [sources, targets] = planes;
            if let ([source], [target]) = (&sources[..], &targets[..]) {
                bucket.send.push(self.whole(*source, from, *ends));
                bucket.receive.push(self.whole(*target, to, false));
                continue;
            }
            let mut received = vec![];
            for source in sources {
                let send = self.whole(source, from, *ends);
                let (plane, receive) = self.scratch(source.dtype, from.elements() * members);
                received.push(plane);
                let counts: Arc<[usize]> = vec![from.elements(); members].into();
                let layouts = [Layout::Whole, Layout::Pieces(counts)];
                self.call(CollectiveKind::AllGather, layouts, send, receive);
            }
            self.fold(monoid, members, received, targets, to);
        }
        if !bucket.send.is_empty() {
            self.calls.push(bucket);
        }
    }

    fn fold(&mut self, monoid: Monoid, members: usize, from: Vec<Plane>, to: Vec<Plane>, local: &Local) {
        if local.elements() > 0 {
            let greatest = monoid == Monoid::ArgMax;
            self.arrival.unpack.push(Unpack::Fold { greatest, members, from, to, local: local.clone() });
        }
    }
}

/// Records what turns received memory into buffers.
pub(crate) fn unpack<B: Backend>(lowering: &mut Lowering<'_, B::Kernel>, arrival: &Arrival) {
    for unpack in &arrival.unpack {
        match unpack {
            Unpack::Blocks { axis, blocks, from, elements, to, local } => {
                let packed = read_flat(lowering, *from, *elements);
                let val = B::unpack(lowering, packed, local, *axis, blocks);
                lowering.graph.store(val, to.slot);
            }
            Unpack::Halo { .. } if !lowering.exists(unpack.elements()) => {}
            Unpack::Halo { halo, axis, from, own, to, local } => {
                let received = from.map(|f| read_flat(lowering, f, halo.receive.elements));
                let own = own.as_ref().map(|(plane, l)| (lowering.read_plane(l, *plane), l));
                let val = B::join_halo(lowering, halo, received, own, local, *axis);
                lowering.graph.store(val, to.slot);
            }
            Unpack::Fold { greatest, members, from, to, local } => {
                let all = from.iter().map(|f| read_flat(lowering, *f, local.elements() * members));
                let all: Vec<Val> = all.collect();
                let best = lowering.graph.fold_pairs(*greatest, *members, [all[0], all[1]]);
                for (val, to) in best.into_iter().zip(to) {
                    let val = lowering.graph.reshape(val, &stored_shape(to.dtype, &local.shape));
                    lowering.graph.store(val, to.slot);
                }
            }
        }
    }
}

impl Unpack {
    /// Elements of the result.
    fn elements(&self) -> usize {
        match self {
            Unpack::Blocks { local, .. } | Unpack::Halo { local, .. } | Unpack::Fold { local, .. } => {
                local.elements()
            }
        }
    }
}

fn read_flat<K>(lowering: &mut Lowering<'_, K>, plane: Plane, elements: usize) -> Val {
    let shape = stored_shape(plane.dtype, &[elements]);
    lowering.graph.read(plane.slot, &shape, stored_as(plane.dtype))
}
