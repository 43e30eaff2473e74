//! Conversions between types.

use super::float::{flushed, saturated};
use super::parser::Operand;
use super::rounding::{
    BF16, E4M3, E5M2, F16, F32, Format, Rounding, TF32, from_bf16, from_f16, odd, to_bf16, to_f16,
};
use super::scope::File;
use super::steps::{Decoded, Operands};
use super::types::{Mnemonic, Type};

/// What a conversion does.
#[derive(Clone, Copy)]
struct Plan {
    from: Type,
    to: Type,
    rounding: Option<Rounding>,
    flushes: bool,
    saturates: bool,
    relu: bool,
    /// Of the register that it writes.
    bytes: usize,
}

/// A number in between: all that a type has fits into one of them.
#[derive(Clone, Copy)]
enum Number {
    Whole(i128),
    Real(f64),
}

fn format(ty: Type) -> Option<Format> {
    match ty {
        Type::F16 | Type::F16x2 => Some(F16),
        Type::Bf16 | Type::Bf16x2 => Some(BF16),
        Type::F32 => Some(F32),
        Type::Tf32 => Some(TF32),
        _ => None,
    }
}

/// A format of 8 bits, and the bits of its greatest number: of those of E4M3 all ones alone are no number.
fn fp8(ty: Type) -> Option<(Format, u32)> {
    match ty {
        Type::E4m3x2 => Some((E4M3, 0x7e)),
        Type::E5m2x2 => Some((E5M2, 0x7b)),
        _ => None,
    }
}

fn read(bits: u64, ty: Type) -> Number {
    match ty {
        Type::F64 => Number::Real(f64::from_bits(bits)),
        Type::F32 => Number::Real(f32::from_bits(bits as u32).into()),
        Type::S8 => Number::Whole((bits as i8).into()),
        Type::S16 => Number::Whole((bits as i16).into()),
        Type::S32 => Number::Whole((bits as i32).into()),
        Type::S64 => Number::Whole((bits as i64).into()),
        _ => match format(ty) {
            Some(format) => Number::Real(format.widen(bits as u32 & 0xffff)),
            None => Number::Whole((bits & (u64::MAX >> (64 - 8 * ty.bytes()))).into()),
        },
    }
}

impl Plan {
    fn convert(&self, bits: u64) -> u64 {
        let number = match read(bits, self.from) {
            Number::Real(x) if self.flushes && self.from == Type::F32 => {
                Number::Real(flushed(x as f32).into())
            }
            other => other,
        };
        if self.to == Type::F64 || format(self.to).is_some() { self.real(number) } else { self.whole(number) }
    }

    fn real(&self, number: Number) -> u64 {
        let mut x = match number {
            Number::Real(x) => x,
            Number::Whole(n) => {
                // What a double can't hold becomes one that any narrower format rounds as it would the whole number.
                let near = n as f64;
                odd((near, (n - near as i128) as f64))
            }
        };
        if self.to == Type::F64 {
            return match number {
                Number::Whole(n) => (n as f64).to_bits(),
                Number::Real(x) => self.rounding.map_or(x, |r| r.whole(x)).to_bits(),
            };
        }
        let same = self.from == self.to;
        if same {
            x = self.rounding.map_or(x, |rounding| rounding.whole(x));
        }
        let rounding = self.rounding.filter(|_| !same).unwrap_or(Rounding::NearestEven);
        let format = format(self.to).unwrap_or(F32);
        let mut bits = format.narrow(x, rounding);
        let wide = format.widen(bits);
        if self.to == Type::F32 && self.flushes {
            bits = flushed(f32::from_bits(bits)).to_bits();
        }
        if self.saturates {
            bits = format.narrow(saturated(wide as f32).into(), Rounding::NearestEven);
        }
        if self.relu && wide < 0.0 {
            bits = 0;
        }
        // The bits that this format lacks to those of single precision are zero.
        u64::from(if self.to == Type::Tf32 { bits << 13 } else { bits })
    }

    fn whole(&self, number: Number) -> u64 {
        let n = match number {
            Number::Real(x) => self.clamped(self.rounding.unwrap_or(Rounding::Zero).whole(x) as i128),
            Number::Whole(n) if self.saturates => self.clamped(n),
            Number::Whole(n) => n,
        };
        // A register that is larger than the type gets the sign too.
        let bits = 8 * self.to.bytes();
        let extended = if self.to.is_signed() {
            (n as i64) << (64 - bits) >> (64 - bits)
        } else {
            (n as u64 & (u64::MAX >> (64 - bits))) as i64
        };
        extended as u64 & (u64::MAX >> (64 - 8 * self.bytes))
    }

    fn clamped(&self, n: i128) -> i128 {
        let bits = 8 * self.to.bytes();
        if self.to.is_signed() {
            n.clamp(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        } else {
            n.clamp(0, (1 << bits) - 1)
        }
    }
}

/// `cvt`.
pub(super) fn decode(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded {
    let names = ["rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi"];
    let rounding = mnemonic.one_of(&names).map(Rounding::named);
    let (flushes, saturates) = (mnemonic.flag("ftz"), mnemonic.flag("sat"));
    let (relu, finite) = (mnemonic.flag("relu"), mnemonic.flag("satfinite"));
    let (from, to) = (mnemonic.ty()?, mnemonic.ty()?);
    let is_plain = finite && rounding == Some(Rounding::NearestEven) && from == Type::F32;
    if let Some((format, most)) = fp8(to).filter(|_| is_plain) {
        return operands
            .two(move |a: f32, b: f32| (format.finite(a, most) << 8 | format.finite(b, most)) as u16);
    }
    if finite || fp8(to).is_some() {
        return Err("only pairs of FP8 are saturated to finite numbers".into());
    }
    if matches!(to, Type::F16x2 | Type::Bf16x2) {
        return pairs(Plan { from, to, rounding, flushes, saturates, relu, bytes: 4 }, operands);
    }
    let plain = !flushes && !saturates && !relu;
    match (to, from) {
        (Type::F32, Type::Bf16) if plain => return operands.one(|a: u16| from_bf16(a.into())),
        (Type::F32, Type::F16) if plain => return operands.one(|a: u16| from_f16(a.into())),
        (Type::Bf16, Type::F32) if plain && rounding == Some(Rounding::NearestEven) => {
            return operands.one(|a: f32| to_bf16(a) as u16);
        }
        (Type::F32, Type::S32) if rounding == Some(Rounding::NearestEven) => {
            return operands.one(|a: i32| a as f32);
        }
        (Type::F32, Type::U32) if rounding == Some(Rounding::NearestEven) => {
            return operands.one(|a: u32| a as f32);
        }
        (Type::F32, Type::F32) if saturates && !flushes && rounding.is_none() => {
            return operands.one(saturated);
        }
        (Type::U64, Type::U32) if !saturates => return operands.one(|a: u32| u64::from(a)),
        (Type::S64, Type::S32) if !saturates => return operands.one(|a: i32| i64::from(a)),
        (Type::U32, Type::U64) if !saturates => return operands.one(|a: u64| a as u32),
        _ => {}
    }
    any(from, to, Plan { from, to, rounding, flushes, saturates, relu, bytes: 0 }, operands)
}

fn any(from: Type, to: Type, plan: Plan, operands: &mut Operands) -> Decoded {
    let Operand::Name(name) = operands.at(0)? else { return Err("expected a register".into()) };
    let register = operands.scope.register(name).ok_or_else(|| format!("unknown register {name}"))?;
    if register.bytes < to.bytes() {
        return Err(format!("{name} is too small"));
    }
    let plan = Plan { bytes: register.bytes, ..plan };
    // What is read may be the lower part of a wider register.
    let from_wide = from.bytes() == 8
        || matches!(operands.at(1)?, Operand::Name(name)
            if operands.scope.register(name).is_some_and(|r| r.file == File::Wide));
    match (from_wide, register.file == File::Wide) {
        (false, false) => operands.one(move |a: u32| plan.convert(a.into()) as u32),
        (false, true) => operands.one(move |a: u32| plan.convert(a.into())),
        (true, false) => operands.one(move |a: u64| plan.convert(a) as u32),
        (true, true) => operands.one(move |a: u64| plan.convert(a)),
    }
}

/// Two numbers into a register: the first one gets the upper half.
fn pairs(plan: Plan, operands: &mut Operands) -> Decoded {
    let is_plain = !plan.flushes && !plan.saturates && !plan.relu;
    if plan.from != Type::F32 {
        return Err("pairs are made of single precision".into());
    }
    match plan.to {
        Type::Bf16x2 if is_plain && plan.rounding == Some(Rounding::NearestEven) => {
            operands.two(|a: f32, b: f32| to_bf16(a) << 16 | to_bf16(b))
        }
        Type::F16x2 if is_plain && plan.rounding == Some(Rounding::NearestEven) => {
            operands.two(|a: f32, b: f32| to_f16(a) << 16 | to_f16(b))
        }
        _ => {
            operands.two(move |a: u32, b: u32| (plan.convert(a.into()) << 16 | plan.convert(b.into())) as u32)
        }
    }
}
