//! What a data file holds, whatever its format.

/// Element type in a file. Wider than the program's [`meshwright_plan::DType`]: files have types that programs lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Elem {
    Bool,
    U8,
    I8,
    I16,
    I32,
    I64,
    F32,
    F64,
}

impl Elem {
    pub(super) fn bytes(self) -> usize {
        match self {
            Elem::Bool | Elem::U8 | Elem::I8 => 1,
            Elem::I16 => 2,
            Elem::I32 | Elem::F32 => 4,
            Elem::I64 | Elem::F64 => 8,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Elem::Bool => "bool",
            Elem::U8 => "u8",
            Elem::I8 => "i8",
            Elem::I16 => "i16",
            Elem::I32 => "i32",
            Elem::I64 => "i64",
            Elem::F32 => "f32",
            Elem::F64 => "f64",
        }
    }

    /// Bytes of a tensor of that shape; an error where a computer could not address them.
    pub(super) fn size_of(self, shape: &[usize]) -> Result<usize, String> {
        shape
            .iter()
            .try_fold(self.bytes(), |n, d| n.checked_mul(*d))
            .filter(|n| isize::try_from(*n).is_ok())
            .ok_or_else(|| {
                format!(
                    "its header promises {shape:?} elements of {}, more than memory can address",
                    self.name()
                )
            })
    }
}

/// A tensor from a file: row-major, little-endian, `data` of exactly the size of `shape`.
#[derive(Debug)]
pub(super) struct Array {
    pub(super) elem: Elem,
    pub(super) shape: Vec<usize>,
    pub(super) data: Vec<u8>,
}
