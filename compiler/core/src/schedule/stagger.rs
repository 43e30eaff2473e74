//! Loops whose communication is for another iteration than the one that computes (software pipelining): what gathers weights does so
//! one turn ahead of their readers, and a reduction behind which nothing of its own iteration could hide runs one turn later.
//!
//! Nothing is unrolled and nothing stands before or behind the loop a second time: a step has a [`Step::lag`], and in the first
//! and the last turns those whose iteration does not exist are left out (the kernel-only code of Rau, Schlansker and
//! Tirumalai, "Code generation schema for modulo scheduled loops", 1992). What goes from one turn to the next is a carry.
//!
//! Each carry is one more value in memory. In a loop they hold no more than what collectives in flight may hold: first come
//! the gathers that are needed first, then the reductions that come last.

use super::overlap::flight_limit;
use meshwright_plan::{BufId, Collective, Operand, Plan, Prim, Step, StepLoop};
use std::collections::{BTreeMap, BTreeSet};

/// A reduction hides in its own iteration if this part of the iteration's operations, or more, comes after its operands.
const HIDING_PART: u64 = 4;

/// Staggers the steps of all loops.
pub fn stagger(mut plan: Plan) -> Plan {
    let limit = flight_limit(&plan);
    // What is done to a loop moves only what is behind its beginning.
    for k in (0..plan.loops().len()).rev() {
        let of = plan.loops()[k];
        if plan.dims.size(of.dim) > 1 {
            let body = Body::of(&plan, of);
            let ahead = body.ahead(limit);
            let behind = body.behind(limit - ahead.bytes, &ahead.steps);
            if !ahead.steps.is_empty() || !behind.steps.is_empty() {
                apart(&mut plan, of, &ahead, &behind);
            }
        }
    }
    plan
}

/// Steps that run in another turn than the others, and what is carried for them.
#[derive(Default)]
struct Shifted {
    steps: BTreeSet<usize>,
    /// Bytes of what is carried, on the device with the largest blocks.
    bytes: usize,
}

/// The body of a loop. Loops in it are not looked into.
struct Body<'a> {
    plan: &'a Plan,
    of: StepLoop,
    /// Its own steps, with the ends of loops in it.
    direct: Vec<usize>,
    /// Which of its own steps makes a buffer.
    made: BTreeMap<BufId, usize>,
    /// Which steps read a buffer, also those of loops in it.
    readers: BTreeMap<BufId, Vec<usize>>,
}

impl<'a> Body<'a> {
    fn of(plan: &'a Plan, of: StepLoop) -> Body<'a> {
        let inner: Vec<StepLoop> = plan.loops().into_iter().filter(|l| of.contains(l.begin)).collect();
        let steps = of.begin + 1..of.end;
        let direct: Vec<usize> = steps.clone().filter(|s| !inner.iter().any(|l| l.contains(*s))).collect();
        let made = direct.iter().flat_map(|s| plan.steps[*s].writes.iter().map(|o| (o.buf, *s))).collect();
        let mut readers: BTreeMap<BufId, Vec<usize>> = BTreeMap::new();
        for s in steps.chain([of.end]) {
            for o in &plan.steps[s].reads {
                readers.entry(o.buf).or_default().push(s);
            }
        }
        Body { plan, of, direct, made, readers }
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
            let mut leading = BTreeSet::from([at]);
            if group.bytes + bytes <= limit && self.leads(at, &mut leading) {
                group.bytes += bytes;
                group.steps.extend(leading);
            }
        }
        group
    }

    /// Whether a step depends on nothing that the loop changes, and adds what it depends on.
    fn leads(&self, at: usize, leading: &mut BTreeSet<usize>) -> bool {
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

    /// Reductions after whose operands little is computed in the iteration, with what stores their results; nothing else reads them.
    fn behind(&self, limit: usize, ahead: &BTreeSet<usize>) -> Shifted {
        let times = self.plan.times();
        let work = |from: usize| -> u64 {
            (from..self.of.end).map(|s| times[s].saturating_mul(self.step(s).flops(self.plan))).sum()
        };
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

    /// A step with all that reads its results, if these lead to carries alone that nothing else reads.
    fn stores(&self, at: usize) -> Option<BTreeSet<usize>> {
        let mut found = BTreeSet::from([at]);
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

/// Gives the steps of a loop their lags, with a carry for each buffer that goes from one turn to the next.
fn apart(plan: &mut Plan, of: StepLoop, ahead: &Shifted, behind: &Shifted) {
    let body = Body::of(plan, of);
    let lag = u8::from(!ahead.steps.is_empty());
    // What runs ahead writes buffers of its own: those that are read are currents from now on.
    let mut renamed: BTreeMap<BufId, BufId> = BTreeMap::new();
    let (mut buffers, mut handed) = (plan.buffers.clone(), Vec::new());
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
            if gathers(&step) && body.readers(o.buf).iter().any(|s| !ahead.steps.contains(s)) {
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
    let mut delayed: BTreeMap<BufId, BufId> = BTreeMap::new();
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
    // A slice or a cast that others read too is made for both.
    let mut moved = BTreeSet::new();
    for at in ahead.steps.iter().rev() {
        let gone = |s: &usize| moved.contains(s);
        let step = &plan.steps[*at];
        if gathers(step) || step.writes.iter().all(|o| body.readers(o.buf).iter().all(gone)) {
            moved.insert(*at);
        }
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
