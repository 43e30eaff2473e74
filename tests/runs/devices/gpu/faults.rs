//! GPUs that fail while a run is under way, through the CUDA engine itself on the stand-in for the driver: memory that is not
//! there, errors of kernels, and kernels that never end.

use crate::devices::gpu::dry_run::{darken, libraries, on_stand_in};
use crate::devices::nccl::built;
use crate::support::{SMALL, Said, folder, said};
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A folder with data, in which runs have a folder too.
struct Place {
    folder: TempDir,
    libraries: TempDir,
}

impl Place {
    fn new() -> Place {
        let place = Place { folder: folder(SMALL), libraries: libraries() };
        darken(&place.folder.path().join("data"));
        place
    }

    /// Trains up to a step, in a folder of that name, on a stand-in with these settings.
    fn train(&self, run: &str, steps: &str, more: &[&str], settings: &[(&str, &str)]) -> Said {
        let at = |name: &str| self.folder.path().join(name).display().to_string();
        let (data, run_dir) = (at("data"), at(run));
        let mut args: Vec<&str> =
            vec!["train", "mnist_mlp", "--data", &data, "--device", "cuda", "--steps", steps, "--no-eval"];
        args.extend("--dim batch=12 --dim rows=5 --dim cols=4 --dim hidden1=8 --dim hidden2=8".split(' '));
        args.extend(["--peak-flops", "1e12", "--run", &run_dir]);
        args.extend(more);
        let mut command = on_stand_in(self.libraries.path(), "dry_run", &args);
        command.env("MESHWRIGHT_CUBLASLT", "none").env("FAKE_CUDA_MEMORY", "8");
        command.env("MESHWRIGHT_NCCL", built::library());
        said(command.envs(settings.iter().copied()).output().unwrap())
    }

    /// The steps whose checkpoints are in the folder of a run.
    fn saved(&self, run: &str) -> Vec<String> {
        let found = std::fs::read_dir(self.folder.path().join(run).join("checkpoints")).unwrap();
        let names = found.map(|f| f.unwrap().file_name().into_string().unwrap());
        let mut steps: Vec<String> = names.filter(|n| n.ends_with(".json")).collect();
        steps.sort();
        steps
    }
}

/// What is said of a device that failed, by the exit code of the user's errors.
fn failed(said: Said) -> String {
    assert_eq!(said.code, Some(1), "{}{}", said.out, said.err);
    assert!(!said.err.contains("Backtrace"), "{}", said.err);
    said.err
}

/// Activations take most of the memory.
const DEEP: &str = r"
dim batch = 4000
dim features = 20, h1 = 200, h2 = 200, h3 = 200, classes = 10

layer dense(x, in, out) {
    param w[in, out] = normal(0, 1 / sqrt(size(in)))
    param b[out]     = 0
    return sum[in](x * w) + b
}

model deep {
    input x    [batch, features]: f32
    input label[batch]: i32 in classes
    let a      = relu(dense(x, [features], [h1]))
    let b      = relu(dense(a, [h1], [h2]))
    let c      = relu(dense(b, [h2], [h3]))
    let logits = dense(c, [h3], [classes])
    loss xent = mean[batch](cross_entropy[classes](logits, label))
}

train deep {
    minimize xent
    optimizer adam(lr = 1e-3)
}
";

/// Times a step of it.
fn benched(more: &[&str], settings: &[(&str, &str)]) -> Said {
    let (dir, libraries) = (tempfile::tempdir().unwrap(), libraries());
    let model = dir.path().join("deep.mw");
    std::fs::write(&model, DEEP).unwrap();
    let model = model.display().to_string();
    let args = ["bench", "model", &model, "--device", "cuda", "--steps", "1", "--warmup", "1"];
    let mut command = on_stand_in(libraries.path(), "dry_run", &[&args[..], more].concat());
    command.env("MESHWRIGHT_CUBLASLT", "none").env("FAKE_CUDA_MEMORY", "8");
    command.env("MESHWRIGHT_NCCL", built::library());
    said(command.envs(settings.iter().copied()).output().unwrap())
}

#[test]
fn memory_that_is_not_there_is_told_with_the_step_and_the_largest_values() {
    let err = failed(benched(&[], &[("FAKE_CUDA_LIMIT", "26000000")]));
    assert!(err.contains("error[E0401]: rank 0, step 1, ") && err.contains("at line "), "{err}");
    assert!(err.contains(" (plan step ") && err.contains("GPU 0 (0000:00:00.0) has no memory for "), "{err}");
    assert!(err.contains("the GPU has 8.00 GiB, ") && err.contains("this process has "), "{err}");
    assert!(err.contains(" values that are alive at this step, the largest are `a` 3.05 MiB"), "{err}");
    assert!(err.contains("the program `train` needs at most 13.7 MiB"), "{err}");
    assert!(err.contains("help: with this in the layout a device needs at most "), "{err}");
    assert!(err.contains(": `microbatches "), "{err}");
}

/// Nothing of it is a step's.
#[test]
fn memory_for_parameters_that_is_not_there_is_told_too() {
    let err = failed(benched(&["--dim", "h1=20000"], &[("FAKE_CUDA_LIMIT", "9000000")]));
    assert!(err.contains("error[E0401]: rank 0, step 1: GPU 0 (0000:00:00.0) has no memory for "), "{err}");
    assert!(err.contains("no step had run") && err.contains("alive at once, the largest are "), "{err}");
}

/// What was saved is still there, and the run goes on from it when there is memory again.
#[test]
fn a_run_without_memory_goes_on_from_its_checkpoint() {
    let place = Place::new();
    let began = place.train("a", "4", &[], &[]);
    assert_eq!(began.code, Some(0), "{}", began.err);
    let saved = place.saved("a");
    assert_eq!(saved.len(), 1, "{saved:?}");
    let err = failed(place.train("a", "8", &["--resume"], &[("FAKE_CUDA_LIMIT", "30000")]));
    assert!(err.contains("error[E0401]: rank 0, ") && err.contains("GPU 0"), "{err}");
    assert!(err.contains("continue from the newest checkpoint"), "{err}");
    assert_eq!(place.saved("a"), saved);
    let went_on = place.train("a", "8", &["--resume"], &[]);
    assert_eq!(went_on.code, Some(0), "{}", went_on.err);
}

/// The second of two GPUs: the first one ends too, at once.
#[test]
fn one_of_two_gpus_without_memory_ends_both() {
    let begun = Instant::now();
    let mesh = ["--mesh", "r=2", "--layout", "batch -> r", "--dim", "batch=8000"];
    let err = failed(benched(&mesh, &[("FAKE_CUDA_LIMIT", "26000000:gpu1"), ("FAKE_NCCL_GPUS", "2")]));
    assert!(err.contains("error[E0401]: rank 1, step 1, ") && err.contains("GPU 1 (0000:01:00.0)"), "{err}");
    assert!(err.contains("help: with this in the layout a device needs at most "), "{err}");
    assert!(begun.elapsed() < Duration::from_secs(200), "{:?}", begun.elapsed());
}

/// Each error of a GPU is named, with where it is, what NVML knows, and what to do.
#[test]
fn errors_of_gpus_are_told_with_what_nvml_knows() {
    let place = Place::new();
    let began = place.train("a", "2", &[], &[]);
    assert_eq!(began.code, Some(0), "{}", began.err);
    let fault = |code: &str, more: &[(&str, &str)]| {
        let at = format!("{code}:gpu0:kernel200");
        let settings = [&[("FAKE_CUDA_FAULT", at.as_str())], more].concat();
        failed(place.train("a", "90", &["--resume"], &settings))
    };
    let err = fault("700", &[("FAKE_NVML_XID", "31")]);
    assert!(err.contains("GPU 0 (0000:00:00.0) reported CUDA_ERROR_ILLEGAL_ADDRESS"), "{err}");
    assert!(err.contains("error[E0520]: rank 0, step "), "{err}");
    assert!(
        err.contains("the driver reported Xid 31, an access of a kernel to memory that is not mapped"),
        "{err}"
    );
    assert!(err.contains("this Xid is as a rule a bug of a program"), "{err}");
    assert!(err.contains("continue from the newest checkpoint"), "{err}");
    let memory = [("FAKE_NVML_ECC", "3"), ("FAKE_NVML_PENDING_ROWS", "1"), ("FAKE_NVML_XID", "48")];
    let err = fault("214", &memory);
    assert!(err.contains("reported CUDA_ERROR_ECC_UNCORRECTABLE"), "{err}");
    assert!(err.contains("3 uncorrected ECC errors since the driver was loaded, 5 in its life"), "{err}");
    assert!(err.contains("broken rows of its memory") && err.contains("nvidia-smi --gpu-reset"), "{err}");
    let err = fault("719", &[("FAKE_NVML_LOST", "1"), ("FAKE_NVML_XID", "79")]);
    assert!(err.contains("reported CUDA_ERROR_LAUNCH_FAILED") && err.contains("fallen off the bus"), "{err}");
    assert!(err.contains("NVML cannot reach the GPU") && err.contains("restart the machine"), "{err}");
    // A driver that tells nothing of it.
    let err = fault("46", &[("FAKE_NVML_OLD", "1"), ("FAKE_NVML_XID", "79")]);
    assert!(
        err.contains("reported CUDA_ERROR_DEVICE_UNAVAILABLE") && err.contains("dmesg | grep -i xid"),
        "{err}"
    );
    assert_eq!(place.saved("a").len(), 1);
}

/// No rank misses a GPU that is alone: its own time-out ends the run.
#[test]
fn a_kernel_that_never_ends_ends_the_run_in_time() {
    let place = Place::new();
    let began = place.train("a", "2", &[], &[]);
    assert_eq!(began.code, Some(0), "{}", began.err);
    let begun = Instant::now();
    let stall = [("FAKE_CUDA_FAULT", "stall:gpu0:kernel200"), ("FAKE_NVML_XID", "109")];
    let err = failed(place.train("a", "90", &["--resume", "--timeout", "1"], &stall));
    assert!(err.contains("rank 0 on GPU 0 (0000:00:00.0)"), "{err}");
    assert!(err.contains("has not ended what it does for step ") && err.contains("Xid 109"), "{err}");
    assert!(err.contains("continue from the newest checkpoint"), "{err}");
    assert!(begun.elapsed() < Duration::from_secs(200), "{:?}", begun.elapsed());
    assert_eq!(place.saved("a").len(), 1);
    assert!(Path::new(&place.folder.path().join("a/run.toml")).exists());
}
