//! The part of a device that a collective takes while kernels run: a matmul during an all-reduce, and after it.

use super::rounds::{Cores, RoundsWatcher, Timed, in_turns};
use crate::devices::Devices;
use crate::estimates::measured_step::MeasuredStep;
use crate::failure::Failure;
use crate::project::ProjectOptions;
use meshwright_cost::machine::{DeviceKind, Machine};
use meshwright_plan::{Arithmetic, Mesh, Plan};
use meshwright_sorted::SortedSet;
use std::time::Duration;

const TEXT: &str = include_str!("probes/overlap.mw");

/// Examples of a device, and on a GPU sizes that fill it.
const EXAMPLES: usize = 64;
const ON_A_GPU: [(&str, usize); 4] = [("batch", 65_536), ("k", 1024), ("n", 8192), ("m", 8192)];

/// If collectives take more than this part of a device, it does nothing else meanwhile.
const ALL: f64 = 0.9;

/// Steps are known well enough if another measurement would be less than this part of the all-reduce away.
const NOISE: f64 = 0.25;

/// The least part that is written: 0 would mean that a CPU computes nothing during a collective.
const LEAST: f64 = 0.01;

/// The program on all devices of a mesh, with its collectives during kernels and after them.
fn programs(of: DeviceKind, mesh: &Mesh) -> [ProjectOptions; 2] {
    let devices = mesh.devices();
    let mut options = ProjectOptions {
        model: "overlap.mw".into(),
        texts: [("overlap.mw".to_string(), TEXT.to_string())].into(),
        layout: Some("batch -> all".into()),
        mesh: Some(format!("all={devices}")),
        dims: vec![("batch".into(), EXAMPLES * devices)],
        ..ProjectOptions::default()
    };
    if of == DeviceKind::Gpu {
        options.dims = ON_A_GPU.map(|(name, size)| (name.to_string(), size)).into();
        options.dims[0].1 *= devices;
        options.precision = Some(Arithmetic::BF16);
    }
    [options.clone(), ProjectOptions { no_overlap: true, ..options }]
}

/// The part of a device that its collectives take, measured by all processes; none of one device.
pub(super) fn taken(
    (devices, kind): (&Devices, DeviceKind),
    mesh: &Mesh,
    time: Duration,
    progress: &mut RoundsWatcher<'_>,
) -> Result<Option<f64>, Failure> {
    if mesh.devices() < 2 {
        return Ok(None);
    }
    let mut both = vec![];
    for (what, program) in ["beside", "after"].iter().zip(programs(kind, mesh)) {
        both.push(Timed::start(
            format!("an all-reduce {what} a product"),
            &program,
            devices,
            Cores::OneEach,
        )?);
    }
    in_turns(&mut both, devices, time, progress)?;
    let [beside, after] = [&both[0], &both[1]].map(Timed::measured);
    Ok(part(&both[0].plan, (&both[1].plan, &after), &beside))
}

/// The part of all-reduces that a step is not shorter by if they run during kernels: this part of the device they take. None if a
/// Plan has no collective that runs during kernels, nothing was seen of it, or the times of steps differ too much.
fn part(beside: &Plan, (after, seen): (&Plan, &MeasuredStep), together: &MeasuredStep) -> Option<f64> {
    let bytes = |plan: &Plan, step: usize| plan.steps[step].collective_bytes(plan).iter().sum::<usize>();
    let steps = beside.steps.iter().enumerate();
    let flights = steps.filter(|(_, s)| s.collective().is_some() && s.async_id.is_some());
    let sizes: SortedSet<usize> = flights.map(|(at, _)| bytes(beside, at)).collect();
    let of = |at: &usize| after.steps[*at].collective().is_some() && sizes.contains(&bytes(after, *at));
    let alone: f64 = seen.undelayed.1.iter().filter(|(at, _)| of(at)).map(|(_, seconds)| seconds).sum();
    // How far another measurement of a step would be away.
    let noise = |s: &MeasuredStep| (s.seconds - s.undelayed.0) / (s.steps as f64).sqrt();
    let part = 1.0 - (seen.undelayed.0 - together.undelayed.0) / alone;
    // A step cannot be shorter by more than its collectives: who sees that saw something else.
    let known = alone > 0.0 && noise(seen) + noise(together) < NOISE * alone && part > -NOISE;
    known.then(|| part.clamp(0.0, 1.0))
}

/// Sets the units that collectives take on each level which connects more of the devices than the one below. Without a
/// measurement they stay.
pub(super) fn fit(machine: &mut Machine, taken: Option<f64>, devices: usize) {
    let Some(taken) = taken else { return };
    let all = f64::from(machine.device.units);
    let units = match machine.device.kind {
        DeviceKind::Cpu if taken > ALL => 0.0,
        _ => all * taken.max(LEAST),
    };
    let mut below = 1;
    for tier in machine.tier.iter_mut() {
        if devices > below {
            tier.units = units;
        }
        below = tier.size;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::estimates::{EstimateOptions, machine, question};
    use crate::project::Project;
    use meshwright_core::training_step;
    use meshwright_cost::estimate::estimate;

    /// A step as a machine has it: its seconds, and those of its collectives.
    fn priced(options: &ProjectOptions, known: &Machine) -> (Plan, MeasuredStep) {
        let loaded = Project::load(options);
        let project = loaded.project.unwrap_or_else(|| panic!("{:?}", loaded.diagnostics));
        let plan =
            project.compile(&training_step(&project.program).unwrap(), &loaded.sources).0.unwrap().plan;
        let asked = EstimateOptions::of(known.clone());
        let e = estimate(&plan, &question(&project, &asked, 0.0)).unwrap();
        let by_step = e.collectives.iter().map(|c| (c.step, c.seconds)).collect();
        (
            plan,
            MeasuredStep {
                seconds: e.seconds,
                steps: 9,
                undelayed: (e.seconds, by_step),
                ..Default::default()
            },
        )
    }

    /// What collectives of a known machine take is found again by the times of the two programs, on cores and on GPUs.
    #[test]
    fn what_collectives_take_is_found_again() {
        for (name, of, devices) in [("cpu", DeviceKind::Cpu, 4), ("dgx-h100", DeviceKind::Gpu, 8)] {
            let mesh = Mesh::new([("all", devices)]);
            let mut known = machine(name, &[]).unwrap();
            let all = f64::from(known.device.units);
            for share in [0.02, 0.25, 0.6, 0.85] {
                known.tier.iter_mut().for_each(|t| t.units = all * share);
                let [beside, after] = programs(of, &mesh).map(|p| priced(&p, &known));
                let mut found = machine(name, &[]).unwrap();
                fit(&mut found, part(&beside.0, (&after.0, &after.1), &beside.1), devices);
                let units = found.tier[0].units;
                assert!(
                    (units / all - share).abs() < 0.02,
                    "{name}: {units} of {all} where {share} was known"
                );
            }
        }
        // Steps that differ by more than the all-reduce tell nothing.
        let [beside, mut after] = programs(DeviceKind::Cpu, &Mesh::new([("all", 4)]))
            .map(|p| priced(&p, &machine("cpu", &[]).unwrap()));
        assert!(part(&beside.0, (&after.0, &after.1), &beside.1).is_some());
        // Neither does one that is shorter by more than its collectives.
        let mut short = beside.1.clone();
        (short.seconds, short.undelayed.0) = (0.1 * short.seconds, 0.1 * short.undelayed.0);
        assert_eq!(part(&beside.0, (&after.0, &after.1), &short), None);
        after.1.seconds *= 2.0;
        assert_eq!(part(&beside.0, (&after.0, &after.1), &beside.1), None);
        // Cores that do nothing else meanwhile have one stream.
        let mut found = machine("cpu", &[]).unwrap();
        for (taken, units) in [(Some(1.0), 0.0), (Some(0.5), 1.0), (None, 1.0), (Some(0.0), 0.02)] {
            fit(&mut found, taken, 4);
            assert!((found.tier[0].units - units).abs() < 1e-12, "{taken:?}: {}", found.tier[0].units);
        }
        // A level beyond the devices keeps its own.
        let mut found = machine("dgx-h100", &[]).unwrap();
        let outer = found.tier[1].units;
        fit(&mut found, Some(0.5), 8);
        assert_eq!((found.tier[0].units, found.tier[1].units), (66.0, outer));
    }
}
