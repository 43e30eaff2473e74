//! Gradients: against central differences of the oracle, and the same under every layout.

use crate::devices::Devices;
use crate::oracle::{Bound, close_from, walk};
use crate::rng::Rng;
use crate::split::{Way, same, ways_of_inputs, ways_of_params};
use crate::subject::{Arrival, Built, Subject, build, narrow, narrowed, subjects};
use meshwright_core::ParamDecl;
use meshwright_core::step::autodiff::gradients;
use meshwright_diag::Span;
use meshwright_ops::{
    F64Tensor, Graph, Id, InputOp, InputOpKind, OpCall, Origin, Piece, StraightThrough, Type, Value, family,
};
use meshwright_plan::{DType, Dim, Dims, Init};
use std::time::Instant;

/// Some gradients are zero everywhere (of the sum of a softmax): they have no magnitude of their own.
const LEAST: f64 = 0.01;

/// A sample with a scalar loss: the sum of its value times weights over `weighted` dims (a cotangent that lacks all other
/// dims).
struct Loss {
    built: Built,
    loss: Id,
    params: Vec<ParamDecl>,
    /// Values before the backward pass.
    forward: Graph,
    grads: Vec<Id>,
}

fn loss(subject: &Subject, weighted: usize, seed: u64) -> Result<Loss, String> {
    let arrival = |i: usize| if subject.inputs[i].dtype.is_float() { Arrival::Param } else { Arrival::Input };
    let arrivals: Vec<Arrival> = (0..subject.inputs.len()).map(arrival).collect();
    let mut built = build(subject, &arrivals, seed)?;
    let g = &mut built.graph;
    let dims: Vec<Dim> = g.ty(built.value).dims.iter().copied().take(weighted).collect();
    let mut rng = Rng::new(seed + 100);
    let weights = F64Tensor::build(&g.dims, &dims, |_| rng.float(-1.0, 1.0));
    g.cursor = Origin::default();
    let dtype = g.ty(built.value).dtype;
    let dtype = if dtype.is_float() { dtype } else { DType::F64 };
    let leaf = InputOp { input: InputOpKind::Input { name: "weights".into() }, ty: Type::new(dtype, dims) };
    let w = g.op(leaf, &[]);
    built.bound.insert(w, weights);
    let factors = if weighted == 0 { vec![built.value] } else { vec![built.value, w] };
    let loss = g.contract_to(&factors, &[]);
    let forward = g.clone();
    let params: Vec<ParamDecl> = (built.operands.iter().enumerate())
        .filter(|(i, _)| subject.inputs[*i].dtype.is_float())
        .map(|(i, id)| ParamDecl::new(format!("x{i}"), *id, Span::default()))
        .collect();
    let grads = gradients(g, loss, &params.iter().collect::<Vec<_>>());
    Ok(Loss { built, loss, params, forward, grads })
}

/// Every way a cotangent can look: constant, along the first dim only, …, along all dims.
fn losses(subject: &Subject) -> Result<Vec<Loss>, String> {
    let dims = build(subject, &[], 0).map(|b| b.graph.ty(b.value).dims.len())?;
    (0..=dims).map(|weighted| loss(subject, weighted, 5)).collect()
}

/// The gradient at a parameter by central differences, element by element.
fn differences(l: &Loss, param: Id) -> Vec<f64> {
    const STEP: f64 = 1e-5;
    let at = |bound: &Bound| walk(&l.forward, bound)[l.loss.0 as usize].data[0];
    let n = l.built.bound[&param].data.len();
    let moved = |i: usize, by: f64| {
        let mut bound = l.built.bound.clone();
        if let Some(x) = bound.get_mut(&param) {
            x.data[i] += by;
        }
        at(&bound)
    };
    (0..n).map(|i| (moved(i, STEP) - moved(i, -STEP)) / (2.0 * STEP)).collect()
}

#[test]
fn gradients_equal_differences() {
    let (mut checked, mut wrong) = (0, Vec::new());
    for subject in subjects().iter().filter(|s| s.differentiable) {
        for (weighted, l) in losses(subject).unwrap().iter().enumerate() {
            let values = walk(&l.built.graph, &l.built.bound);
            for (p, grad) in l.params.iter().zip(&l.grads) {
                let dims = &l.built.bound[&p.id].dims;
                let got = values[grad.0 as usize].ordered(dims);
                let want = differences(l, p.id);
                match close_from(&got.data, &want, 1e-6, LEAST) {
                    Err(e) => {
                        wrong.push(format!("{}, {weighted} dims weighted, d({}): {e}", subject.name, p.path))
                    }
                    Ok(()) => checked += 1,
                }
            }
        }
    }
    crate::report(&format!("gradients against differences: {checked}"));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn gradients_are_the_same_however_they_are_split() {
    let ways = |dims: &[Dim]| {
        let mut ways = ways_of_inputs(dims);
        ways.extend(ways_of_params(dims));
        ways
    };
    gradients_on(Devices::default(), "split gradients", false, &ways);
}

/// The gradients of all samples (or of those that are built in f32 too) on some devices, placed in some ways.
pub(crate) fn gradients_on(
    mut devices: Devices,
    what: &str,
    in_f32: bool,
    ways: &dyn Fn(&[Dim]) -> Vec<Way>,
) {
    let begin = Instant::now();
    let (mut cases, mut wrong) = (0, Vec::new());
    for subject in subjects().iter().filter(|s| s.differentiable) {
        if in_f32 && narrow(subject).is_none() {
            continue;
        }
        let subject = &if in_f32 { narrowed(subject) } else { subject.clone() };
        // The oracle is of f64: sums that cancel are off by what f32 rounds.
        let least = if in_f32 { 1.0 } else { LEAST };
        for (weighted, l) in losses(subject).unwrap().iter().enumerate() {
            let g = &l.built.graph;
            let values = walk(g, &l.built.bound);
            let mut outputs = vec![("loss", l.loss, values[l.loss.0 as usize].clone())];
            for (p, grad) in l.params.iter().zip(&l.grads) {
                outputs.push((&p.path, *grad, values[grad.0 as usize].clone()));
            }
            let ways = ways(&l.built.dims);
            let name = format!("{}, {weighted} dims weighted", subject.name);
            match same(&name, g, &l.built.bound, &outputs, least, &ways, &mut devices) {
                Ok(n) => cases += n,
                Err(e) => wrong.push(e),
            }
        }
    }
    crate::report(&format!("{what}: gradients, {cases} cases in {:.1?}", begin.elapsed()));
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

/// The gradients of a family's result for its operands, which are scalar parameters.
fn at_point(name: &str, x: &[f64]) -> Vec<f64> {
    let mut g = Graph::new(Dims::default());
    let mut bound = Bound::new();
    let mut params = Vec::new();
    for (i, v) in x.iter().enumerate() {
        let path = format!("x{i}");
        let leaf = InputOpKind::Param { path: path.clone(), init: Init::Constant(0.0) };
        let id = g.op(InputOp { input: leaf, ty: Type::new(DType::F64, []) }, &[]);
        bound.insert(id, F64Tensor::scalar(*v));
        params.push(ParamDecl::new(path, id, Span::default()));
    }
    let args = params.iter().map(|p| Value::Tensor(p.id)).collect();
    let loss = family(name, false).unwrap().call(&mut g, OpCall::of(args, DType::F64)).unwrap();
    let grads = gradients(&mut g, loss, &params.iter().collect::<Vec<_>>());
    let values = walk(&g, &bound);
    grads.iter().map(|id| values[id.0 as usize].data[0]).collect()
}

/// As JAX has it: no logarithm of 0 is taken where the power is 0 or 1.
#[test]
fn powers_have_gradients_for_the_exponent_at_zero() {
    for (x, q) in [(0.0, 0.0), (0.0, 0.5), (0.0, 1.0), (0.0, 3.0), (-0.0, 2.0)] {
        assert_eq!(at_point("pow", &[x, q])[1], 0.0, "{x} ** {q}");
    }
    assert_eq!(at_point("pow", &[2.0, 3.0])[1], 8.0 * 2.0_f64.ln());
    assert!(at_point("pow", &[-2.0, 3.0])[1].is_nan());
}

#[test]
fn silu_is_the_identity_far_out() {
    for x in [40.0, 100.0, 1.7e7, 1e30] {
        assert_eq!(at_point("silu", &[x]), [1.0], "silu'({x})");
    }
    assert_eq!(at_point("silu", &[0.0]), [0.5]);
    assert_eq!(at_point("silu", &[-1e30]), [0.0]);
}

/// The value says nothing of it, and what the second lacks is summed.
#[test]
fn a_value_has_the_gradient_of_another() {
    for value in [3.0, f64::INFINITY] {
        assert_eq!(at_point("straight_through", &[value, -2.0]), [0.0, 1.0]);
    }
    let mut g = Graph::new(Dims::default());
    let dims = [g.dims.add("n", 2), g.dims.add("k", 3)];
    let param = |g: &mut Graph, path: &str, dims: &[Dim]| {
        let leaf = InputOpKind::Param { path: path.into(), init: Init::Constant(0.0) };
        g.op(InputOp { input: leaf, ty: Type::new(DType::F64, dims.to_vec()) }, &[])
    };
    let (x, p, q) = (param(&mut g, "x", &dims), param(&mut g, "p", &dims[..1]), param(&mut g, "q", &[]));
    let through = g.product(&[p, p, q]);
    let y = g.op(StraightThrough, &[x, through]);
    let loss = g.contract_to(&[y, y], &[]);
    let params =
        [("x", x), ("p", p), ("q", q)].map(|(path, id)| ParamDecl::new(path.into(), id, Span::default()));
    let grads = gradients(&mut g, loss, &[&params[0], &params[1], &params[2]]);
    let values = (1..=6).map(f64::from).collect();
    let given = [(x, &dims[..], values), (p, &dims[..1], vec![5.0, 7.0]), (q, &[][..], vec![2.0])];
    let bound: Bound = given
        .into_iter()
        .map(|(id, dims, data)| (id, F64Tensor::new(&g.dims, dims.to_vec(), data)))
        .collect();
    let all = walk(&g, &bound);
    assert_eq!(all[loss.0 as usize].data, [91.0]);
    let found = [0, 1, 2].map(|i| all[grads[i].0 as usize].ordered(given_dims(i, &dims)).data);
    // Twice the sums of rows, 6 and 15, times `2 p q` and `p ** 2`.
    assert_eq!(found, [vec![0.0; 6], vec![12.0 * 20.0, 30.0 * 28.0], vec![12.0 * 25.0 + 30.0 * 49.0]]);
}

/// The dims of `x`, `p` and `q`.
fn given_dims(of: usize, dims: &[Dim; 2]) -> &[Dim] {
    &dims[..2 - of]
}

/// Of equal elements the first in row-major order over the dims as they are written gets the gradient of a greatest or
/// least: a fold over two dims and a pool with windows of the same dims agree.
#[test]
fn ties_of_extremes_go_to_the_first_in_row_major_order() {
    for name in ["max", "min"] {
        // Rows of [n k]; of the greatest (or least) the first by `n`, then by `k`, is at (0, 2), not at (1, 0).
        let best = if name == "max" { 9.0 } else { -9.0 };
        let x = [0.0, 1.0, best, best, 1.0, 0.0];
        let gradient = |build: &dyn Fn(&mut Graph, Id, [Dim; 2]) -> Id| {
            let mut g = Graph::new(Dims::default());
            let dims = [g.dims.add("n", 2), g.dims.add("k", 3)];
            let leaf = InputOpKind::Param { path: "x".into(), init: Init::Constant(0.0) };
            let id = g.op(InputOp { input: leaf, ty: Type::new(DType::F64, dims) }, &[]);
            let y = build(&mut g, id, dims);
            let loss = g.contract_to(&[y], &[]);
            let param = ParamDecl::new("x".into(), id, Span::default());
            let grad = gradients(&mut g, loss, &[&param])[0];
            let bound: Bound = [(id, F64Tensor::new(&g.dims, dims, x.to_vec()))].into();
            walk(&g, &bound)[grad.0 as usize].ordered(&dims).data
        };
        let call = |g: &mut Graph, name: &str, x: Id, pieces: Vec<Piece>| {
            let call = OpCall { groups: vec![pieces], ..OpCall::of(vec![Value::Tensor(x)], DType::F64) };
            family(name, true).unwrap().call(g, call).unwrap()
        };
        let folded = gradient(&|g, x, dims| {
            call(g, name, x, vec![Piece { dims: dims.to_vec(), to: Vec::new(), by: None }])
        });
        let pooled = gradient(&|g, x, dims| {
            let mut piece = |d: Dim, to: &str, by: &str| {
                let (to, by) = (g.dims.add(to, 1), g.dims.add(by, g.dims.size(d)));
                Piece { dims: vec![d], to: vec![to], by: Some(by) }
            };
            let pieces = vec![piece(dims[0], "n2", "wn"), piece(dims[1], "k2", "wk")];
            call(g, &format!("{name}_pool"), x, pieces)
        });
        assert_eq!(folded, [0.0, 0.0, 1.0, 0.0, 0.0, 0.0], "{name}[n, k]");
        assert_eq!(pooled, folded, "{name}_pool[n, k]");
    }
}

/// Powers whose gradient at 0 is a number, where a logarithm or `0 ** -1` would make it none.
#[test]
fn powers_have_gradients_at_zero() {
    for (n, want) in [(0.0, 0.0), (1.0, 1.0), (2.0, 0.0), (3.0, 0.0)] {
        for tensor in [false, true] {
            let mut g = Graph::new(Dims::default());
            let leaf = InputOpKind::Param { path: "x".into(), init: Init::Constant(0.0) };
            let x = g.op(InputOp { input: leaf, ty: Type::new(DType::F64, []) }, &[]);
            let leaf = InputOpKind::Input { name: "n".into() };
            let exponent = g.op(InputOp { input: leaf, ty: Type::new(DType::F64, []) }, &[]);
            let args =
                vec![Value::Tensor(x), if tensor { Value::Tensor(exponent) } else { Value::Number(n) }];
            let loss = family("pow", false).unwrap().call(&mut g, OpCall::of(args, DType::F64)).unwrap();
            let param = ParamDecl::new("x".into(), x, Span::default());
            let grad = gradients(&mut g, loss, &[&param])[0];
            let scalar = F64Tensor::scalar;
            let bound: Bound = [(x, scalar(0.0)), (exponent, scalar(n))].into();
            assert_eq!(walk(&g, &bound)[grad.0 as usize].data, vec![want], "x ** {n}, tensor: {tensor}");
        }
    }
}
