//! `atom` and `red`.

use super::machine::{LANES, Lanes, Step, Value, Word, lanes_of, put};
use super::memory::{Access, Target};
use super::rounding::{BF16, F16, Format, Rounding, odd, two_sum};
use super::steps::{Decoded, Operands};
use super::transfers::{address, space};
use super::types::{Mnemonic, Type};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Bits in memory that can be exchanged.
trait Cell: Copy + Send + Sync + 'static {
    /// What was there.
    ///
    /// # Safety
    ///
    /// The address is aligned and in memory.
    unsafe fn update(at: usize, f: impl FnMut(Self) -> Self) -> Self;
}

macro_rules! cells {
    ($($ty:ty, $atomic:ty;)*) => {$(
        impl Cell for $ty {
            unsafe fn update(at: usize, mut f: impl FnMut($ty) -> $ty) -> $ty {
                let cell = unsafe { <$atomic>::from_ptr(at as *mut $ty) };
                let order = Ordering::SeqCst;
                cell.fetch_update(order, order, |old| Some(f(old))).unwrap_or_else(|old| old)
            }
        }
    )*};
}

cells! {
    u16, AtomicU16;
    u32, AtomicU32;
    u64, AtomicU64;
}

/// Where it happens, the register that gets what was there, and those of its operands.
struct Parts {
    target: Target,
    to: Option<usize>,
    from: Vec<usize>,
}

fn parts<S: Value>(has_result: bool, target: Target, operands: &mut Operands) -> Decoded<Parts> {
    let first = usize::from(has_result);
    let to = if has_result { Some(operands.write::<S>(0)?) } else { None };
    let from = (first + 1..operands.all.len()).map(|i| operands.read::<S>(i)).collect::<Decoded<Vec<_>>>()?;
    Ok(Parts { target, to, from })
}

/// From what a register holds to a cell, and back.
type Casts<S, C> = (fn(S) -> C, fn(C) -> S);

/// One lane after the other: cells are `C`, what registers hold of them `S`.
fn step<S: Word, C: Cell>(
    parts: Parts,
    (to_cell, from_cell): Casts<S, C>,
    f: impl Fn(C, C, C) -> C + Send + Sync + 'static,
) -> Step {
    Box::new(move |machine, mask| {
        let pointers = machine.resolve(&parts.target, mask)?;
        let mut out = Lanes([S::default(); LANES]);
        for lane in lanes_of(mask) {
            let of = |i: usize| to_cell(S::registers(&machine.warp)[parts.from[i]].0[lane]);
            let (b, c) = (of(0), of(parts.from.len() - 1));
            // SAFETY: it was checked.
            out.0[lane] = from_cell(unsafe { C::update(pointers[lane], |old| f(old, b, c)) });
        }
        if let Some(to) = parts.to {
            put(&mut machine.warp, to, mask, &out);
        }
        Ok(())
    })
}

fn narrow(parts: Parts, f: impl Fn(u32, u32, u32) -> u32 + Send + Sync + 'static) -> Step {
    step(parts, (|x: u32| x, |x: u32| x), f)
}

fn short(parts: Parts, f: impl Fn(u16, u16, u16) -> u16 + Send + Sync + 'static) -> Step {
    step(parts, (|x: u32| x as u16, |x: u16| x.into()), f)
}

fn wide(parts: Parts, f: impl Fn(u64, u64, u64) -> u64 + Send + Sync + 'static) -> Step {
    step(parts, (|x: u64| x, |x: u64| x), f)
}

pub(super) fn decode(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded {
    let has_result = mnemonic.head == "atom";
    let space = space(mnemonic);
    mnemonic.flag("noftz");
    let names = ["add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"];
    let how = mnemonic.one_of(&names).ok_or("an unknown operation")?;
    let ty = mnemonic.ty()?;
    operands.count(if how == "cas" { 3 } else { 2 } + usize::from(has_result))?;
    let target = address(operands, usize::from(has_result), (space, ty.bytes(), Access::Atomic))?;
    match ty.bytes() {
        2 => short_step(how, ty, parts::<u32>(has_result, target, operands)?),
        4 => narrow_step(how, ty, parts::<u32>(has_result, target, operands)?),
        _ => wide_step(how, ty, parts::<u64>(has_result, target, operands)?),
    }
}

/// A sum of 16-bit numbers.
fn half_sum(format: Format, a: u16, b: u16) -> u16 {
    let sum = two_sum(format.widen(a.into()), format.widen(b.into()));
    format.narrow(odd(sum), Rounding::NearestEven) as u16
}

fn short_step(how: &str, ty: Type, parts: Parts) -> Decoded {
    match (how, ty) {
        ("add", Type::F16) => Ok(short(parts, |old, b, _| half_sum(F16, old, b))),
        ("add", Type::Bf16) => Ok(short(parts, |old, b, _| half_sum(BF16, old, b))),
        ("cas", _) => Ok(short(parts, |old, b, c| if old == b { c } else { old })),
        _ => Err(format!("no such atomic operation on {ty:?}")),
    }
}

fn narrow_step(how: &str, ty: Type, parts: Parts) -> Decoded {
    Ok(match (how, ty) {
        ("add", Type::F32) => narrow(parts, |old, b, _| (f32::from_bits(old) + f32::from_bits(b)).to_bits()),
        ("add", Type::F16x2 | Type::Bf16x2) => {
            let format = if ty == Type::F16x2 { F16 } else { BF16 };
            narrow(parts, move |old, b, _| {
                let low = half_sum(format, old as u16, b as u16);
                let high = half_sum(format, (old >> 16) as u16, (b >> 16) as u16);
                u32::from(high) << 16 | u32::from(low)
            })
        }
        ("add", _) => narrow(parts, |old, b, _| old.wrapping_add(b)),
        ("and", _) => narrow(parts, |old, b, _| old & b),
        ("or", _) => narrow(parts, |old, b, _| old | b),
        ("xor", _) => narrow(parts, |old, b, _| old ^ b),
        ("exch", _) => narrow(parts, |_, b, _| b),
        ("cas", _) => narrow(parts, |old, b, c| if old == b { c } else { old }),
        ("inc", _) => narrow(parts, |old, b, _| if old >= b { 0 } else { old + 1 }),
        ("dec", _) => narrow(parts, |old, b, _| if old == 0 || old > b { b } else { old - 1 }),
        ("min", Type::U32) => narrow(parts, |old, b, _| old.min(b)),
        ("max", Type::U32) => narrow(parts, |old, b, _| old.max(b)),
        ("min", Type::S32) => narrow(parts, |old, b, _| (old as i32).min(b as i32) as u32),
        ("max", Type::S32) => narrow(parts, |old, b, _| (old as i32).max(b as i32) as u32),
        _ => return Err(format!("no such atomic operation on {ty:?}")),
    })
}

fn wide_step(how: &str, ty: Type, parts: Parts) -> Decoded {
    Ok(match (how, ty) {
        ("add", Type::F64) => wide(parts, |old, b, _| (f64::from_bits(old) + f64::from_bits(b)).to_bits()),
        ("add", _) => wide(parts, |old, b, _| old.wrapping_add(b)),
        ("and", _) => wide(parts, |old, b, _| old & b),
        ("or", _) => wide(parts, |old, b, _| old | b),
        ("xor", _) => wide(parts, |old, b, _| old ^ b),
        ("exch", _) => wide(parts, |_, b, _| b),
        ("cas", _) => wide(parts, |old, b, c| if old == b { c } else { old }),
        ("min", Type::U64) => wide(parts, |old, b, _| old.min(b)),
        ("max", Type::U64) => wide(parts, |old, b, _| old.max(b)),
        ("min", Type::S64) => wide(parts, |old, b, _| (old as i64).min(b as i64) as u64),
        ("max", Type::S64) => wide(parts, |old, b, _| (old as i64).max(b as i64) as u64),
        _ => return Err(format!("no such atomic operation on {ty:?}")),
    })
}
