//! Special registers, and what kind of number one is.

use super::machine::{LANES, Lanes, Machine, put};
use super::parser::Operand;
use super::scope::File;
use super::steps::{Decoded, Operands};
use super::types::{Mnemonic, Type};
use std::num::FpCategory;

type Read = fn(&Machine<'_>, usize) -> u64;

/// The lane of a block, counted along its first side first.
fn thread(machine: &Machine<'_>, lane: usize) -> u32 {
    machine.warp.index * LANES as u32 + lane as u32
}

fn known(name: &str) -> Option<Read> {
    Some(match name {
        "%tid.x" => |m, l| (thread(m, l) % m.sides[0]).into(),
        "%tid.y" => |m, l| (thread(m, l) / m.sides[0] % m.sides[1]).into(),
        "%tid.z" => |m, l| (thread(m, l) / m.sides[0] / m.sides[1]).into(),
        "%ntid.x" => |m, _| m.sides[0].into(),
        "%ntid.y" => |m, _| m.sides[1].into(),
        "%ntid.z" => |m, _| m.sides[2].into(),
        "%ctaid.x" => |m, _| m.block[0].into(),
        "%ctaid.y" => |m, _| m.block[1].into(),
        "%ctaid.z" => |m, _| m.block[2].into(),
        "%nctaid.x" => |m, _| m.grid[0].into(),
        "%nctaid.y" => |m, _| m.grid[1].into(),
        "%nctaid.z" => |m, _| m.grid[2].into(),
        "%laneid" => |_, l| l as u64,
        "%warpid" => |m, _| m.warp.index.into(),
        "%nwarpid" => |m, _| m.sides.iter().product::<u32>().div_ceil(LANES as u32).into(),
        "%lanemask_eq" => |_, l| 1 << l,
        "%lanemask_lt" => |_, l| (1 << l) - 1,
        "%lanemask_le" => |_, l| (2 << l) - 1,
        "%lanemask_gt" => |_, l| 0xffff_ffff & !((2 << l) - 1),
        "%lanemask_ge" => |_, l| 0xffff_ffff & !((1 << l) - 1),
        "%smid" => |_, _| 0,
        "%nsmid" => |_, _| 1,
        "%clock" | "%clock64" | "%globaltimer" => |m, _| m.clock,
        _ => return None,
    })
}

/// A move out of one.
pub(super) fn decode(name: &str, operands: &mut Operands) -> Decoded {
    let read = known(name).ok_or_else(|| format!("unknown register {name}"))?;
    let Operand::Name(to) = operands.at(0)? else { return Err("expected a register".into()) };
    let to = operands.scope.register(to).ok_or_else(|| format!("unknown register {to}"))?;
    Ok(Box::new(move |machine, mask| {
        let values = Lanes(std::array::from_fn(|lane| read(machine, lane)));
        match to.file {
            File::Wide => put(&mut machine.warp, to.index, mask, &values),
            _ => put(&mut machine.warp, to.index, mask, &Lanes(values.0.map(|x| x as u32))),
        }
        Ok(())
    }))
}

/// `testp`.
pub(super) fn test(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded {
    let names = ["finite", "infinite", "number", "notanumber", "normal", "subnormal"];
    let which = mnemonic.one_of(&names).ok_or("an unknown kind")?;
    let ty = mnemonic.ty()?;
    operands.count(2)?;
    let to = operands.scope.predicate(operands.at(0)?)?;
    let holds = move |kind: FpCategory| match which {
        "finite" => !matches!(kind, FpCategory::Nan | FpCategory::Infinite),
        "infinite" => kind == FpCategory::Infinite,
        "number" => kind != FpCategory::Nan,
        "notanumber" => kind == FpCategory::Nan,
        "normal" => kind == FpCategory::Normal,
        _ => kind == FpCategory::Subnormal,
    };
    let is_double = ty == Type::F64;
    let from = if is_double { operands.read::<f64>(1)? } else { operands.read::<f32>(1)? };
    Ok(Box::new(move |machine, mask| {
        let mut found = 0u32;
        for lane in 0..LANES {
            let kind = if is_double {
                f64::from_bits(machine.warp.wide[from].0[lane]).classify()
            } else {
                f32::from_bits(machine.warp.narrow[from].0[lane]).classify()
            };
            found |= u32::from(holds(kind)) << lane;
        }
        let predicate = &mut machine.warp.predicates[to];
        *predicate = *predicate & !mask | found & mask;
        Ok(())
    }))
}
