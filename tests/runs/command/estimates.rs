//! Estimates: identities that hold on every machine, and published times.

use meshwright_core::training_step;
use meshwright_cost::engine::EngineKind;
use meshwright_cost::estimate::Estimate;
use meshwright_cost::kernels::program;
use meshwright_cost::machine::Machine;
use meshwright_cost::pipe::Pipe;
use meshwright_cost::rates::Rates;
use meshwright_cost::shipped::{MACHINES, ShippedMachine};
use meshwright_cost::timeline::{events, spent};
use meshwright_device::{compile, compile_launches};
use meshwright_plan::actions::PipelineSchedule;
use meshwright_plan::{DType, Plan};
use meshwright_train::estimates::foresight::{SHIPPED_RUNS, read_runs, rows, summary};
use meshwright_train::estimates::{EstimateOptions, estimated, machine};
use meshwright_train::{Loaded, Project, ProjectOptions};

/// A model with a preset, sizes, a layout and a mesh; empty texts for none.
type Case<'a> = (&'a str, &'a str, &'a [(&'a str, usize)], &'a str, &'a str);

const PROGRAMS: &[Case<'static>] = &[
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
];

fn options(of: &Case<'_>, precision: Option<DType>) -> ProjectOptions {
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

fn loaded(options: &ProjectOptions) -> (Project, meshwright_diag::Sources) {
    let Loaded { project, sources, diagnostics, .. } = Project::load(options);
    (project.unwrap_or_else(|| panic!("{diagnostics:?}")), sources)
}

fn on(options: &ProjectOptions, machine: &Machine, pipe: Option<Pipe>) -> Estimate {
    let (project, sources) = loaded(options);
    let asked =
        EstimateOptions { machine: machine.clone(), engine: EngineKind::of(machine), pipe, slowest: 1.0 };
    estimated(&project, &sources, &asked).unwrap_or_else(|e| panic!("{e:?}"))
}

fn plan(options: &ProjectOptions) -> Plan {
    let (project, sources) = loaded(options);
    let (compiled, found) = project.compile(&training_step(&project.program).unwrap(), &sources);
    compiled.unwrap_or_else(|| panic!("{found:?}")).plan
}

/// Every machine that ships, with the precision that suits it.
fn machines() -> Vec<(Machine, Option<DType>)> {
    let of = |shipped: &ShippedMachine| {
        let name = shipped.name;
        let machine = machine(name, &[]).unwrap_or_else(|e| panic!("{name}: {}", e.message));
        let half = machine.device.matrix.contains_key("bf16").then_some(DType::BF16);
        (machine, half)
    };
    MACHINES.iter().map(of).collect()
}

fn near(a: f64, b: f64, tolerance: f64) -> bool {
    (a - b).abs() <= tolerance * b.abs().max(f64::MIN_POSITIVE)
}

#[test]
fn a_breakdown_sums_to_the_step() {
    for (machine, precision) in machines() {
        for of in PROGRAMS {
            let e = on(&options(of, precision), &machine, None);
            assert!(e.seconds > 0.0 && e.seconds.is_finite(), "{of:?} on {}: {}", machine.name, e.seconds);
            assert!(near(e.breakdown.sum(), e.seconds, 1e-12), "{of:?} on {}: {e:?}", machine.name);
            let waited: f64 = e.collectives.iter().map(|c| c.exposed_seconds).sum();
            let exposed: f64 = e.breakdown.exposed.values().sum();
            assert!(
                near(waited, exposed, 1e-9) || exposed < 1e-12,
                "{of:?} on {}: {waited} {exposed}",
                machine.name
            );
        }
    }
}

/// All rates times a factor, all latencies divided by it.
fn faster(machine: &Machine, factor: f64) -> Machine {
    let mut m = machine.clone();
    let d = &mut m.device;
    d.kernel /= factor;
    d.matrix.values_mut().for_each(|x| (x.peak, x.best) = (x.peak * factor, x.best * factor));
    d.stream.rates.iter_mut().for_each(|r| r.1 *= factor);
    d.stream.total = d.stream.total.map(|t| t * factor);
    d.scalar.values_mut().for_each(|s| *s /= factor);
    d.families.values_mut().for_each(|s| *s *= factor);
    d.attention
        .values_mut()
        .for_each(|a| (a.forward.0, a.backward.0) = (a.forward.0 * factor, a.backward.0 * factor));
    for t in &mut m.tier {
        (t.hop, t.p2p_latency) = (t.hop / factor, t.p2p_latency / factor);
        (t.cap, t.p2p) = (t.cap.map(|c| c * factor), t.p2p.map(|c| c * factor));
        for l in &mut t.line {
            (l.latency, l.per_member, l.rate) = (l.latency / factor, l.per_member / factor, l.rate * factor);
            l.cap = l.cap.map(|c| c * factor);
        }
    }
    m
}

#[test]
fn a_machine_twice_as_fast_takes_half_the_time() {
    for (machine, precision) in machines() {
        for of in PROGRAMS {
            let options = options(of, precision);
            let (once, twice) = (on(&options, &machine, None), on(&options, &faster(&machine, 2.0), None));
            assert!(near(twice.seconds * 2.0, once.seconds, 1e-9), "{of:?} on {}", machine.name);
        }
    }
}

/// Changes of one number each, none of which makes a machine slower.
fn better(machine: &Machine) -> Vec<(&'static str, Machine)> {
    let with = |name: &'static str, change: &dyn Fn(&mut Machine)| {
        let mut m = machine.clone();
        change(&mut m);
        (name, m)
    };
    vec![
        with("best", &|m| {
            m.device.matrix.values_mut().for_each(|x| (x.best, x.peak) = (x.best * 1.3, x.peak * 1.3))
        }),
        with("stream", &|m| m.device.stream.rates.iter_mut().for_each(|r| r.1 *= 1.3)),
        with("kernel", &|m| m.device.kernel /= 1.3),
        with("attention", &|m| m.device.attention.values_mut().for_each(|a| a.forward.0 *= 1.3)),
        with("scalar", &|m| m.device.scalar.values_mut().for_each(|s| *s /= 1.3)),
        with("wire", &|m| m.tier.iter_mut().flat_map(|t| &mut t.line).for_each(|l| l.rate *= 1.3)),
        with("latency", &|m| m.tier.iter_mut().flat_map(|t| &mut t.line).for_each(|l| l.latency /= 1.3)),
        with("hop", &|m| m.tier.iter_mut().for_each(|t| t.hop /= 1.3)),
    ]
}

#[test]
fn no_number_that_is_better_makes_a_step_slower() {
    for (machine, precision) in machines() {
        for of in PROGRAMS {
            let options = options(of, precision);
            let before = on(&options, &machine, None).seconds;
            for (what, other) in better(&machine) {
                let after = on(&options, &other, None).seconds;
                // Compute that overlaps less with collectives may lose a little to contention.
                assert!(after <= before * 1.001, "{of:?} on {}: {what}: {before} to {after}", machine.name);
            }
        }
    }
}

#[test]
fn more_work_takes_longer() {
    for (machine, precision) in machines() {
        let of = |batch: usize, layers: usize| {
            let sizes = [("batch", batch), ("layers", layers)];
            on(&options(&("gpt", "tiny", &sizes, "batch -> data", "data=4"), precision), &machine, None)
                .seconds
        };
        let (small, examples, deep) = (of(16, 4), of(32, 4), of(16, 8));
        assert!(small < examples && small < deep, "{}: {small} {examples} {deep}", machine.name);
    }
}

#[test]
fn names_and_axes_of_one_device_change_nothing() {
    let (h100, _) = machines().into_iter().find(|(m, _)| m.name.contains("H100 80")).unwrap();
    let of = |layout: &str, mesh: &str| {
        on(&options(&("gpt", "tiny", &[], layout, mesh), None), &h100, None).seconds
    };
    let (a, b) = (of("batch -> a; d_ff -> b", "a=2,b=2"), of("batch -> x; d_ff -> y", "x=2,y=2"));
    assert!(near(a, b, 1e-12), "{a} {b}");
    let with_one = of("batch -> a; d_ff -> b; heads -> c", "a=2,b=2,c=1");
    assert!(near(a, with_one, 1e-12), "{a} {with_one}");
}

#[test]
fn turns_that_are_multiplied_are_those_that_are_walked() {
    for (machine, precision) in machines() {
        for of in PROGRAMS {
            let plan = plan(&options(of, precision));
            let engine = EngineKind::of(&machine);
            let device = compile_launches(&plan, 0, engine.target()).unwrap();
            let (rates, work) = (Rates::new(&machine, &engine, &plan.mesh), program(&plan, &device));
            let (multiplied, (walked, all)) = (spent(&work, &rates), events(&work, &rates));
            assert!(near(multiplied.seconds(), walked.seconds(), 1e-6), "{of:?} on {}", machine.name);
            let end = all.iter().map(|e| e.end).fold(0.0, f64::max);
            assert!(end <= walked.seconds() * (1.0 + 1e-9), "{of:?} on {}: {end}", machine.name);
        }
    }
}

#[test]
fn a_pipeline_takes_its_passes_and_its_bubble() {
    let (h100, precision) = machines().into_iter().find(|(m, _)| m.name.contains("H100 80")).unwrap();
    let layout = "microbatches 8";
    let of = |stages: usize, chunks: usize, schedule: PipelineSchedule| {
        let pipe = (stages > 1).then_some(Pipe { stages, schedule, chunks, ends: false });
        let sizes = [("layers", 8), ("batch", 64)];
        on(&options(&("gpt", "tiny", &sizes, layout, ""), precision), &h100, pipe)
    };
    let one = of(1, 1, PipelineSchedule::Gpipe);
    let (two, four) = (
        of(2, 1, PipelineSchedule::OneForwardOneBackward),
        of(4, 1, PipelineSchedule::OneForwardOneBackward),
    );
    assert!(four.seconds < two.seconds && two.seconds < one.seconds);
    assert!(four.pipe.as_ref().unwrap().bubble > two.pipe.as_ref().unwrap().bubble * 0.5);
    let interleaved = of(4, 2, PipelineSchedule::OneForwardOneBackward).pipe.unwrap().bubble;
    assert!(interleaved < four.pipe.as_ref().unwrap().bubble, "{interleaved}");
    assert_eq!(four.devices, 4);
    assert!(near(four.breakdown.sum(), four.seconds, 1e-12));
}

/// Mean and greatest error of the runs of each shipped file.
#[test]
fn published_runs_are_estimated() {
    let limits =
        [("d5.toml", 0.04, 0.08), ("d7.toml", 0.06, 0.12), ("d9.toml", 0.06, 0.12), ("d12.toml", 0.10, 0.25)];
    for ((name, text), (of, mean, max)) in SHIPPED_RUNS.iter().zip(limits) {
        assert_eq!(*name, of);
        let rows = read_runs(name, text).and_then(|file| rows(name, &file, &[]));
        let found = summary(&rows.unwrap_or_else(|e| panic!("{}", e.message)));
        assert!(
            found.rows >= 3 && found.mean <= mean && found.max <= max && found.refused == 0,
            "{name}: {found:?}"
        );
    }
}

/// GPT small and BERT base took 36.35 and 62.6 ms on an H200 (docs/results/gpu.md).
#[test]
fn an_h200_is_estimated() {
    let h200 = machine("dgx-h200", &[]).unwrap_or_else(|e| panic!("{}", e.message));
    let gpt = options(&("gpt", "small", &[("batch", 16)], "", ""), Some(DType::BF16));
    let bert = options(&("bert", "", &[("batch", 64), ("seq", 512)], "", ""), Some(DType::BF16));
    for (options, measured) in [(gpt, 0.03635), (bert, 0.0626)] {
        let e = on(&options, &h200, None);
        assert!(
            near(e.seconds, measured, 0.15),
            "{}: {} where {measured} were measured",
            options.model,
            e.seconds
        );
    }
}

/// The programs of docs/results/host_time.md.
const HOST_TIME: &[Case<'static>] = &[
    ("mnist_mlp", "", &[], "", ""),
    ("mnist_conv", "", &[], "", ""),
    ("unet", "", &[("batch", 2)], "", ""),
    ("bert", "tiny", &[("batch", 4)], "", ""),
    ("llama", "tiny", &[("batch", 4)], "", ""),
    ("gpt", "tiny", &[("batch", 4)], "", ""),
    ("vit", "tiny", &[], "", ""),
    ("switch", "tiny", &[("batch", 4)], "", ""),
    ("t5", "tiny", &[("batch", 4)], "", ""),
    ("bert", "", &[("batch", 64), ("seq", 512)], "", ""),
    ("gpt", "", &[("batch", 16)], "", ""),
];

fn on_h100(of: &Case<'_>, precision: DType) -> Estimate {
    let h100 = machine("dgx-h100", &[]).unwrap_or_else(|e| panic!("{}", e.message));
    on(&options(of, Some(precision)), &h100, None)
}

/// Kernels, bytes that they move, and bytes at the peak (`device_plan_bytes` of `bench model`): those that the whole device plan has, with its
/// places in memory, which estimates leave out.
#[test]
fn launches_and_bytes_of_a_gpu_are_those_of_its_device_plan() {
    for of in HOST_TIME {
        for precision in [DType::F32, DType::BF16] {
            let e = on_h100(of, precision);
            let plan = plan(&options(of, Some(precision)));
            let totals = compile(&plan, 0, EngineKind::Cuda.target()).unwrap().totals(&plan);
            let (moved, peak) = (totals.traffic.read + totals.traffic.written, totals.peak_bytes);
            assert_eq!((e.kernels, e.memory.peak_bytes), (totals.kernels, peak), "{of:?} in {precision}");
            // Memory that is only named counts as written there.
            assert!(near(e.bytes as f64, moved as f64, 0.05), "{of:?} in {precision}: {} {moved}", e.bytes);
        }
    }
}

/// What the engine launched on the stand-in for CUDA, and had planned (docs/results/host_time.md).
#[test]
fn a_gpu_launches_about_as_many_kernels_as_are_estimated() {
    let two_layers: [(Case<'_>, u64, u64); 2] = [
        (("gpt", "small", &[("batch", 4), ("layers", 2)], "", ""), 111, 2_169_870_868),
        (("bert", "", &[("batch", 2), ("seq", 512), ("layers", 2)], "", ""), 129, 757_641_932),
    ];
    for (of, kernels, planned) in &two_layers {
        let e = on_h100(of, DType::BF16);
        assert!(near(e.kernels as f64, *kernels as f64, 0.15), "{of:?}: {} for {kernels}", e.kernels);
        assert!(near(e.memory.peak_bytes as f64, *planned as f64, 0.05), "{of:?}: {}", e.memory.peak_bytes);
    }
}

#[test]
fn a_large_plan_is_estimated_at_once() {
    let h100 = machine("dgx-h100", &[]).unwrap_or_else(|e| panic!("{}", e.message));
    let layout = "batch -> data; heads, d_ff, vocab -> model; seq -> model when free; moments: * -> data; microbatches 16";
    let of = ("gpt", "gpt3_175b", &[("batch", 20_480_usize)][..], layout, "data=80,model=8");
    let pipe = Pipe { stages: 16, schedule: PipelineSchedule::OneForwardOneBackward, chunks: 6, ends: false };
    let e = on(&options(&of, Some(DType::BF16)), &h100, Some(pipe));
    assert_eq!(e.devices, 10_240);
    assert!(e.mfu.unwrap() > 0.2 && e.mfu.unwrap() < 0.7, "{:?}", e.mfu);
}
