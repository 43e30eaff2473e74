//! Rounding to 8 bits: every number of both formats, what is between them, and what is beyond, the same on every engine.

use crate::devices::{Devices, layout, plan, to};
use crate::oracle::{Bound, walk};
use crate::rng::Rng;
use crate::split::{Within, same_step, way};
use crate::subject::{step, tensors};
use meshwright_core::StepGraph;
use meshwright_device::kernels::Kernel;
use meshwright_device::kernels::matmul::FactorDigits;
use meshwright_device::launch::{Launch, LaunchKind};
use meshwright_device::target::Target;
use meshwright_exec::{DeviceKind, HostData};
use meshwright_ops::{
    F64Tensor, Graph, Id, InputOp, InputOpKind, POWER_OF_TWO, Quantized, RELU, ROUND_E4M3, ROUND_E5M2, Type,
    UnaryDef,
};
use meshwright_plan::{Arithmetic, DType, Dim, Dims, Fp8, Phase, power_of_two};

/// Numbers of all sizes; of each format all numbers, what is in the middle of two of them, and its neighbors.
fn numbers() -> Vec<f32> {
    let mut all =
        vec![0.0, 1e-30, 448.0, 449.0, 464.0, 465.0, 57344.0, 61440.0, 65536.0, 1e9, 3e38, f32::INFINITY];
    // Of five significant bits: all numbers of both formats, and the middles.
    for exponent in -20..20 {
        for digits in 16..32 {
            let x = digits as f32 * 2f32.powi(exponent - 4);
            all.extend([x, x.next_up(), x.next_down()]);
        }
    }
    // Below the least normal numbers.
    all.extend((1..64).flat_map(|n| [n as f32 * 2f32.powi(-11), n as f32 * 2f32.powi(-18)]));
    let mut state = 3u64;
    all.extend((0..2000).map(|_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        f32::from_bits(((state >> 33) as u32) % 0x7f80_0000)
    }));
    all.retain(|x| *x == 0.0 || x.is_normal() || x.is_infinite());
    all.extend(all.clone().iter().map(|x| -x));
    all.push(f32::NAN);
    all
}

/// A value of these numbers, and what makes another of it.
fn law(devices: &mut Devices, x: &[f32], make: &dyn Fn(&mut Graph, Id) -> Id, want: &[f64]) {
    let mut g = Graph::new(Dims::default());
    let n = g.dims.add("n", x.len());
    let leaf = InputOpKind::Input { name: "x".into() };
    let id = g.op(InputOp { input: leaf, ty: Type::new(DType::F32, vec![n]) }, &[]);
    let mut bound = Bound::new();
    bound.insert(id, F64Tensor::new(&g.dims, [n], x.iter().map(|x| f64::from(*x)).collect()));
    let y = make(&mut g, id);
    let want = F64Tensor::new(&g.dims, [n], want.to_vec());
    let step = step(&g, &[("y", y)]);
    let within = Within { least: 0.0, narrow: 0.0, ..Within::default() };
    let ways = [way(&[], vec![]), way(&[3], vec![to(n, &[0])])];
    let tensors = tensors(&step.graph, &bound);
    same_step("8 bits", &step, &tensors, &[("y", y, want)], within, &ways, devices).unwrap();
}

/// What computes: threads, plain operations, the launches of a GPU.
const ENGINES: [fn() -> DeviceKind; 3] =
    [meshwright_cpu::device, meshwright_burn::device, meshwright_burn::reference];

#[test]
fn every_number_is_rounded_alike_on_every_engine() {
    let x = numbers();
    type Case = (&'static UnaryDef, fn(f32) -> f32);
    let cases: [Case; 3] = [
        (&ROUND_E4M3, |x| Fp8::E4M3.round(x)),
        (&ROUND_E5M2, |x| Fp8::E5M2.round(x)),
        (&POWER_OF_TWO, power_of_two),
    ];
    for engine in ENGINES {
        let mut devices = Devices::of(engine());
        for (def, f) in cases {
            let want: Vec<f64> = x.iter().map(|x| f64::from(f(*x))).collect();
            law(&mut devices, &x, &|g, x| g.unary(def, x), &want);
        }
    }
}

/// The scale of a value that is split is that of the whole: its greatest element is on one device alone. Each is a number of the
/// format times one power of two, at most by half of the last digit off.
#[test]
fn a_value_has_one_scale_on_all_devices() {
    for engine in ENGINES {
        let mut devices = Devices::of(engine());
        for format in Fp8::ALL {
            for most in [1.0, 447.0, 448.0, 449.0, 1e-20, 1e20, 0.0] {
                let mut x: Vec<f32> = (0..30).map(|i| most * 1e-3 * (i as f32 - 14.5) / 15.0).collect();
                x[29] = -most;
                let scale = f64::from(power_of_two((format.greatest() / most).min(2f32.powi(126))));
                let last = f64::from(format.round((f64::from(most) * scale) as f32)) / scale;
                assert!(
                    (last - f64::from(most)).abs()
                        <= f64::from(most) * 2f64.powi(-(format.digits() as i32) - 1)
                );
                let of = |x: &f32| f64::from(format.round((f64::from(*x) * scale) as f32)) / scale;
                let want: Vec<f64> = x.iter().map(of).collect();
                law(&mut devices, &x, &|g, x| g.op(Quantized { format }, &[x]), &want);
            }
            // One number that is not finite leaves none.
            for wrong in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                let mut x = vec![1.0; 30];
                x[29] = wrong;
                law(&mut devices, &x, &|g, x| g.op(Quantized { format }, &[x]), &[f64::NAN; 30]);
            }
        }
    }
}

/// Rows, summed elements and columns of a layer.
type Sizes = [usize; 3];

/// A layer and its gradients: its result with a bias and a function, the gradient of its operand added to another, and that of
/// its weight. Operands are numbers of `bf16` up to a size of their own, so that each factor has its own scale; `wrong` is an
/// element of the operand.
fn layer([rows, summed, columns]: Sizes, wrong: Option<f64>) -> (Graph, Bound, Vec<(&'static str, Id)>) {
    let mut g = Graph::new(Dims::default());
    let [r, d, h] = [("r", rows), ("d", summed), ("h", columns)].map(|(n, size)| g.dims.add(n, size));
    let (mut rng, mut bound) = (Rng::new(17), Bound::new());
    let mut input = |g: &mut Graph, name: &str, dims: &[Dim], most: f64| {
        let leaf = InputOpKind::Input { name: name.into() };
        let id = g.op(InputOp { input: leaf, ty: Type::new(DType::F32, dims.to_vec()) }, &[]);
        let mut tensor = F64Tensor::build(&g.dims, dims, |_| most * rng.float(-1.0, 1.0));
        tensor.data = HostData::from_f64(DType::BF16, tensor.data).to_f64();
        if let (Some(wrong), "x") = (wrong, name) {
            tensor.data[3] = wrong;
        }
        bound.insert(id, tensor);
        id
    };
    let (x, w, dy) = (
        input(&mut g, "x", &[r, d], 40.0),
        input(&mut g, "w", &[d, h], 3e-3),
        input(&mut g, "dy", &[r, h], 1e-5),
    );
    let (b, c) = (input(&mut g, "b", &[h], 0.1), input(&mut g, "c", &[r, d], 1e-7));
    // What is not read from outside: a cotangent is computed, in the backward pass.
    let [x, w] = [x, w].map(|x| g.scaled(x, 1.0));
    g.cursor.phase = Phase::Backward;
    let dy = g.scaled(dy, 1.0);
    g.cursor.phase = Phase::Forward;
    let product = |g: &mut Graph, factors: [Id; 2], to: &[Dim], phase: Phase| {
        g.cursor.phase = phase;
        let id = g.contract_to(&factors, to);
        g.nodes[id].origin.layer = true;
        id
    };
    let y = product(&mut g, [x, w], &[r, h], Phase::Forward);
    let dx = product(&mut g, [dy, w], &[r, d], Phase::Backward);
    let dw = product(&mut g, [x, dy], &[d, h], Phase::Backward);
    g.cursor.phase = Phase::Forward;
    let biased = g.sum_of(&[y, b]);
    let active = g.unary(&RELU, biased);
    g.cursor.phase = Phase::Backward;
    let added = g.sum_of(&[c, dx]);
    let all = vec![("y", active), ("dx", added), ("dw", dw)];
    (g, bound, all)
}

/// The values that a layer has: of factors rounded to 8 bits with scales of their own.
fn expected(g: &Graph, bound: &Bound, formats: &dyn Fn(Id) -> Option<Fp8>) -> Vec<F64Tensor> {
    let mut rounded = Graph::new(g.dims.clone());
    let mut now: Vec<Id> = vec![];
    for id in g.ids() {
        let mut node = g.node(id).clone();
        let layer = node.origin.layer;
        node.inputs.iter_mut().for_each(|x| *x = now[x.0 as usize]);
        if layer {
            for (x, before) in node.inputs.iter_mut().zip(&g.node(id).inputs) {
                if let Some(format) = formats(*before) {
                    *x = rounded.op(Quantized { format }, &[*x]);
                }
            }
        }
        now.push(rounded.push(node));
    }
    let bound = bound.iter().map(|(id, value)| (now[id.0 as usize], value.clone())).collect();
    let values = walk(&rounded, &bound);
    now.iter().map(|id| values[id.0 as usize].clone()).collect()
}

/// The law of a layer on one kind of device; gives how many of its three matmuls have factors of 8 bits in memory on a GPU.
fn layer_law(devices: &mut Devices, sizes: Sizes, wrong: Option<f64>) -> usize {
    let (g, bound, outputs) = layer(sizes, wrong);
    let back = |id: Id| g.node(id).origin.phase == Phase::Backward;
    let formats = |id: Id| Some(if back(id) { Fp8::E5M2 } else { Fp8::E4M3 });
    let values = expected(&g, &bound, &formats);
    let step = StepGraph { float: Arithmetic::FP8, ..step(&g, &outputs) };
    let wanted: Vec<_> =
        outputs.iter().map(|(name, id)| (*name, *id, values[id.0 as usize].clone())).collect();
    // Results are rounded to `bf16` once or twice.
    let within = Within { least: 0.0, narrow: 1.0 / 128.0, ..Within::default() };
    let whole = [way(&[], vec![])];
    same_step("a layer in fp8", &step, &tensors(&step.graph, &bound), &wanted, within, &whole, devices)
        .unwrap_or_else(|e| panic!("{sizes:?}: {e}"));
    let Ok(planned) = plan(&step, &layout(&whole[0].mesh, vec![]), false) else { panic!("{sizes:?}") };
    let device = meshwright_device::compile(&planned.plan, 0, Target::h100()).unwrap();
    let in_8_bits = |launch: &&Launch| match &launch.kind {
        LaunchKind::Kernel(Kernel::MatmulEpilogue(call)) => matches!(call.digits, FactorDigits::Fp8(_)),
        _ => false,
    };
    device.launches.iter().filter(in_8_bits).count()
}

/// Extents that kernels take, also of more than a tile, and those that they do not; one number that is not finite leaves none.
fn layers_are_the_same(mut devices: Devices, what: &str) {
    let mut counts = vec![];
    for sizes in [[16, 48, 32], [64, 16, 80], [16, 40, 32], [8, 48, 32], [16, 48, 20]] {
        counts.push(layer_law(&mut devices, sizes, None));
    }
    assert_eq!(counts, [3, 3, 0, 0, 0]);
    for wrong in [f64::INFINITY, f64::NAN] {
        assert_eq!(layer_law(&mut devices, [16, 48, 32], Some(wrong)), 3);
    }
    crate::report(&format!("{what}: 7 layers"));
}

#[test]
fn layers_in_fp8_are_the_same_as_a_gpu_launches_them() {
    layers_are_the_same(Devices::default(), "layers in fp8, native");
    layers_are_the_same(Devices::of(meshwright_burn::reference()), "layers in fp8, launches of a GPU");
}

/// A product of two cotangents has two factors of E5M2, which no kernel of a GPU multiplies: both are stored in `bf16`.
#[test]
fn two_factors_of_e5m2_stay_in_bf16() {
    let (mut g, mut bound) = (Graph::new(Dims::default()), Bound::new());
    let [r, d, h] = [("r", 16), ("d", 32), ("h", 48)].map(|(n, size)| g.dims.add(n, size));
    let mut rng = Rng::new(23);
    let factors = [("x", [r, d]), ("y", [d, h])].map(|(name, dims)| {
        let leaf = InputOpKind::Input { name: name.into() };
        g.cursor.phase = Phase::Forward;
        let id = g.op(InputOp { input: leaf, ty: Type::new(DType::F32, dims.to_vec()) }, &[]);
        bound
            .insert(id, F64Tensor::build(&g.dims, &dims, |_| f64::from(rng.float(-1.0, 1.0).round() as f32)));
        g.cursor.phase = Phase::Backward;
        g.scaled(id, 1.0)
    });
    let product = g.contract_to(&factors, &[r, h]);
    g.nodes[product].origin.layer = true;
    let step = StepGraph { float: Arithmetic::FP8, ..step(&g, &[("product", product)]) };
    let wanted = [("product", product, walk(&g, &bound)[product.0 as usize].clone())];
    let whole = [way(&[], vec![])];
    let within = Within { narrow: 1e-6, ..Within::default() };
    let mut devices = Devices::of(meshwright_burn::reference());
    same_step("two of e5m2", &step, &tensors(&step.graph, &bound), &wanted, within, &whole, &mut devices)
        .unwrap();
    let Ok(planned) = plan(&step, &layout(&whole[0].mesh, vec![]), false) else { panic!("no plan") };
    let device = meshwright_device::compile(&planned.plan, 0, Target::h100()).unwrap();
    let declined: Vec<String> = device.fp8_declined.values().map(ToString::to_string).collect();
    assert_eq!(declined, ["both factors are E5M2, and kernels take one at most"]);
}

#[cfg(feature = "cuda")]
#[test]
fn layers_in_fp8_are_the_same_on_a_gpu() {
    if crate::engines::gpu() {
        layers_are_the_same(Devices::of(meshwright_cuda::gpu(0)), "layers in fp8, GPU");
    }
}

/// Factors with three dims, of values whose operands lie in another order of these. Numbers are whole, so that nothing is
/// rounded.
fn made_of_any_order(mut devices: Devices) {
    let (mut g, mut bound) = (Graph::new(Dims::default()), Bound::new());
    let [r, a, b, h] = [("r", 32), ("a", 8), ("b", 6), ("h", 16)].map(|(n, size)| g.dims.add(n, size));
    let mut rng = Rng::new(29);
    let mut of = |g: &mut Graph, name: &str, dims: &[Dim]| {
        let leaf = InputOpKind::Input { name: name.into() };
        let id = g.op(InputOp { input: leaf, ty: Type::new(DType::F32, dims.to_vec()) }, &[]);
        bound.insert(id, F64Tensor::build(&g.dims, dims, |_| rng.float(-2.0, 2.0).round()));
        id
    };
    let left = [of(&mut g, "x", &[r, a, b]), of(&mut g, "y", &[b, r, a])];
    let right = [of(&mut g, "v", &[a, b, h]), of(&mut g, "w", &[h, a, b]), of(&mut g, "u", &[h])];
    let factors = [g.sum_of(&left), g.sum_of(&right)].map(|x| g.scaled(x, 1.0));
    let product = g.contract_to(&factors, &[r, h]);
    g.nodes[product].origin.layer = true;
    let step = StepGraph { float: Arithmetic::FP8, ..step(&g, &[("product", product)]) };
    let wanted = [("product", product, walk(&g, &bound)[product.0 as usize].clone())];
    let whole = [way(&[], vec![])];
    // The result is a number of `bf16`.
    let within = Within { least: 0.0, narrow: 1.0 / 256.0, ..Within::default() };
    same_step("any order", &step, &tensors(&step.graph, &bound), &wanted, within, &whole, &mut devices)
        .unwrap();
    let Ok(planned) = plan(&step, &layout(&whole[0].mesh, vec![]), false) else { panic!("no plan") };
    let device = meshwright_device::compile(&planned.plan, 0, Target::h100()).unwrap();
    let rounds = |launch: &Launch| match &launch.kind {
        LaunchKind::Kernel(Kernel::Fp8Factor(calls)) => Some(calls.0.len()),
        _ => None,
    };
    assert_eq!(device.launches.iter().filter_map(rounds).sum::<usize>(), 2);
}

#[test]
fn factors_are_made_of_any_order() {
    made_of_any_order(Devices::of(meshwright_burn::reference()));
}

#[cfg(feature = "cuda")]
#[test]
fn factors_are_made_of_any_order_on_a_gpu() {
    if crate::engines::gpu() {
        made_of_any_order(Devices::of(meshwright_cuda::gpu(0)));
    }
}

/// Codes with scales give the bits that numbers of `bf16` give: both sum exact products in one order. The plain product of the
/// reference sums in another one where it has no epilogue.
#[test]
fn codes_give_the_bits_of_numbers_of_bf16() {
    let (g, bound, outputs) = layer([32, 48, 16], None);
    let step = StepGraph { float: Arithmetic::FP8, ..step(&g, &outputs) };
    let (inputs, states) = tensors(&step.graph, &bound);
    let of = |engine: DeviceKind| {
        let Ok(planned) = plan(&step, &layout(&way(&[], vec![]).mesh, vec![]), false) else {
            panic!("no plan")
        };
        let found = Devices::of(engine).run(planned.plan, &inputs, &states).unwrap();
        ["y", "dx"].map(|name| found[name].0.data.to_f64())
    };
    let [numbers, codes] = [meshwright_burn::reference_without_fp8(), meshwright_burn::reference()].map(of);
    assert!(codes.iter().flatten().filter(|x| **x != 0.0).count() > 1000, "zeros");
    assert!(codes == numbers, "other bits");
}
