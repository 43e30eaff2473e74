//! A training step of a small network under several placements, and programs that share parameters.

use super::plans::Builder;
use super::{close, cluster, no_inputs, noise_tensor, on_one_thread, tensor, whole_inputs};
use meshwright_comm::{Timeouts, World};
use meshwright_exec::{Cluster, Engine, ExecError, HostData, HostTensor, Provider};
use meshwright_plan::expr::{BinaryFn, UnaryFn};
use meshwright_plan::{Axis, DType, Mesh, Monoid, Plan, Prim, ProgramInputKind};
use meshwright_sorted::SortedMap;
use std::sync::Arc;

const FLOAT: DType = DType::F64;

/// `logits = relu(x w1) w2`, mean cross-entropy, SGD with momentum on `w1`; `batch` and `hidden` split over axes.
fn network(mesh: &Mesh, batch: &[Axis], hidden: &[Axis], n: usize, train: bool) -> Plan {
    let mut b = Builder::new(mesh);
    let (db, di, dh, dc) = (b.dim("batch", n), b.dim("in", 6), b.dim("hidden", 5), b.dim("class", 4));
    let x = b.split(FLOAT, &[(db, batch), (di, &[])]);
    let label = b.split(DType::I32, &[(db, batch)]);
    let w1 = b.split(FLOAT, &[(di, &[]), (dh, hidden)]);
    let m1 = b.split(FLOAT, &[(di, &[]), (dh, hidden)]);
    let w2 = b.split(FLOAT, &[(dh, hidden), (dc, &[])]);
    b.leaf(ProgramInputKind::Input, "x", &x);
    b.leaf(ProgramInputKind::Input, "label", &label);
    b.leaf(ProgramInputKind::Param, "w1", &w1);
    b.leaf(ProgramInputKind::Param, "w2", &w2);

    let pre = b.split(FLOAT, &[(db, batch), (dh, hidden)]);
    b.contract("pre", &x, &w1, &pre);
    let h = b.like(&pre);
    b.map("h", &[&pre], &h, |e, r| e.unary(UnaryFn::Relu, r[0]));
    let partial = b.split(FLOAT, &[(db, batch), (dc, &[])]);
    b.contract("logits", &h, &w2, &partial);
    let logits = b.all_reduce("logits", Monoid::Sum, hidden, &[&partial]).remove(0);
    let each = b.split(FLOAT, &[(db, batch)]);
    b.step("losses", Prim::CrossEntropy { dim: dc }, &[&logits, &label], &[&each]);
    let sum = b.whole(FLOAT, &[]);
    b.reduce("loss", Monoid::Sum, &each, &sum);
    let sum = b.all_reduce("loss", Monoid::Sum, batch, &[&sum]).remove(0);
    let loss = b.whole(FLOAT, &[]);
    let mean = 1.0 / n as f64;
    b.map("loss", &[&sum], &loss, |e, r| {
        let c = e.constant(mean, FLOAT);
        e.binary(BinaryFn::Mul, r[0], c)
    });
    b.output("loss", &loss);
    if !train {
        b.plan.program = "eval".into();
        return b.finish();
    }
    b.leaf(ProgramInputKind::OptimizerState, "w1/m", &m1);

    let scale = b.whole(FLOAT, &[]);
    b.map("scale", &[], &scale, |e, _| e.constant(mean, FLOAT));
    let dlogits = b.like(&logits);
    b.step("d logits", Prim::CrossEntropyGrad { dim: dc }, &[&logits, &label, &scale], &[&dlogits]);
    let dw2 = b.like(&w2);
    b.contract("d w2", &h, &dlogits, &dw2);
    let dh_ = b.like(&h);
    b.contract("d h", &dlogits, &w2, &dh_);
    let dpre = b.like(&h);
    b.map("d pre", &[&dh_, &h], &dpre, |e, r| {
        let zero = e.constant(0.0, FLOAT);
        let c = e.binary(BinaryFn::Gt, r[1], zero);
        e.select(c, r[0], zero)
    });
    let dw1 = b.like(&w1);
    b.contract("d w1", &x, &dpre, &dw1);
    let sums = b.all_reduce("gradients", Monoid::Sum, batch, &[&dw1, &dw2]);
    let m1_next = b.like(&m1);
    b.map("w1/m", &[&m1, &sums[0]], &m1_next, |e, r| {
        let c = e.constant(0.9, FLOAT);
        let m = e.binary(BinaryFn::Mul, r[0], c);
        e.binary(BinaryFn::Add, m, r[1])
    });
    for (name, old, gradient) in [("w1", &w1, &m1_next), ("w2", &w2, &sums[1])] {
        let new = b.like(old);
        b.map(name, &[old, gradient], &new, |e, r| {
            let c = e.constant(0.5, FLOAT);
            let g = e.binary(BinaryFn::Mul, r[1], c);
            e.binary(BinaryFn::Sub, r[0], g)
        });
        b.next(name, &new);
    }
    b.next("w1/m", &m1_next);
    b.finish()
}

fn data(n: usize) -> Provider {
    let labels = (0..n).map(|i| ((i * 7 + 1) % 4) as f64).collect();
    whole_inputs(SortedMap::from([
        ("x".to_string(), noise_tensor(FLOAT, &[n, 6], 5)),
        ("label".to_string(), tensor(DType::I32, &[n], labels)),
    ]))
}

pub(super) type Result = (Vec<f64>, SortedMap<String, HostTensor>);

/// Losses of ten steps, and all parameters and moments after them.
fn train(mesh: &Mesh, batch: &[Axis], hidden: &[Axis], n: usize) -> Result {
    train_on(cluster(mesh), mesh, batch, hidden, n)
}

/// The same on devices that were started for the mesh.
pub(super) fn train_on(
    mut cluster: Cluster,
    mesh: &Mesh,
    batch: &[Axis],
    hidden: &[Axis],
    n: usize,
) -> Result {
    let program = cluster.load(Arc::new(network(mesh, batch, hidden, n, true))).unwrap();
    cluster.init_state(program, 42).unwrap();
    let data = data(n);
    let step = |s| cluster.run(program, s, &data).unwrap().outputs["loss"].scalar().unwrap();
    let losses = (1..=10).map(step).collect();
    let names: Vec<String> = cluster.states().map(|s| s.name.clone()).collect();
    let state = names.into_iter().map(|n| (n.clone(), cluster.state(&n).unwrap())).collect();
    (losses, state)
}

#[test]
fn every_placement_trains_alike() {
    let (r, c) = (Axis(0), Axis(1));
    let two = Mesh::new([("r", 2), ("c", 2)]);
    let wide = Mesh::new([("r", 4), ("c", 3)]);
    // Batches of 3 leave the last of four devices without an example.
    for n in [3, 7] {
        let (losses, state) = train(&Mesh::default(), &[], &[], n);
        assert!(losses[9] < 0.7 * losses[0], "it learns: {losses:?}");
        let placements: [(&Mesh, &[Axis], &[Axis]); 6] = [
            (&two, &[r], &[c]),
            (&two, &[r, c], &[]),
            (&two, &[], &[c, r]),
            (&two, &[], &[]),
            (&wide, &[r], &[c]),
            (&wide, &[c], &[r]),
        ];
        for (mesh, batch, hidden) in placements {
            let what = format!("{} batch {batch:?} hidden {hidden:?} n {n}", mesh.describe());
            let (found, there) = train(mesh, batch, hidden, n);
            for (a, b) in found.iter().zip(&losses) {
                assert!((a - b).abs() <= 1e-12 * b.abs(), "{what}: {found:?} are not {losses:?}");
            }
            assert_eq!(state.len(), 3);
            for (name, value) in &state {
                close(&there[name], value, 1e-12, &format!("{what}: {name}"));
            }
        }
    }
}

#[test]
fn a_rerun_is_bit_identical() {
    let mesh = Mesh::new([("r", 2), ("c", 2)]);
    let run = || train(&mesh, &[Axis(0)], &[Axis(1)], 7);
    assert_eq!(run(), run());
}

/// An engine of one device, without threads.
fn engine() -> Engine {
    on_one_thread(World::new(1, Timeouts::for_tests()).remove(0))
}

#[test]
fn parameters_and_moments_stay_where_they_are() {
    let mesh = Mesh::default();
    let mut engine = engine();
    let program = engine.load(Arc::new(network(&mesh, &[], &[], 7, true))).unwrap();
    engine.init_state(program, 1).unwrap();
    let data = data(7);
    let names = ["w1", "w1/m", "w2"];
    let addresses = |e: &Engine| names.map(|n| e.state_address(n).unwrap().unwrap());
    let (before, value) = (addresses(&engine), engine.state("w1").unwrap());
    for step in 1..=5 {
        let inputs = data(0, &engine.local_inputs(program).unwrap()).unwrap();
        engine.run(program, inputs, step).unwrap();
        assert_eq!(addresses(&engine), before, "step {step}");
    }
    assert_ne!(engine.state("w1").unwrap(), value);
}

#[test]
fn programs_share_parameters_by_name() {
    let mesh = Mesh::new([("r", 2), ("c", 2)]);
    let (r, c) = ([Axis(0)], [Axis(1)]);
    let mut cluster = cluster(&mesh);
    let train = cluster.load(Arc::new(network(&mesh, &r, &c, 7, true))).unwrap();
    let eval = cluster.load(Arc::new(network(&mesh, &r, &c, 7, false))).unwrap();
    // The remainder of a data set: two examples for two rows of devices, one of them empty-handed with one.
    let rest = cluster.load(Arc::new(network(&mesh, &r, &c, 1, false))).unwrap();
    let missing = cluster.run(eval, 1, &data(7));
    assert!(matches!(missing, Err(ExecError::State { .. })), "no values yet: {missing:?}");
    drop(cluster);

    let mut cluster = super::cluster(&mesh);
    for n in [(7, true), (7, false), (1, false)] {
        cluster.load(Arc::new(network(&mesh, &r, &c, n.0, n.1))).unwrap();
    }
    cluster.init_state(train, 3).unwrap();
    let loss = |program, n| cluster.run(program, 1, &data(n)).unwrap().outputs["loss"].scalar().unwrap();
    let first = loss(eval, 7);
    assert_eq!(first, loss(eval, 7), "an evaluation changes nothing");
    let alone = loss(rest, 1);
    assert_eq!(first, loss(train, 7), "training reports the loss before the update");
    assert!(loss(eval, 7) < first);
    assert_ne!(loss(rest, 1), alone);
    // What is read can be set, and then gives the same loss.
    let second = loss(eval, 7);
    let saved: Vec<_> = ["w1", "w2"].map(|n| (n, cluster.state(n).unwrap())).into();
    loss(train, 7);
    assert_ne!(loss(eval, 7), second);
    for (name, value) in &saved {
        cluster.set_state(name, value).unwrap();
    }
    assert_eq!(loss(eval, 7), second);
}

#[test]
fn a_parameter_that_is_placed_otherwise_is_refused() {
    let mesh = Mesh::new([("r", 2), ("c", 2)]);
    let mut cluster = cluster(&mesh);
    cluster.load(Arc::new(network(&mesh, &[Axis(0)], &[Axis(1)], 4, true))).unwrap();
    let error = cluster.load(Arc::new(network(&mesh, &[Axis(0)], &[], 4, false))).unwrap_err();
    assert!(matches!(&error, ExecError::State { name, .. } if name == "w1"), "{error}");
}

#[test]
fn states_and_inputs_of_a_wrong_shape_are_refused() {
    let mesh = Mesh::default();
    let mut engine = engine();
    let program = engine.load(Arc::new(network(&mesh, &[], &[], 2, true))).unwrap();
    engine.init_state(program, 1).unwrap();
    let wrong = HostTensor::zeros(FLOAT, vec![5, 6]);
    assert!(matches!(engine.set_state("w1", wrong), Err(ExecError::State { .. })));
    assert!(engine.set_state("w3", HostTensor::zeros(FLOAT, vec![])).is_err());
    let mut inputs = data(2)(0, &engine.local_inputs(program).unwrap()).unwrap();
    inputs[1].data = HostData::F64(vec![0.0; 2]);
    let error = engine.run(program, inputs, 1).unwrap_err();
    assert!(matches!(&error, ExecError::Input { name, .. } if name == "label"), "{error}");
    let _ = no_inputs();
}

/// As GPUs do that sum in different orders.
#[test]
fn copies_that_drift_apart_are_found_and_made_equal() {
    let mesh = Mesh::new([("r", 2), ("c", 2)]);
    let mut cluster = cluster(&mesh);
    // `w1` is split over `c` and whole along `r`.
    let plan = network(&mesh, &[Axis(0)], &[Axis(1)], 8, true);
    let id = cluster.load(Arc::new(plan)).unwrap();
    cluster.init_state(id, 7).unwrap();
    assert_eq!(cluster.differing_copies().unwrap(), Vec::<String>::new());
    let drift = |engine: &mut Engine| {
        let mut w1 = engine.state("w1")?;
        let HostData::F64(values) = &mut w1.data else { unreachable!() };
        values[3] += 1e-16;
        engine.set_state("w1", w1)
    };
    cluster.on_one(3, drift).unwrap();
    assert_eq!(cluster.differing_copies().unwrap(), ["w1"]);
    let whole = cluster.state("w1").unwrap();
    cluster.spread_state("w1", Some(&whole)).unwrap();
    assert_eq!(cluster.differing_copies().unwrap(), Vec::<String>::new());
    assert_eq!(cluster.state("w1").unwrap(), whole);
}

/// Steps on inputs that the devices hold give what steps on inputs that are given anew do, and leave them as they are.
#[test]
fn inputs_may_be_held_for_many_steps() {
    let mesh = Mesh::new([("r", 2)]);
    let plan = Arc::new(network(&mesh, &[Axis(0)], &[], 8, true));
    let inputs = whole_inputs(SortedMap::from([
        ("x".to_string(), noise_tensor(FLOAT, &[8, 6], 3)),
        ("label".to_string(), tensor(DType::I32, &[8], vec![0., 1., 2., 3., 3., 2., 1., 0.])),
    ]));
    let (mut anew, mut held) = (cluster(&mesh), cluster(&mesh));
    let ids = [&mut anew, &mut held].map(|c| {
        let id = c.load(plan.clone()).unwrap();
        c.init_state(id, 7).unwrap();
        id
    });
    assert!(matches!(held.run_held(ids[1], 1), Err(ExecError::Input { .. })));
    let mut held = cluster(&mesh);
    let id = held.load(plan.clone()).unwrap();
    held.init_state(id, 7).unwrap();
    held.hold_inputs(id, &inputs).unwrap();
    for step in 1..=3 {
        let want = anew.run(ids[0], step, &inputs).unwrap();
        assert_eq!(held.run_held(id, step).unwrap().outputs, want.outputs, "step {step}");
    }
    held.release_inputs(id).unwrap();
    assert!(held.run_held(id, 4).is_err());
}
