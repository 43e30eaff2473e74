//! The CUDA engine itself on a machine without a GPU: the stand-in for the driver runs its kernels as nothing, or interprets
//! their PTX. Where they are nothing the calls are those of a GPU, with CubeCL's own checks of them, and the numbers mean
//! nothing. Where they are interpreted the numbers are to be those of the native backend.

use crate::devices::nccl::built;
use crate::support::{SMALL, Said, command, folder, said};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Shown with --nocapture and on failure.
#[allow(clippy::print_stderr, reason = "a figure of a test")]
pub(crate) fn report(text: &str) {
    eprintln!("{text}");
}

/// A folder in which CubeCL finds the stand-in under the names of NVIDIA's libraries.
pub(crate) fn libraries() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["libcuda.so", "libcuda.so.1", "libcublasLt.so.13", "libnvidia-ml.so.1"] {
        std::os::unix::fs::symlink(built::library(), folder.path().join(name)).unwrap();
    }
    folder
}

/// Where `runtime/cuda/llvm.sh` puts libdevice.
fn toolkit() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../.llvm/cuda")
}

/// The command on the stand-in; what it compiles and measures stays in a folder of this name.
pub(crate) fn on_stand_in(libraries: &Path, cache: &str, args: &[&str]) -> Command {
    let mut command = command(args);
    with_stand_in(&mut command, libraries, cache);
    command
}

/// Gives a command the stand-in, and one GPU.
fn with_stand_in(command: &mut Command, libraries: &Path, cache: &str) {
    command
        .env("LD_LIBRARY_PATH", libraries)
        .env("CUDA_PATH", toolkit())
        .env("MESHWRIGHT_CACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join(cache))
        .env("FAKE_NCCL_GPUS", "1");
}

/// `products` as `MESHWRIGHT_CUBLASLT`.
fn run(libraries: &Path, (graphs, products): (&str, &str), args: &[&str]) -> Said {
    said(
        on_stand_in(libraries, "dry_run", args)
            .env("MESHWRIGHT_GRAPHS", graphs)
            .env("MESHWRIGHT_CUBLASLT", products)
            .env("FAKE_CUDA_MEMORY", "8")
            .output()
            .unwrap(),
    )
}

/// Steps of a model whose products are small, since these are computed: what is measured, and what went on streams.
fn benched(graphs: &str, model: &str) -> (serde_json::Value, Vec<(String, String, usize)>) {
    benched_by(graphs, model, "kernel")
}

fn benched_by(graphs: &str, model: &str, by: &str) -> (serde_json::Value, Vec<(String, String, usize)>) {
    let libraries = libraries();
    let mut args = vec!["bench", "model"];
    args.extend(model.split(' '));
    args.extend(["--by", by, "--device", "cuda", "--steps", "5", "--warmup", "5", "--format", "json"]);
    let mut command = on_stand_in(libraries.path(), "dry_run", &args);
    let log = libraries.path().join("log");
    command.env("MESHWRIGHT_GRAPHS", graphs).env("FAKE_CUDA_MEMORY", "8").env("FAKE_CUDA_LOG", &log);
    command.env("FAKE_NCCL_GPUS", "2").env("MESHWRIGHT_NCCL", built::library());
    let out = said(command.output().unwrap());
    assert_eq!(out.code, Some(0), "{}{}", out.out, out.err);
    (serde_json::from_str(out.out.lines().last().unwrap()).unwrap(), logged(&log))
}

const MLP: &str = "mnist_mlp --dim batch=4 --dim hidden1=16";
const BERT: &str = "bert --preset tiny --dim batch=2 --dim seq=16 --dim layers=1 --dim vocab=64";

#[test]
fn a_step_is_one_launch_compiled_for_the_host() {
    for model in [MLP, BERT] {
        let [recorded, ordinary] = ["", "none"].map(|graphs| benched(graphs, model));
        for ((bench, _), graph) in [(&recorded, true), (&ordinary, false)] {
            assert_eq!(bench["graph"], graph, "{model}: {bench}");
            assert_eq!(bench["notes"].as_array().unwrap().len(), 0, "{model}: {bench}");
            let kernels = bench["kernels"].as_array().unwrap();
            let moved: Vec<u64> = kernels.iter().map(|k| k["bytes"].as_u64().unwrap()).collect();
            assert_eq!(bench["memory_bytes"], moved.iter().sum::<u64>(), "{model}: {bench}");
            for name in ["ElementWise", "FoldElements", "AlongRows", "cuBLASLt"] {
                assert!(kernels.iter().any(|k| k["name"] == name && k["bytes"] != 0), "{model}: {bench}");
            }
            let launches = |name: &str| {
                kernels.iter().find(|k| k["name"] == name).map_or(0, |k| k["launches"].as_u64().unwrap())
            };
            assert!(["ElementWise", "cuBLASLt"].map(launches).iter().all(|n| *n >= 5), "{model}: {bench}");
            assert!(["FoldElements", "AlongRows"].map(launches).iter().all(|n| *n >= 1), "{model}: {bench}");
            // Cross-entropy is one kernel with its gradient, and what is summed over rows is part of others; each of those sums
            // is one more.
            if model == BERT {
                assert!(launches("AlongRows") <= 11 && launches("FoldElements") <= 15, "{model}: {bench}");
            }
        }
        // Between two launches of the graph there are copies of inputs, and nothing else of a step.
        let words =
            |log: &[(String, String, usize)]| -> Vec<String> { log.iter().map(|l| l.0.clone()).collect() };
        let (launched, plain) = (words(&recorded.1), words(&ordinary.1));
        assert!(!plain.contains(&"graph".to_string()), "{model}: {plain:?}");
        let between: Vec<usize> = launched
            .split(|word| word == "graph")
            .map(|words| words.iter().filter(|word| *word == "kernel").count())
            .collect();
        let inner = &between[1..between.len() - 1];
        assert!(inner.len() >= 5 && inner.iter().all(|kernels| *kernels <= 4), "{model}: {between:?}");
        let host = |bench: &serde_json::Value| bench["host_ms"].as_f64().unwrap();
        let times = (host(&ordinary.0), host(&recorded.0));
        report(&format!("{model}: {:.3} ms of the host, {:.3} recorded", times.0, times.1));
        // A few launches cost as little as one.
        assert!(model == MLP || times.1 < times.0, "{recorded:?} {ordinary:?}");
    }
}

#[test]
fn kernels_are_counted_by_line_and_by_launch_compiled_for_the_host() {
    let on = |model: &str, by: &str| -> Vec<(String, u64)> {
        let (bench, _) = benched_by("none", model, by);
        let all = bench["kernels"].as_array().unwrap().clone();
        all.iter()
            .map(|k| (k["name"].as_str().unwrap().to_owned(), k["launches"].as_u64().unwrap()))
            .collect()
    };
    let [kernels, lines, launches] = ["kernel", "line", "launch"].map(|by| on(MLP, by));
    let sum = |of: &[(String, u64)]| of.iter().map(|k| k.1).sum::<u64>();
    assert_eq!((sum(&lines), sum(&launches)), (sum(&kernels), sum(&kernels)), "{lines:?} {launches:?}");
    assert!(lines.len() > 5 && lines.iter().filter(|k| k.0.contains(", line ")).count() > 5, "{lines:?}");
    // Launches by their numbers in the device plan, which has the same.
    let plan =
        [&["explain"][..], &MLP.split(' ').collect::<Vec<_>>(), &["--emit", "device", "--device", "cuda"]];
    let text = said(on_stand_in(libraries().path(), "dry_run", &plan.concat()).output().unwrap()).out;
    let numbered = |of: &(String, u64)| of.0.starts_with(|c: char| c.is_ascii_digit());
    assert!(launches.iter().filter(|k| numbered(k)).count() > 10, "{launches:?}");
    for (name, _) in launches.iter().filter(|k| numbered(k)) {
        let (head, value) = name.split_once(" of ").unwrap();
        let line = text.lines().find(|line| line.trim_start().starts_with(&format!("{head} "))).unwrap();
        assert!(line.contains(value) || line.contains("[for "), "{name}: {line}");
    }
    // Two devices of a process launch the same: none of one is counted under a launch of the other.
    let both = on(&format!("{MLP} --mesh data=2 --layout dp"), "launch");
    let numbered: Vec<_> = both.iter().filter(|k| numbered(k)).collect();
    assert!(numbered.len() > 10 && numbered.iter().all(|k| k.1.is_multiple_of(2)), "{both:?}");
}

/// What the allocator has in use is what the Plan says, less what the device never makes; beside it there is the workspace of
/// products.
#[test]
fn memory_in_use_is_what_the_plan_says_compiled_for_the_host() {
    const WORKSPACE: f64 = (32 << 20) as f64;
    let libraries = libraries();
    for model in [
        "bert --preset tiny --dim batch=64",
        "gpt --preset tiny --dim batch=64",
        "t5 --preset tiny --dim batch=32",
        "mnist_conv",
        "unet --dim batch=64",
    ] {
        let mut args = vec!["bench", "model"];
        args.extend(model.split(' '));
        args.extend("--precision bf16 --device cuda --steps 1 --warmup 5 --format json".split(' '));
        let mut command = on_stand_in(libraries.path(), "dry_run", &args);
        command.env("FAKE_CUDA_MEMORY", "8").env("FAKE_CUBLASLT_COMPUTES", "0");
        let out = said(command.output().unwrap());
        assert_eq!(out.code, Some(0), "{}{}", out.out, out.err);
        let found: serde_json::Value = serde_json::from_str(out.out.lines().last().unwrap()).unwrap();
        let bytes = |key: &str| found[key].as_f64().unwrap();
        let planned = bytes("device_plan_bytes");
        let used = (bytes("device_peak_bytes") - WORKSPACE) / planned;
        let held = (bytes("device_reserved_bytes") - WORKSPACE) / planned;
        report(&format!("{model}: of {planned} bytes planned {used:.3} in use, {held:.3} held"));
        assert!((0.95..1.05).contains(&used), "{model}: {used:.3} of {planned}");
    }
}

/// Of several versions of cuBLASLt that are installed, the driver may refuse the newest.
#[test]
fn the_first_cublaslt_that_the_driver_takes_is_used_compiled_for_the_host() {
    let notes = |mesh: &[&str], refused: &str, libraries: &Path| {
        let mut args = vec!["bench", "model"];
        args.extend(MLP.split(' '));
        args.extend(["--device", "cuda", "--steps", "1", "--warmup", "1", "--format", "json"]);
        args.extend(mesh);
        let mut command = on_stand_in(libraries, "dry_run", &args);
        command.envs([
            ("FAKE_CUBLASLT_REFUSED", refused),
            ("FAKE_NCCL_GPUS", "2"),
            ("FAKE_CUDA_MEMORY", "8"),
        ]);
        let out = said(command.env("MESHWRIGHT_NCCL", built::library()).output().unwrap());
        assert_eq!(out.code, Some(0), "{}{}", out.out, out.err);
        let found: serde_json::Value = serde_json::from_str(out.out.lines().last().unwrap()).unwrap();
        found["notes"].to_string()
    };
    let libraries = libraries();
    let note = notes(&[], "1", libraries.path());
    assert!(note.contains("Burn's kernels compute products") && note.contains("cublasLtCreate"), "{note}");
    // Of two ranks the one that asks first has none.
    let mesh = ["--mesh", "r=2", "--layout", "batch -> r"];
    let note = notes(&mesh, "1", libraries.path());
    assert!(note.contains("has no cuBLASLt, the others do"), "{note}");
    assert_eq!(note.matches("Burn's kernels compute products").count(), 1, "{note}");
    std::os::unix::fs::symlink(built::library(), libraries.path().join("libcublasLt.so.12")).unwrap();
    assert_eq!(notes(&[], "1", libraries.path()), "[]");
}

/// Makes images dark: no bytes of them are a number that is not finite, whatever memory they are left in.
pub(crate) fn darken(data: &Path) {
    for file in std::fs::read_dir(data).unwrap().map(|f| f.unwrap().path()) {
        let mut bytes = std::fs::read(&file).unwrap();
        if file.to_string_lossy().contains("image") {
            bytes[16..].iter_mut().for_each(|b| *b &= 0x3f);
            std::fs::write(&file, bytes).unwrap();
        }
    }
}

/// A checkpoint reads what a recorded step changes, an evaluation uses it, and a timeline takes an ordinary step in between.
#[test]
fn a_training_records_its_step_compiled_for_the_host() {
    let (folder, libraries) = (folder(SMALL), libraries());
    darken(&folder.path().join("data"));
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (data, run_dir, trace) = (at("data"), at("run"), at("trace.json"));
    let mut args: Vec<&str> =
        vec!["train", "mnist_mlp", "--data", &data, "--device", "cuda", "--steps", "30"];
    args.extend("--dim batch=12 --dim rows=5 --dim cols=4 --dim hidden1=8 --dim hidden2=8".split(' '));
    args.extend(["--checkpoint-every", "7", "--eval-every", "15", "--run", &run_dir]);
    args.extend(["--trace", &trace, "--trace-steps", "18..19", "--format", "json"]);
    let out = run(libraries.path(), ("", "none"), &args);
    assert_eq!(out.code, Some(0), "{}{}", out.out, out.err);
    assert!(
        !out.out.contains("could not be recorded") && !out.err.contains("could not be recorded"),
        "{}",
        out.out
    );
    assert!(Path::new(&trace).exists());
}

/// What went on each stream, by `FAKE_CUDA_LOG`: its word, the stream, and bytes.
fn logged(path: &Path) -> Vec<(String, String, usize)> {
    let text = std::fs::read_to_string(path).unwrap();
    let of = |line: &str| {
        let parts: Vec<&str> = line.split(' ').collect();
        (parts[0].to_string(), parts[1].to_string(), parts[2].parse().unwrap())
    };
    text.lines().map(of).collect()
}

/// Inputs go beside what is computed: no kernel runs on the stream that uploads them, in ordinary steps and in recorded ones.
#[test]
fn inputs_have_a_stream_of_their_own_compiled_for_the_host() {
    let (folder, libraries) = (folder(SMALL), libraries());
    darken(&folder.path().join("data"));
    let data = folder.path().join("data").display().to_string();
    for graphs in ["", "none"] {
        let log = folder.path().join(format!("streams-{graphs}"));
        let mut args = vec!["train", "mnist_mlp", "--data", &data, "--device", "cuda", "--steps", "12"];
        args.extend("--dim batch=12 --dim rows=5 --dim cols=4 --no-save --no-eval".split(' '));
        let mut command = on_stand_in(libraries.path(), "dry_run", &args);
        command.envs([("MESHWRIGHT_GRAPHS", graphs), ("MESHWRIGHT_CUBLASLT", "none")]);
        let out = said(command.env("FAKE_CUDA_LOG", &log).output().unwrap());
        assert_eq!(out.code, Some(0), "{}{}", out.out, out.err);
        let logged = logged(&log);
        let kernels: Vec<&String> = logged.iter().filter(|l| l.0 != "upload").map(|l| &l.1).collect();
        // The images of a batch are bytes.
        let images: Vec<_> = logged.iter().filter(|l| l.0 == "upload" && l.2 == 12 * 5 * 4).collect();
        let beside = images.iter().filter(|l| !kernels.contains(&&l.1)).count();
        // Before a program is recorded, those of one step get the memory that is written from then on: on the stream of the
        // kernels, by rows.
        let steps = if graphs.is_empty() { 11 } else { 12 };
        assert!(images.len() == steps && beside == steps, "{graphs}: {beside} of {}", images.len());
        assert_eq!(logged.iter().any(|l| l.0 == "graph"), graphs.is_empty());
    }
}

/// A step of decoding is one launch, and the text is that of the native backend.
#[test]
fn a_decoding_is_recorded_compiled_for_the_host() {
    let (folder, libraries) = (folder(SMALL), libraries());
    let run_dir = folder.path().join("run").display().to_string();
    let mut args: Vec<&str> =
        "train gpt --preset tiny --dim batch=2 --dim layers=1 --steps 4 --no-eval".split(' ').collect();
    args.extend(["--data", "king_james_next", "--run", &run_dir, "--device", "cpu"]);
    let out = said(command(&args).output().unwrap());
    assert_eq!(out.code, Some(0), "{}{}", out.out, out.err);
    let mut texts = vec![];
    for (device, graphs) in [("cpu", ""), ("cuda", ""), ("cuda", "none")] {
        let args = [
            "generate",
            &run_dir,
            "--prompt",
            "And he",
            "--max-tokens",
            "10",
            "--seed",
            "3",
            "--device",
            device,
        ];
        let log = folder.path().join(format!("calls-{graphs}"));
        let mut command = on_stand_in(libraries.path(), "dry_run_computed", &args);
        command.envs([
            ("MESHWRIGHT_GRAPHS", graphs),
            ("FAKE_CUDA_KERNELS", "run"),
            ("FAKE_CUDA_MEMORY", "1"),
        ]);
        let out = said(command.env("FAKE_CUDA_LOG", &log).output().unwrap());
        assert_eq!(out.code, Some(0), "{}{}", out.out, out.err);
        texts.push(out.out);
        if device == "cuda" {
            let launches = logged(&log).iter().filter(|l| l.0 == "graph").count();
            assert!(if graphs.is_empty() { launches >= 4 } else { launches == 0 }, "{graphs}: {launches}");
        }
    }
    assert!(texts.iter().all(|text| *text == texts[0] && text.len() > 10), "{texts:?}");
}

/// The loss of each step of a training.
pub(crate) fn losses(mut command: Command) -> Vec<f64> {
    let out = said(command.output().unwrap());
    assert_eq!(out.code, Some(0), "{}{}", out.out, out.err);
    assert!(!out.err.contains("could not be recorded"), "{}", out.err);
    let events = out.out.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let steps: Vec<f64> =
        events.filter(|e| e["event"] == "step").map(|e| e["loss"].as_f64().unwrap()).collect();
    assert!(steps.len() > 3 && steps.iter().all(|loss| loss.is_finite()), "{steps:?}");
    steps
}

/// Trains on kernels that compute, with steps recorded and not, and where these are watched for races: the losses are those of
/// the native backend, and recording changes no bit.
pub(crate) fn computes_as_the_native_backend(args: &[&str], within: f64) {
    let libraries = libraries();
    // Peaks are given, as measuring them is long on an interpreter.
    let args = [args, &["--no-save", "--format", "json", "--peak-flops", "1e12"]].concat();
    let native = losses(command(&[&args[..], &["--device", "cpu"]].concat()));
    let [recorded, ordinary] = [("", "0"), ("none", "1")].map(|(graphs, races)| {
        let args = [&args[..], &["--device", "cuda"]].concat();
        let mut command = on_stand_in(libraries.path(), "dry_run_computed", &args);
        command.env("MESHWRIGHT_GRAPHS", graphs).env("FAKE_CUDA_RACES", races);
        command.envs([("FAKE_CUDA_KERNELS", "run"), ("FAKE_CUDA_MEMORY", "1")]);
        losses(command)
    });
    let far = |(a, b): (&f64, &f64)| (a - b).abs() / a.abs();
    let apart = native.iter().zip(&recorded).map(far).fold(0.0, f64::max);
    report(&format!("{}: losses differ by {apart:.1e}", args[1]));
    assert!(apart <= within && native.len() == recorded.len(), "{native:?} {recorded:?}");
    assert_eq!(recorded, ordinary);
}

#[test]
fn an_mlp_trains_on_kernels_compiled_for_the_host() {
    let folder = folder(SMALL);
    let data = folder.path().join("data").display().to_string();
    let mut args = vec!["train", "mnist_mlp", "--data", &data, "--steps", "12", "--eval-every", "6"];
    args.extend("--dim batch=12 --dim rows=5 --dim cols=4 --dim hidden1=8 --dim hidden2=8".split(' '));
    computes_as_the_native_backend(&args, 2e-6);
}

/// A recording that fails leaves parts of the arena unwritten and nothing run: the step runs in other memory, and is recorded
/// later, or never.
#[test]
fn a_failed_recording_changes_no_step_compiled_for_the_host() {
    let (folder, libraries) = (folder(SMALL), libraries());
    let data = folder.path().join("data").display().to_string();
    let mut args = vec!["train", "mnist_mlp", "--data", &data, "--steps", "14", "--no-save", "--no-eval"];
    args.extend("--dim batch=12 --dim rows=5 --dim cols=4 --dim hidden1=8 --dim hidden2=8".split(' '));
    args.extend("--peak-flops 1e12 --format json --device cuda".split(' '));
    let trained = |refused: &str| {
        let log = folder.path().join(format!("log{refused}"));
        let mut command = on_stand_in(libraries.path(), "dry_run_computed", &args);
        command.env("FAKE_CUDA_GRAPHS_REFUSED", refused).env("FAKE_CUDA_LOG", &log);
        command.envs([("FAKE_CUDA_KERNELS", "run"), ("FAKE_CUDA_MEMORY", "1")]);
        let out = said(command.output().unwrap());
        assert_eq!(out.code, Some(0), "{}{}", out.out, out.err);
        let launches = logged(&log).iter().filter(|(word, ..)| word == "graph").count();
        let text = out.out.clone() + &out.err;
        let steps =
            out.out.lines().filter(|line| line.contains("\"loss\"")).map(|line| {
                serde_json::from_str::<serde_json::Value>(line).unwrap()["loss"].as_f64().unwrap()
            });
        (steps.collect::<Vec<f64>>(), launches, text.contains("could not be recorded"))
    };
    // A busy machine can break off recordings too: up to three are tried again, in two steps each.
    let (losses, launches, noted) = trained("0");
    assert!(losses.len() == 14 && (5..=11).contains(&launches) && !noted, "{losses:?} {launches}");
    let (once, later, noted) = trained("1");
    assert!(once == losses && (5..=9).contains(&later) && !noted, "{once:?} {later}");
    let (never, none, noted) = trained("1000");
    assert!(never == losses && none == 0 && noted, "{never:?} {none}");
}

/// Products add biases, apply a `relu`, give its gradient and sum a factor: fewer kernels. Where the library has none for that,
/// the losses are the same but for the order of sums.
#[test]
fn products_do_more_in_one_kernel_compiled_for_the_host() {
    let folder = folder(SMALL);
    let data = folder.path().join("data").display().to_string();
    let dims = "--dim batch=12 --dim rows=5 --dim cols=4 --dim hidden1=8 --dim hidden2=8";
    let train = ["--data", &data, "--steps", "8", "--no-save", "--peak-flops", "1e12"];
    // Of two layers the biases with `relu`, and two gradients of `relu`; the gradients of their biases. The bias of the logits is
    // added where cross-entropy reads them, and its gradient summed where that of cross-entropy is made.
    products_do_more("mnist_mlp", dims, &train, [0, 4, 2]);
}

/// In a loop over layers the gradient takes what a `gelu` was applied to out of what the loop kept.
#[test]
fn a_gelu_and_its_gradient_are_in_products_compiled_for_the_host() {
    let dims = "--preset tiny --dim batch=2 --dim seq=16 --dim layers=2";
    let train =
        ["--data", "king_james_next", "--steps", "4", "--no-save", "--no-eval", "--peak-flops", "1e12"];
    // Of each layer four biases, `gelu` and its gradient; the gradients of four biases, of which three are sums of one fold.
    // Those of two are summed where a norm's gradient is made. Gradients of the weights of queries, keys and values are one
    // launch, or three.
    products_do_more("gpt", dims, &train, [4, 12, 4]);
}

/// Compares a model's steps with and without the epilogues of products: without, these are the products, maps and folds more, and
/// no other losses.
fn products_do_more(model: &str, dims: &str, train: &[&str], more: [u64; 3]) {
    let libraries = libraries();
    let run = |epilogues: &str, args: &[&str]| {
        let dims = dims.split(' ').chain("--device cuda --format json".split(' '));
        let args: Vec<&str> = args.iter().copied().chain(dims).collect();
        let mut command = on_stand_in(libraries.path(), "dry_run_computed", &args);
        command.env("MESHWRIGHT_GRAPHS", "none").env("FAKE_CUBLASLT_EPILOGUES", epilogues);
        command.envs([("FAKE_CUDA_KERNELS", "run"), ("FAKE_CUDA_MEMORY", "1")]);
        command
    };
    let kernels = |epilogues: &str| {
        let out = said(run(epilogues, &["bench", "model", model, "--steps", "1"]).output().unwrap());
        assert_eq!(out.code, Some(0), "{}{}", out.out, out.err);
        let found: serde_json::Value = serde_json::from_str(out.out.lines().last().unwrap()).unwrap();
        let launches = |name: &str| -> u64 {
            let of = |k: &&serde_json::Value| k["name"].as_str().unwrap().contains(name);
            found["kernels"]
                .as_array()
                .unwrap()
                .iter()
                .filter(of)
                .map(|k| k["launches"].as_u64().unwrap())
                .sum()
        };
        ["cuBLASLt", "ElementWise", "Fold"].map(launches)
    };
    let ([products, maps, folds], [all_products, all_maps, all_folds]) = (kernels("1"), kernels("0"));
    report(&format!(
        "{model}: {maps} maps and {folds} folds beside {products} products, alone {all_maps} and {all_folds}"
    ));
    let [more_products, more_maps, more_folds] = more;
    let with_more = (products + more_products, maps + more_maps, folds + more_folds);
    assert_eq!(with_more, (all_products, all_maps, all_folds));
    let args = [&["train", model], train].concat();
    let [fused, apart] = ["1", "0"].map(|epilogues| losses(run(epilogues, &args)));
    let far = fused.iter().zip(&apart).map(|(a, b)| (a - b).abs() / a.abs()).fold(0.0, f64::max);
    assert!(far < 2e-6, "{fused:?} {apart:?}");
}

/// Tokens of a text, with dropout: random numbers are the same too.
const TRAINED_BERT: &str = "train bert --preset tiny --data king_james_masked --steps 5 --no-eval --dim batch=2 \
                            --dim layers=1 --precision";

#[test]
fn bert_trains_on_kernels_compiled_for_the_host() {
    let args: Vec<&str> = TRAINED_BERT.split(' ').collect();
    computes_as_the_native_backend(&[&args[..], &["f32"]].concat(), 2e-6);
}

/// Each backend rounds sums of its own order to bf16.
#[test]
fn bert_trains_in_bf16_on_kernels_compiled_for_the_host() {
    let args: Vec<&str> = TRAINED_BERT.split(' ').collect();
    computes_as_the_native_backend(&[&args[..], &["bf16"]].concat(), 1e-3);
}

/// Rows of a vocabulary that begin at no multiple of 16 bytes have gaps between them.
#[test]
fn gpt_trains_with_an_odd_vocabulary_on_kernels_compiled_for_the_host() {
    let args = "train gpt --preset tiny --data king_james_next --steps 4 --no-eval --dim batch=2 --dim seq=16 --dim layers=1 \
                --dim vocab=4099 --precision";
    let args: Vec<&str> = args.split_whitespace().collect();
    computes_as_the_native_backend(&[&args[..], &["f32"]].concat(), 2e-6);
    computes_as_the_native_backend(&[&args[..], &["bf16"]].concat(), 1e-3);
    // What was measured of products says how far it is from one row to the next.
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dry_run_computed/cublaslt");
    let kept: Vec<_> = cache
        .read_dir()
        .unwrap()
        .map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap())
        .collect();
    for rows in ["f32 [32 4099]/4128", "bf16 [32 4099]/4160"] {
        assert!(kept.iter().any(|text| text.contains(rows)), "{rows}");
    }
}

/// The same where Burn's kernels compute the products, which round factors of `f32` where tensor cores multiply them.
#[test]
fn gpt_trains_with_an_odd_vocabulary_by_burns_products_compiled_for_the_host() {
    let args = "train gpt --preset tiny --data king_james_next --steps 4 --no-eval --no-save --dim batch=2 --dim seq=16 \
                --dim layers=1 --dim vocab=4099 --precision f32 --format json --peak-flops 1e12 --device";
    let args: Vec<&str> = args.split_whitespace().collect();
    let libraries = libraries();
    let native = losses(command(&[&args[..], &["cpu"]].concat()));
    let mut ours = on_stand_in(libraries.path(), "dry_run_computed", &[&args[..], &["cuda"]].concat());
    ours.env("MESHWRIGHT_CUBLASLT", "none");
    ours.envs([("FAKE_CUDA_KERNELS", "run"), ("FAKE_CUDA_MEMORY", "1")]);
    let ours = losses(ours);
    let far = |(a, b): (&f64, &f64)| (a - b).abs() / a.abs();
    let apart = native.iter().zip(&ours).map(far).fold(0.0, f64::max);
    report(&format!("by Burn's products: losses differ by {apart:.1e}"));
    assert!(apart <= 1e-4 && native.len() == ours.len(), "{native:?} {ours:?}");
}

/// Convolutions, on tensor cores and not, and pools.
#[test]
fn images_train_on_kernels_compiled_for_the_host() {
    let conv = "train mnist_conv --data mnist --steps 4 --no-eval --dim batch=2 --dim kh=5 --dim kw=4 --dim hidden1=8 --dim hidden2=8";
    let unet = "train unet --steps 4 --no-eval --dim batch=2";
    for (model, precision, within) in [
        (conv, "f32", 2e-6),
        (conv, "f64", 1e-14),
        (conv, "bf16", 1e-3),
        (unet, "f32", 2e-6),
        (unet, "bf16", 1e-3),
    ] {
        let args: Vec<&str> = model.split_whitespace().chain(["--precision", precision]).collect();
        computes_as_the_native_backend(&args, within);
    }
}

/// Two processes with a GPU each, whose collectives are recorded with the step, between evaluations whose collectives are not:
/// the losses are those of threads, and recording changes no bit. A run is rehearsed again while the address of a state differs
/// from the run before.
#[cfg(feature = "mpi")]
pub(crate) fn two_record(args: &[&str], within: f64, rehearsals: &[usize]) {
    let (libraries, _alone) = (libraries(), crate::devices::mpirun::alone());
    let args = [args, &["--no-save", "--format", "json", "--peak-flops", "1e12"]].concat();
    let native = losses(command(&[&args[..], &["--device", "cpu"]].concat()));
    let log = libraries.path().join("log");
    let [recorded, ordinary] = ["", "none"].map(|graphs| {
        let mut command = crate::devices::mpirun::job(&[(2, &[&args[..], &["--device", "cuda"]].concat())]);
        with_stand_in(&mut command, libraries.path(), "dry_run_computed");
        command.envs([("MESHWRIGHT_GRAPHS", graphs), ("FAKE_CUDA_KERNELS", "run")]);
        command.envs([("FAKE_NCCL_GPUS", "2"), ("FAKE_CUDA_MEMORY", "1")]);
        command.env("MESHWRIGHT_NCCL", built::library()).env("FAKE_CUDA_LOG", &log);
        losses(command)
    });
    let far = |(a, b): (&f64, &f64)| (a - b).abs() / a.abs();
    let apart = native.iter().zip(&recorded).map(far).fold(0.0, f64::max);
    assert!(apart <= within && native.len() == recorded.len(), "{native:?} {recorded:?}");
    assert_eq!(recorded, ordinary);
    // All steps but the first two and the rehearsals, of both; two less where a busy machine broke off the first recording.
    let launches = logged(&log).iter().filter(|l| l.0 == "graph").count();
    let fits = |rehearsals: &usize| {
        let most = native.len() - 2 - rehearsals;
        [2 * most, 2 * (most - 2)].contains(&launches)
    };
    assert!(rehearsals.iter().any(fits), "{launches}: {native:?}");
}

#[cfg(feature = "mpi")]
#[test]
fn two_gpus_record_an_mlp_compiled_for_the_host() {
    let folder = folder(SMALL);
    let data = folder.path().join("data").display().to_string();
    let mut args = vec!["train", "mnist_mlp", "--data", &data, "--steps", "9", "--eval-every", "6"];
    args.extend("--dim batch=12 --dim rows=5 --dim cols=4 --dim hidden1=8 --dim hidden2=8".split(' '));
    args.extend(["--mesh", "r=2", "--layout", "batch -> r"]);
    two_record(&args, 2e-6, &[1]);
}

/// Loops whose iterations gather weights ahead and reduce gradients behind.
#[cfg(feature = "mpi")]
#[test]
fn two_gpus_record_bert_with_split_parameters_compiled_for_the_host() {
    let args = TRAINED_BERT.replace("layers=1", "layers=2");
    let mut args: Vec<&str> = args.split(' ').collect();
    args.extend(["f32", "--mesh", "data=2", "--layout", "zero3"]);
    two_record(&args, 2e-6, &[1]);
}
