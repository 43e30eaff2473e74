//! Programs, machines and lists of candidates for tests of searches.

#![allow(dead_code, reason = "each file of tests needs some of them")]

use meshwright_core::resolve::resolve;
use meshwright_core::{Program, Settings, StepGraph, model_flops_wide};
use meshwright_cost::engine::EngineKind;
use meshwright_cost::estimate::Estimate;
use meshwright_cost::machine::Machine;
use meshwright_cost::pipe::Pipe;
use meshwright_cost::shipped_machines::find;
use meshwright_diag::FileId;
use meshwright_search::best_first::{Limits, Search, SearchOutcome, TIE};
use meshwright_search::compiled::{CandidateRefusal, SharedSteps, Subject};
use meshwright_search::space::{SearchChoices, Space};
use meshwright_search::text::{Candidate, WrittenLayout};
use meshwright_search::work::ModelWork;
use meshwright_syntax::parse_model;

/// A model that ships, with sizes of some dims.
pub(crate) fn program(model: &str, preset: Option<&str>, dims: &[(&str, usize)]) -> Program {
    let read = |name: &str| std::fs::read_to_string(format!("../../models/{name}.mw")).unwrap();
    let (file, _) = parse_model(FileId(0), &read(model));
    let dims = dims.iter().map(|(d, n)| (d.to_string(), *n)).collect();
    let settings = Settings { size: preset.map(String::from), dims, ..Settings::default() };
    let (program, found) = resolve(&file.unwrap(), None, &settings, &mut |path, _| {
        parse_model(FileId(1), &read(&format!("std/{}", path.strip_prefix("std:").unwrap())))
    });
    program.unwrap_or_else(|| panic!("{model}: {found:?}"))
}

pub(crate) fn subject<'a>(program: &'a Program, step: &'a StepGraph, machine: &'a Machine) -> Subject<'a> {
    let engine = EngineKind::of(machine);
    let (flops, examples) = (model_flops_wide(step), 1);
    Subject {
        program,
        step,
        machine,
        engine,
        model_flops: flops,
        examples,
        tokens: None,
        shared: SharedSteps::default(),
    }
}

pub(crate) fn space(program: &Program, step: &StepGraph, work: &ModelWork, devices: usize) -> Space {
    Space::of(program, step, work, SearchChoices { devices, ..SearchChoices::default() })
}

pub(crate) fn searched(
    space: &Space,
    work: &ModelWork,
    subject: &Subject<'_>,
    cores: usize,
) -> SearchOutcome {
    Search::new(space, work, subject).run(&mut Limits { cores, stop: &mut |_| false }).unwrap()
}

pub(crate) fn work_of(subject: &Subject<'_>, devices: usize) -> ModelWork {
    subject.work(&SearchChoices { devices, ..SearchChoices::default() }).unwrap()
}

pub(crate) fn machine(name: &str, changes: &[String]) -> Machine {
    let machine = Machine::read(find(name).unwrap()).unwrap();
    changes.iter().fold(machine, |m, c| m.with(c).unwrap())
}

/// The machine file of that name with other rates: the same for the same seed.
pub(crate) fn random_machine(name: &str, seed: u64) -> Machine {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut draw = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        10f64.powf((state >> 33) as f64 / f64::from(1u32 << 31) * 2.0 - 1.0)
    };
    let mut m = machine(name, &[]);
    m.device.kernel *= draw();
    m.device.sustained = (m.device.sustained * draw()).min(1.0);
    for line in m.tier.iter_mut().flat_map(|t| &mut t.line) {
        (line.rate, line.latency) = (line.rate * draw(), line.latency * draw());
    }
    m
}

/// The estimates of a candidate, one for each pipeline of its stages if there are any.
pub(crate) fn estimates(
    s: &Subject<'_>,
    space: &Space,
    c: &Candidate,
) -> Result<Vec<(Option<Pipe>, Estimate)>, CandidateRefusal> {
    match space.stages(&c.mesh) {
        1 => s.estimate(&space.written(c)).map(|e| vec![(None, e.unwrap())]),
        _ => {
            let all = s.estimate_pipes(space, c).map(Result::unwrap)?;
            Ok(all.into_iter().map(|(pipe, e)| (Some(pipe), e)).collect())
        }
    }
}

/// Estimates all candidates one by one: those that are as fast as the best.
pub(crate) fn exhaustive(s: &Subject<'_>, space: &Space) -> Vec<(f64, WrittenLayout)> {
    let mut times: Vec<(f64, WrittenLayout)> = Vec::new();
    for c in space.bases().iter().flat_map(|b| space.variants(b)) {
        for (pipe, e) in estimates(s, space, &c).unwrap_or_default() {
            times.push((e.seconds, space.written(&Candidate { pipe, ..c.clone() })));
        }
    }
    let least = times.iter().map(|t| t.0).fold(f64::INFINITY, f64::min);
    times.retain(|t| t.0 <= least * (1.0 + TIE));
    times
}
