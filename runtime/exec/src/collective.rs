//! Collectives, prepared for one device: groups, counts, and packing around the transport.
//!
//! A piece of a dim that is not outermost lies scattered in the buffer; it is packed before, or unpacked after, the
//! transport sees it. A result takes its input's storage where the input ends there and nobody shares it.
//!
//! From the start to the end all memory of a collective belongs to [`Flying`]: nobody else can write to it, and it cannot go
//! back to the pool.

use crate::halo::Halo;
use crate::local::{Here, Local};
use crate::pack::{Around, pack, unpack};
use crate::tensor::{Pool, bytes_mut};
use burn_flex::FlexTensor;
use meshwright_comm::{
    Buf, BufMut, Call, Collectives, CommError, Group, Misfit, Slot, Started, Tag, Transport,
};
use meshwright_plan::{BufId, Collective, Dim, Monoid, Operand, Prim, Step};
use std::ops::Range;
use std::sync::Arc;

/// A collective that is ready to run.
pub(crate) struct Prepared {
    pub(crate) group: Group,
    what: Arc<str>,
    line: u32,
    pub(crate) from: Vec<Local>,
    pub(crate) to: Vec<Local>,
    /// For each of `from` whether it ends here.
    pub(crate) ends: Vec<bool>,
    pub(crate) kind: Kind,
}

/// What it does, with what its members hold.
pub(crate) enum Kind {
    AllReduce(Monoid),
    /// `around` sees the result.
    Gather {
        around: Around,
        blocks: Vec<Range<usize>>,
        counts: Arc<[usize]>,
    },
    /// `around` sees the input.
    Scatter {
        monoid: Monoid,
        around: Around,
        blocks: Vec<Range<usize>>,
        counts: Arc<[usize]>,
    },
    AllToAll {
        send: Side,
        receive: Side,
    },
    Permute(Halo),
}

/// One side of an all-to-all: an array, cut along a dim.
pub(crate) struct Side {
    around: Around,
    pub(crate) blocks: Vec<Range<usize>>,
    pub(crate) counts: Arc<[usize]>,
}

/// The memory of a collective: for each part the input, where it has storage of its own, and the result; and what is sent
/// and received where that is packed.
pub(crate) struct Memory {
    parts: Vec<(Option<FlexTensor>, FlexTensor)>,
    sent: Option<FlexTensor>,
    received: Option<FlexTensor>,
}

/// A collective that was started, with its memory. Dropped, it is given up: it then fails for all members that wait for it.
pub(crate) struct Flying(Started<Memory>);

impl Flying {
    /// Waits for the end; what comes back is for [`Prepared::unpack`] of the same collective.
    pub(crate) fn finish(self) -> Result<Memory, Failed> {
        Ok(self.0.finish()?)
    }
}

/// Why a collective failed.
pub(crate) enum Failed {
    Comm(CommError),
    Misfit(Misfit),
}

impl From<CommError> for Failed {
    fn from(e: CommError) -> Self {
        Failed::Comm(e)
    }
}

impl From<Misfit> for Failed {
    fn from(e: Misfit) -> Self {
        Failed::Misfit(e)
    }
}

impl Prepared {
    /// Prepares a collective step; none for other steps.
    pub(crate) fn of_step(here: &Here<'_>, step: &Step) -> Result<Option<Prepared>, String> {
        let Prim::Collective(collective) = &step.prim else { return Ok(None) };
        let axes = collective.axes();
        if let Some(a) = axes.iter().find(|a| usize::from(a.0) >= here.mesh().axes.len()) {
            return Err(format!("there is no mesh axis {}", a.0));
        }
        let group = Group::of_mesh(here.mesh(), here.rank, axes).map_err(|e| e.to_string())?;
        let locals = |operands: &[Operand]| -> Result<Vec<Local>, String> {
            operands.iter().map(|o| here.local(o)).collect()
        };
        let (from, to) = (locals(&step.reads)?, locals(&step.writes)?);
        if from.len() != to.len() || from.is_empty() {
            return Err(format!("{} inputs and {} results", from.len(), to.len()));
        }
        for (f, t) in from.iter().zip(&to) {
            if f.dtype != t.dtype || f.dims != t.dims {
                return Err("input and result of a collective differ in dtype or in the order of dims".into());
            }
        }
        let members = Members { here, group: &group };
        let kind = match collective {
            Collective::AllReduce { monoid, .. } => {
                if from.iter().zip(&to).any(|(f, t)| f.ranges != t.ranges) {
                    return Err("input and result of an all-reduce differ in shape".into());
                }
                Kind::AllReduce(*monoid)
            }
            Collective::AllGather { dim, .. } => {
                let side = members.side(&to[0], &step.reads[0], *dim)?;
                Kind::Gather { around: side.around, blocks: side.blocks, counts: side.counts }
            }
            Collective::ReduceScatter { monoid, dim, .. } => {
                let side = members.side(&from[0], &step.writes[0], *dim)?;
                Kind::Scatter {
                    monoid: *monoid,
                    around: side.around,
                    blocks: side.blocks,
                    counts: side.counts,
                }
            }
            Collective::Permute { dim, .. } => {
                Kind::Permute(Halo::new(here, &group, *dim, [&step.reads[0], &step.writes[0]])?)
            }
            Collective::AllToAll { join, split, .. } => Kind::AllToAll {
                send: members.side(&from[0], &step.writes[0], *split)?,
                receive: members.side(&to[0], &step.reads[0], *join)?,
            },
        };
        let ends_here = |b: BufId| step.free.contains(&b) || step.aliases.iter().any(|r| r.0 == b);
        let ends = from
            .iter()
            .enumerate()
            .map(|(i, f)| ends_here(f.buf) && from[i + 1..].iter().all(|later| later.buf != f.buf))
            .collect();
        let origin = step.origin.first();
        Ok(Some(Prepared {
            group,
            what: origin.map_or("", |o| &o.value).into(),
            line: origin.map_or(0, |o| o.line),
            ends,
            from,
            to,
            kind,
        }))
    }

    /// Runs it on the inputs; gives the results. Storage of inputs that end here is reused or given back.
    pub(crate) fn run(
        &self,
        inputs: Vec<FlexTensor>,
        transport: &mut dyn Transport,
        pool: &mut Pool,
        sequence: u64,
    ) -> Result<Vec<FlexTensor>, Failed> {
        let mut memory = self.pack(inputs, pool);
        transport.call(&self.group, &self.tag(sequence), self.call(&mut memory)?)?;
        Ok(self.unpack(memory, pool))
    }

    /// Starts it on the inputs. Their storage, where they do not end here, is read until the end.
    pub(crate) fn start(
        &self,
        inputs: Vec<FlexTensor>,
        transport: &mut dyn Transport,
        pool: &mut Pool,
        sequence: u64,
    ) -> Result<Flying, Failed> {
        let memory = self.pack(inputs, pool);
        let tag = self.tag(sequence);
        let started = transport.try_start(&self.group, &tag, memory, |m| self.call(m).map_err(Failed::from));
        Ok(Flying(started?))
    }

    /// Its name among the calls of a run.
    pub(crate) fn tag(&self, sequence: u64) -> Tag {
        Tag::new(sequence, self.what.clone(), self.line)
    }

    /// What the transport works on: packed where the blocks that it sees do not lie one after the other.
    fn pack(&self, inputs: Vec<FlexTensor>, pool: &mut Pool) -> Memory {
        let mut memory = Memory { parts: Vec::with_capacity(inputs.len()), sent: None, received: None };
        for (i, input) in inputs.into_iter().enumerate() {
            let in_place = matches!(self.kind, Kind::AllReduce(_)) && self.ends[i] && input.is_unique();
            memory.parts.push(match in_place {
                true => (None, input),
                false => (Some(input), pool.take(self.to[i].dtype, &self.to[i].shape)),
            });
        }
        let Some((Some(input), _)) = memory.parts.first() else { return memory };
        let (from, to) = (&self.from[0], &self.to[0]);
        match &self.kind {
            Kind::AllReduce(_) => {}
            Kind::Gather { around, .. } => {
                memory.received = (!around.is_packed()).then(|| pool.take(to.dtype, &[to.elements()]));
            }
            Kind::Scatter { around, blocks, .. } => memory.sent = packed(input, from, *around, blocks, pool),
            Kind::Permute(halo) => {
                let mut sent = pool.take(from.dtype, &[halo.send.elements]);
                halo.pack(input.bytes(), bytes_mut(&mut sent), from.dtype.bytes());
                memory.sent = Some(sent);
                memory.received = Some(pool.take(from.dtype, &[halo.receive.elements]));
            }
            Kind::AllToAll { send, receive } => {
                memory.sent = packed(input, from, send.around, &send.blocks, pool);
                memory.received =
                    (!receive.around.is_packed()).then(|| pool.take(to.dtype, &[to.elements()]));
            }
        }
        memory
    }

    /// The call on its memory.
    fn call<'x>(&self, memory: &'x mut Memory) -> Result<Call<'x>, Misfit> {
        if let Kind::AllReduce(monoid) = self.kind {
            let mut bucket = Vec::with_capacity(self.to.len());
            for ((input, result), to) in memory.parts.iter_mut().zip(&self.to) {
                let output = BufMut::from_bytes(bytes_mut(result), to.dtype)?;
                bucket.push(match input {
                    None => Slot::InPlace(output),
                    Some(input) => Slot::Apart(Buf::from_bytes(input.bytes(), to.dtype)?, output),
                });
            }
            return Ok(Call::AllReduce { monoid, bucket });
        }
        let Some((input, result)) = memory.parts.first_mut() else { return Ok(Call::Barrier) };
        let dtype = self.from[0].dtype;
        let input = memory.sent.as_ref().or(input.as_ref()).map_or(&[][..], |t| t.bytes());
        let input = Buf::from_bytes(input, dtype)?;
        let output = BufMut::from_bytes(bytes_mut(memory.received.as_mut().unwrap_or(result)), dtype)?;
        Ok(match &self.kind {
            Kind::AllReduce(_) => Call::Barrier,
            Kind::Gather { counts, .. } => Call::AllGather { input, counts: counts.clone(), output },
            Kind::Scatter { monoid, counts, .. } => {
                Call::ReduceScatter { monoid: *monoid, input, counts: counts.clone(), output }
            }
            Kind::Permute(halo) => {
                let (send, receive) = (halo.send.parts.clone(), halo.receive.parts.clone());
                Call::Permute { input, send, output, receive }
            }
            Kind::AllToAll { send, receive } => {
                Call::AllToAll { input, send: send.counts.clone(), output, receive: receive.counts.clone() }
            }
        })
    }

    /// The results. Storage of inputs that end here, and what was packed, goes back to the pool.
    pub(crate) fn unpack(&self, mut memory: Memory, pool: &mut Pool) -> Vec<FlexTensor> {
        if let (Some((input, result)), Some(received)) = (memory.parts.first_mut(), &memory.received) {
            let (bytes, result) = (self.to[0].dtype.bytes(), bytes_mut(result));
            match &self.kind {
                Kind::AllReduce(_) | Kind::Scatter { .. } => {}
                Kind::Gather { around, blocks, .. } => {
                    unpack(received.bytes(), result, *around, blocks, bytes)
                }
                Kind::AllToAll { receive, .. } => {
                    unpack(received.bytes(), result, receive.around, &receive.blocks, bytes);
                }
                Kind::Permute(halo) => {
                    let own = input.as_ref().map_or(&[][..], |t| t.bytes());
                    halo.unpack(own, received.bytes(), result, bytes);
                }
            }
        }
        for scratch in [memory.sent, memory.received].into_iter().flatten() {
            let dtype = self.from[0].dtype;
            let elements = scratch.bytes().len() / dtype.bytes();
            pool.give(scratch, dtype, elements);
        }
        let mut results = Vec::with_capacity(memory.parts.len());
        for (i, (input, result)) in memory.parts.into_iter().enumerate() {
            if let Some(input) = input.filter(|_| self.ends[i]) {
                pool.give(input, self.from[i].dtype, self.from[i].elements());
            }
            results.push(result);
        }
        results
    }
}

/// The blocks of an array one after the other, if that is not how they lie already.
fn packed(
    array: &FlexTensor,
    local: &Local,
    around: Around,
    blocks: &[Range<usize>],
    pool: &mut Pool,
) -> Option<FlexTensor> {
    (!around.is_packed()).then(|| {
        let mut out = pool.take(local.dtype, &[local.elements()]);
        pack(array.bytes(), bytes_mut(&mut out), around, blocks, local.dtype.bytes());
        out
    })
}

struct Members<'a> {
    here: &'a Here<'a>,
    group: &'a Group,
}

impl Members<'_> {
    /// How `whole`, an array of this device, is cut along `dim` into the blocks that the members hold of `pieces`.
    fn side(&self, whole: &Local, pieces: &Operand, dim: Dim) -> Result<Side, String> {
        let Some(at) = whole.at(dim) else {
            return Err(format!("an operand of a collective lacks the dim {}", dim.0));
        };
        let around = Around::new(&whole.shape, at);
        let range = &whole.ranges[at];
        let mut blocks = vec![];
        let mut next = range.start;
        for rank in self.group.ranks() {
            let piece = self.here.local_on(pieces, *rank)?.range(dim)?.clone();
            if piece.start != next && !piece.is_empty() {
                return Err(format!(
                    "the pieces of a collective do not lie in order: {piece:?} after {next}"
                ));
            }
            if !piece.is_empty() {
                next = piece.end;
            }
            blocks.push(if piece.is_empty() {
                0..0
            } else {
                piece.start - range.start..piece.end - range.start
            });
        }
        if next != range.end {
            return Err(format!("the pieces of a collective end at {next}, not at {}", range.end));
        }
        let counts = blocks.iter().map(|b| around.block(b.len())).collect();
        Ok(Side { around, blocks, counts })
    }
}
