//! Collectives between tensors of a device: what is sent is packed, and what is received unpacked, by the device's own
//! operations; the transport sees flat memory, of the host or of the device.
//!
//! Pairs of value and index are never folded by a transport: all of them are gathered, and each device folds what it got.

use super::emit::{Home, Val};
use super::lower::{Lower, extents, is_pair, stored, unsupported};
use super::ops::{Binary, Reduce, Unary};
use crate::collective::{Kind, Prepared};
use crate::local::Local;
use crate::own::Unprepared;
use burn_backend::DType as BurnType;
use meshwright_comm::{Buf, BufMut, Call, Part, Slot};
use meshwright_plan::{Collective, DType, Dim, Monoid};
use std::sync::Arc;

/// A tensor that a transport reads or writes.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// Where it is; nowhere if it has no elements.
    pub(crate) home: Option<Home>,
    /// What the transport sees.
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    /// Of what is sent, whether it ends there.
    pub(crate) ends: bool,
}

impl Piece {
    pub(crate) fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// What a transport is asked for.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    AllReduce(Monoid),
    AllGather(Arc<[usize]>),
    ReduceScatter(Monoid, Arc<[usize]>),
    AllToAll(Arc<[usize]>, Arc<[usize]>),
    Permute(Arc<[Part]>, Arc<[Part]>),
}

/// One call of a transport.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) ask: Ask,
    pub(crate) send: Vec<Piece>,
    pub(crate) receive: Vec<Piece>,
}

impl Request {
    /// The call on the memory of its pieces, in order.
    pub(crate) fn call<'x>(&self, send: Vec<Buf<'x>>, receive: Vec<BufMut<'x>>) -> Call<'x> {
        let (mut send, mut receive) = (send.into_iter(), receive.into_iter());
        if let Ask::AllReduce(monoid) = self.ask {
            let bucket = send.zip(receive).map(|(i, o)| Slot::Apart(i, o)).collect();
            return Call::AllReduce { monoid, bucket };
        }
        let (Some(input), Some(output)) = (send.next(), receive.next()) else { return Call::Barrier };
        match &self.ask {
            Ask::AllReduce(_) => Call::Barrier,
            Ask::AllGather(counts) => Call::AllGather { input, counts: counts.clone(), output },
            Ask::ReduceScatter(monoid, counts) => {
                Call::ReduceScatter { monoid: *monoid, input, counts: counts.clone(), output }
            }
            Ask::AllToAll(send, receive) => {
                Call::AllToAll { input, send: send.clone(), output, receive: receive.clone() }
            }
            Ask::Permute(send, receive) => {
                Call::Permute { input, send: send.clone(), output, receive: receive.clone() }
            }
        }
    }
}

/// How what was received becomes a buffer.
enum Unpack {
    /// The pieces of a gathered or exchanged dim, one after the other.
    Blocks { local: Local, axis: usize, lengths: Vec<usize>, from: Home, to: Home },
    /// What came from others between what the device has itself.
    Halo { parts: Vec<(usize, usize, Source)>, from: Option<Home>, to: Home, local: Local, axis: usize },
    /// Values and indices of pairs from each member, to be folded; the shape is that of the result.
    Fold { greatest: bool, members: usize, from: [Home; 2], local: Local },
}

/// Of a halo: what was received, from an offset of the flat memory on, or a range of the device's own.
enum Source {
    Received(usize),
    Own(Val, std::ops::Range<usize>),
    /// Such a range, cut out.
    Kept(Home),
}

/// What is left to do when a collective has ended.
pub(crate) struct Arrival {
    unpack: Vec<Unpack>,
    /// What the unpacking reads and nobody after it.
    pub(crate) ending: Vec<Home>,
}

impl Lower<'_> {
    /// Records what packs a collective's inputs; gives the calls to make then, and what is to be done at their end.
    pub(super) fn depart(
        &mut self,
        collective: &Collective,
        prepared: &Prepared,
    ) -> Result<(Vec<Request>, Arrival), Unprepared> {
        let mut arrival = Arrival { unpack: vec![], ending: vec![] };
        if let Kind::AllReduce(monoid) = prepared.kind {
            return self.all_reduce(prepared, monoid);
        }
        let (Some(from), Some(to)) = (prepared.from.first(), prepared.to.first()) else {
            return unsupported("a collective of nothing");
        };
        let at = |l: &Local, d: Dim| {
            l.at(d)
                .ok_or_else(|| Unprepared::Plan(format!("an operand of a collective lacks the dim {}", d.0)))
        };
        let mut requests = vec![];
        let pair = is_pair(from.dtype);
        let value = self.value_type(from.buf, from.dtype);
        // The values, and of pairs the indices.
        let mut planes =
            vec![(Home::Buffer(from.buf), Home::Buffer(to.buf), if pair { value } else { from.dtype })];
        if pair {
            planes.push((Home::Indices(from.buf), Home::Indices(to.buf), DType::I32));
        }
        let mut folded = vec![];
        for (source, target, dtype) in planes {
            let kind = stored(dtype);
            let x = (from.elements() > 0).then(|| self.emit.read(source, &extents(&from.shape), kind));
            let (ask, send, received) = match (&prepared.kind, collective) {
                (Kind::AllReduce(_), _) => return unsupported("a bucket among single collectives"),
                (Kind::Gather { blocks, counts, .. }, Collective::AllGather { dim, .. }) => {
                    let axis = at(to, *dim)?;
                    let received = self.emit.fresh();
                    arrival.unpack.push(Unpack::Blocks {
                        local: to.clone(),
                        axis,
                        lengths: blocks.iter().map(ExactSizeIterator::len).collect(),
                        from: received,
                        to: target,
                    });
                    (Ask::AllGather(counts.clone()), self.flat(x), Some((received, to.elements())))
                }
                (Kind::Scatter { monoid, blocks, counts, .. }, Collective::ReduceScatter { dim, .. }) => {
                    let axis = at(from, *dim)?;
                    let send = x.map(|x| self.blocks_of(x, axis, blocks));
                    let received = self.emit.fresh();
                    if pair {
                        // Each member's part of this device's block, to be folded here.
                        let group = counts.len();
                        folded.push(received);
                        let own: Arc<[usize]> = vec![to.elements(); group].into();
                        (Ask::AllToAll(counts.clone(), own), send, Some((received, to.elements() * group)))
                    } else {
                        arrival.unpack.push(Unpack::Blocks {
                            local: to.clone(),
                            axis: 0,
                            lengths: to.shape.first().copied().into_iter().collect(),
                            from: received,
                            to: target,
                        });
                        let ask = Ask::ReduceScatter(*monoid, counts.clone());
                        (ask, send, Some((received, to.elements())))
                    }
                }
                (Kind::AllToAll { send, receive }, Collective::AllToAll { join, split, .. }) => {
                    let axis = at(from, *split)?;
                    let packed = x.map(|x| self.blocks_of(x, axis, &send.blocks));
                    let received = self.emit.fresh();
                    arrival.unpack.push(Unpack::Blocks {
                        local: to.clone(),
                        axis: at(to, *join)?,
                        lengths: receive.blocks.iter().map(ExactSizeIterator::len).collect(),
                        from: received,
                        to: target,
                    });
                    let ask = Ask::AllToAll(send.counts.clone(), receive.counts.clone());
                    (ask, packed, Some((received, to.elements())))
                }
                (Kind::Permute(halo), Collective::Permute { dim, .. }) => {
                    let axis = at(from, *dim)?;
                    let packed = x.filter(|_| halo.send.elements > 0);
                    let packed = packed.map(|x| self.blocks_of(x, axis, &halo.send.blocks));
                    let received = (halo.receive.elements > 0).then(|| self.emit.fresh());
                    let around: usize = to.elements() / to.shape[axis].max(1);
                    let mut parts = vec![];
                    let mut offset = 0;
                    for block in halo.receive.blocks.iter().filter(|b| !b.is_empty()) {
                        parts.push((block.start, block.len(), Source::Received(offset)));
                        offset += block.len() * around;
                    }
                    if let (Some([own, place]), Some(x)) = (&halo.own, x) {
                        parts.push((place.start, place.len(), Source::Own(x, own.clone())));
                    }
                    parts.sort_by_key(|p| p.0);
                    let parts = self.keep_own(parts, axis, &mut arrival.ending);
                    arrival.unpack.push(Unpack::Halo {
                        parts,
                        from: received,
                        to: target,
                        local: to.clone(),
                        axis,
                    });
                    let ask = Ask::Permute(halo.send.parts.clone(), halo.receive.parts.clone());
                    (ask, packed, received.map(|r| (r, halo.receive.elements)))
                }
                _ => return unsupported("a collective that is prepared as another"),
            };
            let send = match send {
                None => Piece { home: None, dtype, shape: vec![0], ends: false },
                Some(v) => {
                    let home = self.emit.fresh();
                    let shape = self.emit.shape(v).to_vec();
                    self.emit.store(v, home);
                    Piece { home: Some(home), dtype, shape, ends: true }
                }
            };
            let receive = match received {
                Some((home, n)) if n > 0 => {
                    arrival.ending.push(home);
                    Piece { home: Some(home), dtype, shape: vec![n], ends: true }
                }
                _ => Piece { home: None, dtype, shape: vec![0], ends: true },
            };
            requests.push(Request { ask, send: vec![send], receive: vec![receive] });
        }
        if let ([values, indices], Kind::Scatter { monoid, counts, .. }) = (&folded[..], &prepared.kind) {
            arrival.unpack.push(Unpack::Fold {
                greatest: *monoid == Monoid::ArgMax,
                members: counts.len(),
                from: [*values, *indices],
                local: to.clone(),
            });
        }
        Ok((requests, arrival))
    }

    fn all_reduce(
        &mut self,
        prepared: &Prepared,
        monoid: Monoid,
    ) -> Result<(Vec<Request>, Arrival), Unprepared> {
        let members = prepared.group.size();
        let mut bucket = Request { ask: Ask::AllReduce(monoid), send: vec![], receive: vec![] };
        let (mut requests, mut unpack, mut ending) = (vec![], vec![], vec![]);
        for ((from, to), ends) in prepared.from.iter().zip(&prepared.to).zip(&prepared.ends) {
            let (n, shape) = (from.elements(), extents(&from.shape));
            let home = |h: Home| (n > 0).then_some(h);
            if !is_pair(from.dtype) {
                let piece = |h, ends| Piece { home: home(h), dtype: from.dtype, shape: shape.clone(), ends };
                bucket.send.push(piece(Home::Buffer(from.buf), *ends));
                bucket.receive.push(piece(Home::Buffer(to.buf), false));
                continue;
            }
            let value = self.value_type(from.buf, from.dtype);
            let counts: Arc<[usize]> = vec![n; members].into();
            let mut received = vec![];
            for (source, dtype) in [(Home::Buffer(from.buf), value), (Home::Indices(from.buf), DType::I32)] {
                let all = self.emit.fresh();
                received.push(all);
                ending.extend(home(all));
                requests.push(Request {
                    ask: Ask::AllGather(counts.clone()),
                    send: vec![Piece { home: home(source), dtype, shape: shape.clone(), ends: *ends }],
                    receive: vec![Piece { home: home(all), dtype, shape: vec![n * members], ends: true }],
                });
            }
            if let [values, indices] = received[..] {
                unpack.push(Unpack::Fold {
                    greatest: monoid == Monoid::ArgMax,
                    members,
                    from: [values, indices],
                    local: to.clone(),
                });
            }
        }
        if !bucket.send.is_empty() {
            requests.push(bucket);
        }
        Ok((requests, Arrival { unpack, ending }))
    }

    /// All elements, in one dim.
    fn flat(&mut self, x: Option<Val>) -> Option<Val> {
        let x = x?;
        let n: usize = self.emit.shape(x).iter().product();
        Some(self.emit.reshape(x, &[n]))
    }

    /// Blocks of an axis, each with all its elements, one after the other in one dim.
    fn blocks_of(&mut self, x: Val, axis: usize, blocks: &[std::ops::Range<usize>]) -> Val {
        let shape = self.emit.shape(x).to_vec();
        let outer: usize = shape[..axis].iter().product();
        let whole = blocks.iter().map(ExactSizeIterator::len).sum::<usize>() == shape[axis];
        let mut parts = vec![];
        if outer <= 1 && whole {
            parts.push(x);
        } else {
            for block in blocks.iter().filter(|b| !b.is_empty()) {
                parts.push(self.emit.slice(x, axis, block.clone()));
            }
        }
        let parts: Vec<Val> = parts.into_iter().filter_map(|p| self.flat(Some(p))).collect();
        self.emit.cat(parts, 0)
    }

    /// What of a halo is the device's own is cut out at the start: at the end the input may be gone.
    fn keep_own(
        &mut self,
        parts: Vec<(usize, usize, Source)>,
        axis: usize,
        ending: &mut Vec<Home>,
    ) -> Vec<(usize, usize, Source)> {
        let mut kept = vec![];
        for (at, len, source) in parts {
            kept.push((
                at,
                len,
                match source {
                    Source::Own(x, range) => {
                        let part = self.emit.slice(x, axis, range);
                        let home = self.emit.fresh();
                        self.emit.store(part, home);
                        ending.push(home);
                        Source::Kept(home)
                    }
                    other => other,
                },
            ));
        }
        kept
    }

    /// Records what turns received memory into buffers.
    pub(super) fn arrive(&mut self, arrival: &Arrival) {
        for unpack in &arrival.unpack {
            match unpack {
                Unpack::Blocks { local, axis, lengths, from, to } => {
                    if local.elements() == 0 {
                        continue;
                    }
                    let dtype = self.plane(local, *to);
                    let flat = self.emit.read(*from, &[local.elements()], dtype);
                    let outer: usize = local.shape[..*axis].iter().product();
                    let val = if outer <= 1 {
                        self.emit.reshape(flat, &extents(&local.shape))
                    } else {
                        let around = local.elements() / local.shape[*axis];
                        let mut parts = vec![];
                        let mut next = 0;
                        for n in lengths.iter().filter(|n| **n > 0) {
                            let part = self.emit.slice(flat, 0, next..next + n * around);
                            next += n * around;
                            let mut shape = local.shape.clone();
                            shape[*axis] = *n;
                            parts.push(self.emit.reshape(part, &shape));
                        }
                        self.emit.cat(parts, *axis)
                    };
                    self.emit.store(val, *to);
                }
                Unpack::Halo { parts, from, to, local, axis } => {
                    if local.elements() == 0 {
                        continue;
                    }
                    let dtype = self.plane(local, *to);
                    let around = local.elements() / local.shape[*axis];
                    let received: usize = parts
                        .iter()
                        .filter(|p| matches!(p.2, Source::Received(_)))
                        .map(|p| p.1 * around)
                        .sum();
                    let mut joined = vec![];
                    for (_, n, source) in parts {
                        let mut shape = local.shape.clone();
                        shape[*axis] = *n;
                        joined.push(match (source, from) {
                            (Source::Received(offset), Some(from)) => {
                                let flat = self.emit.read(*from, &[received], dtype);
                                let part = self.emit.slice(flat, 0, *offset..offset + n * around);
                                self.emit.reshape(part, &shape)
                            }
                            (Source::Kept(home), _) => self.emit.read(*home, &shape, dtype),
                            _ => continue,
                        });
                    }
                    let val = self.emit.cat(joined, *axis);
                    self.emit.store(val, *to);
                }
                Unpack::Fold { greatest, members, from, local } => {
                    self.fold_pairs(*greatest, *members, *from, local);
                }
            }
        }
    }

    /// The backend's dtype of the values or indices of a buffer.
    fn plane(&self, local: &Local, home: Home) -> BurnType {
        match home {
            Home::Indices(_) => BurnType::I32,
            _ => stored(self.value_type(local.buf, local.dtype)),
        }
    }

    /// Of the pairs of all members the best; NaN comes before all numbers, and of equals the lowest index.
    fn fold_pairs(&mut self, greatest: bool, members: usize, from: [Home; 2], local: &Local) {
        let n = local.elements();
        if n == 0 {
            return;
        }
        let dtype = stored(self.value_type(local.buf, local.dtype));
        let values = self.emit.read(from[0], &[members * n], dtype);
        let indices = self.emit.read(from[1], &[members * n], BurnType::I32);
        let e = &mut self.emit;
        let values = e.reshape(values, &[members, n]);
        let indices = e.reshape(indices, &[members, n]);
        let x = if dtype == BurnType::U8 { e.cast(values, BurnType::I32) } else { values };
        let fold = if greatest { Reduce::Max } else { Reduce::Min };
        let (best, other) = if dtype.is_float() {
            let nan = e.unary(Unary::IsNan, x);
            let y = e.fill(x, nan, if greatest { f64::INFINITY } else { f64::NEG_INFINITY });
            let best = e.reduce(fold, y, 0);
            let worse = e.binary(Binary::Ne, y, best);
            let number = e.not(nan);
            let some = e.cast(nan, BurnType::I32);
            let some = e.reduce(Reduce::Max, some, 0);
            let some = e.scalar(Binary::Ne, some, 0.0);
            let shape = [members, n];
            let everywhere = e.expand(some, &shape);
            let less = e.and(everywhere, number);
            (e.fill(best, some, f64::NAN), e.binary(Binary::Or, worse, less))
        } else {
            let best = e.reduce(fold, x, 0);
            (best, e.binary(Binary::Ne, x, best))
        };
        let key = e.fill(indices, other, f64::from(i32::MAX));
        let index = e.reduce(Reduce::Min, key, 0);
        let shape = extents(&local.shape);
        let best = e.cast(best, dtype);
        let [best, index] = [best, index].map(|v| e.reshape(v, &shape));
        e.store(best, Home::Buffer(local.buf));
        e.store(index, Home::Indices(local.buf));
    }
}
