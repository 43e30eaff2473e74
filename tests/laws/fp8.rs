//! Rounding to 8 bits: every number of both formats, what is between them, and what is beyond, the same on every engine.

use crate::devices::{Devices, to};
use crate::oracle::Bound;
use crate::split::{Within, same_step, way};
use crate::subject::{step, tensors};
use meshwright_exec::DeviceKind;
use meshwright_ops::{
    F64Tensor, Graph, Id, InputOp, InputOpKind, POWER_OF_TWO, Quantized, ROUND_E4M3, ROUND_E5M2, Type,
    UnaryDef,
};
use meshwright_plan::{DType, Dims, Fp8, power_of_two};

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
