//! Devices that fail in the middle of a training: the run ends soon, and says where.

use crate::support::{SMALL_DIMS, options};
use meshwright_comm::{FaultInjector, InjectedFault, Timeouts, Transport, World};
use meshwright_core::training_step;
use meshwright_exec::{Cluster, ClusterOptions, ExecError, HostTensor, LocalInput, Provider};
use meshwright_train::Project;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Trains `mlp` until the device `rank` meets a fault in its first collective of step 3.
fn strike(layout: &str, rank: usize, fault: &InjectedFault) -> ExecError {
    let dims = [SMALL_DIMS, &[("hidden", 11)]].concat();
    let loaded = Project::load(&options("mlp", "r=2,c=2", layout, &dims));
    let project = loaded.project.unwrap();
    let plan = project.compile(&training_step(&project.program).unwrap(), &loaded.sources).0.unwrap().plan;
    let calls = plan.steps.iter().filter(|s| s.collective().is_some()).count() as u64;
    let mesh = project.layout.mesh.clone();
    // Two calls compare the hash of the Plan before anything runs.
    let at = 2 + 2 * calls;
    // Who is stuck is missed soon; nobody else is, however busy the machine is.
    let stalls = matches!(fault, InjectedFault::Stall(_));
    let timeouts = Timeouts::all(Duration::from_millis(if stalls { 700 } else { 60_000 }));
    let ends = World::new(mesh.devices(), timeouts).into_iter().map(|t| -> Box<dyn Transport> {
        if t.rank() == rank {
            Box::new(FaultInjector::new(t).with_fault(at, fault.clone()))
        } else {
            Box::new(t)
        }
    });
    let mut cluster =
        Cluster::with_transports(&mesh, ends.collect(), &ClusterOptions::on(meshwright_cpu::device()))
            .unwrap();
    let id = cluster.load(Arc::new(plan)).unwrap();
    cluster.init_state(id, 1).unwrap();
    let zeros: Provider = Arc::new(|_, leaves: &[LocalInput]| {
        Ok(leaves.iter().map(|l| HostTensor::zeros(l.dtype, l.shape())).collect())
    });
    let begin = Instant::now();
    for step in 1..=2 {
        cluster.run(id, step, &zeros).unwrap();
    }
    let error = cluster.run(id, 3, &zeros).unwrap_err();
    assert!(cluster.run(id, 4, &zeros).is_err(), "it went on after {error}");
    cluster.shutdown();
    assert!(begin.elapsed() < Duration::from_secs(60), "it took {:?}", begin.elapsed());
    error
}

#[test]
fn a_device_that_fails_in_a_step_ends_the_run_with_rank_step_and_line() {
    for layout in ["batch -> r; hidden -> c", "batch -> r, c; params: rows -> c"] {
        for rank in 0..4 {
            for fault in [InjectedFault::Fail, InjectedFault::Panic] {
                let text = strike(layout, rank, &fault).to_string();
                for part in [format!("rank {rank}"), "step 3".into(), "at line ".into()] {
                    assert!(text.contains(&part), "{layout}: {fault:?} on {rank}: {text}");
                }
            }
        }
    }
}

#[test]
fn a_device_that_is_stuck_is_named() {
    // In a collective of all: where several wait in a row, each names the one before it.
    let text = strike("batch -> r, c", 3, &InjectedFault::Stall(Duration::from_secs(2))).to_string();
    assert!(text.contains("for rank 3") && text.contains("step 3") && text.contains("line "), "{text}");
}
