//! Gradients: against central differences of the oracle, and the same under every layout.

use crate::devices::Devices;
use crate::rng::Rng;
use crate::split::{Way, same, ways_of_inputs, ways_of_params};
use crate::subject::{Arrival, Built, Subject, build, narrow, narrowed, subjects};
use crate::walk::{Bound, close_from, walk};
use meshwright_core::ParamDecl;
use meshwright_core::autodiff::gradients;
use meshwright_diag::Span;
use meshwright_ops::{Call, F64Tensor, Graph, Id, InputOpKind, Leaf, Origin, Type, Value, family};
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
    let leaf = Leaf { leaf: InputOpKind::Input { name: "weights".into() }, ty: Type::new(dtype, dims) };
    let w = g.op(leaf, &[]);
    built.bound.insert(w, weights);
    let factors = if weighted == 0 { vec![built.value] } else { vec![built.value, w] };
    let loss = g.contract_to(&factors, &[]);
    let forward = g.clone();
    let params: Vec<ParamDecl> = (built.operands.iter().enumerate())
        .filter(|(i, _)| subject.inputs[*i].dtype.is_float())
        .map(|(i, id)| ParamDecl {
            path: format!("x{i}"),
            id: *id,
            span: Span::default(),
            frozen: false,
            no_decay: false,
        })
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

/// Powers whose gradient at 0 is a number, where a logarithm or `0 ** -1` would make it none.
#[test]
fn powers_have_gradients_at_zero() {
    for (n, want) in [(0.0, 0.0), (1.0, 1.0), (2.0, 0.0), (3.0, 0.0)] {
        for tensor in [false, true] {
            let mut g = Graph::new(Dims::default());
            let leaf = InputOpKind::Param { path: "x".into(), init: Init::Constant(0.0) };
            let x = g.op(Leaf { leaf, ty: Type::new(DType::F64, []) }, &[]);
            let leaf = InputOpKind::Input { name: "n".into() };
            let exponent = g.op(Leaf { leaf, ty: Type::new(DType::F64, []) }, &[]);
            let args = [Value::Tensor(x), if tensor { Value::Tensor(exponent) } else { Value::Number(n) }];
            let call =
                Call { name: "pow", args: &args, dims: &[], groups: &[], named: &[], float: DType::F64 };
            let loss = (family("pow", false).unwrap().build)(&mut g, &call).unwrap();
            let param =
                ParamDecl { path: "x".into(), id: x, span: Span::default(), frozen: false, no_decay: false };
            let grad = gradients(&mut g, loss, &[&param])[0];
            let scalar = F64Tensor::scalar;
            let bound: Bound = [(x, scalar(0.0)), (exponent, scalar(n))].into();
            assert_eq!(walk(&g, &bound)[grad.0 as usize].data, vec![want], "x ** {n}, tensor: {tensor}");
        }
    }
}
