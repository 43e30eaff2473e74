//! The scopes that a walk has open, and their instructions.

use super::spmd::{CopyId, Instr, PlacedLoop};
use meshwright_ops::{Graph, Id, RepeatId};
use meshwright_sorted::SortedMap;

/// The instructions of a scope that is open.
#[derive(Default)]
pub(super) struct Frame {
    /// The loop; none for what is around all of them.
    pub(super) of: Option<RepeatId>,
    pub(super) instrs: Vec<Instr>,
    /// Loops in it, with places among its instructions.
    pub(super) loops: Vec<PlacedLoop>,
    /// By number of the carry what it starts as, and itself.
    pub(super) carries: SortedMap<u32, (CopyId, CopyId)>,
}

/// Scopes that are open, from what is around all loops to the innermost.
pub(super) struct Frames(pub(super) Vec<Frame>);

impl Frames {
    pub(super) fn new() -> Frames {
        Frames(vec![Frame::default()])
    }

    /// The innermost.
    pub(super) fn last(&mut self) -> &mut Frame {
        let last = self.0.len() - 1;
        &mut self.0[last]
    }

    /// Adds an instruction that makes a copy of a value, to the scope of that value.
    pub(super) fn push(&mut self, graph: &Graph, value: Id, instr: Instr) {
        let scope = graph.node(value).scope;
        match self.0.iter_mut().find(|f| f.of == scope) {
            Some(frame) => frame.instrs.push(instr),
            None => panic!("internal error: {} is made outside of its loop", graph.describe(value)),
        }
    }

    /// All instructions and all loops, outer ones before those in them.
    pub(super) fn finish(self) -> (Vec<Instr>, Vec<PlacedLoop>) {
        let mut frames = self.0.into_iter();
        let Frame { instrs, mut loops, .. } = frames.next().unwrap_or_default();
        loops.sort_by_key(|l| (l.body.start, std::cmp::Reverse(l.body.end), l.of));
        (instrs, loops)
    }
}
