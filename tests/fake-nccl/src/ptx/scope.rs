//! What names mean: registers, which LLVM numbers without limit, and variables. A constant gets a register that nobody writes.

use super::machine::{Value, Word};
use super::parser::{Operand, Space};
use super::types::Type;
use std::collections::{BTreeMap, HashMap};

/// Registers that hold constants.
pub(super) type Constants = (Vec<(usize, u32)>, Vec<(usize, u64)>);

/// The files of registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum File {
    Narrow,
    Wide,
    Predicate,
}

/// A declared register.
#[derive(Clone, Copy, Debug)]
pub(super) struct Register {
    pub(super) file: File,
    pub(super) index: usize,
    /// As declared.
    pub(super) bytes: usize,
}

/// A variable that has a place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) space: Space,
    pub(super) address: u64,
}

#[derive(Default)]
pub(super) struct Scope {
    /// How many registers there are of each file.
    pub(super) counts: [usize; 3],
    single: HashMap<String, Register>,
    /// By what their names have before the number.
    numbered: HashMap<String, (Register, u32)>,
    carry: Option<usize>,
    narrow: BTreeMap<u32, usize>,
    wide: BTreeMap<u64, usize>,
    pub(super) places: HashMap<String, Place>,
}

impl Scope {
    /// Forgets the names of registers and variables: those of another function begin.
    pub(super) fn begin(&mut self, places: &HashMap<String, Place>) {
        self.single.clear();
        self.numbered.clear();
        self.places.clone_from(places);
    }

    fn add(&mut self, file: File, many: usize) -> usize {
        let count = &mut self.counts[file as usize];
        *count += many;
        *count - many
    }

    /// The predicate with the carry of sums.
    pub(super) fn carry(&mut self) -> usize {
        if let Some(known) = self.carry {
            return known;
        }
        let made = self.another(File::Predicate);
        self.carry = Some(made);
        made
    }

    /// A register that no name tells of.
    pub(super) fn another(&mut self, file: File) -> usize {
        self.add(file, 1)
    }

    pub(super) fn declare(&mut self, ty: Type, name: &str, many: Option<u32>) {
        let file = match ty {
            Type::Pred => File::Predicate,
            _ if ty.bytes() == 8 => File::Wide,
            _ => File::Narrow,
        };
        let index = self.add(file, many.unwrap_or(1) as usize);
        let register = Register { file, index, bytes: ty.bytes() };
        match many {
            Some(many) => drop(self.numbered.insert(name.into(), (register, many))),
            None => drop(self.single.insert(name.into(), register)),
        }
    }

    pub(super) fn register(&self, name: &str) -> Option<Register> {
        if let Some(known) = self.single.get(name) {
            return Some(*known);
        }
        let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let (prefix, number) = name.split_at(name.len() - digits);
        let (first, many) = self.numbered.get(prefix)?;
        let number: u32 = number.parse().ok()?;
        (number < *many).then(|| Register { index: first.index + number as usize, ..*first })
    }

    fn declared(&self, operand: &Operand, file: File) -> Result<usize, String> {
        let Operand::Name(name) = operand else { return Err("expected a register".into()) };
        let found = self.register(name).ok_or_else(|| format!("unknown register {name}"))?;
        if found.file != file {
            return Err(format!("{name} is a register of another size"));
        }
        Ok(found.index)
    }

    pub(super) fn predicate(&self, operand: &Operand) -> Result<usize, String> {
        self.declared(operand, File::Predicate)
    }

    /// The register with a constant in it.
    pub(super) fn constant<T: Word>(&mut self, value: T) -> usize {
        if T::IS_WIDE {
            if let Some(known) = self.wide.get(&value.bits()) {
                return *known;
            }
            let index = self.add(File::Wide, 1);
            self.wide.insert(value.bits(), index);
            return index;
        }
        let bits = value.bits() as u32;
        if let Some(known) = self.narrow.get(&bits) {
            return *known;
        }
        let index = self.add(File::Narrow, 1);
        self.narrow.insert(bits, index);
        index
    }

    pub(super) fn read<T: Value>(&mut self, operand: &Operand) -> Result<usize, String> {
        let bits = match operand {
            Operand::Integer(bits) => *bits,
            Operand::Single(bits) if !T::Slot::IS_WIDE => u64::from(*bits),
            Operand::Double(bits) if T::Slot::IS_WIDE => *bits,
            Operand::Name(name) if self.register(name).is_none() && T::Slot::IS_WIDE => {
                self.places.get(name).ok_or_else(|| format!("unknown name {name}"))?.address
            }
            _ if T::Slot::IS_WIDE => return self.declared(operand, File::Wide),
            _ => return self.declared(operand, File::Narrow),
        };
        // As much of it as the type has.
        let value = T::of(T::Slot::from_bits(bits)).slot();
        Ok(self.constant(value))
    }

    pub(super) fn write<T: Word>(&mut self, operand: &Operand) -> Result<usize, String> {
        let file = if T::IS_WIDE { File::Wide } else { File::Narrow };
        if *operand == Operand::Sink {
            return Ok(self.another(file));
        }
        self.declared(operand, file)
    }

    /// All constants and their registers.
    pub(super) fn constants(&self) -> Constants {
        let mut narrow: Vec<_> = self.narrow.iter().map(|(value, index)| (*index, *value)).collect();
        let mut wide: Vec<_> = self.wide.iter().map(|(value, index)| (*index, *value)).collect();
        narrow.sort_unstable();
        wide.sort_unstable();
        (narrow, wide)
    }
}
