//! Sums in parts: those that leave a carry, or a borrow, and those that take it in. Each lane has one, in a predicate of its own.

use super::machine::{LANES, Lanes, Value, Word, put};
use super::steps::{Decoded, Operands};
use super::types::{Mnemonic, Type};

/// A sum of two numbers or a difference, or a product's part and a number.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Sum,
    Difference,
    /// The lower bits, or else the higher ones.
    Product(bool),
}

/// Whether a mnemonic is of these.
pub(super) fn is_carried(mnemonic: &Mnemonic) -> bool {
    mnemonic.has("cc") || matches!(mnemonic.head, "addc" | "subc" | "madc")
}

pub(super) fn decode(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded {
    let (gives, takes) = (mnemonic.flag("cc"), mnemonic.head.ends_with('c'));
    let part = mnemonic.one_of(&["lo", "hi"]);
    let kind = match (mnemonic.head.trim_end_matches('c'), part) {
        ("add", None) => Kind::Sum,
        ("sub", None) => Kind::Difference,
        ("mad", Some(part)) => Kind::Product(part == "lo"),
        _ => return Err("unknown instruction".into()),
    };
    operands.count(if matches!(kind, Kind::Product(_)) { 4 } else { 3 })?;
    match mnemonic.ty()? {
        Type::U32 | Type::B32 => step::<u32>(kind, (gives, takes), operands, |x| x.into()),
        Type::S32 => step::<i32>(kind, (gives, takes), operands, |x| x.into()),
        Type::U64 | Type::B64 => step::<u64>(kind, (gives, takes), operands, |x| x.into()),
        Type::S64 => step::<i64>(kind, (gives, takes), operands, |x| x.into()),
        ty => Err(format!("no such operation on {ty:?}")),
    }
}

fn step<T: Value>(
    kind: Kind,
    (gives, takes): (bool, bool),
    operands: &mut Operands,
    exact: fn(T) -> i128,
) -> Decoded {
    let (d, a, b) = (operands.write::<T>(0)?, operands.read::<T>(1)?, operands.read::<T>(2)?);
    let c = if operands.all.len() > 3 { operands.read::<T>(3)? } else { a };
    let carry = operands.scope.carry();
    let bits = 8 * size_of::<T::Slot>();
    let below = (1u128 << bits) - 1;
    Ok(Box::new(move |machine, mask| {
        let before = machine.warp.predicates[carry];
        let all = T::Slot::registers(&machine.warp);
        let (mut out, mut after) = (Lanes([T::Slot::default(); LANES]), 0u32);
        for lane in 0..LANES {
            let own = |register: usize| u128::from(all[register].0[lane].bits());
            let taken = if takes { u128::from(before >> lane & 1) } else { 0 };
            let sum = match kind {
                Kind::Sum => own(a) + own(b) + taken,
                // Below zero all higher bits are set.
                Kind::Difference => own(a).wrapping_sub(own(b)).wrapping_sub(taken),
                Kind::Product(lower) => {
                    let number = |register: usize| exact(T::of(all[register].0[lane]));
                    let product = number(a).wrapping_mul(number(b)) as u128;
                    (if lower { product } else { product >> bits } & below) + own(c) + taken
                }
            };
            out.0[lane] = T::Slot::from_bits((sum & below) as u64);
            after |= u32::from(sum > below) << lane;
        }
        put(&mut machine.warp, d, mask, &out);
        if gives {
            machine.warp.predicates[carry] = before & !mask | after & mask;
        }
        Ok(())
    }))
}
