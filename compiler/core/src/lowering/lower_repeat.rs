//! Loops as steps: all that goes from one iteration to the next is a carry.
//!
//! What leaves a loop stacked starts as a blank buffer, which each iteration updates at its position, or as zeros where the loop
//! leaves positions out; a sum over iterations starts as zeros, to which each adds. Both are written in place.

use super::lower::{Lower, OpenBody};
use crate::partition::{CopyId, PlacedLoop};
use meshwright_ops::{Crossing, Id, Repeat};
use meshwright_plan::expr::BinaryFn;
use meshwright_plan::{BufId, Buffer, DType, Dim, Expr, Extent, Operand, Placement, Plan, Prim};
use meshwright_sorted::SortedMap;

/// The same Plan, in which no buffer that a loop fills begins as whatever its memory holds.
pub(crate) fn zeroed(mut plan: Plan) -> Plan {
    for step in &mut plan.steps {
        if let Prim::Blank { zero } = &mut step.prim {
            *zero = true;
        }
    }
    plan
}

/// The sum of two operands in a dtype.
pub(super) fn addition(operands: [DType; 2], sum: DType) -> Prim {
    let (mut expr, regs) = Expr::of_operands(operands);
    let [one, two] = [regs[0], regs[1]].map(|reg| expr.cast(reg, sum));
    let sum = expr.binary(BinaryFn::Add, one, two);
    Prim::Map { expr, regs: vec![sum] }
}

impl<'a> Lower<'a> {
    /// Ends and begins the loops that end and begin at an instruction.
    pub(super) fn loops_at(&mut self, instr: usize) {
        while self.open.last().is_some_and(|l| l.placed.body.end == instr) {
            self.end_loop();
        }
        while let Some(placed) = self.spmd.loops.get(self.loops_begun).filter(|l| l.body.start == instr) {
            self.loops_begun += 1;
            self.begin_loop(placed);
            if placed.body.is_empty() {
                self.end_loop();
            }
        }
    }

    /// Iterations on the device that has most of them.
    fn iterations(&self, placed: &PlacedLoop) -> u64 {
        let graph = &self.spmd.step.graph;
        let all = graph.iterations(placed.of);
        let of = Extent::of(&graph.dims, graph.repeats[placed.of].dim, &placed.axes);
        all.min(of.largest(&self.spmd.mesh)) as u64
    }

    fn begin_loop(&mut self, placed: &'a PlacedLoop) {
        let graph = &self.spmd.step.graph;
        let Repeat { dim, reverse, from, .. } = graph.repeats[placed.of];
        let some = placed.carries.first().map(|c| c.current).or(placed.outs.first().map(|o| o.1));
        let of = some.map_or(Id(0), |c| self.spmd.copy(c).value);
        let phase = graph.node(of).origin.phase;
        let begin = self.plan.steps.len();
        self.open.push(OpenBody {
            placed,
            dim,
            reverse,
            from,
            begin,
            carried: Vec::new(),
            blanks: Vec::new(),
            leaving: SortedMap::new(),
            stacked: Vec::new(),
            sliced: Vec::new(),
            renamed: SortedMap::new(),
            of,
            phase,
        });
        self.times *= self.iterations(placed);
        // What the body does not make leaves it all the same.
        for (from, out) in &placed.outs {
            if self.operands[*from].is_some() {
                self.leave(*from, *out);
            }
        }
    }

    /// Lowers the instruction of a carry, of a slice or of what has left a loop.
    pub(super) fn crossed(&mut self, how: Crossing, dim: Dim, from: CopyId, out: CopyId) {
        let placement = self.spmd.copy(out).placement.clone();
        let id = self.spmd.copy(out).value;
        let dtype = self.spmd.dtype(out);
        match how {
            Crossing::Carry(_) => {
                let start = self.wide(from, id);
                let current = self.buffer(dtype, &start.dims.clone(), &placement);
                self.operands[out] = Some(current.clone());
                if let Some(open) = self.open.last_mut() {
                    open.carried.push([start, current.clone(), current]);
                }
            }
            Crossing::Slice => {
                let mut all = self.wide(from, id);
                if all.dims.first() != Some(&dim) {
                    let mut order = all.dims.clone();
                    order.retain(|d| *d != dim);
                    order.insert(0, dim);
                    all = self.copied(&all, &order, id);
                }
                // Under other names it may be there already. Under the same, it is to be made again.
                let alike = |s: &&(BufId, Operand)| s.0 == all.buf && s.1.dims != all.dims[1..];
                let known = self.open.last().and_then(|open| open.sliced.iter().find(alike));
                if let Some((_, one)) = known {
                    self.operands[out] = Some(Operand { dims: all.dims[1..].to_vec(), ..*one });
                    return;
                }
                let one = self.buffer(dtype, &all.dims[1..], &placement);
                if let Some(open) = self.open.last_mut() {
                    open.sliced.push((all.buf, one.clone()));
                }
                self.operands[out] = Some(one.clone());
                let phase = self.spmd.step.graph.node(id).origin.phase;
                self.push(Prim::IterationSlice { dim }, vec![all], one, (id, None), phase);
            }
            // Its buffer was made when its loop ended.
            Crossing::Final | Crossing::Stack | Crossing::Accumulate => {}
        }
    }

    /// A copy of a buffer with its dims in another order.
    fn copied(&mut self, from: &Operand, order: &[Dim], id: Id) -> Operand {
        let held = self.plan.buffer(from.buf).clone();
        let along = |d: &Dim| from.dims.iter().position(|f| f == d).map(|i| held.extents[i].clone());
        let extents = order.iter().filter_map(along).collect();
        let out = self.buffer_of(Buffer { extents, ..held.clone() }, order);
        let phase = self.spmd.step.graph.node(id).origin.phase;
        self.push(Prim::Copy, vec![from.clone()], out.clone(), (id, None), phase);
        out
    }

    /// What leaves loops that are open, once a copy is made.
    pub(super) fn leaving(&mut self, made: CopyId) {
        let Some(open) = self.open.last() else { return };
        let outs: Vec<CopyId> =
            open.placed.outs.iter().filter(|(from, _)| *from == made).map(|(_, out)| *out).collect();
        for out in outs {
            self.leave(made, out);
        }
    }

    fn leave(&mut self, from: CopyId, out: CopyId) {
        let id = self.spmd.copy(out).value;
        let graph = &self.spmd.step.graph;
        let Some(b) = graph.boundary(id) else { return };
        let (dtype, phase) = (self.spmd.dtype(out), graph.node(id).origin.phase);
        let placement: Placement = self.spmd.copy(out).placement.clone();
        let value = self.operand(from);
        let dims = match b.how {
            Crossing::Stack => [&[b.dim], &value.dims[..]].concat(),
            Crossing::Accumulate => value.dims.clone(),
            _ => return,
        };
        if b.how == Crossing::Stack && self.is_stacked(value.buf, dtype, (&dims, &placement), out) {
            return;
        }
        let start = self.buffer(dtype, &dims, &placement);
        // In the body of a loop that is split, a sum is that of the device's own iterations.
        let axes = self.open.last().map_or(&[][..], |open| &open.placed.axes);
        let mut within = placement.clone();
        within.partial.retain(|a, _| b.how != Crossing::Accumulate || !axes.contains(a));
        let [current, next] = [(); 2].map(|()| self.buffer(dtype, &dims, &within));
        if b.how == Crossing::Stack {
            let prim = Prim::IterationUpdate { dim: b.dim };
            self.push(prim, vec![current.clone(), value.clone()], next.clone(), (id, None), phase);
        } else {
            let prim = addition([dtype, self.plan.buffer(value.buf).dtype], dtype);
            self.push(prim, vec![current.clone(), value.clone()], next.clone(), (id, None), phase);
        }
        if let Some(open) = self.open.last_mut() {
            open.blanks.push((start.clone(), b.how == Crossing::Accumulate || open.from > 0));
            if b.how == Crossing::Stack {
                open.stacked.push((value.buf, open.carried.len()));
            }
            open.leaving.insert(out, open.carried.len());
            open.carried.push([start, current, next]);
        }
    }

    /// Lets a value leave the loop as a stack that is there already, where it is the same buffer: a rename alone is between the
    /// two. False where there is none.
    fn is_stacked(
        &mut self,
        value: BufId,
        dtype: DType,
        (dims, placement): (&[Dim], &Placement),
        out: CopyId,
    ) -> bool {
        let extents = dims.iter().map(|d| placement.extent(*d, &self.plan.dims)).collect();
        let wanted = Buffer { partial: placement.partial.clone(), ..Buffer::new(dtype, extents) };
        let Some(open) = self.open.last_mut() else { return false };
        let alike = |(of, k): &&(BufId, usize)| {
            *of == value && self.plan.buffers[open.carried[*k][0].buf.0 as usize] == wanted
        };
        let Some((_, k)) = open.stacked.iter().find(alike).copied() else { return false };
        open.leaving.insert(out, k);
        open.renamed.insert(out, dims.to_vec());
        true
    }

    fn end_loop(&mut self) {
        let Some(open) = self.open.pop() else { return };
        let OpenBody { placed, dim, reverse, from, begin, mut carried, blanks, leaving, of, phase, .. } =
            open;
        self.times /= self.iterations(placed).max(1);
        // What was cast in the body is not there behind it.
        self.upcasts.retain(|_, (_, open)| *open <= self.open.len());
        // Whatever a carry is next, it has a buffer of its own, stored as the carry is.
        for c in &placed.carries {
            let (current, next) = (self.operand(c.current), self.operand(c.next));
            let made = self.plan.steps[begin..].iter().any(|s| s.writes_buf(next.buf));
            let taken = carried.iter().any(|[_, c, n]| n.buf == next.buf || c.buf == next.buf);
            let next = match made && !taken && next.dims == current.dims {
                true => next,
                false => self.copied(&next, &current.dims, self.spmd.copy(c.current).value),
            };
            for [_, now, after] in &mut carried {
                if now.buf == current.buf {
                    *after = next.clone();
                }
            }
        }
        let lasts: Vec<Operand> = carried
            .iter()
            .enumerate()
            .map(|(k, [start, current, _])| {
                let stored = if leaving.values().any(|at| *at == k) { start } else { current };
                self.buffer_of(self.plan.buffer(stored.buf).clone(), &current.dims)
            })
            .collect();
        for (from, out) in &placed.outs {
            let carry = placed.carries.iter().find(|c| c.next == *from);
            let at = leaving.get(out).copied().or_else(|| {
                let current = self.operand(carry?.current);
                carried.iter().position(|[_, now, _]| now.buf == current.buf)
            });
            let dims = open.renamed.get(out);
            self.operands[*out] = at.map(|k| match dims {
                Some(dims) => Operand { dims: dims.clone(), ..lasts[k] },
                None => lasts[k].clone(),
            });
        }
        let [starts, currents, nexts] =
            [0, 1, 2].map(|k| carried.iter().map(|c| c[k].clone()).collect::<Vec<Operand>>());
        let mut first = Vec::new();
        for (blank, zero) in blanks {
            first.push(self.step(Prim::Blank { zero }, vec![], vec![blank], (of, None), phase));
        }
        let axes = placed.axes.clone();
        // Carries come from the stage before, and go to the one behind; sums and stacks stay.
        let carries: Vec<usize> =
            (0..starts.len()).filter(|k| placed.stages && !leaving.values().any(|at| at == k)).collect();
        let mut starts = starts;
        if !carries.is_empty() {
            let given: Vec<Operand> = carries.iter().map(|k| starts[*k].clone()).collect();
            for k in &carries {
                starts[*k] = self.buffer_of(self.plan.buffer(currents[*k].buf).clone(), &currents[*k].dims);
            }
            let received = carries.iter().map(|k| starts[*k].clone()).collect();
            let prim = Prim::Receive { axes: axes.clone(), reverse };
            first.push(self.step(prim, given, received, (of, None), phase));
        }
        let repeat = Prim::Repeat { dim, reverse, from, axes: axes.clone() };
        first.push(self.step(repeat, starts, currents, (of, None), phase));
        self.plan.steps.splice(begin..begin, first);
        let sent: Vec<Operand> = carries.iter().map(|k| lasts[*k].clone()).collect();
        let end = self.step(Prim::EndRepeat, nexts, lasts, (of, None), phase);
        self.plan.steps.push(end);
        if !sent.is_empty() {
            let send = self.step(Prim::Send { axes, reverse }, sent, vec![], (of, None), phase);
            self.plan.steps.push(send);
        }
    }
}
