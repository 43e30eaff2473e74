//! Positions in zigzag order: every op is the same, or is refused; attention is what its equations say, with masks and draws at
//! true positions.

use crate::attention::{ALL, Features, HALVES, check, check_half, each, equations};
use crate::devices::{Devices, free, layout, plan, to};
use crate::split::{Way, law_of_order, planned, way};
use crate::subject::{step, subjects};
use meshwright_core::StepGraph;
use meshwright_core::layout::OrderRule;
use meshwright_device::kernels::attention::bounds::constant;
use meshwright_diag::Span;
use meshwright_plan::{Axis, DType, Dim, Plan, Prim};
use meshwright_sorted::SortedSet;

/// Ops whose results depend on neighbors or on places along a dim, and some that do not.
#[test]
fn every_op_is_the_same_in_zigzag_order_or_refused() {
    let (mut devices, mut wrong) = (Devices::default(), Vec::new());
    let (mut kept, mut refused): (SortedSet<String>, SortedSet<String>) = Default::default();
    for subject in subjects() {
        let dims: SortedSet<&str> = subject.inputs.iter().flat_map(|i| i.dims.iter().map(|d| d.0)).collect();
        for dim in dims {
            let family = subject.name.split(", ").next().unwrap().to_string();
            match law_of_order(&subject, dim, &mut devices) {
                Ok(Some(true)) => drop(kept.insert(family)),
                Ok(Some(false)) => drop(refused.insert(family)),
                Ok(None) => {}
                Err(e) => wrong.push(format!("along `{dim}`: {e}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{} of the samples:\n{}", wrong.len(), wrong.join("\n"));
    for family in
        ["+", "*", "sum", "softmax", "attention", "lookup", "index", "random_normal", "dropout", "rename"]
    {
        assert!(kept.contains(family), "`{family}` is refused along every dim: {kept:?}");
    }
    for family in
        ["cumsum", "shift", "slice", "reverse", "conv", "argmax", "top_k", "lookup", "cross_entropy"]
    {
        assert!(refused.contains(family), "`{family}` is never refused: {refused:?}");
    }
}

/// Queries and keys in zigzag order over some devices: the keys go around, or are gathered.
fn ways(devices: &[usize], dims: &[Dim]) -> Vec<Way> {
    let [batch, seq, key, ..] = dims[..] else { panic!() };
    let ordered = |way: Way| Way { zigzag: vec![seq, key], ..way };
    let of = |n: &usize| {
        let gathered = way(&[*n], vec![to(seq, &[0]), free(key, &[0])]);
        let within = way(&[*n, 2], vec![to(batch, &[1]), to(seq, &[0]), free(key, &[0])]);
        let both = way(&[*n, 2], vec![to(seq, &[1, 0]), free(key, &[1, 0])]);
        let around = |way: Way| Way { rings: vec![key], ..way };
        let whole = way(&[*n], vec![]);
        let again = way(&[*n], vec![to(seq, &[0]), free(key, &[0])]);
        [gathered, around(again), around(within), around(both), whole].map(ordered)
    };
    devices.iter().flat_map(of).collect()
}

#[test]
fn attention_in_zigzag_order_equals_its_equations() {
    let mut devices = Devices::default();
    for (name, has) in each() {
        for dtype in [DType::F64, DType::F32] {
            check(name, dtype, [2, 48, 48, 5], has, &mut devices, &|dims| ways(&[2, 3, 4], dims));
        }
    }
    // Ranges that end within tiles, and those that tiles end within.
    for size in [256, 304] {
        check("tiles", DType::F64, [1, size, size, 5], ALL, &mut devices, &|dims| ways(&[2], dims));
    }
}

/// Rings of a zigzag order are rings: over one axis and over two, with keys that are parameters, and with keys that are made of
/// others.
#[test]
fn no_device_has_all_keys_in_zigzag_order() {
    for projected in [false, true] {
        let e = equations(DType::F32, [2, 24, 24, 5], Features { projected, ..ALL }, true);
        let step = step(&e.graph, &e.outputs);
        for way in ways(&[2, 3], &e.dims).iter().filter(|w| !w.rings.is_empty()) {
            let plan = planned(&step, way).unwrap();
            crate::rings::assert_rings(&plan, way, &e.dims);
        }
    }
}

/// Where draws are taken range by range.
#[test]
fn attention_in_zigzag_order_in_plain_operations() {
    let mut devices = Devices::of(meshwright_burn::device());
    for (name, has) in each() {
        check(name, DType::F64, [2, 24, 24, 5], has, &mut devices, &|dims| ways(&[2, 3], dims));
    }
    let mut devices = Devices::of(meshwright_burn::reference());
    for half in HALVES {
        for has in [Features { causal: true, ..Features::default() }, ALL] {
            check_half("half", half, [2, 8, 8, 16], has, &mut devices, &|dims| ways(&[2], dims));
        }
    }
}

/// Tiles of so many positions along queries and keys that a device computes in all turns of an attention, forward and backward:
/// those that positions do not mask.
fn computed(plan: &Plan, rank: usize, tile: usize) -> usize {
    let coords = plan.mesh.coords(rank);
    let mut tiles = 0;
    for step in &plan.steps {
        let Prim::Attention { spec, .. } = &step.prim else { continue };
        let range = |dim: &Dim| {
            let found = step.reads[..2].iter().find_map(|o| Some((o, o.dims.iter().position(|d| d == dim)?)));
            let (operand, at) = found.unwrap();
            plan.buffer(operand.buf).extents[at].range(&plan.mesh, &coords)
        };
        let ranges: Vec<_> = spec.space.iter().map(range).collect();
        let key = spec.space.iter().position(|d| *d == spec.key).unwrap();
        let query = spec.space.iter().position(|d| plan.dims.name(*d) == "seq").unwrap();
        for i in ranges[query].clone().step_by(tile) {
            for j in ranges[key].clone().step_by(tile) {
                let mut at = ranges.clone();
                (at[query], at[key]) = (i..i + tile, j..j + tile);
                tiles += usize::from(constant(&spec.score, &at).is_none());
            }
        }
    }
    tiles
}

/// Under a causal mask the last positions have the most to compute; in zigzag order every device has as much.
#[test]
fn devices_compute_as_many_tiles_in_zigzag_order() {
    let causal = Features { causal: true, ..Features::default() };
    let counts = |size: usize, tile: usize, devices: usize, zigzag: bool| -> Vec<usize> {
        let e = equations(DType::F32, [1, size, size, 4], causal, true);
        let [_, seq, key, ..] = e.dims[..] else { panic!() };
        let step = StepGraph { program: "train", ..step(&e.graph, &e.outputs) };
        let way = way(&[devices], vec![to(seq, &[0]), free(key, &[0])]);
        let mut layout = layout(&way.mesh, way.rules);
        layout.rings = [(key, Span::default())].into();
        let order = |dim| OrderRule { dim, axes: vec![Axis(0)], span: Span::default() };
        layout.orders = if zigzag { [seq, key].map(order).into() } else { vec![] };
        let plan = plan(&step, &layout, true).unwrap().plan;
        (0..devices).map(|rank| computed(&plan, rank, tile)).collect()
    };
    // Forward and backward, of 16 tiles along each.
    let all = 2 * (16 * 17 / 2);
    for devices in [2, 4, 8] {
        assert_eq!(counts(1024, 64, devices, true), vec![all / devices; devices]);
        // And pair by pair.
        let pairs = |zigzag| {
            let all = counts(64, 1, devices, zigzag);
            assert_eq!(all.iter().sum::<usize>(), 2 * (64 * 65 / 2));
            *all.iter().max().unwrap() as f64 * devices as f64 / (2 * (64 * 65 / 2)) as f64
        };
        assert_eq!(pairs(true), 1.0);
        let contiguous = 2.0 - 1.0 / devices as f64;
        assert!((pairs(false) / contiguous - 1.0).abs() < 0.01, "{} on {devices}", pairs(false));
    }
    assert_eq!(counts(1024, 64, 4, false), [2 * 10, 2 * 26, 2 * 42, 2 * 58]);
}
