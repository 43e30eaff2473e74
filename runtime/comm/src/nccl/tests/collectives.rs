//! Every collective, dtype and fold, as the threads' tests call them, through the memory of GPUs.

use super::{on_gpus, options, tag, world};
use crate::Memory;
use crate::bench::{self, Job, KINDS};
use crate::nccl::{Checks, NcclOptions, NcclTransport, Ordering, Staged};
use crate::tests::collectives::every_case_on;
use crate::{Collectives, Timeouts, Transport};
use meshwright_plan::{Axis, DType, Mesh, Monoid};

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
    let job = |kind| Job {
        kind,
        monoid: Monoid::Sum,
        dtype: DType::F32,
        bytes: 4096,
        warmup: 1,
        iterations: 3,
        checks: 1,
    };
    let jobs = KINDS.map(job);
    let mut found = Vec::new();
    bench::run(ends, &jobs, |m| {
        found.push((m.job.kind, m.wrong));
        true
    })
    .unwrap();
    assert_eq!(found, KINDS.map(|kind| (kind, Some(0))));
}

fn every_case(mesh: &Mesh, options: &NcclOptions, prepared: bool) {
    on_gpus(mesh.devices(), options, |mut t| {
        if prepared {
            let sets = [vec![Axis(0)], vec![Axis(1)], vec![Axis(0), Axis(1)], vec![Axis(1), Axis(0)]];
            t.prepare(mesh, &sets).unwrap();
        }
        every_case_on(mesh, Staged(t));
    });
}

#[test]
fn all_collectives_on_2x2_ordered_by_events() {
    every_case(&Mesh::new([("r", 2), ("c", 2)]), &options(Timeouts::for_tests()), true);
}

#[test]
fn all_collectives_on_2x1_where_the_host_waits() {
    let options = NcclOptions { ordering: Ordering::HostSync, ..options(Timeouts::for_tests()) };
    every_case(&Mesh::new([("r", 2), ("c", 1)]), &options, false);
}

#[test]
fn all_collectives_on_1x3_unchecked() {
    let options = NcclOptions { checks: Checks::Never, ..options(Timeouts::for_tests()) };
    every_case(&Mesh::new([("r", 1), ("c", 3)]), &options, false);
}
