//! Estimates of pipelines, of published runs, and of what a device plan says.

use crate::command::growth::little_within;
use crate::identities::{Case, MODELED, options};
use crate::support::command;
use meshwright_core::training_step;
use meshwright_cost::engine::EngineKind;
use meshwright_cost::estimate::Estimate;
use meshwright_cost::machine::Machine;
use meshwright_cost::pipe::Pipe;
use meshwright_device::compile;
use meshwright_plan::actions::PipelineSchedule;
use meshwright_plan::{Arithmetic, DType, Phase, Plan, Prim};
use meshwright_train::estimates::foresight::{SHIPPED_RUNS, read_runs, rows, summary};
use meshwright_train::estimates::{EstimateOptions, estimated, machine};
use meshwright_train::{Loaded, Project, ProjectOptions};
use std::time::Duration;

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

fn near(a: f64, b: f64, tolerance: f64) -> bool {
    (a - b).abs() <= tolerance * b.abs().max(f64::MIN_POSITIVE)
}

#[test]
fn a_pipeline_takes_its_passes_and_its_bubble() {
    let (h100, precision) = MODELED.iter().find(|(m, _)| m.name.contains("H100 80")).unwrap();
    let layout = "microbatches 8";
    let of = |stages: usize, chunks: usize, schedule: PipelineSchedule| {
        let pipe = (stages > 1).then_some(Pipe { stages, schedule, chunks, ends: false });
        let sizes = [("layers", 8), ("batch", 64)];
        on(&options(&("gpt", "tiny", &sizes, layout, ""), *precision), h100, pipe)
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

/// What one H200 took (docs/results/gpu.md): whole steps, and of vocabularies that fill vectors the products alone, which are
/// those of today's engine. The machine file knows the wide MLP, and of attention only what its functions cost.
#[test]
fn an_h200_is_estimated() {
    let h200 = machine("dgx-h200", &[]).unwrap_or_else(|e| panic!("{}", e.message));
    assert!(!h200.device.attention.contains_key("cuda"), "no rate of its own attention is fitted");
    let wide = concat!(env!("CARGO_MANIFEST_DIR"), "/gpu/wide_mlp.mw");
    let padded = [("batch", 64), ("seq", 512), ("vocab", 30_528)];
    // A program, the milliseconds of a step, those of its products, and how near the estimate is.
    let rows: [(Case<'_>, Option<f64>, Option<f64>, f64); 5] = [
        ((wide, "", &[], "", ""), Some(19.0), None, 0.01),
        (("gpt", "small", &[("batch", 16)], "", ""), Some(35.1), Some(21.2), 0.15),
        (("bert", "", &padded[..2], "", ""), Some(58.7), None, 0.15),
        (("gpt", "small", &[("batch", 16), ("vocab", 50_304)], "", ""), None, Some(20.5), 0.15),
        (("bert", "", &padded, "", ""), None, Some(34.2), 0.15),
    ];
    for (of, step, products, most) in &rows {
        let e = on(&options(of, Some(DType::BF16)), &h200, None);
        for (estimated, measured) in [(e.seconds, step), (e.breakdown.matmul, products)] {
            let measured = measured.unwrap_or(1e3 * estimated);
            assert!(
                near(1e3 * estimated, measured, *most),
                "{of:?}: {estimated} where {measured} ms were measured"
            );
        }
    }
}

/// A GPU multiplies factors of `f32` without tensor cores, and those of TF32 on them at half the rate of half types: in products,
/// and in attention, whether its rates are published or those of what it computes.
#[test]
fn products_and_attention_have_the_rate_of_their_digits() {
    for name in ["dgx-a100-80g", "dgx-h100", "dgx-h200"] {
        let machine = machine(name, &[]).unwrap_or_else(|e| panic!("{}", e.message));
        let gpt: Case<'_> = ("gpt", "small", &[("batch", 16)], "", "");
        let of = |precision| on(&in_precision(&gpt, precision), &machine, None);
        let all = [Arithmetic::BF16, Arithmetic::TF32, Arithmetic::F32].map(of);
        let peaks = ["bf16", "tf32", "f32"].map(|dtype| machine.device.matrix[dtype].peak);
        for pair in [0, 1] {
            let [fast, slow] = [pair, pair + 1].map(|k| &all[k].breakdown);
            let least = 0.5 * peaks[pair] / peaks[pair + 1];
            for (of, fast, slow) in
                [("products", fast.matmul, slow.matmul), ("attention", fast.attention, slow.attention)]
            {
                assert!(
                    slow > fast && (of == "attention" || slow > least * fast),
                    "{name}, {of}: {fast} {slow}"
                );
            }
        }
        assert!(all.iter().all(|e| e.assumed_rates.is_empty()), "{name}");
        // The step is no faster than the peak of its dtype.
        assert!(all.iter().all(|e| e.mfu.is_some_and(|mfu| mfu < 1.0)), "{name}");
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

fn in_precision(of: &Case<'_>, precision: Arithmetic) -> ProjectOptions {
    ProjectOptions { precision: Some(precision), ..options(of, None) }
}

fn on_h100(of: &Case<'_>, precision: Arithmetic) -> Estimate {
    let h100 = machine("dgx-h100", &[]).unwrap_or_else(|e| panic!("{}", e.message));
    on(&in_precision(of, precision), &h100, None)
}

/// Kernels, bytes that they move, and bytes that are live at the peak: those that the whole device plan has. Its places in
/// memory, which estimates leave out, add little (`device_plan_bytes` of `bench model`).
#[test]
fn launches_and_bytes_of_a_gpu_are_those_of_its_device_plan() {
    for of in HOST_TIME {
        for precision in [Arithmetic::F32, Arithmetic::BF16, Arithmetic::FP8] {
            let e = on_h100(of, precision);
            let plan = plan(&in_precision(of, precision));
            let device = compile(&plan, 0, EngineKind::Cuda.target()).unwrap();
            let totals = device.totals(&plan);
            let (moved, live) = (totals.traffic.read + totals.traffic.written, e.memory.peak_bytes);
            let peak = plan.peak_stored(&device.stored);
            assert_eq!((e.kernels, live), (totals.kernels, peak), "{of:?} in {precision:?}");
            let whole = totals.peak_bytes;
            assert!(whole >= live && near(live as f64, whole as f64, 0.1), "{of:?}: {live} of {whole}");
            // Memory that is only named counts as written there.
            assert!(near(e.bytes as f64, moved as f64, 0.05), "{of:?} in {precision:?}: {} {moved}", e.bytes);
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
        let e = on_h100(of, Arithmetic::BF16);
        assert!(near(e.kernels as f64, *kernels as f64, 0.15), "{of:?}: {} for {kernels}", e.kernels);
        assert!(near(e.memory.peak_bytes as f64, *planned as f64, 0.05), "{of:?}: {}", e.memory.peak_bytes);
    }
}

/// Positions that are split count once, whatever halo a device reads beside its own; a convolution of four channels takes as long
/// as one of a whole row of them; and a sum of products of two vectors takes what it takes to read them.
#[test]
fn kernels_of_the_host_take_what_they_compute() {
    let of = |layout, mesh| options(&("mnist_conv", "", &[("batch", 8)], layout, mesh), None);
    let convolved = |layout, mesh| -> u64 {
        let plan = plan(&of(layout, mesh));
        plan.steps.iter().filter(|s| matches!(s.prim, Prim::Convolve { .. })).map(|s| s.flops(&plan)).sum()
    };
    let whole = convolved("", "");
    for (layout, mesh) in [("rows -> a", "a=4"), ("cols -> a", "a=4"), ("rows -> a; cols -> b", "a=2,b=2")] {
        assert_eq!(4 * convolved(layout, mesh), whole, "{layout}");
    }
    let cpu = machine("cpu", &[]).unwrap_or_else(|e| panic!("{}", e.message));
    let [by_batch, by_channels] =
        ["batch -> a", "filters1 -> a"].map(|layout| on(&of(layout, "a=4"), &cpu, None));
    // A third of the work, the gradient of what the first convolution gives, takes four times as long.
    let more = by_channels.breakdown.matmul / by_batch.breakdown.matmul;
    assert!((1.8..2.5).contains(&more), "{more}");
    let plan = plan(&of("", ""));
    let updates = plan.steps.iter().filter(|s| s.phase == Phase::Update);
    let moved: u64 = updates.map(|s| s.memory_bytes(&plan)).sum();
    let slowest = cpu.device.stream.rates.iter().map(|r| r.1).fold(f64::INFINITY, f64::min);
    let update = on(&of("", ""), &cpu, None).breakdown.update;
    assert!(update < 1.5 * moved as f64 / slowest, "{update} s for {moved} bytes at {slowest}");
}

/// Of GPT-3 on 10,240 devices: in less than a second of the processor, on a machine that is as fast as usual, and 500 MB, to the
/// last byte of what is printed.
#[test]
fn a_large_plan_is_estimated_at_once() {
    let layout = "batch -> data; heads, d_ff, vocab -> model; seq -> model when free; moments: * -> data; microbatches 16";
    let of = ["estimate", "gpt", "--preset", "gpt3_175b", "--dim", "batch=20480", "--precision", "bf16"];
    let on = ["--machine", "dgx-h100", "--layout", layout, "--mesh", "data=80,model=8", "--format", "json"];
    let mut pipe = vec!["--pipe", "16", "--chunks", "6"];
    // Stages that are the Plan's own, and stages of another system, which are projected from a Plan without them.
    let facts = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(facts.path(), "attention = \"flash2\"\n").unwrap();
    for projected in [false, true] {
        if projected {
            pipe.extend(["--engine", facts.path().to_str().unwrap()]);
        }
        let said = little_within(
            "an estimate",
            Duration::from_secs(1),
            &mut command(&[&of[..], &on, &pipe].concat()),
        );
        let e: serde_json::Value = serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{}", said.err));
        assert_eq!((&e["devices"], &e["pipe"]["projected"]), (&10_240.into(), &projected.into()), "{e}");
        assert!((0.2..0.7).contains(&e["mfu"].as_f64().unwrap()), "{e}");
    }
}
