//! The loop of a loss in parts ([`super`]): slices of operands, stacks of results with rows, and sums over rows.

use meshwright_plan::expr::BinaryFn;
use meshwright_plan::{BufId, Buffer, Dim, Expr, Extent, Operand, Phase, Plan, Prim, Provenance, Step};
use meshwright_sorted::{SortedMap, SortedSet};

/// A value that the loop carries: before it, in an iteration, for the next one, and after the loop.
struct Carry {
    start: Operand,
    current: Operand,
    next: Operand,
    last: Operand,
}

/// Puts a chain into a loop.
pub(super) struct Cutter {
    plan: Plan,
    /// The dim that is cut.
    dim: Dim,
    /// The dim of the loop, and the one that counts the rows of a part.
    part: Dim,
    row: Dim,
    /// Extents of both.
    extents: [Extent; 2],
    before: Vec<Step>,
    body: Vec<Step>,
    carries: Vec<Carry>,
    after: Vec<Step>,
    /// The operands of the body, by those of the chain.
    inner: SortedMap<(BufId, Vec<Dim>), Operand>,
}

impl Cutter {
    pub(super) fn new(mut plan: Plan, dim: Dim, extent: &Extent, parts: usize) -> Cutter {
        let mut add = |what: &str, size: usize| {
            let name = format!("{}.{what}", plan.dims.name(dim));
            let free = |n: &usize| plan.dims.find(&format!("{name}{n}")).is_none();
            let number = if plan.dims.find(&name).is_none() { None } else { (2..).find(free) };
            plan.dims.add(number.map_or(name.clone(), |n| format!("{name}{n}")), size)
        };
        let size = extent.size / parts;
        let (part, row) = (add("part", parts), add("row", size));
        let whole = Extent { size: parts, axes: Vec::new(), window: None, rotated: 0, cuts: None };
        let extents = [whole, Extent { size, ..extent.clone() }];
        let (before, body, carries, after) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Cutter { plan, dim, part, row, extents, before, body, carries, after, inner: SortedMap::new() }
    }

    /// The Plan with the steps of a chain in a loop. Of the steps between, consumers of its results come after it, all others
    /// before it. `leaves` are the operands of other steps. None where an operand of the chain depends on a result of it.
    pub(super) fn cut(mut self, chain: &SortedSet<usize>, leaves: &SortedSet<BufId>) -> Option<Plan> {
        let (first, last) = (*chain.first()?, *chain.last()?);
        let steps = std::mem::take(&mut self.plan.steps);
        let mut made: SortedSet<BufId> = SortedSet::new();
        let mut late: SortedSet<BufId> = SortedSet::new();
        let (mut early, mut waiting) = (Vec::new(), Vec::new());
        for (at, step) in steps.iter().enumerate().take(last + 1).skip(first) {
            let is_late = step.reads.iter().any(|o| late.contains(&o.buf));
            if chain.contains(&at) {
                if is_late {
                    return None;
                }
                made.extend(step.writes.iter().map(|o| o.buf));
                self.step(step, leaves);
            } else if is_late || step.reads.iter().any(|o| made.contains(&o.buf)) {
                late.extend(step.writes.iter().map(|o| o.buf));
                waiting.push(step.clone());
            } else {
                early.push(step.clone());
            }
        }
        self.bounds(&steps[last]);
        let [before, body, after] = [&mut self.before, &mut self.body, &mut self.after].map(std::mem::take);
        let own = early.into_iter().chain(before).chain(body).chain(after).chain(waiting);
        self.plan.steps =
            steps[..first].iter().cloned().chain(own).chain(steps[last + 1..].iter().cloned()).collect();
        Some(self.plan)
    }

    /// The begin and the end of the loop.
    fn bounds(&mut self, of: &Step) {
        let prims = [Prim::Repeat { dim: self.part, reverse: false, from: 0, axes: vec![] }, Prim::EndRepeat];
        let of_carries = |f: &dyn Fn(&Carry) -> Operand| self.carries.iter().map(f).collect::<Vec<_>>();
        let operands = [
            (of_carries(&|c| c.start.clone()), of_carries(&|c| c.current.clone())),
            (of_carries(&|c| c.next.clone()), of_carries(&|c| c.last.clone())),
        ];
        let origin = |n: usize| of.origin.first().map(|o| vec![o.clone(); n]).unwrap_or_default();
        let [begin, end] = [0, 1].map(|i| {
            let (reads, writes) = operands[i].clone();
            Step {
                phase: of.phase,
                origin: origin(writes.len()),
                ..Step::new(prims[i].clone(), reads, writes)
            }
        });
        self.body.insert(0, begin);
        self.body.push(end);
    }

    /// A step of the chain, in the body.
    fn step(&mut self, step: &Step, leaves: &SortedSet<BufId>) {
        let of = |k: usize| (step.phase, step.origin.get(k).or(step.origin.first()).cloned());
        let reads: Vec<Operand> = step.reads.iter().map(|o| self.read(o, &of(0))).collect();
        let mut writes = Vec::new();
        let mut leaving = Vec::new();
        for (k, o) in step.writes.iter().enumerate() {
            let held = self.plan.buffer(o.buf).clone();
            let inner = match o.dims.contains(&self.dim) {
                true => self.of_part(o),
                // A sum over parts is rounded once, after the loop.
                false => self.buffer(Buffer { dtype: held.dtype.wide(), ..held }, o.dims.clone()),
            };
            self.inner.insert((o.buf, o.dims.clone()), inner.clone());
            writes.push(inner.clone());
            if leaves.contains(&o.buf) {
                leaving.push((o.clone(), inner, of(k)));
            }
        }
        self.body.push(Step { reads, writes, ..step.clone() });
        for (out, inner, of) in leaving {
            match out.dims.contains(&self.dim) {
                true => self.stacked(out, inner, &of),
                false => self.summed(out, inner, &of),
            }
        }
    }

    /// The part of an operand that a step of the body reads.
    fn read(&mut self, o: &Operand, of: &Of) -> Operand {
        if !o.dims.contains(&self.dim) {
            return o.clone();
        }
        if let Some(known) = self.inner.get(&(o.buf, o.dims.clone())) {
            return known.clone();
        }
        let mut all = self.replaced(o, &[], &self.nested());
        let prim = Prim::SplitDim { dim: self.dim, to: self.nested().to_vec() };
        self.before.push(step(prim, vec![o.clone()], all.clone(), of));
        if all.dims.first() != Some(&self.part) {
            let stacked = self.stack_of(o);
            self.before.push(step(Prim::Copy, vec![all], stacked.clone(), of));
            all = stacked;
        }
        let inner = self.of_part(o);
        self.body.push(step(Prim::IterationSlice { dim: self.part }, vec![all], inner.clone(), of));
        self.inner.insert((o.buf, o.dims.clone()), inner.clone());
        inner
    }

    /// Stacks the parts of a result that has rows.
    fn stacked(&mut self, out: Operand, inner: Operand, of: &Of) {
        let [start, current, next, last] = [(); 4].map(|()| self.stack_of(&out));
        self.before.push(step(Prim::Blank { zero: false }, vec![], start.clone(), of));
        let prim = Prim::IterationUpdate { dim: self.part };
        self.body.push(step(prim, vec![current.clone(), inner], next.clone(), of));
        let mut all = last.clone();
        if out.dims.first() != Some(&self.dim) || self.nested()[0] != self.part {
            all = self.replaced(&out, &[], &self.nested());
            self.after.push(step(Prim::Copy, vec![last.clone()], all.clone(), of));
        }
        let prim = Prim::MergeDims { dims: self.nested().to_vec(), to: self.dim };
        self.after.push(step(prim, vec![all], out, of));
        self.carries.push(Carry { start, current, next, last });
    }

    /// Adds the parts of a result that is a sum over rows.
    fn summed(&mut self, out: Operand, inner: Operand, of: &Of) {
        let held = self.plan.buffer(inner.buf).clone();
        let dtype = self.plan.buffer(out.buf).dtype;
        let [start, current, next] = [(); 3].map(|()| self.buffer(held.clone(), out.dims.clone()));
        self.before.push(step(Prim::Blank { zero: true }, vec![], start.clone(), of));
        let (mut expr, regs) = Expr::of_operands([held.dtype; 2]);
        let sum = expr.binary(BinaryFn::Add, regs[0], regs[1]);
        let prim = Prim::Map { expr, regs: vec![sum] };
        self.body.push(step(prim, vec![current.clone(), inner], next.clone(), of));
        let last = match held.dtype == dtype {
            true => out,
            false => {
                let last = self.buffer(held.clone(), out.dims.clone());
                let (mut expr, regs) = Expr::of_operands([held.dtype]);
                let rounded = expr.cast(regs[0], dtype);
                let prim = Prim::Map { expr, regs: vec![rounded] };
                self.after.push(step(prim, vec![last.clone()], out, of));
                last
            }
        };
        self.carries.push(Carry { start, current, next, last });
    }

    /// The dims that replace the cut one, the outermost first. A part is a range of rows if one device has all of them, else it
    /// has rows of each device.
    fn nested(&self) -> [Dim; 2] {
        match self.extents[1].axes.is_empty() {
            true => [self.part, self.row],
            false => [self.row, self.part],
        }
    }

    /// A buffer like that of an operand, with dims at its front, and with other dims instead of the one that is cut.
    fn replaced(&mut self, o: &Operand, front: &[Dim], by: &[Dim]) -> Operand {
        let held = self.plan.buffer(o.buf).clone();
        let own = |d: &Dim| (*d, self.extents[usize::from(*d == self.row)].clone());
        let others = o.dims.iter().zip(held.extents.clone()).flat_map(|(d, e)| match *d == self.dim {
            true => by.iter().map(own).collect(),
            false => vec![(*d, e)],
        });
        let (dims, extents) = front.iter().map(own).chain(others).unzip();
        self.buffer(Buffer { extents, ..held }, dims)
    }

    /// The part of an operand that an iteration has.
    fn of_part(&mut self, o: &Operand) -> Operand {
        self.replaced(o, &[], &[self.row])
    }

    /// All parts of an operand, one after the other.
    fn stack_of(&mut self, o: &Operand) -> Operand {
        self.replaced(o, &[self.part], &[self.row])
    }

    fn buffer(&mut self, buffer: Buffer, dims: Vec<Dim>) -> Operand {
        self.plan.buffers.push(buffer);
        Operand { buf: BufId(self.plan.buffers.len() as u32 - 1), dims }
    }
}

/// The phase and the provenance of a step.
type Of = (Phase, Option<Provenance>);

fn step(prim: Prim, reads: Vec<Operand>, out: Operand, (phase, origin): &Of) -> Step {
    Step { phase: *phase, origin: origin.iter().cloned().collect(), ..Step::new(prim, reads, vec![out]) }
}
