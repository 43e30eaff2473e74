//! Tests of the engine on hand-built Plans.
#![allow(clippy::unwrap_used, reason = "tests")]

mod arena;
mod caches;
mod collectives;
mod contract;
mod epilogues;
mod failures;
mod functions;
mod graphs;
mod nccl;
mod plans;
mod row_groups;
mod step_order;
mod steps;
mod training;
mod unstored_values;

use meshwright_comm::{Timeouts, Transport};
use meshwright_exec::{
    Cluster, ClusterOptions, DeviceKind, Engine, HostData, HostTensor, LocalInput, Provider,
};
use meshwright_gpu::load::Paths;
use meshwright_plan::{DType, Mesh};
use meshwright_sorted::SortedMap;
use std::sync::Arc;
use std::time::Duration;

/// What computes on the host.
#[derive(Clone, Copy, Debug, PartialEq)]
enum HostBackend {
    Native,
    Burn,
}

impl HostBackend {
    fn device(self) -> DeviceKind {
        match self {
            HostBackend::Native => meshwright_cpu::device(),
            HostBackend::Burn => crate::device(),
        }
    }
}

/// The engine of a thread at that end of a transport.
fn on_one_thread(end: impl Transport + 'static) -> Engine {
    Engine::on(&meshwright_cpu::device(), Box::new(end), &Paths::default()).unwrap()
}

/// Devices for a mesh, which wait for each other for two seconds.
fn cluster(mesh: &Mesh) -> Cluster {
    cluster_on(mesh, HostBackend::Native)
}

fn cluster_on(mesh: &Mesh, backend: HostBackend) -> Cluster {
    let timeouts = Timeouts::all(Duration::from_secs(2));
    let options = ClusterOptions { cores: Some(2), timeouts, ..ClusterOptions::on(backend.device()) };
    Cluster::threads(mesh, &options).unwrap()
}

/// Gives each device its part of whole tensors.
fn whole_inputs(values: SortedMap<String, HostTensor>) -> Provider {
    Arc::new(move |_rank: usize, needed: &[LocalInput]| {
        let part =
            |leaf: &LocalInput| values[&leaf.name].slice(&leaf.ranges).ok_or("out of range".to_string());
        needed.iter().map(part).collect()
    })
}

fn no_inputs() -> Provider {
    whole_inputs(SortedMap::new())
}

/// Numbers between -1 and 1 that look random.
fn noise(seed: u64, n: usize) -> Vec<f64> {
    let mut s = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        (s >> 11) as f64 / (1u64 << 53) as f64 * 2.0 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

fn tensor(dtype: DType, shape: &[usize], values: Vec<f64>) -> HostTensor {
    HostTensor::new(shape.to_vec(), HostData::from_f64(dtype, values)).unwrap()
}

fn noise_tensor(dtype: DType, shape: &[usize], seed: u64) -> HostTensor {
    tensor(dtype, shape, noise(seed, shape.iter().product()))
}

#[track_caller]
fn close(a: &HostTensor, b: &HostTensor, tolerance: f64, what: &str) {
    assert_eq!(a.shape, b.shape, "{what}");
    for (i, (x, y)) in a.data.to_f64().iter().zip(b.data.to_f64()).enumerate() {
        assert!((x - y).abs() <= tolerance * y.abs().max(1.0), "{what}: element {i}: {x} is not {y}");
    }
}
