//! What a training takes, as the process counts it itself, beside what its Plan says: the values of its devices, and all the
//! rest.

use crate::support::{command, options, run, said, write_tags};
use meshwright_core::training_step;
use meshwright_device::target::Target;
use meshwright_plan::{Plan, StoredElements};
use meshwright_train::estimates::{EstimateOptions, estimated, machine};
use meshwright_train::{Project, ProjectOptions};
use serde_json::Value;

const MIB: f64 = 1_048_576.0;

/// MiB of tensors that are too small for shares to tell of.
const SMALL: f64 = 2.0;

/// What a training took, in bytes.
struct Taken {
    /// What an estimate says of it.
    said: EstimatedMemory,
    /// The values of all devices.
    values: f64,
    /// All of the process that is none of these.
    rest: f64,
}

/// Of two steps: the second finds what the first has left. Memory that is free goes back at once: by default the allocator keeps
/// it for some time, so that what a process holds at most depends on how busy the machine is (by 100 MiB). Each start tokenizes,
/// so that those that are compared are alike.
fn taken(args: &[&str]) -> Taken {
    let fixed = ["--steps", "2", "--no-save", "--no-eval", "--format", "json"];
    let mut training = command(&[&["train"], args, &fixed].concat());
    training.env("MIMALLOC_PURGE_DELAY", "0").env("MESHWRIGHT_CACHE", "");
    let said = said(training.output().unwrap());
    assert_eq!(said.code, Some(0), "{args:?}: {}", said.err);
    let done: Value = serde_json::from_str(said.out.lines().last().unwrap()).unwrap();
    let number = |key: &str| done[key].as_f64().unwrap_or_else(|| panic!("{key}: {done}"));
    let (values, all) = (number("peak_value_bytes"), number("peak_memory_bytes"));
    Taken { said: said_of(args), values, rest: all - values }
}

/// What an estimate says of a training, in bytes.
struct EstimatedMemory {
    /// All devices together: as many as there are of the fullest, or of a pipeline those of each stage, by its Plan.
    all: f64,
    /// Whether devices of stages differ.
    staged: bool,
}

fn said_of(args: &[&str]) -> EstimatedMemory {
    let after = |flag: &str| {
        let at = args.iter().position(|a| *a == flag)?;
        Some(args[at + 1].to_string())
    };
    let dims = args.windows(2).filter(|w| w[0] == "--dim").filter_map(|w| w[1].split_once('='));
    let dims: Vec<(&str, usize)> = dims.map(|(name, size)| (name, size.parse().unwrap())).collect();
    let layout = after("--layout").unwrap_or_default();
    let o = options(args[0], &after("--mesh").unwrap_or_default(), &layout, &dims);
    let o = ProjectOptions { preset: after("--preset"), ..o };
    let loaded = Project::load(&o);
    let cpu = machine("cpu", &[]).unwrap_or_else(|e| panic!("{}", e.message));
    let found = estimated(&loaded.project.unwrap(), &loaded.sources, &EstimateOptions::of(cpu));
    let peak = found.unwrap_or_else(|e| panic!("{e:?}")).memory.peak_bytes as f64;
    // Of a pipeline a device of each stage; the fullest is what is estimated.
    let plan = plan(&o);
    let stages: Vec<f64> =
        plan.device_blocks().iter().map(|on| plan.peak_on(on, &StoredElements::new()) as f64).collect();
    assert_eq!(peak, stages.iter().copied().fold(0.0, f64::max), "{args:?}");
    let all = stages.iter().sum::<f64>() * (plan.mesh.devices() / stages.len()) as f64;
    EstimatedMemory { all, staged: stages.len() > 1 }
}

fn plan(o: &ProjectOptions) -> Plan {
    let loaded = Project::load(o);
    let project = loaded.project.unwrap_or_else(|| panic!("{:?}: {:?}", o.layout, loaded.diagnostics));
    let step = training_step(&project.program).unwrap();
    project.compile(&step, &loaded.sources).0.unwrap().plan
}

const GPT: [&str; 5] = ["gpt", "--preset", "tiny", "--data", "king_james_next"];

/// Examples of tagged tokens at the sizes of the preset.
fn tags() -> &'static str {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("tags");
    write_tags(&folder, [256, 64, 200]);
    String::leak(folder.display().to_string())
}

/// Large and small, one device and several, with and without what is computed again. `LONG=1` takes all models that ship.
fn cases() -> Vec<Vec<&'static str>> {
    let gpt = |more: &[&'static str]| [&GPT[..], more].concat();
    let mut all = vec![
        // The logits are gone when the backward loop begins.
        gpt(&["--dim", "batch=48", "--layout", "recompute layers.*"]),
        gpt(&["--dim", "batch=48", "--dim", "layers=1", "--layout", "recompute layers.*"]),
        gpt(&["--dim", "batch=24", "--layout", "zero3", "--mesh", "data=3"]),
        vec!["mnist_mlp", "--dim", "batch=3000", "--layout", "dp_tp", "--mesh", "2x2"],
    ];
    all.extend(STAGED.iter().map(|[mesh, layout, layers]| {
        gpt(&["--dim", "batch=96", "--mesh", mesh, "--layout", layout, "--dim", layers])
    }));
    if std::env::var_os("LONG").is_some() {
        all.extend([
            gpt(&["--dim", "batch=192"]),
            gpt(&["--dim", "batch=192", "--layout", "recompute layers.*"]),
            gpt(&["--dim", "batch=64", "--layout", "tp", "--mesh", "model=2"]),
            gpt(&["--dim", "batch=64", "--layout", "megatron_sp", "--mesh", "2x2"]),
            gpt(&["--dim", "batch=32", "--layout", "context", "--mesh", "2x2"]),
            gpt(&["--dim", "batch=32", "--layout", "zero1", "--mesh", "data=4"]),
            gpt(&["--dim", "batch=32", "--layout", "zero2", "--mesh", "data=4"]),
            gpt(&["--dim", "batch=32", "--layout", "hybrid", "--mesh", "pod=2,data=2"]),
            gpt(&["--dim", "batch=32", "--layout", "folded", "--mesh", "pod=2,data=2"]),
            vec!["mlp", "--dim", "batch=6000"],
            vec!["mlp", "--layout", "dp", "--mesh", "data=4"],
            vec!["mnist_conv", "--dim", "batch=1000"],
            vec!["mnist_conv", "--layout", "spatial", "--mesh", "2x2"],
            vec!["unet"],
            vec!["unet", "--layout", "unet_tiles", "--mesh", "2x2"],
            vec!["vit", "--preset", "tiny", "--data", "mnist", "--dim", "batch=400"],
            vec!["bert", "--preset", "tiny", "--data", "king_james_masked", "--dim", "batch=64"],
            vec!["bert_classify", "--preset", "tiny", "--data", "king_james_pairs"],
            vec!["bert_tag", "--preset", "tiny", "--data", tags(), "--dim", "batch=64"],
            vec!["llama", "--preset", "tiny", "--data", "king_james_next", "--dim", "batch=64"],
            vec!["switch", "--preset", "tiny", "--data", "king_james_next", "--dim", "batch=64"],
            vec![
                "switch",
                "--preset",
                "tiny",
                "--data",
                "king_james_next",
                "--dim",
                "batch=32",
                "--layout",
                "experts",
                "--mesh",
                "data=4",
            ],
            vec!["t5", "--preset", "tiny", "--data", "king_james_spans", "--dim", "batch=64"],
        ]);
    }
    all
}

/// Each schedule, stages of other lengths, and several stages on a device.
const STAGED: [[&str; 3]; 4] = [
    ["pipe=2", "layers -> pipe; microbatches 6; schedule gpipe", "layers=2"],
    ["pipe=2", "layers -> pipe; microbatches 6", "layers=2"],
    ["pipe=3", "layers -> pipe; microbatches 6; stages 3, 2, 1; schedule zb_h1", "layers=6"],
    ["pipe=2", "layers -> pipe; microbatches 6; chunks 2", "layers=4"],
];

/// The same with a small batch.
fn small(args: &[&'static str]) -> Vec<&'static str> {
    let before: Vec<&str> =
        args.iter().map(|a| if a.starts_with("batch=") { "batch=6" } else { a }).collect();
    let more: &[&str] = if before[..] == *args { &["--dim", "batch=6"] } else { &[] };
    [&before, more].concat()
}

/// What is wrong with the memory of a training; nothing where it is as planned.
fn faults(args: &[&'static str]) -> Vec<String> {
    // The process itself: its code, its data, what the compiler leaves, threads.
    let (t, least) = (taken(args), taken(&small(args)).rest);
    let [said, values, rest, least] = [t.said.all, t.values, t.rest, least].map(|b| b / MIB);
    let beyond = values - 1.05 * said + rest - least;
    // Stages reach their peaks at different times: what they hold together at once is at least this part of these.
    let at_once = if t.said.staged { 0.85 } else { 0.95 };
    // Devices have threads, and tensors that are too small to count.
    let devices = if args.contains(&"--mesh") { 4.0 } else { 1.0 };
    let checks = [
        (values <= 1.05 * said + SMALL, format!("{values:.1} MiB of {said:.1}")),
        (values >= at_once * said - SMALL, format!("{values:.1} MiB of {said:.1} alone")),
        (beyond <= 40.0 + 8.0 * devices, format!("{beyond:.0} MiB more than estimated and in a small run")),
    ];
    checks.into_iter().filter(|(holds, _)| !holds).map(|(_, fault)| format!("{args:?}: {fault}")).collect()
}

#[test]
fn a_training_takes_what_is_estimated() {
    let found: Vec<String> = cases().iter().flat_map(|args| faults(args)).collect();
    assert!(found.is_empty(), "{found:#?}");
}

/// What the launches of each stage of a pipeline need at once is what `explain` says, to the byte, and never more than the Plan
/// says of the stage.
#[test]
fn the_arena_of_each_stage_is_what_explain_says() {
    let more = [
        ["pipe=3", "layers -> pipe; microbatches 6; stages 3, 2, 1", "layers=6"],
        ["pipe=2", "layers -> pipe; microbatches 6; chunks 2; stages 0, 2, 4, 0; schedule zb_h1", "layers=6"],
        ["data=2,pipe=2", "batch -> data; layers -> pipe; params: * -> data; microbatches 4", "layers=4"],
        ["pipe=2", "layers -> pipe; microbatches 6; recompute layers.*", "layers=4"],
    ];
    let mut wrong = vec![];
    for [mesh, layout, layers] in STAGED.iter().chain(&more) {
        let layers = layers.strip_prefix("layers=").unwrap().parse().unwrap();
        let sizes = [("batch", 96), ("layers", layers)];
        let o = options("gpt", mesh, layout, &sizes);
        let plan = plan(&ProjectOptions { preset: Some("tiny".into()), ..o });
        let [batch, layers] = sizes.map(|(name, size)| format!("{name}={size}"));
        let asked = ["explain", "gpt", "--preset", "tiny", "--device", "cuda", "--format", "json"];
        let more = ["--mesh", mesh, "--layout", layout, "--dim", &batch, "--dim", &layers];
        let said = run(&[&asked[..], &more].concat());
        let said: Value = serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {}", said.err));
        let told = |stage: usize, key: &str| said["pipeline"]["stages"][stage][key].as_u64().unwrap();
        // The stages of the first devices along all other axes have ranks in order.
        for (stage, on) in plan.device_blocks().iter().enumerate() {
            let device = meshwright_device::compile(&plan, stage, Target::cuda((9, 0), true)).unwrap();
            let bound: u64 = plan.program_inputs.iter().map(|i| on.bytes(i.buf)).sum();
            assert_eq!(told(stage, "arena_bytes"), device.arena.bytes, "{mesh}, {layout}, stage {stage}");
            assert_eq!(
                told(stage, "peak_bytes"),
                device.peak_on(&plan, on),
                "{mesh}, {layout}, stage {stage}"
            );
            let planned = (device.peak_on(&plan, on) - bound) as f64 / MIB;
            let arena = device.arena.bytes as f64 / MIB;
            // With the bits that attention draws. Kernels of a GPU make less, and a pass frees values of its layers one by one.
            if arena > planned || arena < 0.8 * planned - 8.0 {
                wrong.push(format!("{mesh}, {layout}, stage {stage}: {arena:.1} MiB of {planned:.1}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
