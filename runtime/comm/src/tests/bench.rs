//! The benchmark: that it counts wrong elements, and what it derives from times.

use super::millis;
use crate::bench::{
    BenchGroups, BenchJob, DTYPES, MONOIDS, Measured, kinds, run, run_end, run_end_over, run_over, sizes,
};
use crate::{CollectiveKind, CommError, FaultInjector, InjectedFault, Timeouts, Transport, World};
use meshwright_plan::{DType, Mesh, Monoid};

fn job(kind: CollectiveKind, monoid: Monoid, dtype: DType, bytes: usize) -> BenchJob {
    BenchJob { kind, monoid, dtype, bytes, warmup: 1, iterations: 3, checks: 2 }
}

fn measured(members: usize, jobs: &[BenchJob]) -> Vec<Measured> {
    let mut out = Vec::new();
    run(World::new(members, Timeouts::for_tests()), jobs, |m| {
        out.push(m);
        true
    })
    .unwrap();
    out
}

#[test]
fn every_collective_type_and_fold_is_right_in_every_element() {
    let mut jobs = Vec::new();
    for kind in kinds() {
        for dtype in DTYPES {
            for monoid in MONOIDS {
                jobs.push(job(kind, monoid, dtype, 70_001));
            }
        }
    }
    jobs.retain(|j| j.problem().is_none());
    assert_eq!(jobs.len(), 6 * DTYPES.len() * 3 - 2, "all but sums of u8");
    for members in [1, 3, 4] {
        let found = measured(members, &jobs);
        assert_eq!(found.iter().map(|m| m.job).collect::<Vec<_>>(), jobs, "in the order of the jobs");
        for m in found {
            assert_eq!((m.members, m.wrong), (members, Some(0)), "{:?}", m.job);
            assert!(m.least <= m.median, "{m:?}");
            let most = 70_001 / m.job.dtype.bytes();
            assert!(m.elements <= most && m.elements + members > most, "{m:?}");
        }
    }
}

#[test]
fn a_corrupted_result_is_counted_on_the_device_that_has_it() {
    for kind in kinds() {
        // One warm-up, three timed calls: the fifth and the sixth are checked. The bit stays wrong only in its own check.
        for (at, wrong) in [(3, 0), (4, 1), (5, 1)] {
            let ends = World::new(3, Timeouts::for_tests()).into_iter().map(|t| match t.rank() {
                1 => FaultInjector::new(t).with_fault(at, InjectedFault::Corrupt),
                _ => FaultInjector::new(t),
            });
            let mut found = None;
            let one = [job(kind, Monoid::Sum, DType::F32, 4096)];
            run(ends.collect(), &one, |m| {
                found = m.wrong;
                true
            })
            .unwrap();
            assert_eq!(found, Some(wrong), "{kind:?}, call {at}");
        }
    }
}

#[test]
fn bus_bandwidth_is_algorithm_bandwidth_times_the_factor() {
    for kind in kinds() {
        let [m] = measured(4, &[job(kind, Monoid::Sum, DType::F64, 1 << 16)])[..] else { panic!() };
        assert!(m.algorithm_bandwidth() > 0.0);
        assert_eq!(m.algorithm_bandwidth(), m.bytes() as f64 / m.median.as_secs_f64());
        assert_eq!(m.bus_bandwidth(), m.algorithm_bandwidth() * kind.bus_factor().of(4));
    }
    let factors: Vec<f64> = kinds().map(|kind| kind.bus_factor().of(4)).collect();
    assert_eq!(factors, [1.5, 0.75, 0.75, 0.75, 1.0, 1.0]);
    assert_eq!(CollectiveKind::AllReduce.bus_factor().of(1), 0.0);
}

/// Groups over the inner axis, over the outer one and over both, as threads and as ends of their own.
#[test]
fn groups_side_by_side_are_measured_each_by_itself() {
    let mesh = Mesh::new([("a", 2), ("b", 3)]);
    let [a, b] = ["a", "b"].map(|name| mesh.find(name).unwrap());
    let jobs: Vec<BenchJob> = kinds().map(|kind| job(kind, Monoid::Sum, DType::F32, 4096)).collect();
    for (axes, members) in [(vec![b], 3), (vec![a], 2), (vec![a, b], 6)] {
        let groups = BenchGroups::over(mesh.clone(), axes);
        let mut found = vec![];
        run_over(World::new(6, Timeouts::for_tests()), &groups, &jobs, |m| {
            found.push(m);
            true
        })
        .unwrap();
        let apart = super::on_all(6, Timeouts::for_tests(), |mut t| {
            let mut found = vec![];
            run_end_over(&mut t, &groups, &jobs, |m| {
                found.push(m);
                true
            })
            .map(|()| found)
        });
        let apart = apart.into_iter().flat_map(Result::unwrap);
        for m in found.into_iter().chain(apart) {
            assert_eq!((m.members, m.groups, m.wrong), (members, 6 / members, Some(0)), "{:?}", m.job);
        }
    }
}

#[test]
fn sizes_grow_by_the_factor() {
    assert_eq!(sizes(4096, 65536, 4), [4096, 16384, 65536]);
    assert_eq!(sizes(3, 20, 2), [3, 6, 12]);
    assert_eq!(sizes(8, 4, 2), [0usize; 0]);
    assert_eq!(sizes(usize::MAX, usize::MAX, 2), [usize::MAX]);
}

#[test]
fn a_device_that_fails_ends_the_benchmark_with_its_error() {
    let ends = World::new(3, Timeouts::all(millis(2000))).into_iter().map(|t| match t.rank() {
        2 => FaultInjector::new(t).with_fault(2, InjectedFault::Fail),
        _ => FaultInjector::new(t),
    });
    let jobs = [job(CollectiveKind::AllReduce, Monoid::Sum, DType::F32, 64); 3];
    let error = run(ends.collect(), &jobs, |_| true).unwrap_err();
    assert!(matches!(error, CommError::Injected { rank: 2, .. }), "{error}");
}

#[test]
fn whoever_has_heard_enough_hears_no_more() {
    let jobs = [job(CollectiveKind::Broadcast, Monoid::Sum, DType::F32, 1 << 20); 50];
    let mut heard = 0;
    run(World::new(2, Timeouts::for_tests()), &jobs, |_| {
        heard += 1;
        heard < 2
    })
    .unwrap();
    assert_eq!(heard, 2);
}

#[test]
fn ends_measured_apart_give_what_a_world_gives() {
    let jobs = [
        job(CollectiveKind::AllReduce, Monoid::Sum, DType::F32, 4096),
        job(CollectiveKind::Permute, Monoid::Sum, DType::U8, 99),
    ];
    let found = super::on_all(3, Timeouts::for_tests(), |mut t| {
        let mut found = Vec::new();
        let rank = t.rank();
        run_end(&mut t, &jobs, |m| {
            found.push((m.job, m.members, m.elements, m.wrong, m.median > millis(0)));
            true
        })
        .unwrap();
        (rank, found)
    });
    let want: Vec<_> = jobs.iter().map(|j| (*j, 3, j.elements(3), Some(0), true)).collect();
    assert_eq!(found, [(0, want), (1, vec![]), (2, vec![])]);
}
