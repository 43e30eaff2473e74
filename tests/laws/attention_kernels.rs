//! Attention by the kernels of GPUs, against the equations in `f64`.

use crate::attention::{ALL, Features, HALVES, TF32, check, check_half, one};
use crate::devices::{Devices, to};
use crate::split::{Way, way};
use meshwright_core::StepGraph;
use meshwright_plan::{Arithmetic, DType, Dim};

/// `f32`, without a bound of its own: that of [`check`].
const EXACT: (Arithmetic, f64) = (Arithmetic::F32, 0.0);

/// Compares what is recognized in a program of a half type, of TF32, or of `f32`, with the oracle of the equations; gives the
/// step.
pub(crate) fn check_of(
    name: &str,
    of: (Arithmetic, f64),
    sizes: [usize; 4],
    has: Features,
    devices: &mut Devices,
    ways: &dyn Fn(&[Dim]) -> Vec<Way>,
) -> StepGraph {
    let name = format!("{name} {sizes:?} of {}", of.0);
    if of.0 == Arithmetic::F32 {
        check(&name, DType::F32, sizes, has, devices, ways)
    } else {
        check_half(&name, of, sizes, has, devices, ways)
    }
}

/// The kernels of GPUs, over several tiles of queries and keys, in numbers that divide nothing and in whole tiles: of all
/// widths of blocks, with masks that positions decide and that rows see through, and with draws whose counters eights of keys
/// share and not.
fn on_a_gpu(of: (Arithmetic, f64), name: &str, has: Features) {
    if !crate::engines::gpu() {
        return;
    }
    // Keys that are split have passes of their own: the greatest score, and the sums relative to that of all devices.
    let split = |dims: &[Dim]| dims[..4].iter().map(|d| way(&[2], vec![to(*d, &[0])])).collect();
    let mut devices = Devices::of(meshwright_cuda::gpu(0));
    let all = [
        [2, 70, 139, 16],
        [2, 65, 136, 32],
        [1, 40, 70, 128],
        [2, 128, 128, 32],
        [1, 128, 192, 64],
        [1, 66, 70, 48],
        [1, 40, 130, 96],
        [1, 40, 70, 144],
        [1, 64, 128, 256],
    ];
    // Wide rows take the interpreter long: with nothing besides, and with all. So do multiply-adds of `f32`, one by one.
    let alone = !(has.causal || has.padded || has.logarithm);
    let taken = |[batch, _, keys, width]: &[usize; 4]| match of.0 {
        Arithmetic::F32 => *width <= 128 && *width != 96 && *keys != 192,
        Arithmetic::TF32 => {
            [16, 48].contains(width) || *keys == 128 && *width == 32 || *keys == 70 && *width == 128
        }
        _ => *width <= 128 || (alone || has.dropout > 0.0) && *batch == 1,
    };
    let all: Vec<_> = all.into_iter().filter(taken).collect();
    let ((), launches) = crate::engines::counted(|| {
        for sizes in &all {
            check_of(name, of, *sizes, has, &mut devices, &one);
        }
        if has.dropout > 0.0 {
            // A rate that 16 bits do not give.
            let seldom = Features { dropout: 0.995, ..has };
            check_of(name, of, [2, 70, 136, 16], seldom, &mut devices, &one);
        }
        if crate::engines::has_gpu(1).is_ok() {
            check_of(name, of, [2, 70, 139, 16], has, &mut devices, &split);
        }
        if crate::engines::has_gpu(3).is_ok() {
            // The last device has nothing.
            let some = |dims: &[Dim]| dims[1..3].iter().map(|d| way(&[4], vec![to(*d, &[0])])).collect();
            check_of(name, of, [2, 5, 5, 16], has, &mut devices, &some);
            crate::rings::on_a_gpu(of, name, has, &mut devices);
        }
    });
    for kernel in ["AttentionForward", "AttentionQueryGrad", "AttentionKeyGrad"] {
        let many = launches(kernel);
        assert!(many >= all.len() as u64, "{kernel}: {many} launches, {} cases", all.len());
    }
    crate::report(&format!("attention {name} of {}: {} cases", of.0, all.len()));
}

/// Queries and keys wider than values, and values wider than these; the gradients of keys and of values are two launches.
fn unlike_on_a_gpu(of: (Arithmetic, f64)) {
    if !crate::engines::gpu() {
        return;
    }
    let mut devices = Devices::of(meshwright_cuda::gpu(0));
    let cases = match of.0 {
        Arithmetic::F32 | Arithmetic::TF32 => [([1, 40, 70, 128], 112), ([1, 33, 130, 32], 128)],
        _ => [([1, 40, 70, 192], 128), ([1, 33, 130, 32], 240)],
    };
    let ((), launches) = crate::engines::counted(|| {
        for (sizes, values) in cases {
            let name = format!("values {values} wide,");
            check_of(&name, of, sizes, Features { values, ..ALL }, &mut devices, &one);
        }
    });
    let many = [launches("AttentionKeyGrad"), launches("AttentionQueryGrad")];
    assert_eq!(many, [2, 1].map(|each| each * cases.len() as u64));
}

/// A test for each, so that a machine with many cores compiles the kernels of several at a time.
macro_rules! on_a_gpu {
    ($($module:ident: $of:expr;)*) => {$(
        mod $module {
            use super::{ALL, Features, on_a_gpu, unlike_on_a_gpu};

            #[test]
            fn plain() {
                on_a_gpu($of, "plain", Features::default());
            }
            #[test]
            fn causal() {
                on_a_gpu($of, "causal", Features { causal: true, ..Features::default() });
            }
            #[test]
            fn padded() {
                on_a_gpu($of, "padded", Features { padded: true, ..Features::default() });
            }
            #[test]
            fn causal_and_padded() {
                let has = Features { causal: true, padded: true, ..Features::default() };
                on_a_gpu($of, "causal and padded", has);
            }
            #[test]
            fn all() {
                on_a_gpu($of, "all", ALL);
            }
            #[test]
            fn unlike() {
                unlike_on_a_gpu($of);
            }
            #[test]
            fn logarithm() {
                on_a_gpu($of, "logarithm", Features { logarithm: true, ..Features::default() });
            }
        }
    )*};
}

on_a_gpu! {
    bf16_on_a_gpu: super::HALVES[0];
    f16_on_a_gpu: super::HALVES[1];
    f32_on_a_gpu: super::EXACT;
    tf32_on_a_gpu: super::TF32;
}

/// Digits of the factors that kernels make.
#[test]
fn factors_of_tf32_on_a_gpu() {
    if !crate::engines::gpu() {
        return;
    }
    let mut devices = Devices::of(meshwright_cuda::gpu(0));
    let ((), launches) = crate::engines::counted(|| crate::attention::made_factors_are_of_tf32(&mut devices));
    assert!(launches("AttentionForward") > 0);
}

/// The kernel of a bias's gradient, over several tiles that divide nothing and in whole tiles: for the sum of examples, of
/// heads, and for no sum.
#[test]
fn biases_on_a_gpu() {
    if !crate::engines::gpu() {
        return;
    }
    let mut devices = Devices::of(meshwright_cuda::gpu(0));
    let causal = Features { causal: true, ..Features::default() };
    let cases = [
        (HALVES[0], "heads group seq key", [3, 40, 70, 16], ALL),
        (HALVES[0], "key group seq", [2, 64, 128, 32], causal),
        (HALVES[1], "seq heads batch key group", [1, 40, 70, 16], ALL),
        (HALVES[0], "heads group seq key", [2, 40, 70, 256], causal),
        (EXACT, "heads group seq key", [3, 40, 70, 32], ALL),
        (TF32, "heads group seq key", [2, 40, 70, 32], causal),
    ];
    let many = cases.len() as u64;
    let ((), launches) = crate::engines::counted(|| {
        for (of, bias, sizes, has) in cases {
            check_of(&format!("a bias of {bias},"), of, sizes, Features { bias, ..has }, &mut devices, &one);
        }
    });
    assert!(launches("AttentionBiasGrad") >= many, "{} launches", launches("AttentionBiasGrad"));
}
