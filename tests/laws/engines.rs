//! The laws on what else can run a Plan: plain operations of the host's backend, and devices that kernels are compiled for.

use crate::devices::{Devices, layout, plan, to};
use crate::gradient::gradients_on;
use crate::half::in_half;
use crate::oracle::{Bound, walk};
use crate::split::{Way, Within, in_f32, same, same_step, way};
use crate::subject::{build, step, subjects, tensors};
use meshwright_core::StepGraph;
use meshwright_ops::{Contract, F64Tensor, Graph, InputOp, InputOpKind, Type};
use meshwright_plan::{DType, Dim, Dims, Operand, Prim, Step};
use std::time::Instant;

/// On one device, each dim over three, and pairs of dims over two axes.
fn few(dims: &[Dim]) -> Vec<Way> {
    let mut ways = vec![way(&[], vec![])];
    ways.extend(dims.iter().map(|d| way(&[3], vec![to(*d, &[0])])));
    ways.extend(dims.windows(2).map(|d| way(&[2, 2], vec![to(d[0], &[0]), to(d[1], &[1])])));
    ways
}

/// On one device, and the first dim over two.
#[cfg(any(feature = "cuda", feature = "cubecl-cpu"))]
fn fewest(dims: &[Dim]) -> Vec<Way> {
    let mut ways = vec![way(&[], vec![])];
    ways.extend(dims.iter().take(1).map(|d| way(&[2], vec![to(*d, &[0])])));
    ways
}

#[test]
fn every_op_is_the_same_in_plain_operations() {
    let begin = Instant::now();
    let (mut devices, mut wrong, mut cases) = (Devices::of(meshwright_burn::device()), Vec::new(), 0);
    for subject in subjects() {
        let b = build(&subject, &[], 1).unwrap();
        let want = walk(&b.graph, &b.bound).swap_remove(b.value.0 as usize);
        let outputs = [("y", b.value, want)];
        match same(&subject.name, &b.graph, &b.bound, &outputs, 1.0, &few(&b.dims), &mut devices) {
            Ok(n) => cases += n,
            Err(e) => wrong.push(e),
        }
    }
    crate::report(&format!("plain operations: {cases} cases in {:.1?}", begin.elapsed()));
    assert!(wrong.is_empty(), "{} of the samples:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_op_is_the_same_in_plain_operations_of_f32() {
    in_f32(Devices::of(meshwright_burn::device()), "plain operations of f32", &few);
}

#[test]
fn gradients_are_the_same_in_plain_operations() {
    gradients_on(Devices::of(meshwright_burn::device()), "plain operations", false, &few);
    gradients_on(Devices::of(meshwright_burn::device()), "plain operations of f32", true, &few);
}

#[test]
fn every_op_is_the_same_in_plain_operations_of_bf16() {
    in_half(DType::BF16, Devices::of(meshwright_burn::device()), "plain operations of bf16", &few);
}

#[test]
fn every_op_is_the_same_in_plain_operations_of_f16() {
    in_half(DType::F16, Devices::of(meshwright_burn::device()), "plain operations of f16", &few);
}

#[test]
fn every_op_is_the_same_as_a_gpu_launches_it() {
    in_f32(Devices::of(meshwright_burn::reference()), "launches of a GPU", &few);
    for half in [DType::BF16, DType::F16] {
        in_half(half, Devices::of(meshwright_burn::reference()), &format!("launches of a GPU, {half}"), &few);
    }
    gradients_on(Devices::of(meshwright_burn::reference()), "launches of a GPU", true, &few);
    products_are_not_rounded(Devices::of(meshwright_burn::reference()));
}

/// Sums of one more than as many ones as the half type can count: the result of a product that is wanted in `f32` is not rounded
/// on the way. Of several rows, and of one.
fn products_are_not_rounded(mut devices: Devices) {
    let both = [(DType::BF16, 257), (DType::F16, 2049)];
    for (rows, (half, count)) in [3, 1].into_iter().flat_map(|rows| both.map(|b| (rows, b))) {
        let mut g = Graph::new(Dims::default());
        let (m, k, n) = (g.dims.add("m", rows), g.dims.add("k", count), g.dims.add("n", 4));
        let mut bound = Bound::new();
        let mut ones = |g: &mut Graph, name: &str, dims: [Dim; 2]| {
            let leaf = InputOpKind::Input { name: name.into() };
            let id = g.op(InputOp { input: leaf, ty: Type::new(DType::F32, dims.to_vec()) }, &[]);
            bound.insert(id, F64Tensor::build(&g.dims, &dims, |_| 1.0));
            id
        };
        let (a, b) = (ones(&mut g, "a", [m, k]), ones(&mut g, "b", [k, n]));
        let y = g.op(Contract { out: vec![m, n] }, &[a, b]);
        let step = StepGraph { float: half.into(), ..step(&g, &[("y", y)]) };
        let whole = way(&[], vec![]);
        let made = plan(&step, &layout(&whole.mesh, vec![]), true).unwrap().plan;
        let dtype = |o: &Operand| made.buffer(o.buf).dtype;
        let widens = |s: &Step| {
            s.prim == Prim::Contract && [dtype(&s.reads[0]), dtype(&s.writes[0])] == [half, DType::F32]
        };
        assert!(made.steps.iter().any(widens), "the sample has no product that widens");
        let outputs = [("y", y, F64Tensor::build(&g.dims, &[m, n], |_| count as f64))];
        let given = tensors(&step.graph, &bound);
        same_step(
            "ones",
            &step,
            &given,
            &outputs,
            Within { least: 1.0, narrow: 1e-6, ..Within::default() },
            &[whole],
            &mut devices,
        )
        .unwrap();
    }
}

#[test]
fn products_are_not_rounded_in_plain_operations() {
    products_are_not_rounded(Devices::of(meshwright_burn::device()));
}

/// Random values of each distribution and type are those of the host, bit by bit: of dims whose elements share counters by four
/// and of others, whole and split.
#[cfg(any(feature = "cuda", feature = "cubecl-cpu"))]
fn random_values_are_those_of_the_host(mut devices: Devices, ways: &dyn Fn(&[Dim]) -> Vec<Way>) {
    use meshwright_ops::Random;
    use meshwright_plan::random::Distribution;
    let truth = |rate| (Distribution::Bernoulli { rate }, DType::Bool);
    let mut kinds = vec![truth(0.0), truth(0.1), truth(0.5), truth(0.999_999)];
    for dtype in [DType::F32, DType::F64] {
        kinds.push((Distribution::Uniform { low: -1.0, high: 3.0 }, dtype));
        kinds.push((Distribution::Uniform { low: 1.0, high: 1.0 + 1e-7 }, dtype));
        kinds.push((Distribution::Normal { mean: 0.5, std: 2.0 }, dtype));
    }
    let (mut host, mut cases) = (Devices::default(), 0);
    for (distribution, dtype) in kinds {
        for sizes in [vec![], vec![6, 10, 37], vec![12, 4, 64], vec![3, 9001]] {
            let mut g = Graph::new(Dims::default());
            let names = ["a", "b", "c"];
            let dims: Vec<Dim> = sizes.iter().zip(names).map(|(n, name)| g.dims.add(name, *n)).collect();
            let drawn = Random { stream: "layer/drawn".into(), distribution, dims: dims.clone(), dtype };
            let y = g.op(drawn, &[]);
            let step = step(&g, &[("y", y)]);
            for way in ways(&dims) {
                let plan = plan(&step, &layout(&way.mesh, way.rules), true).unwrap().plan;
                let none = Default::default();
                let want = host.run(plan.clone(), &none, &none).unwrap();
                let got = devices.run(plan, &none, &none).unwrap();
                assert_eq!(got, want, "{distribution:?} of {sizes:?} on {}", way.mesh.describe());
                cases += 1;
            }
        }
    }
    crate::report(&format!("random values on the device: {cases} cases"));
}

#[cfg(feature = "cubecl-cpu")]
#[test]
fn random_values_are_the_same_compiled_for_the_host() {
    random_values_are_those_of_the_host(Devices::of(meshwright_cuda::compiled_on_host()), &few);
}

#[cfg(feature = "cubecl-cpu")]
#[test]
fn every_op_is_the_same_compiled_for_the_host() {
    in_f32(Devices::of(meshwright_cuda::compiled_on_host()), "CubeCL on the host", &fewest);
    products_are_not_rounded(Devices::of(meshwright_cuda::compiled_on_host()));
}

#[cfg(feature = "cubecl-cpu")]
#[test]
fn every_op_is_the_same_in_bf16_compiled_for_the_host() {
    let whole = &|_: &[_]| vec![way(&[], vec![])];
    in_half(DType::BF16, Devices::of(meshwright_cuda::compiled_on_host()), "CubeCL on the host, bf16", whole);
}

#[cfg(feature = "cubecl-cpu")]
#[test]
fn gradients_are_the_same_compiled_for_the_host() {
    gradients_on(Devices::of(meshwright_cuda::compiled_on_host()), "CubeCL on the host", true, &fewest);
}

/// Whether there is a GPU of that number, or why not.
#[cfg(feature = "cuda")]
pub(crate) fn has_gpu(number: usize) -> Result<(), String> {
    use meshwright_comm::{Timeouts, World};
    let end = World::new(1, Timeouts::default()).pop().unwrap();
    let nvidia = meshwright_gpu::load::Paths::from_env(|name| std::env::var_os(name));
    let engine = meshwright_exec::Engine::on(&meshwright_cuda::gpu(number), Box::new(end), &nvidia);
    engine.map(|_| ()).map_err(|e| e.to_string())
}

/// Counts kernels that are launched meanwhile, by how their names begin. One test at a time: the count is of the whole process.
#[cfg(feature = "cuda")]
pub(crate) fn counted<R>(f: impl FnOnce() -> R) -> (R, impl Fn(&str) -> u64) {
    static WATCHED: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = WATCHED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let watch = meshwright_cuda::gpu(0).watch_kernels(meshwright_exec::KernelsBy::Kernel);
    let made = f();
    let kernels = watch.end();
    let of = move |name: &str| kernels.iter().filter(|k| k.name.starts_with(name)).map(|k| k.launches).sum();
    (made, of)
}

/// Whether there is a GPU; else says why not.
#[cfg(feature = "cuda")]
pub(crate) fn gpu() -> bool {
    let found = has_gpu(0);
    if let Err(why) = &found {
        crate::report(&format!("left out: {why}"));
    }
    found.is_ok()
}

#[cfg(feature = "cuda")]
#[test]
fn random_values_are_the_same_on_a_gpu() {
    if gpu() {
        // Split over up to four.
        let ways = if has_gpu(3).is_ok() { few } else { |_: &[Dim]| vec![way(&[], vec![])] };
        random_values_are_those_of_the_host(Devices::of(meshwright_cuda::gpu(0)), &ways);
    }
}

#[cfg(feature = "cuda")]
#[test]
fn every_op_is_the_same_on_a_gpu() {
    if gpu() {
        in_f32(Devices::of(meshwright_cuda::gpu(0)), "GPU", &|_| vec![way(&[], vec![])]);
        for half in [DType::BF16, DType::F16] {
            let whole = &|_: &[_]| vec![way(&[], vec![])];
            in_half(half, Devices::of(meshwright_cuda::gpu(0)), &format!("GPU, {half}"), whole);
        }
        products_are_not_rounded(Devices::of(meshwright_cuda::gpu(0)));
    }
}

#[cfg(feature = "cuda")]
#[test]
fn gradients_are_the_same_on_a_gpu() {
    if gpu() {
        gradients_on(Devices::of(meshwright_cuda::gpu(0)), "GPU", true, &|_| vec![way(&[], vec![])]);
    }
}
