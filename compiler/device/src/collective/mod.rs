//! Collectives, prepared for one device: groups, counts, and which blocks are packed around the calls of the transport.
//!
//! A block of a dim that is not outermost is not contiguous in the buffer; operations of the graph pack it before the
//! transport sees it, or unpack it afterwards. A result takes its operand's storage if the operand's lifetime ends
//! there and the storage is not shared.

pub(crate) mod blocked;
pub mod calls;
pub mod halo;
pub(crate) mod lower;
pub mod pack;

use crate::lowering::local::{DeviceContext, Local};
use halo::Halo;
use meshwright_plan::{BufId, Collective, Dim, Group, Monoid, Operand, Step};
use pack::StridedView;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;

/// A collective of a Plan for one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prepared {
    /// The devices that take part.
    pub group: Group,
    /// Name of the value in the model; empty if it has none.
    pub what: Arc<str>,
    /// Line of the value in the model; 0 if it has none.
    pub line: u32,
    pub(crate) from: Vec<Local>,
    pub(crate) to: Vec<Local>,
    /// For each of `from` whether its lifetime ends here.
    pub(crate) ends: Vec<bool>,
    /// Reduction of the sent values.
    pub(crate) monoid: Option<Monoid>,
    /// The only member that sends; none where all do.
    pub(crate) root: Option<usize>,
    pub(crate) shape: CollectiveShape,
}

/// Blocks that are sent to and received from the members.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum CollectiveShape {
    /// Cuts of each operand and of each result; empty for a side that is not cut.
    Blocks { send: Vec<Blocks>, receive: Vec<Blocks> },
    /// Missing interval of each member along that axis.
    Halo(Halo, usize),
}

/// Cuts of an array along an axis into the blocks of the members.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Blocks {
    pub axis: usize,
    pub view: StridedView,
    pub ranges: Vec<Range<usize>>,
    /// Elements of each block.
    pub counts: Arc<[usize]>,
}

impl Prepared {
    /// Prepares a link between the stages of a group for a step that sends or receives.
    pub(crate) fn of_link(group: Group, step: &Step) -> Prepared {
        let origin = step.origin.first();
        let shape = CollectiveShape::Blocks { send: vec![], receive: vec![] };
        Prepared {
            group,
            what: origin.map_or("", |o| &o.path).into(),
            line: origin.map_or(0, |o| o.line),
            from: vec![],
            to: vec![],
            ends: vec![],
            monoid: None,
            root: None,
            shape,
        }
    }

    /// Prepares the collective of a step.
    pub(crate) fn new(
        context: &DeviceContext<'_>,
        step: &Step,
        collective: &Collective,
    ) -> Result<Prepared, String> {
        let axes = collective.axes();
        if let Some(a) = axes.iter().find(|a| usize::from(a.0) >= context.mesh().axes.len()) {
            return Err(format!("there is no mesh axis {}", a.0));
        }
        let group = Group::of_mesh(context.mesh(), context.rank, axes).map_err(|e| e.to_string())?;
        let locals = |operands: &[Operand]| -> Result<Vec<Local>, String> {
            operands.iter().map(|o| context.local(o)).collect()
        };
        let (from, to) = (locals(&step.reads)?, locals(&step.writes)?);
        if from.len() != to.len() {
            return Err(format!("{} operands and {} results", from.len(), to.len()));
        }
        for (f, t) in from.iter().zip(&to) {
            if f.dtype != t.dtype || f.dims != t.dims {
                return Err(
                    "operand and result of a collective differ in dtype or in the order of dims".into()
                );
            }
        }
        let members = Members { context, group: &group };
        let spec = collective.spec();
        let moves = !(spec.join.is_empty() && spec.split.is_empty() && spec.moves_ranges().is_none());
        if !moves && from.iter().zip(&to).any(|(f, t)| f.ranges != t.ranges) {
            return Err(format!("operand and result of {} differ in shape", spec.kind));
        }
        if !collective.takes(from.len()) {
            return Err(format!("{} operands of one {}", from.len(), spec.kind));
        }
        let shape = match spec.moves_ranges() {
            Some(dim) => {
                let axis = to[0].at(dim).ok_or("a dim is missing")?;
                CollectiveShape::Halo(
                    Halo::new(context, &group, dim, [&step.reads[0], &step.writes[0]])?,
                    axis,
                )
            }
            None => CollectiveShape::Blocks {
                send: members.bucket(&from, &step.writes, spec.split)?,
                receive: members.bucket(&to, &step.reads, spec.join)?,
            },
        };
        let ends_here = |b: BufId| step.free.contains(&b) || step.aliases.iter().any(|r| r.0 == b);
        let ends = from
            .iter()
            .enumerate()
            .map(|(i, f)| ends_here(f.buf) && from[i + 1..].iter().all(|later| later.buf != f.buf))
            .collect();
        let origin = step.origin.first();
        Ok(Prepared {
            group,
            what: origin.map_or("", |o| &o.path).into(),
            line: origin.map_or(0, |o| o.line),
            ends,
            from,
            to,
            monoid: spec.monoid,
            root: spec.root,
            shape,
        })
    }
}

struct Members<'a> {
    context: &'a DeviceContext<'a>,
    group: &'a Group,
}

impl Members<'_> {
    /// Split of each of a bucket's arrays.
    fn bucket(&self, whole: &[Local], pieces: &[Operand], dims: &[Dim]) -> Result<Vec<Blocks>, String> {
        whole
            .iter()
            .zip(pieces)
            .zip(dims)
            .map(|((whole, pieces), dim)| self.blocks(whole, pieces, *dim))
            .collect()
    }

    /// Split of `whole`, an array of this device, along `dim` into the members' blocks of `pieces`.
    fn blocks(&self, whole: &Local, pieces: &Operand, dim: Dim) -> Result<Blocks, String> {
        let axis = whole.position(dim)?;
        let view = StridedView::new(&whole.shape, axis);
        let range = &whole.ranges[axis];
        let mut ranges = vec![];
        let mut next = range.start;
        for rank in self.group.ranks() {
            let piece = self.context.local_on(pieces, *rank)?.range(dim)?.clone();
            if piece.start != next && !piece.is_empty() {
                return Err(format!(
                    "the pieces of a collective do not lie in order: {piece:?} after {next}"
                ));
            }
            if !piece.is_empty() {
                next = piece.end;
            }
            ranges.push(if piece.is_empty() {
                0..0
            } else {
                piece.start - range.start..piece.end - range.start
            });
        }
        if next != range.end {
            return Err(format!("the pieces of a collective end at {next}, not at {}", range.end));
        }
        let counts = ranges.iter().map(|b| view.block(b.len())).collect();
        Ok(Blocks { axis, view, ranges, counts })
    }
}
