//! Measures the machine that this runs on, and writes what estimates need to know of it.
//!
//! Programs from model texts give the rates of a device, by the times of their kernels; the benchmark of transports gives the network;
//! plans of shipped models give the errors. All of it is the engine's own code, and a number is set so that
//! [`meshwright_cost`] computes the times that were measured.

mod fit;
mod host;
mod network;
mod plans;
mod probes;
mod rounds;

use crate::failure::Failure;
use meshwright_cost::machine::{Calibration, Machine};
use meshwright_diag::{Diagnostic, codes};
use meshwright_plan::Mesh;
pub use plans::{CalibratedPlan, CalibrationErrors};
use plans::{MeasuredPlan, errors, started, sustain};
use probes::{probes, shared};
use rounds::{Timed, in_turns};
use std::collections::BTreeMap;
use std::time::Duration;

/// What to measure.
#[derive(Clone, Debug)]
pub struct CalibrateOptions {
    /// The mesh whose groups communicate, and that plans run on.
    pub mesh: Mesh,
    /// About how long it may take. What has to be measured at least takes some twenty seconds on idle cores.
    pub time: Duration,
    /// Name of the machine, where it is not to be that of the host.
    pub name: Option<String>,
}

/// Is told what is measured: the part of the calibration, and what of it.
pub type CalibrationWatcher<'a> = dyn FnMut(&str, &str) + 'a;

/// A machine that was measured.
#[derive(Clone, Debug)]
pub struct Calibrated {
    /// The machine, with its errors.
    pub machine: Machine,
    /// What these come from.
    pub errors: CalibrationErrors,
    /// Programs that were timed to fit numbers, and those of them whose quartiles are further apart than [`UNSTEADY`].
    pub probes: (usize, usize),
}

/// Quartiles of a time lie further apart than this part of it only where something else is at work.
pub const UNSTEADY: f64 = 0.1;

/// A calibration shorter than this leaves out what takes long to prepare.
const SHORT: Duration = Duration::from_secs(60);

/// Parts of the time for probes and for plans.
const SHARES: (f64, f64) = (0.45, 0.35);

/// Measures this host, and how well estimates with what was measured predict plans.
///
/// # Errors
/// Where a program does not run, or a collective gives wrong elements.
pub fn calibrate(
    options: &CalibrateOptions,
    watch: &mut CalibrationWatcher<'_>,
) -> Result<Calibrated, Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let short = options.time < SHORT;
    let mut machine = host::machine_of_host(options.name.as_deref(), cores)?;
    let counts = device(&mut machine, cores, options.time.mul_f64(SHARES.0), short, watch)?;
    let groups = network::members(&options.mesh);
    let mut times = BTreeMap::new();
    for members in &groups {
        times.insert(*members, network::timed(*members, short, &mut |what| watch("collectives", what))?);
    }
    if let Some(tier) = machine.tier.first_mut() {
        network::fit(tier, &times);
    }
    machine = host::rounded(&machine);
    let plans = measured_plans(&options.mesh, options.time.mul_f64(SHARES.1), short, watch)?;
    sustain(&mut machine, &plans)?;
    let errors = errors(&machine, &plans)?;
    let date = meshwright_runs::clock::now().chars().take("2026-11-21".len()).collect::<String>();
    host::name_sources(&mut machine, &date, !groups.is_empty());
    machine.errors.clone_from(&errors.families);
    machine.calibration = Some(Calibration {
        date,
        on: machine.device.name.clone(),
        plans: errors.plans.len() as u32,
        mean_error: errors.mean,
        max_error: errors.max,
    });
    let machine = host::rounded(&machine);
    Ok(Calibrated { machine, errors, probes: counts })
}

/// How well estimates with a machine predict plans on this host.
///
/// # Errors
/// Where a plan does not run, or cannot be estimated.
pub fn check_machine(
    machine: &Machine,
    options: &CalibrateOptions,
    watch: &mut CalibrationWatcher<'_>,
) -> Result<CalibrationErrors, Failure> {
    errors(machine, &measured_plans(&options.mesh, options.time, options.time < SHORT, watch)?)
}

/// Fits the numbers of a device by probes. Gives how many there were, and how many of them were unsteady.
fn device(
    machine: &mut Machine,
    cores: usize,
    time: Duration,
    short: bool,
    watch: &mut CalibrationWatcher<'_>,
) -> Result<(usize, usize), Failure> {
    let mut kinds = vec![];
    let mut all = vec![];
    for probe in probes(short) {
        watch("kernels", &probe.name());
        all.push(Timed::start(probe.name(), &probe.options)?);
        kinds.push(probe.kind);
    }
    in_turns(&mut all, time, &mut |what| watch("kernels", what))?;
    let mut unsteady = 0;
    let mut found = vec![];
    for (kind, timed) in kinds.into_iter().zip(&all) {
        let measured = timed.measured();
        unsteady += usize::from(measured.spread > UNSTEADY);
        found.push((kind, samples(timed)?));
    }
    let count = all.len();
    drop(all);
    fit::fit(machine, &found);
    // Devices side by side would disturb the others.
    let beside = shared(cores, short);
    let mut beside = [Timed::start(beside.name(), &beside.options)?];
    in_turns(&mut beside, Duration::ZERO, &mut |what| watch("memory", what))?;
    fit::total(machine, cores, &samples(&beside[0])?);
    Ok((count, unsteady))
}

fn samples(timed: &Timed) -> Result<Vec<fit::Sample>, Failure> {
    let found = fit::samples(&timed.plan, &timed.measured());
    found.map_err(|e| Diagnostic::error(codes::E0531, format!("{}: {e}", timed.name)).into())
}

fn measured_plans(
    mesh: &Mesh,
    time: Duration,
    short: bool,
    watch: &mut CalibrationWatcher<'_>,
) -> Result<Vec<MeasuredPlan>, Failure> {
    watch("plans", "compiling");
    let mut all = started(mesh, short)?;
    in_turns(&mut all, time, &mut |what| watch("plans", what))?;
    Ok(all.into_iter().map(MeasuredPlan::of).collect())
}
