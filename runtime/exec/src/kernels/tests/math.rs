use crate::kernels::level::Level;
use crate::kernels::{Access, Arg, MapKernel, Slice, SliceMut};
use meshwright_plan::DType;
use meshwright_plan::expr::{Expr, Scalar, UnaryFn};

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
    let cases: [Case; 9] = [
        (UnaryFn::Exp, f64::exp, 1.5),
        (UnaryFn::Log, f64::ln, 1.5),
        (UnaryFn::Tanh, f64::tanh, 3.0),
        (UnaryFn::Sigmoid, |x| 1.0 / (1.0 + (-x).exp()), 3.5),
        (UnaryFn::Erf, libm::erf, 2.5),
        (UnaryFn::Sqrt, f64::sqrt, 0.5001),
        (UnaryFn::Rsqrt, |x| 1.0 / x.sqrt(), 1.5),
        (UnaryFn::Recip, |x| 1.0 / x, 0.5001),
        (UnaryFn::Abs, f64::abs, 0.0),
    ];
    let found: Vec<_> = cases.iter().map(|(f, r, limit)| (f, worst(*f, r), limit)).collect();
    assert!(found.iter().all(|(_, u, limit)| u <= limit), "{found:?}");
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
    ];
    for level in Level::available() {
        for (f, want) in cases {
            let got = apply(f, level, &x);
            let same = got.iter().zip(want).all(|(g, w)| *g == w || g.is_nan() && w.is_nan());
            assert!(same, "{f:?} {level:?}: {got:?}, not {want:?}");
        }
    }
}

#[test]
fn an_element_does_not_depend_on_its_place() {
    let x: Vec<f32> = sweep().into_iter().step_by(41).take(3000).collect();
    for level in Level::available() {
        for f in [UnaryFn::Exp, UnaryFn::Log, UnaryFn::Tanh, UnaryFn::Sigmoid, UnaryFn::Erf] {
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
