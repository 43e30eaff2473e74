//! Copies from global to shared memory that go on while a warp runs on: `cp.async`. What they write is no number before it was
//! waited for.

use super::machine::{Machine, Outcome, Step, lanes_of};
use super::memory::{Access, Target};
use super::parser::Space;
use super::steps::{Decoded, Operands};
use super::transfers::address;
use super::types::Mnemonic;

/// One of a lane: what it reads on the host, of so many bytes, and the bytes that it writes in shared memory.
struct Copy {
    lane: usize,
    from: usize,
    read: usize,
    to: usize,
    bytes: usize,
}

/// Those that are under way.
#[derive(Default)]
pub(super) struct Copies(Vec<Copy>);

/// `cp.async` with how much is read, beyond which zeros are written, and `cp.async.wait_all`.
pub(super) fn decode(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded {
    if !mnemonic.flag("async") {
        return Err("an unknown copy".into());
    }
    if mnemonic.flag("wait_all") {
        operands.count(0)?;
        return Ok(Box::new(arrive));
    }
    let whole = match mnemonic.one_of(&["cg", "ca"]) {
        Some("cg") => true,
        Some(_) => false,
        None => return Err("how is it cached?".into()),
    };
    mnemonic.one_of(&["shared", "shared::cta"]).ok_or("only to shared memory")?;
    if !mnemonic.flag("global") {
        return Err("only from global memory".into());
    }
    operands.count(4)?;
    let bytes = match operands.at(2)? {
        super::parser::Operand::Integer(bytes @ (4 | 8 | 16)) if !whole || *bytes == 16 => *bytes as usize,
        _ => return Err("an unknown size".into()),
    };
    let to = address(operands, 0, (Space::Shared, bytes, Access::Write))?;
    let from = address(operands, 1, (Space::Global, bytes, Access::Read))?;
    let read = operands.read::<u32>(3)?;
    Ok(Box::new(move |machine, mask| begin(machine, mask, (&to, &from, read))))
}

fn begin(machine: &mut Machine<'_>, mask: u32, (to, from, read): (&Target, &Target, usize)) -> Outcome {
    let sizes = machine.warp.narrow[read].0.map(|n| (n as usize).min(to.bytes));
    let reads = lanes_of(mask).filter(|lane| sizes[*lane] > 0).fold(0, |m, lane| m | 1u32 << lane);
    let sources = if reads == 0 { [0; 32] } else { machine.resolve(from, reads)? };
    let places = machine.addresses(to);
    let pointers = machine.resolve(to, mask)?;
    for lane in lanes_of(mask) {
        // SAFETY: it was checked.
        unsafe { std::ptr::write_bytes(pointers[lane] as *mut u8, 0xff, to.bytes) };
        let copy = Copy { lane, from: sources[lane], read: sizes[lane], to: places[lane], bytes: to.bytes };
        machine.warp.copies.0.push(copy);
    }
    Ok(())
}

/// All copies of the lanes end.
fn arrive(machine: &mut Machine<'_>, mask: u32) -> Outcome {
    let all = std::mem::take(&mut machine.warp.copies.0);
    let (ended, left): (Vec<_>, Vec<_>) = all.into_iter().partition(|copy| mask >> copy.lane & 1 != 0);
    machine.warp.copies.0 = left;
    for Copy { lane, from, read, to, bytes } in ended {
        let target = Target {
            space: Space::Shared,
            base: 0,
            is_narrow: true,
            offset: 0,
            bytes,
            access: Access::Write,
        };
        let pointer = machine.resolve_at(&target, [to; 32], 1 << lane)?[lane];
        // SAFETY: both were checked.
        unsafe {
            std::ptr::write_bytes(pointer as *mut u8, 0, bytes);
            std::ptr::copy_nonoverlapping(from as *const u8, pointer as *mut u8, read);
        }
    }
    Ok(())
}

/// `fence.proxy.async`: products of warps together see what this warp has written.
pub(super) fn show(mnemonic: &mut Mnemonic) -> Decoded {
    if !(mnemonic.flag("proxy") && mnemonic.flag("async")) {
        return Err("an unknown fence".into());
    }
    mnemonic.ignore(&["shared::cta"]);
    let step: Step = Box::new(|machine, _| {
        let warp = machine.warp.index;
        if let Some(shadow) = &mut machine.shadow {
            shadow.show(warp);
        }
        Ok(())
    });
    Ok(step)
}
