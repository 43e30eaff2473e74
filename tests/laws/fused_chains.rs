//! Chains of steps that devices with compiled kernels compute in other pieces than the Plan says: integers beside constants, rows
//! and columns of many lengths, values that are only folded, several folds at once, products with what follows them.

use crate::devices::{Devices, to};
use crate::oracle::{Bound, walk};
use crate::rng::Rng;
use crate::split::{Way, Within, same_step, way};
use crate::subject::{step, tensors};
use meshwright_ops::{
    Concat, CrossEntropyGrad, ERF, F64Tensor, Graph, Id, InputOp, InputOpKind, LogSumExp, NEG, RELU, Random,
    Shift, TANH, Type,
};
use meshwright_plan::random::Distribution;
use meshwright_plan::{DType, Dim, Dims, Monoid};

/// `[rows, columns]` of numbers, weights of the columns, and all that is computed of them.
fn equations([rows, columns]: [usize; 2]) -> (Graph, Bound, Vec<(&'static str, Id)>, [Dim; 2]) {
    let mut g = Graph::new(Dims::default());
    let (r, c, h) = (g.dims.add("r", rows), g.dims.add("c", columns), g.dims.add("h", 6));
    let (mut rng, mut bound) = (Rng::new(5), Bound::new());
    let mut input = |g: &mut Graph, name: &str, dims: &[Dim]| {
        let leaf = InputOpKind::Input { name: name.into() };
        let id = g.op(InputOp { input: leaf, ty: Type::new(DType::F32, dims.to_vec()) }, &[]);
        bound.insert(id, F64Tensor::build(&g.dims, dims, |_| f64::from(rng.float(-2.0, 2.0) as f32)));
        id
    };
    let (x, y) = (input(&mut g, "x", &[r, c]), input(&mut g, "y", &[r, c]));
    let w = input(&mut g, "w", &[c]);
    let (v, b) = (input(&mut g, "v", &[c, h]), input(&mut g, "b", &[h]));
    let (k, o) = (g.dims.add("k", 2), g.dims.add("o", 3));
    let (u, t) = (input(&mut g, "u", &[c, k, h]), input(&mut g, "t", &[h, o]));
    let dz = input(&mut g, "dz", &[r, k, o]);
    let leaf = InputOpKind::Input { name: "label".into() };
    let label = g.op(InputOp { input: leaf, ty: Type { range: Some(c), ..Type::new(DType::I32, [r]) } }, &[]);
    bound.insert(label, F64Tensor::build(&g.dims, &[r], |at| (at[0] * 3 % columns) as f64));
    // Of integers: what is compared, chosen and added is constant, or a position.
    let known = columns as f64 * 0.75;
    let (at, end) = (g.index(c), g.constant(known.floor(), DType::I32));
    let (is_known, never) = (g.binary("<", at, end), g.constant(-1e9, DType::F32));
    let masked = g.choose(is_known, x, never);
    let (three, row) = (g.constant(3.0, DType::I32), g.index(r));
    let chosen = g.choose(is_known, three, row);
    let places = g.sum_of(&[chosen, at]);
    let places = g.cast(places, DType::F32);
    let weighed = g.product(&[places, w]);
    // Values that are only folded, and one that is written beside them.
    let centered = g.product(&[x, w]);
    let square = g.product(&[centered, centered]);
    let squares = g.reduce(Monoid::Sum, square, &[c]);
    let shifted = g.sum_of(&[centered, y]);
    let (first, second) = sums_of_products(&mut g, [x, y], [r, c]);
    // A sum of what is computed of sums: they are not one launch.
    let sums = g.reduce(Monoid::Sum, x, &[c]);
    let doubled = g.scaled(sums, 2.0);
    let total = g.reduce(Monoid::Sum, doubled, &[r]);
    // A matmul with a bias and a function, read by a matmul and a sum; and one with the gradient of the function.
    let (hidden, through) = through_relu(&mut g, [x, y, v, b], [r, h]);
    // The same with groups: columns of the first product are rows of the second.
    let (grouped, through_groups) = through_groups(&mut g, [x, u, dz, t], [r, k, h]);
    // Halves of rows that change places, parts of them, and rows with zeros around: what begins in the middle of a row is read
    // there, or copied.
    let turned = turned(&mut g, [x, y], c);
    let repeated = repeated(&mut g, [x, y], [r, c]);
    // Rows of which what is made is written.
    let graded = g.op(CrossEntropyGrad { dim: c }, &[x, label, sums]);
    let mut outputs = vec![
        ("hidden", hidden),
        ("through", through),
        ("grouped", grouped),
        ("through_groups", through_groups),
        // The sums of a left factor along two dims.
        ("group_grad", g.contract_to(&[grouped, x], &[k, h, c])),
        ("group_sums", g.reduce(Monoid::Sum, grouped, &[r])),
        ("weight_grad", g.contract_to(&[x, hidden], &[c, h])),
        ("bias_grad", g.reduce(Monoid::Sum, hidden, &[r])),
        ("kept", let_through(&mut g, x, [r, c], 0.1)),
        ("seldom", let_through(&mut g, x, [r, c], 0.995)),
        ("first_factor", first),
        ("second_factor", second),
        ("graded", g.scaled(graded, 0.5)),
        ("total", total),
        ("logsumexp", g.op(LogSumExp { dim: c }, &[masked])),
        ("weighed", weighed),
        ("squares", squares),
        ("shifted", shifted),
        ("by_columns", g.contract_to(&[x, y], &[c])),
        ("by_rows", g.contract_to(&[x, y], &[r])),
        ("all", g.contract_to(&[x, x], &[])),
        ("all_others", g.contract_to(&[y, y], &[])),
        ("weights", g.contract_to(&[w, w], &[])),
        ("greatest", g.reduce(Monoid::Max, shifted, &[r])),
        ("least", g.reduce(Monoid::Min, y, &[c])),
    ];
    outputs.extend(turned.into_iter().chain([("repeated", repeated)]));
    (g, bound, outputs, [r, c])
}

/// `[-second half, first half]` of each row, rows among zeros, with themselves three later among halves, and turned halves.
fn turned(g: &mut Graph, [x, y]: [Id; 2], c: Dim) -> [(&'static str, Id); 4] {
    let (rotated, back) = rotated(g, [x, y], c);
    let columns = g.dims.size(c);
    let (first, second) = (columns / 2, columns - columns / 2);
    let [a, b, long] = [("a", first.max(1)), ("b", second), ("long", columns + 8)]
        .map(|(name, size)| g.dims.add(name, size));
    let part = |g: &mut Graph, to: Dim, start: usize| {
        g.op(Shift { from: c, to, start: start as i64, fill: 0.0 }, &[x])
    };
    let moved = part(g, long, 0);
    let later = g.op(Shift { from: c, to: long, start: -3, fill: 0.5 }, &[x]);
    let moved = g.sum_of(&[moved, later]);
    let (front, minus) = (part(g, a, 0), part(g, b, first));
    let minus = g.unary(&NEG, minus);
    let both = g.dims.add("both", first.max(1) + second);
    let turned = g.op(Concat { parts: vec![b, a], to: both }, &[minus, front]);
    [("turned", turned), ("moved", moved), ("rotated", rotated), ("back", back)]
}

/// A join of a value twice, what is computed of it there, and one value for all rows.
fn repeated(g: &mut Graph, [x, y]: [Id; 2], [r, c]: [Dim; 2]) -> Id {
    let all = g.dims.add("all", 4 * g.dims.size(c));
    let product = g.product(&[x, y]);
    let (most, warped) = (g.reduce(Monoid::Max, x, &[r]), g.unary(&TANH, product));
    let most = g.expanded(most, &[r, c]);
    g.op(Concat { parts: vec![c; 4], to: all }, &[x, warped, x, most])
}

/// Both halves of each row, turned as rotary positions turn them: parts that are computed where they are joined. Those of the
/// second result lie among zeros, and are added.
fn rotated(g: &mut Graph, [x, y]: [Id; 2], c: Dim) -> (Id, Id) {
    let first = g.dims.size(c) / 2;
    let size = first.max(1);
    let (half, both) = (g.dims.add("half", size), g.dims.add("halves", 2 * size));
    let part = |g: &mut Graph, of: Id, start: usize| {
        g.op(Shift { from: c, to: half, start: start as i64, fill: 0.0 }, &[of])
    };
    let ([a, b], [p, q]) = ([0, first].map(|at| part(g, x, at)), [0, first].map(|at| part(g, y, at)));
    let turn = |g: &mut Graph, sign: f64| {
        let [ap, bq, bp, aq] = [[a, p], [b, q], [b, p], [a, q]].map(|factors| g.product(&factors));
        let (bq, aq) = (g.scaled(bq, -sign), g.scaled(aq, sign));
        [g.sum_of(&[ap, bq]), g.sum_of(&[bp, aq])]
    };
    let (forward, back) = (turn(g, 1.0), turn(g, -1.0));
    let rotated = g.op(Concat { parts: vec![half, half], to: both }, &forward);
    let among_zeros = |g: &mut Graph, of: Id, at: usize| {
        g.op(Shift { from: half, to: both, start: -(at as i64), fill: 0.0 }, &[of])
    };
    let pieces = [among_zeros(g, back[1], size), among_zeros(g, back[0], 0)];
    (rotated, g.sum_of(&pieces))
}

/// Sums of products of which a factor is computed there: the first one and the second one, along rows and along columns.
fn sums_of_products(g: &mut Graph, [x, y]: [Id; 2], [r, c]: [Dim; 2]) -> (Id, Id) {
    let (halved, warped) = (g.scaled(y, 0.5), g.unary(&TANH, x));
    (g.contract_to(&[halved, x], &[r]), g.contract_to(&[y, warped], &[c]))
}

/// What a dropout of that rate lets through: eight elements share a counter of the generator, or four, of rows of many lengths.
fn let_through(g: &mut Graph, x: Id, dims: [Dim; 2], rate: f64) -> Id {
    let distribution = Distribution::Bernoulli { rate };
    let kept =
        Random { stream: format!("kept {rate}"), distribution, dims: dims.to_vec(), dtype: DType::Bool };
    let kept = g.op(kept, &[]);
    g.masked(kept, x)
}

/// A product with a bias and a `relu`, and the gradient through that `relu` of a product with the same matrix.
fn through_relu(g: &mut Graph, [x, y, v, b]: [Id; 4], [r, h]: [Dim; 2]) -> (Id, Id) {
    let product = g.contract_to(&[x, v], &[r, h]);
    let biased = g.sum_of(&[product, b]);
    let hidden = g.unary(&RELU, biased);
    let zero = g.constant(0.0, DType::F32);
    let above = g.binary(">", hidden, zero);
    let above = g.cast(above, DType::F32);
    let back = g.contract_to(&[y, v], &[r, h]);
    (hidden, g.product(&[back, above]))
}

/// The same of products whose columns are two dims.
fn through_groups(g: &mut Graph, [x, u, dz, t]: [Id; 4], dims: [Dim; 3]) -> (Id, Id) {
    let grouped = g.contract_to(&[x, u], &dims);
    let grouped = g.unary(&RELU, grouped);
    let zero = g.constant(0.0, DType::F32);
    let above = g.binary(">", grouped, zero);
    let above = g.cast(above, DType::F32);
    let back = g.contract_to(&[dz, t], &dims);
    (grouped, g.product(&[back, above]))
}

fn are_the_same(mut devices: Devices, what: &str, ways: &dyn Fn([Dim; 2]) -> Vec<Way>) {
    let mut cases = 0;
    for sizes in [[1, 1], [3, 5], [7, 64], [64, 7], [33, 1030], [1100, 12], [2, 40_000]] {
        let (g, bound, outputs, dims) = equations(sizes);
        let values = walk(&g, &bound);
        let wanted: Vec<_> =
            outputs.iter().map(|(name, id)| (*name, *id, values[id.0 as usize].clone())).collect();
        let step = step(&g, &outputs);
        // Sums of so many products are off by what `f32` rounds of each.
        let within = Within { least: 1.0, narrow: 2e-5, ..Within::default() };
        cases += same_step("fused", &step, &tensors(&g, &bound), &wanted, within, &ways(dims), &mut devices)
            .unwrap_or_else(|e| panic!("{sizes:?}: {e}"));
    }
    crate::report(&format!("{what}: {cases} cases"));
}

fn whole(_: [Dim; 2]) -> Vec<Way> {
    vec![way(&[], vec![])]
}

#[test]
fn chains_of_steps_are_the_same_on_the_host() {
    let ways =
        |[r, c]: [Dim; 2]| vec![way(&[], vec![]), way(&[3], vec![to(r, &[0])]), way(&[2], vec![to(c, &[0])])];
    are_the_same(Devices::default(), "fused, native", &ways);
    are_the_same(Devices::of(meshwright_burn::device()), "fused, plain operations", &whole);
}

#[test]
fn chains_of_steps_are_the_same_as_a_gpu_launches_them() {
    are_the_same(Devices::of(meshwright_burn::reference()), "fused, launches of a GPU", &whole);
}

#[cfg(feature = "cubecl-cpu")]
#[test]
fn chains_of_steps_are_the_same_compiled_for_the_host() {
    are_the_same(Devices::of(meshwright_cuda::compiled_on_host()), "fused, CubeCL on the host", &whole);
}

#[cfg(feature = "cuda")]
#[test]
fn chains_of_steps_are_the_same_on_a_gpu() {
    if crate::engines::gpu() {
        are_the_same(Devices::of(meshwright_cuda::gpu(0)), "fused, GPU", &whole);
    }
}

/// The error function of numbers from a millionth to six, of which the small ones give small numbers: the error is relative.
/// Beside a value of a half type, whose rounding is greater, it may be larger.
fn erf_is_precise(mut devices: Devices) {
    for (half, narrow) in [(false, 5e-7), (true, 3e-5)] {
        erf_is_within(half, narrow, &mut devices);
    }
}

fn erf_is_within(half: bool, narrow: f64, devices: &mut Devices) {
    let mut g = Graph::new(Dims::default());
    let r = g.dims.add("r", 400);
    let leaf = InputOpKind::Input { name: "x".into() };
    let x = g.op(InputOp { input: leaf, ty: Type::new(DType::F32, vec![r]) }, &[]);
    let of = |i: usize| f64::from([1.0, -1.0][i % 2] * 10f32.powf(i as f32 / 400.0 * 6.78 - 6.0));
    let mut bound = Bound::from([(x, F64Tensor::build(&g.dims, &[r], |at| of(at[0])))]);
    let mut erf = g.unary(&ERF, x);
    if half {
        let leaf = InputOpKind::Input { name: "none".into() };
        let none = g.op(InputOp { input: leaf, ty: Type::new(DType::BF16, vec![r]) }, &[]);
        bound.insert(none, F64Tensor::build(&g.dims, &[r], |_| 0.0));
        erf = g.sum_of(&[erf, none]);
    }
    let outputs = vec![("erf", erf)];
    let values = walk(&g, &bound);
    let wanted: Vec<_> =
        outputs.iter().map(|(name, id)| (*name, *id, values[id.0 as usize].clone())).collect();
    let within = Within { least: 1e-9, narrow, ..Within::default() };
    let whole = vec![way(&[], vec![])];
    same_step("erf", &step(&g, &outputs), &tensors(&g, &bound), &wanted, within, &whole, devices)
        .unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn erf_is_precise_on_the_host() {
    erf_is_precise(Devices::default());
}

#[cfg(feature = "cuda")]
#[test]
fn erf_is_precise_on_a_gpu() {
    if crate::engines::gpu() {
        erf_is_precise(Devices::of(meshwright_cuda::gpu(0)));
    }
}
