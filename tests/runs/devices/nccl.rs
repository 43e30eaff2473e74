//! The suite of transports on NCCL: on the stand-in for it, on the GPUs of one process and of several.

#[path = "../../fake-nccl/built.rs"]
pub(crate) mod built;

use meshwright_comm::nccl::{Checks, LaunchOrder, NcclOptions, NcclTransport, Staged};
use meshwright_comm::{ThreadsTransport, Timeouts, Transport, World};
use meshwright_gpu::load::Paths;
use meshwright_plan::{Axis, Mesh};
use meshwright_tests::transports::{NO_SKIPS, Outcome, SuiteSettings, run};
use std::time::Duration;

/// `prepared`: communicators are split from the world's beforehand, as a training does it; otherwise each is made at its
/// first use.
fn suite(gpus: std::ops::Range<u32>, launch_order: LaunchOrder, checks: Checks, prepared: Option<&Mesh>) {
    let timeouts = Timeouts::all(Duration::from_secs(30));
    let paths = Paths::all(built::library());
    let options = NcclOptions { paths, launch_order, checks, timeouts };
    // NCCL rounds half types after each addition, as its stand-in does.
    let settings =
        SuiteSettings { exact: true, rounds_each: true, pause: Duration::from_micros(100), skips: NO_SKIPS };
    let outcomes: Vec<Vec<Outcome>> = std::thread::scope(|scope| {
        let options = &options;
        let start = |(end, gpu): (ThreadsTransport, u32)| {
            scope.spawn(move || {
                let mut transport = Staged(NcclTransport::new(Box::new(end), gpu, options).unwrap());
                assert_eq!(transport.0.launch_order(), launch_order);
                if let Some(mesh) = prepared {
                    let (r, c) = (Axis(0), Axis(1));
                    transport.prepare(mesh, &[vec![r], vec![c], vec![r, c], vec![c, r]]).unwrap();
                }
                if checks != Checks::FirstStep {
                    // From here on the host does not wait.
                    transport.first_step_done();
                }
                run(&mut transport, settings)
            })
        };
        let ends = World::new(gpus.len(), timeouts);
        let devices: Vec<_> = ends.into_iter().zip(gpus).map(start).collect();
        devices.into_iter().map(|d| d.join().unwrap()).collect()
    });
    for (rank, outcomes) in outcomes.iter().enumerate() {
        let failed: Vec<_> = outcomes.iter().filter(|(_, result)| result.is_err()).collect();
        assert!(failed.is_empty(), "rank {rank}: {failed:?}");
        assert!(outcomes.len() > 300, "rank {rank}: {} cases", outcomes.len());
    }
}

#[test]
fn four_gpus_of_a_process_pass_the_suite() {
    suite(0..4, LaunchOrder::Events, Checks::Always, Some(&Mesh::new([("r", 2), ("c", 2)])));
}

#[test]
fn three_gpus_pass_it_while_the_host_waits() {
    suite(4..7, LaunchOrder::HostSync, Checks::FirstStep, None);
}

#[test]
fn three_gpus_pass_it_unchecked() {
    suite(7..10, LaunchOrder::Events, Checks::Never, None);
}

/// What processes print that `mpirun` starts, on the stand-in.
#[cfg(feature = "mpi")]
fn processes(n: &str, args: &[&str]) -> String {
    let fake = built::library();
    let mut mpirun = std::process::Command::new("mpirun");
    mpirun
        .args(["-n", n, "--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"])
        .arg(env!("CARGO_BIN_EXE_meshwright-under-test"))
        .args(args)
        .env("MESHWRIGHT_CUDA", fake)
        .env("MESHWRIGHT_NCCL", fake);
    let output = mpirun.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    out
}

/// The suite on four GPUs of several processes.
#[cfg(feature = "mpi")]
fn suite_of_processes(n: &str, devices: &[&str]) {
    let out = processes(n, &[&["transport-suite", "nccl", "--timeout-ms", "60000"], devices].concat());
    assert_eq!(out.matches(" cases, 0 failed").count(), 4, "{out}");
}

#[cfg(feature = "mpi")]
#[test]
fn a_process_for_each_gpu_passes_the_suite() {
    suite_of_processes("4", &[]);
}

#[cfg(feature = "mpi")]
#[test]
fn processes_of_two_gpus_each_pass_the_suite() {
    suite_of_processes("2", &["--devices", "2"]);
}

/// Each process times its GPU, the first one tells.
#[cfg(feature = "mpi")]
#[test]
fn collectives_between_processes_are_timed() {
    for dtype in ["bf16", "f16"] {
        let what = ["bench", "collectives", "--transport", "nccl", "--op", "all", "--dtype", dtype];
        let how = ["--min", "4KiB", "--max", "4KiB", "--iters", "3", "--warmup", "1", "--format", "json"];
        let out = processes("3", &[&what[..], &how].concat());
        let lines: Vec<serde_json::Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!((&lines[0]["transport"], &lines[0]["devices"]), (&"nccl".into(), &3.into()), "{out}");
        assert_eq!(lines.len(), 7, "{out}");
        assert!(lines[1..].iter().all(|l| l["wrong"] == 0 && l["type"] == dtype), "{out}");
    }
}
