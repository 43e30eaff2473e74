//! A step that is made again in loops over the parts of its batch, value by value.

use super::levels::is_input;
use super::parts::BatchPart;
use crate::passes::linear::ScopeItem;
use crate::passes::stages::Stages;
use meshwright_diag::Span;
use meshwright_ops::{Boundary, Crossing, Graph, Id, Index, InputOp, Node, Repeat, RepeatId, SplitDim, Type};
use meshwright_plan::{DType, Dim, IdVec, Microbatches};
use meshwright_sorted::SortedMap;
use std::sync::Arc;

/// The parts of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    /// How many, and the dims of a part and of the loop.
    pub(super) n: usize,
    pub(super) parts: Microbatches,
    /// The dim that counts the examples of the batch.
    pub(super) whole: Dim,
    /// The line of the layout that asks for it.
    pub(super) span: Span,
    /// The stages that the parts pass.
    pub(super) stages: Option<Stages>,
    /// They pass them forward alone.
    pub(super) evaluates: bool,
}

pub(super) struct Rebuild<'a> {
    pub(super) old: &'a Graph,
    pub(super) new: Graph,
    pub(super) batch: &'a Batch,
    pub(super) parts: &'a IdVec<Id, BatchPart>,
    /// Each value around the loops over the parts.
    pub(super) now: IdVec<Id, Option<Id>>,
    /// Inputs, cut into parts.
    pub(super) given: SortedMap<Id, Id>,
}

/// A loop over the parts that is being made.
#[derive(Default)]
pub(super) struct Open {
    pub(super) of: Option<RepeatId>,
    /// Each value in its body.
    pub(super) now: SortedMap<Id, Id>,
    /// The loops in it.
    pub(super) loops: SortedMap<RepeatId, RepeatId>,
}

impl Rebuild<'_> {
    /// Makes what stands around all loops of the step: a value, or a whole loop.
    pub(super) fn item(&mut self, item: ScopeItem, values: &[Id], open: &mut Open) {
        if let ScopeItem::Loop(_) = item {
            for of in values.iter().filter_map(|id| self.old.node(*id).scope) {
                self.loop_of(of, open);
            }
        }
        for id in values {
            self.value(*id, open);
        }
        // What a carry is next is known only now.
        for (of, made) in open.loops.clone() {
            let carries = self.old.repeats[of].carries.clone();
            let now = |x: Id| open.now.get(&x).copied().or(self.now[x]);
            let known = carries.iter().filter_map(|(c, n)| Some((now(*c)?, now(*n)?))).collect::<Vec<_>>();
            if known.len() == carries.len() {
                self.new.repeats[made].carries = known;
            }
        }
    }

    /// The copy of a loop, and of those around it.
    pub(super) fn loop_of(&mut self, of: RepeatId, open: &mut Open) -> RepeatId {
        if let Some(known) = open.loops.get(&of) {
            return *known;
        }
        let Repeat { dim, reverse, from, parent, .. } = self.old.repeats[of];
        let parent = parent.map(|p| self.loop_of(p, open)).or(open.of);
        let made = self.new.repeats.push(Repeat { dim, reverse, from, parent, carries: Vec::new() });
        open.loops.insert(of, made);
        made
    }

    pub(super) fn value(&mut self, id: Id, open: &mut Open) {
        let mut node = self.old.node(id).clone();
        self.new.cursor = node.origin.clone();
        node.inputs = node.inputs.iter().map(|x| self.read(*x, open)).collect();
        node.scope = node.scope.map(|of| open.loops[&of]).or(open.of);
        if let Some(b) = self.old.boundary(id) {
            let of = open.loops.get(&b.of).copied().unwrap_or(b.of);
            node.op = Arc::new(Boundary { of, ..b });
        }
        let index = node.op.as_any().downcast_ref::<Index>().is_some_and(|i| i.dim == self.batch.parts.dim);
        let made = match (index, open.of) {
            (true, Some(of)) => self.position(of, node),
            _ if is_input(self.old, id) && self.parts[id] == BatchPart::Examples => self.cut(id, node),
            _ => self.new.push(node),
        };
        match open.of {
            Some(_) => drop(open.now.insert(id, made)),
            None => self.now[id] = Some(made),
        }
    }

    /// A value as the body of a loop over the parts reads it, or what is around such loops.
    pub(super) fn read(&mut self, x: Id, open: &mut Open) -> Id {
        if let Some(known) = open.now.get(&x) {
            return *known;
        }
        if let (Some(of), Some(cut)) = (open.of, self.given.get(&x)) {
            let cursor = std::mem::replace(&mut self.new.cursor, self.old.node(x).origin.clone());
            let slice = self.new.cross(of, Crossing::Slice, *cut);
            self.new.cursor = cursor;
            open.now.insert(x, slice);
            return slice;
        }
        match self.now[x] {
            Some(known) => known,
            None => panic!("internal error: {} is read before it is made", self.old.describe(x)),
        }
    }

    /// An input of the whole batch; its parts are noted.
    fn cut(&mut self, id: Id, mut node: Node) -> Id {
        let Microbatches { dim, over } = self.batch.parts;
        let whole = |d: &mut Dim| *d = if *d == dim { self.batch.whole } else { *d };
        node.ty.dims.iter_mut().chain(&mut node.ty.range).for_each(whole);
        if let Some(leaf) = node.op.as_any().downcast_ref::<InputOp>() {
            let mut ty: Type = leaf.ty.clone();
            ty.dims.iter_mut().chain(&mut ty.range).for_each(whole);
            node.op = Arc::new(InputOp { input: leaf.input.clone(), ty });
        }
        let made = self.new.push(node);
        let cut = self.new.op(SplitDim { dim: self.batch.whole, to: vec![dim, over] }, &[made]);
        self.given.insert(id, cut);
        made
    }

    /// The positions of a part's examples in the batch.
    fn position(&mut self, of: RepeatId, node: Node) -> Id {
        let Microbatches { over, .. } = self.batch.parts;
        let scope = self.new.scope.replace(of);
        let all = self.new.index(over);
        let part = self.new.cross(of, Crossing::Slice, all);
        let origin = node.origin.clone();
        let mine = self.new.push(Node { scope: Some(of), ..node });
        self.new.cursor = origin;
        let n = self.new.constant(self.batch.n as f64, DType::I32);
        let first = self.new.product(&[mine, n]);
        let at = self.new.sum_of(&[first, part]);
        self.new.scope = scope;
        at
    }

    /// Brings what is read behind a loop over the parts out of it.
    pub(super) fn leave(&mut self, of: RepeatId, values: &[Id], open: &Open) {
        for id in values {
            if !self.leaves_parts(*id) {
                continue;
            }
            let made = open.now[id];
            self.new.cursor = self.old.node(*id).origin.clone();
            let sum = self.new.cross(of, Crossing::Accumulate, made);
            self.now[*id] = Some(self.new.cast(sum, self.old.ty(*id).dtype));
        }
    }

    /// Whether a value is read behind the loops over the parts. One that is the same in all parts is made in front of them for
    /// that.
    pub(super) fn leaves_parts(&self, id: Id) -> bool {
        self.old.node(id).scope.is_none() && self.parts[id] == BatchPart::Sum
    }
}
