//! Description of the tensor in a data file, for all formats.

use super::bytes::Elements;
use safetensors::Dtype;

/// Element type in a file. Wider than the program's [`meshwright_plan::DType`]: files have types that programs lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Elem {
    Bool,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    BF16,
    F32,
    F64,
}

impl Elem {
    /// The type for a dtype of safetensors; `None` if no program has such elements.
    pub(crate) fn of(dtype: Dtype) -> Option<Elem> {
        Some(match dtype {
            Dtype::BOOL => Elem::Bool,
            Dtype::U8 => Elem::U8,
            Dtype::I8 => Elem::I8,
            Dtype::U16 => Elem::U16,
            Dtype::I16 => Elem::I16,
            Dtype::U32 => Elem::U32,
            Dtype::I32 => Elem::I32,
            Dtype::U64 => Elem::U64,
            Dtype::I64 => Elem::I64,
            Dtype::F16 => Elem::F16,
            Dtype::BF16 => Elem::BF16,
            Dtype::F32 => Elem::F32,
            Dtype::F64 => Elem::F64,
            _ => return None,
        })
    }

    pub(crate) fn bytes(self) -> usize {
        match self {
            Elem::Bool | Elem::U8 | Elem::I8 => 1,
            Elem::U16 | Elem::I16 | Elem::F16 | Elem::BF16 => 2,
            Elem::U32 | Elem::I32 | Elem::F32 => 4,
            Elem::U64 | Elem::I64 | Elem::F64 => 8,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Elem::Bool => "bool",
            Elem::U8 => "u8",
            Elem::I8 => "i8",
            Elem::U16 => "u16",
            Elem::I16 => "i16",
            Elem::U32 => "u32",
            Elem::I32 => "i32",
            Elem::U64 => "u64",
            Elem::I64 => "i64",
            Elem::F16 => "f16",
            Elem::BF16 => "bf16",
            Elem::F32 => "f32",
            Elem::F64 => "f64",
        }
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(self, Elem::F16 | Elem::BF16 | Elem::F32 | Elem::F64)
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

/// How the elements of a tensor lie in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) elem: Elem,
    pub(crate) big_endian: bool,
    /// The first dim varies fastest, not the last.
    pub(crate) fortran: bool,
    /// At least one dim: the first counts records.
    pub(crate) shape: Vec<usize>,
}

impl Header {
    /// Little-endian and row-major.
    pub(crate) fn plain(elem: Elem, shape: Vec<usize>) -> Header {
        Header { elem, big_endian: false, fortran: false, shape }
    }
}

/// A tensor in a file, of which only the header has been read. The file has exactly the bytes that the header promises, as
/// far as that can be known without reading them.
pub(crate) struct TensorFile {
    pub(crate) header: Header,
    pub(crate) elements: Elements,
}

/// `the tensors `a`, `b`, …`, at most eight of them.
pub(crate) fn list(what: &str, names: &[&str]) -> String {
    const MOST: usize = 8;
    let shown = names.iter().take(MOST).map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => format!("no {what}"),
        n if n > MOST => format!("the {n} {what} {shown}, …"),
        _ => format!("the {what} {shown}"),
    }
}
