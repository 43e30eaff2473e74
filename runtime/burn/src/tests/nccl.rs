//! Devices that give a transport their own memory: through the stand-in for NCCL, which takes the host's memory for that of
//! GPUs.

#[path = "../../../../tests/fake-nccl/built.rs"]
mod built;

use super::training::train_on;
use meshwright_comm::nccl::{LaunchOrder, NcclOptions, NcclTransport};
use meshwright_comm::{Timeouts, Transport};
use meshwright_exec::{Cluster, ClusterOptions};
use meshwright_gpu::load::Paths;
use meshwright_plan::{Axis, Mesh};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::time::Duration;

/// The stand-in, told that the host's memory is a GPU's.
pub(super) fn library() -> &'static Path {
    #[expect(unsafe_code, reason = "calls the stand-in")]
    // SAFETY: a library of ours, and a function without arguments; it stays loaded
    // until the process ends.
    unsafe {
        let library = ManuallyDrop::new(libloading::Library::new(built::library()).unwrap());
        library.get::<extern "C" fn()>(b"fakeTakesHostMemory").unwrap()();
    }
    built::library()
}

/// The stand-in's sums may have another order than those of threads, so the last bits may differ.
#[test]
fn what_devices_send_from_their_own_memory_is_what_they_send_through_the_host() {
    let timeouts = Timeouts::all(Duration::from_secs(20));
    let device = crate::device();
    let options = ClusterOptions { cores: Some(2), timeouts, ..ClusterOptions::on(device) };
    // What computes here is the host, which does not wait in the order of a GPU.
    let nccl = NcclOptions {
        paths: Paths::all(library()),
        launch_order: LaunchOrder::HostSync,
        timeouts,
        ..NcclOptions::default()
    };
    let mesh = Mesh::new([("r", 2), ("c", 2)]);
    let (r, c) = (Axis(0), Axis(1));
    let placements: [(&[Axis], &[Axis]); 3] = [(&[r], &[c]), (&[r, c], &[]), (&[], &[c, r])];
    for (batch, hidden) in placements {
        let host = train_on(Cluster::threads(&mesh, &options).unwrap(), &mesh, batch, hidden, 7);
        let ends = NcclTransport::of_process(&[0, 1, 2, 3], &nccl).unwrap();
        let ends: Vec<Box<dyn Transport>> = ends.into_iter().map(|e| Box::new(e) as _).collect();
        let cluster = Cluster::with_transports(&mesh, ends, &options).unwrap();
        let direct = train_on(cluster, &mesh, batch, hidden, 7);
        for (a, b) in direct.0.iter().zip(&host.0) {
            assert!(
                (a - b).abs() <= 1e-12 * b.abs(),
                "{batch:?} {hidden:?}: {:?} are not {:?}",
                direct.0,
                host.0
            );
        }
        for (name, value) in &host.1 {
            super::close(&direct.1[name], value, 1e-12, name);
        }
    }
}

#[test]
fn what_the_transport_does_otherwise_is_told() {
    let nccl = NcclOptions {
        paths: Paths::all(library()),
        timeouts: Timeouts::all(Duration::from_secs(20)),
        ..NcclOptions::default()
    };
    let notes = |gpus: &[u32]| {
        let ends = NcclTransport::of_process(gpus, &nccl).unwrap();
        let ends = ends.into_iter().map(|e| Box::new(e) as Box<dyn Transport>).collect();
        let mesh = Mesh::new([("r", 2)]);
        Cluster::with_transports(&mesh, ends, &ClusterOptions::on(meshwright_cpu::device()))
            .unwrap()
            .notes()
            .unwrap()
    };
    assert_eq!(notes(&[8, 9]), Vec::<String>::new());
    let shared = notes(&[10, 10]);
    assert!(shared.len() == 1 && shared[0].contains("share a GPU"), "{shared:?}");
}
