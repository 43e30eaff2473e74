//! Arithmetic, rounding, conversions and comparisons.

use super::{each, one};
use half::{bf16, f16};
use meshwright_plan::Fp8;

/// Some numbers of all kinds, by a generator without state elsewhere.
fn bits(many: usize) -> Vec<u32> {
    let mut state = 1u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    std::iter::repeat_with(next).take(many).collect()
}

fn groups() -> Vec<[u32; 3]> {
    bits(3 * 300).chunks(3).map(|group| [group[0], group[1], group[2]]).collect()
}

fn same(got: f32, want: f32) -> bool {
    got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan()
}

#[test]
fn single_precision_is_rounded_once() {
    type Function = fn(f32, f32, f32) -> f32;
    let all: [(&str, Function); 7] = [
        ("add.rn.f32 %r5, %r2, %r3;", |a, b, _| a + b),
        ("sub.f32 %r5, %r2, %r3;", |a, b, _| a - b),
        ("mul.rn.f32 %r5, %r2, %r3;", |a, b, _| a * b),
        ("fma.rn.f32 %r5, %r2, %r3, %r4;", f32::mul_add),
        ("div.rn.f32 %r5, %r2, %r3;", |a, b, _| a / b),
        ("sqrt.rn.f32 %r5, %r2;", |a, _, _| a.sqrt()),
        ("rcp.rn.f32 %r5, %r2;", |a, _, _| 1.0 / a),
    ];
    for (instruction, function) in all {
        for (group, got) in groups().iter().zip(each(instruction, &groups())) {
            let [a, b, c] = group.map(f32::from_bits);
            assert!(same(f32::from_bits(got), function(a, b, c)), "{instruction} {group:x?}: {got:x}");
        }
    }
    // A product that is rounded before the sum loses all that is left.
    let [a, minus] = [1.0 + f32::EPSILON, -(1.0 + 2.0 * f32::EPSILON)].map(f32::to_bits);
    let left = one("fma.rn.f32 %r5, %r2, %r2, %r4;", [a, 0, minus]);
    assert_eq!(f32::from_bits(left), f32::EPSILON * f32::EPSILON);
}

#[test]
fn directions_of_rounding_enclose_the_exact_number() {
    // 1 + 2^-30, exact in double precision.
    let [one_, small] = [1f32, 2f32.powi(-30)].map(f32::to_bits);
    for (sign, [down, up, zero, near]) in [(0, [0, 1, 0, 0]), (1u32 << 31, [1, 0, 0, 0])] {
        for (direction, step) in [("rm", down), ("rp", up), ("rz", zero), ("rn", near)] {
            let input = [one_ | sign, one_, small | sign];
            let got = one(&format!("fma.{direction}.f32 %r5, %r2, %r3, %r4;"), input);
            assert_eq!(got, (one_ | sign) + step, "{direction} {sign:x}");
            let got = one(&format!("add.{direction}.f32 %r5, %r2, %r4;"), input);
            assert_eq!(got, (one_ | sign) + step, "{direction} {sign:x}");
        }
    }
    let huge = f32::MAX.to_bits();
    assert_eq!(one("add.rz.f32 %r5, %r2, %r2;", [huge, 0, 0]), huge);
    assert_eq!(one("add.rn.f32 %r5, %r2, %r2;", [huge, 0, 0]), f32::INFINITY.to_bits());
    // Subnormal numbers are zero only where it is said.
    let tiny = 1u32;
    assert_eq!(one("add.ftz.f32 %r5, %r2, %r3;", [tiny, 0, 0]), 0);
    assert_eq!(one("add.f32 %r5, %r2, %r3;", [tiny, 0, 0]), tiny);
    let above = 1.5f32.to_bits();
    assert_eq!(one("fma.rn.sat.f32 %r5, %r2, %r2, %r3;", [above, 0, 0]), 1f32.to_bits());
}

#[test]
fn halves_are_rounded_once() {
    for (group, got) in groups().iter().zip(each("add.bf16x2 %r5, %r2, %r3;", &groups())) {
        for shift in [0, 16] {
            let [a, b] = [group[0], group[1]].map(|x| bf16::from_bits((x >> shift) as u16).to_f32());
            let (want, got) = (bf16::from_f32(a + b), bf16::from_bits((got >> shift) as u16));
            assert!(got == want || got.is_nan() && want.is_nan(), "{group:x?}: {got} {want}");
        }
    }
    // The square of 1 + 2^-4 is halfway between two neighbors: what lies far below decides, which rounding twice would lose.
    let fused = "mov.b32 {%rs1, %rs2}, %r2; mov.b32 {%rs3, %rs4}, %r3;
        fma.rn.bf16 %rs5, %rs1, %rs1, %rs3; mov.b32 %r5, {%rs5, %rs2};";
    for (far_below, want) in [(1e-30, 0x3f91), (0.0, 0x3f90), (-1e-30, 0x3f90)] {
        let [a, c] = [1.0625, far_below].map(|x| u32::from(bf16::from_f32(x).to_bits()));
        assert_eq!(one(fused, [a, c, 0]), want, "{far_below}");
    }
}

#[test]
fn conversions_are_those_of_the_formats() {
    let all: Vec<[u32; 3]> = (0..=0xffff).map(|x| [x, 0, 0]).collect();
    for part in all.chunks(1024) {
        let of_f16 = each("cvt.u16.u32 %rs1, %r2; cvt.f32.f16 %r5, %rs1;", part);
        let of_bf16 = each("cvt.u16.u32 %rs1, %r2; cvt.f32.bf16 %r5, %rs1;", part);
        for (i, [x, _, _]) in part.iter().enumerate() {
            assert!(same(f32::from_bits(of_f16[i]), f16::from_bits(*x as u16).to_f32()), "{x:x}");
            assert!(same(f32::from_bits(of_bf16[i]), bf16::from_bits(*x as u16).to_f32()), "{x:x}");
        }
    }
    let pairs = each("cvt.rn.bf16x2.f32 %r5, %r2, %r3;", &groups());
    let halves = each("cvt.rn.f16.f32 %rs1, %r2; cvt.u32.u16 %r5, %rs1;", &groups());
    for (i, group) in groups().iter().enumerate() {
        let [high, low] = [group[0], group[1]].map(|x| bf16::from_f32(f32::from_bits(x)));
        let got = [pairs[i] >> 16, pairs[i] & 0xffff].map(|x| bf16::from_bits(x as u16));
        let equal = |a: bf16, b: bf16| a == b || a.is_nan() && b.is_nan();
        assert!(equal(got[0], high) && equal(got[1], low), "{group:x?}");
        let want = f16::from_f32(f32::from_bits(group[0]));
        let got = f16::from_bits(halves[i] as u16);
        assert!(got == want || got.is_nan() && want.is_nan(), "{group:x?}");
    }
    for (format, name) in [(Fp8::E4M3, "e4m3x2"), (Fp8::E5M2, "e5m2x2")] {
        // All numbers of the format, what is next to them, and what is in the middle of two; then any.
        let codes: Vec<f32> = (0..=255).map(|code| format.number(code)).filter(|x| x.is_finite()).collect();
        let middles = codes.windows(2).map(|two| (two[0] + two[1]) / 2.0);
        let near = codes.iter().copied().chain(middles).flat_map(|x| [x, x.next_up(), x.next_down()]);
        let more = [1e9, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-30, -0.0];
        let near: Vec<u32> = near.chain(more).map(f32::to_bits).collect();
        let mut all: Vec<[u32; 3]> = near.iter().zip(near.iter().rev()).map(|(a, b)| [*a, *b, 0]).collect();
        all.extend(groups());
        for part in all.chunks(1024) {
            let text = format!("cvt.rn.satfinite.{name}.f32 %rs1, %r2, %r3; cvt.u32.u16 %r5, %rs1;");
            for (got, group) in each(&text, part).into_iter().zip(part) {
                for (got, x) in [(got >> 8, group[0]), (got & 0xff, group[1])] {
                    let x = f32::from_bits(x);
                    let want = format.code(format.round(x));
                    let equal = if x.is_nan() { got & 0x7f == 0x7f } else { got == u32::from(want) };
                    assert!(equal, "{name}, {x}: {got:x}, not {want:x}");
                }
            }
        }
    }
    let f = f32::to_bits;
    for (instruction, from, to) in [
        ("cvt.rzi.s32.f32 %r5, %r2;", f(-2.7), -2i32 as u32),
        ("cvt.rni.s32.f32 %r5, %r2;", f(2.5), 2),
        ("cvt.rmi.s32.f32 %r5, %r2;", f(-2.1), -3i32 as u32),
        ("cvt.rpi.s32.f32 %r5, %r2;", f(2.1), 3),
        ("cvt.rzi.u32.f32 %r5, %r2;", f(-1.0), 0),
        ("cvt.rzi.s32.f32 %r5, %r2;", f(1e20), i32::MAX as u32),
        ("cvt.rzi.s32.f32 %r5, %r2;", f(f32::NAN), 0),
        ("cvt.rn.f32.s32 %r5, %r2;", -3i32 as u32, f(-3.0)),
        ("cvt.rn.f32.u32 %r5, %r2;", u32::MAX, f(4_294_967_296.0)),
        ("cvt.rz.f32.u32 %r5, %r2;", u32::MAX, f(4_294_967_040.0)),
        ("cvt.rni.f32.f32 %r5, %r2;", f(3.5), f(4.0)),
        ("cvt.sat.f32.f32 %r5, %r2;", f(1.5), f(1.0)),
        ("cvt.sat.f32.f32 %r5, %r2;", f(f32::NAN), 0),
        ("cvt.rna.tf32.f32 %r5, %r2;", 0x3f80_1000, 0x3f80_2000),
        ("cvt.rna.tf32.f32 %r5, %r2;", 0x3f80_0fff, 0x3f80_0000),
        ("cvt.u16.u32 %rs1, %r2; cvt.s32.s8 %r5, %rs1;", 0x80, -128i32 as u32),
        ("cvt.u16.u32 %rs1, %r2; cvt.u32.u8 %r5, %rs1;", 0x1ff, 0xff),
        ("cvt.sat.u8.s32 %r5, %r2;", -5i32 as u32, 0),
        ("cvt.s64.s32 %rd6, %r2; shr.s64 %rd6, %rd6, 1; cvt.u32.u64 %r5, %rd6;", -2i32 as u32, u32::MAX),
        ("cvt.f64.f32 %rd6, %r2; add.rn.f64 %rd6, %rd6, %rd6; cvt.rn.f32.f64 %r5, %rd6;", f(1.25), f(2.5)),
    ] {
        assert_eq!(one(instruction, [from, 0, 0]), to, "{instruction} {from:x}");
    }
}

#[test]
fn what_is_no_number_is_neither_less_nor_more() {
    let (nan, two) = (f32::NAN.to_bits(), 2f32.to_bits());
    let relations = [
        ("eq", 0, 1),
        ("ne", 0, 0),
        ("lt", 0, 0),
        ("le", 0, 1),
        ("gt", 0, 0),
        ("ge", 0, 1),
        ("equ", 1, 1),
        ("neu", 1, 0),
        ("ltu", 1, 0),
        ("leu", 1, 1),
        ("gtu", 1, 0),
        ("geu", 1, 1),
        ("num", 0, 1),
        ("nan", 1, 0),
    ];
    for (relation, with_nan, with_same) in relations {
        let instruction = format!("setp.{relation}.f32 %p1, %r2, %r3; selp.b32 %r5, 1, 0, %p1;");
        assert_eq!(each(&instruction, &[[nan, two, 0], [two, two, 0]]), [with_nan, with_same], "{relation}");
    }
    assert_eq!(one("max.f32 %r5, %r2, %r3;", [nan, two, 0]), two);
    assert_eq!(one("min.f32 %r5, %r2, %r3;", [two, nan, 0]), two);
    assert_eq!(one("max.NaN.f32 %r5, %r2, %r3;", [nan, two, 0]), 0x7fff_ffff);
    let (zero, minus) = (0f32.to_bits(), (-0f32).to_bits());
    assert_eq!(each("max.f32 %r5, %r2, %r3;", &[[zero, minus, 0], [minus, zero, 0]]), [zero; 2]);
    assert_eq!(each("min.f32 %r5, %r2, %r3;", &[[zero, minus, 0], [minus, zero, 0]]), [minus; 2]);
    let combined = "setp.lt.u32 %p1, %r2, %r3; setp.gt.and.s32 %p2|%p3, %r2, %r3, %p1;
        selp.b32 %r5, 2, 0, %p2; @%p3 or.b32 %r5, %r5, 1;";
    // 1 is less than -1 without signs, and more with them.
    assert_eq!(each(combined, &[[1, u32::MAX, 0], [1, 2, 0], [2, 1, 0]]), [2, 1, 0]);
}

#[test]
fn integers_wrap_and_shift_as_told() {
    let minus = |x: i32| x as u32;
    for (instruction, input, want) in [
        ("add.s32 %r5, %r2, %r3;", [u32::MAX, 2, 0], 1),
        ("mul.hi.u32 %r5, %r2, %r3;", [u32::MAX, u32::MAX, 0], 0xffff_fffe),
        ("mul.hi.s32 %r5, %r2, %r3;", [minus(-1), 5, 0], u32::MAX),
        ("mad.lo.s32 %r5, %r2, %r3, %r4;", [minus(-3), 5, 4], minus(-11)),
        (
            "mul.wide.s32 %rd6, %r2, %r3; shr.u64 %rd6, %rd6, 32; cvt.u32.u64 %r5, %rd6;",
            [minus(-1), 1, 0],
            u32::MAX,
        ),
        ("div.s32 %r5, %r2, %r3;", [minus(-7), 2, 0], minus(-3)),
        ("rem.s32 %r5, %r2, %r3;", [minus(-7), 2, 0], minus(-1)),
        ("rem.u32 %r5, %r2, %r3;", [7, 4, 0], 3),
        ("shl.b32 %r5, %r2, %r3;", [1, 32, 0], 0),
        ("shr.u32 %r5, %r2, %r3;", [u32::MAX, 40, 0], 0),
        ("shr.s32 %r5, %r2, %r3;", [minus(-8), 40, 0], u32::MAX),
        ("shf.l.wrap.b32 %r5, %r2, %r3, %r4;", [0x8000_0000, 1, 1], 3),
        ("shf.r.clamp.b32 %r5, %r2, %r3, %r4;", [1, 7, 40], 7),
        ("bfe.u32 %r5, %r2, 4, 5;", [0x1f3, 0, 0], 0x1f),
        ("bfe.s32 %r5, %r2, 4, 4;", [0x80, 0, 0], minus(-8)),
        ("bfi.b32 %r5, %r2, %r3, 8, 4;", [0xf, 0xffff_0000, 0], 0xffff_0f00),
        ("brev.b32 %r5, %r2;", [1, 0, 0], 0x8000_0000),
        ("clz.b32 %r5, %r2;", [0xff, 0, 0], 24),
        ("popc.b32 %r5, %r2;", [0xf0f, 0, 0], 8),
        ("bfind.u32 %r5, %r2;", [0x100, 0, 0], 8),
        ("prmt.b32 %r5, %r2, %r3, 0x7410U;", [0x3322_1100, 0x7766_5544, 0], 0x7744_1100),
        ("prmt.b32 %r5, %r2, %r3, 0x888bU;", [0x8000_0000, 0, 0], 0x0000_00ff),
        ("lop3.b32 %r5, %r2, %r3, %r4, 0x96;", [0b1100, 0b1010, 0b0110], 0b1100 ^ 0b1010 ^ 0b0110),
        ("add.sat.s32 %r5, %r2, %r3;", [i32::MAX as u32, 1, 0], i32::MAX as u32),
        ("abs.s32 %r5, %r2;", [minus(-4), 0, 0], 4),
        ("max.s32 %r5, %r2, %r3;", [minus(-4), 3, 0], 3),
        ("max.u32 %r5, %r2, %r3;", [minus(-4), 3, 0], minus(-4)),
    ] {
        assert_eq!(one(instruction, input), want, "{instruction} {input:x?}");
    }
}

#[test]
fn carries_go_on_to_the_next_part() {
    let product = "mov.b32 %r6, 0; mad.lo.cc.u32 %r7, %r2, %r3, %r4; madc.hi.u32 %r5, %r2, %r3, %r6;";
    for [a, b, c] in groups() {
        let exact = u64::from(a) * u64::from(b) + u64::from(c);
        assert_eq!(one(product, [a, b, c]), (exact >> 32) as u32);
    }
    let sum =
        "mov.b64 %rd6, {%r2, %r3}; add.cc.s64 %rd7, %rd6, %rd6; addc.s64 %rd8, 0, 0; cvt.u32.u64 %r5, %rd8;";
    assert_eq!(each(sum, &[[0, 1 << 31, 0], [u32::MAX, 1, 0]]), [1, 0]);
    let difference = "sub.cc.u32 %r6, %r2, %r3; subc.u32 %r5, %r4, 0;";
    assert_eq!(each(difference, &[[1, 2, 7], [2, 2, 7]]), [6, 7]);
}

#[test]
fn functions_are_precise() {
    type Function = fn(f64) -> f64;
    let all: [(&str, Function); 7] = [
        ("ex2.approx.ftz.f32 %r5, %r2;", f64::exp2),
        ("lg2.approx.f32 %r5, %r2;", f64::log2),
        ("sin.approx.f32 %r5, %r2;", f64::sin),
        ("cos.approx.f32 %r5, %r2;", f64::cos),
        ("tanh.approx.f32 %r5, %r2;", f64::tanh),
        ("rsqrt.approx.f32 %r5, %r2;", |x| 1.0 / x.sqrt()),
        ("rcp.approx.ftz.f32 %r5, %r2;", |x| 1.0 / x),
    ];
    for (instruction, function) in all {
        for x in [0.1f32, 0.75, 1.5, 3.0] {
            let (got, want) = (f32::from_bits(one(instruction, [x.to_bits(), 0, 0])), function(x.into()));
            assert!((f64::from(got) - want).abs() <= 3e-7 * want.abs(), "{instruction} {x}: {got} {want}");
        }
    }
}
