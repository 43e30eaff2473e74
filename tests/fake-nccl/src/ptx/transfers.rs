//! Loads, stores, moves and addresses.

use super::machine::{LANES, Lanes, Step, Word, lanes_of, put};
use super::memory::{Access, LOCAL, PARAM, SHARED, Target};
use super::parser::{Operand, Space};
use super::scope::File;
use super::steps::{Decoded, Operands};
use super::types::{Mnemonic, Type};

/// What says how memory is cached and ordered: here all of it is in order.
const ORDERS: [&str; 17] = [
    "weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "cta", "cluster", "gpu", "sys", "nc",
    "ca", "cg", "cs", "cv", "wb", "wt",
];

/// The space that a mnemonic names.
pub(super) fn space(mnemonic: &mut Mnemonic) -> Space {
    mnemonic.ignore(&ORDERS);
    match mnemonic.one_of(&["global", "shared", "shared::cta", "local", "const", "param", "param::entry"]) {
        Some("global") => Space::Global,
        Some("shared" | "shared::cta") => Space::Shared,
        Some("local") => Space::Local,
        Some("const") => Space::Const,
        Some(_) => Space::Param,
        None => Space::Generic,
    }
}

/// What an address operand means. A parameter of a function is in local memory.
pub(super) fn address(
    operands: &mut Operands,
    index: usize,
    (space, bytes, access): (Space, usize, Access),
) -> Decoded<Target> {
    let Operand::Address(base, offset) = operands.at(index)? else {
        return Err("expected an address".into());
    };
    let named = match &**base {
        Operand::Name(name) => operands.scope.places.get(name).map(|place| place.space),
        _ => None,
    };
    let space = match (space, named) {
        (Space::Param, Some(Space::Local)) => Space::Local,
        (Space::Generic, Some(named)) => named,
        (space, _) => space,
    };
    // Addresses in shared memory may be of 32 bits.
    let is_narrow = space == Space::Shared
        && matches!(&**base, Operand::Name(name) if operands.scope.register(name).is_some_and(|r| r.file == File::Narrow));
    let base =
        if is_narrow { operands.scope.read::<u32>(base)? } else { operands.scope.read::<u64>(base)? };
    Ok(Target { space, base, is_narrow, offset: *offset, bytes, access })
}

/// Registers of a vector, or one.
fn elements(operand: &Operand) -> &[Operand] {
    match operand {
        Operand::Vector(all) => all,
        one => std::slice::from_ref(one),
    }
}

fn vector(mnemonic: &mut Mnemonic) -> usize {
    match mnemonic.one_of(&["v2", "v4", "v8"]) {
        Some("v2") => 2,
        Some("v4") => 4,
        Some(_) => 8,
        None => 1,
    }
}

/// A register and the bytes of it.
fn destination(operands: &mut Operands, operand: &Operand) -> Decoded<(File, usize, usize)> {
    match operand {
        Operand::Sink => Ok((File::Narrow, operands.scope.another(File::Narrow), 4)),
        Operand::Name(name) => {
            let found = operands.scope.register(name).ok_or_else(|| format!("unknown register {name}"))?;
            Ok((found.file, found.index, found.bytes))
        }
        _ => Err("expected a register".into()),
    }
}

/// `ld`.
pub(super) fn load(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded {
    let (space, many) = (space(mnemonic), vector(mnemonic));
    let ty = mnemonic.ty()?;
    operands.count(2)?;
    let target = address(operands, 1, (space, many * ty.bytes(), Access::Read))?;
    let all = elements(operands.at(0)?);
    if all.len() != many {
        return Err(format!("{} registers for {many} elements", all.len()));
    }
    let to = all.iter().map(|o| destination(operands, o)).collect::<Decoded<Vec<_>>>()?;
    let (is_wide, bytes) = (to[0].0 == File::Wide, to[0].2);
    let to: Vec<usize> = to.into_iter().map(|(_, index, _)| index).collect();
    Ok(match (ty, is_wide) {
        (Type::S8, false) if bytes == 2 => loaded(target, to, |x: i8| u32::from(x as u16)),
        (Type::S8, false) => loaded(target, to, |x: i8| x as u32),
        (Type::S16, false) if bytes == 4 => loaded(target, to, |x: i16| x as u32),
        (Type::S8, true) => loaded(target, to, |x: i8| x as u64),
        (Type::S16, true) => loaded(target, to, |x: i16| x as u64),
        (Type::S32, true) => loaded(target, to, |x: i32| x as u64),
        (ty, false) => match ty.bytes() {
            1 => loaded(target, to, |x: u8| u32::from(x)),
            2 => loaded(target, to, |x: u16| u32::from(x)),
            4 => loaded(target, to, |x: u32| x),
            _ => return Err("the register is too small".into()),
        },
        (ty, true) => match ty.bytes() {
            1 => loaded(target, to, |x: u8| u64::from(x)),
            2 => loaded(target, to, |x: u16| u64::from(x)),
            4 => loaded(target, to, |x: u32| u64::from(x)),
            _ => loaded(target, to, |x: u64| x),
        },
    })
}

fn loaded<M: Copy + 'static, D: Word>(
    target: Target,
    to: Vec<usize>,
    f: impl Fn(M) -> D + Send + Sync + 'static,
) -> Step {
    Box::new(move |machine, mask| {
        let pointers = machine.resolve(&target, mask)?;
        for (i, register) in to.iter().enumerate() {
            let mut out = Lanes([D::default(); LANES]);
            for (value, pointer) in out.0.iter_mut().zip(&pointers) {
                // SAFETY: it was checked, and where no lane reads the address is another's.
                *value = f(unsafe { (*pointer as *const M).add(i).read_volatile() });
            }
            put(&mut machine.warp, *register, mask, &out);
        }
        Ok(())
    })
}

/// `st`.
pub(super) fn store(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded {
    let (space, many) = (space(mnemonic), vector(mnemonic));
    let ty = mnemonic.ty()?;
    operands.count(2)?;
    let target = address(operands, 0, (space, many * ty.bytes(), Access::Write))?;
    let all = elements(operands.at(1)?);
    if all.len() != many {
        return Err(format!("{} registers for {many} elements", all.len()));
    }
    let wide = |operand: &Operand, operands: &Operands| match operand {
        Operand::Name(name) => operands.scope.register(name).is_some_and(|r| r.file == File::Wide),
        _ => false,
    };
    if ty.bytes() == 8 || wide(&all[0], operands) {
        let from = all.iter().map(|o| operands.scope.read::<u64>(o)).collect::<Decoded<Vec<_>>>()?;
        return Ok(match ty.bytes() {
            1 => stored(target, from, |x: u64| x as u8),
            2 => stored(target, from, |x: u64| x as u16),
            4 => stored(target, from, |x: u64| x as u32),
            _ => stored(target, from, |x: u64| x),
        });
    }
    let from = all.iter().map(|o| operands.scope.read::<u32>(o)).collect::<Decoded<Vec<_>>>()?;
    Ok(match ty.bytes() {
        1 => stored(target, from, |x: u32| x as u8),
        2 => stored(target, from, |x: u32| x as u16),
        _ => stored(target, from, |x: u32| x),
    })
}

fn stored<M: Copy + 'static, S: Word>(
    target: Target,
    from: Vec<usize>,
    f: impl Fn(S) -> M + Send + Sync + 'static,
) -> Step {
    Box::new(move |machine, mask| {
        let pointers = machine.resolve(&target, mask)?;
        for (i, register) in from.iter().enumerate() {
            let values = &S::registers(&machine.warp)[*register].0;
            for lane in lanes_of(mask) {
                // SAFETY: it was checked.
                unsafe { (pointers[lane] as *mut M).add(i).write_volatile(f(values[lane])) };
            }
        }
        Ok(())
    })
}

/// `mov`, whole or in parts.
pub(super) fn moves(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded {
    let ty = mnemonic.ty()?;
    operands.count(2)?;
    if ty == Type::Pred {
        return super::compare::predicates("mov", operands);
    }
    match (operands.at(0)?, operands.at(1)?) {
        (_, Operand::Name(name)) if name.starts_with('%') && operands.scope.register(name).is_none() => {
            super::special::decode(name, operands)
        }
        (Operand::Vector(parts), _) => unpacked(ty, parts, operands),
        (_, Operand::Vector(parts)) => packed(ty, parts, operands),
        _ => match ty.bytes() {
            2 => operands.one(|a: u16| a),
            4 => operands.one(|a: u32| a),
            8 => operands.one(|a: u64| a),
            _ => Err(format!("no such move of {ty:?}")),
        },
    }
}

fn unpacked(ty: Type, parts: &[Operand], operands: &mut Operands) -> Decoded {
    let bits = 8 * ty.bytes() / parts.len();
    let from = if ty.bytes() == 8 { operands.read::<u64>(1)? } else { operands.read::<u32>(1)? };
    let to = parts.iter().map(|o| operands.scope.write::<u32>(o)).collect::<Decoded<Vec<_>>>()?;
    let is_wide = ty.bytes() == 8;
    let below = u64::MAX >> (64 - bits);
    Ok(Box::new(move |machine, mask| {
        let mut all = Lanes([0u64; LANES]);
        for lane in 0..LANES {
            all.0[lane] = if is_wide {
                machine.warp.wide[from].0[lane]
            } else {
                machine.warp.narrow[from].0[lane].into()
            };
        }
        for (i, register) in to.iter().enumerate() {
            let part = Lanes(all.0.map(|x| (x >> (i * bits) & below) as u32));
            put(&mut machine.warp, *register, mask, &part);
        }
        Ok(())
    }))
}

fn packed(ty: Type, parts: &[Operand], operands: &mut Operands) -> Decoded {
    let bits = 8 * ty.bytes() / parts.len();
    let below = u64::MAX >> (64 - bits);
    let from = parts.iter().map(|o| operands.scope.read::<u32>(o)).collect::<Decoded<Vec<_>>>()?;
    let is_wide = ty.bytes() == 8;
    let to = if is_wide { operands.write::<u64>(0)? } else { operands.write::<u32>(0)? };
    Ok(Box::new(move |machine, mask| {
        let mut all = Lanes([0u64; LANES]);
        for (i, register) in from.iter().enumerate() {
            let part = &machine.warp.narrow[*register].0;
            for (whole, part) in all.0.iter_mut().zip(part) {
                *whole |= (u64::from(*part) & below) << (i * bits);
            }
        }
        if is_wide {
            put(&mut machine.warp, to, mask, &all);
        } else {
            put(&mut machine.warp, to, mask, &Lanes(all.0.map(|x| x as u32)));
        }
        Ok(())
    }))
}

/// `cvta`: between an address of a space and one that tells its space.
pub(super) fn convert_address(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded {
    let to_space = mnemonic.flag("to");
    let window = match space(mnemonic) {
        Space::Shared => SHARED,
        Space::Local => LOCAL,
        Space::Param => PARAM,
        _ => 0,
    };
    mnemonic.ty()?;
    if to_space {
        operands.one(move |a: u64| a.wrapping_sub(window))
    } else {
        operands.one(move |a: u64| a.wrapping_add(window))
    }
}
