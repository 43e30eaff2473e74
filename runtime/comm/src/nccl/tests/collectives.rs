//! Collectives on the memory of GPUs. (Every collective, dtype and fold: the suite of transports in `tests/`.)

use super::{on_gpus, options, tag, world};
use crate::TransportMemory;
use crate::bench::{self, BenchJob, kinds};
use crate::nccl::NcclTransport;
use crate::{Collectives, Timeouts, Transport};
use meshwright_plan::{DType, Monoid};

#[test]
fn sums_of_two_gpus() {
    let got = on_gpus(2, &options(Timeouts::for_tests()), |mut t| {
        let mut memory = t.memory(3, DType::F32).unwrap();
        let mine: Vec<u8> = [1.0f32, 2.0, t.rank() as f32].iter().flat_map(|x| x.to_ne_bytes()).collect();
        memory.write(&mine).unwrap();
        let group = world(&t);
        t.all_reduce(&group, &tag(1), Monoid::Sum, [memory.buf_mut()]).unwrap();
        let mut bytes = [0; 12];
        memory.read(&mut bytes).unwrap();
        bytes
    });
    let want: Vec<u8> = [2.0f32, 4.0, 1.0].iter().flat_map(|x| x.to_ne_bytes()).collect();
    assert!(got.iter().all(|g| g[..] == want[..]), "{got:?}");
}

#[test]
fn the_benchmark_runs_on_the_memory_of_gpus() {
    let gpus = [super::fake::gpus(2), super::fake::gpus(1)];
    let ends = NcclTransport::of_process(&gpus, &options(Timeouts::for_tests())).unwrap();
    let job = |kind| BenchJob {
        kind,
        monoid: Monoid::Sum,
        dtype: DType::F32,
        bytes: 4096,
        warmup: 1,
        iterations: 3,
        checks: 1,
    };
    let jobs: Vec<BenchJob> = kinds().map(job).collect();
    let mut found = Vec::new();
    bench::run(ends, &jobs, |m| {
        found.push((m.job.kind, m.wrong));
        true
    })
    .unwrap();
    assert_eq!(found, kinds().map(|kind| (kind, Some(0))).collect::<Vec<_>>());
}
