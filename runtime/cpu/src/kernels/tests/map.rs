use super::{Rng, dot, indices, same_for_all_pools};
use crate::kernels::instruction_set::Level;
use crate::kernels::{Access, Arg, KernelError, MapKernel, Slice, SliceMut, ValueIndexF32};
use half::{bf16, f16};
use meshwright_plan::DType;
use meshwright_plan::expr::{BinaryFn, Expr, Reg, Scalar, UnaryFn};

/// Elements of any dtype.
#[derive(Clone, Debug, PartialEq)]
enum Data {
    F64(Vec<f64>),
    F32(Vec<f32>),
    BF16(Vec<bf16>),
    F16(Vec<f16>),
    I32(Vec<i32>),
    U8(Vec<u8>),
    Bool(Vec<u8>),
    Pair(Vec<ValueIndexF32>),
}

impl Data {
    fn of(dtype: DType, x: impl Iterator<Item = f64>) -> Data {
        match dtype {
            DType::F64 => Data::F64(x.collect()),
            DType::F32 => Data::F32(x.map(|x| x as f32).collect()),
            DType::BF16 => Data::BF16(x.map(|x| bf16::from_f32(x as f32)).collect()),
            DType::F16 => Data::F16(x.map(|x| f16::from_f32(x as f32)).collect()),
            DType::I32 => Data::I32(x.map(|x| x as i32).collect()),
            DType::U8 => Data::U8(x.map(|x| x as u8).collect()),
            DType::Bool => Data::Bool(x.map(|x| u8::from(x > 0.0)).collect()),
            _ => Data::Pair(x.map(|x| ValueIndexF32 { value: x as f32, index: x.abs() as u32 }).collect()),
        }
    }

    fn at(&self, i: usize) -> f64 {
        match self {
            Data::F64(v) => v[i],
            Data::F32(v) => f64::from(v[i]),
            Data::BF16(v) => f64::from(v[i]),
            Data::F16(v) => f64::from(v[i]),
            Data::I32(v) => f64::from(v[i]),
            Data::U8(v) | Data::Bool(v) => f64::from(v[i]),
            Data::Pair(v) => f64::from(v[i].index),
        }
    }

    fn slice(&self) -> Slice<'_> {
        match self {
            Data::F64(v) => Slice::F64(v),
            Data::F32(v) => Slice::F32(v),
            Data::BF16(v) => Slice::BF16(v),
            Data::F16(v) => Slice::F16(v),
            Data::I32(v) => Slice::I32(v),
            Data::U8(v) => Slice::U8(v),
            Data::Bool(v) => Slice::Bool(v),
            Data::Pair(v) => Slice::PairF32(v),
        }
    }

    fn slice_mut(&mut self) -> SliceMut<'_> {
        match self {
            Data::F64(v) => SliceMut::F64(v),
            Data::F32(v) => SliceMut::F32(v),
            Data::BF16(v) => SliceMut::BF16(v),
            Data::F16(v) => SliceMut::F16(v),
            Data::I32(v) => SliceMut::I32(v),
            Data::U8(v) => SliceMut::U8(v),
            Data::Bool(v) => SliceMut::Bool(v),
            Data::Pair(v) => SliceMut::PairF32(v),
        }
    }
}

const TYPES: [DType; 7] =
    [DType::F64, DType::F32, DType::BF16, DType::F16, DType::I32, DType::U8, DType::Bool];

fn random_expr(rng: &mut Rng, inputs: &[DType], rank: usize) -> Expr {
    let mut e = Expr::default();
    for (k, t) in inputs.iter().enumerate() {
        let r = e.push(Scalar::Load(k as u16), *t);
        if t.is_pair() {
            e.push(Scalar::PairIndex(r), DType::I32);
        }
    }
    for t in TYPES {
        let x = (rng.unit() * 8.0).trunc();
        e.constant(if t == DType::U8 || t == DType::Bool { x.abs().min(1.0) } else { x }, t);
    }
    for _ in 0..3 + rng.below(14) {
        let plain: Vec<Reg> = (0..e.nodes.len() as Reg).filter(|r| !e.dtype(*r).is_pair()).collect();
        let a = plain[rng.below(plain.len())];
        let t = e.dtype(a);
        let same: Vec<Reg> = plain.iter().copied().filter(|r| e.dtype(*r) == t).collect();
        let b = same[rng.below(same.len())];
        let bools: Vec<Reg> = plain.iter().copied().filter(|r| e.dtype(*r) == DType::Bool).collect();
        use BinaryFn::*;
        match rng.below(8) {
            0 => e.cast(a, TYPES[rng.below(TYPES.len())]),
            1 => e.select(bools[rng.below(bools.len())], a, b),
            2 if rank > 0 => e.push(Scalar::Index(rng.below(rank) as u16), DType::I32),
            3 => e.binary([Lt, Le, Gt, Ge, Eq, Ne][rng.below(6)], a, b),
            4 if t == DType::Bool => e.unary(UnaryFn::Not, a),
            4 => {
                let f = [UnaryFn::Neg, UnaryFn::Abs, UnaryFn::Sign, UnaryFn::Relu][rng.below(4)];
                e.unary(f, a)
            }
            _ if t == DType::Bool => e.binary([And, Or, Min, Max][rng.below(4)], a, b),
            _ if t.is_float() => e.binary([Add, Sub, Mul, Div, Min, Max][rng.below(6)], a, b),
            _ => e.binary([Add, Sub, Mul, Div, Min, Max, FloorDiv, Mod][rng.below(8)], a, b),
        };
    }
    e
}

fn round(x: f64, t: DType) -> f64 {
    match t {
        DType::F32 => f64::from(x as f32),
        DType::BF16 => f64::from(bf16::from_f32(x as f32)),
        DType::F16 => f64::from(f16::from_f32(x as f32)),
        DType::I32 => f64::from(x as i64 as i32),
        DType::U8 => f64::from(x as i64 as u8),
        _ => x,
    }
}

fn unary(f: UnaryFn, a: f64, t: DType) -> f64 {
    match f {
        UnaryFn::Neg => round(-a, t),
        UnaryFn::Abs => round(a.abs(), t),
        UnaryFn::Sign => {
            if a == 0.0 || a.is_nan() {
                a
            } else {
                a.signum()
            }
        }
        UnaryFn::Relu => {
            if a <= 0.0 {
                0.0
            } else {
                a
            }
        }
        UnaryFn::Not => f64::from(u8::from(a == 0.0)),
        _ => unreachable!(),
    }
}

fn binary(f: BinaryFn, a: f64, b: f64, t: DType) -> f64 {
    let nan = a.is_nan() || b.is_nan();
    let truth = |x: bool| f64::from(u8::from(x));
    match f {
        BinaryFn::Add => round(a + b, t),
        BinaryFn::Sub => round(a - b, t),
        BinaryFn::Mul if t == DType::I32 => f64::from((a as i32).wrapping_mul(b as i32)),
        BinaryFn::Mul => round(a * b, t),
        BinaryFn::Div if t == DType::I32 && b == 0.0 => -1.0,
        BinaryFn::Div if t == DType::U8 && b == 0.0 => 255.0,
        BinaryFn::Div => round(a / b, t),
        BinaryFn::Min => {
            if nan {
                f64::NAN
            } else {
                a.min(b)
            }
        }
        BinaryFn::Max => {
            if nan {
                f64::NAN
            } else {
                a.max(b)
            }
        }
        BinaryFn::Lt => truth(a < b),
        BinaryFn::Le => truth(a <= b),
        BinaryFn::Gt => truth(a > b),
        BinaryFn::Ge => truth(a >= b),
        BinaryFn::Eq => truth(a == b),
        BinaryFn::Ne => truth(a != b),
        BinaryFn::And => truth(a != 0.0 && b != 0.0),
        BinaryFn::Or => truth(a != 0.0 || b != 0.0),
        BinaryFn::FloorDiv | BinaryFn::Mod if t.is_int() => {
            let (a, b) = (a as i64, b as i64);
            let down = if b == 0 { -1 } else { a.div_euclid(b) - i64::from(b < 0 && a.rem_euclid(b) != 0) };
            round(
                if f == BinaryFn::FloorDiv { down } else { a - if b == 0 { 0 } else { down * b } } as f64,
                t,
            )
        }
        BinaryFn::Pow | BinaryFn::FloorDiv | BinaryFn::Mod => unreachable!(),
    }
}

fn cast(x: f64, from: DType, to: DType) -> f64 {
    match to {
        DType::F64 => x,
        DType::F32 => f64::from(x as f32),
        DType::BF16 => f64::from(bf16::from_f32(x as f32)),
        DType::F16 => f64::from(f16::from_f32(x as f32)),
        DType::I32 => f64::from(x as i32),
        DType::U8 if from == DType::I32 => f64::from(x as i32 as u8),
        DType::U8 => f64::from(x as u8),
        _ => f64::from(u8::from(x != 0.0)),
    }
}

/// All nodes at one element. Every operation of these expressions is exact up to one rounding, so results are too.
fn evaluate(e: &Expr, index: &[usize], offsets: &[usize], load: impl Fn(usize) -> f64) -> Vec<f64> {
    let mut v: Vec<f64> = vec![];
    for n in &e.nodes {
        let x = match n.scalar {
            Scalar::Load(k) => load(k as usize),
            Scalar::Const(x) => x,
            Scalar::Index(d) => (index[d as usize] + offsets[d as usize]) as f64,
            Scalar::PairIndex(r) => v[r as usize],
            Scalar::Unary(f, a) => unary(f, v[a as usize], n.dtype),
            Scalar::Binary(f, a, b) => binary(f, v[a as usize], v[b as usize], e.dtype(a)),
            Scalar::Select(c, a, b) => {
                if v[c as usize] != 0.0 {
                    v[a as usize]
                } else {
                    v[b as usize]
                }
            }
            Scalar::Cast(a) => cast(v[a as usize], e.dtype(a), n.dtype),
        };
        v.push(x);
    }
    v
}

#[test]
fn random_expressions_over_random_layouts() {
    let mut rng = Rng(7);
    let all = [&TYPES[..], &[DType::PairF32]].concat();
    for round in 0..600 {
        let mut shape = rng.shape(4);
        if round % 20 == 0 {
            shape = vec![3, 1, 1000 + rng.below(50)];
        }
        let types: Vec<DType> = (0..1 + rng.below(4)).map(|_| all[rng.below(all.len())]).collect();
        let offsets: Vec<usize> = shape.iter().map(|_| rng.below(100)).collect();
        let mut data = vec![];
        let mut accesses = vec![];
        for t in &types {
            let lack: Vec<usize> = (0..shape.len()).filter(|_| rng.below(4) == 0).collect();
            let (mut strides, mut n) = (crate::kernels::dense_strides(&shape), shape.iter().product());
            if rng.below(3) == 0 {
                (strides, n) = rng.strides(&shape, &lack);
            }
            let offset = rng.below(3) / 2 * 5;
            data.push(Data::of(*t, (0..n + offset).map(|_| (rng.unit() * 12.0).trunc() * 0.5)));
            accesses.push(Access { dtype: *t, offset, strides });
        }
        let e = random_expr(&mut rng, &types, shape.len());
        let plain: Vec<Reg> = (0..e.nodes.len() as Reg).filter(|r| !e.dtype(*r).is_pair()).collect();
        let outs: Vec<Reg> =
            (0..1 + rng.below(3)).map(|_| plain[plain.len() - 1 - rng.below(plain.len())]).collect();
        let total = shape.iter().product();
        let want: Vec<Vec<f64>> = indices(&shape)
            .iter()
            .map(|i| {
                let load = |k: usize| data[k].at(accesses[k].offset + dot(i, &accesses[k].strides));
                evaluate(&e, i, &offsets, load)
            })
            .collect();
        for level in Level::available() {
            let kernel = MapKernel::new(&e, &shape, &accesses, &offsets, &outs).unwrap().with_level(level);
            let mut results: Vec<Data> =
                outs.iter().map(|r| Data::of(e.dtype(*r), std::iter::repeat_n(1.0, total))).collect();
            let mut args: Vec<Arg> = data.iter().map(|d| Arg::Slice(d.slice())).collect();
            // Some outputs take the place of an input.
            for (o, r) in outs.iter().enumerate() {
                let fits = (0..data.len()).find(|k| {
                    let fresh = matches!(args[*k], Arg::Slice(_)) && types[*k] == e.dtype(*r);
                    fresh && accesses[*k].is_dense(&shape) && data[*k].slice().len() == total
                });
                if let Some(k) = fits
                    && rng.below(2) == 0
                {
                    results[o] = data[k].clone();
                    args[k] = Arg::Out(o);
                }
            }
            let mut slices: Vec<SliceMut> = results.iter_mut().map(Data::slice_mut).collect();
            kernel.run(&args, &mut slices).unwrap();
            for (o, r) in outs.iter().enumerate() {
                for (i, want) in want.iter().enumerate() {
                    let (got, want) = (results[o].at(i), want[*r as usize]);
                    let same = got == want || got.is_nan() && want.is_nan();
                    assert!(
                        same,
                        "{got} is not {want} at {i} of {shape:?}, output {o} ({r}) of {e:#?} {level:?}"
                    );
                }
            }
        }
    }
}

/// AdamW with its step number, moments and parameter in place.
fn adam() -> Expr {
    let mut e = Expr::default();
    let [p, m, v, g] = [0, 1, 2, 3].map(|k| e.push(Scalar::Load(k), DType::F32));
    let t = e.push(Scalar::Load(4), DType::F32);
    let c = |e: &mut Expr, x| e.constant(x, DType::F32);
    let (b1, b2, one) = (c(&mut e, 0.9), c(&mut e, 0.999), c(&mut e, 1.0));
    use BinaryFn::*;
    let blend = |e: &mut Expr, b, old, new| {
        let rest = e.binary(Sub, one, b);
        let (x, y) = (e.binary(Mul, b, old), e.binary(Mul, rest, new));
        e.binary(Add, x, y)
    };
    let m2 = blend(&mut e, b1, m, g);
    let square = e.binary(Mul, g, g);
    let v2 = blend(&mut e, b2, v, square);
    let correct = |e: &mut Expr, b, x| {
        let power = e.binary(Pow, b, t);
        let rest = e.binary(Sub, one, power);
        e.binary(Div, x, rest)
    };
    let (mh, vh) = (correct(&mut e, b1, m2), correct(&mut e, b2, v2));
    let root = e.unary(UnaryFn::Sqrt, vh);
    let eps = c(&mut e, 1e-8);
    let below = e.binary(Add, root, eps);
    let step = e.binary(Div, mh, below);
    let lr = c(&mut e, 1e-3);
    let step = e.binary(Mul, lr, step);
    let p2 = e.binary(Sub, p, step);
    e.push(Scalar::Unary(UnaryFn::Neg, p2), DType::F32);
    e
}

#[test]
fn adam_in_place_is_right_and_the_same_for_any_pool() {
    let e = adam();
    let n = 150_001;
    let find = |i: Reg| i;
    // p2, m2 and v2 by their place in `adam`.
    let outs: Vec<Reg> = {
        let is = |f: &dyn Fn(&Scalar) -> bool| e.nodes.iter().rposition(|n| f(&n.scalar)).unwrap() as Reg;
        let p2 = is(&|s| matches!(s, Scalar::Binary(BinaryFn::Sub, 0, _)));
        let adds: Vec<Reg> = (0..e.nodes.len() as Reg)
            .filter(|r| matches!(e.nodes[*r as usize].scalar, Scalar::Binary(BinaryFn::Add, _, _)))
            .collect();
        vec![find(p2), adds[0], adds[1]]
    };
    let dense = Access::dense(DType::F32, &[n]);
    let scalar = Access { dtype: DType::F32, offset: 0, strides: vec![0] };
    let accesses = [dense.clone(), dense.clone(), dense.clone(), dense, scalar];
    let kernel = MapKernel::new(&e, &[n], &accesses, &[0], &outs).unwrap();
    let mut rng = Rng(3);
    let start: Vec<Vec<f32>> = (0..4).map(|_| (0..n).map(|_| rng.unit() as f32).collect()).collect();
    let v: Vec<f32> = start[2].iter().map(|x| x.abs()).collect();
    let run = || {
        let (mut p, mut m, mut v) = (start[0].clone(), start[1].clone(), v.clone());
        let args = [
            Arg::Out(0),
            Arg::Out(1),
            Arg::Out(2),
            Arg::Slice(Slice::F32(&start[3])),
            Arg::Slice(Slice::F32(&[3.0])),
        ];
        let outs = &mut [SliceMut::F32(&mut p), SliceMut::F32(&mut m), SliceMut::F32(&mut v)];
        kernel.run(&args, outs).unwrap();
        (p, m, v)
    };
    let (p, m, v2) = same_for_all_pools(run);
    for i in 0..n {
        let [p0, m0, g] = [0, 1, 3].map(|k| f64::from(start[k][i]));
        let (m1, v1) = (0.9 * m0 + 0.1 * g, 0.999 * f64::from(v[i]) + 0.001 * g * g);
        let want =
            p0 - 1e-3 * (m1 / (1.0 - 0.9f64.powi(3))) / ((v1 / (1.0 - 0.999f64.powi(3))).sqrt() + 1e-8);
        assert!((f64::from(m[i]) - m1).abs() < 1e-6 && (f64::from(v2[i]) - v1).abs() < 1e-6);
        assert!((f64::from(p[i]) - want).abs() < 1e-4 * (want - p0).abs() + 1e-7, "{} {want}", p[i]);
    }
}

#[test]
fn powers() {
    let x = [-2.0, -0.5, 0.0, 1.5, 3.0];
    for exponent in [2.0, 3.0, 4.0, 0.5, -1.0, 2.5] {
        let mut e = Expr::default();
        let a = e.push(Scalar::Load(0), DType::F64);
        let c = e.constant(exponent, DType::F64);
        let r = e.binary(BinaryFn::Pow, a, c);
        let kernel = MapKernel::new(&e, &[5], &[Access::dense(DType::F64, &[5])], &[0], &[r]).unwrap();
        let mut y = [0.0; 5];
        kernel.run(&[Arg::Slice(Slice::F64(&x))], &mut [SliceMut::F64(&mut y)]).unwrap();
        for (x, y) in x.iter().zip(y) {
            let want = x.powf(exponent);
            assert!((y - want).abs() <= 1e-15 * want.abs() || y == want || y.is_nan() && want.is_nan());
        }
    }
}

#[test]
fn what_does_not_fit_is_an_error() {
    let mut e = Expr::default();
    let a = e.push(Scalar::Load(0), DType::F32);
    let r = e.unary(UnaryFn::Exp, a);
    let dense = Access::dense(DType::F32, &[4]);
    let new =
        |e: &Expr, a: &Access, outs: &[Reg]| MapKernel::new(e, &[4], std::slice::from_ref(a), &[0], outs);
    assert!(new(&e, &Access::dense(DType::F64, &[4]), &[r]).is_err());
    assert!(new(&e, &Access::dense(DType::F32, &[2, 2]), &[r]).is_err());
    assert!(new(&e, &dense, &[9]).is_err());
    let mut wrong = e.clone();
    wrong.push(Scalar::Unary(UnaryFn::Not, a), DType::F32);
    assert!(new(&wrong, &dense, &[2]).is_err());
    let kernel = new(&e, &dense, &[r]).unwrap();
    let (x, mut y) = ([0.0f32; 4], [0.0f32; 4]);
    let short = kernel.run(&[Arg::Slice(Slice::F32(&x[..3]))], &mut [SliceMut::F32(&mut y)]);
    assert_eq!(short, Err(KernelError::Length { expected: 4, found: 3 }));
    assert!(kernel.run(&[], &mut [SliceMut::F32(&mut y)]).is_err());
    assert!(kernel.run(&[Arg::Out(1)], &mut [SliceMut::F32(&mut y)]).is_err());
    let mut z = [0i32; 4];
    assert!(kernel.run(&[Arg::Slice(Slice::F32(&x))], &mut [SliceMut::I32(&mut z)]).is_err());
}
