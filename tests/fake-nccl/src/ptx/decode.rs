//! Mnemonics to steps.

use super::parser::Written;
use super::scope::Scope;
use super::steps::{Decoded, Operands};
use super::types::Mnemonic;
use super::warps::Plain;
use super::{
    atomics, bits, carry, compare, convert, copies, float, groups, half, integer, matmuls, special, tiles,
    transfers, warps,
};

pub(super) fn plain(written: &Written, scope: &mut Scope) -> Decoded<Plain> {
    let mut mnemonic = Mnemonic::new(&written.mnemonic);
    let mut operands = Operands { scope, all: &written.operands };
    let made = family(&mut mnemonic, &mut operands)?;
    mnemonic.finish()?;
    Ok(made)
}

fn family(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded<Plain> {
    let step = match mnemonic.head {
        "shfl" => return warps::shuffle(mnemonic, operands).map(Plain::Together),
        "vote" => return warps::vote(mnemonic, operands).map(Plain::Together),
        "redux" => return warps::reduce(mnemonic, operands).map(Plain::Together),
        "ldmatrix" | "stmatrix" => return tiles::rows(mnemonic, operands).map(Plain::Together),
        "mma" => return matmuls::decode(mnemonic, operands).map(Plain::Together),
        "wgmma" => return groups::decode(mnemonic, operands),
        "cp" => return copies::decode(mnemonic, operands).map(Plain::Step),
        "fence" if mnemonic.has("proxy") => return copies::show(mnemonic).map(Plain::Step),
        "wmma" if mnemonic.has("mma") => return matmuls::decode(mnemonic, operands).map(Plain::Together),
        "wmma" => return tiles::fragments(mnemonic, operands),
        "bar" | "barrier" => return warps::barrier(mnemonic, operands).map(Plain::Together),
        "fence" | "membar" | "nanosleep" => {
            mnemonic.ignore(&[
                "sc", "acq_rel", "acquire", "release", "cta", "cluster", "gpu", "gl", "sys", "u32",
            ]);
            return Ok(Plain::Nothing);
        }
        "activemask" => warps::active(mnemonic, operands)?,
        "mov" => transfers::moves(mnemonic, operands)?,
        "ld" | "ldu" => transfers::load(mnemonic, operands)?,
        "st" => transfers::store(mnemonic, operands)?,
        "cvta" => transfers::convert_address(mnemonic, operands)?,
        "atom" | "red" => atomics::decode(mnemonic, operands)?,
        "cvt" => convert::decode(mnemonic, operands)?,
        "setp" => compare::decode(mnemonic, operands)?,
        "selp" => compare::select(mnemonic, operands)?,
        "testp" => special::test(mnemonic, operands)?,
        "and" | "or" | "xor" | "not" | "cnot" | "shl" | "shr" | "bfe" | "bfi" | "shf" | "lop3" | "prmt"
        | "brev" | "popc" | "clz" | "bfind" => bits::decode(mnemonic, operands)?,
        _ if carry::is_carried(mnemonic) => carry::decode(mnemonic, operands)?,
        _ if mnemonic.last().is_some_and(|ty| ty.is_half()) => half::decode(mnemonic, operands)?,
        _ if mnemonic.last().is_some_and(|ty| ty.is_float()) => float::decode(mnemonic, operands)?,
        _ => integer::decode(mnemonic, operands)?,
    };
    Ok(Plain::Step(step))
}
