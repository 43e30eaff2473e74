//! Moving matrices between memory and the registers of a warp: `ldmatrix`, `stmatrix`, and `wmma` loads and stores.

use super::machine::{ALL, ILLEGAL_ADDRESS, LANES, Lanes, Machine, Outcome, Step, lanes_of, put, trouble};
use super::memory::{Access, Target};
use super::parser::Operand;
use super::steps::{Decoded, Operands};
use super::transfers::{address, space};
use super::types::{Mnemonic, Type};
use super::warps::{Plain, Together};

/// Registers of a vector.
pub(super) fn registers(operand: &Operand, operands: &mut Operands, writes: bool) -> Decoded<Vec<usize>> {
    let all = match operand {
        Operand::Vector(all) => all.as_slice(),
        one => std::slice::from_ref(one),
    };
    let scope = &mut *operands.scope;
    all.iter().map(|o| if writes { scope.write::<u32>(o) } else { scope.read::<u32>(o) }).collect()
}

/// `ldmatrix` and `stmatrix`: matrices of 8 rows of 8 elements of 16 bits. Lanes 8 i to 8 i + 7 have the addresses of the rows of
/// matrix i; lane l holds elements 2 (l % 4) and the next of row l / 4, or of column l / 4 where it is transposed.
pub(super) fn rows(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded<Together> {
    let loads = mnemonic.head == "ldmatrix";
    if !(mnemonic.flag("sync") && mnemonic.flag("aligned") && mnemonic.flag("m8n8")) {
        return Err("an unknown shape".into());
    }
    let many = match mnemonic.one_of(&["x1", "x2", "x4"]) {
        Some("x1") => 1,
        Some("x2") => 2,
        Some(_) => 4,
        None => return Err("how many matrices?".into()),
    };
    let transposed = mnemonic.flag("trans");
    let space = space(mnemonic);
    mnemonic.ty()?;
    operands.count(2)?;
    let (of_registers, of_address) = if loads { (0, 1) } else { (1, 0) };
    let access = if loads { Access::Read } else { Access::Write };
    let target = address(operands, of_address, (space, 16, access))?;
    let registers = registers(operands.at(of_registers)?, operands, loads)?;
    if registers.len() != many {
        return Err(format!("{} registers for {many} matrices", registers.len()));
    }
    let step: Step = Box::new(move |machine, _| {
        // Only these lanes' addresses count.
        let pointers = machine.resolve(&target, u32::MAX >> (32 - 8 * many))?;
        for (matrix, register) in registers.iter().enumerate() {
            let at = |lane: usize, i: usize| {
                let (row, column) = (lane / 4, lane % 4 * 2 + i);
                let (row, column) = if transposed { (column, row) } else { (row, column) };
                (pointers[8 * matrix + row] as *mut u16).wrapping_add(column)
            };
            if loads {
                // SAFETY: the rows were checked.
                let half = |lane, i| u32::from(unsafe { at(lane, i).read_volatile() });
                let out = Lanes(std::array::from_fn(|lane| half(lane, 0) | half(lane, 1) << 16));
                put(&mut machine.warp, *register, ALL, &out);
            } else {
                let values = machine.warp.narrow[*register];
                for lane in 0..LANES {
                    // SAFETY: the rows were checked.
                    unsafe {
                        at(lane, 0).write_volatile(values.0[lane] as u16);
                        at(lane, 1).write_volatile((values.0[lane] >> 16) as u16);
                    }
                }
            }
        }
        Ok(())
    });
    Ok(Together { members: None, step })
}

/// The sides of a product's matrices, as in `m16n8k16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
}

impl Shape {
    pub(super) fn named(text: &str) -> Decoded<Shape> {
        let parse = || {
            let (m, rest) = text.strip_prefix('m')?.split_once('n')?;
            let (n, k) = rest.split_once('k')?;
            Some(Shape { m: m.parse().ok()?, n: n.parse().ok()?, k: k.parse().ok()? })
        };
        parse().ok_or_else(|| format!("{text} is no shape"))
    }

    /// Rows and columns of a, b, c or d.
    pub(super) fn of(self, which: &str) -> (usize, usize) {
        match which {
            "a" => (self.m, self.k),
            "b" => (self.k, self.n),
            _ => (self.m, self.n),
        }
    }
}

/// What a fragment of `wmma` is, whose layout PTX leaves open: here elements by rows, the first ones in lane 0. Some fragments
/// have room for each element twice.
#[derive(Clone, Copy)]
pub(super) struct Fragment {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) ty: Type,
}

impl Fragment {
    /// Elements of a register.
    pub(super) fn packed(self) -> usize {
        4 / self.ty.bytes()
    }

    /// Elements of a lane, each once.
    pub(super) fn own(self) -> usize {
        self.rows * self.columns / LANES
    }
}

/// `wmma.load` and `wmma.store`. A store of some lanes, which PTX leaves open, stores what they have, as GPUs do: CubeCL's
/// measurement of tensor cores stores with one lane.
pub(super) fn fragments(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded<Plain> {
    let loads = mnemonic.flag("load");
    mnemonic.flag("store");
    let which = mnemonic.one_of(&["a", "b", "c", "d"]).ok_or("which matrix?")?;
    mnemonic.ignore(&["sync", "aligned"]);
    let by_rows = mnemonic.one_of(&["row", "col"]) == Some("row");
    let shape = Shape::named(mnemonic.first()?)?;
    let space = space(mnemonic);
    let ty = mnemonic.ty()?;
    operands.count(3)?;
    let (rows, columns) = shape.of(which);
    let fragment = Fragment { rows, columns, ty };
    let (of_registers, of_address) = if loads { (0, 1) } else { (1, 0) };
    let access = if loads { Access::Read } else { Access::Write };
    let target = address(operands, of_address, (space, ty.bytes(), access))?;
    let registers = registers(operands.at(of_registers)?, operands, loads)?;
    if registers.len() * fragment.packed() < fragment.own() {
        return Err("too few registers for a fragment".into());
    }
    let stride = operands.read::<u32>(2)?;
    let step: Step = Box::new(move |machine, mask| {
        let (base, stride) = common(machine, &target, stride, mask)?;
        for (i, register) in registers.iter().enumerate() {
            let mut values = machine.warp.narrow[*register];
            for part in 0..fragment.packed() {
                let slot = (i * fragment.packed() + part) % fragment.own();
                let shift = 8 * ty.bytes() * part;
                let at: [u64; LANES] = std::array::from_fn(|lane| {
                    let element = lane * fragment.own() + slot;
                    let (row, column) = (element / columns, element % columns);
                    let index = if by_rows { row * stride + column } else { column * stride + row };
                    base + (index * ty.bytes()) as u64
                });
                exchange(machine, &target, &at, &mut values, (shift, loads, mask))?;
            }
            put(&mut machine.warp, *register, mask, &values);
        }
        Ok(())
    });
    Ok(if loads { Plain::Together(Together { members: None, step }) } else { Plain::Step(step) })
}

/// The address and the stride, which all lanes must agree on.
fn common(machine: &Machine<'_>, target: &Target, stride: usize, mask: u32) -> Outcome<(u64, usize)> {
    let (base, stride) = (&machine.warp.wide[target.base].0, &machine.warp.narrow[stride].0);
    let first = mask.trailing_zeros() as usize;
    match lanes_of(mask).find(|l| base[*l] != base[first] || stride[*l] != stride[first]) {
        Some(lane) => trouble(ILLEGAL_ADDRESS, lane, "lanes disagree on where a matrix lies"),
        None => Ok((base[first].wrapping_add_signed(target.offset), stride[first] as usize)),
    }
}

/// Moves one element of each lane, whose bits are `shift` above the lowest of a register.
fn exchange(
    machine: &mut Machine<'_>,
    target: &Target,
    at: &[u64; LANES],
    values: &mut Lanes<u32>,
    (shift, loads, mask): (usize, bool, u32),
) -> Outcome {
    let pointers = machine.resolve_at(target, at.map(|a| a as usize), mask)?;
    let below = u32::MAX >> (32 - 8 * target.bytes);
    for lane in lanes_of(mask) {
        let (at, value) = (pointers[lane], &mut values.0[lane]);
        // SAFETY: it was checked.
        unsafe {
            match (loads, target.bytes) {
                (true, 2) => {
                    let read = u32::from((at as *const u16).read_volatile());
                    *value = *value & !(below << shift) | read << shift;
                }
                (true, _) => *value = (at as *const u32).read_volatile(),
                (false, 2) => (at as *mut u16).write_volatile((*value >> shift) as u16),
                (false, _) => (at as *mut u32).write_volatile(*value),
            }
        }
    }
    Ok(())
}
