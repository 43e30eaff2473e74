use crate::kernels::instruction_set::Level;
use crate::kernels::{Access, Arg, MapKernel, Slice, SliceMut};
use meshwright_plan::expr::{BinaryFn, Expr, Scalar, UnaryFn};
use meshwright_plan::{DType, Fp8};

fn apply(f: UnaryFn, level: Level, x: &[f32]) -> Vec<f32> {
    let mut e = Expr::default();
    let a = e.push(Scalar::Load(0), DType::F32);
    let r = e.unary(f, a);
    let kernel =
        MapKernel::new(&e, &[x.len()], &[Access::dense(DType::F32, &[x.len()])], &[0], &[r]).unwrap();
    let mut y = vec![0.0; x.len()];
    let out = &mut [SliceMut::F32(&mut y)];
    kernel.with_level(level).run(&[Arg::Slice(Slice::F32(x))], out).unwrap();
    y
}

/// Units in the last place of the nearest `f32`; those of subnormal results count as the least there is.
fn ulps(got: f32, want: f64) -> f64 {
    if got.is_nan() || want.is_nan() {
        return if got.is_nan() && want.is_nan() { 0.0 } else { f64::INFINITY };
    }
    let near = want as f32;
    if near.is_infinite() || got.is_infinite() {
        return if near == got { 0.0 } else { f64::INFINITY };
    }
    let next = f32::from_bits(near.abs().to_bits() + 1);
    (f64::from(got) - want).abs() / (f64::from(next) - f64::from(near.abs()))
}

/// All sorts of floats: evenly spaced bit patterns, and the range where most of life is.
fn sweep() -> Vec<f32> {
    let bits = (0..u32::MAX).step_by(9973).map(f32::from_bits);
    let near = (-300_000..300_000).map(|i| i as f32 * 3.7e-4);
    let edges = [0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE, 1e-45];
    let exp_edges = [88.722_83, 88.722_84, -87.336_54, -103.278_93, -103.972_07, -103.972_09, 104.0, -150.0];
    bits.chain(near).chain(edges).chain(exp_edges).collect()
}

fn worst(f: UnaryFn, reference: impl Fn(f64) -> f64) -> f64 {
    let x = sweep();
    let mut worst = 0.0;
    for level in Level::available() {
        for (x, y) in x.iter().zip(apply(f, level, &x)) {
            let u = ulps(y, reference(f64::from(*x)));
            assert!(u < 20.0, "{f:?}({x:e}) = {y:e}, not {:e}", reference(f64::from(*x)));
            worst = f64::max(worst, u);
        }
    }
    worst
}

#[test]
fn functions_of_f32_are_accurate_everywhere() {
    type Case = (UnaryFn, fn(f64) -> f64, f64);
    let cases: [Case; 21] = [
        (UnaryFn::Exp, f64::exp, 1.5),
        (UnaryFn::Log, f64::ln, 1.5),
        (UnaryFn::Tanh, f64::tanh, 3.0),
        (UnaryFn::Sigmoid, |x| 1.0 / (1.0 + (-x).exp()), 3.5),
        (UnaryFn::Erf, libm::erf, 2.5),
        (UnaryFn::Sqrt, f64::sqrt, 0.5001),
        (UnaryFn::Rsqrt, |x| 1.0 / x.sqrt(), 1.5),
        (UnaryFn::Recip, |x| 1.0 / x, 0.5001),
        (UnaryFn::Abs, f64::abs, 0.0),
        (UnaryFn::Log1p, f64::ln_1p, 4.0),
        (UnaryFn::Expm1, f64::exp_m1, 4.0),
        (UnaryFn::Sin, f64::sin, 0.51),
        (UnaryFn::Cos, f64::cos, 0.51),
        (UnaryFn::Tan, f64::tan, 0.51),
        (UnaryFn::Floor, f64::floor, 0.0),
        (UnaryFn::Ceil, f64::ceil, 0.0),
        (UnaryFn::Round, f64::round_ties_even, 0.0),
        (UnaryFn::Tf32, |x| f64::from(meshwright_plan::tf32(x as f32)), 0.0),
        (UnaryFn::RoundE4m3, |x| f64::from(Fp8::E4M3.round(x as f32)), 0.0),
        (UnaryFn::RoundE5m2, |x| f64::from(Fp8::E5M2.round(x as f32)), 0.0),
        (UnaryFn::PowerOfTwo, |x| f64::from(meshwright_plan::power_of_two(x as f32)), 0.0),
    ];
    let found: Vec<_> = cases.iter().map(|(f, r, limit)| (f, worst(*f, r), limit)).collect();
    assert!(found.iter().all(|(_, u, limit)| u <= *limit), "{found:?}");
}

#[test]
fn edges() {
    let nan = f32::NAN;
    let (inf, x) = (f32::INFINITY, [f32::NEG_INFINITY, -0.0, 0.0, f32::INFINITY, f32::NAN]);
    let cases = [
        (UnaryFn::Exp, [0.0, 1.0, 1.0, inf, nan]),
        (UnaryFn::Log, [nan, -inf, -inf, inf, nan]),
        (UnaryFn::Tanh, [-1.0, -0.0, 0.0, 1.0, nan]),
        (UnaryFn::Sigmoid, [0.0, 0.5, 0.5, 1.0, nan]),
        (UnaryFn::Erf, [-1.0, -0.0, 0.0, 1.0, nan]),
        (UnaryFn::Relu, [0.0, 0.0, 0.0, inf, nan]),
        (UnaryFn::Sign, [-1.0, 0.0, 0.0, 1.0, nan]),
        (UnaryFn::Rsqrt, [nan, -inf, inf, 0.0, nan]),
        (UnaryFn::Log1p, [nan, -0.0, 0.0, inf, nan]),
        (UnaryFn::Expm1, [-1.0, -0.0, 0.0, inf, nan]),
        (UnaryFn::Sin, [nan, -0.0, 0.0, nan, nan]),
        (UnaryFn::Cos, [nan, 1.0, 1.0, nan, nan]),
        (UnaryFn::Tan, [nan, -0.0, 0.0, nan, nan]),
        (UnaryFn::Floor, [-inf, -0.0, 0.0, inf, nan]),
        (UnaryFn::Ceil, [-inf, -0.0, 0.0, inf, nan]),
        (UnaryFn::Round, [-inf, -0.0, 0.0, inf, nan]),
        (UnaryFn::Tf32, [-inf, -0.0, 0.0, inf, nan]),
        (UnaryFn::RoundE4m3, [-448.0, -0.0, 0.0, 448.0, nan]),
        (UnaryFn::RoundE5m2, [-57344.0, -0.0, 0.0, 57344.0, nan]),
        (UnaryFn::PowerOfTwo, [inf, 0.0, 0.0, inf, nan]),
    ];
    for level in Level::available() {
        for (f, want) in cases {
            let got = apply(f, level, &x);
            let same = got.iter().zip(want).all(|(g, w)| *g == w || g.is_nan() && w.is_nan());
            assert!(same, "{f:?} {level:?}: {got:?}, not {want:?}");
            if matches!(f, UnaryFn::Log1p | UnaryFn::Expm1 | UnaryFn::Sin | UnaryFn::Tan | UnaryFn::Round) {
                assert!(got[1].is_sign_negative() && got[2].is_sign_positive(), "{f:?}: the sign of 0");
            }
        }
    }
}

#[test]
fn an_element_does_not_depend_on_its_place() {
    let x: Vec<f32> = sweep().into_iter().step_by(41).take(3000).collect();
    for level in Level::available() {
        for f in [
            UnaryFn::Exp,
            UnaryFn::Log,
            UnaryFn::Tanh,
            UnaryFn::Sigmoid,
            UnaryFn::Erf,
            UnaryFn::Expm1,
            UnaryFn::Sin,
        ] {
            let whole = apply(f, level, &x);
            for n in [1, 3, 7, 13, 100, 1027] {
                let parts: Vec<f32> = x.chunks(n).flat_map(|c| apply(f, level, c)).collect();
                let differ =
                    whole.iter().zip(&parts).position(|(a, b)| a.to_bits() != b.to_bits() && !a.is_nan());
                assert_eq!(differ, None, "{f:?} in parts of {n}");
            }
        }
    }
}

#[test]
fn round_takes_the_even_one_of_two() {
    let x = [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 8_388_609.0];
    for level in Level::available() {
        assert_eq!(apply(UnaryFn::Round, level, &x), [-2.0, -2.0, 0.0, 0.0, 2.0, 2.0, 8_388_609.0]);
    }
}

#[test]
fn small_arguments_of_sine_near_multiples_of_pi_keep_their_digits() {
    // The floats nearest to multiples of pi, on both sides of where the reduction changes.
    let x: Vec<f32> = (1..200_000).step_by(7).map(|k| (f64::from(k) * std::f64::consts::PI) as f32).collect();
    for level in Level::available() {
        for (x, y) in x.iter().zip(apply(UnaryFn::Sin, level, &x)) {
            assert!(ulps(y, f64::from(*x).sin()) <= 0.51, "sin({x:e}) = {y:e}");
        }
    }
}

/// `f` of two operands of one dtype.
macro_rules! apply2 {
    ($f:expr, $x:expr, $y:expr, $t:ty, $dtype:ident) => {{
        let (x, y): (&[$t], &[$t]) = (&$x, &$y);
        let mut e = Expr::default();
        let a = e.push(Scalar::Load(0), DType::$dtype);
        let b = e.push(Scalar::Load(1), DType::$dtype);
        let r = e.binary($f, a, b);
        let dense = Access::dense(DType::$dtype, &[x.len()]);
        let kernel = MapKernel::new(&e, &[x.len()], &[dense.clone(), dense], &[0], &[r]).unwrap();
        let mut d = vec![<$t>::default(); x.len()];
        let operands = [Arg::Slice(Slice::$dtype(x)), Arg::Slice(Slice::$dtype(y))];
        kernel.run(&operands, &mut [SliceMut::$dtype(&mut d)]).unwrap();
        d
    }};
}

#[test]
fn integers_divide_rounding_down_and_never_panic() {
    let x = [7, -7, 7, -7, 6, -6, 5, -5, i32::MIN, i32::MIN, i32::MAX, i32::MIN];
    let y = [2, 2, -2, -2, 3, 3, 0, 0, -1, 3, -1, 0];
    let quotient = apply2!(BinaryFn::FloorDiv, x, y, i32, I32);
    assert_eq!(quotient, [3, -4, -4, 3, 2, -2, -1, -1, i32::MIN, -715_827_883, -i32::MAX, -1]);
    let rest = apply2!(BinaryFn::Mod, x, y, i32, I32);
    assert_eq!(rest, [1, 1, -1, -1, 0, 0, 5, -5, 0, 1, 0, i32::MIN]);
    assert_eq!(apply2!(BinaryFn::FloorDiv, [7, 7], [2, 0], u8, U8), [3, 255]);
    assert_eq!(apply2!(BinaryFn::Mod, [7, 7], [2, 0], u8, U8), [1, 7]);
}

#[test]
fn floats_divide_rounding_down_as_in_python() {
    let inf = f32::INFINITY;
    let x = [7.5, -7.5, 7.5, -7.5, 1.0, -1.0, 1.0, -1.0, 1.0, 0.0, 6.0, inf, 1e30];
    let y = [2.0, 2.0, -2.0, -2.0, 0.1, 0.1, inf, inf, 0.0, 0.0, -3.0, 2.0, 7.0];
    let show = |v: Vec<f32>| v.into_iter().map(|v| format!("{v:e}")).collect::<Vec<_>>().join(" ");
    // In f32 0.1 is a little more than a tenth: it fits into 1 nine times.
    let quotient = show(apply2!(BinaryFn::FloorDiv, x, y, f32, F32));
    assert_eq!(quotient, "3e0 -4e0 -4e0 3e0 9e0 -1e1 0e0 -1e0 inf NaN -2e0 NaN 1.4285715e29");
    let rest = show(apply2!(BinaryFn::Mod, x, y, f32, F32));
    assert_eq!(rest, "1.5e0 5e-1 -5e-1 -1.5e0 9.999999e-2 1.4901161e-8 1e0 inf NaN NaN -0e0 NaN 1e0");
}
