//! A permute, prepared for one device: which elements along a dim it sends to whom, gets from whom, and has itself.

use super::pack::{PackedBlock, StridedView, unpack};
use crate::lowering::local::{DeviceContext, Local};
use meshwright_plan::{BufferPart as Part, Dim, Group, Operand};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;

/// Blocks along a dim of one array, and their offsets in the packed form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Side {
    view: StridedView,
    pub blocks: Vec<PackedBlock>,
    /// Peer and packed range of each of `blocks`.
    pub parts: Arc<[Part]>,
    /// Elements of all blocks.
    pub elements: usize,
}

/// A permute that is ready to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Halo {
    pub(crate) send: Side,
    pub(crate) receive: Side,
    /// The device's own part of the result, as a range of the input and of the result along the dim.
    pub(crate) own: Option<[Range<usize>; 2]>,
}

impl Side {
    fn new(view: StridedView, blocks: Vec<(usize, Range<usize>)>) -> Side {
        let mut elements = 0;
        let mut parts = vec![];
        let mut placed = vec![];
        for (peer, range) in blocks {
            let (start, length) = (elements, view.block(range.len()));
            placed.push(PackedBlock { range, start });
            parts.push(Part { peer, range: start..start + length });
            elements += length;
        }
        Side { view, blocks: placed, parts: parts.into(), elements }
    }
}

impl Halo {
    /// Prepares a permute along `dim`: `from` has the interval that each device holds, `to` the one that it needs.
    pub(crate) fn new(
        context: &DeviceContext<'_>,
        group: &Group,
        dim: Dim,
        [from, to]: [&Operand; 2],
    ) -> Result<Halo, String> {
        let (mine, wanted) = (context.local(from)?, context.local(to)?);
        let (have, need) = (mine.range(dim)?.clone(), wanted.range(dim)?.clone());
        let (mut send, mut receive, mut own) = (vec![], vec![], None);
        let mut covered = 0;
        for (peer, rank) in group.ranks().iter().enumerate() {
            let theirs = context.local_on(from, *rank)?.range(dim)?.clone();
            let comes = meet(&theirs, &need);
            covered += comes.len();
            if *rank == context.rank {
                own = (!comes.is_empty()).then(|| [within(&comes, &have), within(&comes, &need)]);
                continue;
            }
            let goes = meet(&have, context.local_on(to, *rank)?.range(dim)?);
            if !goes.is_empty() {
                send.push((peer, within(&goes, &have)));
            }
            if !comes.is_empty() {
                receive.push((peer, within(&comes, &need)));
            }
        }
        if covered != need.len() {
            return Err(format!("of {need:?} the devices of a permute hold {covered} elements"));
        }
        let view = |l: &Local| l.at(dim).map(|at| StridedView::new(&l.shape, at)).ok_or("a dim is missing");
        Ok(Halo { send: Side::new(view(&mine)?, send), receive: Side::new(view(&wanted)?, receive), own })
    }

    /// Copies the device's own part of `input` and the packed blocks of `received` to `result`. `bytes` is the size of an
    /// element.
    pub fn unpack(&self, input: &[u8], received: &[u8], result: &mut [u8], bytes: usize) {
        unpack(received, result, self.receive.view, &self.receive.blocks, bytes);
        let Some([from, to]) = &self.own else { return };
        let (f, t) = (self.send.view, self.receive.view);
        let run = from.len() * f.inner * bytes;
        for o in 0..f.outer {
            let at = (o * f.size + from.start) * f.inner * bytes;
            let goes = (o * t.size + to.start) * t.inner * bytes;
            result[goes..goes + run].copy_from_slice(&input[at..at + run]);
        }
    }
}

fn meet(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    let (start, end) = (a.start.max(b.start), a.end.min(b.end));
    if start < end { start..end } else { 0..0 }
}

fn within(part: &Range<usize>, whole: &Range<usize>) -> Range<usize> {
    part.start - whole.start..part.end - whole.start
}
