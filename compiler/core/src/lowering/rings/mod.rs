//! Attention whose keys are gathered takes the shards one after the other while they go around the devices: no device holds all
//! of them.
//!
//! Forward, a device begins with its own shard and then takes that of the device after it, and so on; each step goes on with the
//! maximum, the sum and the values of the one before. A shard is on its way while attention computes on the one before it.
//! Backward, a device begins with the shard of the device after it and ends with its own: what flows back to keys and values
//! travels with them, and each device adds its part. So the bytes are those of the gathers and of the reduce-scatters that they
//! replace.
//!
//! Devices are those of all axes that split the keys, in the order of shards. What is beside queries and keys, such as a mask, is
//! cut where it is. An attention that cannot be a ring is an error, unless the layout lets its keys be gathered too.

mod candidates;
mod collectives;
mod exchange;
mod ring_errors;
mod turns;
pub(super) mod verify;

use crate::layout::Layout;
use crate::partition::Spmd;
use candidates::RingSearch;
use collectives::{Uses, leave_out};
use meshwright_diag::Diagnostic;
use meshwright_plan::{BufId, Plan, Prim, Step};
use meshwright_sorted::{SortedMap, SortedSet};
use ring_errors::Unfit;
use turns::Ring;

/// Puts rings in the place of gathers along the dims that a layout names, where attention alone reads what they give. With the
/// errors of attentions that no ring serves.
pub fn rings(plan: Plan, spmd: &Spmd, layout: &Layout) -> (Plan, Vec<Diagnostic>) {
    let mut plan = exchange::keys_last(plan, |d| layout.rings.contains_key(&d));
    let uses = Uses::of(&plan, &layout.gathers);
    let search = RingSearch { uses: &uses };
    let (mut found, mut unfit) = (SortedMap::<usize, Ring>::new(), SortedMap::<usize, Unfit>::new());
    for (at, step) in plan.steps.iter().enumerate() {
        let Prim::Attention { spec, .. } = &step.prim else { continue };
        if !layout.rings.contains_key(&spec.key) {
            continue;
        }
        match search.ring_at(at) {
            None => {}
            Some(Ok(ring)) => drop(found.insert(at, ring)),
            Some(Err(why)) => drop(unfit.insert(at, *why)),
        }
    }
    // What something else reads too is gathered for all of its readers.
    while let Some((at, why)) = search.shared(&found) {
        found.remove(&at);
        unfit.insert(at, why);
    }
    let placed = unfit.into_iter().filter_map(|(at, why)| match &plan.steps[at] {
        Step { prim: Prim::Attention { spec, .. }, origin, .. } => {
            origin.first().map(|of| (at, (of.id, spec.key, why)))
        }
        _ => None,
    });
    let unfit: SortedMap<_, _> = placed.collect();
    let gone: SortedSet<BufId> = found.values().flat_map(Ring::replaced).collect();
    let mut out = Vec::with_capacity(plan.steps.len());
    for (at, mut step) in std::mem::take(&mut plan.steps).into_iter().enumerate() {
        if let Some(ring) = found.get(&at) {
            out.extend(ring.steps(&mut plan, &step));
        } else if leave_out(&mut step, &gone) {
            out.push(step);
        }
    }
    plan.steps = out;
    let errors = ring_errors::errors(&unfit, &plan, spmd, layout);
    (plan, errors)
}
