//! Identities of estimates: what holds of every program on every machine, and faults that each must catch.
//!
//! An identity (`checks.rs`) is asked of the code that estimates ([`Code`]), which may have a fault (`faults.rs`): a number of a
//! machine that does not count, a part that the sum leaves out, a turn of a loop too few.

mod checks;
mod faults;
mod numbers;

use checks::WORK;
use faults::Fault;
use meshwright_core::{model_flops_wide, training_step};
use meshwright_cost::engine::EngineKind;
use meshwright_cost::estimate::{Estimate, EstimateError, EstimateQuestion, PlanOnDevice};
use meshwright_cost::kernels::program;
use meshwright_cost::machine::Machine;
use meshwright_cost::pipeline::{StageTimes, play};
use meshwright_cost::rates::Rates;
use meshwright_cost::shipped_machines::{MACHINES, find};
use meshwright_cost::timeline::{Spent, events, spent};
use meshwright_cost::work::{DeviceWork, Loop, WorkItem};
use meshwright_device::compile_launches;
use meshwright_plan::actions::{PipelineSchedule, runs};
use meshwright_plan::{DType, Plan};
use meshwright_sorted::SortedMap;
use meshwright_train::{Loaded, Project, ProjectOptions};
use numbers::{NUMBERS, better};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// A model with a preset, sizes, a layout and a mesh; empty texts for none.
pub(crate) type Case<'a> = (&'a str, &'a str, &'a [(&'a str, usize)], &'a str, &'a str);

/// Programs that between them have what machines have numbers of.
pub(crate) const PROGRAMS: &[Case<'static>] = &[
    ("mlp", "", &[], "", ""),
    ("mlp", "", &[("batch", 64)], "batch -> r; hidden -> c", "r=2,c=2"),
    ("mnist_conv", "", &[("batch", 100)], "batch -> r", "r=4"),
    (
        "gpt",
        "tiny",
        &[],
        "batch -> data; heads, d_ff, vocab -> model; seq -> model when free",
        "data=2,model=2",
    ),
    (
        "gpt",
        "tiny",
        &[],
        "batch -> data; grads: * -> data; params: * -> data; microbatches 2; recompute layers.*",
        "data=4",
    ),
    ("bert", "tiny", &[], "batch -> data; moments: * -> data", "data=8"),
    ("switch", "tiny", &[], "batch -> data; experts -> data when free", "data=4"),
    // More than a node, in large messages and in small ones.
    ("gpt", "small", &[("batch", 64)], "batch -> data", "data=16"),
    ("bert", "tiny", &[], "batch -> data", "data=64"),
    // Sums that are split among units: of as many examples as there are in a batch.
    ("gpt", "tiny", &[("batch", 1024), ("heads", 16)], "batch -> data", "data=2"),
    ("gpt", "tiny", &[("seq", 2048), ("places", 2048)], "seq -> data; ring key", "data=4"),
    ("gpt", "tiny", &[("batch", 64)], "batch -> data; layers -> pipe; microbatches 4", "pipe=2,data=2"),
];

pub(crate) fn options(of: &Case<'_>, precision: Option<DType>) -> ProjectOptions {
    let (model, preset, dims, layout, mesh) = *of;
    let given = |text: &str| Some(text.to_string()).filter(|t| !t.is_empty());
    ProjectOptions {
        model: model.into(),
        preset: given(preset),
        dims: dims.iter().map(|(n, s)| ((*n).into(), *s)).collect(),
        layout: given(layout),
        mesh: given(mesh),
        precision: precision.map(DType::into),
        ..ProjectOptions::default()
    }
}

/// Every machine that ships, and one whose switches add, with the precision that suits it.
pub(crate) static MODELED: LazyLock<Vec<(Machine, Option<DType>)>> = LazyLock::new(|| {
    let adding = "[tier.reduce]\nmode = \"cut-through\"\nlevels = 3\nrate = 60e9\nlink = 1e-6\nframe = 4096\nsmallest = 65536\nmembers = 16\n";
    let adding = format!("{}\n{adding}", find("dgx-h100").unwrap());
    let texts = MACHINES.iter().map(|m| m.text.to_string()).chain([adding]);
    let of = |(at, text): (usize, String)| {
        let mut machine = Machine::read(&text).unwrap();
        if at == MACHINES.len() {
            machine.name += ", switches that add";
        }
        let half = ["bf16", "f16"].into_iter().find(|name| machine.device.matrix.contains_key(*name));
        let dtype = half.map(|name| if name == "bf16" { DType::BF16 } else { DType::F16 });
        (machine, dtype)
    };
    texts.enumerate().map(of).collect()
});

/// A compiled program, and its device plans by engine: to compile one takes longer than an estimate.
pub(super) struct CompiledProgram {
    plan: &'static Plan,
    on_devices: Mutex<Vec<(EngineKind, Arc<PlanOnDevice<'static>>)>>,
    flops: f64,
    examples: usize,
    tokens: Option<usize>,
}

fn compiled(options: &ProjectOptions) -> Arc<CompiledProgram> {
    static KNOWN: Mutex<SortedMap<String, Arc<CompiledProgram>>> = Mutex::new(SortedMap::new());
    let key = format!("{options:?}");
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = known().get(&key) {
        return found.clone();
    }
    let Loaded { project, sources, diagnostics, .. } = Project::load(options);
    let project = project.unwrap_or_else(|| panic!("{key}: {diagnostics:?}"));
    let step = training_step(&project.program).unwrap();
    let (done, found) = project.compile(&step, &sources);
    let plan = done.unwrap_or_else(|| panic!("{key}: {found:?}")).plan;
    let (flops, examples) = (model_flops_wide(&step), project.batch());
    let tokens = project.tokens().map(|each| each * examples);
    // As long as the tests run.
    let plan = Box::leak(Box::new(plan));
    let made = Arc::new(CompiledProgram { plan, on_devices: Mutex::default(), flops, examples, tokens });
    known().insert(key, made.clone());
    made
}

impl CompiledProgram {
    fn on_device(&self, asked: &EstimateQuestion<'_>) -> Result<Arc<PlanOnDevice<'static>>, EstimateError> {
        let mut known = self.on_devices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, found)) = known.iter().find(|(engine, _)| *engine == asked.engine) {
            return Ok(found.clone());
        }
        let made = Arc::new(PlanOnDevice::of(self.plan, asked)?);
        known.push((asked.engine.clone(), made.clone()));
        Ok(made)
    }
}

fn estimate_of(options: &ProjectOptions, machine: &Machine) -> Result<Estimate, String> {
    static KNOWN: Mutex<SortedMap<String, Result<Estimate, String>>> = Mutex::new(SortedMap::new());
    let key = format!("{options:?} {machine:?}");
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = known().get(&key) {
        return found.clone();
    }
    let of = compiled(options);
    let asked = EstimateQuestion {
        machine,
        engine: EngineKind::of(machine),
        model_flops: of.flops,
        examples: of.examples,
        tokens: of.tokens,
        pipe: None,
        slowest: 1.0,
    };
    let estimated = || of.on_device(&asked)?.estimate(&asked, None);
    let made = estimated().map_err(|e| format!("{options:?} on {}: {e}", machine.name));
    known().insert(key, made.clone());
    made
}

/// Equal stages of a pipeline, and a message to the next one.
#[derive(Clone, Debug)]
pub(super) struct EqualStages {
    pub(super) schedule: PipelineSchedule,
    pub(super) stages: usize,
    pub(super) chunks: usize,
    pub(super) microbatches: usize,
    pub(super) times: StageTimes,
    pub(super) hop: f64,
}

/// The code that estimates, which may have a fault.
#[derive(Clone, Copy, Default)]
pub(crate) struct Code<'f> {
    fault: Option<&'f Fault>,
}

impl Code<'_> {
    pub(super) fn on(&self, options: &ProjectOptions, machine: &Machine) -> Result<Estimate, String> {
        let (mut options, mut machine) = (options.clone(), machine.clone());
        match self.fault {
            Some(Fault::Reads(change)) => {
                let shipped = MODELED.iter().find(|m| m.0.name == machine.name).unwrap();
                change(&mut machine, &shipped.0);
            }
            Some(Fault::Takes(change)) => change(&mut options),
            _ => {}
        }
        let mut found = estimate_of(&options, &machine)?;
        if let Some(Fault::Gives(change)) = self.fault {
            change(&mut found);
        }
        Ok(found)
    }

    /// What is spent with turns of loops that are multiplied, and with all turns one by one.
    pub(super) fn turns(&self, options: &ProjectOptions, machine: &Machine) -> (Spent, Spent) {
        let plan = compiled(options).plan;
        let engine = EngineKind::of(machine);
        let device = compile_launches(plan, 0, engine.target_on(machine)).unwrap();
        let (rates, work) = (Rates::new(machine, &engine, &plan.mesh), program(plan, &device));
        let mut multiplied = spent(&work, &rates);
        if let Some(Fault::Multiplies(change)) = self.fault {
            change(&mut multiplied, &spent(&DeviceWork { body: fewer(&work.body) }, &rates));
        }
        (multiplied, events(&work, &rates).0)
    }

    /// Seconds until the last stage is done.
    pub(super) fn played(&self, of: &EqualStages) -> f64 {
        let (mut of, mut more) = (of.clone(), 0.0);
        if let Some(Fault::Plays(change)) = self.fault {
            more = change(&mut of);
        }
        let lists = runs(of.schedule, of.stages, of.chunks, of.microbatches).unwrap();
        let played = play(&lists, &vec![of.times; of.stages * of.chunks], of.hop, false).unwrap();
        played.ends.into_iter().fold(0.0, f64::max) + more
    }
}

/// The same with a turn less of each outermost loop.
fn fewer(items: &[WorkItem]) -> Vec<WorkItem> {
    let of = |item: &WorkItem| match item {
        WorkItem::Loop(of) if of.size > 1 => WorkItem::Loop(Loop { size: of.size - 1, ..of.clone() }),
        other => other.clone(),
    };
    items.iter().map(of).collect()
}

fn holds(found: Result<(), String>) {
    found.unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn a_breakdown_sums_to_the_step() {
    holds(checks::sums(Code::default()));
}

#[test]
fn a_machine_twice_as_fast_takes_half_the_time() {
    holds(checks::half(Code::default()));
}

#[test]
fn every_number_that_is_better_makes_some_step_faster_and_none_slower() {
    let found = NUMBERS.iter().filter_map(|n| checks::monotone(Code::default(), n).err());
    let wrong: Vec<String> = found.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn turns_that_are_multiplied_are_those_that_are_walked() {
    holds(checks::turns(Code::default()));
}

#[test]
fn a_pipeline_of_equal_stages_takes_its_passes_and_its_bubble() {
    holds(checks::pipelines(Code::default()));
}

#[test]
fn over_links_without_limits_a_step_takes_its_compute() {
    holds(checks::without_links(Code::default()));
}

#[test]
fn on_devices_without_limits_a_step_takes_its_messages() {
    holds(checks::without_compute(Code::default()));
}

#[test]
fn equal_axes_change_places_and_an_axis_is_cut_for_nothing() {
    holds(checks::equal_axes(Code::default()));
}

#[test]
fn names_and_axes_of_one_device_change_nothing() {
    holds(checks::names(Code::default()));
}

#[test]
fn more_work_takes_longer() {
    WORK.iter().for_each(|more| holds(checks::more_work(Code::default(), more)));
}

/// A number that has become better is another one.
#[test]
fn numbers_change() {
    for number in NUMBERS.iter() {
        let changed = MODELED.iter().any(|(m, _)| better(m, number, 1.3) != *m);
        assert!(changed, "no machine has a number `{}`", number.name);
    }
}
