//! `estimate`: the time of a step on a machine that need not be here.

use crate::args::{EstimateArgs, MachineArgs, ScheduleName};
use crate::commands::project;
use crate::output::console::Console;
use crate::output::json::object;
use crate::output::table::{Align, Table};
pub(crate) use crate::output::text::band;
use crate::output::text::{bytes, counted, dashed, percent, short_number, step_time as seconds, thousands};
use crate::stop::Stop;
use meshwright_cost::engine::{EngineFacts, EngineKind};
use meshwright_cost::estimate::{Breakdown, Estimate, Fits, Goodput};
use meshwright_cost::machine::Machine;
use meshwright_cost::pipe::Pipe;
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_plan::actions::PipelineSchedule;
use meshwright_train::estimates::staged::staged;
use meshwright_train::estimates::{EstimateOptions, estimated, facts, machine, write_timeline};
use meshwright_train::{Failure, Project};

/// Most rows of collectives in a text.
const MOST_COLLECTIVES: usize = 12;

/// Runs the command.
pub(crate) fn run(args: &EstimateArgs, console: &mut Console) -> Result<(), Stop> {
    let (name, machine) = of_machine(&args.machine, console)?;
    let engine = engine(args, &machine, console)?;
    let mut options = args.project.options();
    options.whole_losses = matches!(engine, EngineKind::Foreign(_));
    let (project, sources) = project::load(&options, console)?;
    let pipe = args.pipe.map(|stages| Pipe {
        stages: stages as usize,
        schedule: schedule(args.schedule),
        chunks: args.chunks as usize,
        ends: args.ends == 1,
    });
    let slowest = args.slow.unwrap_or(1.0);
    if !(slowest > 0.0 && slowest <= 1.0) {
        return Err(Stop::Usage(
            "`--slow` is a rate relative to the other devices, above 0 and at most 1".into(),
        ));
    }
    let asked = EstimateOptions { machine, engine, pipe, slowest };
    if let Some(scale) = &args.scale {
        return scaled(args, scale, &project, &asked, console);
    }
    let (project, sources, asked) = with_stages(project, sources, asked, console);
    if let Some(of) = &args.against {
        return super::against::run(&project, &sources, (&name, &asked), of, console);
    }
    let estimate = estimated(&project, &sources, &asked).map_err(|e| console.failed(e, &sources))?;
    if let Some(file) = &args.trace {
        write_timeline(&project, &sources, &asked, file).map_err(|e| console.failed(e, &sources))?;
    }
    if let Some(file) = &args.html {
        let name = args.project.layouts().first().map_or("no layout", String::as_str);
        super::plan_page::estimated(name, (&project, &sources), &asked, &estimate, file, console)?;
    }
    let goodput = match args.failures {
        true => Some(goodput(&asked.machine, &estimate, console)?),
        false => None,
    };
    if console.json() {
        let layout = args.project.layouts().first().map(String::as_str);
        return json(&project, &name, &asked, &estimate, goodput, layout, console);
    }
    console.out(&text(&project, &asked, &estimate, goodput))
}

/// A project with the stages that are asked for, where its layout can be compiled with them; else the pipeline is projected.
fn with_stages(
    project: Project,
    mut sources: Sources,
    asked: EstimateOptions,
    console: &mut Console,
) -> (Project, Sources, EstimateOptions) {
    let foreign = matches!(asked.engine, EngineKind::Foreign(_));
    let Some(pipe) = asked.pipe.as_ref().filter(|p| p.stages > 1 && !foreign) else {
        return (project, sources, asked);
    };
    // A layout with stages, and more stages than layers, have errors of their own.
    let layers = project.program.layers().filter(|(_, n)| pipe.divided(*n).is_ok());
    if layers.is_none() || project.layout.pipeline.is_some() {
        return (project, sources, asked);
    }
    match staged(&project, &mut sources, pipe) {
        Ok(staged) => (staged, sources, EstimateOptions { pipe: None, ..asked }),
        Err(why) => {
            let why = why.map_or(String::new(), |d| format!(" ({}: {})", d.code.id, d.message));
            console.note(&format!(
                "the layout cannot be compiled with these stages{why}: time and memory are projected from its Plan without them"
            ));
            (project, sources, asked)
        }
    }
}

/// The machine that was named, if one was.
pub(crate) fn of_machine_if_named(
    args: &MachineArgs,
    console: &mut Console,
) -> Result<Option<Machine>, Stop> {
    match args.name() {
        Some(_) => of_machine(args, console).map(|(_, machine)| Some(machine)),
        None if !args.with.is_empty() => Err(Stop::Usage("`--with` goes with `--machine`".into())),
        None => Ok(None),
    }
}

/// The machine that was asked for, with its name.
pub(crate) fn of_machine(args: &MachineArgs, console: &mut Console) -> Result<(String, Machine), Stop> {
    let Some(name) = args.name() else {
        return Err(Stop::Usage(
            "give `--machine NAME|FILE`, or set MESHWRIGHT_MACHINE; `meshwright machines` lists those that ship".into(),
        ));
    };
    match machine(&name, &args.with) {
        Ok(machine) => Ok((name, machine)),
        Err(found) => Err(console.failed(Failure::Diagnostics(vec![*found]), &Sources::new())),
    }
}

/// A row for each size of an axis.
fn scaled(
    args: &EstimateArgs,
    scale: &str,
    project: &Project,
    asked: &EstimateOptions,
    console: &mut Console,
) -> Result<(), Stop> {
    let usage =
        || Stop::Usage("`--scale` takes an axis of the mesh with two sizes, such as data=8..1024".into());
    let (axis, sizes) = scale.split_once('=').ok_or_else(usage)?;
    let (from, to) = sizes.split_once("..").ok_or_else(usage)?;
    let (from, to): (usize, usize) = from.parse().ok().zip(to.parse().ok()).ok_or_else(usage)?;
    let mesh = &project.layout.mesh;
    let Some(own) = mesh.find(axis).filter(|_| from > 0 && from <= to) else { return Err(usage()) };
    let base = mesh.size(own);
    let [left, right] = [Align::Left, Align::Right];
    let mut table = Table::new(&[left, right, right, right, right, right, left]);
    table.titles([axis, "devices", "step", "examples/s", "of linear", "MFU", "memory"]);
    let mut first: Option<f64> = None;
    for size in std::iter::successors(Some(from), |n| n.checked_mul(2)).take_while(|n| *n <= to) {
        let axes =
            mesh.axes.iter().map(|a| format!("{}={}", a.name, if a.name == axis { size } else { a.size }));
        let mut options = args.project.options();
        options.mesh = Some(axes.collect::<Vec<_>>().join(","));
        options.whole_losses = matches!(asked.engine, EngineKind::Foreign(_));
        if let (true, Some((_, name))) = (args.weak, project.example_dim()) {
            options.dims.retain(|(n, _)| n != name);
            options.dims.push((name.to_string(), (project.batch() * size).div_ceil(base)));
        }
        let (project, sources) = project::load(&options, console)?;
        let (project, sources, asked) = with_stages(project, sources, asked.clone(), console);
        let e = estimated(&project, &sources, &asked).map_err(|e| console.failed(e, &sources))?;
        let each = e.examples_per_second / e.devices as f64;
        let linear = each / *first.get_or_insert(each);
        if console.json() {
            console.out_json(&object([
                (axis, size.into()),
                ("devices", e.devices.into()),
                ("seconds", e.seconds.into()),
                ("error", e.error.into()),
                ("examples_per_second", e.examples_per_second.into()),
                ("efficiency", linear.into()),
                ("mfu", e.mfu.into()),
                ("fits", serde_json::json!(e.memory.fits)),
            ]))?;
            continue;
        }
        table.row([
            size.to_string(),
            thousands(e.devices as u64),
            seconds(e.seconds),
            short_number((e.examples_per_second * 10.0).round() / 10.0),
            percent(linear),
            e.mfu.map_or("-".into(), percent),
            format!(
                "{} ({})",
                bytes(e.memory.device_bytes),
                if matches!(e.memory.fits, Fits::No { .. }) { "does not fit" } else { "fits" }
            ),
        ]);
    }
    if console.json() { Ok(()) } else { console.out(&table.render()) }
}

fn engine(args: &EstimateArgs, machine: &Machine, console: &mut Console) -> Result<EngineKind, Stop> {
    match args.engine.as_deref() {
        None => Ok(EngineKind::of(machine)),
        Some("threads") => Ok(EngineKind::Threads),
        Some("mpi") => Ok(EngineKind::Mpi),
        Some("cuda") => Ok(EngineKind::Cuda),
        Some(file) => match facts(file) {
            Ok(facts) => Ok(EngineKind::Foreign(Box::<EngineFacts>::new(facts))),
            Err(found) => Err(console.failed(Failure::Diagnostics(vec![*found]), &Sources::new())),
        },
    }
}

fn schedule(name: ScheduleName) -> PipelineSchedule {
    match name {
        ScheduleName::Gpipe => PipelineSchedule::Gpipe,
        ScheduleName::OneForwardOneBackward => PipelineSchedule::OneForwardOneBackward,
        ScheduleName::ZbH1 => PipelineSchedule::ZbH1,
    }
}

fn goodput(machine: &Machine, estimate: &Estimate, console: &mut Console) -> Result<Goodput, Stop> {
    let found = Goodput::of(machine, estimate.devices);
    found.ok_or_else(|| {
        let wrong = Diagnostic::error(codes::E0531, format!("the file of {} has no table `failures`", machine.name));
        let help = wrong
            .help("add one to the file: [failures] with `hours` of a device between failures, `restart` and `checkpoint` in seconds");
        console.failed(Failure::Diagnostics(vec![help]), &Sources::new())
    })
}

fn parts(b: &Breakdown) -> Vec<(String, f64)> {
    let mut rows = vec![
        ("matrix products".to_string(), b.matmul),
        ("attention".to_string(), b.attention),
        ("memory-bound kernels".to_string(), b.memory_bound),
        ("optimizer".to_string(), b.update),
        ("launches".to_string(), b.launch),
    ];
    rows.extend(b.exposed.iter().map(|(axes, s)| (format!("waiting for collectives over {axes}"), *s)));
    rows.extend([
        ("contention with collectives".to_string(), b.contention),
        ("pipeline bubble".to_string(), b.bubble),
        ("waiting for the slowest device".to_string(), b.straggler),
    ]);
    rows.retain(|(_, s)| *s > 0.0);
    rows
}

fn text(project: &Project, asked: &EstimateOptions, e: &Estimate, goodput: Option<Goodput>) -> String {
    let machine = &asked.machine;
    let mut out = format!(
        "{} on {} of {} with {}\n\n",
        project.program.model,
        counted(e.devices as u64, "device"),
        machine.name,
        asked.engine.name()
    );
    out += &format!("step   {} {}\n", seconds(e.seconds), band(machine, e.error));
    let mut table = Table::new(&[Align::Left, Align::Right, Align::Right]);
    for (what, s) in parts(&e.breakdown) {
        table.row([what, seconds(s), percent(s / e.seconds)]);
    }
    out += &table.render();
    if let Some(p) = &e.pipe {
        let chunks = if p.chunks > 1 { format!(", {} chunks", p.chunks) } else { String::new() };
        out += &format!(
            "\npipe   {} stages, {}{chunks}, {}: bubble {}\n",
            p.stages,
            p.schedule,
            counted(p.microbatches as u64, "part"),
            percent(p.bubble / e.seconds)
        );
    }
    out += "\n";
    if let Some(mfu) = e.mfu {
        out += &format!(
            "MFU    {} = {} of the model / ({} x {} x the peak of the dtype)\n",
            percent(mfu),
            operations(e.model_flops),
            seconds(e.seconds),
            counted(e.devices as u64, "device")
        );
    }
    let rate = e.tokens_per_second.map_or(String::new(), |t| {
        let each = e.tokens_per_second_per_device.unwrap_or(t);
        format!(", {} tokens/s, {} for each device", thousands(t.round() as u64), short_number(each.round()))
    });
    out +=
        &format!("rate   {} examples/s{rate}\n", short_number((e.examples_per_second * 10.0).round() / 10.0));
    let above = e.memory.device_bytes as f64 > machine.device.memory;
    let fits = match e.memory.fits {
        Fits::Tight { .. } if above => "more than there is, by a projection that may be too high".into(),
        Fits::Yes => "fits".to_string(),
        Fits::Tight { free } => {
            format!("fits, with {} left, less than a fifth: allocators may have to try again", bytes(free))
        }
        Fits::No { missing } => {
            format!("does not fit: the Plan's buffers alone are {} larger", bytes(missing))
        }
    };
    out += &format!(
        "memory {} of {}: {fits}\n",
        bytes(e.memory.device_bytes),
        bytes(machine.device.memory as u64)
    );
    if let Some(g) = goodput {
        out += &format!(
            "goodput {} with a checkpoint every {}: a failure every {}\n",
            percent(g.share),
            crate::output::text::duration(g.interval),
            crate::output::text::duration(g.between)
        );
    }
    out + &collectives(e)
}

/// Operations of a model, of which a step on many devices has more than 64 bits count.
fn operations(flops: f64) -> String {
    match flops {
        f if f < 1e18 => crate::output::text::flops(f as u64),
        f => format!("{:.3e} FLOP", f),
    }
}

fn collectives(e: &Estimate) -> String {
    if e.collectives.is_empty() {
        return String::new();
    }
    let [left, right] = [Align::Left, Align::Right];
    let mut table = Table::new(&[left, left, right, right, left, right, right, left]);
    table.titles(["collective", "over", "bytes", "times", "by", "takes", "waits", "for"]);
    let mut rows: Vec<_> = e.collectives.iter().collect();
    rows.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    for c in rows.iter().take(MOST_COLLECTIVES) {
        let line = if c.line > 0 { format!("{}, line {}", c.value, c.line) } else { c.value.clone() };
        table.row([
            dashed(&c.op),
            c.axes.join(","),
            bytes(c.bytes),
            thousands(c.times),
            c.algorithm.clone(),
            seconds(c.seconds),
            seconds(c.exposed_seconds),
            line,
        ]);
    }
    let more = rows.len().saturating_sub(MOST_COLLECTIVES);
    let rest =
        if more > 0 { format!("  and {more} shorter; --format json has all\n") } else { String::new() };
    format!("\n{}{rest}", table.render())
}

fn json(
    project: &Project,
    machine: &str,
    asked: &EstimateOptions,
    e: &Estimate,
    goodput: Option<Goodput>,
    layout: Option<&str>,
    console: &mut Console,
) -> Result<(), Stop> {
    let of = serde_json::to_value(e).map_err(|e| Stop::Internal(Some(e.to_string())))?;
    let calibrated = asked.machine.calibration.is_some();
    let about = serde_json::json!({ "name": machine, "calibrated": calibrated, "error": e.error });
    let head = [
        ("version", 1.into()),
        ("model", project.program.model.clone().into()),
        ("layout", layout.unwrap_or_default().into()),
        ("mesh", project.layout.mesh.option().into()),
        ("machine", about),
        ("engine", asked.engine.name().into()),
    ];
    let fields = of.as_object().into_iter().flatten().map(|(k, v)| (k.as_str(), v.clone()));
    let goodput = goodput.map(|g| ("goodput", serde_json::json!(g)));
    console.out_json(&object(head.into_iter().chain(fields).chain(goodput)))
}
