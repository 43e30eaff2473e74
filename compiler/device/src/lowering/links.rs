//! Links between the stages of a pipeline: a loop's carries are received before it, and sent after it.

use super::build::ProgramBuilder;
use super::chunk::Chunk;
use super::local::Local;
use super::turn_order::stages;
use crate::collective::Prepared;
use crate::collective::calls::{CallPiece, TransportCall};
use crate::error::LoweringError;
use crate::launch::{CollectiveLaunch, LaunchKind, LinkEnd};
use crate::slot::TensorSlot;
use meshwright_plan::{Axis, BufferLayout, BufferPart, CollectiveKind, Group, Operand, Prim, Step};
use std::sync::Arc;

impl ProgramBuilder<'_> {
    /// The rank of the stage before this one, or behind it.
    fn neighbor(
        &self,
        (axes, reverse): (&[Axis], bool),
        behind: bool,
    ) -> Result<Option<usize>, LoweringError> {
        let context = &self.lowering.context;
        let (ranks, at) = stages(context.plan, context.rank, axes)?;
        let forward = behind != reverse;
        let next = if forward { Some(at + 1).filter(|next| *next < ranks.len()) } else { at.checked_sub(1) };
        // From the last rank it goes on with the next chunk of the first one.
        let around = if forward { ranks.first() } else { ranks.last() };
        let around = around.filter(|_| Chunk::goes_on(self.chunk.as_ref(), forward));
        Ok(next.map_or(around, |next| ranks.get(next)).copied())
    }

    /// The carries of a loop as the stage before made them; of the first stage as they start.
    pub(super) fn receive(
        &mut self,
        index: usize,
        step: &Step,
        link: (&[Axis], bool),
        ending: Vec<TensorSlot>,
    ) -> Result<(), LoweringError> {
        let from = self.neighbor(link, false)?;
        for (start, received) in step.reads.iter().zip(&step.writes) {
            // Messages have no empty values.
            if from.is_none() || self.lowering.context.local(received)?.elements() == 0 {
                let copy = Step::new(Prim::Copy, vec![start.clone()], vec![received.clone()]);
                self.lowering.lower(&copy)?;
            }
        }
        self.finish_step(index, &ending);
        let Some(from) = from else { return Ok(()) };
        self.message(index, step, &step.writes, (LinkEnd::Receive, from))
    }

    /// Sends the carries of a loop to the stage behind.
    pub(super) fn send(
        &mut self,
        index: usize,
        step: &Step,
        link: (&[Axis], bool),
        ending: Vec<TensorSlot>,
    ) -> Result<(), LoweringError> {
        if let Some(to) = self.neighbor(link, true)? {
            self.message(index, step, &step.reads, (LinkEnd::Send, to))?;
        }
        self.finish_step(index, &ending);
        Ok(())
    }

    /// The calls over a link.
    fn message(
        &mut self,
        index: usize,
        step: &Step,
        operands: &[Operand],
        (end, peer): (LinkEnd, usize),
    ) -> Result<(), LoweringError> {
        self.end_segment();
        let context = &self.lowering.context;
        let ranks = if end == LinkEnd::Send { [context.rank, peer] } else { [peer, context.rank] };
        let group = Group::new(ranks, context.rank).map_err(|e| LoweringError::Plan(e.to_string()))?;
        let locals: Vec<Local> = operands.iter().map(|o| context.local(o)).collect::<Result<_, _>>()?;
        let mut calls = vec![];
        for local in locals.iter().filter(|l| l.elements() > 0) {
            for plane in self.lowering.planes(local.buf, local.dtype) {
                let piece = CallPiece {
                    tensor: Some(self.lowering.graph.slots.insert(plane.slot)),
                    dtype: plane.dtype,
                    shape: local.shape.clone(),
                    ends: false,
                };
                calls.push(call(end, piece));
            }
        }
        if calls.is_empty() {
            return Ok(());
        }
        let prepared = Prepared::of_link(group, step);
        let ahead = end == LinkEnd::Receive;
        // The Plan counts its own from 0; a receive of each chunk has another one.
        let async_id = if ahead { u32::MAX.checked_sub(self.launches.len() as u32) } else { None };
        let (pack, unpack) = (vec![], vec![]);
        let collective = CollectiveLaunch { prepared, async_id, pack, calls, unpack, link: Some(end) };
        let start = self.launch(LaunchKind::Collective(Box::new(collective)), index);
        self.body.push(start);
        if ahead {
            let wait = self.launch(LaunchKind::Wait { start, unpack: vec![] }, index);
            self.launches[wait].steps.clear();
            self.body.push(wait);
        }
        Ok(())
    }
}

/// The call of one end of a link, whose first member is the sender.
fn call(end: LinkEnd, piece: CallPiece) -> TransportCall {
    let part = |peer| BufferLayout::Parts(Arc::from([BufferPart { peer, range: 0..piece.elements() }]));
    let nothing = BufferLayout::Parts(Arc::from([]));
    let none = CallPiece::none(piece.dtype);
    let (layouts, send, receive) = match end {
        LinkEnd::Send => ([part(1), nothing], piece, none),
        LinkEnd::Receive => ([nothing, part(0)], none, piece),
    };
    TransportCall {
        kind: CollectiveKind::Permute,
        monoid: None,
        root: None,
        layouts,
        send: vec![send],
        receive: vec![receive],
    }
}
