//! A step of the Plan: a primitive and its operands.

use crate::{BufId, Collective, Operand, Prim, Provenance};
use serde::{Deserialize, Serialize};

/// Part of a training step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Loss and metrics.
    #[default]
    Forward,
    /// Gradients.
    Backward,
    /// Clipping and the optimizer.
    Update,
}

/// A step of the Plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Its computation.
    #[serde(flatten)]
    pub prim: Prim,
    /// Operands that it reads, in the order that its primitive gives.
    pub reads: Vec<Operand>,
    /// Operands that it writes, in the order that its primitive gives. The results of a collective begin where it starts; a wait
    /// writes nothing.
    pub writes: Vec<Operand>,
    /// Which part of the training step it belongs to.
    pub phase: Phase,
    /// Why it is there: a cause for each buffer that it writes (the parts of a bucket have one each); of a wait, the causes
    /// of its collective; of a message that is sent, what it sends.
    pub origin: Vec<Provenance>,
    /// `(input, output)` buffers that share storage: the input ends here and the output begins in its place.
    pub aliases: Vec<(BufId, BufId)>,
    /// Buffers whose last use this is, and whose storage is released after it (those of `aliases` are not among them).
    pub free: Vec<BufId>,
    /// Of a collective that goes on while later steps run, and of the step that waits for it, the number that the two have
    /// in common, from 0 in the order of starts. Storage of its results begins with the start; until the wait nothing reads
    /// them, and neither they nor its operands end (but for an operand whose storage a result takes at the start).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub async_id: Option<u32>,
    /// In the body of a loop, how many turns of the loop it is behind the steps that run ahead of all others: in turn `t` it
    /// runs for iteration `t - lag`, if there is one. So a loop of `n` iterations whose largest lag is `l` takes `n + l` turns.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lag: u8,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(lag: &u8) -> bool {
    *lag == 0
}

/// A step has other numbers of operands than whoever runs it expects of its primitive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` has {reads} operands and {writes} results, where it takes {takes} and gives {gives}")]
pub struct Arity {
    /// The primitive.
    pub name: &'static str,
    /// Operands that it has.
    pub reads: usize,
    /// Results that it has.
    pub writes: usize,
    /// Operands that were expected.
    pub takes: usize,
    /// Results that were expected.
    pub gives: usize,
}

impl Step {
    /// A step of the forward pass without cause, lifetimes or flight.
    pub fn new(prim: Prim, reads: Vec<Operand>, writes: Vec<Operand>) -> Step {
        Step {
            prim,
            reads,
            writes,
            phase: Phase::Forward,
            origin: Vec::new(),
            aliases: Vec::new(),
            free: Vec::new(),
            async_id: None,
            lag: 0,
        }
    }

    /// Its name, for listings.
    pub fn name(&self) -> &'static str {
        self.prim.spec().name
    }

    /// Its reads, then its writes.
    pub fn all(&self) -> impl Iterator<Item = &Operand> {
        self.reads.iter().chain(&self.writes)
    }

    /// True if it reads a buffer.
    pub fn reads_buf(&self, buf: BufId) -> bool {
        self.reads.iter().any(|o| o.buf == buf)
    }

    /// True if it writes a buffer.
    pub fn writes_buf(&self, buf: BufId) -> bool {
        self.writes.iter().any(|o| o.buf == buf)
    }

    /// Its operands and results by position: `let ([table, index], [out]) = step.operands()?`.
    pub fn operands<const R: usize, const W: usize>(&self) -> Result<(&[Operand; R], &[Operand; W]), Arity> {
        let fits = self.reads.as_slice().try_into().ok().zip(self.writes.as_slice().try_into().ok());
        fits.ok_or_else(|| Arity {
            name: self.name(),
            reads: self.reads.len(),
            writes: self.writes.len(),
            takes: R,
            gives: W,
        })
    }

    /// The collective that it starts, or is.
    pub fn collective(&self) -> Option<&Collective> {
        match &self.prim {
            Prim::Collective(c) => Some(c),
            _ => None,
        }
    }

    /// True if it computes: it neither starts nor awaits a collective.
    pub fn computes(&self) -> bool {
        !matches!(self.prim, Prim::Collective(_) | Prim::Wait)
    }

    /// Whether devices exchange something in it, or it waits for that.
    pub fn communicates(&self) -> bool {
        !self.computes() || matches!(self.prim, Prim::Receive { .. } | Prim::Send { .. })
    }
}
