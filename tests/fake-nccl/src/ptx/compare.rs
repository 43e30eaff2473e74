//! Comparisons, predicates and choices by them.

use super::machine::{LANES, Lanes, Step, Value, Word, put};
use super::parser::Operand;
use super::rounding::{BF16, F16};
use super::steps::{Decoded, Operands, integers, test};
use super::types::{Mnemonic, Type};
use std::cmp::Ordering;

/// Where the outcome goes: a predicate, and another that gets the opposite; and with what it is combined.
struct Target {
    holds: usize,
    fails: Option<usize>,
    combined: Option<(Combine, usize, bool)>,
}

#[derive(Clone, Copy)]
enum Combine {
    And,
    Or,
    Xor,
}

impl Combine {
    fn of(self, a: u32, b: u32) -> u32 {
        match self {
            Combine::And => a & b,
            Combine::Or => a | b,
            Combine::Xor => a ^ b,
        }
    }
}

fn combine(name: &str) -> Combine {
    match name {
        "and" => Combine::And,
        "or" => Combine::Or,
        _ => Combine::Xor,
    }
}

fn set(predicate: &mut u32, mask: u32, holds: u32) {
    *predicate = *predicate & !mask | holds & mask;
}

/// A predicate, and whether it is negated.
fn source(operands: &Operands, operand: &Operand) -> Decoded<(usize, bool)> {
    match operand {
        Operand::Not(inner) => Ok((operands.scope.predicate(inner)?, true)),
        other => Ok((operands.scope.predicate(other)?, false)),
    }
}

fn target(operands: &mut Operands, with: Option<&str>) -> Decoded<Target> {
    let written = |operand: &Operand, operands: &mut Operands| match operand {
        Operand::Sink => Ok(operands.scope.another(super::scope::File::Predicate)),
        other => operands.scope.predicate(other),
    };
    let (holds, fails) = match operands.at(0)? {
        Operand::Pair(p, q) => (written(p, operands)?, Some(written(q, operands)?)),
        p => (written(p, operands)?, None),
    };
    operands.count(if with.is_some() { 4 } else { 3 })?;
    let combined = match with {
        Some(name) => {
            let (register, negated) = source(operands, operands.at(3)?)?;
            Some((combine(name), register, negated))
        }
        None => None,
    };
    Ok(Target { holds, fails, combined })
}

/// `setp`.
pub(super) fn decode(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded {
    let relation = mnemonic.first()?.to_string();
    let with = mnemonic.one_of(&["and", "or", "xor"]);
    let flushes = mnemonic.flag("ftz");
    let ty = mnemonic.ty()?;
    let target = target(operands, with)?;
    match ty {
        Type::F32 if flushes => floats::<Flushed>(&relation, target, operands),
        Type::F32 => floats::<f32>(&relation, target, operands),
        Type::F64 => floats::<f64>(&relation, target, operands),
        Type::F16 => floats::<Half>(&relation, target, operands),
        Type::Bf16 => floats::<Brain>(&relation, target, operands),
        _ => {
            let relation = relation.as_str();
            integers!(ty, T => compared::<T>(relation, target, operands))
        }
    }
}

fn tested<A: Value>(
    target: Target,
    operands: &mut Operands,
    holds: impl Fn(A, A) -> bool + Send + Sync + 'static,
) -> Decoded {
    let (a, b) = (operands.read::<A>(1)?, operands.read::<A>(2)?);
    Ok(Box::new(move |machine, mask| {
        let warp = &mut machine.warp;
        let registers = A::Slot::registers(warp);
        let mut outcome = test::<A>(&registers[a], &registers[b], &holds);
        let mut opposite = !outcome;
        if let Some((with, register, negated)) = target.combined {
            let other = warp.predicates[register] ^ if negated { u32::MAX } else { 0 };
            outcome = with.of(outcome, other);
            opposite = with.of(opposite, other);
        }
        set(&mut warp.predicates[target.holds], mask, outcome);
        if let Some(fails) = target.fails {
            set(&mut warp.predicates[fails], mask, opposite);
        }
        Ok(())
    }))
}

fn compared<A: Value + PartialOrd>(relation: &str, target: Target, operands: &mut Operands) -> Decoded {
    match relation {
        "eq" => tested(target, operands, |a: A, b: A| a == b),
        "ne" => tested(target, operands, |a: A, b: A| a != b),
        "lt" | "lo" => tested(target, operands, |a: A, b: A| a < b),
        "le" | "ls" => tested(target, operands, |a: A, b: A| a <= b),
        "gt" | "hi" => tested(target, operands, |a: A, b: A| a > b),
        "ge" | "hs" => tested(target, operands, |a: A, b: A| a >= b),
        other => Err(format!("unknown relation .{other}")),
    }
}

/// Those that end in u hold too where one is no number.
fn floats<A: Value + PartialOrd>(relation: &str, target: Target, operands: &mut Operands) -> Decoded {
    match relation {
        "equ" => {
            tested(target, operands, |a: A, b: A| matches!(a.partial_cmp(&b), None | Some(Ordering::Equal)))
        }
        "ne" => tested(target, operands, |a: A, b: A| {
            matches!(a.partial_cmp(&b), Some(Ordering::Less | Ordering::Greater))
        }),
        "neu" => tested(target, operands, |a: A, b: A| a != b),
        "ltu" => tested(target, operands, |a: A, b: A| not(a >= b)),
        "leu" => tested(target, operands, |a: A, b: A| not(a > b)),
        "gtu" => tested(target, operands, |a: A, b: A| not(a <= b)),
        "geu" => tested(target, operands, |a: A, b: A| not(a < b)),
        "num" => tested(target, operands, |a: A, b: A| a.partial_cmp(&b).is_some()),
        "nan" => tested(target, operands, |a: A, b: A| a.partial_cmp(&b).is_none()),
        other => compared::<A>(other, target, operands),
    }
}

#[inline(always)]
fn not(holds: bool) -> bool {
    !holds
}

/// Numbers that are compared as others.
macro_rules! compared_as {
    ($name:ident($inner:ty), $of:expr) => {
        #[derive(Clone, Copy)]
        struct $name(u32);

        impl $name {
            fn number(self) -> $inner {
                ($of)(self.0)
            }
        }

        impl PartialEq for $name {
            fn eq(&self, other: &$name) -> bool {
                self.number() == other.number()
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &$name) -> Option<Ordering> {
                self.number().partial_cmp(&other.number())
            }
        }

        impl Value for $name {
            type Slot = u32;
            fn of(slot: u32) -> $name {
                $name(slot)
            }
            fn slot(self) -> u32 {
                self.0
            }
        }
    };
}

compared_as!(Flushed(f32), |s| super::float::flushed(f32::from_bits(s)));
compared_as!(Half(f64), |s| F16.widen(s));
compared_as!(Brain(f64), |s| BF16.widen(s));

/// and, or, xor, not and mov of predicates.
pub(super) fn predicates(head: &str, operands: &mut Operands) -> Decoded {
    let d = operands.scope.predicate(operands.at(0)?)?;
    if let (Operand::Integer(value), "mov") = (operands.at(1)?, head) {
        let all = if *value == 0 { 0 } else { u32::MAX };
        return Ok(Box::new(move |machine, mask| {
            set(&mut machine.warp.predicates[d], mask, all);
            Ok(())
        }));
    }
    let (a, negated) = source(operands, operands.at(1)?)?;
    if matches!(head, "mov" | "not") {
        operands.count(2)?;
        let flip = if negated == (head == "not") { 0 } else { u32::MAX };
        return Ok(Box::new(move |machine, mask| {
            let value = machine.warp.predicates[a] ^ flip;
            set(&mut machine.warp.predicates[d], mask, value);
            Ok(())
        }));
    }
    operands.count(3)?;
    let (b, with) = (operands.scope.predicate(operands.at(2)?)?, combine(head));
    Ok(Box::new(move |machine, mask| {
        let predicates = &mut machine.warp.predicates;
        let value = with.of(predicates[a], predicates[b]);
        set(&mut predicates[d], mask, value);
        Ok(())
    }))
}

/// `selp`: a where the predicate holds, else b.
pub(super) fn select(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded {
    operands.count(4)?;
    let ty = mnemonic.ty()?;
    let p = source(operands, operands.at(3)?)?;
    match ty.bytes() {
        2 => chosen::<u16>(operands, p),
        4 => chosen::<u32>(operands, p),
        8 => chosen::<u64>(operands, p),
        _ => Err(format!("no such choice of {ty:?}")),
    }
}

fn chosen<T: Value>(operands: &mut Operands, (p, negated): (usize, bool)) -> Decoded<Step> {
    let (d, a, b) = (operands.write::<T>(0)?, operands.read::<T>(1)?, operands.read::<T>(2)?);
    Ok(Box::new(move |machine, mask| {
        let holds = machine.warp.predicates[p] ^ if negated { u32::MAX } else { 0 };
        let registers = T::Slot::registers(&machine.warp);
        let (a, b) = (&registers[a], &registers[b]);
        let mut out = Lanes([T::Slot::default(); LANES]);
        for lane in 0..LANES {
            out.0[lane] = if holds >> lane & 1 != 0 { a.0[lane] } else { b.0[lane] };
        }
        put(&mut machine.warp, d, mask, &out);
        Ok(())
    }))
}
