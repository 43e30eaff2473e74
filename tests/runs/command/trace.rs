//! The timeline: read back by the rules of the trace-event format, and compared with the Plan.

use crate::support::{SMALL, folder, options, run};
use meshwright_core::training_step;
use meshwright_plan::Plan;
use meshwright_plan::actions::{PassRun, PipelineSchedule, runs};
use meshwright_sorted::{SortedMap, SortedSet};
use meshwright_train::Project;
use serde_json::Value;
use std::path::Path;

/// A slice: begin and end in nanoseconds, name, category and arguments.
#[derive(Clone, Debug)]
struct Slice {
    begin: u64,
    end: u64,
    name: String,
    category: String,
    args: Value,
}

/// An end of an arrow or of a span: phase, time, process and thread.
type Point = (String, u64, u64, u64);

/// A timeline that obeys the rules: what is drawn of each rank.
struct Timeline {
    ranks: SortedMap<u64, Vec<Slice>>,
    names: SortedMap<u64, String>,
    flows: usize,
    in_flight: usize,
}

/// Times as viewers read them: a double of microseconds times 1000.
fn nanoseconds(e: &Value, key: &str) -> u64 {
    let micros = e[key].as_f64().unwrap_or_else(|| panic!("no `{key}`: {e}"));
    assert!(micros >= 0.0 && (micros * 1000.0).fract() == 0.0, "{key} of {e}");
    (micros * 1000.0) as u64
}

/// Reads a file by the rules of the format: known phases with what they need, slices of a track within or beside each other,
/// arrows from a slice to a later one, spans that begin and end once, and names for all tracks.
fn read(path: &Path) -> Timeline {
    let text = std::fs::read_to_string(path).unwrap();
    let whole: Value = serde_json::from_str(&text).unwrap();
    let (mut tracks, mut names) = (SortedMap::<(u64, u64), Vec<Slice>>::new(), SortedMap::new());
    let mut points: SortedMap<(String, String), Vec<Point>> = SortedMap::new();
    for e in whole["traceEvents"].as_array().unwrap() {
        let text = |key: &str| e[key].as_str().unwrap_or_else(|| panic!("no `{key}`: {e}")).to_string();
        let (pid, tid) = (e["pid"].as_u64().unwrap(), e["tid"].as_u64().unwrap());
        match text("ph").as_str() {
            "M" if e["name"] == "process_name" => {
                let name = e["args"]["name"].as_str().unwrap().to_string();
                assert!(names.insert(pid, name).is_none(), "two names of {pid}");
            }
            "M" => assert!(["process_sort_index", "thread_name"].contains(&text("name").as_str()), "{e}"),
            "X" => {
                let begin = nanoseconds(e, "ts");
                let end = begin + nanoseconds(e, "dur");
                let slice =
                    Slice { begin, end, name: text("name"), category: text("cat"), args: e["args"].clone() };
                tracks.entry((pid, tid)).or_default().push(slice);
            }
            ph @ ("s" | "f" | "b" | "e") => {
                assert!(ph != "f" || e["bp"] == "e", "an arrow's end without its slice: {e}");
                text("name");
                // Others are errors to Perfetto ("flow_invalid_id").
                let id = e["id"].as_str().or(e["id2"]["local"].as_str()).unwrap().to_string();
                let hexadecimal =
                    id.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
                assert!(hexadecimal.is_some(), "{e}");
                let key = (text("cat"), id);
                points.entry(key).or_default().push((ph.into(), nanoseconds(e, "ts"), pid, tid));
            }
            other => panic!("what is the phase `{other}`? {e}"),
        }
    }
    for slices in tracks.values_mut() {
        slices.sort_by_key(|s| (s.begin, u64::MAX - s.end));
        let mut open: Vec<&Slice> = Vec::new();
        for s in slices.iter() {
            open.retain(|o| o.end > s.begin);
            for o in &open {
                assert!(s.end <= o.end, "{s:?} ends after {o:?}, which it lies in");
            }
            open.push(s);
        }
    }
    let (mut flows, mut in_flight) = (0, 0);
    for ((category, id), points) in &points {
        let [from, to] = &points[..] else { panic!("{category} {id}: {points:?}") };
        assert!((from.2, from.3) == (to.2, to.3) && from.1 <= to.1, "{category} {id}: {points:?}");
        match (from.0.as_str(), to.0.as_str()) {
            ("b", "e") => in_flight += 1,
            ("s", "f") => {
                flows += 1;
                for (point, verb) in [(from, "start"), (to, "wait for")] {
                    let bound = tracks[&(point.2, point.3)]
                        .iter()
                        .any(|s| s.begin == point.1 && s.name.starts_with(verb));
                    assert!(bound, "{category} {id} binds to nothing at {point:?}");
                }
            }
            other => panic!("{category} {id}: {other:?}"),
        }
    }
    let mut ranks = SortedMap::new();
    for ((pid, tid), slices) in tracks {
        assert!(names.contains_key(&pid), "process {pid} has no name");
        assert!(ranks.insert(pid, slices).is_none(), "a second track {tid} of {pid}");
    }
    Timeline { ranks, names, flows, in_flight }
}

fn plan(mesh: &str, layout: &str) -> Plan {
    let loaded = Project::load(&options("mlp", mesh, layout, &[]));
    let project = loaded.project.unwrap();
    project.compile(&training_step(&project.program).unwrap(), &loaded.sources).0.unwrap().plan
}

/// Whether a step of a rank shows the expected collectives, work meanwhile, and all steps that compute.
fn shows(plan: &Plan, expected: &[(String, u64, bool)], (rank, slices): (u64, &[Slice]), number: u64) {
    let of = |verb: &str| -> Vec<&Slice> {
        let here = |s: &&Slice| s.name.starts_with(verb) && s.args["step"] == number;
        slices.iter().filter(here).collect()
    };
    let whole = of("step ");
    assert!(whole.len() == 1 && whole[0].category == "step");
    let inside = |s: &&Slice| s.begin >= whole[0].begin && s.end <= whole[0].end;
    let (starts, mut waits) = (of("start "), of("wait for "));
    let found: Vec<(String, u64)> = starts
        .iter()
        .map(|s| {
            assert!(inside(s) && s.args["value"].is_string() && s.args["line"].is_u64(), "{s:?}");
            (s.args["collective"].as_str().unwrap().into(), s.args["bytes"].as_u64().unwrap())
        })
        .collect();
    let names: Vec<(String, u64)> = expected.iter().map(|e| (e.0.clone(), e.1)).collect();
    assert_eq!(found, names, "rank {rank}, step {number}");
    waits.sort_by_key(|s| s.args["sequence"].as_u64());
    let mut overlaps = 0;
    for (s, w) in starts.iter().zip(&waits) {
        assert!(s.args["sequence"] == w.args["sequence"] && s.end <= w.begin, "{s:?} {w:?}");
        assert_eq!((&s.args["bytes"], &s.args["line"]), (&w.args["bytes"], &w.args["line"]));
        let meanwhile = |c: &&Slice| c.category == "compute" && c.begin >= s.end && c.end <= w.begin;
        overlaps += usize::from(slices.iter().any(|c| meanwhile(&c) && c.args["kernel"] != "release"));
    }
    assert_eq!(starts.len(), waits.len());
    assert!(overlaps > 0, "rank {rank} computes nothing while collectives are in flight");
    // All steps that compute are there, in order.
    let done: Vec<u64> = slices
        .iter()
        .filter(|s| s.category == "compute" && s.args["step"] == number && s.args["kernel"] != "release")
        .map(|s| s.args["plan step"].as_u64().unwrap())
        .collect();
    let all = plan.steps.iter().enumerate().filter(|s| s.1.computes()).map(|s| s.0 as u64);
    let all: Vec<u64> = all.collect();
    assert_eq!(done, all, "rank {rank}, step {number}");
}

#[test]
fn every_collective_is_on_every_rank_in_every_step() {
    let dir = tempfile::tempdir().unwrap();
    for (mesh, layout) in
        [("data=4", "zero1"), ("r=2,c=2", "batch -> r; hidden -> c; params: rows -> r"), ("data=2", "zero3")]
    {
        let plan = plan(mesh, layout);
        let file = dir.path().join("trace.json");
        let path = file.display().to_string();
        let args =
            ["bench", "model", "mlp", "--mesh", mesh, "--layout", layout, "--warmup", "1", "--steps", "4"];
        let said = run(&[&args[..], &["--trace", &path, "--trace-steps", "2..3"]].concat());
        assert_eq!(said.code, Some(0), "{}", said.err);
        let t = read(&file);
        let devices = plan.mesh.devices();
        assert_eq!(t.ranks.len(), devices);
        assert!(t.names[&1].starts_with("rank 1 ("), "{:?}", t.names);
        let expected: Vec<(String, u64, bool)> = plan
            .steps
            .iter()
            .filter_map(|s| {
                let c = s.collective()?;
                let axes: Vec<&str> = c.axes().iter().map(|a| plan.mesh.name(*a)).collect();
                let bytes = s.collective_bytes(&plan).iter().sum::<usize>() as u64;
                Some((format!("{} {}", c.name(), axes.join(",")), bytes, s.async_id.is_some()))
            })
            .collect();
        let flights = expected.iter().filter(|e| e.2).count();
        assert!(
            flights > 0 && (t.flows, t.in_flight) == (2 * devices * flights, 2 * devices * flights),
            "{flights}"
        );
        for (rank, slices) in &t.ranks {
            let numbers: SortedSet<u64> = slices.iter().map(|s| s.args["step"].as_u64().unwrap()).collect();
            assert_eq!(numbers, [2, 3].into(), "rank {rank}");
            for number in numbers {
                shows(&plan, &expected, (*rank, slices), number);
            }
        }
        // One clock: a step of one rank is no later over than the next one of another begins, since each waits for all.
        let step = |rank: u64, n: u64| {
            t.ranks[&rank].iter().find(|s| s.category == "step" && s.args["step"] == n).cloned().unwrap()
        };
        for (a, b) in (0..devices as u64).flat_map(|a| (0..devices as u64).map(move |b| (a, b))) {
            assert!(step(a, 2).end <= step(b, 3).begin, "{mesh} {layout}: rank {a} and rank {b}");
        }
    }
}

/// Around a ring keys and values are on their way while attention computes with those before them.
#[test]
fn rotations_are_in_flight_while_attention_computes() {
    let (dir, layers) = (tempfile::tempdir().unwrap(), 2);
    let path = dir.path().join("trace.json").display().to_string();
    let dims = ["batch=1", "seq=22", "layers=2", "vocab=64"].map(|d| ["--dim", d]).concat();
    let args =
        ["bench", "model", "gpt", "--preset", "tiny", "--mesh", "ctx=4", "--layout", "seq -> ctx; ring key"];
    let steps = ["--warmup", "1", "--steps", "2", "--trace", &path, "--trace-steps", "2..3"];
    let said = run(&[&args[..], &dims, &steps].concat());
    assert_eq!(said.code, Some(0), "{}", said.err);
    let t = read(dir.path().join("trace.json").as_ref());
    assert_eq!(t.ranks.len(), 4);
    for (rank, slices) in &t.ranks {
        for step in [2, 3] {
            let of = |what: &str| {
                slices
                    .iter()
                    .filter(|s| s.args["step"] == step && s.name.starts_with(what))
                    .collect::<Vec<_>>()
            };
            let (waits, attention) = (of("wait for permute ctx"), of("attention"));
            let overlap = |start: &&&Slice| {
                let wait = waits.iter().find(|w| w.args["sequence"] == start.args["sequence"]).unwrap();
                attention.iter().any(|a| start.end <= a.begin && a.end <= wait.begin)
            };
            let starts = of("start permute ctx");
            // Of the gradients of keys and values the first are ready when nothing is left to compute before they are needed.
            assert_eq!(
                (starts.len(), attention.len()),
                (18 * layers, 8 * layers),
                "rank {rank}, step {step}"
            );
            let overlapped = starts.iter().filter(overlap).count();
            assert!(overlapped >= 16 * layers, "rank {rank}, step {step}: {overlapped} of {}", starts.len());
        }
    }
}

#[test]
fn a_training_shows_its_first_steps() {
    let dir = folder(SMALL);
    let (data, file) = (dir.path().join("data").display().to_string(), dir.path().join("t.json"));
    let path = file.display().to_string();
    let dims = ["--dim", "batch=12", "--dim", "rows=5", "--dim", "cols=4"];
    let args = [
        "train",
        "mlp",
        "--data",
        &data,
        "--steps",
        "30",
        "--no-save",
        "--mesh",
        "r=2",
        "--layout",
        "batch -> r",
    ];
    let said = run(&[&args[..], &dims[..], &["--trace", &path]].concat());
    assert_eq!(said.code, Some(0), "{}", said.err);
    let steps = |t: &Timeline| t.ranks[&0].iter().filter(|s| s.category == "step").count();
    assert_eq!(steps(&read(&file)), 20);
    // A run that ends before shows what it has.
    let said = run(&[&args[..], &dims[..], &["--trace", &path, "--trace-steps", "28..40"]].concat());
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert_eq!(steps(&read(&file)), 3);
    // Beyond what a file may be, nothing of the new timeline is left, and the one before is whole.
    let limited = [&args[..], &dims[..], &["--trace", &path]].concat();
    let script = "ulimit -f 16; exec \"$0\" \"$@\"";
    let mut shell = std::process::Command::new("bash");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_meshwright-under-test")]).args(&limited);
    let output = shell.current_dir(crate::support::root()).env("NO_COLOR", "1").output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1) && err.contains("E0511") && err.contains("File too large"),
        "{err}"
    );
    assert_eq!(steps(&read(&file)), 3);
    let files = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(files, 2, "data and the timeline");
    // What is no timeline stays.
    let other = dir.path().join("notes.txt");
    std::fs::write(&other, "mine").unwrap();
    let said = run(&[&args[..], &dims[..], &["--trace", &other.display().to_string()]].concat());
    assert!(said.code == Some(1) && said.err.contains("it is no timeline"), "{}", said.err);
    assert_eq!(std::fs::read(&other).unwrap(), b"mine");
    let nowhere = dir.path().join("none/t.json").display().to_string();
    let said = run(&[&args[..], &dims[..], &["--trace", &nowhere]].concat());
    assert!(said.code == Some(1) && said.err.contains("E0511"), "{}", said.err);
    let said = run(&[&args[..], &["--trace", &path, "--trace-steps", "4..2"]].concat());
    assert!(said.code == Some(2) && said.err.contains("comes before"), "{}", said.err);
}

#[test]
fn passes_of_a_pipeline_are_in_the_order_of_the_schedule() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("trace.json");
    let path = file.display().to_string();
    let args = "bench model gpt --preset tiny --dim batch=4 --dim layers=4 --mesh pipe=2 --warmup 1 --steps 2 --trace-steps 2..2";
    let args: Vec<&str> = args.split(' ').chain(["--trace", &path]).collect();
    for (schedule, kind, chunks) in [
        ("schedule zb_h1", PipelineSchedule::ZbH1, 1),
        ("chunks 2", PipelineSchedule::OneForwardOneBackward, 2),
    ] {
        let layout = format!("layers -> pipe; microbatches 4; {schedule}");
        let said = run(&[&args[..], &["--layout", &layout]].concat());
        assert_eq!(said.code, Some(0), "{}", said.err);
        let t = read(&file);
        let lists = runs(kind, 2, chunks, 4).unwrap();
        for (rank, list) in lists.iter().enumerate() {
            let slices = &t.ranks[&(rank as u64)];
            let passes: Vec<&Slice> = slices.iter().filter(|s| s.category == "pass").collect();
            let named = |r: &PassRun| (format!("{:?} {}", r.pass, r.micro), r.micro as u64, r.chunk as u64);
            let of = |key: &str, s: &Slice| s.args[key].as_u64().unwrap();
            let found: Vec<_> =
                passes.iter().map(|s| (s.name.clone(), of("microbatch", s), of("chunk", s))).collect();
            assert_eq!(found, list.iter().map(named).collect::<Vec<_>>(), "{layout}: rank {rank}");
            // What a stage waits for is in the pass that needs it: the bubble is seen.
            let waits = |s: &&Slice| s.category == "wait" && s.name.contains("receive");
            let inside = |w: &Slice| passes.iter().any(|p| p.begin <= w.begin && w.end <= p.end);
            let waited: Vec<&Slice> = slices.iter().filter(waits).collect();
            assert!(!waited.is_empty() && waited.iter().all(|w| inside(w)), "{layout}: {waited:?}");
        }
    }
}
