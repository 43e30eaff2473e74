//! `bench collectives`.

use crate::args::{ALL_OPS, BenchCollectivesArgs, BenchFold, BenchTransport, BenchType, TransportChoice};
#[cfg(feature = "mpi")]
use crate::launch::own_gpus;
use crate::launch::{choice, launched, nvidia, shared_gpus};
use crate::output::console::Console;
use crate::output::json::{Object, object};
use crate::output::progress::bar;
use crate::output::text::{bytes, counted, thousands};
use crate::stop::{DIAGNOSED, Stop, end_all};
#[cfg(feature = "mpi")]
use meshwright_comm::Transport as _;
use meshwright_comm::bench::{
    BenchGroups, BenchJob, Measured, kinds as measured_kinds, run_over as measure, sizes,
};
use meshwright_comm::nccl::{NcclOptions, NcclTransport};
use meshwright_comm::{CollectiveKind, CommError, Timeouts, World};
use meshwright_core::layout::{mesh_of, named_mesh};
use meshwright_diag::{Diagnostic, Sources, codes, has_errors};
use meshwright_gpu::load::Paths;
use meshwright_plan::{DType, Mesh, Monoid};
use meshwright_syntax::ast::LayoutFile;
use meshwright_syntax::parse_mesh;

/// Threads, unless told otherwise.
const DEVICES: usize = 4;

/// Most devices: each is a thread.
const MOST_DEVICES: usize = 1024;

/// What as many timed calls move as are made unless told otherwise, and the bounds of their number.
const MOVED: usize = 1 << 30;
const FEWEST: usize = 20;
const MOST: usize = 2000;

/// Devices of a benchmark.
enum Ends {
    Threads,
    /// This process is one of them.
    #[cfg(feature = "mpi")]
    Mpi(meshwright_mpi::MpiTransport),
    /// The first GPUs of this machine, all of this process.
    Nccl,
    /// The GPU of this process, which is one of several.
    #[cfg(feature = "mpi")]
    NcclEnd(Box<NcclTransport>),
}

impl Ends {
    fn of(args: &BenchCollectivesArgs, console: &mut Console) -> Result<Ends, Stop> {
        let launched = launched(|name| std::env::var(name).ok());
        let asked = match args.transport {
            Some(BenchTransport::Nccl) if launched.is_none() => return Ok(Ends::Nccl),
            Some(BenchTransport::Nccl | BenchTransport::Mpi) => Some(TransportChoice::Mpi),
            Some(BenchTransport::Threads) => Some(TransportChoice::Threads),
            None => None,
        };
        match choice(asked, launched.as_ref()) {
            TransportChoice::Threads => Ok(Ends::Threads),
            #[cfg(feature = "mpi")]
            TransportChoice::Mpi => {
                let end = crate::launch::end(false, Timeouts::default(), launched.as_ref(), console);
                let end = end.map_err(|failure| console.failed(failure, &Sources::new()))?;
                console.speaks_for(end.rank(), end.size());
                if args.transport != Some(BenchTransport::Nccl) {
                    return Ok(Ends::Mpi(end));
                }
                let (paths, round) = installed();
                let gpu = round(own_gpus(end.local_rank(), 1) as u32);
                let options = NcclOptions { paths, ..NcclOptions::default() };
                match NcclTransport::new(Box::new(end), gpu, &options) {
                    Ok(end) => Ok(Ends::NcclEnd(Box::new(end))),
                    Err(e) => Err(refused(&e, console)),
                }
            }
            #[cfg(not(feature = "mpi"))]
            TransportChoice::Mpi => {
                Err(console.failed(crate::launch::without_mpi(launched.as_ref()), &Sources::new()))
            }
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Ends::Threads => TransportChoice::Threads.name(),
            #[cfg(feature = "mpi")]
            Ends::Mpi(_) => TransportChoice::Mpi.name(),
            Ends::Nccl => "nccl",
            #[cfg(feature = "mpi")]
            Ends::NcclEnd(_) => "nccl",
        }
    }

    /// Number of processes, where devices are processes.
    fn processes(&self) -> Option<usize> {
        match self {
            Ends::Threads | Ends::Nccl => None,
            #[cfg(feature = "mpi")]
            Ends::Mpi(end) => Some(end.size()),
            #[cfg(feature = "mpi")]
            Ends::NcclEnd(end) => Some(end.size()),
        }
    }

    /// Measures; where devices are processes, `each` is called in the first one.
    fn measure(
        self,
        devices: usize,
        groups: &BenchGroups,
        jobs: &[BenchJob],
        each: impl FnMut(Measured) -> bool,
    ) -> Result<(), CommError> {
        match self {
            Ends::Threads => measure(World::new(devices, Timeouts::default()), groups, jobs, each),
            #[cfg(feature = "mpi")]
            Ends::Mpi(mut end) => {
                meshwright_comm::bench::run_end_over(&mut end, groups, jobs, each)?;
                end.close()
            }
            Ends::Nccl => measure(gpus(devices)?, groups, jobs, each),
            #[cfg(feature = "mpi")]
            Ends::NcclEnd(mut end) => meshwright_comm::bench::run_end_over(&mut *end, groups, jobs, each),
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &BenchCollectivesArgs, console: &mut Console) -> Result<(), Stop> {
    let ends = Ends::of(args, console)?;
    let processes = ends.processes();
    let ended = run_on(ends, args, console);
    if processes.is_some() && ended.is_err() {
        // The others may be in the middle of a collective.
        console.flush()?;
        end_all(DIAGNOSED);
    }
    ended
}

fn run_on(ends: Ends, args: &BenchCollectivesArgs, console: &mut Console) -> Result<(), Stop> {
    let mesh = mesh(args, ends.processes(), console)?;
    let devices = mesh.devices();
    let groups = groups(args, &mesh)?;
    let jobs = jobs(args, devices)?;
    let (name, leads) = (ends.name(), console.leads());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if leads && console.json() {
        console.out_json(&head(name, &mesh, &args.over, cores))?;
    } else if leads {
        let side = match args.over.is_empty() {
            true => String::new(),
            false => format!(", {} of {}", counted(groups.count() as u64, "group"), groups.members()),
        };
        let mesh = format!("{} = {}{side}", mesh.describe(), counted(devices as u64, "device"));
        console.out(&format!(
            "transport {name}, mesh {mesh}, {}\n\n{}",
            counted(cores as u64, "core"),
            titles()
        ))?;
    }
    console.flush()?;
    let bar = bar(jobs.len() as u64, console);
    let named = |i: usize| {
        jobs.get(i).map_or(String::new(), |j| format!("{} {}", j.kind.name(), bytes(j.bytes as u64)))
    };
    bar.set_message(named(0));
    let mut found: Vec<Measured> = Vec::new();
    let mut broken = Ok(());
    let ended = ends.measure(devices, &groups, &jobs, |m| {
        found.push(m);
        let line = if console.json() { console.out_json(&line(&m)) } else { console.out(&row(&m)) };
        broken = bar.suspend(|| line.and_then(|()| console.flush()));
        bar.set_position(found.len() as u64);
        bar.set_message(named(found.len()));
        broken.is_ok()
    });
    bar.finish_and_clear();
    broken?;
    ended.map_err(|e| refused(&e, console))?;
    if leads && !console.json() {
        console.out(&summary(&found))?;
    }
    let wrong = wrong(&found);
    if wrong.is_empty() {
        return Ok(());
    }
    console.flush()?;
    console.diagnostics(&wrong, &Sources::new());
    Err(Stop::Diagnosed)
}

fn refused(e: &CommError, console: &mut Console) -> Stop {
    console.diagnostics(&[Diagnostic::error(codes::E0520, e.to_string())], &Sources::new());
    Stop::Diagnosed
}

/// Where NVIDIA's libraries are, and which GPU a rank has: where ranks may share a GPU, they go round.
fn installed() -> (Paths, impl Fn(u32) -> u32) {
    let there = shared_gpus().and_then(|n| u32::try_from(n).ok());
    (nvidia(), move |rank| there.filter(|n| *n > 0).map_or(rank, |n| rank % n))
}

/// The first GPUs, all in this process.
fn gpus(devices: usize) -> Result<Vec<NcclTransport>, CommError> {
    let (paths, round) = installed();
    let all: Vec<u32> = (0..devices as u32).map(round).collect();
    NcclTransport::of_process(&all, &NcclOptions { paths, ..NcclOptions::default() })
}

/// The mesh, of as many devices as there are processes where devices are processes.
fn mesh(args: &BenchCollectivesArgs, processes: Option<usize>, console: &mut Console) -> Result<Mesh, Stop> {
    let mesh = asked_mesh(args, processes, console)?;
    match processes {
        Some(n) if n != mesh.devices() => Err(Stop::Usage(format!(
            "{} on {}: leave --mesh and --devices out, or start as many processes as there are devices",
            counted(mesh.devices() as u64, "device"),
            counted(n as u64, "rank")
        ))),
        _ => Ok(mesh),
    }
}

fn asked_mesh(
    args: &BenchCollectivesArgs,
    processes: Option<usize>,
    console: &mut Console,
) -> Result<Mesh, Stop> {
    let Some(text) = &args.mesh else {
        let devices = args.devices.map(|n| n as usize).or(processes).unwrap_or(DEVICES);
        return Ok(Mesh::new([("all", devices)]));
    };
    mesh_of_option(text, console)
}

/// The groups along the axes that are named, or one of all devices.
fn groups(args: &BenchCollectivesArgs, mesh: &Mesh) -> Result<BenchGroups, Stop> {
    let mut axes = vec![];
    for name in &args.over {
        match mesh.find(name) {
            Some(axis) if axes.contains(&axis) => {
                return Err(Stop::Usage(format!("--over: `{name}` is there twice")));
            }
            Some(axis) => axes.push(axis),
            None => {
                let known: Vec<&str> = mesh.axes.iter().map(|a| a.name.as_str()).collect();
                return Err(Stop::Usage(format!(
                    "--over: the mesh has no axis `{name}`, but {}",
                    known.join(", ")
                )));
            }
        }
    }
    if axes.is_empty() {
        return Ok(BenchGroups::world(mesh.devices()));
    }
    // Members are in the order of their ranks, as in a Plan.
    axes.sort();
    Ok(BenchGroups::over(mesh.clone(), axes))
}

/// The mesh that an option names.
pub(super) fn mesh_of_option(text: &str, console: &mut Console) -> Result<Mesh, Stop> {
    let mut sources = Sources::new();
    let id = sources.add("--mesh", text);
    let (decl, mut found) = parse_mesh(id, text);
    let mesh = match decl {
        Some(option) if !has_errors(&found) => {
            let none = LayoutFile::default();
            let decl = named_mesh(&option, &none, &mut found);
            decl.and_then(|decl| mesh_of(&none, Some(&decl), &mut found))
        }
        _ => None,
    };
    // All ranks are asked for the same mesh: where they know of each other, the first says what is wrong with it.
    if console.leads() || console.processes().count() == 1 {
        console.diagnostics(&found, &sources);
    }
    match mesh {
        Some(mesh) if mesh.devices() > MOST_DEVICES => {
            let n = thousands(mesh.devices() as u64);
            Err(Stop::Usage(format!("the mesh has {n} devices; at most {MOST_DEVICES} threads are started")))
        }
        Some(mesh) => Ok(mesh),
        None => Err(Stop::Diagnosed),
    }
}

fn jobs(args: &BenchCollectivesArgs, devices: usize) -> Result<Vec<BenchJob>, Stop> {
    if args.min > args.max {
        let (min, max) = (bytes(args.min as u64), bytes(args.max as u64));
        return Err(Stop::Usage(format!("the least size, {min}, is more than the greatest, {max}")));
    }
    // A device has two buffers at most.
    let need = (args.max as u64).saturating_mul(2 * devices as u64);
    if let Some(free) = free_memory().filter(|free| need > *free) {
        let (need, free) = (bytes(need), bytes(free));
        return Err(Stop::Usage(format!(
            "{} with buffers of {} need up to {need} of memory, but {free} are free: take a smaller --max",
            counted(devices as u64, "device"),
            bytes(args.max as u64)
        )));
    }
    let mut kinds: Vec<CollectiveKind> = vec![];
    for op in &args.ops {
        kinds.extend(measured_kinds().filter(|k| op == k.name() || op == ALL_OPS));
    }
    let mut seen = vec![];
    kinds.retain(|k| {
        !seen.contains(k) && {
            seen.push(*k);
            true
        }
    });
    let mut jobs = Vec::new();
    for kind in kinds {
        for bytes in sizes(args.min, args.max, args.factor as usize) {
            let iterations = args.iters.map_or((MOVED / bytes).clamp(FEWEST, MOST), |n| n as usize);
            let job = BenchJob {
                kind,
                monoid: monoid(args.redop),
                dtype: dtype(args.dtype),
                bytes,
                warmup: args.warmup as usize,
                iterations,
                checks: args.check as usize,
            };
            if let Some(problem) = job.problem() {
                return Err(Stop::Usage(format!(
                    "{}: {problem}: take another --redop or --dtype",
                    kind.name()
                )));
            }
            jobs.push(job);
        }
    }
    Ok(jobs)
}

fn dtype(t: BenchType) -> DType {
    match t {
        BenchType::F64 => DType::F64,
        BenchType::F32 => DType::F32,
        BenchType::Bf16 => DType::BF16,
        BenchType::F16 => DType::F16,
        BenchType::I32 => DType::I32,
        BenchType::U8 => DType::U8,
    }
}

fn monoid(fold: BenchFold) -> Monoid {
    match fold {
        BenchFold::Sum => Monoid::Sum,
        BenchFold::Max => Monoid::Max,
        BenchFold::Min => Monoid::Min,
    }
}

/// Memory that the system can give without swapping, in bytes, where it tells.
fn free_memory() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find(|l| l.starts_with("MemAvailable:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

fn micros(time: std::time::Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The first line of JSON.
fn head(transport: &'static str, mesh: &Mesh, over: &[String], cores: usize) -> Object {
    object([
        ("event", "head".into()),
        ("transport", transport.into()),
        ("mesh", mesh.describe().into()),
        ("over", over.into()),
        ("devices", mesh.devices().into()),
        ("cores", cores.into()),
    ])
}

fn line(m: &Measured) -> Object {
    let redop = m.job.kind.folds().then(|| m.job.monoid.name());
    object([
        ("event", "collective".into()),
        ("op", m.job.kind.name().into()),
        ("bytes", m.bytes().into()),
        ("count", m.elements.into()),
        ("type", m.job.dtype.name().into()),
        ("redop", redop.into()),
        ("members", m.members.into()),
        ("groups", m.groups.into()),
        ("calls", m.job.iterations.into()),
        ("time_us", micros(m.median).into()),
        ("least_us", micros(m.least).into()),
        ("algbw_gbs", (m.algorithm_bandwidth() / 1e9).into()),
        ("busbw_gbs", (m.bus_bandwidth() / 1e9).into()),
        ("wrong", m.wrong.into()),
    ])
}

/// Columns of fixed width, since rows are shown one by one.
fn columns(cells: [&str; 10]) -> String {
    let [op, size, count, dtype, redop, time, least, alg, bus, wrong] = cells;
    format!(
        "  {op:<14}  {size:>10}  {count:>10}  {dtype:>4}  {redop:>5}  {time:>10}  {least:>10}  {alg:>10}  {bus:>10}  {wrong:>6}\n"
    )
}

fn titles() -> String {
    columns([
        "op",
        "bytes",
        "count",
        "type",
        "redop",
        "time us",
        "least us",
        "algbw GB/s",
        "busbw GB/s",
        "wrong",
    ])
}

fn row(m: &Measured) -> String {
    columns([
        m.job.kind.name(),
        &m.bytes().to_string(),
        &m.elements.to_string(),
        m.job.dtype.name(),
        if m.job.kind.folds() { m.job.monoid.name() } else { "-" },
        &format!("{:.1}", micros(m.median)),
        &format!("{:.1}", micros(m.least)),
        &format!("{:.2}", m.algorithm_bandwidth() / 1e9),
        &format!("{:.2}", m.bus_bandwidth() / 1e9),
        &m.wrong.map_or("-".into(), |n| n.to_string()),
    ])
}

fn summary(found: &[Measured]) -> String {
    let mean = found.iter().map(Measured::bus_bandwidth).sum::<f64>() / found.len().max(1) as f64;
    let wrong = match found.iter().map(|m| m.wrong).sum::<Option<u64>>() {
        Some(n) => format!("{} wrong elements", thousands(n)),
        None => "nothing was compared".into(),
    };
    format!("\nmean bus bandwidth {:.2} GB/s, {wrong}\n", mean / 1e9)
}

/// An error for each size with wrong elements.
fn wrong(found: &[Measured]) -> Vec<Diagnostic> {
    let bad = found.iter().filter(|m| m.wrong.is_some_and(|n| n > 0));
    bad.map(|m| {
        let compared = (m.job.checks * m.members * m.groups) as u64 * m.elements as u64;
        Diagnostic::error(
            codes::E0520,
            format!(
                "{} of {}: {} of up to {} elements compared are wrong",
                m.job.kind.name(),
                bytes(m.bytes() as u64),
                thousands(m.wrong.unwrap_or(0)),
                thousands(compared)
            ),
        )
    })
    .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::time::Duration;

    fn measured(wrong: Option<u64>) -> Measured {
        let job = BenchJob {
            kind: CollectiveKind::AllReduce,
            monoid: Monoid::Sum,
            dtype: DType::F32,
            bytes: 65_536,
            warmup: 1,
            iterations: 20,
            checks: 1,
        };
        let (median, least) = (Duration::from_micros(20), Duration::from_micros(10));
        Measured { job, members: 4, groups: 1, elements: 16_384, median, least, wrong }
    }

    #[test]
    fn rows_stand_under_their_titles() {
        assert_eq!(
            titles() + &row(&measured(Some(0))) + &row(&measured(None)) + &summary(&[measured(Some(2))]),
            "  op                   bytes       count  type  redop     time us    least us  algbw GB/s  busbw GB/s   wrong\n\
             \x20 all_reduce           65536       16384   f32    sum        20.0        10.0        3.28        4.92       0\n\
             \x20 all_reduce           65536       16384   f32    sum        20.0        10.0        3.28        4.92       -\n\
             \n\
             mean bus bandwidth 4.92 GB/s, 2 wrong elements\n"
        );
    }

    #[test]
    fn lines_of_json_have_these_keys_in_this_order() {
        assert_eq!(
            serde_json::to_string(&line(&measured(Some(0)))).unwrap(),
            r#"{"event":"collective","op":"all_reduce","bytes":65536,"count":16384,"type":"f32","redop":"sum","members":4,"groups":1,"calls":20,"time_us":20.0,"least_us":10.0,"algbw_gbs":3.2767999999999997,"busbw_gbs":4.915199999999999,"wrong":0}"#
        );
    }

    #[test]
    fn wrong_elements_are_errors() {
        assert!(wrong(&[measured(Some(0)), measured(None)]).is_empty());
        let found = wrong(&[measured(Some(0)), measured(Some(3))]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].message, "all_reduce of 64.0 KiB: 3 of up to 65,536 elements compared are wrong");
    }
}
