//! Loops whose communication is for another iteration than the one that computes (software pipelining): what gathers weights does
//! so one turn ahead of their readers, and a reduction behind which nothing of its own iteration could hide runs one turn later.
//!
//! Nothing is unrolled and nothing stands before or behind the loop a second time: a step has a [`Step::lag`], and in the first
//! and the last turns those whose iteration does not exist are left out (the kernel-only code of Rau, Schlansker and
//! Tirumalai, "Code generation schema for modulo scheduled loops", 1992). What goes from one turn to the next is a carry.
//!
//! Each carry is one more value in memory. In a loop they hold no more than what collectives in flight may hold: first come
//! the gathers that are needed first, then the reductions that come last.

use super::overlap::flight_limit;
use meshwright_plan::{BufId, Collective, Operand, Plan, Prim, Step, StepLoop};
use meshwright_sorted::{SortedMap, SortedSet};

/// A reduction hides in its own iteration if this part of the iteration's operations, or more, comes after its operands.
const HIDING_PART: u64 = 4;

/// Staggers the steps of all loops.
pub fn stagger(mut plan: Plan) -> Plan {
    let limit = flight_limit(&plan);
    let (mut loops, times) = (plan.loops(), plan.times());
    // Steps after the loops that are not done yet, from the last piece to the first: they move no more.
    let mut done: Vec<Vec<Step>> = Vec::new();
    // A change of a loop moves only steps after its begin.
    for k in (0..loops.len()).rev() {
        let of = loops[k];
        let around = loops[..k].iter().map(|l| l.end).max().unwrap_or(0);
        if around < of.begin && of.end + 1 < plan.steps.len() {
            done.push(plan.steps.split_off(of.end + 1));
        }
        // Microbatches pass stages in an order of their own: one ends before the next begins.
        let sends = |s: &Step| matches!(s.prim, Prim::Send { .. });
        let passes = plan.pipeline.is_some() && plan.microbatches.is_some_and(|m| m.over == of.dim);
        if of.most > 1 && !passes && !plan.steps[of.begin..of.end].iter().any(sends) {
            let body = Body::of(&plan, of, times[of.begin]);
            let ahead = body.ahead(limit);
            let behind = body.behind(limit - ahead.bytes, &ahead.steps);
            if !ahead.steps.is_empty() || !behind.steps.is_empty() {
                let before = plan.steps.len();
                apart(&mut plan, of, &ahead, &behind);
                let more = plan.steps.len() - before;
                loops[..k].iter_mut().filter(|l| l.end > of.begin).for_each(|l| l.end += more);
            }
        }
    }
    plan.steps.extend(done.into_iter().rev().flatten());
    plan
}

/// Steps that run in another turn than the others, and what is carried for them.
#[derive(Default)]
struct Shifted {
    steps: SortedSet<usize>,
    /// Bytes of what is carried, on the device with the largest blocks.
    bytes: usize,
}

/// The body of a loop. Loops in it are not looked into.
struct Body<'a> {
    plan: &'a Plan,
    of: StepLoop,
    /// Runs in a step.
    times: u64,
    /// Its own steps, with the ends of loops in it.
    direct: Vec<usize>,
    /// Which of its own steps makes a buffer.
    made: SortedMap<BufId, usize>,
    /// Which steps read a buffer, also those of loops in it.
    readers: SortedMap<BufId, Vec<usize>>,
}

impl<'a> Body<'a> {
    fn of(plan: &'a Plan, of: StepLoop, times: u64) -> Body<'a> {
        let steps = of.begin + 1..of.end;
        let (mut depth, mut direct) = (0, Vec::new());
        for at in steps.clone() {
            depth -= usize::from(matches!(plan.steps[at].prim, Prim::EndRepeat));
            if depth == 0 {
                direct.push(at);
            }
            depth += usize::from(matches!(plan.steps[at].prim, Prim::Repeat { .. }));
        }
        let made = direct.iter().flat_map(|s| plan.steps[*s].writes.iter().map(|o| (o.buf, *s))).collect();
        let mut readers: SortedMap<BufId, Vec<usize>> = SortedMap::new();
        for s in steps.chain([of.end]) {
            for o in &plan.steps[s].reads {
                readers.entry(o.buf).or_default().push(s);
            }
        }
        Body { plan, of, times, direct, made, readers }
    }

    fn step(&self, at: usize) -> &'a Step {
        &self.plan.steps[at]
    }

    fn readers(&self, buf: BufId) -> &[usize] {
        self.readers.get(&buf).map_or(&[], Vec::as_slice)
    }

    /// Whether a buffer is a current of the loop, or is next for one.
    fn carried(&self, buf: BufId) -> bool {
        self.step(self.of.begin).writes_buf(buf) || self.step(self.of.end).reads_buf(buf)
    }

    fn bytes(&self, operands: &[Operand]) -> usize {
        operands.iter().map(|o| self.plan.buffer(o.buf).largest_bytes(&self.plan.mesh)).sum()
    }

    /// Gathers of what the loop does not change, with what leads to them.
    fn ahead(&self, limit: usize) -> Shifted {
        let first = |at: &usize| {
            let results = self.step(*at).writes.iter();
            results.flat_map(|o| self.readers(o.buf)).min().copied().unwrap_or(usize::MAX)
        };
        let mut gathers: Vec<usize> =
            self.direct.iter().copied().filter(|s| gathers(self.step(*s))).collect();
        gathers.sort_by_key(first);
        let mut group = Shifted::default();
        for at in gathers {
            let bytes = self.bytes(&self.step(at).writes);
            let mut leading = SortedSet::from([at]);
            if group.bytes + bytes <= limit && self.leads(at, &mut leading) {
                group.bytes += bytes;
                group.steps.extend(leading);
            }
        }
        group
    }

    /// Whether a step depends on nothing that the loop changes, and adds what it depends on.
    fn leads(&self, at: usize, leading: &mut SortedSet<usize>) -> bool {
        let step = self.step(at);
        let moves = matches!(step.prim, Prim::IterationSlice { .. } | Prim::Map { .. } | Prim::Copy);
        (moves || gathers(step))
            && !step.writes.iter().any(|o| self.carried(o.buf))
            && step.reads.iter().all(|o| match self.made.get(&o.buf) {
                Some(before) => {
                    leading.insert(*before);
                    self.leads(*before, leading)
                }
                None => !self.carried(o.buf),
            })
    }

    /// Reductions after whose operands little is computed in the iteration, with what stores their results; nothing else reads
    /// them.
    fn behind(&self, limit: usize, ahead: &SortedSet<usize>) -> Shifted {
        let rest = self.work();
        let work = |from: usize| rest[from - self.of.begin];
        let all = work(self.of.begin);
        let mut group = Shifted::default();
        for at in self.direct.iter().rev().copied().filter(|s| reduces(self.step(*s))) {
            let step = self.step(at);
            let bytes = self.bytes(&step.reads);
            let late = |o: &Operand| {
                let made = self.made.get(&o.buf).filter(|s| !ahead.contains(s) && !group.steps.contains(s));
                made.is_some() && !self.carried(o.buf)
            };
            let made = step.reads.iter().filter_map(|o| self.made.get(&o.buf)).max();
            let hides = work(made.map_or(at, |made| made + 1)) >= all / HIDING_PART;
            if hides || group.bytes + bytes > limit || !step.reads.iter().all(late) {
                continue;
            }
            if let Some(stores) = self.stores(at) {
                group.bytes += bytes;
                group.steps.extend(stores);
            }
        }
        group
    }

    /// The operations from each step of the loop on, to its end.
    fn work(&self) -> Vec<u64> {
        let mut now = vec![self.times];
        let mut all: Vec<u64> = Vec::with_capacity(self.of.end - self.of.begin + 1);
        for at in self.of.begin..self.of.end {
            let step = self.step(at);
            if let Prim::EndRepeat = step.prim {
                now.pop();
            }
            let times = now.last().copied().unwrap_or(1);
            if let Prim::Repeat { dim, from, .. } = step.prim {
                now.push(times.saturating_mul((self.plan.dims.size(dim) - from) as u64));
            }
            all.push(times.saturating_mul(step.flops(self.plan)));
        }
        all.push(0);
        for at in (1..all.len()).rev() {
            all[at - 1] = all[at - 1].saturating_add(all[at]);
        }
        all
    }

    /// A step with all that reads its results, if these lead to carries alone that nothing else reads.
    fn stores(&self, at: usize) -> Option<SortedSet<usize>> {
        let mut found = SortedSet::from([at]);
        let mut todo = vec![at];
        while let Some(from) = todo.pop() {
            for reader in self.step(from).writes.iter().flat_map(|o| self.readers(o.buf)).copied() {
                let stores = matches!(
                    self.step(reader).prim,
                    Prim::IterationUpdate { .. } | Prim::Map { .. } | Prim::Copy
                );
                if reader != self.of.end && found.insert(reader) {
                    if !stores || !self.direct.contains(&reader) {
                        return None;
                    }
                    todo.push(reader);
                }
            }
        }
        let (begin, end) = (self.step(self.of.begin), self.step(self.of.end));
        // The slice to which the result is added.
        let slices: Vec<usize> = found
            .iter()
            .filter(|s| **s != at)
            .flat_map(|s| &self.step(*s).reads)
            .filter_map(|o| {
                let slice = self.made.get(&o.buf)?;
                let alone = self.readers(o.buf).iter().all(|s| found.contains(s));
                (matches!(self.step(*slice).prim, Prim::IterationSlice { .. }) && alone).then_some(*slice)
            })
            .filter(|s| {
                self.step(*s).reads.iter().all(|o| !self.made.contains_key(&o.buf) && self.carried(o.buf))
            })
            .collect();
        found.extend(slices);
        let within = |o: &Operand| match self.made.get(&o.buf) {
            Some(made) => found.contains(made),
            None => {
                let carry = begin.writes.iter().position(|c| c.buf == o.buf);
                carry.is_none_or(|k| {
                    let next = self.made.get(&end.reads[k].buf);
                    next.is_some_and(|s| found.contains(s))
                        && self.readers(o.buf).iter().all(|s| found.contains(s))
                })
            }
        };
        let closed = found.iter().filter(|s| **s != at).all(|s| self.step(*s).reads.iter().all(within));
        // A carry whose next value is made here and whose current is read elsewhere would fall apart.
        let own = |k: usize| self.readers(begin.writes[k].buf).iter().all(|s| found.contains(s));
        let nexts = (0..end.reads.len())
            .filter(|k| self.made.get(&end.reads[*k].buf).is_some_and(|s| found.contains(s)));
        (closed && nexts.into_iter().all(own)).then_some(found)
    }
}

fn gathers(step: &Step) -> bool {
    matches!(step.collective(), Some(Collective::AllGather { .. }))
}

fn reduces(step: &Step) -> bool {
    step.collective().is_some_and(|c| c.spec().kind.folds())
}

/// Which steps run ahead alone. A slice or a cast that others read too is made for both.
fn only_ahead(body: &Body<'_>, ahead: &Shifted) -> SortedSet<usize> {
    let mut moved = SortedSet::new();
    for at in ahead.steps.iter().rev() {
        let gone = |s: &usize| moved.contains(s);
        let step = body.step(*at);
        if gathers(step) || step.writes.iter().all(|o| body.readers(o.buf).iter().all(gone)) {
            moved.insert(*at);
        }
    }
    moved
}

/// Gives the steps of a loop their lags, with a carry for each buffer that goes from one turn to the next.
fn apart(plan: &mut Plan, of: StepLoop, ahead: &Shifted, behind: &Shifted) {
    let mut buffers = std::mem::take(&mut plan.buffers);
    let body = Body::of(plan, of, 1);
    let lag = u8::from(!ahead.steps.is_empty());
    let mut moved = only_ahead(&body, ahead);
    // Leading steps write buffers of their own: readers of those buffers read currents from now on.
    let mut renamed: SortedMap<BufId, BufId> = SortedMap::new();
    let mut handed = Vec::new();
    let mut another = |buf: BufId| {
        buffers.push(buffers[buf.0 as usize].clone());
        BufId(buffers.len() as u32 - 1)
    };
    let (mut first, mut main, mut last) = (Vec::new(), Vec::new(), Vec::new());
    for at in &ahead.steps {
        let step = plan.steps[*at].clone();
        let mut early = Step { lag: 0, ..step.clone() };
        for (o, why) in early.writes.iter_mut().zip(&step.origin) {
            let fresh = another(o.buf);
            if gathers(&step) && body.readers(o.buf).iter().any(|s| !moved.contains(s)) {
                handed.push((o.clone(), Operand { buf: fresh, dims: o.dims.clone() }, why.clone()));
            }
            renamed.insert(o.buf, fresh);
            o.buf = fresh;
        }
        for o in &mut early.reads {
            o.buf = renamed.get(&o.buf).copied().unwrap_or(o.buf);
        }
        first.push(early);
    }
    let mut delayed: SortedMap<BufId, BufId> = SortedMap::new();
    for at in &behind.steps {
        let mut late = Step { lag: lag + 1, ..plan.steps[*at].clone() };
        let operands = late.reads.iter_mut().zip(&plan.steps[*at].origin);
        for (o, why) in operands.filter(|_| reduces(&plan.steps[*at])) {
            let next = o.clone();
            o.buf = *delayed.entry(next.buf).or_insert_with(|| {
                let current = another(next.buf);
                handed.push((Operand { buf: current, dims: next.dims.clone() }, next.clone(), why.clone()));
                current
            });
        }
        last.push(late);
    }
    moved.extend(&behind.steps);
    for at in of.begin + 1..of.end {
        let step = &plan.steps[at];
        if !moved.contains(&at) {
            main.push(Step { lag: if body.direct.contains(&at) { lag } else { step.lag }, ..step.clone() });
        }
    }
    let (mut begin, mut end) = (plan.steps[of.begin].clone(), plan.steps[of.end].clone());
    let mut blanks = Vec::new();
    for (current, next, why) in handed {
        let [start, after] = [(); 2].map(|()| Operand { buf: another(current.buf), ..current.clone() });
        let blank = Step::new(Prim::Blank { zero: false }, vec![], vec![start.clone()]);
        blanks.push(Step { phase: begin.phase, lag: begin.lag, origin: vec![why.clone()], ..blank });
        begin.origin.push(why.clone());
        end.origin.push(why);
        begin.reads.push(start);
        begin.writes.push(current);
        end.reads.push(next);
        end.writes.push(after);
    }
    plan.buffers = buffers;
    let body = first.into_iter().chain(main).chain(last);
    let all: Vec<Step> = blanks.into_iter().chain([begin]).chain(body).chain([end]).collect();
    plan.steps.splice(of.begin..=of.end, all);
}
