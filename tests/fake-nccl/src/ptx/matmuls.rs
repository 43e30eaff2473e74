//! Products of matrices by a warp: `mma` and `wmma.mma`. Products are exact, and sums are in single precision.

use super::machine::{ALL, ILLEGAL_INSTRUCTION, LANES, Lanes, Outcome, Step, Warp, put, trouble};
use super::rounding::{F16, Rounding, from_bf16, from_f16};
use super::steps::{Decoded, Operands};
use super::tiles::{Fragment, Shape, registers};
use super::types::{Mnemonic, Type};
use super::warps::Together;

/// Registers of one matrix, of what type its elements are, and where they lie.
struct Matrix {
    registers: Vec<usize>,
    ty: Type,
    /// By register, lane and part of it: the place of an element among all by rows. Those beyond hold one that another holds.
    places: Vec<usize>,
}

impl Matrix {
    fn packed(&self) -> usize {
        4 / self.ty.bytes()
    }

    fn element(&self, bits: u32, part: usize) -> f32 {
        match self.ty {
            Type::F16 => from_f16(bits >> (16 * part) & 0xffff),
            Type::Bf16 => from_bf16(bits >> (16 * part) & 0xffff),
            // Bits that TF32 lacks are not looked at.
            Type::Tf32 => f32::from_bits(bits & !0x1fff),
            _ => f32::from_bits(bits),
        }
    }

    /// Refuses factors with bits that TF32 lacks: what hardware makes of them is not documented.
    fn check(&self, warp: &Warp) -> Outcome {
        for register in self.registers.iter().filter(|_| self.ty == Type::Tf32) {
            let more = |bits: &u32| bits & 0x1fff != 0 && !f32::from_bits(*bits).is_nan();
            if let Some(lane) = warp.narrow[*register].0.iter().position(more) {
                return trouble(ILLEGAL_INSTRUCTION, lane, "a factor of a product has bits that TF32 lacks");
            }
        }
        Ok(())
    }

    fn load(&self, warp: &Warp, to: &mut [f32]) {
        let mut places = self.places.iter();
        for register in &self.registers {
            let values = &warp.narrow[*register].0;
            for value in values {
                for part in 0..self.packed() {
                    if let Some(place) = places.next() {
                        to[*place] = self.element(*value, part);
                    }
                }
            }
        }
    }

    fn store(&self, warp: &mut Warp, from: &[f32]) {
        let packed = self.packed();
        for (i, register) in self.registers.iter().enumerate() {
            let mut values = Lanes([0; LANES]);
            for (lane, value) in values.0.iter_mut().enumerate() {
                for part in 0..packed {
                    let x = from[self.places[(i * LANES + lane) * packed + part]];
                    *value |= match self.ty {
                        Type::F16 => F16.narrow(x.into(), Rounding::NearestEven) << (16 * part),
                        _ => x.to_bits(),
                    };
                }
            }
            put(warp, *register, ALL, &values);
        }
    }
}

/// Where PTX says that elements of `mma`'s fragments lie, as row and column. `e` elements are in a register.
pub(super) fn documented(
    which: &str,
    (register, lane, part): (usize, usize, usize),
    e: usize,
) -> (usize, usize) {
    let (group, thread) = (lane / 4, lane % 4);
    match which {
        "a" => (group + 8 * (register & 1), e * thread + part + 4 * e * (register >> 1)),
        "b" => (e * thread + part + 4 * e * register, group),
        // Two numbers of a row, be they in one register or in two.
        _ => {
            let index = e * register + part;
            (group + 8 * (index >> 1), 2 * thread + (index & 1))
        }
    }
}

fn matrix(which: &str, registers: Vec<usize>, ty: Type, shape: Shape, is_open: bool) -> Decoded<Matrix> {
    if !matches!(ty, Type::F16 | Type::Bf16 | Type::Tf32 | Type::F32) {
        return Err(format!("no products of {ty:?}"));
    }
    let (rows, columns) = shape.of(which);
    let fragment = Fragment { rows, columns, ty };
    let (packed, own) = (fragment.packed(), fragment.own());
    let has = registers.len() * packed;
    if if is_open { has < own } else { has != own } {
        return Err(format!("{} registers for a matrix of {rows} by {columns}", registers.len()));
    }
    let mut places = Vec::with_capacity(has * LANES);
    for register in 0..registers.len() {
        for lane in 0..LANES {
            places.extend((0..packed).map(|part| {
                if is_open {
                    return lane * own + (register * packed + part) % own;
                }
                let (row, column) = documented(which, (register, lane, part), packed);
                row * columns + column
            }));
        }
    }
    Ok(Matrix { registers, ty, places })
}

/// `mma` and `wmma.mma`, whose types are those of d, a, b and c.
pub(super) fn decode(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded<Together> {
    let is_open = mnemonic.head == "wmma";
    mnemonic.ignore(&["sync", "aligned", "mma"]);
    // How a matrix lies in memory is no matter here: `wmma` loads have taken it into account, and `mma` has one for each.
    let layouts = [mnemonic.first_of(&["row", "col"]), mnemonic.first_of(&["row", "col"])];
    if !is_open && layouts != [Some("row"), Some("col")] {
        return Err("unknown layouts".into());
    }
    let shape = Shape::named(mnemonic.first()?)?;
    let mut types = Vec::new();
    while mnemonic.last().is_some() {
        types.insert(0, mnemonic.ty()?);
    }
    let types: [Type; 4] = match types.as_slice() {
        // Only d and c are named: the factors are of 16 bits.
        [d, c] => [*d, Type::F16, Type::F16, *c],
        [d, a, b, c] => [*d, *a, *b, *c],
        _ => return Err("unknown types".into()),
    };
    operands.count(4)?;
    let mut made = |which: &str, index: usize| {
        let registers = registers(operands.at(index)?, operands, index == 0)?;
        matrix(which, registers, types[index], shape, is_open)
    };
    let [d, a, b, c] = [made("d", 0)?, made("a", 1)?, made("b", 2)?, made("c", 3)?];
    let Shape { m, n, k } = shape;
    let step: Step = Box::new(move |machine, _| {
        // Fragments of `wmma` come from loads, of which PTX says the same; CubeCL's have such bits.
        if !is_open {
            a.check(&machine.warp)?;
            b.check(&machine.warp)?;
        }
        let (mut x, mut y, mut z) = ([0f32; 512], [0f32; 512], [0f32; 512]);
        a.load(&machine.warp, &mut x);
        b.load(&machine.warp, &mut y);
        c.load(&machine.warp, &mut z);
        for (row, to) in z[..m * n].chunks_exact_mut(n).enumerate() {
            for (i, factor) in x[row * k..(row + 1) * k].iter().enumerate() {
                for (sum, other) in to.iter_mut().zip(&y[i * n..(i + 1) * n]) {
                    *sum = factor.mul_add(*other, *sum);
                }
            }
        }
        d.store(&mut machine.warp, &z);
        Ok(())
    });
    Ok(Together { members: None, step })
}
