//! Attention whose keys go around the devices, against its equations: with uneven and empty shards, rows in which all keys are
//! masked, and shards in which they are; the same draws at the same positions; and no buffer that has all keys.

use crate::attention::{ALL, Features, HALVES, check, check_half, each, equations};
#[cfg(feature = "cuda")]
use crate::attention_kernels::check_of;
use crate::devices::{Devices, free, layout, plan, to};
use crate::split::{Way, planned as planned_in, way};
use crate::subject::step;
use meshwright_core::StepGraph;
use meshwright_core::layout::RuleDim;
use meshwright_core::lowering::verify_plan;
use meshwright_device::target::Target;
use meshwright_diag::Span;
#[cfg(feature = "cuda")]
use meshwright_plan::Arithmetic;
use meshwright_plan::{AttentionPart, Collective, DType, Dim, Plan, Prim};

/// Queries and keys over some devices, and the keys go around them.
fn around(devices: usize, dims: &[Dim]) -> Way {
    let [_, seq, key, ..] = dims[..] else { panic!() };
    Way { rings: vec![key], ..way(&[devices], vec![to(seq, &[0]), free(key, &[0])]) }
}

/// The same with positions in zigzag order.
fn zigzag(devices: usize, dims: &[Dim]) -> Way {
    Way { zigzag: dims[1..3].to_vec(), ..around(devices, dims) }
}

/// The same over several axes, major first as they are named, of a mesh of these sizes.
fn over(sizes: &[usize], axes: &[u8], dims: &[Dim]) -> Way {
    let [_, seq, key, ..] = dims[..] else { panic!() };
    Way { rings: vec![key], ..way(sizes, vec![to(seq, axes), free(key, axes)]) }
}

/// The same with another dim over an axis before it.
fn within(devices: usize, dims: &[Dim], other: Dim) -> Way {
    let [_, seq, key, ..] = dims[..] else { panic!() };
    let rules = vec![to(other, &[0]), to(seq, &[1]), free(key, &[1])];
    Way { rings: vec![key], ..way(&[2, devices], rules) }
}

fn ways(dims: &[Dim]) -> Vec<Way> {
    let [batch, _, _, heads, group, _] = dims[..] else { panic!() };
    // Of 9 devices two hold nothing.
    let mut all: Vec<Way> = [2, 3, 4, 9].map(|n| around(n, dims)).into();
    all.extend([batch, heads, group].map(|other| within(3, dims, other)));
    all.extend([over(&[2, 2], &[0, 1], dims), over(&[2, 3], &[1, 0], dims), over(&[3, 3], &[0, 1], dims)]);
    // Around the outer and the inner axis, with examples over the one between.
    let mut between = over(&[2, 2, 2], &[0, 2], dims);
    between.rules.push(to(batch, &[1]));
    all.push(between);
    all
}

/// Attention takes a turn for each device both ways, and no buffer has more of keys than a shard.
pub(crate) fn assert_rings(plan: &Plan, way: &Way, dims: &[Dim]) {
    let [_, seq, key, ..] = dims[..] else { panic!() };
    let split = way.rules.iter().find(|r| r.dim == RuleDim::Dim(seq)).unwrap();
    let devices: usize = split.axes.iter().map(|a| plan.mesh.size(*a)).product();
    let steps = |kind: fn(&meshwright_plan::Step) -> bool| plan.steps.iter().filter(|s| kind(s)).count();
    assert_eq!(steps(|s| matches!(s.prim, Prim::Attention { .. })), 2 * devices);
    assert!(steps(|s| matches!(s.collective(), Some(Collective::Rotate { .. }))) >= 6 * (devices - 1));
    let all = |o: &meshwright_plan::Operand| {
        let along = o.dims.iter().position(|d| *d == key);
        along.is_some_and(|k| plan.buffer(o.buf).extents[k].axes.is_empty() && o.dims.len() > 2)
    };
    let held: Vec<_> = plan.steps.iter().filter(|s| s.all().any(all)).collect();
    assert!(held.is_empty(), "{held:?}");
}

#[test]
fn every_way_around_is_a_ring() {
    for (name, has) in each() {
        let e = equations(DType::F32, [2, 7, 7, 5], has, true);
        for way in ways(&e.dims) {
            let plan =
                planned_in(&step(&e.graph, &e.outputs), &way).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_rings(&plan, &way, &e.dims);
        }
    }
}

#[test]
fn attention_around_a_ring_equals_its_equations() {
    let mut devices = Devices::default();
    for (name, has) in each() {
        for dtype in [DType::F64, DType::F32] {
            check(name, dtype, [2, 7, 7, 5], has, &mut devices, &ways);
        }
    }
    // Over several tiles.
    check("tiles", DType::F64, [1, 290, 290, 5], ALL, &mut devices, &|dims| vec![around(2, dims)]);
}

/// A shard in which all scores are `-inf` adds nothing, wherever it is in the order.
#[test]
fn shards_without_any_score_add_nothing() {
    let infinite = Features { infinite: true, padded: true, ..Features::default() };
    for has in [infinite, Features { causal: true, padded: false, ..infinite }] {
        check("-inf", DType::F64, [2, 7, 7, 5], has, &mut Devices::default(), &ways);
        check("-inf", DType::F32, [2, 7, 7, 5], has, &mut Devices::of(meshwright_burn::device()), &ways);
        let mut launched = Devices::of(meshwright_burn::reference());
        check_half("-inf", HALVES[0], [2, 7, 7, 16], has, &mut launched, &ways);
    }
}

/// Where there is no kernel: plain operations, which go on with what other keys have given.
#[test]
fn attention_around_a_ring_in_plain_operations() {
    let mut devices = Devices::of(meshwright_burn::device());
    for (name, has) in each() {
        check(name, DType::F64, [2, 7, 7, 5], has, &mut devices, &ways);
    }
}

/// Every turn has a kernel of GPUs: those after the first begin with what other keys have given.
fn launched(step: &StepGraph, way: fn(usize, &[Dim]) -> Way, devices: usize) {
    let dims: Vec<Dim> = step.graph.dims.iter().map(|(d, _)| d).collect();
    let plan = planned_in(step, &way(devices, &dims)).unwrap();
    let device = meshwright_device::compile(&plan, 0, Target::cuda((9, 0), true)).unwrap();
    assert!(device.attention_without_kernel.is_empty(), "{:?}", device.attention_without_kernel);
    let kernels = device.launches.iter().filter(|l| l.kind.name() == "attention").count();
    assert_eq!(kernels, 2 * devices, "a launch for each turn, forward and backward");
}

#[test]
fn attention_around_a_ring_as_a_gpu_launches_it() {
    let mut devices = Devices::of(meshwright_burn::reference());
    for half in HALVES {
        for (name, has) in each() {
            let step = check_half(name, half, [2, 7, 7, 16], has, &mut devices, &ways);
            launched(&step, around, 3);
            let step =
                check_half(name, half, [2, 12, 12, 16], has, &mut devices, &|dims| vec![zigzag(3, dims)]);
            launched(&step, zigzag, 3);
        }
        // Dropout is drawn ahead, and decided tiles are left out.
        check_half("tiles", half, [1, 140, 140, 16], ALL, &mut devices, &|dims| vec![around(2, dims)]);
    }
    for (name, has) in each() {
        launched(&check(name, DType::F32, [2, 7, 7, 16], has, &mut devices, &ways), around, 3);
    }
}

/// The same by the kernels themselves: shards that end within tiles and at their ends, empty ones, and heads over another axis.
#[cfg(feature = "cuda")]
pub(crate) fn on_a_gpu(of: (Arithmetic, f64), name: &str, has: Features, devices: &mut Devices) {
    let mut alike = |has, sizes, ways: &dyn Fn(&[Dim]) -> Vec<Way>| {
        check_of(&format!("{name} around a ring"), of, sizes, has, devices, ways)
    };
    launched(&alike(has, [1, 130, 130, 32], &|dims| vec![around(3, dims)]), around, 3);
    alike(has, [2, 5, 5, 16], &|dims| vec![around(4, dims), within(2, dims, dims[3])]);
    // Ranges that tiles end in, of eights that share a counter of the generator and not.
    for (devices, size) in [(2, 256), (3, 132), (2, 160)] {
        launched(&alike(has, [1, size, size, 32], &|dims| vec![zigzag(devices, dims)]), zigzag, devices);
    }
    if has.causal != has.padded {
        // Shards have no score for some rows, in turns before the first that has and behind it.
        let has = Features { infinite: true, ..has };
        alike(has, [2, 5, 5, 16], &|dims| vec![around(4, dims)]);
        alike(has, [2, 70, 70, 16], &|dims| vec![around(3, dims)]);
    }
}

fn planned(devices: usize, ring: bool) -> (Plan, Dim) {
    let e = equations(DType::F32, [2, 8, 8, 5], ALL, true);
    let way = around(devices, &e.dims);
    let mut layout = layout(&way.mesh, way.rules);
    if ring {
        layout.rings = way.rings.iter().map(|d| (*d, Span::default())).collect();
    }
    (plan(&step(&e.graph, &e.outputs), &layout, true).unwrap().plan, e.dims[2])
}

/// What a device sends: of gathers and scatters the shards of the others, of rotations its shard.
fn sent(plan: &Plan) -> usize {
    let of = |s: &meshwright_plan::Step| {
        let bytes: usize = s.collective_bytes(plan).iter().sum();
        match s.collective() {
            Some(Collective::Rotate { .. }) => bytes,
            Some(Collective::AllGather { .. } | Collective::ReduceScatter { .. }) => bytes - bytes / 4,
            _ => 0,
        }
    };
    plan.steps.iter().map(of).sum()
}

#[test]
fn a_ring_sends_what_gathers_send_and_holds_a_shard_at_a_time() {
    use AttentionPart::{Key, Max, Query, Result, Sum, Value, Values};
    let (gathers, key) = planned(4, false);
    let (ring, _) = planned(4, true);
    let parts = |p: &Plan| -> Vec<Vec<AttentionPart>> {
        let of = |p: &Prim| if let Prim::Attention { parts, .. } = p { Some(parts.clone()) } else { None };
        p.steps.iter().filter_map(|s| of(&s.prim)).collect()
    };
    let turn = vec![Max, Sum, Values];
    let forward = [turn.clone(), turn.clone(), turn, vec![Max, Sum, Result]];
    assert_eq!(parts(&ring), [&forward[..], &vec![vec![Query, Key, Value]; 4]].concat());
    assert_eq!(sent(&ring), sent(&gathers));
    let holds_all = |p: &Plan| {
        let all = |o: &meshwright_plan::Operand| {
            let along = o.dims.iter().position(|d| *d == key);
            along.is_some_and(|k| p.buffer(o.buf).extents[k].axes.is_empty() && o.dims.len() > 2)
        };
        p.steps.iter().flat_map(|s| s.all()).any(all)
    };
    assert!(holds_all(&gathers) && !holds_all(&ring));
    let gathers = |s: &meshwright_plan::Step| {
        matches!(s.collective(), Some(Collective::AllGather { .. } | Collective::ReduceScatter { .. }))
    };
    assert!(!ring.steps.iter().any(gathers));
}

/// Each shard is on its way while attention computes on the one before it.
#[test]
fn rotations_go_on_while_attention_computes() {
    let (plan, _) = planned(4, true);
    let rotates = |s: &meshwright_plan::Step| matches!(s.collective(), Some(Collective::Rotate { .. }));
    let rotations = plan.steps.iter().enumerate().filter(|(_, s)| rotates(s));
    let meanwhile = rotations.map(|(i, _)| {
        plan.steps[i..plan.end_of(i)].iter().filter(|s| matches!(s.prim, Prim::Attention { .. })).count()
    });
    // Of 3 rotations of keys and values each way; backward the first has nothing before it, and what flows back to the last shard
    // but one is needed at once.
    let counts: Vec<usize> = meanwhile.collect();
    assert_eq!(counts.len(), 6 + 6 + 6, "{counts:?}");
    assert!(counts.iter().filter(|n| **n > 0).count() >= 16, "{counts:?}");
}

/// What a wrong ring would be: the verifier finds each.
#[test]
fn rings_that_count_shards_otherwise_than_once_are_found() {
    let (plan, _) = planned(4, true);
    assert_eq!(verify_plan(&plan), [""; 0]);
    let turns: Vec<usize> =
        (0..plan.steps.len()).filter(|i| matches!(plan.steps[*i].prim, Prim::Attention { .. })).collect();
    let found = |change: &dyn Fn(&mut Plan)| {
        let mut wrong = plan.clone();
        change(&mut wrong);
        verify_plan(&wrong).join("; ")
    };
    let twice = found(&|p| {
        let first = p.steps[turns[0]].reads[..3].to_vec();
        p.steps[turns[1]].reads[..3].clone_from_slice(&first);
    });
    assert!(twice.contains("has the term of its shard"), "{twice}");
    let early = found(&|p| {
        if let Prim::Attention { parts, .. } = &mut p.steps[turns[2]].prim {
            parts[2] = AttentionPart::Result;
        }
    });
    assert!(early.contains("lacks terms"), "{early}");
    let far = found(&|p| {
        let i =
            p.steps.iter().position(|s| matches!(s.collective(), Some(Collective::Rotate { .. }))).unwrap();
        let to = p.steps[i].writes[0].buf;
        for e in p.buffers[to.0 as usize].extents.iter_mut().filter(|e| e.rotated > 0) {
            e.rotated += 1;
        }
    });
    assert!(far.contains("not the shard of the device after it"), "{far}");
}
