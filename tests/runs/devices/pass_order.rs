//! The order in which a device runs the passes of a pipeline: its faults, and what is kept from pass to pass.
//! `laws/mutants/pipelines.rs` has all faults of pipelines in a table.

use super::device_plans::faults;
use crate::support::options;
use burn_ir::TensorId;
use meshwright_core::training_step;
use meshwright_device::compile;
use meshwright_device::iteration::Iteration;
use meshwright_device::kernels::Kernel;
use meshwright_device::launch::{DevicePlan, LaunchKind, LoopLaunch};
use meshwright_device::slot::{LaunchId, Residual};
use meshwright_device::target::Target;
use meshwright_device::turns::Turn;
use meshwright_plan::Plan;
use meshwright_sorted::{SortedMap, SortedSet};
use meshwright_train::{Project, ProjectOptions};

fn plan(layout: &str) -> Plan {
    plan_of("pipe=2", layout, &[("layers", 4), ("batch", 4)])
}

fn plan_of(mesh: &str, layout: &str, sizes: &[(&str, usize)]) -> Plan {
    let of = ProjectOptions { preset: Some("tiny".into()), ..options("gpt", mesh, layout, sizes) };
    let loaded = Project::load(&of);
    let project = loaded.project.unwrap();
    project.compile(&training_step(&project.program).unwrap(), &loaded.sources).0.unwrap().plan
}

/// The turns of the loop over passes, cut where another pass begins; carries belong to the pass that they are in front of.
fn edit(device: &mut DevicePlan, change: impl FnOnce(&mut Vec<Vec<Turn>>) -> Option<bool>) -> Option<bool> {
    let ids: Vec<_> = device.launches.ids().collect();
    for id in ids {
        let LaunchKind::Loop(of) = &device.launches[id].kind else { continue };
        if of.passes.is_empty() {
            continue;
        }
        let pass = |launch: usize| of.passes.iter().flatten().position(|range| range.contains(&launch));
        // What is received ahead stays in the pass that runs meanwhile.
        let launches = &device.launches;
        let ahead: SortedSet<usize> =
            (0..of.body.len()).filter(|at| launches[of.body[*at]].receives_ahead()).collect();
        let (mut parts, mut known): (Vec<Vec<Turn>>, _) = (vec![vec![]], None);
        for turn in &of.turns {
            let own = match turn {
                Turn::Run { launch, position } => Some((pass(*launch), *position)),
                _ => None,
            };
            if matches!(turn, Turn::Run { launch, .. } if ahead.contains(launch)) {
                parts.last_mut().unwrap().push(*turn);
                continue;
            }
            let carries = matches!(parts.last().unwrap().last(), Some(Turn::Carry { .. }));
            if (own.is_none() || own != known) && !carries {
                parts.push(vec![]);
            }
            known = own;
            parts.last_mut().unwrap().push(*turn);
        }
        parts.retain(|part| !part.is_empty());
        let changed = change(&mut parts);
        if let LaunchKind::Loop(of) = &mut device.launches[id].kind {
            of.turns = parts.concat();
        }
        return changed;
    }
    None
}

/// The first launch that a pass runs itself, which is that of all passes of its kind and chunk.
fn own_turns(part: &[Turn]) -> Option<usize> {
    part.iter().find_map(|turn| if let Turn::Run { launch, .. } = turn { Some(*launch) } else { None })
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
        faults(&plan, Target::cpu(), "an accumulator is taken one pass early", |device, at| {
            edit(device, |parts| {
                let after = parts.get(at)?.clone();
                // Of two passes of one kind and chunk the first makes what the second adds to.
                let own = own_turns(&after)
                    .filter(|_| after.iter().any(|turn| matches!(turn, Turn::Carry { made: true, .. })));
                let before = own.and_then(|_| parts[..at].iter().rposition(|p| own_turns(p) == own));
                let Some(before) = before else { return Some(false) };
                let carries = |turn: &Turn| matches!(turn, Turn::Carry { .. });
                let (taken, rest) = after.into_iter().partition::<Vec<Turn>, _>(carries);
                parts[at] = rest;
                parts[before].splice(0..0, taken);
                Some(true)
            })
        });
        faults(&plan, Target::cpu(), "a pass takes what is kept for another microbatch", |device, at| {
            let ids: Vec<_> = device.launches.ids().collect();
            let LaunchKind::Kernel(Kernel::Load { residual, .. }) = &mut device.launches[*ids.get(at)?].kind
            else {
                return Some(false);
            };
            let each = residual.tensors.len() / residual.over.first()?.count;
            residual.tensors.rotate_left(each);
            Some(true)
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

/// A device plan that is played turn by turn: the tensors of residuals that hold something.
struct Played<'p> {
    plan: &'p Plan,
    device: &'p DevicePlan,
    /// By microbatch and layer.
    kept: SortedMap<(usize, usize), SortedSet<TensorId>>,
    most: usize,
}

impl Played<'_> {
    /// The microbatch and the layer to which a residual of the layers belongs at an iteration, with its tensor.
    fn key(&self, of: &Residual, at: Iteration) -> Option<((usize, usize), TensorId)> {
        let [parts, layers] = &of.over[..] else { return None };
        (layers.dim == self.plan.pipeline.as_ref().unwrap().dim).then_some(())?;
        let position = |dim| at.position(dim).unwrap();
        Some(((position(parts.dim), position(layers.dim)), of.tensor(at).unwrap()?))
    }

    fn launch(&mut self, id: LaunchId, at: Iteration) {
        match &self.device.launches[id].kind {
            LaunchKind::Kernel(Kernel::Store(of)) => {
                if let Some((key, tensor)) = self.key(of, at) {
                    assert!(self.kept.entry(key).or_default().insert(tensor), "{key:?} is stored twice");
                    self.most = self.most.max(self.kept.len());
                }
            }
            LaunchKind::Kernel(Kernel::Load { residual, last }) => {
                if let Some((key, tensor)) = self.key(residual, at) {
                    let all = self.kept.get_mut(&key).unwrap_or_else(|| panic!("{key:?} is not there"));
                    assert!(all.contains(&tensor), "{key:?} has no {tensor:?}");
                    if *last {
                        all.remove(&tensor);
                    }
                    self.kept.retain(|_, all| !all.is_empty());
                }
            }
            LaunchKind::Loop(of) => {
                for turn in &of.turns {
                    if let Turn::Run { launch, position } = *turn {
                        let at =
                            at.within(self.plan, (of.dim, of.of_one_stage), position, of.positions.start);
                        self.launch(of.body[launch], at);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Residuals of a layer for a microbatch are kept by both, and of as many microbatches as the table of the schedules says: each
/// has two layers on a stage.
#[test]
fn residuals_are_kept_of_the_microbatches_in_flight() {
    let (m, each) = (12, 2);
    for p in 2..=4 {
        let layouts = [
            ("schedule gpipe", 1, (0..p).map(|_| m).collect::<Vec<_>>()),
            ("schedule 1f1b", 1, (0..p).map(|s| m.min(p - s)).collect()),
            ("chunks 2", 2, (0..p).map(|s| (2 * m).min(2 * (p - s - 1) + p + 1)).collect()),
            ("schedule zb_h1", 1, (0..p).map(|_| m.min(p)).collect()),
        ];
        for (lines, chunks, in_flight) in layouts {
            let layout = format!("layers -> pipe; microbatches {m}; {lines}");
            let sizes = [("layers", each * p * chunks), ("batch", m)];
            let plan = plan_of(&format!("pipe={p}"), &layout, &sizes);
            for (stage, expected) in in_flight.into_iter().enumerate() {
                let device = compile(&plan, stage, Target::cpu()).unwrap();
                let mut played = Played { plan: &plan, device: &device, kept: SortedMap::new(), most: 0 };
                device.body.iter().for_each(|id| played.launch(*id, Iteration::default()));
                assert!(played.kept.is_empty(), "{layout}, stage {stage}: {:?} stay", played.kept);
                assert_eq!(played.most, each * expected, "{layout}, pipe={p}, stage {stage}");
            }
        }
    }
}
