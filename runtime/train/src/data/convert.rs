//! Elements of files as elements of the program, with a look at every value.

use super::array::Elem;
use half::{bf16, f16};
use meshwright_plan::DType;

/// How the elements of a file become those of an input, and which values it may have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conversion {
    elem: Elem,
    big_endian: bool,
    to: DType,
    /// Integers are below this.
    below: Option<usize>,
    /// Floats are finite.
    finite: bool,
}

/// A value that an input cannot have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum BadValue {
    /// Its dtype has no such value.
    Integer(i128),
    /// Its dtype has no such value.
    Float(f64),
    /// It is a position along a dim, which has no such one.
    Outside(i128),
    /// It is infinite or not a number.
    NotFinite(f64),
}

impl Conversion {
    /// `None` where the dtypes do not go together. Integers become no floats, and floats no integers: a model says this.
    pub(super) fn new(
        (elem, big_endian): (Elem, bool),
        to: DType,
        below: Option<usize>,
        finite: bool,
    ) -> Option<Conversion> {
        let fits = match to {
            DType::F32 | DType::F64 => elem.is_float(),
            DType::I32 | DType::U8 => !elem.is_float() && elem != Elem::Bool,
            DType::Bool => matches!(elem, Elem::Bool | Elem::U8),
            _ => false,
        };
        fits.then_some(Conversion { elem, big_endian, to, below: below.filter(|_| to.is_int()), finite })
    }

    /// Bytes of an element in the file.
    pub(super) fn width(&self) -> usize {
        self.elem.bytes()
    }

    /// Converts whole elements. An error is the first bad value and its position.
    pub(super) fn run(&self, from: &[u8], to: &mut [u8]) -> Result<(), (usize, BadValue)> {
        let same = match self.elem {
            Elem::U8 => self.to == DType::U8,
            Elem::I32 => self.to == DType::I32,
            Elem::F32 => self.to == DType::F32,
            Elem::F64 => self.to == DType::F64,
            _ => false,
        };
        if !same || (self.big_endian && self.elem != Elem::U8) {
            return self.each(from, to);
        }
        to.copy_from_slice(from);
        let bad = match self.elem {
            // One test of many values at a time; each by itself only where there is a bad one.
            Elem::F32 if self.finite => from
                .chunks_exact(4)
                .fold(false, |bad, b| bad | !f32::from_le_bytes(crate::tensor::array(b)).is_finite()),
            Elem::F64 if self.finite => from
                .chunks_exact(8)
                .fold(false, |bad, b| bad | !f64::from_le_bytes(crate::tensor::array(b)).is_finite()),
            Elem::U8 | Elem::I32 => self.below.is_some(),
            _ => false,
        };
        if bad { self.each(from, to) } else { Ok(()) }
    }

    fn each(&self, from: &[u8], to: &mut [u8]) -> Result<(), (usize, BadValue)> {
        let (width, wide) = (self.elem.bytes(), self.to.bytes());
        for (at, (from, to)) in from.chunks_exact(width).zip(to.chunks_exact_mut(wide)).enumerate() {
            self.one(from, to).map_err(|bad| (at, bad))?;
        }
        Ok(())
    }

    fn one(&self, from: &[u8], to: &mut [u8]) -> Result<(), BadValue> {
        let mut bytes = [0; 8];
        let bytes = &mut bytes[..from.len()];
        bytes.copy_from_slice(from);
        if self.big_endian {
            bytes.reverse();
        }
        match self.to {
            DType::F32 | DType::F64 => {
                let value = float(self.elem, bytes);
                if self.finite && !value.is_finite() {
                    return Err(BadValue::NotFinite(value));
                }
                if self.to == DType::F64 {
                    to.copy_from_slice(&value.to_le_bytes());
                    return Ok(());
                }
                let narrow = value as f32;
                if narrow.is_infinite() && value.is_finite() {
                    return Err(BadValue::Float(value));
                }
                // A NaN keeps its bits where the file has the same type.
                let same =
                    if self.elem == Elem::F32 { crate::tensor::array(bytes) } else { narrow.to_le_bytes() };
                to.copy_from_slice(&same);
            }
            _ => {
                let value = integer(self.elem, bytes);
                let cannot = BadValue::Integer(value);
                match self.to {
                    DType::Bool if value > 1 => return Err(cannot),
                    DType::U8 | DType::Bool => to[0] = u8::try_from(value).map_err(|_| cannot)?,
                    _ => to.copy_from_slice(&i32::try_from(value).map_err(|_| cannot)?.to_le_bytes()),
                }
                if self.below.is_some_and(|n| usize::try_from(value).map_or(true, |v| v >= n)) {
                    return Err(BadValue::Outside(value));
                }
            }
        }
        Ok(())
    }
}

/// The value of little-endian bytes.
fn integer(elem: Elem, bytes: &[u8]) -> i128 {
    use crate::tensor::array;
    match elem {
        Elem::I8 => i8::from_le_bytes(array(bytes)).into(),
        Elem::U16 => u16::from_le_bytes(array(bytes)).into(),
        Elem::I16 => i16::from_le_bytes(array(bytes)).into(),
        Elem::U32 => u32::from_le_bytes(array(bytes)).into(),
        Elem::I32 => i32::from_le_bytes(array(bytes)).into(),
        Elem::U64 => u64::from_le_bytes(array(bytes)).into(),
        Elem::I64 => i64::from_le_bytes(array(bytes)).into(),
        _ => bytes[0].into(),
    }
}

/// The value of little-endian bytes.
fn float(elem: Elem, bytes: &[u8]) -> f64 {
    use crate::tensor::array;
    match elem {
        Elem::F16 => f16::from_le_bytes(array(bytes)).to_f64(),
        Elem::BF16 => bf16::from_le_bytes(array(bytes)).to_f64(),
        Elem::F32 => f32::from_le_bytes(array(bytes)).into(),
        _ => f64::from_le_bytes(array(bytes)),
    }
}
