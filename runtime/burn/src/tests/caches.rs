//! A cache that a loop carries is updated in place.

use super::plans::Builder;
use super::{HostBackend, close, cluster_on, noise_tensor, on_one_thread, whole_inputs};
use meshwright_comm::{Timeouts, World};
use meshwright_exec::{HostData, HostTensor};
use meshwright_plan::expr::BinaryFn;
use meshwright_plan::{Axis, DType, Mesh, Monoid, Plan, Prim, ProgramInputKind};
use meshwright_sorted::SortedMap;
use std::sync::Arc;

const LAYERS: usize = 3;
const ROWS: usize = 2;
const KEYS: usize = 5;
const WIDTH: usize = 4;
const NEW: usize = 2;

/// Each layer takes the same new positions; `sum` adds up what all layers then hold of each row.
fn plan(mesh: &Mesh, of_rows: &[Axis], of_keys: &[Axis], sum: bool) -> Plan {
    let mut b = Builder::new(mesh);
    let (layers, row, key) = (b.dim("layers", LAYERS), b.dim("row", ROWS), b.dim("key", KEYS));
    let (d, new) = (b.dim("d", WIDTH), b.dim("new", NEW));
    let cache = b.split(DType::F32, &[(layers, &[]), (row, of_rows), (key, of_keys), (d, &[])]);
    let value = b.split(DType::F32, &[(row, of_rows), (new, &[]), (d, &[])]);
    let start = b.split(DType::I32, &[(row, of_rows)]);
    b.leaf(ProgramInputKind::Param, "cache", &cache);
    b.leaf(ProgramInputKind::Input, "value", &value);
    b.leaf(ProgramInputKind::Input, "start", &start);
    let total = b.split(DType::F32, &[(row, of_rows), (d, &[])]);
    let [current, next, last] = [(); 3].map(|()| b.like(&cache));
    let [total_now, total_next, total_last] = [(); 3].map(|()| b.like(&total));
    b.step("total", Prim::Blank { zero: true }, &[], &[&total]);
    let repeat = Prim::Repeat { dim: layers, reverse: false, from: 0, axes: vec![] };
    b.step("layers", repeat, &[&cache, &total], &[&current, &total_now]);
    let update = Prim::DynamicUpdateSlice { dim: key, from: new, iteration: Some(layers) };
    b.step("cache", update, &[&current, &value, &start], &[&next]);
    if sum {
        let view = b.split(DType::F32, &[(row, of_rows), (key, of_keys), (d, &[])]);
        let held = b.like(&total);
        b.step("held", Prim::IterationSlice { dim: layers }, &[&next], &[&view]);
        b.reduce("sum", Monoid::Sum, &view, &held);
        b.map("total", &[&total_now, &held], &total_next, |e, x| e.binary(BinaryFn::Add, x[0], x[1]));
    } else {
        b.map("total", &[&total_now], &total_next, |_, x| x[0]);
    }
    b.step("layers", Prim::EndRepeat, &[&next, &total_next], &[&last, &total_last]);
    b.next("cache", &last);
    b.output("total", &total_last);
    // What the body reads is there in each iteration.
    b.output("value", &value);
    b.output("start", &start);
    b.finish()
}

fn inputs(start: [i32; ROWS]) -> SortedMap<String, HostTensor> {
    let start = HostTensor { shape: vec![ROWS], data: HostData::I32(start.to_vec()) };
    [("value".into(), noise_tensor(DType::F32, &[ROWS, NEW, WIDTH], 5)), ("start".into(), start)].into()
}

/// What the cache is after new positions from `start` on, of which some may be beyond its end.
fn updated(cache: &HostTensor, start: [i32; ROWS]) -> HostTensor {
    let (mut data, value) = (cache.data.to_f64(), inputs(start)["value"].data.to_f64());
    for layer in 0..LAYERS {
        for (row, start) in start.iter().enumerate() {
            for i in (0..NEW).filter(|i| (0..KEYS as i32).contains(&(start + *i as i32))) {
                let to = ((layer * ROWS + row) * KEYS + (start + i as i32) as usize) * WIDTH;
                data[to..to + WIDTH].copy_from_slice(&value[(row * NEW + i) * WIDTH..][..WIDTH]);
            }
        }
    }
    HostTensor { shape: cache.shape.clone(), data: HostData::from_f64(DType::F32, data) }
}

#[test]
fn a_cache_stays_where_it_is() {
    let mut engine = on_one_thread(World::new(1, Timeouts::for_tests()).remove(0));
    let program = engine.load(Arc::new(plan(&Mesh::default(), &[], &[], true))).unwrap();
    engine.init_state(program, 1).unwrap();
    let mut wanted = engine.state("cache").unwrap();
    let address = engine.state_address("cache").unwrap().unwrap();
    for start in [[0, 2], [2, 4], [3, 1]] {
        let given = whole_inputs(inputs(start))(0, &engine.local_inputs(program).unwrap()).unwrap();
        let out = engine.run(program, given, 1).unwrap();
        wanted = updated(&wanted, start);
        assert_eq!(engine.state("cache").unwrap(), wanted, "{start:?}");
        assert_eq!(engine.state_address("cache").unwrap(), Some(address), "{start:?}: it was copied");
        let all = wanted.data.to_f64();
        let sum = |i: usize| -> f64 {
            let (row, d) = (i / WIDTH, i % WIDTH);
            let of =
                (0..LAYERS).flat_map(|l| (0..KEYS).map(move |k| ((l * ROWS + row) * KEYS + k) * WIDTH + d));
            of.map(|at| all[at]).sum()
        };
        let sums = HostData::from_f64(DType::F32, (0..ROWS * WIDTH).map(sum).collect());
        close(&out["total"], &HostTensor { shape: vec![ROWS, WIDTH], data: sums }, 1e-5, "total");
    }
}

#[test]
fn each_device_takes_what_belongs_to_its_part() {
    let mesh = Mesh::new([("a", 2), ("b", 2)]);
    for backend in [HostBackend::Native, HostBackend::Burn] {
        for (rows, keys) in
            [(&[][..], &[Axis(0), Axis(1)][..]), (&[Axis(0)], &[Axis(1)]), (&[Axis(0), Axis(1)], &[])]
        {
            let mut cluster = cluster_on(&mesh, backend);
            let program = cluster.load(Arc::new(plan(&mesh, rows, keys, false))).unwrap();
            cluster.init_state(program, 1).unwrap();
            let mut wanted = cluster.state("cache").unwrap();
            for start in [[0, 2], [1, 4], [3, 0]] {
                cluster.run(program, 1, &whole_inputs(inputs(start))).unwrap();
                wanted = updated(&wanted, start);
                assert_eq!(cluster.state("cache").unwrap(), wanted, "{start:?} {rows:?} {keys:?}");
            }
        }
    }
}

/// Each layer stores what it begins with, and adds three times what was at its position before.
fn reads_before_and_after() -> Plan {
    let mut b = Builder::new(&Mesh::default());
    let (layers, d) = (b.dim("layers", LAYERS), b.dim("d", WIDTH));
    let given = b.whole(DType::F32, &[layers, d]);
    let x = b.whole(DType::F32, &[d]);
    b.leaf(ProgramInputKind::Input, "stack", &given);
    b.leaf(ProgramInputKind::Input, "x", &x);
    let [stack, current, next, last] = [(); 4].map(|()| b.like(&given));
    let [now, before, after, made, end] = [(); 5].map(|()| b.like(&x));
    // A stack that no program input is may be updated in place.
    b.map("stack", &[&given], &stack, |e, x| e.binary(BinaryFn::Add, x[0], x[0]));
    let repeat = Prim::Repeat { dim: layers, reverse: false, from: 0, axes: vec![] };
    b.step("layers", repeat, &[&stack, &x], &[&current, &now]);
    b.step("before", Prim::IterationSlice { dim: layers }, &[&current], &[&before]);
    b.step("stack", Prim::IterationUpdate { dim: layers }, &[&current, &now], &[&next]);
    b.step("after", Prim::IterationSlice { dim: layers }, &[&next], &[&after]);
    b.map("x", &[&after, &before], &made, |e, x| {
        let three = e.constant(3.0, DType::F32);
        let before = e.binary(BinaryFn::Mul, three, x[1]);
        e.binary(BinaryFn::Add, x[0], before)
    });
    b.step("layers", Prim::EndRepeat, &[&next, &made], &[&last, &end]);
    b.output("stack", &last);
    b.output("x", &end);
    b.finish()
}

/// A slice stays as it was when its stack is updated.
#[test]
fn a_slice_outlives_an_update_of_its_stack() {
    let stack = noise_tensor(DType::F32, &[LAYERS, WIDTH], 7);
    let x = noise_tensor(DType::F32, &[WIDTH], 8);
    let (before, mut value) = (stack.data.to_f64(), x.data.to_f64());
    let mut stored = vec![];
    for layer in before.chunks(WIDTH) {
        stored.extend(&value);
        value.iter_mut().zip(layer).for_each(|(value, before)| *value += 6.0 * before);
    }
    let given = whole_inputs([("stack".into(), stack), ("x".into(), x)].into());
    for backend in [HostBackend::Native, HostBackend::Burn] {
        let mut cluster = cluster_on(&Mesh::default(), backend);
        let program = cluster.load(Arc::new(reads_before_and_after())).unwrap();
        for _ in 0..2 {
            let out = cluster.run(program, 1, &given).unwrap().outputs;
            let wanted = |shape: Vec<usize>, of: &[f64]| HostTensor {
                shape,
                data: HostData::from_f64(DType::F32, of.to_vec()),
            };
            close(&out["stack"], &wanted(vec![LAYERS, WIDTH], &stored), 1e-5, "stack");
            close(&out["x"], &wanted(vec![WIDTH], &value), 1e-5, "x");
        }
    }
}
