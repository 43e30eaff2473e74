//! Devices that fail: every other ends too, soon, and the error says where it began.

use super::plans::Builder;
use super::{cluster, no_inputs, on_one_thread};
use meshwright_comm::{CommError, FaultInjector, InjectedFault, Timeouts, Transport, World};
use meshwright_exec::{Cluster, ClusterOptions, DeviceKind, Engine, ExecError, LocalInput, Provider};
use meshwright_plan::expr::BinaryFn;
use meshwright_plan::{Axis, DType, Mesh, Monoid, Plan, Prim, ProgramInputKind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// `y = sum(x) over all devices`, then added to `x`, three times over.
fn sums(mesh: &Mesh) -> Plan {
    let mut b = Builder::new(mesh);
    let n = b.dim("n", 4);
    let x = b.whole(DType::F32, &[n]);
    b.leaf(ProgramInputKind::Param, "x", &x);
    let mut last = x;
    for k in 0..3 {
        let sum = b.all_reduce(&format!("sum{k}"), Monoid::Sum, &[Axis(0)], &[&last]).remove(0);
        let next = b.like(&last);
        b.map(&format!("next{k}"), &[&sum], &next, |e, r| {
            let c = e.constant(0.25, DType::F32);
            e.binary(BinaryFn::Mul, r[0], c)
        });
        last = next;
    }
    b.next("x", &last);
    b.output("y", &last);
    b.finish()
}

fn injector(mesh: &Mesh, rank: usize, at: u64, fault: InjectedFault, options: &ClusterOptions) -> Cluster {
    let timeouts = Timeouts::all(Duration::from_millis(500));
    let ends = World::new(mesh.devices(), timeouts).into_iter().map(|t| -> Box<dyn Transport> {
        if t.rank() == rank {
            Box::new(FaultInjector::new(t).with_fault(at, fault.clone()))
        } else {
            Box::new(t)
        }
    });
    Cluster::with_transports(mesh, ends.collect(), options).unwrap()
}

/// Loads and runs until the fault strikes; gives the error.
fn strike(rank: usize, fault: InjectedFault, options: &ClusterOptions) -> ExecError {
    let mesh = Mesh::new([("a", 4)]);
    // Calls: two to compare the hash of the plan, three in each step; the fault is in the second of step 2.
    let mut cluster = injector(&mesh, rank, 2 + 3 + 1, fault, options);
    let begin = Instant::now();
    let program = cluster.load(Arc::new(sums(&mesh))).unwrap();
    cluster.init_state(program, 1).unwrap();
    cluster.run(program, 1, &no_inputs()).unwrap();
    let error = cluster.run(program, 2, &no_inputs()).unwrap_err();
    let again = cluster.run(program, 3, &no_inputs()).unwrap_err();
    assert!(matches!(again, ExecError::Broken { .. }), "{again}");
    cluster.shutdown();
    assert!(begin.elapsed() < Duration::from_secs(40), "it took {:?}", begin.elapsed());
    error
}

#[test]
fn a_device_that_fails_or_panics_in_a_collective_ends_all() {
    for fault in [InjectedFault::Fail, InjectedFault::Panic] {
        let error = strike(2, fault.clone(), &ClusterOptions::on(meshwright_cpu::device()));
        let text = error.to_string();
        for part in ["rank 2", "step 2", "all_reduce of `sum1` at line 12"] {
            assert!(text.contains(part), "{fault:?}: {text}");
        }
        assert_eq!(fault == InjectedFault::Panic, matches!(error, ExecError::Panicked { .. }), "{text}");
    }
}

#[test]
fn a_device_that_stalls_is_named() {
    let error = strike(
        3,
        InjectedFault::Stall(Duration::from_millis(1500)),
        &ClusterOptions::on(meshwright_cpu::device()),
    );
    let ExecError::Comm { source: CommError::Timeout { missing, .. }, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(missing.iter().map(|m| m.rank).collect::<Vec<_>>(), [3]);
    assert!(error.to_string().contains("`sum1`"), "{error}");
}

/// One that is stuck for good, as in a kernel that never ends: nobody waits for it, neither for its answer nor for its end.
#[test]
fn a_device_that_never_ends_is_left_behind() {
    let options = ClusterOptions {
        timeouts: Timeouts::all(Duration::from_millis(300)),
        ..ClusterOptions::on(meshwright_cpu::device())
    };
    let error = strike(3, InjectedFault::Stall(Duration::from_secs(60)), &options);
    let ExecError::Comm { source: CommError::Timeout { missing, .. }, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(missing.iter().map(|m| m.rank).collect::<Vec<_>>(), [3]);
}

#[test]
fn of_devices_that_wait_for_each_other_the_stuck_one_is_named() {
    // Sums over columns, then over rows, of a 2x2 mesh. Rank 3 is stuck in the first; rank 1, which is late itself, waits
    // for it there, and rank 0 has begun to wait for rank 1 in the second.
    let mesh = Mesh::new([("r", 2), ("c", 2)]);
    let mut b = Builder::new(&mesh);
    let n = b.dim("n", 4);
    let x = b.whole(DType::F32, &[n]);
    b.leaf(ProgramInputKind::Param, "x", &x);
    let first = b.all_reduce("first", Monoid::Sum, &[Axis(0)], &[&x]).remove(0);
    let second = b.all_reduce("second", Monoid::Sum, &[Axis(1)], &[&first]).remove(0);
    b.output("y", &second);
    let timeouts = Timeouts::all(Duration::from_millis(400));
    let ends = World::new(4, timeouts).into_iter().map(|t| -> Box<dyn Transport> {
        let late = [0, 200, 0, 1000][t.rank()];
        Box::new(FaultInjector::new(t).with_fault(2, InjectedFault::Stall(Duration::from_millis(late))))
    });
    let mut cluster =
        Cluster::with_transports(&mesh, ends.collect(), &ClusterOptions::on(meshwright_cpu::device()))
            .unwrap();
    let program = cluster.load(Arc::new(b.finish())).unwrap();
    cluster.init_state(program, 1).unwrap();
    let error = cluster.run(program, 1, &no_inputs()).unwrap_err();
    let ExecError::Comm { source: CommError::Timeout { stuck, .. }, .. } = &error else { panic!("{error}") };
    assert_eq!(stuck.iter().map(|m| m.rank).collect::<Vec<_>>(), [3], "{error}");
}

#[test]
fn a_provider_that_fails_or_panics_ends_all() {
    let mesh = Mesh::new([("a", 4)]);
    for panics in [false, true] {
        let mut cluster = cluster(&mesh);
        let program = cluster.load(Arc::new(sums(&mesh))).unwrap();
        cluster.init_state(program, 1).unwrap();
        let provider: Provider = Arc::new(move |rank: usize, _: &[LocalInput]| match rank {
            1 if panics => panic!("no such file"),
            1 => Err("no such file".into()),
            _ => Ok(vec![]),
        });
        let error = cluster.run(program, 1, &provider).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("rank 1") && text.contains("no such file"), "{text}");
    }
}

#[test]
fn a_value_that_no_kernel_takes_is_an_error_with_its_line() {
    let mesh = Mesh::new([("a", 2)]);
    let mut b = Builder::new(&mesh);
    let (n, m) = (b.dim("n", 4), b.dim("m", 4));
    let x = b.split(DType::F32, &[(n, &[Axis(0)])]);
    let y = b.whole(DType::F32, &[n]);
    let z = b.whole(DType::F32, &[m]);
    b.leaf(ProgramInputKind::Param, "x", &x);
    let mut misaligned = Builder { plan: b.plan.clone() };
    misaligned.map("y", &[&x], &y, |_, r| r[0]);
    misaligned.output("y", &y);
    let mut missing = Builder { plan: b.plan.clone() };
    missing.step("z", Prim::Reduce { monoid: Monoid::Sum }, &[&x], &[&z]);
    missing.output("z", &z);
    for (builder, value) in [(misaligned, "y"), (missing, "z")] {
        let mut cluster = cluster(&mesh);
        let error = cluster.load(Arc::new(builder.finish())).unwrap_err();
        assert!(matches!(error, ExecError::Plan { .. }), "{error}");
        assert!(error.to_string().contains(&format!("`{value}` at line 10")), "{error}");
    }
}

#[test]
fn a_plan_that_reads_what_has_ended_is_refused() {
    let mesh = Mesh::new([("a", 2)]);
    let good = sums(&mesh);
    let mut dead = good.clone();
    let buf = dead.program_inputs[0].buf;
    dead.steps[0].free.push(buf);
    let mut twice = good.clone();
    twice.steps[2] = twice.steps[0].clone();
    for plan in [dead, twice] {
        assert!(matches!(cluster(&mesh).load(Arc::new(plan)), Err(ExecError::Plan { .. })));
    }
}

#[test]
fn devices_with_different_plans_notice() {
    let mesh = Mesh::new([("a", 3)]);
    let ends = World::new(3, Timeouts::for_tests());
    let loads = ends.into_iter().map(|end| {
        let mut plan = sums(&mesh);
        if end.rank() == 1 {
            plan.model = "another".into();
        }
        std::thread::spawn(move || on_one_thread(end).load(Arc::new(plan)).map(|_| ()))
    });
    for load in loads.collect::<Vec<_>>() {
        let error = load.join().unwrap().unwrap_err();
        let text = error.to_string();
        assert!(text.contains("plan differs on rank 1"), "{text}");
    }
}

/// Of a GPU that nobody else waits for, as of one that is lost.
#[test]
fn a_gpu_that_does_not_answer_is_an_error_in_time() {
    let on = |device: DeviceKind| {
        let timeouts = Timeouts::all(Duration::from_millis(200));
        Cluster::threads(&Mesh::default(), &ClusterOptions { timeouts, ..ClusterOptions::on(device) })
            .unwrap()
    };
    let slow = |engine: &mut Engine| {
        std::thread::sleep(Duration::from_millis(600));
        Ok(engine.rank())
    };
    assert_eq!(on(crate::device()).on_one(0, slow).unwrap(), 0, "threads have time");
    let cluster = on(DeviceKind::gpu(crate::HostPlatform::Operations, 0));
    assert_eq!(cluster.on_one(0, |engine| Ok(engine.rank())).unwrap(), 0);
    let begin = Instant::now();
    let error = cluster.on_one(0, |_| {
        std::thread::sleep(Duration::from_secs(60));
        Ok(())
    });
    let error = error.unwrap_err();
    assert!(error.to_string().starts_with("rank 0 has not ended what it does after 0 s"), "{error}");
    assert!(matches!(cluster.on_one(0, |_| Ok(())), Err(ExecError::Gone { rank: 0 })));
    drop(cluster);
    assert!(begin.elapsed() < Duration::from_secs(50), "{:?}", begin.elapsed());
}

#[test]
fn ranks_have_gpus_of_their_own_or_go_round() {
    let of =
        |local, gpus| DeviceKind::gpu(crate::HostPlatform::Operations, 1).of_rank(local, gpus).gpu_number();
    assert_eq!([of(0, None), of(2, None)], [1, 3].map(Some));
    assert_eq!([of(0, Some(2)), of(1, Some(2)), of(2, Some(2))], [1, 0, 1].map(Some));
    assert_eq!(crate::device().of_rank(3, Some(1)).gpu_number(), None);
}
