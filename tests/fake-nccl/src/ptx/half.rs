//! Arithmetic on 16 bits, and on two numbers of them in 32: in double precision, rounded once.

use super::rounding::{BF16, F16, Format, Rounding, odd, two_sum};
use super::steps::{Decoded, Operands};
use super::types::{Mnemonic, Type};

/// A format, and whether two numbers are in a register.
#[derive(Clone, Copy)]
struct Kind {
    format: Format,
    is_packed: bool,
}

impl Kind {
    /// Does it to each number: `f` gets how far its bits lie from the lowest.
    #[inline(always)]
    fn each(self, f: impl Fn(u32) -> u32) -> u32 {
        f(0) | if self.is_packed { f(16) << 16 } else { 0 }
    }

    fn wide(self, bits: u32, shift: u32) -> f64 {
        self.format.widen(bits >> shift & 0xffff)
    }

    fn round(self, parts: (f64, f64)) -> u32 {
        self.format.narrow(odd(parts), Rounding::NearestEven)
    }
}

pub(super) fn decode(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded {
    // Rounding to the nearest is the only one there is.
    mnemonic.flag("rn");
    mnemonic.flag("noftz");
    let keeps_nan = mnemonic.flag("NaN");
    let is_approximate = mnemonic.flag("approx");
    let relu = mnemonic.flag("relu");
    let ty = mnemonic.ty()?;
    let format = if matches!(ty, Type::F16 | Type::F16x2) { F16 } else { BF16 };
    let kind = Kind { format, is_packed: matches!(ty, Type::F16x2 | Type::Bf16x2) };
    match mnemonic.head {
        "neg" => operands.one(move |a: u32| kind.each(|s| a >> s & 0xffff ^ 0x8000)),
        "abs" => operands.one(move |a: u32| kind.each(|s| a >> s & 0x7fff)),
        "min" | "max" => extremes(mnemonic.head == "max", keeps_nan, kind, operands),
        "fma" => operands.three(move |a: u32, b: u32, c: u32| {
            kind.each(|s| {
                let parts = two_sum(kind.wide(a, s) * kind.wide(b, s), kind.wide(c, s));
                let bits = kind.round(parts);
                if relu && parts.0 < 0.0 { 0 } else { bits }
            })
        }),
        head if is_approximate => functions(head, kind, operands),
        head => sums(head, kind, operands),
    }
}

fn sums(head: &str, kind: Kind, operands: &mut Operands) -> Decoded {
    match head {
        "add" => operands
            .two(move |a: u32, b: u32| kind.each(|s| kind.round(two_sum(kind.wide(a, s), kind.wide(b, s))))),
        "sub" => operands
            .two(move |a: u32, b: u32| kind.each(|s| kind.round(two_sum(kind.wide(a, s), -kind.wide(b, s))))),
        "mul" => operands
            .two(move |a: u32, b: u32| kind.each(|s| kind.round((kind.wide(a, s) * kind.wide(b, s), 0.0)))),
        _ => Err("unknown instruction".into()),
    }
}

fn extremes(is_max: bool, keeps_nan: bool, kind: Kind, operands: &mut Operands) -> Decoded {
    operands.two(move |a: u32, b: u32| {
        kind.each(|s| {
            let (x, y) = (kind.wide(a, s), kind.wide(b, s));
            let (a, b) = (a >> s & 0xffff, b >> s & 0xffff);
            if x.is_nan() || y.is_nan() {
                return match (keeps_nan, x.is_nan(), y.is_nan()) {
                    (false, true, false) => b,
                    (false, false, true) => a,
                    _ => kind.format.nan(),
                };
            }
            let a_is_less = x < y || (x == y && x.is_sign_negative());
            if a_is_less == is_max { b } else { a }
        })
    })
}

fn functions(head: &str, kind: Kind, operands: &mut Operands) -> Decoded {
    let f: fn(f64) -> f64 = match head {
        "ex2" => f64::exp2,
        "tanh" => f64::tanh,
        _ => return Err("unknown instruction".into()),
    };
    operands.one(move |a: u32| kind.each(|s| kind.round((f(kind.wide(a, s)), 0.0))))
}
