//! Running code, a warp at a time.

use super::flow::Flow;
use super::machine::{ALL, LAUNCH_FAILED, LAUNCH_TIMEOUT, Machine, Outcome, lanes_of, trouble};
use super::program::{Action, Code, Copied};
use super::warps::Together;

/// Why a warp does not go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stop {
    /// All lanes have ended.
    Done,
    /// All lanes are at the barrier of this number.
    Barrier(u32),
    /// It has run for a while: others are due, for which it may wait.
    Turn,
}

/// Instructions of a turn.
const TURN: u64 = 1 << 20;

/// All functions that a kernel needs.
pub(super) type Functions = [Code];

/// Runs a warp from where it is.
pub(super) fn run(
    functions: &Functions,
    number: usize,
    flow: &mut Flow,
    machine: &mut Machine<'_>,
) -> Outcome<Stop> {
    let code = &functions[number].instructions;
    let turn = (machine.clock + TURN).min(machine.limit);
    loop {
        if flow.at >= flow.next {
            flow.settle()?;
        }
        let Some(instruction) = code.get(flow.at) else {
            return trouble(LAUNCH_FAILED, 0, "runs past the last instruction");
        };
        machine.clock += 1;
        if machine.clock >= turn {
            if machine.clock >= machine.limit {
                return trouble(LAUNCH_TIMEOUT, first(flow.mask), "does not end");
            }
            // What is called has no place to go on from.
            if number == 0 {
                return Ok(Stop::Turn);
            }
        }
        let mask = match instruction.guard {
            None => flow.mask,
            Some((predicate, negated)) => {
                let holds = machine.warp.predicates[predicate];
                flow.mask & if negated { !holds } else { holds }
            }
        };
        match &instruction.action {
            Action::Step(step) => {
                if mask != 0 {
                    step(machine, mask)?;
                }
                flow.at += 1;
            }
            Action::Branch(to) => flow.branch(mask, *to),
            Action::Return => {
                if flow.exit(mask)? {
                    return Ok(Stop::Done);
                }
            }
            // In a function too: its lanes are those that called it.
            Action::Together(together) if mask != 0 => {
                if gathered(together, mask, flow.lanes, machine)? {
                    flow.at += 1;
                } else {
                    flow.wait()?;
                }
            }
            Action::Switch(register, targets) => switch(machine, flow, (mask, *register), targets)?,
            Action::Call(function, inputs, outputs) if mask != 0 => {
                call(functions, (*function, mask), machine, [inputs, outputs])?;
                flow.at += 1;
            }
            Action::Trap if mask != 0 => return trouble(LAUNCH_FAILED, first(mask), "trap"),
            Action::Barrier(id) if mask != 0 => {
                if number != 0 {
                    return trouble(
                        LAUNCH_FAILED,
                        first(mask),
                        "a barrier within a function is not known here",
                    );
                }
                if mask == flow.lanes {
                    flow.at += 1;
                    return Ok(Stop::Barrier(machine.warp.narrow[*id].0[first(mask)]));
                }
                flow.wait()?;
            }
            _ => flow.at += 1,
        }
    }
}

fn first(mask: u32) -> usize {
    mask.trailing_zeros() as usize
}

/// Does what lanes do together, if all that take part are here. Some may have other members than others.
fn gathered(together: &Together, mask: u32, lanes: u32, machine: &mut Machine<'_>) -> Outcome<bool> {
    let Some(register) = together.members else {
        if mask != ALL {
            if lanes != ALL {
                return trouble(
                    LAUNCH_FAILED,
                    mask.trailing_zeros() as usize,
                    "not all lanes of the warp are left",
                );
            }
            return Ok(false);
        }
        (together.step)(machine, mask)?;
        return Ok(true);
    };
    let members = machine.warp.narrow[register].0;
    let same =
        |lane: usize| lanes_of(mask).filter(|l| members[*l] == members[lane]).fold(0, |m, l| m | 1u32 << l);
    for lane in lanes_of(mask) {
        if members[lane] >> lane & 1 == 0 {
            return trouble(LAUNCH_FAILED, lane, format!("is not among the members {:#x}", members[lane]));
        }
        if members[lane] & lanes & !same(lane) != 0 {
            return Ok(false);
        }
    }
    let mut left = mask;
    while left != 0 {
        let part = same(left.trailing_zeros() as usize);
        (together.step)(machine, part)?;
        left &= !part;
    }
    Ok(true)
}

/// Each lane goes to the target that its register names, the guard's others on to the next instruction.
fn switch(
    machine: &Machine<'_>,
    flow: &mut Flow,
    (mask, register): (u32, usize),
    targets: &[usize],
) -> Outcome {
    let index = &machine.warp.narrow[register].0;
    for (i, to) in targets.iter().enumerate() {
        let taken =
            lanes_of(mask & flow.mask).filter(|l| index[*l] as usize == i).fold(0, |m, l| m | 1u32 << l);
        if taken == flow.mask {
            flow.branch(taken, *to);
            return Ok(());
        }
        flow.part(taken, *to);
    }
    if flow.mask & mask != 0 {
        let lane = (flow.mask & mask).trailing_zeros() as usize;
        return trouble(LAUNCH_FAILED, lane, "a branch to none of its targets");
    }
    flow.at += 1;
    Ok(())
}

fn copy(machine: &mut Machine<'_>, mask: u32, all: &[Copied]) {
    let size = machine.local_bytes;
    for lane in lanes_of(mask) {
        let base = (machine.warp.local.as_mut_ptr() as *mut u8).wrapping_add(lane * size);
        for part in all {
            // SAFETY: places were given out within the local memory of a lane.
            unsafe { std::ptr::copy(base.add(part.from), base.add(part.to), part.bytes) };
        }
    }
}

fn call(
    functions: &Functions,
    (number, mask): (usize, u32),
    machine: &mut Machine<'_>,
    [inputs, outputs]: [&[Copied]; 2],
) -> Outcome {
    copy(machine, mask, inputs);
    let mut flow = Flow::new(mask);
    let code = &functions[number];
    run(functions, number, &mut flow, machine).map_err(|mut trouble| {
        let line = code.instructions.get(flow.at).map_or(0, |i| i.line);
        trouble.text = format!("{} (in {}, line {line})", trouble.text, code.name);
        trouble
    })?;
    copy(machine, mask, outputs);
    Ok(())
}
