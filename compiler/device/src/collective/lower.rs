//! Collectives between tensors of a device: operations of the graph pack the sent tensors and unpack the received ones;
//! the transport sees flat memory.
//!
//! If pairs of value and index are stored in two parts, the transport cannot fold them: all are gathered, and each
//! device folds them.

use super::blocked::Blocked;
use super::calls::{CallPiece, TransportCall};
use super::halo::Halo;
use super::pack::{PackedBlock, StridedView, in_turn};
use super::{Blocks, CollectiveShape, Prepared};
use crate::error::LoweringError;
use crate::lowering::graph::Val;
use crate::lowering::local::Local;
use crate::lowering::{Lowering, Plane};
use crate::slot::TensorSlot;
use crate::stored::{stored_as, stored_shape};
use meshwright_plan::{BufferLayout as Layout, CollectiveKind, DType, Monoid, Traffic};
use std::ops::Range;
use std::sync::Arc;

/// Steps from a received tensor to a buffer.
enum Unpack {
    /// The blocks of a dim, from their places among `elements` that were received.
    Blocks { axis: usize, blocks: Vec<PackedBlock>, from: Plane, elements: usize, to: Plane, local: Local },
    /// Received blocks around the device's own part of the operand.
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

/// A buffer with the ranges of an axis that are sent or received.
struct SplitBuffer<'x> {
    plane: Plane,
    local: &'x Local,
    axis: usize,
    ranges: Vec<Range<usize>>,
}

impl SplitBuffer<'_> {
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

/// The only range of an unsplit dim.
fn whole(local: &Local, axis: usize) -> Vec<Range<usize>> {
    std::iter::once(0..local.shape[axis]).collect()
}

/// Work after the end of a collective.
pub(crate) struct Arrival {
    unpack: Vec<Unpack>,
    /// Temporaries whose last consumer is the unpacking.
    pub ending: Vec<TensorSlot>,
    /// Buffers that the unpacking reads.
    pub reads: Vec<TensorSlot>,
}

/// Records the packing of a collective's operands; gives its calls, and the unpacking.
pub(crate) fn pack(
    lowering: &mut Lowering<'_>,
    prepared: &Prepared,
) -> Result<(Vec<TransportCall>, Arrival), LoweringError> {
    let arrival = Arrival { unpack: vec![], ending: vec![], reads: vec![] };
    let mut packing = Packing { lowering, prepared, calls: vec![], arrival };
    match &prepared.shape {
        CollectiveShape::Blocks { send, receive } if send.len().max(receive.len()) > 1 => {
            packing.bucket(send, receive)?;
        }
        CollectiveShape::Blocks { send, receive } => packing.each(send.first(), receive.first())?,
        CollectiveShape::Halo(halo, axis) => {
            for (from, to) in prepared.from.iter().zip(&prepared.to) {
                let [sources, targets] = packing.planes(from, to);
                for (source, target) in sources.into_iter().zip(targets) {
                    packing.halo(halo, *axis, (source, from), (target, to))?;
                }
            }
        }
    }
    Ok((packing.calls, packing.arrival))
}

/// The packing of one collective.
struct Packing<'l, 'a> {
    lowering: &'l mut Lowering<'a>,
    prepared: &'l Prepared,
    calls: Vec<TransportCall>,
    arrival: Arrival,
}

impl Packing<'_, '_> {
    /// A call of the collective whose members send and receive that.
    fn call(
        &mut self,
        monoid: Option<Monoid>,
        layouts: [Layout; 2],
        pieces: Vec<(CallPiece, CallPiece)>,
    ) -> Result<(), LoweringError> {
        let [send, receive] = layouts.each_ref().map(Layout::portion);
        let traffic =
            Traffic { send, receive, folds: monoid.is_some(), rooted: self.prepared.root.is_some() };
        let kind = CollectiveKind::of_traffic(traffic)
            .ok_or_else(|| LoweringError::Plan(format!("no collective has {traffic:?}")))?;
        let (send, receive) = pieces.into_iter().unzip();
        self.calls.push(TransportCall { kind, monoid, root: self.prepared.root, layouts, send, receive });
        Ok(())
    }

    fn planes(&self, from: &Local, to: &Local) -> [Vec<Plane>; 2] {
        [from, to].map(|l| self.lowering.planes(l.buf, l.dtype))
    }

    /// A buffer as it is.
    fn whole(&mut self, plane: Plane, local: &Local, ends: bool) -> CallPiece {
        let exists = self.lowering.exists(local.elements());
        let tensor = exists.then(|| self.lowering.graph.slots.insert(plane.slot));
        CallPiece { tensor, dtype: plane.dtype, shape: local.shape.clone(), ends }
    }

    /// Sent part of a buffer: all of it, or its blocks, packed unless they are contiguous.
    fn sent(&mut self, plane: Plane, local: &Local, blocks: Option<&Blocks>, ends: bool) -> CallPiece {
        match blocks.filter(|b| !b.view.is_contiguous() && local.elements() > 0) {
            Some(b) => self.packed(&[SplitBuffer { plane, local, axis: b.axis, ranges: b.ranges.clone() }]),
            None => self.whole(plane, local, ends),
        }
    }

    /// Blocks of some buffers of one dtype, in turn; there is a block with elements.
    fn packed(&mut self, cuts: &[SplitBuffer<'_>]) -> CallPiece {
        let mut arrays = vec![];
        for SplitBuffer { plane, local, axis, ranges } in cuts.iter().filter(|c| c.local.elements() > 0) {
            let val = self.lowering.read_plane(local, *plane);
            arrays.push(Blocked { val, local, axis: *axis, ranges: ranges.clone() });
        }
        let packed = self.lowering.pack(&arrays);
        let slot = self.lowering.graph.fresh();
        self.lowering.graph.store(packed, slot);
        let shape = vec![cuts.iter().map(SplitBuffer::elements).sum()];
        CallPiece {
            tensor: Some(self.lowering.graph.slots.insert(slot)),
            dtype: cuts[0].plane.dtype,
            shape,
            ends: true,
        }
    }

    /// Split of a bucket's buffers into their `blocks`; an unsplit buffer is one block, along the axis of its other
    /// end.
    fn cuts<'x>(
        &self,
        locals: &'x [Local],
        blocks: &[Blocks],
        others: &[Blocks],
    ) -> Result<Vec<SplitBuffer<'x>>, LoweringError> {
        let one = |(k, local): (usize, &'x Local)| {
            let (axis, ranges) = match (blocks.get(k), others.get(k)) {
                (Some(own), _) => (own.axis, own.ranges.clone()),
                (None, Some(other)) => (other.axis, whole(local, other.axis)),
                (None, None) => {
                    return Err(LoweringError::Plan("a bucket of fewer blocks than buffers".into()));
                }
            };
            match self.lowering.planes(local.buf, local.dtype)[..] {
                [plane] => Ok(SplitBuffer { plane, local, axis, ranges }),
                _ => Err(LoweringError::Plan("pairs are in a bucket".into())),
            }
        };
        locals.iter().enumerate().map(one).collect()
    }

    /// Gathers or scatters several buffers at once: of each member the blocks of all of them, one after the other.
    fn bucket(&mut self, send: &[Blocks], receive: &[Blocks]) -> Result<(), LoweringError> {
        let prepared = self.prepared;
        let cut = self.cuts(&prepared.from, send, receive)?;
        let joined = self.cuts(&prepared.to, receive, send)?;
        let members = prepared.group.size();
        let layouts = [(&cut, send), (&joined, receive)].map(|(cuts, blocks)| match blocks {
            [] => Layout::Whole,
            _ => Layout::Pieces((0..members).map(|m| cuts.iter().map(|c| c.block(m)).sum()).collect()),
        });
        let dtype = joined[0].plane.dtype;
        let sent = match cut.iter().map(SplitBuffer::elements).sum() {
            0usize => CallPiece::none(dtype),
            _ => self.packed(&cut),
        };
        let views: Vec<_> = joined.iter().map(|c| (c.view(), c.ranges.as_slice())).collect();
        let (blocks, elements) = in_turn(&views);
        let (from, received) = self.scratch(dtype, elements);
        for (SplitBuffer { plane, local, axis, .. }, blocks) in joined.iter().zip(blocks) {
            if self.lowering.exists(local.elements()) {
                let (axis, to, local) = (*axis, *plane, (*local).clone());
                self.arrival.unpack.push(Unpack::Blocks { axis, blocks, from, elements, to, local });
            }
        }
        self.call(prepared.monoid, layouts, vec![(sent, received)])
    }

    /// A temporary for received elements, which are unpacked later.
    fn scratch(&mut self, dtype: DType, elements: usize) -> (Plane, CallPiece) {
        let slot = self.lowering.graph.fresh();
        let exists = self.lowering.exists(elements);
        if exists {
            self.arrival.ending.push(slot);
        }
        let tensor = exists.then(|| self.lowering.graph.slots.insert(slot));
        let piece = CallPiece { tensor, dtype, shape: vec![elements], ends: false };
        (Plane { slot, dtype }, piece)
    }

    /// Tensor that receives a buffer: the buffer itself, if it arrives whole or its blocks are contiguous.
    fn received(&mut self, plane: Plane, local: &Local, blocks: Option<&Blocks>) -> CallPiece {
        let scattered = blocks.filter(|b| !b.view.is_contiguous() && local.elements() > 0);
        let Some(blocks) = scattered else { return self.whole(plane, local, false) };
        let (from, piece) = self.scratch(plane.dtype, local.elements());
        let (places, elements) = in_turn(&[(blocks.view, &blocks.ranges)]);
        let (axis, blocks, local) = (blocks.axis, places.into_iter().flatten().collect(), local.clone());
        self.arrival.unpack.push(Unpack::Blocks { axis, blocks, from, elements, to: plane, local });
        piece
    }

    /// Collectives of whole buffers, any number in one call, or of the blocks of one buffer.
    fn each(&mut self, send: Option<&Blocks>, receive: Option<&Blocks>) -> Result<(), LoweringError> {
        let prepared = self.prepared;
        let layouts = [send, receive].map(|b| b.map_or(Layout::Whole, |b| Layout::Pieces(b.counts.clone())));
        let mut pieces = vec![];
        for ((from, to), ends) in prepared.from.iter().zip(&prepared.to).zip(&prepared.ends) {
            let [sources, targets] = self.planes(from, to);
            match prepared.monoid {
                Some(monoid) if sources.len() > 1 => {
                    let gathered = self.gather_planes(&layouts[0], send, sources, (from, to, *ends))?;
                    self.fold(monoid, gathered, targets, to);
                }
                _ => {
                    for (source, target) in sources.into_iter().zip(targets) {
                        let sent = self.sent(source, from, send, *ends);
                        pieces.push((sent, self.received(target, to, receive)));
                    }
                }
            }
        }
        // A bucket goes in one call.
        let whole = send.is_none() && receive.is_none();
        let calls = if whole { vec![pieces] } else { pieces.into_iter().map(|p| vec![p]).collect() };
        calls
            .into_iter()
            .filter(|pieces| !pieces.is_empty())
            .try_for_each(|pieces| self.call(prepared.monoid, layouts.clone(), pieces))
    }

    /// Each member's operand of this device's fold.
    fn gather_planes(
        &mut self,
        layout: &Layout,
        send: Option<&Blocks>,
        sources: Vec<Plane>,
        (from, to, ends): (&Local, &Local, bool),
    ) -> Result<Vec<Plane>, LoweringError> {
        let members = self.prepared.group.size();
        let counts: Arc<[usize]> = vec![to.elements(); members].into();
        let mut gathered = vec![];
        for source in sources {
            let sent = self.sent(source, from, send, ends);
            let (plane, received) = self.scratch(source.dtype, to.elements() * members);
            gathered.push(plane);
            self.call(None, [layout.clone(), Layout::Pieces(counts.clone())], vec![(sent, received)])?;
        }
        Ok(gathered)
    }

    /// Parts of the needed interval that other devices hold.
    fn halo(
        &mut self,
        halo: &Halo,
        axis: usize,
        (source, from): (Plane, &Local),
        (target, to): (Plane, &Local),
    ) -> Result<(), LoweringError> {
        let send = match halo.send.elements {
            0 => CallPiece::none(source.dtype),
            _ => {
                let ranges = halo.send.blocks.iter().map(|b| b.range.clone()).collect();
                self.packed(&[SplitBuffer { plane: source, local: from, axis, ranges }])
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
        self.arrival.unpack.push(Unpack::Halo {
            halo: Box::new(halo.clone()),
            axis,
            from: received,
            own,
            to,
            local,
        });
        let layouts = [&halo.send, &halo.receive].map(|side| Layout::Parts(side.parts.clone()));
        self.call(None, layouts, vec![(send, receive)])
    }

    fn fold(&mut self, monoid: Monoid, from: Vec<Plane>, to: Vec<Plane>, local: &Local) {
        if local.elements() > 0 {
            let (greatest, members) = (monoid == Monoid::ArgMax, self.prepared.group.size());
            self.arrival.unpack.push(Unpack::Fold { greatest, members, from, to, local: local.clone() });
        }
    }
}

/// Records the unpacking of received memory into buffers.
pub(crate) fn unpack(lowering: &mut Lowering<'_>, arrival: &Arrival) {
    for unpack in &arrival.unpack {
        match unpack {
            Unpack::Blocks { axis, blocks, from, elements, to, local } => {
                let packed = read_flat(lowering, *from, *elements);
                let val = lowering.unpack(packed, local, *axis, blocks);
                lowering.graph.store(val, to.slot);
            }
            Unpack::Halo { .. } if !lowering.exists(unpack.elements()) => {}
            Unpack::Halo { halo, axis, from, own, to, local } => {
                let received = from.map(|f| read_flat(lowering, f, halo.receive.elements));
                let own = own.as_ref().map(|(plane, l)| (lowering.read_plane(l, *plane), l));
                let val = lowering.join_halo(halo, received, own, local, *axis);
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

fn read_flat(lowering: &mut Lowering<'_>, plane: Plane, elements: usize) -> Val {
    let shape = stored_shape(plane.dtype, &[elements]);
    lowering.graph.read(plane.slot, &shape, stored_as(plane.dtype))
}
