//! Microbatches: a training step that takes its batch in parts and sums their gradients before it uses them, in the memory of one
//! part (gradient accumulation; Huang et al. 2019, "GPipe", section 2.3).
//!
//! Before: a step on the whole batch, forward and backward. After: a loop over the parts, in which the dim of the examples has
//! one `n`-th of its size. Example `i * n + k` is the `i`-th of part `k`, so that a device keeps its examples however many parts
//! there are. A sum over examples leaves the loop as the sum over all parts; what reads it comes behind the loop. So clipping
//! and the optimizer see the gradients of the batch, which are what they are without parts, but for rounding.

mod levels;
mod parts;
mod separate;
mod sums;

use crate::layout::{Layout, RuleDim};
use crate::passes::linear::{ScopeItem, linearized};
use crate::passes::normalize::dead_code;
use crate::step::step_graph::{OutputKind, StepGraph};
use levels::{Levels, is_input, levels};
use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_ops::{Boundary, Crossing, Cut, Graph, Id, Index, Leaf, Node, Repeat, RepeatId, Type};
use meshwright_plan::{DType, Dim, Dims, IdVec, Microbatches};
use parts::{BatchPart, Mixed, parts};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The parts of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    /// How many, and the dims of a part and of the loop.
    n: usize,
    parts: Microbatches,
    /// The dim that counts the examples of the batch.
    whole: Dim,
    /// Where the layout asks for it.
    span: Span,
}

/// The dims that a step in parts needs, added to it, and the layout with the rules for them; `None` where the layout asks for
/// no parts, or the step does not train.
pub(crate) fn planned(
    step: &mut StepGraph,
    layout: &Layout,
) -> Result<Option<(Batch, Layout)>, Box<Diagnostic>> {
    let Some((n, span)) = layout.microbatches.filter(|_| step.program == "train") else { return Ok(None) };
    let Some(dim) = step.inputs.first().and_then(|i| i.dims.first().copied()) else {
        let d = Diagnostic::error(codes::E0313, "a model without inputs has no batch to take in parts");
        return Err(Box::new(d.at(span, "asked for here").help("leave it out")));
    };
    let dims = &mut step.graph.dims;
    let (name, size) = (dims.name(dim).to_string(), dims.size(dim));
    if n == 0 || !size.is_multiple_of(n) {
        return Err(Box::new(uneven(&name, size, n, span)));
    }
    if n == 1 {
        return Ok(None);
    }
    let free = |wanted: String| {
        (0..).map(|i: usize| format!("{wanted}{}", "_".repeat(i))).find(|n| dims.find(n).is_none())
    };
    let (over, whole) = (free("microbatch".into()), free(format!("{name}*microbatch")));
    let over = dims.add(over.unwrap_or_default(), n);
    let whole = dims.add(whole.unwrap_or_default(), size);
    let mut layout = layout.clone();
    let of_whole = layout.rules.iter().filter(|r| r.dim == RuleDim::Dim(dim)).cloned();
    let of_whole: Vec<_> = of_whole.map(|r| crate::layout::Rule { dim: RuleDim::Dim(whole), ..r }).collect();
    layout.rules.extend(of_whole);
    layout.loops.insert(over);
    Ok(Some((Batch { n, parts: Microbatches { dim, over }, whole, span }, layout)))
}

fn uneven(name: &str, size: usize, n: usize, span: Span) -> Diagnostic {
    let divisors: Vec<String> =
        (1..=size).filter(|d| size.is_multiple_of(*d)).map(|d| d.to_string()).collect();
    let listed = match divisors.len() {
        0..=24 => divisors.join(", "),
        many => format!("{}, … ({many} in all)", divisors[..24].join(", ")),
    };
    let near = (1..=size).filter(|d| size.is_multiple_of(*d)).min_by_key(|d| d.abs_diff(n)).unwrap_or(1);
    Diagnostic::error(codes::E0313, format!("`{name}` = {size} has no {n} equal parts"))
        .at(span, format!("{size} / {n} is no integer"))
        .note(format!("the divisors of {size} are {listed}"))
        .help(format!(
            "write `microbatches {near}`, or take a batch of another size: `--dim {name}={}`",
            size.next_multiple_of(n.max(1))
        ))
}

/// Takes a step in parts.
pub(crate) fn in_parts(step: &StepGraph, batch: &Batch, found: &mut Vec<Diagnostic>) -> Option<StepGraph> {
    let step = separate::separated(step, batch.parts.dim);
    match taken(&step, batch) {
        Ok(step) => Some(step),
        Err(mixed) => {
            found.push(told(&step, batch, &mixed));
            None
        }
    }
}

fn told(step: &StepGraph, batch: &Batch, mixed: &Mixed) -> Diagnostic {
    let g = &step.graph;
    let name = g.dims.name(batch.parts.dim);
    let what = g.path(mixed.at);
    Diagnostic::error(codes::E0313, format!("the step cannot take `{name}` in {} parts", batch.n))
        .at(g.node(mixed.at).origin.span, format!("`{what}`: {}", mixed.why))
        .and(batch.span, "asked for here")
        .help(format!("leave it out, or reduce `{name}` once, by a `sum` or `mean` behind all that is computed of each example"))
}

fn taken(step: &StepGraph, batch: &Batch) -> Result<StepGraph, Mixed> {
    let old = &step.graph;
    let parts = parts(old, batch.parts.dim)?;
    let levels = levels(old, &parts)?;
    let kept = |o: &&crate::StepOutput| parts[o.id] == BatchPart::Examples;
    if let Some(o) = step.outputs.iter().find(kept) {
        return Err(Mixed { at: o.id, why: "what a step gives has the dim of the examples".into() });
    }
    let size = |d: Dim| old.dims.size(d) / if d == batch.parts.dim { batch.n } else { 1 };
    let mut dims = Dims::default();
    for (d, name) in old.dims.iter() {
        dims.add(name, size(d));
    }
    let mut new = Graph::new(dims);
    new.microbatches = Some(batch.parts);
    let mut r =
        Rebuild { old, new, batch, parts: &parts, now: old.nodes.table(None), given: BTreeMap::new() };
    r.all(&levels);
    let Rebuild { new, now, .. } = r;
    let mut out = step.with_graph(new);
    let of = |id: Id| now[id].unwrap_or_else(|| panic!("internal error: {} is not made", old.describe(id)));
    for goal in &mut out.outputs {
        goal.id = of(goal.id);
        if let OutputKind::Next(leaf) = &mut goal.kind {
            *leaf = of(*leaf);
        }
    }
    for input in &mut out.inputs {
        let whole = |d: &mut Dim| *d = if *d == batch.parts.dim { batch.whole } else { *d };
        input.dims.iter_mut().chain(&mut input.range).for_each(whole);
    }
    Ok(dead_code(&linearized(sums::joined(&out, batch.parts.over))))
}

struct Rebuild<'a> {
    old: &'a Graph,
    new: Graph,
    batch: &'a Batch,
    parts: &'a IdVec<Id, BatchPart>,
    /// What each value is around the loops over the parts.
    now: IdVec<Id, Option<Id>>,
    /// Inputs, cut into parts.
    given: BTreeMap<Id, Id>,
}

/// A loop over the parts that is being made.
#[derive(Default)]
struct Open {
    of: Option<RepeatId>,
    /// What each value is in its body.
    now: BTreeMap<Id, Id>,
    /// The loops in it.
    loops: BTreeMap<RepeatId, RepeatId>,
}

impl Rebuild<'_> {
    fn all(&mut self, levels: &Levels) {
        for level in 0..=levels.count {
            let mut around = Open::default();
            for item in levels.order.iter().filter(|i| levels.outside.get(i) == Some(&level)) {
                self.item(*item, &levels.values[item], &mut around);
            }
            if level == levels.count {
                return;
            }
            let of = self.new.repeat(self.batch.parts.over, false);
            let mut open = Open { of: Some(of), ..Open::default() };
            let here = |i: &&ScopeItem| levels.inside.get(i).is_some_and(|l| l.contains(&level));
            let mine: Vec<&ScopeItem> = levels.order.iter().filter(here).collect();
            for item in &mine {
                self.item(**item, &levels.values[*item], &mut open);
            }
            for item in mine {
                self.leave(of, &levels.values[item], &open);
            }
        }
    }

    /// Makes what stands around all loops of the step: a value, or a whole loop.
    fn item(&mut self, item: ScopeItem, values: &[Id], open: &mut Open) {
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
    fn loop_of(&mut self, of: RepeatId, open: &mut Open) -> RepeatId {
        if let Some(known) = open.loops.get(&of) {
            return *known;
        }
        let Repeat { dim, reverse, from, parent, .. } = self.old.repeats[of];
        let parent = parent.map(|p| self.loop_of(p, open)).or(open.of);
        let made = self.new.repeats.push(Repeat { dim, reverse, from, parent, carries: Vec::new() });
        open.loops.insert(of, made);
        made
    }

    fn value(&mut self, id: Id, open: &mut Open) {
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
    fn read(&mut self, x: Id, open: &mut Open) -> Id {
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
        if let Some(leaf) = node.op.as_any().downcast_ref::<Leaf>() {
            let mut ty: Type = leaf.ty.clone();
            ty.dims.iter_mut().chain(&mut ty.range).for_each(whole);
            node.op = Arc::new(Leaf { leaf: leaf.leaf.clone(), ty });
        }
        let made = self.new.push(node);
        let cut = self.new.op(Cut { dim: self.batch.whole, to: vec![dim, over] }, &[made]);
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
        let first = self.new.binary("*", mine, n);
        let at = self.new.sum_of(&[first, part]);
        self.new.scope = scope;
        at
    }

    /// Brings what is read behind a loop over the parts out of it.
    fn leave(&mut self, of: RepeatId, values: &[Id], open: &Open) {
        for id in values.iter().filter(|id| self.old.node(**id).scope.is_none()) {
            let made = open.now[id];
            self.new.cursor = self.old.node(*id).origin.clone();
            let out = match self.parts[*id] {
                // A value that is the same in all parts and read behind them is made in front of them.
                BatchPart::Examples | BatchPart::Same => continue,
                BatchPart::Sum => {
                    let sum = self.new.cross(of, Crossing::Accumulate, made);
                    self.new.cast(sum, self.old.ty(*id).dtype)
                }
            };
            self.now[*id] = Some(out);
        }
    }
}
