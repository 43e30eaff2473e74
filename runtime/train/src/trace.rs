//! A timeline of training steps as a file in the trace-event format of Chrome, which Perfetto opens: a process for each rank,
//! on one clock. See `docs/trace.md`.

use crate::devices::consensus::agree_on_result;
use crate::failure::Failure;
use meshwright_diag::{Diagnostic, codes};
use meshwright_exec::{Cluster, DeviceTrace, Processes, ProgramId, Record, What};
use meshwright_files::replacing::ReplacingFile;
use meshwright_plan::{Plan, Prim, Provenance, Step};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// A timeline that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceOptions {
    /// The target file.
    pub file: PathBuf,
    /// Numbers of the steps that it shows; without them the first [`FIRST_STEPS`] that are run.
    pub steps: Option<RangeInclusive<u64>>,
}

impl TraceOptions {
    /// Error if a run of those steps has none of the requested ones.
    pub(crate) fn shows_nothing(&self, run: RangeInclusive<u64>) -> Option<String> {
        let asked = self.steps.as_ref().filter(|s| s.end() < run.start() || s.start() > run.end())?;
        let (first, last, (from, to)) = (asked.start(), asked.end(), (run.start(), run.end()));
        Some(format!(
            "the timeline stays empty: it is of steps {first} to {last}, and this run has {from} to {to}"
        ))
    }
}

/// Steps that a timeline shows where nothing else is asked for.
pub const FIRST_STEPS: u64 = 20;

/// Begin of every timeline.
const BEGIN: &str = "{\"displayTimeUnit\":\"ms\",\"otherData\":";

/// Target of a timeline.
enum TraceFile {
    /// A file that is there when it is whole.
    Whole(ReplacingFile),
    /// A device or a pipe.
    Stream(File),
}

impl TraceFile {
    /// Begins it. Of what is there, only an older timeline is replaced.
    fn begin(path: &Path) -> io::Result<TraceFile> {
        let there = path.symlink_metadata().ok();
        let streams = there.as_ref().is_some_and(|m| !(m.is_file() || m.is_dir() || m.is_symlink()));
        if streams {
            return Ok(TraceFile::Stream(File::options().write(true).open(path)?));
        }
        if there.is_some_and(|m| m.is_file() && m.len() > 0) {
            let mut first = vec![];
            File::open(path)?.take(BEGIN.len() as u64).read_to_end(&mut first)?;
            if first != BEGIN.as_bytes() {
                return Err(io::Error::other("a file of that name is there, and it is no timeline"));
            }
        }
        ReplacingFile::beside(path).map(TraceFile::Whole)
    }

    fn write(self, plan: &Plan, devices: &[DeviceTrace]) -> io::Result<()> {
        let file = match &self {
            TraceFile::Whole(new) => new.file(),
            TraceFile::Stream(file) => file,
        };
        let mut out = BufWriter::new(file);
        write(&mut out, plan, devices)?;
        out.flush()?;
        drop(out);
        match self {
            TraceFile::Whole(new) => new.replace(),
            TraceFile::Stream(_) => Ok(()),
        }
    }
}

/// A timeline in the making; the first process writes it.
pub(crate) struct Trace {
    file: Option<TraceFile>,
    path: PathBuf,
    last: u64,
}

impl Trace {
    /// Begins the file, and has the devices record steps of a program, the next of which is `next`.
    pub(crate) fn start(
        options: &TraceOptions,
        cluster: &Cluster,
        program: ProgramId,
        next: u64,
        processes: &Processes,
    ) -> Result<Trace, Failure> {
        let make = || TraceFile::begin(&options.file).map_err(|e| failed(&options.file, &e));
        let made = processes.is_first().then(make).transpose();
        let file = agree_on_result(processes, "the timeline", made)?;
        let steps = options.steps.clone().unwrap_or(next..=next.saturating_add(FIRST_STEPS - 1));
        cluster.trace(program, steps.clone())?;
        Ok(Trace { file, path: options.file.clone(), last: *steps.end() })
    }

    /// Whether that step was the last one to be recorded.
    pub(crate) fn is_over(&self, step: u64) -> bool {
        step >= self.last
    }

    /// Gathers what was recorded, and writes it.
    pub(crate) fn finish(self, cluster: &Cluster, plan: &Plan, processes: &Processes) -> Result<(), Failure> {
        let devices = cluster.traced()?;
        let Trace { file, path, .. } = self;
        let written = processes.on_first("the timeline".into(), || {
            file.map_or(Ok(()), |file| file.write(plan, &devices)).map_err(|e| failed(&path, &e))
        })?;
        agree_on_result(processes, "the timeline", written.unwrap_or(Ok(())))
    }
}

fn failed(path: &Path, why: &io::Error) -> Failure {
    Diagnostic::error(codes::E0511, format!("`{}` cannot be written: {why}", path.display()))
        .help("name a new file, or an older timeline, in a folder that is there: `--trace FILE`")
        .into()
}

/// Writes a timeline: one event a line.
///
/// # Errors
///
/// Those of `out`.
pub fn write(out: &mut dyn Write, plan: &Plan, devices: &[DeviceTrace]) -> io::Result<()> {
    let zero = devices.iter().flat_map(|d| &d.records).map(|r| r.begin).min().unwrap_or(0);
    let about = json!({ "model": plan.model, "program": plan.program, "mesh": plan.mesh.describe(), "plan": plan.hash() });
    write!(out, "{BEGIN}{about},\"traceEvents\":[")?;
    let mut first = true;
    for device in devices {
        let t = Track { plan, rank: device.rank, zero };
        for event in t.names().into_iter().chain(device.records.iter().flat_map(|r| t.events(r))) {
            write!(out, "{}\n{event}", if first { "" } else { "," })?;
            first = false;
        }
    }
    writeln!(out, "\n]}}")
}

/// A pass of a microbatch through a stage.
fn pass(name: &str, r: &Record) -> (String, &'static str, Map<String, Value>) {
    let args = [("microbatch", r.sequence.into()), ("chunk", r.at.into())];
    let args = args.into_iter().map(|(key, value): (_, Value)| (key.to_string(), value));
    (format!("{name} {}", r.sequence), "pass", args.collect())
}

/// The only thread of a rank's process.
const THREAD: u64 = 1;

struct Track<'a> {
    plan: &'a Plan,
    rank: usize,
    zero: u64,
}

impl Track<'_> {
    /// Names of the tracks.
    fn names(&self) -> Vec<Value> {
        let mesh = &self.plan.mesh;
        let coords = mesh.coords(self.rank);
        let at: Vec<String> = mesh.axes.iter().zip(&coords).map(|(a, c)| format!("{}={c}", a.name)).collect();
        let name = match at.len() {
            0 => format!("rank {}", self.rank),
            _ => format!("rank {} ({})", self.rank, at.join(", ")),
        };
        let meta = |what: &str, args: Value| json!({ "ph": "M", "name": what, "pid": self.rank, "tid": THREAD, "ts": 0, "args": args });
        vec![
            meta("process_name", json!({ "name": name })),
            meta("process_sort_index", json!({ "sort_index": self.rank })),
            meta("thread_name", json!({ "name": "device" })),
        ]
    }

    /// Microseconds since the first event, on a grid of 125 ns: readers take times and lengths for doubles and multiply them
    /// by 1000, and only of eighths does nothing come out askew, so that slices would overlap.
    fn micros(&self, time: u64) -> f64 {
        (time.saturating_sub(self.zero) / 125) as f64 / 8.0
    }

    /// A slice; and of a collective in flight the arrow from its start to its end, and the time in between.
    fn events(&self, r: &Record) -> Vec<Value> {
        let step = self.plan.steps.get(r.at as usize);
        let (name, category, args) = match (r.what, step) {
            (What::Step, _) => (format!("step {}", r.step_number), "step", Map::new()),
            (What::Forward, _) => pass("F", r),
            (What::Backward, _) => pass("B", r),
            (What::Weights, _) => pass("W", r),
            (_, None) => return Vec::new(),
            (What::Compute, Some(s)) => self.compute(r, s),
            (what, Some(s)) => self.collective(r, what, s),
        };
        let mut args = args;
        args.insert("step".into(), r.step_number.into());
        let (begin, end) = (self.micros(r.begin), self.micros(r.end));
        let mut out = vec![json!({
            "ph": "X", "name": name, "cat": category, "pid": self.rank, "tid": THREAD,
            "ts": begin, "dur": end - begin, "args": args,
        })];
        let flies = category != "pass" && step.is_some_and(|s| s.async_id.is_some());
        // Perfetto takes the ids of arrows for hexadecimal numbers. A run does not come to 2^40 collectives.
        let id = format!("{:#x}", ((self.rank as u64) << 40) | r.sequence);
        let event = |ph: &str, cat: &str, ts: f64| {
            let mut event = json!({
                "ph": ph, "name": args["collective"], "cat": cat, "pid": self.rank, "tid": THREAD, "ts": ts,
            });
            // The time in between belongs to the rank, an arrow to all.
            match cat {
                "flow" => event["id"] = id.clone().into(),
                _ => event["id2"] = json!({ "local": id }),
            }
            event
        };
        match r.what {
            What::Start if flies => {
                out.push(event("s", "flow", begin));
                let mut open = event("b", "in flight", begin);
                open["args"] = args.clone().into();
                out.push(open);
            }
            What::Wait if flies => {
                let mut ends = event("f", "flow", begin);
                ends["bp"] = "e".into();
                out.extend([ends, event("e", "in flight", end)]);
            }
            _ => {}
        }
        out
    }

    fn compute(&self, r: &Record, step: &Step) -> (String, &'static str, Map<String, Value>) {
        let kernel = if step.computes() { step.name() } else { "release" };
        let origin = step.origin.last();
        let value = origin.map_or("", |w| &*w.path);
        let mut args = self.place(r, step);
        args.insert("kernel".into(), kernel.into());
        (format!("{kernel} {value}").trim_end().into(), "compute", args)
    }

    fn place(&self, r: &Record, step: &Step) -> Map<String, Value> {
        let mut args = Map::new();
        args.insert("plan step".into(), r.at.into());
        args.insert("phase".into(), json!(step.phase));
        if let Some(w) = step.origin.last() {
            args.insert("id".into(), w.id.into());
            args.insert("value".into(), (&*w.path).into());
            args.insert("line".into(), w.line.into());
        }
        args
    }

    fn collective(&self, r: &Record, what: What, step: &Step) -> (String, &'static str, Map<String, Value>) {
        let mut args = self.place(r, step);
        let steps = &self.plan.steps;
        let starts = |s: &&Step| s.collective().is_some() && s.async_id == step.async_id;
        let start = match step.prim {
            Prim::Wait => steps.iter().find(starts).unwrap_or(step),
            _ => step,
        };
        let mut name = start.name().to_string();
        if let Some(c) = start.collective() {
            let axes: Vec<&str> = c.axes().iter().map(|a| self.plan.mesh.name(*a)).collect();
            name = format!("{name} {}", axes.join(","));
            args.insert("axes".into(), axes.into());
            args.insert("bytes".into(), start.collective_bytes(self.plan).iter().sum::<usize>().into());
        }
        if let Some(w) = start.origin.first() {
            args.insert("id".into(), w.id.into());
            args.insert("value".into(), (&*w.path).into());
            args.insert("line".into(), w.line.into());
            if let Some(rule) = w.rule {
                args.insert("rule".into(), rule.into());
            }
            args.insert("because".into(), (&*w.because).into());
        }
        if start.origin.len() > 1 {
            let part = |w: &Provenance| json!({ "id": w.id, "value": w.path, "line": w.line });
            args.insert("bucket".into(), start.origin.iter().map(part).collect());
        }
        args.insert("sequence".into(), r.sequence.into());
        args.insert("collective".into(), name.as_str().into());
        let (verb, category) = match what {
            What::Wait => ("wait for", "wait"),
            What::Unpack => ("unpack", "collective"),
            _ => ("start", "collective"),
        };
        (format!("{verb} {name}"), category, args)
    }
}
