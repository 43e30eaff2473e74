//! The check of a Plan's memory on the devices, and layouts that need less.

use crate::failure::Failure;
use crate::project::Project;
use meshwright_core::StepGraph;
use meshwright_device::DevicePlan;
use meshwright_device::target::Target;
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_exec::{Cluster, GpuShare};
use meshwright_files::text::{bytes as shown, memory_uses};
use meshwright_plan::{PeakBuffer, PeakMemory, Plan, Prim, Step, StoredElements};
use meshwright_runs::memory::available_bytes;
use meshwright_sorted::SortedSet;

/// Compiles a program with further lines in its layout; none where these are not right.
pub(crate) type WithLines<'a> = &'a dyn Fn(&str) -> Option<Plan>;

/// Number of values that an error lists.
const LISTED: usize = 5;

/// Memory that several devices share, and how many they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemoryShare {
    devices: u64,
    available: u64,
    /// Whose it is, where it is not the host's.
    of: Option<String>,
    /// Bytes beyond the available ones that may be used.
    slack: u64,
    /// The kind of the devices: kernels never make some values of a Plan, and others have their place in an arena.
    target: Target,
}

impl MemoryShare {
    /// The memory that the devices of a cluster have for a Plan, where something tells.
    pub(crate) fn of(cluster: &Cluster) -> Vec<MemoryShare> {
        let gpus = cluster.gpus();
        if gpus.is_empty() {
            // Other processes of this machine take as much.
            let devices = (cluster.ranks().len() * cluster.processes().neighbors()) as u64;
            return available_bytes()
                .map(|available| MemoryShare {
                    devices,
                    available,
                    of: None,
                    slack: 0,
                    target: Target::cpu(),
                })
                .into_iter()
                .collect();
        }
        let share = |g: GpuShare| Some(MemoryShare::of_gpu(g.gpu, g.ranks as u64, g.memory?, g.target));
        gpus.into_iter().filter_map(share).collect()
    }

    /// With a few percent less than planned a GPU may still run the Plan: its allocator is not the Plan's.
    fn of_gpu(gpu: usize, devices: u64, available: u64, target: Target) -> MemoryShare {
        let of = Some(format!("GPU {gpu}"));
        MemoryShare { devices, available, of, slack: available / 20, target }
    }

    fn lacks(&self, plan: &Plan, held: bool) -> bool {
        let most = self.available.saturating_add(self.slack);
        let more = |bytes: u64| bytes.saturating_mul(self.devices) > most;
        may_exceed(plan, self.target, &|peak| more(peak - there(plan, held))) && more(self.needed(plan, held))
    }

    /// Bytes that a Plan needs on such a device; with `held`, parameters and states are there already.
    fn needed(&self, plan: &Plan, held: bool) -> u64 {
        peak_on(plan, self.target) - there(plan, held)
    }
}

/// Bytes of parameters and states, if devices have them already.
fn there(plan: &Plan, held: bool) -> u64 {
    if held { plan.summary.peak_bytes - plan.summary.step_bytes } else { 0 }
}

/// False if a device cannot need too much: without an arena it needs no more than the Plan, and no device plan is compiled.
fn may_exceed(plan: &Plan, target: Target, too_much: &dyn Fn(u64) -> bool) -> bool {
    target.has_arena() || too_much(plan.summary.peak_bytes)
}

/// The plan of the device that holds most; none where it cannot be compiled.
fn device_plan(plan: &Plan, target: Target) -> Option<DevicePlan> {
    meshwright_device::compile(plan, plan.fullest().rank(), target).ok()
}

/// Most bytes that a device needs at once for a Plan.
pub(crate) fn peak_on(plan: &Plan, target: Target) -> u64 {
    device_plan(plan, target).map_or(plan.summary.peak_bytes, |device| device.peak_bytes(plan))
}

/// The same by use.
fn peak_memory(plan: &Plan, target: Target) -> PeakMemory {
    let of_plan = || plan.peak_memory(&StoredElements::new());
    device_plan(plan, target).map_or_else(of_plan, |device| device.peak_memory(plan))
}

/// Checks that devices have the memory of a Plan; with `held`, parameters and states are there already. `other`
/// compiles the same program with other lines.
///
/// # Errors
/// E0401 with the largest values, and with lines that would make it fit where some do.
pub(crate) fn plan_fits(
    plan: &Plan,
    shares: &[MemoryShare],
    held: bool,
    other: Option<WithLines<'_>>,
) -> Result<(), Failure> {
    let Some(short) = shares.iter().find(|s| s.lacks(plan, held)) else { return Ok(()) };
    let fits = |p: &Plan| !shares.iter().any(|s| s.lacks(p, held));
    let d = too_large(plan, short, short.needed(plan, held));
    let found = other.and_then(|other| lines_that_fit(plan, &|lines| other(lines).filter(fits)));
    let d = match found {
        Some((lines, p)) => d.help(format!(
            "with this in the layout it fits, in {} on a device: {}",
            shown(short.needed(&p, held)),
            lines.iter().map(|l| format!("`{l}`")).collect::<Vec<_>>().join(" and ")
        )),
        None => d.help("take a smaller batch or other smaller dims: `--dim NAME=SIZE`"),
    };
    Err(d.help(
        "or split what is large over several machines (`zero3` splits all parameters): `meshwright explain MODEL --layout …` shows the peak of a device",
    )
    .into())
}

/// Checks that a device of a kind with `memory` bytes can run a step of a project; `plan` is that step's.
///
/// # Errors
/// E0401 with the largest values, and with lines that would make it fit where some do.
pub fn fits_device(
    (project, sources): (&Project, &Sources),
    (step, plan): (&StepGraph, &Plan),
    (memory, target): (u64, Target),
) -> Result<(), Failure> {
    let of = Some("each device".into());
    let share = MemoryShare { devices: 1, available: memory, of, slack: 0, target };
    plan_fits(plan, &[share], false, Some(&|lines: &str| with_lines(project, sources, step, lines)))
}

/// Lines of a layout with which a step of a project, whose Plan is `plan`, needs at most `memory` bytes on a device of a kind,
/// and its bytes then; none if no tried set of lines does.
pub fn lines_that_fit_device(
    (project, sources): (&Project, &Sources),
    (step, plan): (&StepGraph, &Plan),
    (memory, target): (u64, Target),
) -> Option<(Vec<String>, u64)> {
    lines_for(plan, (memory, target), &|lines| with_lines(project, sources, step, lines))
}

/// A step of a project with further lines in its layout; none where these are not right.
pub(crate) fn with_lines(
    project: &Project,
    sources: &Sources,
    step: &StepGraph,
    lines: &str,
) -> Option<Plan> {
    project.with_more_rules(lines, sources)?.compile(step, sources).0.map(|c| c.plan)
}

/// Lines with which a program needs at most `most` bytes on a device, and its bytes then; none if no tried set of lines
/// does.
pub(crate) fn lines_for(
    plan: &Plan,
    (most, target): (u64, Target),
    other: WithLines<'_>,
) -> Option<(Vec<String>, u64)> {
    let fitting = |lines: &str| other(lines).filter(|p| fits(p, most, target));
    lines_that_fit(plan, &fitting).map(|(lines, p)| (lines, peak_on(&p, target)))
}

/// Whether a device of a kind needs at most `most` bytes for a Plan.
pub fn fits(plan: &Plan, most: u64, target: Target) -> bool {
    !may_exceed(plan, target, &|peak| peak > most) || peak_on(plan, target) <= most
}

/// The largest of values, in words.
pub(crate) fn largest(values: &[PeakBuffer], which: &str) -> String {
    let list: Vec<String> =
        values.iter().take(LISTED).map(|b| format!("`{}` {}", b.path, shown(b.bytes))).collect();
    format!("of {} values that are {which}, the largest are {}", values.len(), list.join(", "))
}

/// The first set of lines with which a program fits, the cheapest in time first, and its Plan then.
fn lines_that_fit(plan: &Plan, fitting: WithLines<'_>) -> Option<(Vec<String>, Plan)> {
    let recompute: Vec<String> = loops(plan).iter().map(|path| format!("recompute {path}.*")).collect();
    let parts = || (1..=6).map(|n| format!("microbatches {}", 1 << n));
    let axes = plan.mesh.axes.iter().filter(|a| a.size > 1);
    let split: Vec<Vec<String>> = axes
        .map(|a| ["params", "grads", "moments"].map(|role| format!("{role}: * -> {}", a.name)).to_vec())
        .collect();
    let mut sets: Vec<Vec<String>> = split.iter().map(|lines| lines[2..].to_vec()).collect();
    sets.extend(parts().map(|line| vec![line]));
    sets.push(recompute.clone());
    sets.extend(parts().map(|line| [recompute.clone(), vec![line]].concat()));
    sets.extend(split.iter().cloned());
    for lines in &split {
        sets.extend(parts().map(|line| [lines.clone(), vec![line]].concat()));
        sets.push([lines.clone(), recompute.clone()].concat());
        sets.extend(parts().map(|line| [lines.clone(), recompute.clone(), vec![line]].concat()));
    }
    let mut tried = SortedSet::from([vec![]]);
    sets.into_iter().filter(|lines| tried.insert(lines.clone())).find_map(|lines| {
        let found = fitting(&lines.join("\n"))?;
        Some((lines, found))
    })
}

/// The paths of what is computed in loops over layers: of `enc.layers.block.up`, in one over `layers`, `enc.layers`.
fn loops(plan: &Plan) -> SortedSet<String> {
    let dims: SortedSet<&str> = plan.steps.iter().filter_map(|s| repeated(plan, s)).collect();
    let paths = plan.steps.iter().flat_map(|s| &s.origin).map(|o| o.path.trim_start_matches("d("));
    let until = |path: &str| {
        let parts: Vec<&str> = path.split('.').collect();
        let at = parts.iter().position(|part| dims.contains(part))?;
        Some(parts[..=at].join("."))
    };
    paths.filter_map(until).collect()
}

/// The dim of a loop that begins, but for that over the parts of a batch.
fn repeated<'p>(plan: &'p Plan, step: &Step) -> Option<&'p str> {
    let Prim::Repeat { dim, .. } = step.prim else { return None };
    let parts = plan.microbatches.is_some_and(|m| m.over == dim);
    (!parts).then(|| plan.dims.name(dim))
}

fn too_large(plan: &Plan, short: &MemoryShare, each: u64) -> Diagnostic {
    let (model, program, devices) = (&plan.model, &plan.program, short.devices);
    let needs = match devices {
        1 => format!("needs {}", shown(each)),
        n => {
            format!("needs {} on each of {n} devices, {} in all", shown(each), shown(each.saturating_mul(n)))
        }
    };
    let place = short.of.as_ref().map(|gpu| format!(" on {gpu}")).unwrap_or_default();
    let message = format!(
        "the program `{program}` of `{model}` {needs}, and {} are available{place}",
        shown(short.available)
    );
    Diagnostic::error(codes::E0401, message)
        .note(format!("at its peak a device holds {}", memory_uses(&peak_memory(plan, short.target))))
        .note(largest(&plan.at_peak(), "alive at once"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::{Project, ProjectOptions};
    use meshwright_core::training_step;
    use meshwright_plan::Arithmetic;

    /// The lines that are named to a training step of `gpt` on GPUs that have so much of what it needs.
    fn lines(mesh: Option<&str>, part: f64) -> String {
        let options = ProjectOptions {
            model: "gpt".into(),
            preset: Some("tiny".into()),
            dims: vec![("batch".into(), 64)],
            layout: mesh.map(|_| "dp".into()),
            mesh: mesh.map(Into::into),
            ..ProjectOptions::default()
        };
        let loaded = Project::load(&options);
        let (project, sources) = (loaded.project.unwrap(), &loaded.sources);
        let step = training_step(&project.program).unwrap();
        let plan = project.compile(&step, sources).0.unwrap().plan;
        let other = |lines: &str| with_lines(&project, sources, &step, lines);
        let available = (plan.summary.peak_bytes as f64 * part) as u64;
        let shares: Vec<MemoryShare> = (0..project.layout.mesh.devices())
            .map(|gpu| MemoryShare::of_gpu(gpu, 1, available, Target::h100()))
            .collect();
        let told = match plan_fits(&plan, &shares, false, Some(&other)) {
            Ok(()) => return "it fits".into(),
            Err(Failure::Diagnostics(all)) => {
                format!("{}\n{}\n{}", all[0].message, all[0].notes.join(" "), all[0].helps.join("\n"))
            }
            Err(other) => panic!("{other:?}"),
        };
        assert!(told.contains(&format!("and {} are available on GPU 0", shown(available))), "{told}");
        assert!(told.contains("values that are alive at once, the largest are `"), "{told}");
        let uses = memory_uses(&peak_memory(&plan, Target::h100()));
        assert!(told.contains(&format!("at its peak a device holds {uses}")), "{told}");
        assert!(["parameters ", "gradients ", "residuals "].iter().all(|u| uses.contains(u)), "{uses}");
        let Some((_, help)) = told.split_once("with this in the layout it fits, in ") else {
            assert!(told.contains("take a smaller batch"), "{told}");
            return String::new();
        };
        let (_, named) = help.split_once("on a device: ").unwrap();
        let named: Vec<&str> = named.lines().next().unwrap().split('`').skip(1).step_by(2).collect();
        // The advice is true.
        let with = peak_on(&other(&named.join("\n")).unwrap(), Target::h100());
        assert!(
            with <= available + available / 20 && help.starts_with(&shown(with)),
            "{with} {available} {told}"
        );
        named.join("; ")
    }

    /// A training step of a tiny `gpt` in `bf16`.
    fn half(dims: &[(&str, usize)]) -> Plan {
        let options = ProjectOptions {
            model: "gpt".into(),
            preset: Some("tiny".into()),
            dims: dims.iter().map(|(name, size)| ((*name).into(), *size)).collect(),
            precision: Some(Arithmetic::BF16),
            ..ProjectOptions::default()
        };
        let loaded = Project::load(&options);
        let project = loaded.project.unwrap();
        let step = training_step(&project.program).unwrap();
        project.compile(&step, &loaded.sources).0.unwrap().plan
    }

    /// A step is not refused for values that a GPU never makes: here the masks of dropout and values between the steps of norms.
    #[test]
    fn what_a_gpu_never_makes_takes_no_memory_there() {
        let plan = half(&[]);
        let (peak, on_gpu) = (plan.summary.peak_bytes, peak_on(&plan, Target::h100()));
        assert!(on_gpu * 65 < peak * 64, "{on_gpu} of {peak}");
        let share = |target| MemoryShare { devices: 1, available: on_gpu, of: None, slack: 0, target };
        let fits = |target| plan_fits(&plan, &[share(target)], false, None).is_ok();
        assert_eq!([fits(Target::h100()), fits(Target::cpu())], [true, false]);
        let less = MemoryShare { available: on_gpu - 1, ..share(Target::h100()) };
        assert!(plan_fits(&plan, &[less], false, None).is_err());
    }

    /// The arena is there as a whole, and parameters and states lie outside of it: together they may be more than what is live at
    /// once.
    #[test]
    fn an_arena_counts_with_what_lies_outside_of_it() {
        let plan = half(&[("batch", 32), ("seq", 1024)]);
        for target in [Target::h100(), Target::cuda((9, 0), false)] {
            let device = device_plan(&plan, target).unwrap();
            let needed = peak_on(&plan, target);
            assert!(needed > plan.peak_stored(&device.stored), "{target}: {needed}");
            let there = plan.summary.parameter_bytes + plan.summary.optimizer_state_bytes;
            assert!(needed >= device.arena.bytes + there, "{target}: {needed}");
            let uses = peak_memory(&plan, target);
            assert_eq!(uses.peak_bytes, needed);
            assert_eq!(uses.uses().iter().map(|(_, bytes)| bytes).sum::<u64>(), needed);
        }
    }

    #[test]
    fn what_does_not_fit_is_told_which_lines_would_make_it_fit() {
        let one = |part| lines(None, part);
        assert_eq!(
            [1.0, 0.6, 0.29, 0.115, 0.02].map(one),
            ["it fits", "microbatches 2", "microbatches 8", "microbatches 32", ""]
        );
        let four = |part| lines(Some("data=4"), part);
        let all =
            "params: * -> data; grads: * -> data; moments: * -> data; recompute layers.*; microbatches 16";
        assert_eq!([0.93, 0.16].map(four), ["moments: * -> data", all]);
    }
}
