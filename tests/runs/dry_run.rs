//! The CUDA engine itself on a machine without a GPU: the stand-in for the driver runs its kernels as nothing. So the calls are those
//! of a GPU, with CubeCL's own checks of them, and the numbers mean nothing.

use crate::nccl::built;
use crate::support::{SMALL, Said, command, folder, said};
use std::path::{Path, PathBuf};

/// Shown with --nocapture and on failure.
#[allow(clippy::print_stderr, reason = "a figure of a test")]
fn report(text: &str) {
    eprintln!("{text}");
}

/// A folder in which CubeCL finds the stand-in under the names of NVIDIA's libraries.
fn libraries() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["libcuda.so", "libcuda.so.1", "libcublasLt.so.13", "libnvidia-ml.so.1"] {
        std::os::unix::fs::symlink(built::library(), folder.path().join(name)).unwrap();
    }
    folder
}

/// Where `runtime/exec/llvm.sh` puts libdevice.
fn toolkit() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../.llvm/cuda")
}

/// `products` as `MESHWRIGHT_CUBLASLT`.
fn run(libraries: &Path, (graphs, products): (&str, &str), args: &[&str]) -> Said {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dry_run");
    said(
        command(args)
            .env("LD_LIBRARY_PATH", libraries)
            .env("CUDA_PATH", toolkit())
            .env("MESHWRIGHT_CACHE", cache)
            .env("MESHWRIGHT_GRAPHS", graphs)
            .env("MESHWRIGHT_CUBLASLT", products)
            .envs([("FAKE_NCCL_GPUS", "1"), ("FAKE_CUDA_MEMORY", "8")])
            .output()
            .unwrap(),
    )
}

/// A step of a model whose products are small, since these are computed.
fn benched(graphs: &str, model: &str) -> serde_json::Value {
    let libraries = libraries();
    let mut args = vec!["bench", "model"];
    args.extend(model.split(' '));
    args.extend(["--device", "cuda", "--steps", "5", "--warmup", "5", "--format", "json"]);
    let out = run(libraries.path(), (graphs, ""), &args);
    assert_eq!(out.code, Some(0), "{}{}", out.out, out.err);
    serde_json::from_str(out.out.lines().last().unwrap()).unwrap()
}

const MLP: &str = "mnist_mlp --dim batch=4 --dim hidden1=16";
const BERT: &str = "bert --preset tiny --dim batch=2 --dim seq=16 --dim layers=1 --dim vocab=64";

#[test]
fn a_step_is_one_launch_compiled_for_the_host() {
    for model in [MLP, BERT] {
        let [recorded, ordinary] = ["", "none"].map(|graphs| benched(graphs, model));
        for (bench, graph) in [(&recorded, true), (&ordinary, false)] {
            assert_eq!(bench["graph"], graph, "{model}: {bench}");
            assert_eq!(bench["notes"].as_array().unwrap().len(), 0, "{model}: {bench}");
            assert!(bench["kernels"].as_array().unwrap().len() > 5, "{model}: {bench}");
        }
        let host = |bench: &serde_json::Value| bench["host_ms"].as_f64().unwrap();
        report(&format!("{model}: {:.3} ms of the host, {:.3} recorded", host(&ordinary), host(&recorded)));
        assert!(host(&recorded) * 5.0 < host(&ordinary), "{recorded} {ordinary}");
    }
}

/// Makes images dark: no bytes of them are a number that is not finite, whatever memory they are left in.
fn darken(data: &Path) {
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
