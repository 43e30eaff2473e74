//! Whole numbers.

use super::steps::{Decoded, Operands, integers};
use super::types::{Mnemonic, Type};

/// Those that end in the same number of bits.
pub(super) fn decode(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded {
    let saturates = mnemonic.flag("sat");
    let part = mnemonic.one_of(&["lo", "hi", "wide"]).unwrap_or("lo");
    let ty = mnemonic.ty()?;
    if saturates {
        return match (mnemonic.head, ty) {
            ("add", Type::S32) => operands.two(|a: i32, b: i32| a.saturating_add(b)),
            ("sub", Type::S32) => operands.two(|a: i32, b: i32| a.saturating_sub(b)),
            _ => Err("no such operation saturates".into()),
        };
    }
    match mnemonic.head {
        "mul" | "mad" => products(mnemonic.head == "mad", part, ty, operands),
        "abs" | "neg" => signs(mnemonic.head, ty, operands),
        head => integers!(ty, T => match head {
            "add" => operands.two(|a: T, b: T| a.wrapping_add(b)),
            "sub" => operands.two(|a: T, b: T| a.wrapping_sub(b)),
            // Where CUDA leaves it open, all bits are set, as GPUs do.
            "div" => operands.two(|a: T, b: T| if b == 0 { !0 } else { a.wrapping_div(b) }),
            "rem" => operands.two(|a: T, b: T| if b == 0 { a } else { a.wrapping_rem(b) }),
            "min" => operands.two(|a: T, b: T| a.min(b)),
            "max" => operands.two(|a: T, b: T| a.max(b)),
            "sad" => operands.three(|a: T, b: T, c: T| c.wrapping_add(a.max(b).wrapping_sub(a.min(b)))),
            _ => Err("unknown instruction".into()),
        }),
    }
}

fn signs(head: &str, ty: Type, operands: &mut Operands) -> Decoded {
    match (head, ty) {
        ("abs", Type::S16) => operands.one(|a: i16| a.wrapping_abs()),
        ("abs", Type::S32) => operands.one(|a: i32| a.wrapping_abs()),
        ("abs", Type::S64) => operands.one(|a: i64| a.wrapping_abs()),
        ("neg", _) => integers!(ty, T => operands.one(|a: T| a.wrapping_neg())),
        _ => Err(format!("no such operation on {ty:?}")),
    }
}

macro_rules! high {
    ($a:ident, $b:ident, $t:ty, $twice:ty) => {
        (($a as $twice).wrapping_mul($b as $twice) >> <$t>::BITS) as $t
    };
}

macro_rules! long_products {
    ($part:expr, $adds:expr, $operands:expr, $t:ty, $twice:ty) => {
        match ($part, $adds) {
            ("lo", false) => $operands.two(|a: $t, b: $t| a.wrapping_mul(b)),
            ("lo", true) => $operands.three(|a: $t, b: $t, c: $t| a.wrapping_mul(b).wrapping_add(c)),
            ("hi", false) => $operands.two(|a: $t, b: $t| high!(a, b, $t, $twice)),
            _ => $operands.three(|a: $t, b: $t, c: $t| high!(a, b, $t, $twice).wrapping_add(c)),
        }
    };
}

macro_rules! products {
    ($part:expr, $adds:expr, $operands:expr, $t:ty, $twice:ty) => {
        match ($part, $adds) {
            ("wide", false) => $operands.two(|a: $t, b: $t| (a as $twice).wrapping_mul(b as $twice)),
            ("wide", true) => $operands
                .three(|a: $t, b: $t, c: $twice| (a as $twice).wrapping_mul(b as $twice).wrapping_add(c)),
            _ => long_products!($part, $adds, $operands, $t, $twice),
        }
    };
}

fn products(adds: bool, part: &str, ty: Type, operands: &mut Operands) -> Decoded {
    match ty {
        Type::U16 => products!(part, adds, operands, u16, u32),
        Type::S16 => products!(part, adds, operands, i16, i32),
        Type::U32 => products!(part, adds, operands, u32, u64),
        Type::S32 => products!(part, adds, operands, i32, i64),
        Type::U64 if part != "wide" => long_products!(part, adds, operands, u64, u128),
        Type::S64 if part != "wide" => long_products!(part, adds, operands, i64, i128),
        _ => Err(format!("no such product of {ty:?}")),
    }
}
