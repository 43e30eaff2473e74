//! How this process was started: alone, or by a launcher as one of several, and what that makes of `--transport`.

use crate::args::{CollectivesChoice, DeviceChoice, DevicesArgs, TransportChoice};
use crate::connection::connection;
use crate::gpus;
use crate::output::console::Console;
#[cfg(feature = "mpi")]
use crate::signals;
use crate::stop::Stop;
use clap::ValueEnum;
use meshwright_comm::Timeouts;
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_exec::{DeviceCollectives, Processes};
use meshwright_gpu::driver::Driver;
use meshwright_gpu::load::Paths;
use meshwright_plan::Mesh;
use meshwright_train::{
    Asked, Devices, Failure, Project, Recorded, agree_on_result, check_same_configuration, recorded,
};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// What a launcher says of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Launched {
    /// This process.
    pub(crate) rank: usize,
    /// Number of processes, more than one.
    pub(crate) size: usize,
    /// The variable that says so.
    by: &'static str,
}

impl Launched {
    /// Whether what all processes print comes together in one place. Platforms that set these variables keep a log for each.
    fn one_log(&self) -> bool {
        self.by != "WORLD_SIZE"
    }

    /// Whether it is for this process to say what all of them meet with.
    pub(crate) fn speaks(&self) -> bool {
        self.rank == 0 || !self.one_log()
    }
}

/// Variables with the number of processes and with this one's rank, of Open MPI, MPICH and Intel MPI, PMI, Slurm, torchrun.
/// The first pair that is there counts: an inner launcher sets its own besides those of an outer one.
const LAUNCHERS: [(&str, &str); 6] = [
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    ("SLURM_NTASKS", "SLURM_PROCID"),
    ("WORLD_SIZE", "RANK"),
];

/// What the environment says of this process; none where it is one of one.
pub(crate) fn launched(variable: impl Fn(&str) -> Option<String>) -> Option<Launched> {
    let number = |name: &str| variable(name)?.trim().parse::<usize>().ok();
    for (size, rank) in LAUNCHERS {
        let (Some(n), Some(r)) = (number(size), number(rank)) else { continue };
        // A batch script is not a task of a step, but has the variables of the first one.
        if size == "SLURM_NTASKS" && r == 0 {
            continue;
        }
        return (n > 1).then_some(Launched { rank: r, size: n, by: size });
    }
    None
}

/// How devices communicate: as is said, or as the launcher makes it.
pub(crate) fn choice(said: Option<TransportChoice>, launched: Option<&Launched>) -> TransportChoice {
    let by_launch = if launched.is_some() { TransportChoice::Mpi } else { TransportChoice::Threads };
    said.unwrap_or(by_launch)
}

/// The devices that the command runs on; from here on the console knows which process it speaks for.
///
/// `command` is what decides which messages the processes exchange before they compare all settings: the command, and options of
/// it, by name.
pub(crate) fn devices(
    args: &DevicesArgs,
    command: &[(&str, String)],
    console: &mut Console,
) -> Result<Devices, Stop> {
    devices_of(args, command, None, console).map(|found| found.0)
}

/// The same, and what the folder `run` says of the run in it, which also says what of the devices the command does not.
pub(crate) fn devices_of(
    args: &DevicesArgs,
    command: &[(&str, String)],
    run: Option<&Path>,
    console: &mut Console,
) -> Result<(Devices, Option<Recorded>), Stop> {
    let launched = launched(|name| std::env::var(name).ok());
    let transport = choice(args.transport, launched.as_ref());
    let timeouts = args.timeout.map_or(Timeouts::default(), |later| Timeouts {
        first_step: Duration::from_secs(later * FIRST_STEP),
        later: Duration::from_secs(later),
    });
    let each = usize::from(args.devices_per_process.unwrap_or(1));
    let (processes, local) = match transport {
        TransportChoice::Threads if args.devices_per_process.is_some() => {
            let message =
                format!("`--devices-per-process {each}`: no launcher has started several processes");
            let found = Diagnostic::error(codes::E0525, message)
                .help("leave it out: all devices of the mesh are then in this process")
                .help("or start processes: `mpirun -n N meshwright ...`");
            return Err(console.failed(found.into(), &Sources::new()));
        }
        TransportChoice::Threads => (Arc::new(Processes::alone()), 0),
        TransportChoice::Mpi => {
            if let Some(launched) = &launched {
                console.speaks_for(launched.rank, launched.size);
            }
            let asked = (args.deterministic, timeouts);
            let connect = || connect(asked, each, launched.as_ref(), console);
            match connection((args.deterministic, timeouts, each), connect) {
                Ok(found) => found,
                // What all processes meet alike is said once; and not by one that is killed before it has.
                Err(Failure::Diagnostics(_)) if launched.as_ref().is_some_and(|l| !l.speaks()) => {
                    std::thread::sleep(Duration::from_millis(300));
                    return Err(Stop::Diagnosed);
                }
                Err(failure) => return Err(console.failed(failure, &Sources::new())),
            }
        }
    };
    console.joins(&processes);
    let given = command.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
    check_same_configuration(&processes, &given).map_err(|f| console.failed(f, &Sources::new()))?;
    let recorded = run.map(|folder| recorded(&processes, folder)).transpose();
    let recorded = recorded.map_err(|f| console.failed(f, &Sources::new()))?.flatten();
    let of_run = |name: &str| DeviceChoice::from_str(name, false).ok();
    let chosen = args.device.or(recorded.as_ref().and_then(|r| of_run(r.device()))).unwrap_or_default();
    let of_run = |r: &Recorded| CollectivesChoice::from_str(r.collectives()?, false).ok();
    let of_run = recorded.as_ref().filter(|_| chosen != DeviceChoice::Cpu).and_then(of_run);
    let how = args.collectives.or(of_run);
    let asked = Asked {
        transport: transport.name().into(),
        deterministic: args.deterministic,
        timeout: args.timeout,
        device: named(&chosen),
        collectives: how.as_ref().map(named),
    };
    let device = match chosen {
        DeviceChoice::Cpu => meshwright_cpu::device(),
        DeviceChoice::CubeclCpu => gpus::compiled_on_host(),
        DeviceChoice::Cuda => gpus::gpu(own_gpus(local, each)),
    };
    if how.is_some() && chosen == DeviceChoice::Cpu {
        return Err(Stop::Usage("`--collectives` is for GPUs: add `--device cuda`, or leave it out".into()));
    }
    let collectives = match how.unwrap_or_default() {
        CollectivesChoice::Nccl => DeviceCollectives::Nccl,
        CollectivesChoice::NcclSync => DeviceCollectives::NcclSync,
        CollectivesChoice::Staged => DeviceCollectives::Staged,
    };
    let gpus = if chosen == DeviceChoice::Cuda { shared_gpus() } else { None };
    let devices =
        Devices { processes, timeouts, device, gpus, collectives, libraries: nvidia(), beside: false, asked };
    Ok((devices, recorded))
}

/// A choice as the command line has it.
fn named(choice: &impl ValueEnum) -> String {
    choice.to_possible_value().map_or(String::new(), |v| v.get_name().into())
}

/// The first of the GPUs of a process that comes at place `local` among those of its machine. Each has `each` GPUs.
pub(crate) fn own_gpus(local: usize, each: usize) -> usize {
    first_gpu(&std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default(), local, each)
}

/// Where NVIDIA's libraries are, as the environment says.
pub(crate) fn nvidia() -> Paths {
    Paths::from_env(|name| std::env::var_os(name))
}

/// The number of GPUs, if NCCL lets ranks share them.
pub(crate) fn shared_gpus() -> Option<usize> {
    let shared = std::env::var("NCCL_MULTI_RANK_GPU_ENABLE").is_ok_and(|v| v.trim() == "1");
    let count = || Driver::open(&nvidia()).and_then(|driver| driver.count()).ok();
    shared.then(count).flatten().map(|n| n as usize)
}

/// The first GPU of a process, among the visible ones. A launcher either shows each process its own GPUs, or shows all of
/// them to every process of the machine.
fn first_gpu(shown: &str, local: usize, each: usize) -> usize {
    let own = !shown.is_empty() && shown.split(',').count() <= each;
    if own { 0 } else { local * each }
}

/// How many times longer than `--timeout` a collective may take until the first step is done.
const FIRST_STEP: u64 = 6;

/// The processes, and this one's place among those of its machine.
#[cfg(feature = "mpi")]
fn connect(
    (deterministic, timeouts): (bool, Timeouts),
    each: usize,
    launched: Option<&Launched>,
    console: &mut Console,
) -> Result<(Processes, usize), Failure> {
    use meshwright_comm::{Group, Transport};
    use meshwright_exec::ExecError;
    let mut wire = end(deterministic, timeouts, launched, console)?;
    let (rank, local) = (wire.rank(), wire.local_rank());
    let failed = |message: String| ExecError::Start { rank, message };
    // All processes must take the same way, whatever each is asked for.
    let most = wire.largest(each).map_err(|e| failed(e.to_string()))?;
    if most == 1 {
        return Ok((Processes::of_one_device_each(wire)?, local));
    }
    let group = Group::world(wire.size(), rank).map_err(|e| failed(e.to_string()))?;
    let devices = wire.devices(each).map_err(|e| failed(e.to_string()))?;
    let devices = devices.into_iter().map(|d| Box::new(d) as Box<dyn Transport>).collect();
    Ok((Processes::connected(devices, Box::new(wire), group)?, local))
}

/// This process's end of the world of all that were started with it.
#[cfg(feature = "mpi")]
pub(crate) fn end(
    deterministic: bool,
    timeouts: Timeouts,
    launched: Option<&Launched>,
    console: &mut Console,
) -> Result<meshwright_mpi::MpiTransport, Failure> {
    use meshwright_comm::Transport;
    use meshwright_exec::ExecError;
    use meshwright_mpi as mpi;
    let launched_as = launched.map_or(0, |l| l.rank);
    let options = mpi::MpiOptions {
        timeouts,
        deterministic,
        launched_as,
        ..mpi::MpiOptions::new(signal_hook::low_level::exit)
    };
    let end = mpi::init(options).map_err(|e| {
        let message = format!("{} does not start: {e}", mpi::library());
        // Others may have started: each rank says this itself.
        ExecError::Start { rank: launched.map_or(0, |l| l.rank), message }
    })?;
    if let Some(l) = launched.filter(|l| l.size != end.size()) {
        let message = format!(
            "this is one of {} processes (`{}`), but {} reports {}: they cannot communicate",
            l.size,
            l.by,
            mpi::library(),
            end.size()
        );
        return Err(Diagnostic::error(codes::E0525, message)
            .help("start it with the `mpirun` of the same MPI; with Slurm also `srun --mpi=pmix`")
            .into());
    }
    signals::watched(end.watch(), &mut |text| console.note(text));
    Ok(end)
}

#[cfg(not(feature = "mpi"))]
fn connect(
    _: (bool, Timeouts),
    _: usize,
    launched: Option<&Launched>,
    _: &mut Console,
) -> Result<(Processes, usize), Failure> {
    Err(without_mpi(launched))
}

/// Why this binary has no processes.
#[cfg(not(feature = "mpi"))]
pub(crate) fn without_mpi(launched: Option<&Launched>) -> Failure {
    let (message, or) = match launched {
        Some(l) => (
            format!(
                "this is one of {} processes (`{}`), but this binary was built without MPI: they cannot communicate",
                l.size, l.by
            ),
            "devices that are threads need no launcher: start it once, without `mpirun` or `srun`",
        ),
        None => (
            "`--transport mpi`, but this binary was built without MPI".to_string(),
            "or leave `--transport mpi` out: the devices are then threads of this process",
        ),
    };
    let build = "build it with MPI: `cargo build --release --features mpi`";
    Diagnostic::error(codes::E0525, message).help(build).help(or).into()
}

/// Checks that a project's mesh has as many devices as the processes have.
pub(crate) fn fits(project: &Project, console: &mut Console, sources: &Sources) -> Result<(), Stop> {
    let example = project.example_dim().map_or("batch", |d| d.1);
    mesh_fits(&project.layout.mesh, example, console, sources)
}

/// Checks that a mesh has as many devices as the processes have; `example` is a dim that may be split over them.
pub(crate) fn mesh_fits(
    mesh: &Mesh,
    example: &str,
    console: &mut Console,
    sources: &Sources,
) -> Result<(), Stop> {
    let processes = console.processes().clone();
    let Some(ranks) = processes.devices().filter(|n| *n != mesh.devices()) else { return Ok(()) };
    let failure = Err(misfit(mesh, processes.count(), ranks, example).into());
    agree_on_result(&processes, "the mesh", failure).map_err(|f| console.failed(f, sources))
}

/// Advice for a model without a mesh on this number of devices.
pub(crate) fn split(devices: usize, example: &str) -> String {
    format!("split the model: `--mesh data={devices} --layout '{example} -> data'`, or a layout that ships")
}

/// `ranks` are the devices of all `processes`.
fn misfit(mesh: &Mesh, processes: usize, ranks: usize, example: &str) -> Diagnostic {
    let count = |n: usize, what: &str| if n == 1 { format!("one {what}") } else { format!("{n} {what}s") };
    let devices = mesh.devices();
    let of = if mesh.axes.is_empty() { String::new() } else { format!(" {}", mesh.describe()) };
    let (ranks_in_words, devices_in_words) = (count(ranks, "rank"), count(devices, "device"));
    let one_each = ranks == processes;
    let message = if one_each {
        format!("there are {ranks_in_words}, and the mesh{of} has {devices_in_words}: each rank is a device")
    } else {
        let processes = count(processes, "process").replace("processs", "processes");
        format!("{processes} have {ranks_in_words} in all, and the mesh{of} has {devices_in_words}")
    };
    let d = Diagnostic::error(codes::E0307, message);
    let d = match mesh.resized(ranks) {
        None => d.help(split(ranks, example)),
        Some(fitting) => d.help(format!("give another mesh: `--mesh {}`", fitting.option())),
    };
    let d = match devices / processes {
        each if each > 1 && devices.is_multiple_of(processes) => {
            d.help(format!("or give each process several devices: `--devices-per-process {each}`"))
        }
        _ => d,
    };
    let each = ranks / processes;
    if ranks.is_multiple_of(processes) && devices.is_multiple_of(each) {
        d.help(format!("or start another number of ranks: `mpirun -n {}`", devices / each))
    } else {
        d
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Option<(usize, usize)> {
        let found = launched(|name| variables.iter().find(|v| v.0 == name).map(|v| v.1.to_string()));
        found.map(|l| (l.rank, l.size))
    }

    fn mesh(axes: &[(&str, usize)]) -> Mesh {
        Mesh::new(axes.iter().copied())
    }

    #[test]
    fn processes_of_several_devices_are_counted() {
        let said = misfit(&mesh(&[("r", 2), ("c", 4)]), 2, 4, "batch");
        assert_eq!(said.message, "2 processes have 4 ranks in all, and the mesh r=2 x c=4 has 8 devices");
        let helps = said.helps.join(" ");
        assert!(helps.contains("`--devices-per-process 4`") && helps.contains("`mpirun -n 4`"), "{helps}");
        // Ten devices fit neither four processes with two each nor one number each.
        let said = misfit(&mesh(&[("r", 10)]), 4, 8, "batch");
        assert!(said.helps.iter().all(|h| !h.contains("--devices-per-process")), "{:?}", said.helps);
        assert!(said.helps.iter().any(|h| h.contains("`mpirun -n 5`")), "{:?}", said.helps);
    }

    #[test]
    fn processes_take_their_own_gpus() {
        assert_eq!(first_gpu("", 3, 1), 3);
        assert_eq!(first_gpu("5", 3, 1), 0);
        assert_eq!(first_gpu("0,1,2,3", 1, 2), 2);
        assert_eq!(first_gpu("2,3", 1, 2), 0);
        assert_eq!(first_gpu("", 1, 4), 4);
    }

    #[test]
    fn launchers_are_known_by_their_variables() {
        assert_eq!(of(&[("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_RANK", "2")]), Some((2, 4)));
        assert_eq!(of(&[("PMI_SIZE", "4"), ("PMI_RANK", "0")]), Some((0, 4)));
        assert_eq!(of(&[("WORLD_SIZE", "2"), ("RANK", "1")]), Some((1, 2)));
        assert_eq!(of(&[("WORLD_SIZE", "2")]), None);
        assert_eq!(of(&[("OMPI_COMM_WORLD_SIZE", "1"), ("OMPI_COMM_WORLD_RANK", "0")]), None);
        assert_eq!(of(&[("OMPI_COMM_WORLD_SIZE", "x"), ("OMPI_COMM_WORLD_RANK", "0")]), None);
        let step = [("SLURM_STEP_NUM_TASKS", "8"), ("SLURM_NTASKS", "8"), ("SLURM_PROCID", "0")];
        assert_eq!(of(&step), Some((0, 8)));
        // A batch script, and a step of one task within it.
        assert_eq!(of(&step[1..]), None);
        assert_eq!(of(&[("SLURM_STEP_NUM_TASKS", "1"), step[1], step[2]]), None);
        assert_eq!(of(&[("SLURM_NTASKS", "8"), ("SLURM_PROCID", "3")]), Some((3, 8)));
        // `mpirun` in a batch script.
        let within = [("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_RANK", "1"), step[1], step[2]];
        assert_eq!(of(&within), Some((1, 4)));
    }

    #[test]
    fn a_mesh_that_does_not_fit_is_answered_with_one_that_does() {
        let said = misfit(&mesh(&[("r", 2), ("c", 3)]), 4, 4, "batch");
        assert!(said.message.contains("4 ranks") && said.message.contains("6 devices"), "{}", said.message);
        assert!(said.helps.iter().any(|h| h.contains("mpirun -n 6")), "{:?}", said.helps);
        assert!(misfit(&mesh(&[]), 4, 4, "rows").helps[0].contains("--mesh data=4 --layout 'rows -> data'"));
    }
}
