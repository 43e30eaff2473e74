//! Collectives, prepared for one device: groups, counts, and packing around the transport.
//!
//! A piece of a dim that is not outermost lies scattered in the buffer; it is packed before, or unpacked after, the
//! transport sees it. A result takes its input's storage where the input ends there and nobody shares it.

use crate::halo::Halo;
use crate::local::{Here, Local};
use crate::pack::{Around, pack, unpack};
use crate::tensor::{Pool, bytes_mut};
use burn_flex::FlexTensor;
use meshwright_comm::{Buf, BufMut, Call, Collectives, CommError, Group, Misfit, Slot, Tag, Transport};
use meshwright_plan::{BufId, Collective, DType, Dim, Monoid, Operand, Step, StepKind};
use std::ops::Range;
use std::sync::Arc;

/// A collective that is ready to run.
pub(crate) struct Prepared {
    group: Group,
    what: Arc<str>,
    line: u32,
    pub(crate) from: Vec<Local>,
    pub(crate) to: Vec<Local>,
    /// For each of `from` whether it ends here.
    pub(crate) ends: Vec<bool>,
    kind: Kind,
}

enum Kind {
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
struct Side {
    around: Around,
    blocks: Vec<Range<usize>>,
    counts: Arc<[usize]>,
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
        let StepKind::Collective(collective) = &step.kind else { return Ok(None) };
        let axes = collective.axes();
        if let Some(a) = axes.iter().find(|a| usize::from(a.0) >= here.mesh().axes.len()) {
            return Err(format!("there is no mesh axis {}", a.0));
        }
        let group = Group::of_mesh(here.mesh(), here.rank, &axes).map_err(|e| e.to_string())?;
        let locals = |operands: Vec<&Operand>| -> Result<Vec<Local>, String> {
            operands.into_iter().map(|o| here.local(o)).collect()
        };
        let (from, to) = (locals(step.kind.reads())?, locals(step.kind.writes())?);
        if from.len() != to.len() {
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
            Collective::AllGather { dim, from: pieces, .. } => {
                let side = members.side(&to[0], pieces, *dim)?;
                Kind::Gather { around: side.around, blocks: side.blocks, counts: side.counts }
            }
            Collective::ReduceScatter { monoid, dim, to: pieces, .. } => {
                let side = members.side(&from[0], pieces, *dim)?;
                Kind::Scatter {
                    monoid: *monoid,
                    around: side.around,
                    blocks: side.blocks,
                    counts: side.counts,
                }
            }
            Collective::Permute { dim, from, to, .. } => {
                Kind::Permute(Halo::new(here, &group, *dim, [from, to])?)
            }
            Collective::AllToAll { join, split, from: joined, to: splits, .. } => Kind::AllToAll {
                send: members.side(&from[0], splits, *split)?,
                receive: members.side(&to[0], joined, *join)?,
            },
        };
        let ends_here = |b: BufId| step.free.contains(&b) || step.reuse.iter().any(|r| r.0 == b);
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
        let tag = Tag::new(sequence, self.what.clone(), self.line);
        if let Kind::AllReduce(monoid) = self.kind {
            return self.all_reduce(inputs, monoid, transport, pool, &tag);
        }
        let Some(mut input) = inputs.into_iter().next() else { return Ok(vec![]) };
        let (from, to) = (&self.from[0], &self.to[0]);
        let dtype = from.dtype;
        let mut result = pool.take(dtype, &to.shape);
        match &self.kind {
            Kind::AllReduce(_) => {}
            Kind::Gather { around, blocks, counts } => {
                let mut gather = |out: &mut FlexTensor| {
                    let call = Call::AllGather {
                        input: Buf::from_bytes(input.bytes(), dtype)?,
                        counts: counts.clone(),
                        output: BufMut::from_bytes(bytes_mut(out), dtype)?,
                    };
                    transport.call(&self.group, &tag, call).map_err(Failed::from)
                };
                if around.is_packed() {
                    gather(&mut result)?;
                } else {
                    let mut packed = pool.take(dtype, &[to.elements()]);
                    gather(&mut packed)?;
                    unpack(packed.bytes(), bytes_mut(&mut result), *around, blocks, dtype.bytes());
                    pool.give(packed, dtype, to.elements());
                }
            }
            Kind::Scatter { monoid, around, blocks, counts } => {
                let packed = packed(&input, from, *around, blocks, pool);
                let call = Call::ReduceScatter {
                    monoid: *monoid,
                    input: Buf::from_bytes(packed.as_ref().unwrap_or(&input).bytes(), dtype)?,
                    counts: counts.clone(),
                    output: BufMut::from_bytes(bytes_mut(&mut result), dtype)?,
                };
                transport.call(&self.group, &tag, call)?;
                give(pool, packed, dtype, from.elements());
            }
            Kind::Permute(halo) => {
                let mut sent = pool.take(dtype, &[halo.send.elements]);
                halo.pack(input.bytes(), bytes_mut(&mut sent), dtype.bytes());
                let mut received = pool.take(dtype, &[halo.receive.elements]);
                let call = Call::Permute {
                    input: Buf::from_bytes(sent.bytes(), dtype)?,
                    send: halo.send.parts.clone(),
                    output: BufMut::from_bytes(bytes_mut(&mut received), dtype)?,
                    receive: halo.receive.parts.clone(),
                };
                transport.call(&self.group, &tag, call)?;
                halo.unpack(input.bytes(), received.bytes(), bytes_mut(&mut result), dtype.bytes());
                pool.give(sent, dtype, halo.send.elements);
                pool.give(received, dtype, halo.receive.elements);
            }
            Kind::AllToAll { send, receive } => {
                let sent = packed(&input, from, send.around, &send.blocks, pool);
                let mut received = (!receive.around.is_packed()).then(|| pool.take(dtype, &[to.elements()]));
                let call = Call::AllToAll {
                    input: Buf::from_bytes(sent.as_ref().unwrap_or(&input).bytes(), dtype)?,
                    send: send.counts.clone(),
                    output: BufMut::from_bytes(bytes_mut(received.as_mut().unwrap_or(&mut result)), dtype)?,
                    receive: receive.counts.clone(),
                };
                transport.call(&self.group, &tag, call)?;
                if let Some(r) = &received {
                    unpack(r.bytes(), bytes_mut(&mut result), receive.around, &receive.blocks, dtype.bytes());
                }
                give(pool, sent, dtype, from.elements());
                give(pool, received, dtype, to.elements());
            }
        }
        if self.ends[0] {
            pool.give(
                std::mem::replace(&mut input, crate::tensor::zeros(dtype, &[0])),
                dtype,
                from.elements(),
            );
        }
        Ok(vec![result])
    }

    fn all_reduce(
        &self,
        inputs: Vec<FlexTensor>,
        monoid: Monoid,
        transport: &mut dyn Transport,
        pool: &mut Pool,
        tag: &Tag,
    ) -> Result<Vec<FlexTensor>, Failed> {
        // For each part the result, and the input where it has storage of its own.
        let mut parts = Vec::with_capacity(inputs.len());
        for (i, tensor) in inputs.into_iter().enumerate() {
            parts.push(if self.ends[i] && tensor.is_unique() {
                (tensor, None)
            } else {
                (pool.take(self.to[i].dtype, &self.to[i].shape), Some(tensor))
            });
        }
        let mut bucket = Vec::with_capacity(parts.len());
        for ((result, input), to) in parts.iter_mut().zip(&self.to) {
            let output = BufMut::from_bytes(bytes_mut(result), to.dtype)?;
            bucket.push(match input {
                None => Slot::InPlace(output),
                Some(input) => Slot::Apart(Buf::from_bytes(input.bytes(), to.dtype)?, output),
            });
        }
        transport.call(&self.group, tag, Call::AllReduce { monoid, bucket })?;
        let mut results = Vec::with_capacity(parts.len());
        for (i, (result, input)) in parts.into_iter().enumerate() {
            if let Some(input) = input.filter(|_| self.ends[i]) {
                pool.give(input, self.from[i].dtype, self.from[i].elements());
            }
            results.push(result);
        }
        Ok(results)
    }
}

fn give(pool: &mut Pool, tensor: Option<FlexTensor>, dtype: DType, elements: usize) {
    if let Some(tensor) = tensor {
        pool.give(tensor, dtype, elements);
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
            return Err(format!("an operand of a collective lacks the dim {}", dim.id));
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
