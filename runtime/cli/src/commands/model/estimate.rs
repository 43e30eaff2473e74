//! `estimate`: the time of a step on a machine that need not be here.

pub(crate) use super::named_machine::{of_machine, of_machine_if_named};
use super::one_estimate::{fields, goodput, with_stages};
use super::scale;
use crate::args::{EstimateArgs, ScheduleName};
use crate::commands::project;
use crate::output::console::Console;
use crate::output::table::{Align, Table};
pub(crate) use crate::output::text::band;
use crate::output::text::{
    bytes, counted, dashed, percent, short_band, short_number, step_time as seconds, thousands,
};
use crate::stop::Stop;
use meshwright_cost::engine::{EngineFacts, EngineKind};
use meshwright_cost::estimate::{Breakdown, Estimate, Fits, Goodput, family_error};
use meshwright_cost::machine::Machine;
use meshwright_cost::pipe::Pipe;
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_plan::actions::PipelineSchedule;
use meshwright_train::estimates::{EstimateOptions, estimated, facts, write_timeline};
use meshwright_train::{Failure, Project};

/// Most rows of collectives in a text.
const MOST_COLLECTIVES: usize = 12;

/// Runs the command.
pub(crate) fn run(args: &EstimateArgs, console: &mut Console) -> Result<(), Stop> {
    let (name, machine) = of_machine(&args.machine, console)?;
    let engine = engine(args, &machine, console)?;
    let pipe = args.pipe.map(|stages| Pipe {
        stages: stages as usize,
        schedule: schedule(args.schedule),
        chunks: args.chunks as usize,
        ends: args.ends == 1,
    });
    let slowest = args.slow.unwrap_or(1.0);
    if !(1e-6..=1.0).contains(&slowest) {
        return Err(Stop::Usage("`--slow` is a rate relative to the other devices, from 1e-6 to 1".into()));
    }
    let asked = EstimateOptions { machine, engine, pipe, slowest };
    let mut options = args.project.options();
    options.whole_losses = matches!(asked.engine, EngineKind::Foreign(_));
    if let Some(sizes) = &args.scale {
        return scale::run(args, (sizes, &options), (&name, &asked), console);
    }
    let (project, sources) = project::load(&options, console)?;
    let (project, sources, asked) = with_stages(project, sources, asked, console);
    if asked.pipe.is_some() && (args.trace.is_some() || args.html.is_some()) {
        let wrong = Diagnostic::error(codes::E0531, "a pipeline that is projected has no timeline to write");
        let help = wrong.help(
            "leave `--trace` and `--html` out, or ask for stages with which the layout can be compiled",
        );
        return Err(console.failed(Failure::Diagnostics(vec![help]), &sources));
    }
    if let Some(of) = &args.against {
        return super::estimate_comparison::run(&project, &sources, (&name, &asked), of, console);
    }
    super::note_8_bits(project.program.float, asked.engine.target_on(&asked.machine), console);
    let estimate = estimated(&project, &sources, &asked).map_err(|e| console.failed(e, &sources))?;
    super::note_assumed_rates(&asked.machine.name, &estimate.assumed_rates, console);
    if let Some(file) = &args.trace {
        write_timeline(&project, &sources, &asked, file).map_err(|e| console.failed(e, &sources))?;
    }
    if let Some(file) = &args.html {
        let name = args.project.layouts().first().map_or("no layout", String::as_str);
        super::plan_page::estimated(name, (&project, &sources), &asked, &estimate, file, console)?;
    }
    let goodput = goodput(args, &asked.machine, &estimate, console)?;
    if console.json() {
        let of = (&project, args.project.layouts().first().map(String::as_str));
        return console.out_json(&fields(of, (&name, &asked), &estimate, goodput)?);
    }
    console.out(&text(&project, &asked, &estimate, goodput))
}

fn engine(args: &EstimateArgs, machine: &Machine, console: &mut Console) -> Result<EngineKind, Stop> {
    match args.engine.as_deref() {
        None => Ok(EngineKind::of(machine)),
        Some("threads") => Ok(EngineKind::Threads),
        Some("mpi") => Ok(EngineKind::Mpi),
        Some("cuda") => Ok(EngineKind::Cuda),
        Some(file) => match facts(file) {
            Ok(facts) => {
                note_unread(file, &facts, console);
                Ok(EngineKind::Foreign(Box::<EngineFacts>::new(facts)))
            }
            Err(found) => Err(console.failed(Failure::Diagnostics(vec![*found]), &Sources::new())),
        },
    }
}

/// Says which facts about an engine change nothing.
pub(crate) fn note_unread(engine: &str, facts: &EngineFacts, console: &mut Console) {
    let names: Vec<String> = facts.unread().iter().map(|name| format!("`{name}`")).collect();
    if !names.is_empty() {
        console.note(&format!(
            "{engine}: {} without effect: no estimate reads what the layout and the consts of a run say too",
            names.join(", ") + if names.len() == 1 { " is" } else { " are" }
        ));
    }
}

fn schedule(name: ScheduleName) -> PipelineSchedule {
    match name {
        ScheduleName::Gpipe => PipelineSchedule::Gpipe,
        ScheduleName::OneForwardOneBackward => PipelineSchedule::OneForwardOneBackward,
        ScheduleName::ZbH1 => PipelineSchedule::ZbH1,
    }
}

/// What a step is spent on, in words, each with the family whose error it has.
fn parts(b: &Breakdown) -> Vec<(String, f64, &'static str)> {
    let mut rows = vec![
        ("matrix products".to_string(), b.matmul, "matmul"),
        ("attention".to_string(), b.attention, "attention"),
        ("memory-bound kernels".to_string(), b.memory_bound, "memory_bound"),
        ("optimizer".to_string(), b.update, "memory_bound"),
        ("launches".to_string(), b.launch, "launch"),
    ];
    let waits =
        |(axes, s): (&String, &f64)| (format!("waiting for collectives over {axes}"), *s, "collective");
    rows.extend(b.exposed.iter().map(waits));
    rows.extend([
        ("contention with collectives".to_string(), b.contention, "collective"),
        ("pipeline bubble".to_string(), b.bubble, "bubble"),
        ("waiting for the slowest device".to_string(), b.straggler, "bubble"),
    ]);
    rows.retain(|(_, s, _)| *s > 0.0);
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
    let of_family = |family: &str| short_band(family_error(machine, &asked.engine, family));
    let mut table = Table::new(&[Align::Left, Align::Right, Align::Right, Align::Right]);
    for (what, s, family) in parts(&e.breakdown) {
        table.row([what, seconds(s), of_family(family), percent(s / e.seconds)]);
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
    out + &collectives(e, &of_family("collective"))
}

/// Operations of a model, of which a step on many devices has more than 64 bits count.
fn operations(flops: f64) -> String {
    match flops {
        f if f < 1e18 => crate::output::text::flops(f as u64),
        f => format!("{:.3e} FLOP", f),
    }
}

/// Collectives, the times of all with the same band.
fn collectives(e: &Estimate, band: &str) -> String {
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
    format!("\neach time of a collective {band}\n{}{rest}", table.render())
}
