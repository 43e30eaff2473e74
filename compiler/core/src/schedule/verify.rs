//! What must hold of a Plan; all findings at once.
//!
//! 1. A buffer is written once, before it is read, and not after it has ended.
//! 2. Storage is handed on only where its buffer ends, once, to a buffer of the same shape and dtype, by a step that reads it
//!    in the order in which it writes the result.
//! 3. What outlives the step (outputs, next values, unchanged parameters) does not end in it; all else that it uses does.
//! 4. A step has as many operands and results as its primitive takes and gives, with the dims of their buffers; maps write one iteration space; sums have both factors.
//! 5. What a collective in flight reads and writes neither ends nor is handed on before it is waited for, and its results
//!    are not read; it is waited for once, with all its results. Flights are numbered in the order of starts.
//! 6. A collective's result is placed as its operand and its axes give.
//! 7. A result is partial over the axes that the step and its operands give; program inputs, next values and outputs are
//!    finished. The dim of a row is whole on each device.

use meshwright_plan::{
    BufId, Collective, Dim, Extent, Operand, Plan, Prim, ProgramInput, ProgramInputKind, Step,
};
use std::collections::BTreeSet;

/// Every violation, in words; empty for a sound Plan.
pub fn verify_plan(plan: &Plan) -> Vec<String> {
    let mut v = Vec::new();
    let mut alive: BTreeSet<BufId> = plan.program_inputs.iter().map(|l| l.buf).collect();
    let mut written = alive.clone();
    let mut flights = Flights::default();
    for (i, step) in plan.steps.iter().enumerate() {
        let at = format!("step {i} ({})", step.name());
        flights.step(step, &at, &mut v);
        if !step.fits() {
            v.push(format!("{at}: {} operands and {} results", step.reads.len(), step.writes.len()));
            continue;
        }
        for o in &step.reads {
            if !alive.contains(&o.buf) {
                v.push(format!("{at}: reads buffer {} which is not there", o.buf.0));
            }
        }
        for o in step.all() {
            let b = plan.buffer(o.buf);
            if b.extents.len() != o.dims.len()
                || b.extents.iter().zip(&o.dims).any(|(e, d)| Some(e.size) != plan.dims.get(*d))
            {
                v.push(format!("{at}: buffer {} is read with dims that it does not have", o.buf.0));
            }
        }
        for o in &step.writes {
            if !written.insert(o.buf) {
                v.push(format!("{at}: writes buffer {} again", o.buf.0));
            }
            alive.insert(o.buf);
        }
        shapes(plan, step, &at, &mut v);
        partial(plan, step, &at, &mut v);
        for (from, to) in &step.aliases {
            let fits = plan.same_storage(*from, *to) && step.may_donate(*from, *to);
            if !alive.remove(from) || !fits || step.aliases.iter().filter(|r| r.1 == *to).count() > 1 {
                v.push(format!("{at}: storage of {} cannot go to {}", from.0, to.0));
            }
        }
        for b in &step.free {
            if !alive.remove(b) {
                v.push(format!("{at}: frees buffer {} which is not there", b.0));
            }
        }
    }
    flights.end(&mut v);
    let used: BTreeSet<BufId> = plan.steps.iter().flat_map(Step::all).map(|o| o.buf).collect();
    let keeps =
        |l: &&ProgramInput| matches!(l.kind, ProgramInputKind::Param | ProgramInputKind::OptimizerState);
    let mut stays: BTreeSet<BufId> = plan.outputs.iter().map(|o| o.buf).collect();
    stays.extend(plan.program_inputs.iter().filter_map(|l| l.next));
    stays.extend(plan.program_inputs.iter().filter(keeps).filter(|l| l.next.is_none()).map(|l| l.buf));
    for b in alive.iter().filter(|b| used.contains(b) && !stays.contains(b)) {
        v.push(format!("buffer {} never ends", b.0));
    }
    let ends = plan.program_inputs.iter().flat_map(|l| l.next.into_iter().chain([l.buf]));
    for b in ends.chain(plan.outputs.iter().map(|o| o.buf)) {
        if !plan.buffer(b).partial.is_empty() {
            v.push(format!("buffer {} is partial where the step begins or ends", b.0));
        }
    }
    for o in &plan.outputs {
        if !alive.contains(&o.buf) {
            v.push(format!("output `{}` has ended", o.name));
        }
    }
    for l in &plan.program_inputs {
        if keeps(&l) && !alive.contains(&l.next.unwrap_or(l.buf)) {
            v.push(format!("`{}` has ended", l.name));
        }
        if let Some(n) = l.next
            && plan.buffer(n) != plan.buffer(l.buf)
        {
            v.push(format!("the next value of `{}` is stored otherwise", l.name));
        }
    }
    v
}

/// What is in flight: number, what it reads (but for what ended at its start), and its results.
#[derive(Default)]
struct Flights {
    open: Vec<(u32, Vec<BufId>, Vec<BufId>)>,
    started: u32,
}

impl Flights {
    fn step(&mut self, step: &Step, at: &str, v: &mut Vec<String>) {
        let of = |operands: &[Operand]| operands.iter().map(|o| o.buf).collect::<Vec<_>>();
        let (reads, writes) = (of(&step.reads), of(&step.writes));
        if matches!(step.prim, Prim::Wait) {
            match self.open.iter().position(|f| Some(f.0) == step.async_id) {
                Some(i) => {
                    let (_, _, results) = self.open.remove(i);
                    if results != reads {
                        v.push(format!("{at}: waits for other results than those of its collective"));
                    }
                }
                None => v.push(format!("{at}: nothing is in flight that it could wait for")),
            }
        }
        for (flight, _, results) in &self.open {
            for b in reads.iter().filter(|b| results.contains(b)) {
                v.push(format!("{at}: reads buffer {}, which is in flight ({flight})", b.0));
            }
        }
        let donated: Vec<BufId> = step.aliases.iter().map(|r| r.0).collect();
        for (flight, operands, results) in &self.open {
            for b in step.free.iter().chain(&donated).filter(|b| operands.contains(b) || results.contains(b))
            {
                v.push(format!("{at}: ends buffer {}, which is in flight ({flight})", b.0));
            }
        }
        match (&step.prim, step.async_id) {
            (Prim::Wait, _) | (_, None) => {}
            (Prim::Collective(_), Some(flight)) => {
                if flight != self.started {
                    v.push(format!("{at}: starts flight {flight}, where {} is next", self.started));
                }
                self.started += 1;
                if let Some(b) = step.free.iter().find(|b| reads.contains(b) || writes.contains(b)) {
                    v.push(format!("{at}: ends buffer {}, which it has just sent off", b.0));
                }
                let operands = reads.into_iter().filter(|b| !donated.contains(b)).collect();
                self.open.push((flight, operands, writes));
            }
            (_, Some(_)) => v.push(format!("{at}: is no collective and has a flight")),
        }
    }

    fn end(self, v: &mut Vec<String>) {
        for (flight, ..) in self.open {
            v.push(format!("flight {flight} is never waited for"));
        }
    }
}

fn extent<'a>(plan: &'a Plan, o: &Operand, dim: Dim) -> Option<&'a Extent> {
    o.dims.iter().position(|d| *d == dim).map(|i| &plan.buffer(o.buf).extents[i])
}

fn shapes(plan: &Plan, step: &Step, at: &str, v: &mut Vec<String>) {
    match &step.prim {
        Prim::Map { .. } => {
            let space = |o: &Operand| (o.dims.clone(), plan.buffer(o.buf).extents.clone());
            for o in &step.writes {
                if space(o) != space(&step.writes[0]) {
                    v.push(format!("{at}: writes two iteration spaces"));
                }
            }
            for i in &step.reads {
                for d in &i.dims {
                    if extent(plan, i, *d) != extent(plan, &step.writes[0], *d) {
                        v.push(format!("{at}: buffer {} is split otherwise than the result", i.buf.0));
                    }
                }
            }
        }
        Prim::Contract => {
            for d in step.all().flat_map(|o| &o.dims) {
                let all: Vec<&Extent> = step.all().filter_map(|o| extent(plan, o, *d)).collect();
                if all.len() < 2 || all.iter().any(|e| *e != all[0]) {
                    v.push(format!("{at}: a dim does not match over the operands"));
                }
            }
        }
        Prim::Collective(c) => {
            let dtype = |o: &Operand| plan.buffer(o.buf).dtype;
            if step.all().any(|o| dtype(o) != dtype(&step.reads[0])) {
                v.push(format!("{at}: operands and results are of several dtypes"));
            }
            for (k, (from, to)) in step.reads.iter().zip(&step.writes).enumerate() {
                collective(plan, (c, k), [from, to], at, v);
            }
        }
        _ => {}
    }
}

fn partial(plan: &Plan, step: &Step, at: &str, v: &mut Vec<String>) {
    if let Some(dim) = step.prim.spec().row
        && step.all().filter_map(|o| extent(plan, o, dim)).any(|e| !e.axes.is_empty())
    {
        v.push(format!("{at}: needs all of a dim that is split"));
    }
    if !step.computes() {
        return;
    }
    match step.partial(plan) {
        Err(why) => v.push(format!("{at}: {why}")),
        Ok(inferred) => {
            for (o, p) in step.writes.iter().zip(inferred) {
                if plan.buffer(o.buf).partial != p {
                    v.push(format!("{at}: buffer {} is partial otherwise than the step makes it", o.buf.0));
                }
            }
        }
    }
}

fn collective(
    plan: &Plan,
    (c, operand): (&Collective, usize),
    [from, to]: [&Operand; 2],
    at: &str,
    v: &mut Vec<String>,
) {
    if from.dims != to.dims {
        v.push(format!("{at}: operand and result have other dims"));
        return;
    }
    if c.apply_to(operand, &plan.placement(from)) != Some(plan.placement(to)) {
        v.push(format!("{at}: the result is not placed as the collective leaves it"));
    }
}
