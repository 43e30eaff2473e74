//! Products of matrices by four warps together: `wgmma`, of factors of 16 bits. Each warp has 16 of the 64 rows. Results are no
//! numbers before they were waited for.

use super::machine::{ALL, LANES, LAUNCH_FAILED, Lanes, Machine, Outcome, Step, put, trouble};
use super::matmuls::documented;
use super::parser::Operand;
use super::rounding::{from_bf16, from_f16};
use super::steps::{Decoded, Operands};
use super::tiles::{Shape, registers};
use super::types::{Mnemonic, Type};
use super::warps::{Plain, Together};
use std::collections::BTreeMap;

/// Products of a warp that are under way.
#[derive(Default)]
pub(super) struct Products {
    /// Whether registers may be read and written by products (`wgmma.fence`).
    is_fenced: bool,
    /// Those that belong to no group yet.
    open: Group,
    groups: Vec<Group>,
}

/// What registers will be, and what of shared memory is read, when there were so many writes.
#[derive(Default)]
struct Group {
    results: BTreeMap<usize, Lanes<u32>>,
    reads: Vec<(usize, u64)>,
}

/// Bytes that lie side by side in a matrix.
const CHUNK: usize = 16;

/// A matrix in shared memory (PTX ISA, "Matrix Descriptor Format").
#[derive(Clone, Copy)]
struct Described {
    start: usize,
    block_apart: usize,
    eight_apart: usize,
    /// Bytes of a row of a block, and the bits of an address that its row permutes.
    row: usize,
    permuted: usize,
}

impl Described {
    fn of(bits: u64) -> Result<Described, String> {
        let part = |from: u32| ((bits >> from & 0x3fff) as usize) * CHUNK;
        let (row, permuted) = match bits >> 62 {
            1 => (128, 0x70),
            2 => (64, 0x30),
            3 => (32, 0x10),
            _ => return Err("a matrix that is not permuted is not known here".into()),
        };
        // All between the parts are zero.
        if bits & 0x3fff_c000_c000_c000 != 0 {
            return Err(format!("{bits:#x} describes no matrix"));
        }
        Ok(Described { start: part(0), block_apart: part(16), eight_apart: part(32), row, permuted })
    }

    /// Where eight elements are that lie side by side: of row `outer`, from the `inner`-th element on.
    fn at(&self, outer: usize, inner: usize) -> usize {
        let (block, within) = (2 * inner / self.row, 2 * inner % self.row);
        let at = self.start
            + block * self.block_apart
            + outer / 8 * self.eight_apart
            + outer % 8 * self.row
            + within;
        at ^ (at >> 3 & self.permuted)
    }
}

/// The left factor.
enum Left {
    Registers(Vec<usize>),
    /// The register with the descriptor, and whether rows of the factor lie side by side.
    Shared(usize, bool),
}

struct Product {
    columns: usize,
    ty: Type,
    sums: Vec<usize>,
    left: Left,
    right: usize,
    right_by_rows: bool,
    adds: usize,
}

pub(super) fn decode(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded<Plain> {
    let what = mnemonic.first()?;
    if !(mnemonic.flag("sync") && mnemonic.flag("aligned")) {
        return Err("a product of some lanes".into());
    }
    let step: Step = match what {
        "fence" => Box::new(|machine, _| {
            machine.warp.products.is_fenced = true;
            Ok(())
        }),
        "commit_group" => Box::new(|machine, _| {
            let products = &mut machine.warp.products;
            products.groups.push(std::mem::take(&mut products.open));
            products.is_fenced = false;
            Ok(())
        }),
        "wait_group" => {
            let Operand::Integer(left) = *operands.at(0)? else { return Err("how many?".into()) };
            Box::new(move |machine, _| wait(machine, left as usize))
        }
        "mma_async" => {
            let product = product(mnemonic, operands)?;
            Box::new(move |machine, _| product.begin(machine))
        }
        other => return Err(format!("{other} is not known here")),
    };
    Ok(Plain::Together(Together { members: None, step }))
}

/// Bits that are written as numbers.
fn flags(operands: &Operands, from: usize) -> Decoded<Vec<bool>> {
    let all = operands.all[from..].iter().map(|o| match o {
        Operand::Integer(n @ (0 | 1)) => Ok(*n == 1),
        _ => Err("expected 0 or 1".to_string()),
    });
    all.collect()
}

fn product(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded<Product> {
    let Shape { m, n, k } = Shape::named(mnemonic.first()?)?;
    if m != 64 || k != 16 || !n.is_multiple_of(8) || !(8..=256).contains(&n) {
        return Err("an unknown shape".into());
    }
    let (ty, other) = (mnemonic.ty()?, mnemonic.ty()?);
    if ty != other || !matches!(ty, Type::F16 | Type::Bf16) || mnemonic.ty()? != Type::F32 {
        return Err("unknown types".into());
    }
    let sums = registers(operands.at(0)?, operands, true)?;
    if sums.len() != n / 2 {
        return Err(format!("{} registers for {n} columns", sums.len()));
    }
    let left = operands.at(1)?;
    let in_registers = matches!(left, Operand::Vector(all) if all.len() == 4);
    let right = operands.read::<u64>(2)?;
    let adds = operands.scope.predicate(operands.at(3)?)?;
    let flags = flags(operands, 4)?;
    let (left, right_by_rows) = match flags.as_slice() {
        [true, true, right] if in_registers => (Left::Registers(registers(left, operands, false)?), *right),
        [true, true, left, right] if !in_registers => (Left::Shared(operands.read::<u64>(1)?, *left), *right),
        _ => return Err("unknown factors".into()),
    };
    Ok(Product { columns: n, ty, sums, left, right, right_by_rows, adds })
}

impl Product {
    fn number(&self, bits: u32) -> f32 {
        if self.ty == Type::F16 { from_f16(bits) } else { from_bf16(bits) }
    }

    /// A matrix of so many rows from `first` on, and 16 columns; or one of 16 rows, whose columns these are, as it lies by rows.
    fn load(
        &self,
        machine: &mut Machine<'_>,
        descriptor: usize,
        (first, rows, by_columns): (usize, usize, bool),
    ) -> Outcome<Vec<f32>> {
        let bits = machine.warp.wide[descriptor].0;
        if bits.iter().any(|b| *b != bits[0]) {
            return trouble(LAUNCH_FAILED, 0, "lanes disagree on where a matrix lies");
        }
        let matrix = match Described::of(bits[0]) {
            Ok(matrix) => matrix,
            Err(text) => return trouble(LAUNCH_FAILED, 0, text),
        };
        let mut all = vec![0.0; rows * 16];
        // Chunks of eight elements: along the columns, or along the rows.
        let (outer, inner) = if by_columns { (16, rows) } else { (rows, 16) };
        for o in 0..outer {
            for i in (0..inner).step_by(8) {
                let at = if by_columns { matrix.at(o, first + i) } else { matrix.at(first + o, i) };
                let chunk = self.chunk(machine, at)?;
                for (e, x) in chunk.into_iter().enumerate() {
                    let (row, column) = if by_columns { (i + e, o) } else { (o, i + e) };
                    all[row * 16 + column] = x;
                }
            }
        }
        Ok(all)
    }

    fn chunk(&self, machine: &mut Machine<'_>, at: usize) -> Outcome<[f32; 8]> {
        let warp = machine.warp.index;
        if at + CHUNK > machine.shared_bytes {
            return trouble(LAUNCH_FAILED, 0, format!("a matrix reaches beyond shared memory, at {at:#x}"));
        }
        if let Some(shadow) = &mut machine.shadow {
            match shadow.product_reads(at, CHUNK, warp) {
                Ok(writes) => machine.warp.products.open.reads.push((at, writes)),
                Err(wrong) => {
                    return trouble(LAUNCH_FAILED, 0, format!("shared memory at {at:#x}: {wrong}"));
                }
            }
        }
        let base = machine.shared.as_ptr() as *const u8;
        // SAFETY: it lies within shared memory.
        let half = |e: usize| u32::from(unsafe { (base.add(at + 2 * e) as *const u16).read_volatile() });
        Ok(std::array::from_fn(|e| self.number(half(e))))
    }

    fn in_registers(&self, machine: &Machine<'_>, registers: &[usize]) -> Vec<f32> {
        let mut all = vec![0.0; 16 * 16];
        for (i, register) in registers.iter().enumerate() {
            for (lane, bits) in machine.warp.narrow[*register].0.iter().enumerate() {
                for part in 0..2 {
                    let (row, column) = documented("a", (i, lane, part), 2);
                    all[row * 16 + column] = self.number(bits >> (16 * part) & 0xffff);
                }
            }
        }
        all
    }

    fn begin(&self, machine: &mut Machine<'_>) -> Outcome {
        if !machine.warp.products.is_fenced {
            return trouble(LAUNCH_FAILED, 0, "registers were not fenced for a product (wgmma.fence)");
        }
        let row = machine.warp.index as usize % 4 * 16;
        let left = match &self.left {
            Left::Registers(registers) => self.in_registers(machine, registers),
            Left::Shared(descriptor, by_columns) => {
                self.load(machine, *descriptor, (row, 16, *by_columns))?
            }
        };
        let right = self.load(machine, self.right, (0, self.columns, self.right_by_rows))?;
        let adds = machine.warp.predicates[self.adds];
        for (i, register) in self.sums.iter().enumerate() {
            let before = machine.warp.products.latest(*register).unwrap_or(machine.warp.narrow[*register]);
            let sums = Lanes(std::array::from_fn(|lane| {
                let (row, column) = (lane / 4 + i / 2 % 2 * 8, i / 4 * 8 + lane % 4 * 2 + i % 2);
                let first = if adds >> lane & 1 != 0 { f32::from_bits(before.0[lane]) } else { 0.0 };
                let (a, b) = (&left[row * 16..][..16], &right[column * 16..][..16]);
                a.iter().zip(b).fold(first, |sum, (x, y)| x.mul_add(*y, sum)).to_bits()
            }));
            machine.warp.products.open.results.insert(*register, sums);
            put(&mut machine.warp, *register, ALL, &Lanes([u32::MAX; LANES]));
        }
        Ok(())
    }
}

impl Products {
    /// What a register will be.
    fn latest(&self, register: usize) -> Option<Lanes<u32>> {
        let all = std::iter::once(&self.open).chain(self.groups.iter().rev());
        all.into_iter().find_map(|group| group.results.get(&register)).copied()
    }
}

/// All groups but the last ones end.
fn wait(machine: &mut Machine<'_>, left: usize) -> Outcome {
    let groups = &mut machine.warp.products.groups;
    let ended: Vec<Group> = groups.drain(..groups.len().saturating_sub(left)).collect();
    for group in ended {
        for (at, writes) in &group.reads {
            if machine.shadow.as_ref().is_some_and(|s| s.is_overwritten(*at, CHUNK, *writes)) {
                let text = format!("shared memory at {at:#x}: written while a product read it");
                return trouble(LAUNCH_FAILED, 0, text);
            }
        }
        for (register, values) in &group.results {
            put(&mut machine.warp, *register, ALL, values);
        }
    }
    Ok(())
}
