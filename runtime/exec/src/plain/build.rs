//! From a Plan to what one device runs: stretches of the backend's own operations, and collectives between them.

use super::collective::{Arrival, Request};
use super::emit::{Emit, Habits, Home, Table};
use super::lower::{Lower, is_pair};
use crate::build::{check_lifetimes, place};
use crate::collective::Prepared;
use crate::error::ExecError;
use crate::kernels::RandomKernel;
use crate::local::Here;
use crate::own::Unprepared;
use burn_ir::OperationIr;
use meshwright_plan::{BufId, DType, Monoid, Plan, Prim, Step};
use std::collections::{BTreeMap, BTreeSet};

/// Part of a program.
pub(crate) enum Piece {
    /// Operations, with the step of the Plan that each belongs to.
    Segment(Vec<(OperationIr, usize)>),
    /// A collective: calls on packed tensors.
    Collective {
        /// Its group and name.
        prepared: Box<Prepared>,
        /// The calls.
        requests: Vec<Request>,
        /// The step.
        step: usize,
        /// Set where it only starts.
        flight: Option<usize>,
    },
    /// Waits for the collective that the piece `start` started.
    Wait {
        /// Its number.
        flight: usize,
        /// The piece.
        start: usize,
        /// The step that waits.
        step: usize,
    },
}

/// A program for one device.
pub(crate) struct Built {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) tables: Vec<Table>,
    pub(crate) drawings: Vec<RandomKernel>,
    /// What the values of each buffer of pairs are.
    pub(crate) pairs: BTreeMap<BufId, DType>,
    /// Buffers that are alive at the end.
    pub(crate) left: BTreeSet<BufId>,
}

/// Makes a Plan concrete for the device of that rank, of a backend of these habits.
pub(crate) fn build(plan: &Plan, rank: usize, habits: Habits) -> Result<Built, ExecError> {
    let pairs = values_of_pairs(plan);
    let mut lower =
        Lower { here: Here::new(plan, rank), emit: Emit::new(habits), pairs: &pairs, drawings: vec![] };
    let mut pieces = vec![];
    let mut segment = vec![];
    let mut alive: BTreeSet<BufId> = plan.program_inputs.iter().map(|l| l.buf).collect();
    let mut in_flight: BTreeMap<u32, (usize, Vec<BufId>)> = BTreeMap::new();
    let mut flying: BTreeMap<usize, (usize, Arrival)> = BTreeMap::new();
    for (index, step) in plan.steps.iter().enumerate() {
        let built = check_lifetimes((index, step), &mut alive, &mut in_flight)
            .map_err(Unprepared::Plan)
            .and_then(|()| add(&mut lower, step, index, &mut segment, &mut pieces, &mut flying));
        built.map_err(|e| {
            let place = place(plan, rank, None, Some(index));
            match e {
                Unprepared::Plan(problem) => ExecError::Plan { place, problem },
                Unprepared::Kernel(source) => ExecError::Kernel { place, source },
            }
        })?;
    }
    end_segment(&mut segment, &mut pieces);
    if let Some(start) = in_flight.values().next() {
        let problem = "what it starts is never waited for".into();
        return Err(ExecError::Plan { place: place(plan, rank, None, Some(start.0)), problem });
    }
    let ends = plan.outputs.iter().map(|o| o.buf).chain(plan.program_inputs.iter().filter_map(|l| l.next));
    for buf in ends {
        if !alive.contains(&buf) {
            let problem = format!("buffer {} is not alive at the end of the plan", buf.0);
            return Err(ExecError::Plan { place: place(plan, rank, None, None), problem });
        }
    }
    let Lower { emit, drawings, .. } = lower;
    Ok(Built { pieces, tables: emit.tables, drawings, left: alive, pairs })
}

fn end_segment(segment: &mut Vec<(OperationIr, usize)>, pieces: &mut Vec<Piece>) {
    if !segment.is_empty() {
        pieces.push(Piece::Segment(std::mem::take(segment)));
    }
}

fn add(
    lower: &mut Lower<'_>,
    step: &Step,
    index: usize,
    segment: &mut Vec<(OperationIr, usize)>,
    pieces: &mut Vec<Piece>,
    flying: &mut BTreeMap<usize, (usize, Arrival)>,
) -> Result<(), Unprepared> {
    let ended = step.free.iter().copied().chain(step.aliases.iter().map(|r| r.0));
    let mut ending = vec![];
    for buf in ended {
        ending.extend(homes(lower.here.plan, buf, &lower.here.coords)?);
    }
    if let Prim::Collective(collective) = &step.prim
        && let Some(prepared) = Prepared::of_step(&lower.here, step)?
    {
        let (requests, arrival) = lower.depart(collective, &prepared)?;
        // What the calls take themselves is not released before.
        let taken: BTreeSet<Home> =
            requests.iter().flat_map(|r| &r.send).filter(|p| p.ends).filter_map(|p| p.home).collect();
        ending.retain(|h| !taken.contains(h));
        segment.extend(lower.emit.finish(&ending).into_iter().map(|o| (o, index)));
        end_segment(segment, pieces);
        let flight = step.async_id.map(|f| f as usize);
        pieces.push(Piece::Collective { prepared: Box::new(prepared), requests, step: index, flight });
        match flight {
            Some(flight) => {
                flying.insert(flight, (pieces.len() - 1, arrival));
            }
            None => {
                lower.arrive(&arrival);
                segment.extend(lower.emit.finish(&arrival.ending).into_iter().map(|o| (o, index)));
            }
        }
        return Ok(());
    }
    if let Prim::Wait = &step.prim {
        let flight = step.async_id.map(|f| f as usize);
        let Some((flight, (start, arrival))) = flight.and_then(|f| Some((f, flying.remove(&f)?))) else {
            return Err(Unprepared::Plan("nothing is in flight that it could wait for".into()));
        };
        end_segment(segment, pieces);
        pieces.push(Piece::Wait { flight, start, step: index });
        lower.arrive(&arrival);
        ending.extend(&arrival.ending);
        segment.extend(lower.emit.finish(&ending).into_iter().map(|o| (o, index)));
        return Ok(());
    }
    lower.step(step)?;
    segment.extend(lower.emit.finish(&ending).into_iter().map(|o| (o, index)));
    Ok(())
}

/// Where the elements of a buffer are on a device; nowhere if there are none.
pub(crate) fn homes(plan: &Plan, buf: BufId, coords: &[usize]) -> Result<Vec<Home>, String> {
    let Some(buffer) = plan.buffers.get(buf.0 as usize) else {
        return Err(format!("there is no buffer {}", buf.0));
    };
    if buffer.shape(&plan.mesh, coords).contains(&0) {
        return Ok(vec![]);
    }
    let mut homes = vec![Home::Buffer(buf)];
    if is_pair(buffer.dtype) {
        homes.push(Home::Indices(buf));
    }
    Ok(homes)
}

/// Of what dtype the values of each buffer of pairs are: that of what was folded.
fn values_of_pairs(plan: &Plan) -> BTreeMap<BufId, DType> {
    let mut found: BTreeMap<BufId, DType> = BTreeMap::new();
    for step in &plan.steps {
        for (k, out) in step.writes.iter().enumerate() {
            let from = step.reads.get(k).or(step.reads.first());
            let Some(from) = from.and_then(|f| plan.buffers.get(f.buf.0 as usize).map(|b| (f.buf, b.dtype)))
            else {
                continue;
            };
            let places = matches!(&step.prim, Prim::Reduce { monoid: Monoid::ArgMax | Monoid::ArgMin });
            let value = if places { Some(from.1) } else { found.get(&from.0).copied() };
            found.extend(value.map(|v| (out.buf, v)));
        }
    }
    found
}
