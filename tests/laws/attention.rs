//! Attention that is recognized, against the same equations where it is not: over several tiles, with rows in which all keys
//! are masked, in `f64` and `f32`, whole and split, forward and backward.

use crate::devices::{Devices, layout, plan, to};
use crate::oracle::{Bound, walk};
use crate::rng::Rng;
use crate::split::{Way, Within, planned, same_step, way};
use crate::subject::{step, tensors};
use meshwright_core::ParamDecl;
use meshwright_core::StepGraph;
use meshwright_core::step::autodiff::gradients;
use meshwright_device::target::Target;
use meshwright_device::text::text;
use meshwright_diag::Span;
use meshwright_exec::HostData;
use meshwright_ops::{
    Contract, F64Tensor, Graph, Id, InputOp, InputOpKind, LOG, Op, Random, Recognizer, Softmax, TANH, Type,
};
use meshwright_plan::random::Distribution;
use meshwright_plan::{Arithmetic, AttentionPart, DType, Dim, Dims, IdVec, Init, Plan, Prim, tf32};

/// What stands in the equations.
#[derive(Clone, Copy, Default)]
pub(crate) struct Features {
    pub(crate) causal: bool,
    /// Keys are masked by a truth value of each example and key; of the first example all of them.
    pub(crate) padded: bool,
    /// A masked score is `-inf`, and no example has all keys masked.
    pub(crate) infinite: bool,
    /// The rate of a dropout, or 0.
    pub(crate) dropout: f64,
    pub(crate) capped: bool,
    /// Scores are logarithms of squares, whose slope at 0 is no number.
    pub(crate) logarithm: bool,
    /// Queries, keys and values are results of products, as in a model: in a program of a half type they are stored so.
    pub(crate) projected: bool,
    /// Dims of a bias with a gradient of its own; there is none without.
    pub(crate) bias: &'static str,
    /// Width of values; 0 where it is that of queries and keys.
    pub(crate) values: usize,
}

/// Equations with a loss, and the gradients of queries, keys and values.
pub(crate) struct Equations {
    pub(crate) graph: Graph,
    bound: Bound,
    pub(crate) outputs: Vec<(&'static str, Id)>,
    pub(crate) dims: Vec<Dim>,
}

/// Values through which a gradient of some flows.
fn needs(g: &Graph, trained: &[Id]) -> IdVec<Id, bool> {
    let mut needs = g.nodes.table(false);
    for id in g.ids() {
        needs[id] = trained.contains(&id) || g.node(id).inputs.iter().any(|x| needs[*x]);
    }
    needs
}

fn leaf(g: &mut Graph, name: &str, dtype: DType, dims: &[Dim], param: bool) -> Id {
    let leaf = match param {
        true => InputOpKind::Param { path: name.into(), init: Init::Constant(0.0) },
        false => InputOpKind::Input { name: name.into() },
    };
    g.cursor.name = name.into();
    g.op(InputOp { input: leaf, ty: Type::new(dtype, dims.to_vec()) }, &[])
}

/// The same values as results of a matmul.
fn projected(g: &mut Graph, dtype: DType, bound: &mut Bound, values: [Id; 3]) -> [Id; 3] {
    let one = g.dims.add("one", 1);
    let factor = leaf(g, "one", dtype, &[one], false);
    bound.insert(factor, F64Tensor::new(&g.dims, [one], vec![1.0]));
    values.map(|x| g.op(Contract { out: g.ty(x).dims.clone() }, &[x, factor]))
}

/// The equations of several heads in groups that share keys, recognized where `fused`; sizes are examples, queries, keys and
/// width.
pub(crate) fn equations(
    dtype: DType,
    [batch, seq, keys, width]: [usize; 4],
    has: Features,
    fused: bool,
) -> Equations {
    let mut g = Graph::new(Dims::default());
    let (b, s, k) = (g.dims.add("batch", batch), g.dims.add("seq", seq), g.dims.add("key", keys));
    let (h, group, d) = (g.dims.add("heads", 2), g.dims.add("group", 2), g.dims.add("d", width));
    let mut rng = Rng::new(3);
    let mut bound = Bound::new();
    let mut drawn = |g: &Graph, id: Id| {
        let round = |x: f64| if dtype == DType::F32 { f64::from(x as f32) } else { x };
        let value = F64Tensor::build(&g.dims, &g.ty(id).dims, |_| round(rng.float(-2.0, 2.0)));
        bound.insert(id, value);
    };
    let q = leaf(&mut g, "q", dtype, &[b, s, h, group, d], true);
    let key = leaf(&mut g, "k", dtype, &[b, k, h, d], true);
    let e = if has.values > 0 { g.dims.add("e", has.values) } else { d };
    let v = leaf(&mut g, "v", dtype, &[b, h, k, e], true);
    let weight = leaf(&mut g, "weight", dtype, &[b, s, e], false);
    [q, key, v, weight].into_iter().for_each(|id| drawn(&g, id));
    let mut leaves = vec![("q", q), ("k", key), ("v", v)];
    if !has.bias.is_empty() {
        let dims: Vec<Dim> = has.bias.split(' ').map(|name| g.dims.find(name).unwrap()).collect();
        let bias = leaf(&mut g, "b", dtype, &dims, true);
        drawn(&g, bias);
        leaves.push(("b", bias));
    }
    let [q, key, v] =
        if has.projected { projected(&mut g, dtype, &mut bound, [q, key, v]) } else { [q, key, v] };
    let mut score = g.op(Contract { out: vec![b, h, group, s, k] }, &[q, key]);
    score = g.scaled(score, 0.4);
    if has.logarithm {
        let square = g.product(&[score, score]);
        score = g.unary(&LOG, square);
    }
    if has.capped {
        score = g.unary(&TANH, score);
    }
    if let Some((_, bias)) = leaves.get(3) {
        score = g.sum_of(&[score, *bias]);
    }
    let none = g.constant(if has.infinite { f64::NEG_INFINITY } else { -1e9 }, dtype);
    if has.causal {
        let (i, j) = (g.index(s), g.index(k));
        let seen = g.binary("<=", j, i);
        score = g.choose(seen, score, none);
    }
    if has.padded {
        let real = leaf(&mut g, "real", DType::Bool, &[b, k], false);
        let value =
            |at: &[usize]| f64::from(u8::from((has.infinite || at[0] > 0) && !at[1].is_multiple_of(3)));
        bound.insert(real, F64Tensor::build(&g.dims, &[b, k], value));
        score = g.choose(real, score, none);
    }
    let softmax = Softmax { dim: k, log: false };
    let mut p = if fused { g.op(softmax, &[score]) } else { softmax.expand(&mut g, &[score]).unwrap() };
    if has.dropout > 0.0 {
        let dims = g.ty(p).dims.clone();
        let distribution = Distribution::Bernoulli { rate: has.dropout };
        let kept = g.op(Random { stream: "kept".into(), distribution, dims, dtype: DType::Bool }, &[]);
        p = g.masked(kept, p);
        p = g.scaled(p, 1.0 / (1.0 - has.dropout));
    }
    let y = g.op(Contract { out: vec![b, s, h, group, e] }, &[p, v]);
    let loss = g.op(Contract { out: vec![] }, &[y, weight]);
    if fused {
        let needs = needs(&g, &leaves.iter().map(|leaf| leaf.1).collect::<Vec<_>>());
        let found = Recognizer::new(&g, &[loss], needs).run(&mut g);
        assert!(matches!(found[..], [(_, Ok(()))]), "{found:?}");
    }
    let param = |(n, id): &(&str, Id)| ParamDecl::new((*n).into(), *id, Span::default());
    let params: Vec<ParamDecl> = leaves.iter().map(param).collect();
    let grads = gradients(&mut g, loss, &params.iter().collect::<Vec<_>>());
    let outputs = ["dq", "dk", "dv", "db"].into_iter().zip(grads);
    let outputs = [("y", y)].into_iter().chain(outputs).collect();
    Equations { graph: g, bound, outputs, dims: vec![b, s, k, h, group, d] }
}

/// Compares what is recognized with the oracle of the equations; gives the step.
pub(crate) fn check(
    name: &str,
    dtype: DType,
    sizes: [usize; 4],
    has: Features,
    devices: &mut Devices,
    ways: &dyn Fn(&[Dim]) -> Vec<Way>,
) -> StepGraph {
    let plain = equations(DType::F64, sizes, has, false);
    let of_plain = equations(dtype, sizes, has, false);
    let fused = equations(dtype, sizes, has, true);
    // What `f32` rounds of the leaves is no difference.
    let bound: Bound = plain.bound.keys().copied().zip(of_plain.bound.values().cloned()).collect();
    let values = walk(&plain.graph, &bound);
    let step = step(&fused.graph, &fused.outputs);
    let wanted: Vec<_> = fused
        .outputs
        .iter()
        .zip(&plain.outputs)
        .map(|((name, id), (_, plain))| (*name, *id, values[plain.0 as usize].clone()))
        .collect();
    let within = Within { least: 1.0, narrow: 2e-5, ..Within::default() };
    let given = tensors(&fused.graph, &fused.bound);
    same_step(name, &step, &given, &wanted, within, &ways(&fused.dims), devices).unwrap();
    step
}

pub(crate) const ALL: Features = Features {
    causal: true,
    padded: true,
    infinite: false,
    dropout: 0.25,
    capped: true,
    logarithm: false,
    projected: false,
    bias: "",
    values: 0,
};

pub(crate) fn each() -> [(&'static str, Features); 5] {
    [
        ("plain", Features::default()),
        ("causal", Features { causal: true, ..Features::default() }),
        ("padded", Features { padded: true, ..Features::default() }),
        ("causal and padded", Features { causal: true, padded: true, ..Features::default() }),
        ("all", ALL),
    ]
}

/// Biases that learn: for each score, or for some; summed over examples, heads, queries or keys.
fn biases() -> [(&'static str, Features); 5] {
    let biased = |bias, has| Features { bias, ..has };
    let causal = Features { causal: true, ..Features::default() };
    [
        ("a bias", biased("heads group seq key", Features::default())),
        ("a bias of all heads, causal", biased("key group seq", causal)),
        ("a bias of groups, all", biased("heads seq key", ALL)),
        ("a bias of examples, padded", biased("batch key", Features { padded: true, ..Features::default() })),
        ("a bias of everything", biased("seq heads batch key group", ALL)),
    ]
}

pub(crate) fn one(_: &[Dim]) -> Vec<Way> {
    vec![way(&[], vec![])]
}

/// More queries and keys than tiles have, in a number that divides nothing; of the first example all keys are masked.
#[test]
fn attention_over_several_tiles_equals_its_equations() {
    let mut devices = Devices::default();
    for (name, has) in each().into_iter().chain(biases()) {
        for dtype in [DType::F64, DType::F32] {
            check(name, dtype, [2, 300, 300, 5], has, &mut devices, &one);
        }
    }
}

#[test]
fn attention_equals_its_equations_in_plain_operations() {
    let mut devices = Devices::of(meshwright_burn::device());
    let ways = |dims: &[Dim]| {
        let split = |(i, d): (usize, &Dim)| way(&[2 + i % 2], vec![to(*d, &[0])]);
        std::iter::once(way(&[], vec![])).chain(dims.iter().enumerate().map(split)).collect()
    };
    for (name, has) in each().into_iter().chain(biases()) {
        for dtype in [DType::F64, DType::F32] {
            check(name, dtype, [2, 9, 9, 5], has, &mut devices, &ways);
        }
    }
}

/// Half types, and how far results may be off, relative to the exact ones.
pub(crate) const HALVES: [(Arithmetic, f64); 2] =
    [(Arithmetic::BF16, 1.0 / 64.0), (Arithmetic::F16, 1.0 / 512.0)];

/// TF32, whose factors have as many digits as `f16`.
pub(crate) const TF32: (Arithmetic, f64) = (Arithmetic::TF32, 3.0 / 1024.0);

/// Compares what is recognized in a program of a half type, or of TF32, with the oracle of the equations; gives the step.
pub(crate) fn check_half(
    name: &str,
    (float, narrow): (Arithmetic, f64),
    sizes: [usize; 4],
    has: Features,
    devices: &mut Devices,
    ways: &dyn Fn(&[Dim]) -> Vec<Way>,
) -> StepGraph {
    let of = |dtype, fused| {
        let mut e = equations(dtype, sizes, Features { projected: true, ..has }, fused);
        for value in e.bound.values_mut() {
            value.data = HostData::from_f64(float.stored(), value.data.clone()).to_f64();
        }
        e
    };
    let (exact, fused) = (of(DType::F64, false), of(DType::F32, true));
    let values = walk(&exact.graph, &exact.bound);
    let pairs = fused.outputs.iter().zip(&exact.outputs);
    let wanted: Vec<_> =
        pairs.map(|((name, id), (_, at))| (*name, *id, values[at.0 as usize].clone())).collect();
    let step = StepGraph { float, ..step(&fused.graph, &fused.outputs) };
    let within = Within { least: 1.0, narrow, ..Within::default() };
    let given = tensors(&fused.graph, &fused.bound);
    same_step(name, &step, &given, &wanted, within, &ways(&fused.dims), devices).unwrap();
    step
}

/// In a half type all products have factors of it, which is what GPUs are fast with, and results of `f32`; what is off is what
/// these factors round.
#[test]
fn attention_of_half_types_in_plain_operations() {
    let mut devices = Devices::of(meshwright_burn::device());
    for (half, narrow) in HALVES {
        for (name, has) in each() {
            let step = check_half(name, (half, narrow), [2, 9, 9, 5], has, &mut devices, &one);
            let plan = plan(&step, &layout(&way(&[], vec![]).mesh, vec![]), true).unwrap().plan;
            let graphs = text(
                &plan,
                &meshwright_device::compile(&plan, 0, Target::burn_on_host(false)).unwrap(),
                true,
            );
            // Those of scores, which are nine for a query.
            let products = graphs.lines().filter(|l| l.contains("matmul ") && l.contains(", 9]"));
            let products: Vec<_> = products.collect();
            let of_half =
                |l: &&&str| l.matches(&format!(" {half}[")).count() == 2 && l.matches(" f32[").count() == 1;
            assert!(products.len() >= 7 && products.iter().all(|l| of_half(&l)), "{half}: {products:#?}");
        }
    }
}

/// Of one query and two keys, with numbers that are powers of two, results are factors that the attention makes, times such a
/// power: so the digits of these can be read off. They are those of TF32, and the result is that of the rounded weight.
pub(crate) fn made_factors_are_of_tf32(devices: &mut Devices) {
    let mut e = equations(DType::F32, [1, 1, 2, 16], Features::default(), true);
    let key = |head: usize, d: usize| 2f64.powi(-3 - head as i32 - (d % 3) as i32);
    let leaves: Vec<Id> = e.graph.ids().filter(|id| e.bound.contains_key(id)).collect();
    let dims = e.graph.dims.clone();
    for (name, id) in ["q", "k", "v", "weight"].into_iter().zip(leaves) {
        let value = |at: &[usize]| match (name, at) {
            // Of two groups one asks for nothing, and has halves as weights.
            ("q", [.., group, _]) => f64::from(u8::from(*group == 0)),
            ("k", [_, k, head, d]) => *k as f64 * key(*head, *d),
            ("v", [.., k, _]) => 1.0 - *k as f64,
            _ => 1.0,
        };
        e.bound.insert(id, F64Tensor::build(&dims, &e.graph.ty(id).dims, value));
    }
    let step = StepGraph { float: TF32.0, ..step(&e.graph, &e.outputs) };
    let (inputs, states) = tensors(&e.graph, &e.bound);
    // A width that is split has no kernel of its own: products and functions are apart.
    for way in [way(&[], vec![]), way(&[2], vec![to(e.dims[5], &[0])])] {
        let out = devices.run(planned(&step, &way).unwrap(), &inputs, &states).unwrap();
        for (name, besides) in [("dq", 0.0), ("dk", 0.0), ("dv", 0.5)] {
            for x in out[name].0.data.to_f64() {
                let made = x as f32 - besides;
                assert!(made != 0.0 && made.to_bits() & 0x1fff == 0, "{name} has {made}");
            }
        }
        let y = out["y"].0.data.to_f64();
        let mut most: f64 = 0.0;
        for head in 0..2 {
            let weight = (-0.4 * (0..16).map(|d| key(head, d)).sum::<f64>()).exp();
            let rounded = f64::from(tf32(weight as f32));
            let got = y[32 * head] * (1.0 + weight);
            assert!((got - rounded).abs() < 1e-6, "{got} of the weight {weight}, not {rounded}");
            most = most.max((weight - rounded).abs());
        }
        assert!(most > 2e-5, "the weights have the digits of TF32 unrounded: {most}");
    }
}

#[test]
fn factors_that_an_attention_makes_are_of_tf32() {
    for device in [meshwright_cpu::device(), meshwright_burn::device(), meshwright_burn::reference()] {
        made_factors_are_of_tf32(&mut Devices::of(device));
    }
}

/// In TF32, on every backend of the host.
#[test]
fn attention_of_tf32_equals_its_equations() {
    let split = |dims: &[Dim]| dims[..4].iter().map(|d| way(&[2], vec![to(*d, &[0])])).collect();
    for device in [meshwright_cpu::device(), meshwright_burn::device(), meshwright_burn::reference()] {
        let mut devices = Devices::of(device);
        for (name, has) in each().into_iter().chain(biases()) {
            check_half(name, TF32, [2, 9, 17, 16], has, &mut devices, &one);
            check_half(name, TF32, [2, 9, 9, 16], has, &mut devices, &split);
        }
    }
}

/// What a GPU launches for it: one kernel for the parts of a pass, bits that are drawn ahead and kept, tiles that positions
/// decide.
#[test]
fn attention_of_half_types_as_a_gpu_launches_it() {
    let split = |dims: &[Dim]| dims[..4].iter().map(|d| way(&[2], vec![to(*d, &[0])])).collect();
    let some = |dims: &[Dim]| dims[1..3].iter().map(|d| way(&[4], vec![to(*d, &[0])])).collect();
    let mut devices = Devices::of(meshwright_burn::reference());
    for half in HALVES {
        for (name, has) in each() {
            check_half(name, half, [2, 70, 139, 16], has, &mut devices, &one);
            check_half(name, half, [2, 9, 9, 32], has, &mut devices, &split);
            // The last device has nothing.
            check_half(name, half, [2, 5, 5, 16], has, &mut devices, &some);
            check_half(name, half, [1, 5, 7, 256], has, &mut devices, &one);
        }
        for (name, has) in biases() {
            check_half(name, half, [2, 70, 139, 16], has, &mut devices, &one);
            check_half(name, half, [3, 9, 9, 32], has, &mut devices, &split);
        }
    }
}

/// What is recognized in a program of `f32` as a GPU launches it; each has a kernel.
#[test]
fn attention_of_f32_as_a_gpu_launches_it() {
    let split = |dims: &[Dim]| dims[..4].iter().map(|d| way(&[2], vec![to(*d, &[0])])).collect();
    let mut devices = Devices::of(meshwright_burn::reference());
    for (name, has) in each().into_iter().chain(biases()) {
        check(name, DType::F32, [2, 70, 139, 16], has, &mut devices, &one);
        check(name, DType::F32, [3, 9, 9, 32], has, &mut devices, &split);
        let e = equations(DType::F32, [1, 9, 9, 128], has, true);
        let plan = plan(&step(&e.graph, &e.outputs), &layout(&way(&[], vec![]).mesh, vec![]), true).unwrap();
        let compiled = meshwright_device::compile(&plan.plan, 0, Target::h100()).unwrap();
        let without: Vec<_> = compiled.attention_without_kernel.iter().collect();
        let lacks = without.iter().map(|(_, why)| why.to_string());
        // A bias that lacks queries has none, of whichever dtype.
        assert!(lacks.into_iter().all(|why| why.contains("its bias")), "{name}: {without:?}");
    }
}

/// Where kernels are plain operations, no tensor has the scores of all queries and keys: tests compute 64 at a time there.
#[test]
fn plain_operations_hold_some_scores_at_a_time() {
    let sizes = [2, 40, 30, 5];
    let e = equations(DType::F32, sizes, ALL, true);
    let plan = plan(&step(&e.graph, &e.outputs), &layout(&way(&[], vec![]).mesh, vec![]), true).unwrap().plan;
    let graphs =
        text(&plan, &meshwright_device::compile(&plan, 0, Target::burn_on_host(false)).unwrap(), true);
    let shape = |(at, _): (usize, &str)| {
        let inside = graphs[at + 1..].split(']').next()?;
        inside.split(", ").map(str::parse).collect::<Result<Vec<usize>, _>>().ok()
    };
    let shapes: Vec<_> = graphs.match_indices('[').filter_map(shape).collect();
    let has = |s: &[usize], n: usize| s.contains(&n);
    assert!(shapes.iter().any(|s| s.ends_with(&[2, 30])), "two queries with all keys: {shapes:?}");
    let whole: Vec<_> = shapes.iter().filter(|s| has(s, 40) && has(s, 30)).collect();
    assert!(whole.is_empty(), "{whole:?}");
}

/// Every dim over 2 and 4 devices (some of which hold nothing), every pair of dims over two axes.
#[test]
fn attention_equals_its_equations_however_it_is_split() {
    let mut devices = Devices::default();
    let ways = |dims: &[Dim]| {
        let mut ways = vec![];
        for d in dims {
            ways.extend([2, 4].map(|n| way(&[n], vec![to(*d, &[0])])));
            for e in dims.iter().filter(|e| *e != d) {
                ways.push(way(&[2, 3], vec![to(*d, &[0]), to(*e, &[1])]));
            }
        }
        ways
    };
    let padded = ("padded", Features { padded: true, ..Features::default() });
    for (name, has) in [padded, ("all", ALL)].into_iter().chain(biases()) {
        check(name, DType::F64, [3, 7, 7, 5], has, &mut devices, &ways);
    }
}

fn parts(plan: &Plan) -> Vec<Vec<AttentionPart>> {
    let of = |p: &Prim| if let Prim::Attention { parts, .. } = p { Some(parts.clone()) } else { None };
    plan.steps.iter().filter_map(|s| of(&s.prim)).collect()
}

/// One step forward and one backward; nothing has both queries and keys, and no mask is stored.
#[test]
fn scores_are_never_stored() {
    use AttentionPart::{Bias, Key, Max, Query, Result, Sum, Value, Values};
    let e = equations(DType::F32, [2, 8, 8, 5], ALL, true);
    let [_, seq, key, ..] = e.dims[..] else { panic!() };
    let step = step(&e.graph, &e.outputs);
    let planned = |rules| plan(&step, &layout(&way(&[2], vec![]).mesh, rules), true).unwrap().plan;
    let whole = planned(vec![]);
    assert_eq!(parts(&whole), [vec![Max, Sum, Result], vec![Query, Key, Value]]);
    let split = planned(vec![to(key, &[0])]);
    assert_eq!(parts(&split), [vec![Max], vec![Sum, Values], vec![Query, Key, Value]]);
    let e = equations(DType::F32, [2, 8, 8, 5], Features { bias: "heads group seq key", ..ALL }, true);
    let biased =
        plan(&crate::subject::step(&e.graph, &e.outputs), &layout(&way(&[2], vec![]).mesh, vec![]), true);
    assert_eq!(parts(&biased.unwrap().plan), [vec![Max, Sum, Result], vec![Query, Key, Value, Bias]]);
    for plan in [whole, split] {
        let both = |o: &meshwright_plan::Operand| o.dims.contains(&seq) && o.dims.contains(&key);
        let stored: Vec<_> = plan.steps.iter().flat_map(|s| s.all()).filter(|o| both(o)).collect();
        assert!(stored.is_empty(), "{stored:?}");
    }
}

/// Why a softmax that weights a sum is no attention.
#[test]
fn what_is_nearly_attention_says_why_not() {
    /// Changes a graph; gives the softmax's operand, and what stands around it.
    type Change<'a> = &'a dyn Fn(&mut Graph, &[Id], [Dim; 4]) -> (Id, Vec<Id>, Vec<Id>);
    let why = |change: Change<'_>| {
        let mut g = Graph::new(Dims::default());
        let dims = ["q", "key", "w", "v"].map(|n| g.dims.add(n, 4));
        let [q, key, w, v] = dims;
        let leaves: Vec<Id> = [("q", [q, w]), ("k", [key, w]), ("v", [key, v]), ("b", [q, key])]
            .iter()
            .map(|(n, dims)| leaf(&mut g, n, DType::F32, dims, true))
            .collect();
        let (y, roots, trained) = change(&mut g, &leaves, dims);
        let needs = needs(&g, &trained);
        let roots = [vec![y], roots].concat();
        let found = Recognizer::new(&g, &roots, needs).run(&mut g);
        found.into_iter().map(|f| f.1.map_err(|m| m.0)).next()
    };
    let usual = |g: &mut Graph, score: Id, x: &[Id], [q, key, _, v]: [Dim; 4]| {
        let p = g.op(Softmax { dim: key, log: false }, &[score]);
        (g.op(Contract { out: vec![q, v] }, &[p, x[2]]), p)
    };
    let product =
        |g: &mut Graph, x: &[Id], [q, key, ..]: [Dim; 4]| g.op(Contract { out: vec![q, key] }, &[x[0], x[1]]);
    let sound = why(&|g, x, d| {
        let s = product(g, x, d);
        (usual(g, s, x, d).0, vec![], x.to_vec())
    });
    assert_eq!(sound, Some(Ok(())));
    let read = why(&|g, x, d| {
        let s = product(g, x, d);
        let (y, p) = usual(g, s, x, d);
        (y, vec![p], x.to_vec())
    });
    assert_eq!(read, Some(Err("its weights are read by something else too".into())));
    let bias = why(&|g, x, d| {
        let s = product(g, x, d);
        let s = g.sum_of(&[s, x[3]]);
        (usual(g, s, x, d).0, vec![], x.to_vec())
    });
    assert_eq!(bias, Some(Ok(())));
    let two = why(&|g, x, d| {
        let s = product(g, x, d);
        g.cursor.name = "twice".into();
        let twice = g.scaled(x[3], 2.0);
        let s = g.sum_of(&[s, x[3], twice]);
        (usual(g, s, x, d).0, vec![], x.to_vec())
    });
    assert_eq!(two, Some(Err("`b` and `twice` in its scores have gradients of their own".into())));
    let weighted = |g: &mut Graph, by: Id, score: Id, x: &[Id], [q, key, _, v]: [Dim; 4]| {
        let p = g.op(Softmax { dim: key, log: false }, &[score]);
        let p = g.product(&[p, by]);
        g.op(Contract { out: vec![q, v] }, &[p, x[2]])
    };
    let gate = why(&|g, x, d| {
        let s = product(g, x, d);
        (weighted(g, x[3], s, x, d), vec![], x.to_vec())
    });
    assert_eq!(gate, Some(Err("`b` in its weights has a gradient of its own".into())));
    let by_score = why(&|g, x, d| {
        let s = product(g, x, d);
        (weighted(g, s, s, x, d), vec![], x.to_vec())
    });
    let because = "its weights are made of its scores beside the softmax too";
    assert_eq!(by_score, Some(Err(because.into())));
    let none = why(&|g, x, d| (usual(g, x[3], x, d).0, vec![], x.to_vec()));
    assert_eq!(none, Some(Err("its scores hold no product of queries and keys".into())));
    let classes = why(&|g, x, d| {
        let p = g.op(Softmax { dim: d[1], log: false }, &[x[3]]);
        (g.unary(&TANH, p), vec![], x.to_vec())
    });
    assert_eq!(classes, None, "a softmax that weights no sum is nobody's attention");
}
