//! Programs of `bf16` and `f16`: every op between activations that are stored so, split and whole, against its oracle in `f64`.
//!
//! Operands are what the half type holds exactly, so that only what the op and its neighbors round is seen.

use crate::devices::{Devices, layout, plan, to};
use crate::oracle::{Bound, walk};
use crate::split::{Way, Within, same_step, way};
use crate::subject::{Built, narrow, step, subjects, tensors};
use meshwright_core::StepGraph;
use meshwright_exec::HostData;
use meshwright_ops::{Contract, F64Tensor, Graph, Id, InputOp, InputOpKind, Type};
use meshwright_plan::{DType, Dim};
use std::time::Instant;

/// A subject between products: its operands of floats come from one, and its result goes into one.
struct Between {
    step: StepGraph,
    bound: Bound,
    /// What is compared: the result, and the product that reads it.
    outputs: Vec<(&'static str, Id, F64Tensor)>,
    dims: Vec<Dim>,
}

fn between(b: &Built, half: DType) -> Between {
    let mut g = Graph::new(b.graph.dims.clone());
    let one = g.dims.add("one", 1);
    let mut bound = Bound::new();
    let leaf = InputOpKind::Input { name: "one".into() };
    let factor = g.op(InputOp { input: leaf, ty: Type::new(DType::F32, vec![one]) }, &[]);
    bound.insert(factor, F64Tensor::new(&g.dims, [one], vec![1.0]));
    let mut now: Vec<Id> = Vec::new();
    for id in b.graph.ids() {
        let mut node = b.graph.node(id).clone();
        node.inputs.iter_mut().for_each(|x| *x = now[x.0 as usize]);
        let ty = node.ty.clone();
        let new = g.push(node);
        now.push(match b.bound.get(&id) {
            Some(v) if ty.dtype == DType::F32 => {
                let data = HostData::from_f64(half, v.data.clone()).to_f64();
                bound.insert(new, F64Tensor { data, ..v.clone() });
                g.op(Contract { out: ty.dims }, &[new, factor])
            }
            Some(v) => {
                bound.insert(new, v.clone());
                new
            }
            None => new,
        });
    }
    let y = now[b.value.0 as usize];
    let mut outputs = vec![("y", y)];
    if g.ty(y).dtype == DType::F32 {
        let out = g.ty(y).dims.clone();
        outputs.push(("read", g.op(Contract { out }, &[y, factor])));
    }
    let values = walk(&g, &bound);
    let step = StepGraph { float: half.into(), ..step(&g, &outputs) };
    let outputs = outputs.into_iter().map(|(n, id)| (n, id, values[id.0 as usize].clone())).collect();
    Between { step, bound, outputs, dims: b.dims.clone() }
}

/// What the numbers of a value may be off by, of the largest magnitude: a few roundings to 8 bits, or to 11. Of a product of many
/// factors each product of two may be stored.
fn tolerance(half: DType, sample: &str) -> f64 {
    let roundings = if sample.contains("many operands") { 8.0 } else { 1.0 };
    roundings * if half == DType::BF16 { 1.0 / 128.0 } else { 1.0 / 1024.0 }
}

fn split_in_many_ways(dims: &[Dim]) -> Vec<Way> {
    let mut ways: Vec<Way> = vec![way(&[], vec![])];
    ways.extend(dims.iter().map(|d| way(&[3], vec![to(*d, &[0])])));
    ways.extend(dims.windows(2).map(|d| way(&[2, 2], vec![to(d[0], &[0]), to(d[1], &[1])])));
    ways
}

#[test]
fn every_op_is_the_same_in_bf16() {
    in_half(DType::BF16, Devices::default(), "bf16", &split_in_many_ways);
}

#[test]
fn every_op_is_the_same_in_f16() {
    in_half(DType::F16, Devices::default(), "f16", &split_in_many_ways);
}

/// The same on some devices, placed in some ways, of which the first has one device.
pub(crate) fn in_half(half: DType, mut devices: Devices, what: &str, ways: &dyn Fn(&[Dim]) -> Vec<Way>) {
    let begin = Instant::now();
    let (mut wrong, mut cases, mut names) = (Vec::new(), 0, Vec::new());
    let mut stored = 0;
    for subject in subjects() {
        let Some(b) = narrow(&subject) else { continue };
        names.push(subject.name.clone());
        let s = between(&b, half);
        let ways = ways(&s.dims);
        let one = plan(&s.step, &layout(&ways[0].mesh, Vec::new()), true);
        stored += usize::from(one.is_ok_and(|p| p.plan.buffers.iter().any(|b| b.dtype == half)));
        let tensors = tensors(&s.step.graph, &s.bound);
        match same_step(
            &subject.name,
            &s.step,
            &tensors,
            &s.outputs,
            Within { least: 1.0, narrow: tolerance(half, &subject.name), ..Within::default() },
            &ways,
            &mut devices,
        ) {
            Ok(n) => cases += n,
            Err(e) => wrong.push(e),
        }
    }
    crate::report(&format!("{what}: {} samples, {cases} cases in {:.1?}", names.len(), begin.elapsed()));
    assert!(wrong.is_empty(), "{} of the samples:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(stored, names.len(), "samples in whose Plan something is stored in the half type");
}
