//! Pipelines on GPUs, through the CUDA engine itself on the stand-in for the driver and for NCCL, which interprets the kernels:
//! messages over links with streams of their own, received ahead, launched one by one and recorded.

#[cfg(feature = "mpi")]
use crate::devices::gpu::dry_run::two_record;
use crate::devices::gpu::dry_run::{libraries, losses, on_stand_in, report};
use crate::devices::nccl::built;
use crate::support::command;

/// Stages, with the microbatches of a training step.
const PIPELINED: &str = "train gpt --preset tiny --data king_james_next --no-eval --dim batch=2 --dim seq=8 --dim d_ff=16 \
                         --dim d_head=8 --dim heads=1 --peak-flops 1e12 --no-save --format json --mesh";

/// GPUs of one process, each a stage: their losses are those of threads. Other schedules have processes, below.
#[test]
fn stages_on_gpus_train_compiled_for_the_host() {
    let libraries = libraries();
    for (mesh, layers, layout) in [
        ("pipe=2", "layers=2", "layers -> pipe; microbatches 2; schedule gpipe"),
        ("pipe=3", "layers=3", "layers -> pipe; microbatches 2; schedule 1f1b"),
    ] {
        let args =
            PIPELINED.split_whitespace().chain([mesh, "--steps", "4", "--dim", layers, "--layout", layout]);
        let args: Vec<&str> = args.collect();
        let native = losses(command(&[&args[..], &["--device", "cpu"]].concat()));
        let args = [&args[..], &["--device", "cuda"]].concat();
        let mut command = on_stand_in(libraries.path(), "dry_run_computed", &args);
        command.envs([("FAKE_CUDA_KERNELS", "run"), ("FAKE_CUDA_MEMORY", "1"), ("FAKE_NCCL_GPUS", "3")]);
        // Of several GPUs in a process nothing is recorded.
        command.env("MESHWRIGHT_GRAPHS", "none");
        // The file in which CubeCL keeps its choices does not bear three devices that write it for the first time.
        command.env("MESHWRIGHT_CACHE", "").env("MESHWRIGHT_NCCL", built::library());
        let gpus = losses(command);
        let apart = native.iter().zip(&gpus).map(|(a, b)| (a - b).abs() / a.abs()).fold(0.0, f64::max);
        report(&format!("{layout}: losses differ by {apart:.1e}"));
        assert!(apart <= 2e-6 && native.len() == gpus.len(), "{layout}: {native:?} {gpus:?}");
    }
}

/// One recording a rank, with its messages in it.
#[cfg(feature = "mpi")]
#[test]
fn two_gpus_record_a_pipeline_compiled_for_the_host() {
    for layout in
        ["layers -> pipe; microbatches 2; schedule zb_h1", "layers -> pipe; microbatches 2; chunks 2"]
    {
        let args = PIPELINED.split(" --peak-flops").next().unwrap_or_default();
        let mut args: Vec<&str> = args.split_whitespace().collect();
        args.extend(["--dim", "layers=4", "--steps", "7", "--mesh", "pipe=2", "--layout", layout]);
        // A state may have its last address in the first rehearsal.
        two_record(&args, 2e-6, &[1, 2]);
    }
}
