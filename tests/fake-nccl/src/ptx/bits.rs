//! Operations on bits.

use super::steps::{Decoded, Operands};
use super::types::{Mnemonic, Type};

pub(super) fn decode(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded {
    match mnemonic.head {
        "and" | "or" | "xor" | "not" | "cnot" => logic(mnemonic, operands),
        "shl" | "shr" => shifts(mnemonic, operands),
        "bfe" | "bfi" => fields(mnemonic, operands),
        "shf" => funnel(mnemonic, operands),
        "lop3" => table(mnemonic, operands),
        "prmt" => permute(mnemonic, operands),
        _ => counts(mnemonic, operands),
    }
}

fn logic(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded {
    let ty = mnemonic.ty()?;
    if ty == Type::Pred {
        return super::compare::predicates(mnemonic.head, operands);
    }
    match (mnemonic.head, ty.bytes()) {
        ("and", 2 | 4) => operands.two(|a: u32, b: u32| a & b),
        ("or", 2 | 4) => operands.two(|a: u32, b: u32| a | b),
        ("xor", 2) => operands.two(|a: u16, b: u16| a ^ b),
        ("xor", 4) => operands.two(|a: u32, b: u32| a ^ b),
        ("and", 8) => operands.two(|a: u64, b: u64| a & b),
        ("or", 8) => operands.two(|a: u64, b: u64| a | b),
        ("xor", 8) => operands.two(|a: u64, b: u64| a ^ b),
        ("not", 2) => operands.one(|a: u16| !a),
        ("not", 4) => operands.one(|a: u32| !a),
        ("not", 8) => operands.one(|a: u64| !a),
        ("cnot", 4) => operands.one(|a: u32| u32::from(a == 0)),
        _ => Err(format!("no such operation on {ty:?}")),
    }
}

/// By more bits than there are leaves none.
fn shifts(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded {
    let ty = mnemonic.ty()?;
    if mnemonic.head == "shl" {
        return match ty.bytes() {
            2 => operands.two(|a: u16, n: u32| a.checked_shl(n).unwrap_or(0)),
            4 => operands.two(|a: u32, n: u32| a.checked_shl(n).unwrap_or(0)),
            8 => operands.two(|a: u64, n: u32| a.checked_shl(n).unwrap_or(0)),
            _ => Err(format!("no such operation on {ty:?}")),
        };
    }
    match ty {
        Type::S16 => operands.two(|a: i16, n: u32| a >> n.min(15)),
        Type::S32 => operands.two(|a: i32, n: u32| a >> n.min(31)),
        Type::S64 => operands.two(|a: i64, n: u32| a >> n.min(63)),
        Type::U16 | Type::B16 => operands.two(|a: u16, n: u32| a.checked_shr(n).unwrap_or(0)),
        Type::U32 | Type::B32 => operands.two(|a: u32, n: u32| a.checked_shr(n).unwrap_or(0)),
        Type::U64 | Type::B64 => operands.two(|a: u64, n: u32| a.checked_shr(n).unwrap_or(0)),
        _ => Err(format!("no such operation on {ty:?}")),
    }
}

/// The lowest bits set.
fn ones(many: u32) -> u64 {
    if many >= 64 { u64::MAX } else { (1 << many) - 1 }
}

/// The sign of a field that reaches beyond the number is the number's.
fn field(a: u64, from: u32, many: u32, bits: u32, is_signed: bool) -> u64 {
    let (from, many) = (from & 0xff, many & 0xff);
    let value = if from >= bits { 0 } else { a >> from } & ones(many);
    let last = from.saturating_add(many).saturating_sub(1).min(bits - 1);
    if is_signed && many > 0 && a >> last & 1 != 0 {
        let inside = (last + 1).saturating_sub(from).min(many);
        return value | !ones(inside);
    }
    value
}

fn inserted(a: u64, b: u64, from: u32, many: u32, bits: u32) -> u64 {
    let (from, many) = (from & 0xff, many & 0xff);
    if from >= bits {
        return b;
    }
    let mask = ones(many) << from;
    b & !mask | a << from & mask
}

fn fields(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded {
    let ty = mnemonic.ty()?;
    let is_signed = ty.is_signed();
    match (mnemonic.head, ty.bytes()) {
        ("bfe", 4) => operands
            .three(move |a: u32, from: u32, many: u32| field(a.into(), from, many, 32, is_signed) as u32),
        ("bfe", 8) => operands.three(move |a: u64, from: u32, many: u32| field(a, from, many, 64, is_signed)),
        ("bfi", 4) => operands
            .four(|a: u32, b: u32, from: u32, many: u32| inserted(a.into(), b.into(), from, many, 32) as u32),
        ("bfi", 8) => operands.four(|a: u64, b: u64, from: u32, many: u32| inserted(a, b, from, many, 64)),
        _ => Err(format!("no such operation on {ty:?}")),
    }
}

/// 32 bits of 64, from a number of bits on.
fn funnel(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded {
    let is_left = mnemonic.flag("l");
    mnemonic.flag("r");
    let wraps = !mnemonic.flag("clamp") && mnemonic.flag("wrap");
    mnemonic.ty()?;
    operands.three(move |low: u32, high: u32, by: u32| {
        let by = if wraps { by & 31 } else { by.min(32) };
        let both = u64::from(high) << 32 | u64::from(low);
        if is_left { (both << by >> 32) as u32 } else { (both >> by) as u32 }
    })
}

/// Each bit by those of three numbers.
fn table(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded {
    mnemonic.ty()?;
    operands.four(|a: u32, b: u32, c: u32, table: u32| {
        (0..8).filter(|i| table >> i & 1 != 0).fold(0, |out, i| {
            let side = |x: u32, bit: u32| if i >> bit & 1 != 0 { x } else { !x };
            out | side(a, 2) & side(b, 1) & side(c, 0)
        })
    })
}

/// Four bytes of eight; one that is chosen with 8 added is only its sign.
fn permute(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded {
    mnemonic.ty()?;
    operands.three(|a: u32, b: u32, choice: u32| {
        let both = u64::from(b) << 32 | u64::from(a);
        (0..4).fold(0, |out, i| {
            let chosen = choice >> (4 * i) & 15;
            let byte = (both >> (8 * (chosen & 7))) as u8;
            let byte = if chosen & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 };
            out | u32::from(byte) << (8 * i)
        })
    })
}

fn counts(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded {
    let as_shift = mnemonic.flag("shiftamt");
    let ty = mnemonic.ty()?;
    match (mnemonic.head, ty.bytes()) {
        ("brev", 4) => operands.one(|a: u32| a.reverse_bits()),
        ("brev", 8) => operands.one(|a: u64| a.reverse_bits()),
        ("popc", 4) => operands.one(|a: u32| a.count_ones()),
        ("popc", 8) => operands.one(|a: u64| a.count_ones()),
        ("clz", 4) => operands.one(|a: u32| a.leading_zeros()),
        ("clz", 8) => operands.one(|a: u64| a.leading_zeros()),
        ("bfind", 4 | 8) => {
            let (bits, is_signed) = (8 * ty.bytes() as u32, ty.is_signed());
            let found = move |a: u64| {
                let top = 63 - a.leading_zeros().min(63);
                if a == 0 {
                    u32::MAX
                } else if as_shift {
                    bits - 1 - top
                } else {
                    top
                }
            };
            if bits == 64 {
                return operands.one(move |a: u64| found(if is_signed && (a as i64) < 0 { !a } else { a }));
            }
            operands.one(move |a: u32| found(u64::from(if is_signed && (a as i32) < 0 { !a } else { a })))
        }
        _ => Err(format!("unknown instruction on {ty:?}")),
    }
}
