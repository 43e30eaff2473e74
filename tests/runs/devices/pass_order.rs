//! Faults in the order in which a device runs the passes of a pipeline.

use super::device_plans::faults;
use crate::support::options;
use meshwright_core::training_step;
use meshwright_device::launch::{DevicePlan, LaunchKind, LoopLaunch};
use meshwright_device::target::Target;
use meshwright_device::turns::Turn;
use meshwright_plan::Plan;
use meshwright_train::{Project, ProjectOptions};

fn plan(layout: &str) -> Plan {
    let of = ProjectOptions {
        preset: Some("tiny".into()),
        ..options("gpt", "pipe=2", layout, &[("layers", 4), ("batch", 4)])
    };
    let loaded = Project::load(&of);
    let project = loaded.project.unwrap();
    project.compile(&training_step(&project.program).unwrap(), &loaded.sources).0.unwrap().plan
}

/// The turns of the loop over passes, cut where another pass begins; carries belong to the pass that they are in front of.
fn edit(device: &mut DevicePlan, change: impl FnOnce(&mut Vec<Vec<Turn>>) -> Option<bool>) -> Option<bool> {
    let ids: Vec<_> = device.launches.ids().collect();
    for id in ids {
        let LaunchKind::Loop(of) = &mut device.launches[id].kind else { continue };
        if of.passes.is_empty() {
            continue;
        }
        let pass = |launch: usize| of.passes.iter().flatten().position(|range| range.contains(&launch));
        let (mut parts, mut known): (Vec<Vec<Turn>>, _) = (vec![vec![]], None);
        for turn in &of.turns {
            let own = match turn {
                Turn::Run { launch, position } => Some((pass(*launch), *position)),
                _ => None,
            };
            let carries = matches!(parts.last().unwrap().last(), Some(Turn::Carry { .. }));
            if (own.is_none() || own != known) && !carries {
                parts.push(vec![]);
            }
            known = own;
            parts.last_mut().unwrap().push(*turn);
        }
        parts.retain(|part| !part.is_empty());
        let changed = change(&mut parts);
        of.turns = parts.concat();
        return changed;
    }
    None
}

#[test]
fn passes_in_another_order_are_found() {
    for layout in
        ["layers -> pipe; microbatches 4; schedule zb_h1", "layers -> pipe; microbatches 4; chunks 2"]
    {
        let plan = plan(layout);
        let runs = |part: &[Turn]| part.iter().any(|t| matches!(t, Turn::Run { .. }));
        faults(&plan, Target::cpu(), "two passes are exchanged", |device, at| {
            edit(device, |parts| {
                let (first, second) = (parts.get(at)?, parts.get(at + 1)?);
                let both = runs(first) && runs(second);
                parts.swap(at, at + 1);
                Some(both)
            })
        });
        faults(&plan, Target::cpu(), "a pass is left out", |device, at| {
            edit(device, |parts| {
                let there = runs(parts.get(at)?);
                parts.remove(at);
                Some(there)
            })
        });
        faults(&plan, Target::cpu(), "a pass is that of another microbatch", |device, at| {
            edit(device, |parts| {
                let part = parts.get_mut(at)?;
                for turn in part.iter_mut() {
                    if let Turn::Run { position, .. } = turn {
                        *position = (*position + 1) % 4;
                    }
                }
                Some(runs(part))
            })
        });
    }
}

/// What a GPU receives ahead comes in the order of the passes, before it is waited for.
#[test]
fn faults_in_messages_are_found() {
    let target = Target::cuda((9, 0), true);
    for layout in ["layers -> pipe; microbatches 4", "layers -> pipe; microbatches 4; chunks 2"] {
        let plan = plan(layout);
        let ahead = |device: &DevicePlan, of: &LoopLaunch, turn: &Turn| matches!(turn, Turn::Run { launch, .. } if device.launches[of.body[*launch]].receives_ahead());
        let places = |device: &DevicePlan| {
            let found = device.launches.iter().find_map(|launch| match &launch.kind {
                LaunchKind::Loop(of) if !of.passes.is_empty() => Some(of),
                _ => None,
            });
            let of = found.unwrap();
            (0..of.turns.len()).filter(|at| ahead(device, of, &of.turns[*at])).collect::<Vec<usize>>()
        };
        let turns = |device: &mut DevicePlan, change: &dyn Fn(&mut Vec<Turn>)| {
            let ids: Vec<_> = device.launches.ids().collect();
            for id in ids {
                if let LaunchKind::Loop(of) = &mut device.launches[id].kind
                    && !of.passes.is_empty()
                {
                    change(&mut of.turns);
                }
            }
        };
        faults(&plan, target, "two messages are received in another order", |device, at| {
            let all = places(device);
            let (first, second) = (*all.get(at)?, *all.get(at + 1)?);
            turns(device, &|turns| turns.swap(first, second));
            Some(true)
        });
        faults(&plan, target, "a message is not received", |device, at| {
            let place = *places(device).get(at)?;
            turns(device, &|turns| {
                turns.remove(place);
            });
            Some(true)
        });
        faults(&plan, target, "a message is received at the end", |device, at| {
            let place = *places(device).get(at)?;
            turns(device, &|turns| {
                let turn = turns.remove(place);
                turns.push(turn);
            });
            Some(true)
        });
    }
}
