//! Checks decisions by walking the steps of a Plan in the order of the device, on buffers that are nothing but names.
//!
//! A buffer is written once, read only while it is live, and ends at most once. What is fused away is read by the launch that computes it alone. Each
//! step is computed once, or nothing needs it. Collectives, waits and loops keep the Plan's order, and steps stay in their loop. What outlives the
//! Plan outlives its launches, and nothing else does.

use crate::decisions::def_use::{DefUse, ended};
use crate::decisions::{Decisions, Role};
use crate::kernels::Kernel;
use crate::lowering::local::Local;
use crate::passes::epilogues::EpilogueKind;
use crate::passes::fp8_matmuls::Fp8Matmuls;
use crate::passes::residuals::ResidualStep;
use crate::passes::rounded_factors::verify_rounded;
use crate::passes::step_order::StepOrder;
use meshwright_plan::{BufId, Fp8, Operand, Plan, Prim, Step};
use meshwright_sorted::{SortedMap, SortedSet};

/// A contradiction, and its step.
pub type Problem = (Option<usize>, String);

/// The buffers that are live at the end of a Plan, if each step is a launch.
///
/// # Errors
/// If the Plan contradicts itself.
pub fn left(uses: &DefUse<'_>) -> Result<SortedSet<BufId>, Problem> {
    walk(uses, &Decisions::default())
}

/// Checks decisions.
///
/// # Errors
/// The first invariant that is broken, and at which step.
pub fn verify(uses: &DefUse<'_>, decisions: &Decisions, left: &SortedSet<BufId>) -> Result<(), Problem> {
    verify_rounded(uses.plan, &decisions.rounded).map_err(|problem| (None, problem))?;
    residuals_match(uses, decisions)?;
    bits_match(uses, decisions)?;
    sums_match(uses, decisions)?;
    products_match(uses, decisions)?;
    codes_match(uses, &decisions.fp8)?;
    let found = walk(uses, decisions)?;
    let gone = |b: &&BufId| !decisions.is_never_made(**b) && !decisions.residuals.buffers.contains(b);
    if let Some(buf) = left.iter().filter(gone).find(|b| !found.contains(b)) {
        return Err((None, format!("buffer {} ends, and the Plan needs it later", buf.0)));
    }
    match found.iter().find(|b| !left.contains(b)) {
        Some(buf) => Err((None, format!("buffer {} never ends", buf.0))),
        None => Ok(()),
    }
}

fn walk(uses: &DefUse<'_>, decisions: &Decisions) -> Result<SortedSet<BufId>, Problem> {
    let plan = uses.plan;
    let plain;
    let order = match decisions.order.steps.is_empty() {
        true => {
            let order = StepOrder::of(uses, &decisions.fused, &decisions.inlined, false);
            plain = order.with_scales(uses, &decisions.fp8);
            &plain
        }
        false => &decisions.order,
    };
    keeps_order(uses, &order.steps)?;
    let mut walk = DecisionVerifier {
        uses,
        decisions,
        order,
        alive: LiveBuffers::new(plan),
        in_flight: SortedMap::new(),
        computed: vec![false; plan.steps.len()],
        postponed: SortedMap::new(),
    };
    for at in &order.steps {
        walk.step(*at).map_err(|problem| (Some(*at), problem))?;
    }
    walk.end()
}

/// Fails unless the order has each step once, in its loop, and keeps synchronizing steps in the Plan's order.
fn keeps_order(uses: &DefUse<'_>, order: &[usize]) -> Result<(), Problem> {
    let steps = &uses.plan.steps;
    let (mut seen, mut open, mut before) = (vec![false; steps.len()], vec![], None);
    for at in order {
        let wrong = |problem: &str| Err((Some(*at), problem.to_string()));
        let Some(step) = steps.get(*at).filter(|_| !std::mem::replace(&mut seen[*at], true)) else {
            return wrong("it is twice in the order");
        };
        if let Prim::EndRepeat = step.prim {
            open.pop();
        }
        if uses.within[*at] != open.last().copied() {
            return wrong("it is moved out of its loop");
        }
        if let Prim::Repeat { .. } = step.prim {
            open.push(*at);
        }
        let fixed = step.communicates() || matches!(step.prim, Prim::Repeat { .. } | Prim::EndRepeat);
        if fixed && before.replace(*at).is_some_and(|before| before > *at) {
            return wrong("it comes before one that the Plan has earlier");
        }
    }
    match seen.iter().position(|seen| !seen) {
        Some(at) => Err((Some(at), "it is not in the order".into())),
        None => Ok(()),
    }
}

/// Fails unless each value that is read in place of a slice of a stack was left there, and ends with its last reader.
fn residuals_match(uses: &DefUse<'_>, decisions: &Decisions) -> Result<(), Problem> {
    let steps = &uses.plan.steps;
    for (end, begin) in &uses.begins {
        let starts = steps[*begin].reads.iter().zip(&steps[*begin].writes);
        for ((start, current), (next, after)) in starts.zip(steps[*end].reads.iter().zip(&steps[*end].writes))
        {
            let is_stack = |o: &Operand| decisions.residuals.buffers.contains(&o.buf);
            if [current, next, after].into_iter().any(|o| is_stack(o) != is_stack(start)) {
                return Err((Some(*begin), format!("buffer {} is made in part of a loop", start.buf.0)));
            }
        }
    }
    let mut stacks: SortedMap<BufId, (usize, Vec<usize>, Vec<usize>)> = SortedMap::new();
    for (at, how) in &decisions.residuals.steps {
        match how {
            ResidualStep::Nothing => {}
            ResidualStep::Store { stack, .. } => stacks.entry(*stack).or_default().0 = *at + 1,
            ResidualStep::Load { stack, last, .. } => {
                let of = stacks.entry(*stack).or_default();
                if *last { &mut of.2 } else { &mut of.1 }.push(*at);
            }
        }
    }
    for (stack, (stored, loads, last)) in stacks {
        let wrong =
            |at: usize, what: &str| Err((Some(at), format!("the values of buffer {}: {what}", stack.0)));
        let [last] = last[..] else {
            return wrong(stored.max(1) - 1, "one step must read them last");
        };
        if let Some(load) = loads.iter().chain([&last]).find(|load| stored == 0 || **load < stored) {
            return wrong(*load, "no earlier step leaves them");
        }
        if let Some(load) = loads.iter().find(|load| uses.order_of(**load) > uses.order_of(last)) {
            return wrong(*load, "they have ended");
        }
    }
    Ok(())
}

/// Fails unless bits of attention that a step reads are drawn before, in its iteration or in an earlier loop.
fn bits_match(uses: &DefUse<'_>, decisions: &Decisions) -> Result<(), Problem> {
    let Decisions { attention_bits: bits, order, .. } = decisions;
    let wrong = |at: usize, what: &str| Err((Some(at), format!("bits of its attention {what}")));
    let mut read = SortedSet::new();
    for (step, by) in &bits.shared {
        if !uses.is_beside(*by, *step) || order.place[*by] >= order.place[*step] {
            return wrong(*step, "are drawn later, or in another iteration");
        }
        if bits.loaded.contains_key(step) || !read.insert(*by) {
            return wrong(*step, "are taken from two steps, or for two");
        }
    }
    for (step, kept) in &bits.loaded {
        let mut stored = bits.stored.iter().filter(|(_, other)| *other == kept).map(|(by, _)| by);
        let (Some(by), None) = (stored.next(), stored.next()) else {
            return wrong(*step, "are not left by one loop");
        };
        let apart = uses.within[*by] != uses.within[*step] && order.place[*by] < order.place[*step];
        if !apart || read.contains(by) {
            return wrong(*step, "are not left by an earlier loop");
        }
    }
    match bits.stored.iter().find(|(_, kept)| !bits.loaded.values().any(|other| other == *kept)) {
        Some((by, _)) => wrong(*by, "are left, and nothing reads them"),
        None => Ok(()),
    }
}

/// Fails unless each value that ends with a matmul is what is added to it, and neither a factor.
fn sums_match(uses: &DefUse<'_>, decisions: &Decisions) -> Result<(), Problem> {
    let epilogues = &decisions.epilogues;
    let mut ends = SortedMap::new();
    for (at, epilogue) in &epilogues.at {
        let EpilogueKind::Adds { product, .. } = epilogue.does else { continue };
        let reads = &uses.plan.steps[epilogue.other].reads;
        let Some(value) = reads.get(1 - product.min(1)) else {
            return Err((Some(epilogue.other), "it adds nothing to its matmul".into()));
        };
        if uses.plan.steps[*at].reads_buf(value.buf) {
            return Err((
                Some(*at),
                format!("buffer {} is a factor, and the sum is made there", value.buf.0),
            ));
        }
        ends.insert(value.buf, *at);
    }
    match ends == epilogues.added {
        true => Ok(()),
        false => Err((None, "another value ends with a matmul than the one that it is added to".into())),
    }
}

/// Fails unless the operands and results of products that are one launch are those of the steps, and one factor is that of all.
fn products_match(uses: &DefUse<'_>, decisions: &Decisions) -> Result<(), Problem> {
    let steps = &uses.plan.steps;
    for group in decisions.fused.at.values() {
        let Kernel::MatmulGroup(call) = &group.call.kernel else { continue };
        let wrong = |what: &str| Err((Some(group.last()), format!("products that are one launch {what}")));
        let contracts = group.steps.iter().filter(|at| matches!(steps[**at].prim, Prim::Contract));
        let contracts: Vec<&Step> = contracts.map(|at| &steps[*at]).collect();
        let of = |all: &[Local], n: usize| all.get(n).map(|local| local.buf);
        let (reads, writes) = (&group.call.reads, &group.call.writes);
        if contracts.len() != call.count || call.count < 2 {
            return wrong("are not those of its steps");
        }
        for (n, step) in contracts.into_iter().enumerate() {
            let mut own = step.reads.iter().filter(|o| Some(o.buf) != of(reads, 0));
            if own.next().map(|o| o.buf) != of(reads, 1 + n) || own.next().is_some() {
                return wrong("have other factors than their steps");
            }
            let made = step.writes.first().map(|o| o.buf);
            let biased =
                group.steps.iter().map(|at| &steps[*at]).find(|s| made.is_some_and(|m| s.reads_buf(m)));
            let bias = biased.and_then(|s| s.reads.iter().map(|o| o.buf).find(|buf| Some(*buf) != made));
            if bias.is_some() && bias != of(reads, 1 + call.count + n) {
                return wrong("have other biases than their steps");
            }
            let made = biased.map_or(made, |s| s.writes.first().map(|o| o.buf));
            if made != of(writes, n) {
                return wrong("have other results than their steps");
            }
        }
    }
    Ok(())
}

/// Fails unless each value that is stored as codes is rounded by its step, in an order that its consumers read, and these are matmuls of two such
/// values, one of which is E4M3.
fn codes_match(uses: &DefUse<'_>, fp8: &Fp8Matmuls) -> Result<(), Problem> {
    let steps = &uses.plan.steps;
    for (buf, factor) in &fp8.factors {
        let wrong =
            |at: usize, what: &str| Err((Some(at), format!("buffer {}, stored as codes, {what}", buf.0)));
        let rounds = |step: &Step| step.writes.iter().any(|o| o.buf == *buf);
        if !steps.get(factor.step).is_some_and(rounds) || uses.writers.get(buf).is_none_or(|by| by.len() != 1)
        {
            return wrong(factor.step, "is not rounded by one step");
        }
        if !factor.plain && !factor.turned {
            return wrong(factor.step, "has no order");
        }
        for reader in uses.readers.get(buf).into_iter().flatten() {
            let both: Vec<_> = steps[*reader].reads.iter().filter_map(|o| fp8.factors.get(&o.buf)).collect();
            let [one, two] = both[..] else { return wrong(*reader, "is read with what is not") };
            if !matches!(steps[*reader].prim, Prim::Contract) {
                return wrong(*reader, "is read by another step than a matmul");
            }
            if [one, two].iter().all(|f| f.format == Fp8::E5M2) {
                return wrong(*reader, "is multiplied with E5M2, and both are");
            }
        }
    }
    Ok(())
}

/// The buffers that hold something: a table, since the verifier runs after each pass.
struct LiveBuffers(Vec<bool>);

impl LiveBuffers {
    fn new(plan: &Plan) -> LiveBuffers {
        let mut live = LiveBuffers(vec![false; plan.buffers.len()]);
        for input in &plan.program_inputs {
            live.insert(input.buf);
        }
        live
    }

    fn contains(&self, buf: BufId) -> bool {
        self.0.get(buf.0 as usize).is_some_and(|live| *live)
    }

    /// Whether it is new.
    fn insert(&mut self, buf: BufId) -> bool {
        self.0.get_mut(buf.0 as usize).is_some_and(|live| !std::mem::replace(live, true))
    }

    /// Whether it was live.
    fn remove(&mut self, buf: BufId) -> bool {
        self.0.get_mut(buf.0 as usize).is_some_and(std::mem::take)
    }

    fn into_set(self) -> SortedSet<BufId> {
        (0..).zip(self.0).filter(|(_, live)| *live).map(|(id, _)| BufId(id)).collect()
    }
}

struct DecisionVerifier<'a> {
    uses: &'a DefUse<'a>,
    decisions: &'a Decisions,
    order: &'a StepOrder,
    alive: LiveBuffers,
    /// Collectives in flight by id: the step that started it, and its results, which are live after the wait.
    in_flight: SortedMap<u32, (usize, Vec<BufId>)>,
    /// Steps that a launch has computed.
    computed: Vec<bool>,
    /// Buffers that end later than in the Plan, by the step that ends them.
    postponed: SortedMap<usize, Vec<BufId>>,
}

impl DecisionVerifier<'_> {
    fn step(&mut self, at: usize) -> Result<(), String> {
        let plan: &Plan = self.uses.plan;
        let Decisions { residuals, epilogues, fused, .. } = self.decisions;
        match self.decisions.role(at) {
            Role::Fused => {}
            Role::Single | Role::Residual(_) => self.launch(&[at])?,
            Role::Group => self.launch(&fused.at[&at].steps)?,
            Role::Epilogue => {
                let epilogue = &epilogues.at[&at];
                epilogue.before.iter().try_for_each(|step| self.launch(&[*step]))?;
                let steps: Vec<usize> = std::iter::once(at).chain(epilogue.others()).collect();
                self.launch(&steps)?;
                let ends = epilogues.added.iter().filter(|(_, by)| **by == at);
                ends.into_iter().try_for_each(|(buf, _)| self.release(*buf))?;
                epilogue.after.iter().try_for_each(|step| self.launch(&[*step]))?;
            }
        }
        let mut ending = self.postponed.remove(&at).unwrap_or_default();
        for buf in ended(&plan.steps[at]) {
            let elsewhere = residuals.buffers.contains(&buf) || epilogues.added.contains_key(&buf);
            if self.decisions.is_never_made(buf) || elsewhere {
                continue;
            }
            match self.order.end_of(buf, at) {
                by if by == at => ending.push(buf),
                by => self.postponed.entry(by).or_default().push(buf),
            }
        }
        match epilogues.moved.get(&at).filter(|to| self.order.place[**to] > self.order.place[at]) {
            Some(to) => self.postponed.entry(*to).or_default().extend(ending),
            None => ending.into_iter().try_for_each(|buf| self.release(buf))?,
        }
        Ok(())
    }

    fn release(&mut self, buf: BufId) -> Result<(), String> {
        match self.alive.remove(buf) {
            true => Ok(()),
            false => Err(format!("buffer {} is released while it holds nothing", buf.0)),
        }
    }

    /// Steps that are one launch.
    fn launch(&mut self, steps: &[usize]) -> Result<(), String> {
        let plan: &Plan = self.uses.plan;
        let mut within = SortedSet::new();
        for at in steps {
            let step = plan.steps.get(*at).ok_or_else(|| format!("there is no step {at}"))?;
            if !self.uses.is_beside(steps[0], *at) {
                return Err(format!("step {at} is in another iteration than its launch"));
            }
            if std::mem::replace(&mut self.computed[*at], true) {
                return Err(format!("step {at} is computed twice"));
            }
            if let (Prim::Wait, Some(id)) = (&step.prim, step.async_id) {
                let results = self.in_flight.remove(&id).map_or(vec![], |(_, results)| results);
                for buf in results {
                    self.alive.insert(buf);
                }
            }
            let read = self.reads(*at, step)?;
            if let Some(dead) = read.iter().find(|b| !self.alive.contains(**b) && !within.contains(*b)) {
                return Err(format!("buffer {} is read while it holds nothing", dead.0));
            }
            let written: Vec<BufId> = step.writes.iter().map(|o| o.buf).collect();
            for buf in written.iter().filter(|b| !self.decisions.residuals.buffers.contains(b)) {
                within.insert(*buf);
                if !self.decisions.is_never_made(*buf) && !self.alive.insert(*buf) {
                    return Err(format!("buffer {} is written twice", buf.0));
                }
            }
            if let (Prim::Collective(_), Some(id)) = (&step.prim, step.async_id) {
                for buf in &written {
                    self.alive.remove(*buf);
                }
                if self.in_flight.insert(id, (*at, written)).is_some() {
                    return Err(format!("the async collective {id} is started twice"));
                }
            }
        }
        Ok(())
    }

    /// The buffers that the launch of a step reads for it.
    fn reads(&self, at: usize, step: &Step) -> Result<Vec<BufId>, String> {
        let Decisions { residuals, masks, inlined, fp8, .. } = self.decisions;
        let mut read = vec![];
        if let Prim::Contract = step.prim {
            let factors = step.reads.iter().filter_map(|o| fp8.factors.get(&o.buf));
            read.extend(factors.map(|factor| factor.inverse.buf));
        }
        for buf in step.reads.iter().map(|o| o.buf) {
            match inlined.values.get(&buf) {
                Some(value) if value.by != at => {
                    return Err(format!("buffer {} is computed by step {} alone", buf.0, value.by));
                }
                Some(value) => read.extend(value.reads.iter().map(|o| o.buf)),
                None => read.push(buf),
            }
        }
        read.retain(|b| !residuals.buffers.contains(b) && !masks.drawn_by.contains_key(b));
        Ok(read)
    }

    fn end(self) -> Result<SortedSet<BufId>, Problem> {
        let plan = self.uses.plan;
        if let Some((start, _)) = self.in_flight.values().next() {
            return Err((Some(*start), "what it starts is never waited for".into()));
        }
        let Decisions { masks, inlined, .. } = self.decisions;
        let needed = |at: &usize| !masks.skipped.contains(at) && !inlined.skipped.contains(at);
        if let Some(at) = (0..self.computed.len()).find(|at| needed(at) != self.computed[*at]) {
            let problem =
                if self.computed[at] { "it is computed, and skipped" } else { "no launch computes it" };
            return Err((Some(at), problem.into()));
        }
        let ends =
            plan.outputs.iter().map(|o| o.buf).chain(plan.program_inputs.iter().filter_map(|l| l.next));
        match ends.into_iter().find(|b| !self.alive.contains(*b)) {
            Some(buf) => Err((None, format!("buffer {} is not alive at the end of the plan", buf.0))),
            None => Ok(self.alive.into_set()),
        }
    }
}
