//! Searches on shipped models: bounds, certificates, and the answer against all candidates one by one.

#![allow(clippy::unwrap_used, reason = "tests")]

use meshwright_core::resolve::resolve;
use meshwright_core::{Program, Settings, StepGraph, model_flops_wide, training_step};
use meshwright_cost::engine::EngineKind;
use meshwright_cost::machine::Machine;
use meshwright_cost::shipped::find;
use meshwright_diag::FileId;
use meshwright_search::best_first::{Limits, Progress, Search, SearchOutcome, TIE};
use meshwright_search::bound::roofline;
use meshwright_search::compiled::Subject;
use meshwright_search::report::SearchReport;
use meshwright_search::space::{FixedRules, SearchChoices, Space};
use meshwright_search::text::{Candidate, WrittenLayout};
use meshwright_search::work::ModelWork;
use meshwright_syntax::parse_model;

/// A model that ships, with sizes of some dims.
fn program(model: &str, preset: Option<&str>, dims: &[(&str, usize)]) -> Program {
    let read = |name: &str| std::fs::read_to_string(format!("../../models/{name}.mw")).unwrap();
    let (file, _) = parse_model(FileId(0), &read(model));
    let dims = dims.iter().map(|(d, n)| (d.to_string(), *n)).collect();
    let settings = Settings { size: preset.map(String::from), dims, ..Settings::default() };
    let (program, found) = resolve(&file.unwrap(), None, &settings, &mut |path, _| {
        parse_model(FileId(1), &read(&format!("std/{}", path.strip_prefix("std:").unwrap())))
    });
    program.unwrap_or_else(|| panic!("{model}: {found:?}"))
}

fn subject<'a>(program: &'a Program, step: &'a StepGraph, machine: &'a Machine) -> Subject<'a> {
    let engine = EngineKind::of(machine);
    let (flops, examples) = (model_flops_wide(step), 1);
    Subject { program, step, machine, engine, model_flops: flops, examples, tokens: None }
}

fn space(program: &Program, step: &StepGraph, work: &ModelWork, devices: usize) -> Space {
    Space::of(program, step, work, SearchChoices { devices, ..SearchChoices::default() })
}

fn searched(space: &Space, work: &ModelWork, subject: &Subject<'_>, cores: usize) -> SearchOutcome {
    Search::new(space, work, subject).run(&mut Limits { cores, stop: &mut |_| false }).unwrap()
}

/// All candidates that take the batch whole and compute nothing again.
fn all(space: &Space) -> Vec<Candidate> {
    let mut out = Vec::new();
    for mesh in &space.meshes {
        let mut prefixes = vec![Vec::new()];
        for _ in mesh {
            let longer = |p: &Vec<usize>| {
                let next: Vec<usize> = space.next(mesh, p).collect();
                next.into_iter().map(|s| [&p[..], &[s]].concat()).collect::<Vec<_>>()
            };
            prefixes = prefixes.iter().flat_map(longer).collect();
        }
        for sets in prefixes {
            let of =
                |stored| Candidate { mesh: mesh.clone(), sets: sets.clone(), stored, parts: 0, recompute: 0 };
            out.extend(space.stored(&sets, 1).into_iter().map(of));
        }
    }
    out
}

fn machine(name: &str, changes: &[String]) -> Machine {
    let machine = Machine::read(find(name).unwrap()).unwrap();
    changes.iter().fold(machine, |m, c| m.with(c).unwrap())
}

/// The machine file of that name with other rates: the same for the same seed.
fn random_machine(name: &str, seed: u64) -> Machine {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut draw = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        10f64.powf((state >> 33) as f64 / f64::from(1u32 << 31) * 2.0 - 1.0)
    };
    let m = machine(name, &[]);
    let d = &m.device;
    let sustained = (d.sustained * draw()).min(1.0);
    machine(name, &[format!("device.kernel={}", d.kernel * draw()), format!("device.sustained={sustained}")])
}

#[test]
fn no_candidate_is_faster_than_its_bound() {
    let cases = [("mlp", None, 1), ("mnist_mlp", None, 7), ("bert", Some("tiny"), 211)];
    let mut compared = 0;
    for (model, preset, every) in cases {
        let p = program(model, preset, &[]);
        let step = training_step(&p).unwrap();
        for (seed, devices) in [2, 3, 4, 6, 8].into_iter().enumerate() {
            for (base, seed) in [("cpu", seed as u64), ("dgx-h100", seed as u64 + 5)] {
                let machine = random_machine(base, seed);
                let s = subject(&p, &step, &machine);
                let work = s.work(devices).unwrap();
                let space = space(&p, &step, &work, devices);
                for c in all(&space).iter().skip(seed as usize).step_by(every * devices) {
                    let text = space.written(c);
                    let Ok(estimate) = s.estimate(&text) else { continue };
                    let (bound, seconds) = (
                        roofline(&work, &space.shares(&c.mesh, &c.sets, &c.stored)),
                        estimate.unwrap().seconds,
                    );
                    assert!(bound <= seconds * (1.0 + 1e-9), "{base} {model} {text:?}: {bound} > {seconds}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 500, "{compared}");
}

#[test]
fn a_search_finds_what_is_best_of_all_candidates() {
    for (model, devices, base) in
        [("mlp", 2, "cpu"), ("mlp", 4, "cpu"), ("mnist_mlp", 3, "cpu"), ("mlp", 4, "dgx-h100")]
    {
        let p = program(model, None, &[]);
        let step = training_step(&p).unwrap();
        let machine = machine(base, &[]);
        let s = subject(&p, &step, &machine);
        let work = s.work(devices).unwrap();
        let space = space(&p, &step, &work, devices);
        let mut times: Vec<(f64, WrittenLayout)> = Vec::new();
        for c in all(&space) {
            let text = space.written(&c);
            if let Ok(estimate) = s.estimate(&text) {
                times.push((estimate.unwrap().seconds, text));
            }
        }
        let least = times.iter().map(|t| t.0).fold(f64::INFINITY, f64::min);
        times.retain(|t| t.0 <= least * (1.0 + TIE));
        let fewest = times.iter().map(|t| t.1.lines.len()).min().unwrap();
        let found = searched(&space, &work, &s, 2);
        let best = &found.found[0];
        assert!(found.bound >= least, "{model}: proven");
        assert!(times.iter().any(|t| t.1 == best.written), "{model}: {:?} among {times:?}", best.written);
        assert_eq!(best.written.lines.len(), fewest, "{model}: the simplest");
        let report = SearchReport::new(&space, &found, (3, false), machine.device.memory);
        assert!(report.proven && report.gap == Some(0.0) && report.rows.len() == 3);
        assert!(report.rows[0].loses.is_empty() && !report.rows[1].loses.is_empty());
        assert!(report.rejected.bound > 0, "{:?}", report.rejected);
    }
}

#[test]
fn the_answer_does_not_depend_on_the_number_of_threads() {
    let p = program("mnist_mlp", None, &[]);
    let step = training_step(&p).unwrap();
    let machine = machine("cpu", &[]);
    let s = subject(&p, &step, &machine);
    let work = s.work(4).unwrap();
    let space = space(&p, &step, &work, 4);
    let of = |cores| {
        let o = searched(&space, &work, &s, cores);
        let all: Vec<WrittenLayout> = o.found.into_iter().map(|f| f.written).collect();
        (all, o.bound, o.compiled)
    };
    assert_eq!(of(1), of(3));
}

#[test]
fn a_search_that_is_stopped_gives_the_gap() {
    let p = program("mnist_mlp", None, &[]);
    let step = training_step(&p).unwrap();
    let machine = machine("cpu", &[]);
    let s = subject(&p, &step, &machine);
    let work = s.work(4).unwrap();
    let space = space(&p, &step, &work, 4);
    let mut stop = |p: Progress| p.best.is_some();
    let found = Search::new(&space, &work, &s).run(&mut Limits { cores: 1, stop: &mut stop }).unwrap();
    let report = SearchReport::new(&space, &found, (5, false), machine.device.memory);
    let (gap, bound) = (report.gap.unwrap(), report.bound.unwrap());
    assert!(!report.proven && gap > 0.0 && report.rejected.bound == 0);
    assert!((report.rows[0].estimate.seconds / bound - 1.0 - gap).abs() < 1e-12);
}

#[test]
fn what_does_not_fit_is_cut_into_parts_or_computed_again() {
    let p = program("bert", Some("tiny"), &[]);
    let step = training_step(&p).unwrap();
    let large = machine("cpu", &[]);
    let s = subject(&p, &step, &large);
    let work = s.work(2).unwrap();
    let peak = |name: &str| {
        let text = WrittenLayout { lines: vec!["batch -> data".into(), name.into()], mesh: "data=2".into() };
        s.estimate(&text).unwrap().unwrap().memory.peak_bytes
    };
    let (whole, cut) =
        (peak("params: * -> data"), peak("params: * -> data\nmicrobatches 32\nrecompute layers.*"));
    assert!(cut < whole / 2, "{cut} {whole}");
    let memory = 1.1 * cut as f64;
    let small = machine("cpu", &["device.reserve=0".into(), format!("device.memory={memory}")]);
    let s = Subject { machine: &small, ..s };
    let kept = FixedRules::of("batch -> data", &p).unwrap();
    let space = Space::of(&p, &step, &work, SearchChoices { devices: 2, kept, ..SearchChoices::default() });
    let found = searched(&space, &work, &s, 2);
    let best = &found.found[0];
    let rules = best.written.rules();
    assert!(rules.starts_with("batch -> data") && rules.contains("microbatches"), "{rules}");
    assert!(found.rejected.memory > 0);
    // Nothing fits into next to nothing; the nearest says by how much it misses.
    let memory = work.held.values().sum::<f64>() / 2.0;
    let tiny = machine("cpu", &["device.reserve=0".into(), format!("device.memory={memory}")]);
    let s = Subject { machine: &tiny, ..s };
    let none = searched(&space, &work, &s, 2);
    let report = SearchReport::new(&space, &none, (5, false), tiny.device.memory);
    assert!(report.rows.is_empty() && report.nearest.unwrap().missing_bytes > 0);
}
