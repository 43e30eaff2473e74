//! What lanes of a warp do together: shuffles and votes.

use super::machine::{LANES, Lanes, Step, put};
use super::parser::Operand;
use super::scope::File;
use super::steps::{Decoded, Operands};
use super::types::{Mnemonic, Type};

/// Lanes that have to come together, and what they do then.
pub(super) struct Together {
    /// The register with a mask of them; all where there is none.
    pub(super) members: Option<usize>,
    pub(super) step: Step,
}

/// What an instruction does that goes on with the next one.
pub(super) enum Plain {
    Step(Step),
    Together(Together),
    /// For memory that is not always in order.
    Nothing,
}

/// `shfl.sync`: a lane gets another one's number, of the lanes of its segment.
pub(super) fn shuffle(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded<Together> {
    if !mnemonic.flag("sync") {
        return Err("a shuffle without a mask".into());
    }
    let how = mnemonic.one_of(&["up", "down", "bfly", "idx"]).ok_or("an unknown shuffle")?.to_string();
    mnemonic.ty()?;
    operands.count(5)?;
    let (to, inside) = match operands.at(0)? {
        Operand::Pair(d, p) => {
            let inside = match &**p {
                Operand::Sink => operands.scope.another(File::Predicate),
                p => operands.scope.predicate(p)?,
            };
            (operands.scope.write::<u32>(d)?, Some(inside))
        }
        d => (operands.scope.write::<u32>(d)?, None),
    };
    let (a, b, c) = (operands.read::<u32>(1)?, operands.read::<u32>(2)?, operands.read::<u32>(3)?);
    let members = operands.read::<u32>(4)?;
    let step: Step = Box::new(move |machine, mask| {
        let narrow = &machine.warp.narrow;
        let (mut out, mut found) = (Lanes([0; LANES]), 0u32);
        for lane in 0..LANES {
            let (from, is_inside) = source(&how, lane as u32, narrow[b].0[lane], narrow[c].0[lane]);
            // What a lane that does not take part has is not defined.
            out.0[lane] = if mask >> from & 1 != 0 { narrow[a].0[from as usize] } else { u32::MAX };
            found |= u32::from(is_inside) << lane;
        }
        put(&mut machine.warp, to, mask, &out);
        if let Some(inside) = inside {
            let predicate = &mut machine.warp.predicates[inside];
            *predicate = *predicate & !mask | found & mask;
        }
        Ok(())
    });
    Ok(Together { members: Some(members), step })
}

/// The lane that another reads, which is itself where that lane is not in its segment.
fn source(how: &str, lane: u32, b: u32, c: u32) -> (u32, bool) {
    let (by, clamp, segment) = (b & 31, c & 31, c >> 8 & 31);
    let last = lane & segment | clamp & !segment;
    let first = lane & segment;
    let (from, is_inside) = match how {
        "up" => (lane.wrapping_sub(by), lane as i32 - by as i32 >= last as i32),
        "down" => (lane + by, lane + by <= last),
        "bfly" => (lane ^ by, lane ^ by <= last),
        _ => (first | by & !segment, first | by & !segment <= last),
    };
    if is_inside { (from, true) } else { (lane, false) }
}

/// `vote.sync`.
pub(super) fn vote(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded<Together> {
    if !mnemonic.flag("sync") {
        return Err("a vote without a mask".into());
    }
    let how = mnemonic.one_of(&["all", "any", "uni", "ballot"]).ok_or("an unknown vote")?.to_string();
    mnemonic.ty()?;
    operands.count(3)?;
    let (source, negated) = match operands.at(1)? {
        Operand::Not(p) => (operands.scope.predicate(p)?, u32::MAX),
        p => (operands.scope.predicate(p)?, 0),
    };
    let members = operands.read::<u32>(2)?;
    if how == "ballot" {
        let to = operands.write::<u32>(0)?;
        let step: Step = Box::new(move |machine, mask| {
            let ballot = (machine.warp.predicates[source] ^ negated) & mask;
            put(&mut machine.warp, to, mask, &Lanes([ballot; LANES]));
            Ok(())
        });
        return Ok(Together { members: Some(members), step });
    }
    let to = operands.scope.predicate(operands.at(0)?)?;
    let step: Step = Box::new(move |machine, mask| {
        let votes = (machine.warp.predicates[source] ^ negated) & mask;
        let holds = match how.as_str() {
            "all" => votes == mask,
            "any" => votes != 0,
            _ => votes == 0 || votes == mask,
        };
        let predicate = &mut machine.warp.predicates[to];
        *predicate = *predicate & !mask | if holds { mask } else { 0 };
        Ok(())
    });
    Ok(Together { members: Some(members), step })
}

/// `activemask`: the lanes that run together.
pub(super) fn active(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded {
    mnemonic.ty()?;
    operands.count(1)?;
    let to = operands.write::<u32>(0)?;
    Ok(Box::new(move |machine, mask| {
        put(&mut machine.warp, to, mask, &Lanes([mask; LANES]));
        Ok(())
    }))
}

/// `redux.sync`: all members get the same.
pub(super) fn reduce(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded<Together> {
    mnemonic.flag("sync");
    let how = mnemonic.one_of(&["add", "min", "max", "and", "or", "xor"]).ok_or("an unknown operation")?;
    let f: fn(u32, u32) -> u32 = match (how, mnemonic.ty()?) {
        ("add", _) => u32::wrapping_add,
        ("min", Type::S32) => |a, b| (a as i32).min(b as i32) as u32,
        ("max", Type::S32) => |a, b| (a as i32).max(b as i32) as u32,
        ("min", _) => u32::min,
        ("max", _) => u32::max,
        ("and", _) => |a, b| a & b,
        ("or", _) => |a, b| a | b,
        _ => |a, b| a ^ b,
    };
    operands.count(3)?;
    let (to, from) = (operands.write::<u32>(0)?, operands.read::<u32>(1)?);
    let members = operands.read::<u32>(2)?;
    let step: Step = Box::new(move |machine, mask| {
        let values = super::machine::lanes_of(mask).map(|lane| machine.warp.narrow[from].0[lane]);
        let all = values.reduce(f).unwrap_or(0);
        put(&mut machine.warp, to, mask, &Lanes([all; LANES]));
        Ok(())
    });
    Ok(Together { members: Some(members), step })
}

/// `bar.warp.sync`: members wait for each other. (That of a block is no step.)
pub(super) fn barrier(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded<Together> {
    if !(mnemonic.flag("warp") && mnemonic.flag("sync")) {
        return Err("an unknown barrier".into());
    }
    operands.count(1)?;
    Ok(Together { members: Some(operands.read::<u32>(0)?), step: Box::new(|_, _| Ok(())) })
}
