//! Measures the machine that this runs on, and writes what estimates need to know of it.
//!
//! Programs from model texts give the rates of a device, by the times of their kernels; the benchmark of transports gives the
//! network; plans of shipped models give the errors. All of it is the engine's own code, and a number is set so that
//! [`meshwright_cost`] computes the times that were measured.

mod fit;
mod host;
mod network;
mod overlap;
mod plans;
mod probes;
mod ranks;
mod rounds;

use crate::devices::Devices;
use crate::devices::consensus::{abort_on_error, agree_on_result};
use crate::failure::Failure;
use meshwright_cost::engine::EngineKind;
use meshwright_cost::machine::{Calibration, DeviceKind, Machine};
use meshwright_diag::{Diagnostic, codes};
use meshwright_exec::Processes;
use meshwright_plan::Mesh;
use meshwright_sorted::SortedMap;
pub use plans::{CalibratedPlan, CalibrationErrors};
use plans::{MeasuredPlan, cases, errors, sustain};
use probes::{probes, shared, shared_length};
use ranks::Ranks;
use rounds::{Cores, Timed, in_turns};
pub use rounds::{UNSTEADY, Unsteady};
use std::time::Duration;

/// The mesh that is measured, and for how long.
#[derive(Clone, Debug)]
pub struct CalibrateOptions {
    /// The mesh whose groups communicate, and that plans run on. Of several processes each is a device of it.
    pub mesh: Mesh,
    /// About how long it may take. What has to be measured at least takes some twenty seconds on idle cores.
    pub time: Duration,
    /// Name of the machine, where it is not to be that of the host.
    pub name: Option<String>,
    /// The devices. All processes take part; what one device does alone, the first does.
    pub devices: Devices,
}

/// Is told what is measured: the part of the calibration, and what of it.
pub type CalibrationWatcher<'a> = dyn FnMut(&str, &str) + Send + 'a;

/// A machine that was measured.
#[derive(Clone, Debug)]
pub struct Calibrated {
    /// The machine, with its errors.
    pub machine: Machine,
    /// What these come from.
    pub errors: CalibrationErrors,
    /// Programs and collectives that were timed to fit numbers.
    pub probes: usize,
    /// Those of them whose quartiles are further apart than [`UNSTEADY`].
    pub unsteady: Vec<Unsteady>,
}

/// A calibration shorter than this leaves out what takes long to prepare.
const SHORT: Duration = Duration::from_secs(60);

/// Parts of the time: for probes of kernels, for collectives, for what runs beside these, for the gain of threads, and for plans.
const SHARES: [f64; 5] = [0.35, 0.25, 0.05, 0.1, 0.25];

/// Measures this host, and how well estimates with what was measured predict plans. Of several processes the first has the
/// result.
///
/// # Errors
/// Where a program does not run, or a collective gives wrong elements.
pub fn calibrate(
    options: &CalibrateOptions,
    watch: &mut CalibrationWatcher<'_>,
) -> Result<Option<Calibrated>, Failure> {
    abort_on_error(&options.devices.processes, measured(options, watch))
}

fn measured(
    options: &CalibrateOptions,
    watch: &mut CalibrationWatcher<'_>,
) -> Result<Option<Calibrated>, Failure> {
    let processes = &*options.devices.processes;
    let short = options.time < SHORT;
    let ranks = Ranks::of(&options.devices, &options.mesh).map_err(Failure::from);
    let ranks = agree_on_result(processes, "the places of ranks", ranks)?;
    let device = on_first(processes, "kernels", || device(options, &ranks, short, watch))?;
    let beside = beside(options, &ranks, short, watch)?;
    let threads = on_first(processes, "threads", || threads(options, &ranks, short, watch))?;
    let (mut times, mut unsteady) = (SortedMap::new(), vec![]);
    let groups = ranks.groups(&options.mesh);
    for members in &groups {
        let mut progress = |what: &str| watch("collectives", what);
        let time = options.time.mul_f64(SHARES[1] / groups.len() as f64);
        let (of, some) = network::timed(&options.devices, *members, (time, short), &mut progress)?;
        times.insert(*members, of);
        unsteady.extend(some);
    }
    let mut progress = |what: &str| watch("overlap", what);
    let time = options.time.mul_f64(SHARES[2]);
    let taken =
        overlap::taken((&options.devices, kind(&options.devices)), &options.mesh, time, &mut progress)?;
    let plans = measured_plans(options, options.time.mul_f64(SHARES[4]), short, watch)?;
    let found = device.map(|(mut machine, base, (count, mut of_kernels))| {
        fit::total(&mut machine, beside.0, &beside.1);
        machine.device.threads = threads.flatten().unwrap_or(0.0);
        network::fit(&mut machine.tier, &times, &ranks);
        overlap::fit(&mut machine, taken, options.mesh.devices());
        let probes = count + times.values().flat_map(SortedMap::values).map(Vec::len).sum::<usize>();
        let (machine, errors) = finished((machine, base), &plans, (&times, taken), options)?;
        of_kernels.extend(unsteady);
        Ok(Calibrated { machine, errors, probes, unsteady: of_kernels })
    });
    agree_on_result(processes, "the machine", found.transpose())
}

/// The machine with its errors, where its numbers come from, and when.
fn finished(
    (machine, base): (Machine, &str),
    plans: &[MeasuredPlan],
    (times, taken): (&SortedMap<usize, network::CollectiveTimes>, Option<f64>),
    options: &CalibrateOptions,
) -> Result<(Machine, CalibrationErrors), Failure> {
    let mut machine = host::rounded(&machine);
    sustain(&mut machine, plans)?;
    let errors = errors(&machine, plans)?;
    let date = meshwright_runs::clock::now().chars().take("2026-11-21".len()).collect::<String>();
    let engine = engine(&options.devices);
    let most = times.keys().next_back().copied().unwrap_or(0);
    host::name_sources(&mut machine, &date, engine.name(), (most, taken.is_some()), base);
    machine.errors.clone_from(&errors.families);
    machine.calibration = Some(Calibration {
        date,
        on: machine.device.name.clone(),
        engine: Some(engine.name().into()),
        plans: errors.plans.len() as u32,
        mean_error: errors.mean,
        max_error: errors.max,
    });
    Ok((host::rounded(&machine), errors))
}

/// The engine that is measured.
fn engine(devices: &Devices) -> EngineKind {
    match (devices.device.gpu_number(), devices.processes.count()) {
        (Some(_), _) => EngineKind::Cuda,
        (None, 1) => EngineKind::Threads,
        _ => EngineKind::Mpi,
    }
}

/// The kind of the devices.
fn kind(devices: &Devices) -> DeviceKind {
    if devices.device.gpu_number().is_some() { DeviceKind::Gpu } else { DeviceKind::Cpu }
}

/// Runs work on the first process while the others wait.
fn on_first<T: Send>(
    processes: &Processes,
    about: &'static str,
    work: impl FnOnce() -> Result<T, Failure> + Send,
) -> Result<Option<T>, Failure> {
    let ended = processes.on_first(about.into(), work)?;
    agree_on_result(processes, about, ended.transpose())
}

/// How well estimates with a machine predict plans on this host. Of several processes the first has the result.
///
/// # Errors
/// Where a plan does not run, or cannot be estimated.
pub fn check_machine(
    machine: &Machine,
    options: &CalibrateOptions,
    watch: &mut CalibrationWatcher<'_>,
) -> Result<Option<CalibrationErrors>, Failure> {
    let processes = &*options.devices.processes;
    let mut checked = || {
        let plans = measured_plans(options, options.time, options.time < SHORT, watch)?;
        let found = processes.is_first().then(|| errors(machine, &plans)).transpose();
        agree_on_result(processes, "the errors", found)
    };
    abort_on_error(processes, checked())
}

/// The machine with the numbers of one device, by probes; the shipped file that has the others; how many probes there were, and
/// those of them that were unsteady.
type MeasuredDevice = (Machine, &'static str, (usize, Vec<Unsteady>));

/// Measures one device.
fn device(
    options: &CalibrateOptions,
    ranks: &Ranks,
    short: bool,
    watch: &mut CalibrationWatcher<'_>,
) -> Result<MeasuredDevice, Failure> {
    let devices = options.devices.first();
    let mut kinds = vec![];
    let mut all = vec![];
    for probe in probes(kind(&devices), short) {
        watch("kernels", &probe.name());
        all.push(Timed::start(probe.name(), &probe.options, &devices, Cores::OneEach)?);
        kinds.push(probe.kind);
    }
    in_turns(&mut all, &devices, options.time.mul_f64(SHARES[0]), &mut |what| watch("kernels", what))?;
    let (mut unsteady, mut found) = (vec![], vec![]);
    for (kind, timed) in kinds.into_iter().zip(&all) {
        let spread = timed.measured().spread;
        if spread > UNSTEADY {
            unsteady.push(Unsteady { name: timed.name.clone(), spread });
        }
        found.push((kind, samples(timed, &devices)?));
    }
    // Devices that this build or this host has not are refused by their start.
    let (mut machine, base) = host::machine_of_host(options.name.as_deref(), ranks, &devices)?;
    let attention = engine(&devices).attention().first().copied().unwrap_or_default().to_string();
    fit::fit(&mut machine, &found, &attention);
    Ok((machine, base, (found.len(), unsteady)))
}

/// Vectors on devices of a host that share its memory, and how many devices: processes where each has a core, else threads of the
/// first on all cores, since devices that wait for a core tell nothing of memory. Each GPU has its own.
fn beside(
    options: &CalibrateOptions,
    ranks: &Ranks,
    short: bool,
    watch: &mut CalibrationWatcher<'_>,
) -> Result<(usize, Vec<fit::Sample>), Failure> {
    let processes = &*options.devices.processes;
    let count = ranks.in_host.min(ranks.cores);
    let mut measure = |devices: &Devices, all: usize, count: usize| {
        let length = devices.processes.broadcast("vectors".into(), shared_length(count, short))?;
        let probe = shared(length, all);
        let mut timed = [Timed::start(probe.name(), &probe.options, devices, Cores::OneEach)?];
        in_turns(&mut timed, devices, Duration::ZERO, &mut |what| watch("memory", what))?;
        samples(&timed[0], devices)
    };
    if kind(&options.devices) == DeviceKind::Gpu {
        return Ok((1, vec![]));
    }
    if processes.count() > 1 && ranks.in_host == count {
        return Ok((count, measure(&options.devices, ranks.in_host * ranks.hosts, count)?));
    }
    let alone =
        on_first(processes, "memory", || measure(&options.devices.first(), ranks.cores, ranks.cores))?;
    Ok((ranks.cores, alone.unwrap_or_default()))
}

/// How much faster all cores make a device than one, as [`Device::threads`](meshwright_cost::machine::Device::threads) has it:
/// the mean of plans of one device, on both in turns. None where a device has no more than a core.
fn threads(
    options: &CalibrateOptions,
    ranks: &Ranks,
    short: bool,
    watch: &mut CalibrationWatcher<'_>,
) -> Result<Option<f64>, Failure> {
    let devices = options.devices.first();
    if kind(&devices) == DeviceKind::Gpu || ranks.cores < 2 {
        return Ok(None);
    }
    let mut all = vec![];
    for (name, project) in cases(DeviceKind::Cpu, None, short) {
        for cores in [Cores::OneEach, Cores::All] {
            all.push(Timed::start(name.clone(), &project, &devices, cores)?);
        }
    }
    in_turns(&mut all, &devices, options.time.mul_f64(SHARES[3]), &mut |what| watch("threads", what))?;
    let faster = |both: &[Timed]| (both[0].measured().seconds / both[1].measured().seconds).ln();
    let each: Vec<f64> = all.chunks_exact(2).map(faster).collect();
    let exponent = each.iter().sum::<f64>() / each.len() as f64 / (ranks.cores as f64).ln();
    Ok(Some(exponent.clamp(0.0, 1.0)))
}

fn samples(timed: &Timed, devices: &Devices) -> Result<Vec<fit::Sample>, Failure> {
    let found = fit::samples(&timed.plan, &timed.measured(), engine(devices).target());
    found.map_err(|e| Diagnostic::error(codes::E0531, format!("{}: {e}", timed.name)).into())
}

/// Measures the plans of one device, on the first, and then those of the mesh.
fn measured_plans(
    options: &CalibrateOptions,
    time: Duration,
    short: bool,
    watch: &mut CalibrationWatcher<'_>,
) -> Result<Vec<MeasuredPlan>, Failure> {
    let kind = kind(&options.devices);
    let (alone, spread) = (cases(kind, None, short), cases(kind, Some(&options.mesh), short));
    let part = alone.len() as f64 / (alone.len() + spread.len()) as f64;
    let mut measure = |all: Vec<_>, devices: &Devices, time: Duration| {
        watch("plans", "compiling");
        let mut timed = vec![];
        for (name, project) in all {
            timed.push(Timed::start(name, &project, devices, Cores::All)?);
        }
        in_turns(&mut timed, devices, time, &mut |what| watch("plans", what))?;
        Ok::<_, Failure>(timed.into_iter().map(MeasuredPlan::of).collect::<Vec<_>>())
    };
    let devices = &options.devices;
    let first =
        on_first(&devices.processes, "plans", || measure(alone, &devices.first(), time.mul_f64(part)))?;
    let mut all = first.unwrap_or_default();
    all.extend(measure(spread, devices, time.mul_f64(1.0 - part))?);
    Ok(all)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use meshwright_comm::{Timeouts, World};
    use std::sync::Arc;

    /// Here a process is a thread. Programs with a cluster each share its end, and run in the same order on both; the collectives
    /// of all are timed, and the first process knows how long they took.
    #[test]
    fn processes_are_measured_together() {
        let mesh = Mesh::new([("all", 2)]);
        let process = |end| {
            let processes = Arc::new(Processes::of_one_device_each(end).unwrap());
            let devices = Devices { processes, ..Devices::default() };
            let ranks = Ranks::of(&devices, &mesh).unwrap();
            assert_eq!((ranks.in_host, ranks.hosts), (2, 1));
            let mut all: Vec<Timed> = cases(DeviceKind::Cpu, Some(&mesh), true)
                .into_iter()
                .filter(|(_, o)| o.model == "mlp")
                .map(|(name, options)| Timed::start(name, &options, &devices, Cores::OneEach).unwrap())
                .collect();
            assert!(all.len() > 1, "programs that share an end");
            in_turns(&mut all, &devices, Duration::ZERO, &mut |_| {}).unwrap();
            let steps: Vec<usize> = all.iter().map(|t| t.measured().steps).collect();
            drop(all);
            let (times, _) = network::timed(&devices, 2, (Duration::ZERO, true), &mut |_| {}).unwrap();
            let first = on_first(&devices.processes, "the first", || Ok(1)).unwrap();
            (steps, times.len(), first)
        };
        let found: Vec<_> = std::thread::scope(|scope| {
            let ends = World::new(2, Timeouts::for_tests()).into_iter();
            let process = &process;
            let all: Vec<_> = ends.map(|end| scope.spawn(move || process(end))).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert!(found[0].0 == found[1].0 && found[0].0.iter().all(|n| *n == 9), "{found:?}");
        assert!(found[0].1 >= 5 && found[1].1 == 0, "{found:?}");
        assert_eq!((found[0].2, found[1].2), (Some(1), None));
    }
}
