//! Checks that each buffer of a Plan is written once, read only while alive, and ends at most once.

use meshwright_plan::{BufId, Plan, Prim, Step};
use std::collections::{BTreeMap, BTreeSet};

/// Which buffers are alive.
pub struct Lifetimes {
    alive: BTreeSet<BufId>,
    /// By id of the collective, the step that started it and its results, which are alive when it was waited for.
    in_flight: BTreeMap<u32, (usize, Vec<BufId>)>,
}

impl Lifetimes {
    /// Before the first step.
    pub fn new(plan: &Plan) -> Lifetimes {
        let alive = plan.program_inputs.iter().map(|l| l.buf).collect();
        Lifetimes { alive, in_flight: BTreeMap::new() }
    }

    /// A step, or what is wrong with it.
    pub fn step(&mut self, index: usize, step: &Step) -> Result<(), String> {
        if let (Prim::Wait, Some(id)) = (&step.prim, step.async_id) {
            self.alive.extend(self.in_flight.remove(&id).map_or(vec![], |(_, results)| results));
        }
        if let Some(dead) = step.reads.iter().find(|o| !self.alive.contains(&o.buf)) {
            return Err(format!("buffer {} is read while it holds nothing", dead.buf.0));
        }
        for operand in &step.writes {
            if !self.alive.insert(operand.buf) {
                return Err(format!("buffer {} is written twice", operand.buf.0));
            }
        }
        if let (Prim::Collective(_), Some(id)) = (&step.prim, step.async_id) {
            let results: Vec<BufId> = step.writes.iter().map(|o| o.buf).collect();
            self.alive.retain(|b| !results.contains(b));
            if self.in_flight.insert(id, (index, results)).is_some() {
                return Err(format!("the async collective {id} is started twice"));
            }
        }
        for buf in step.free.iter().copied().chain(step.aliases.iter().map(|r| r.0)) {
            if !self.alive.remove(&buf) {
                return Err(format!("buffer {} is released while it holds nothing", buf.0));
            }
        }
        Ok(())
    }

    /// The buffers that are alive at the end, or what is wrong with it, and of which step.
    pub fn end(self, plan: &Plan) -> Result<BTreeSet<BufId>, (Option<usize>, String)> {
        if let Some((start, _)) = self.in_flight.values().next() {
            return Err((Some(*start), "what it starts is never waited for".into()));
        }
        let ends =
            plan.outputs.iter().map(|o| o.buf).chain(plan.program_inputs.iter().filter_map(|l| l.next));
        match ends.into_iter().find(|b| !self.alive.contains(b)) {
            Some(buf) => Err((None, format!("buffer {} is not alive at the end of the plan", buf.0))),
            None => Ok(self.alive),
        }
    }
}
