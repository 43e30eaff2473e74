//! Elements of files as elements of the program, with a look at every value.

use crate::readers::array::Elem;
use half::{bf16, f16};
use meshwright_plan::DType;
use safetensors::Dtype;

/// How the elements of a file become those of an input, and which values it may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conversion {
    elem: Elem,
    big_endian: bool,
    to: DType,
    /// Integers are below this.
    below: Option<usize>,
    /// Floats are finite.
    finite: bool,
    ignored: Option<Ignored>,
}

/// What becomes of a number that stands for no value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Ignored {
    /// It is 0, as good as any other.
    Zero(i64),
    /// It is this position, past all others.
    Past(i64, i32),
    /// It is 0, and all others are 1.
    Mask(i64),
}

/// A value that an input cannot have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum BadValue {
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
    pub(crate) fn new(
        (elem, big_endian): (Elem, bool),
        to: DType,
        below: Option<usize>,
        finite: bool,
    ) -> Option<Conversion> {
        let fits = match to {
            DType::F32 | DType::F64 => elem.is_float(),
            DType::I32 | DType::U8 => !elem.is_float() && elem != Elem::Bool,
            DType::Bool => !elem.is_float(),
            _ => false,
        };
        let below = below.filter(|_| to.is_int());
        fits.then_some(Conversion { elem, big_endian, to, below, finite, ignored: None })
    }

    /// The same where a number stands for no value; `None` where the dtypes do not go together.
    pub(crate) fn ignoring(
        from: (Elem, bool),
        to: DType,
        below: Option<usize>,
        ignored: Ignored,
    ) -> Option<Conversion> {
        let mask = matches!(ignored, Ignored::Mask(_));
        let of = Self::new(from, if mask { DType::I32 } else { to }, below, false)?;
        Some(Conversion { to, below: of.below.filter(|_| !mask), ignored: Some(ignored), ..of })
    }

    /// Bytes of an element in the file.
    pub(crate) fn width(&self) -> usize {
        self.elem.bytes()
    }

    /// Converts whole elements. An error is the first bad value and its position.
    pub(crate) fn run(&self, from: &[u8], to: &mut [u8]) -> Result<(), (usize, BadValue)> {
        let same = match self.elem {
            _ if self.ignored.is_some() => false,
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
            Elem::F32 if self.finite => from.chunks_exact(4).fold(false, |bad, b| {
                bad | !f32::from_le_bytes(meshwright_files::tensor::array(b)).is_finite()
            }),
            Elem::F64 if self.finite => from.chunks_exact(8).fold(false, |bad, b| {
                bad | !f64::from_le_bytes(meshwright_files::tensor::array(b)).is_finite()
            }),
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
        if let Some(ignored) = self.ignored {
            let value = integer(self.elem, bytes);
            match ignored {
                Ignored::Mask(none) => {
                    write_truth(value != i128::from(none), self.to, to);
                    return Ok(());
                }
                Ignored::Zero(none) if value == i128::from(none) => {
                    to.fill(0);
                    return Ok(());
                }
                Ignored::Past(none, position) if value == i128::from(none) => {
                    to.copy_from_slice(&position.to_le_bytes());
                    return Ok(());
                }
                Ignored::Zero(_) | Ignored::Past(..) => {}
            }
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
                let same = if self.elem == Elem::F32 {
                    meshwright_files::tensor::array(bytes)
                } else {
                    narrow.to_le_bytes()
                };
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

/// Writes 1 or 0 in a dtype.
fn write_truth(truth: bool, dtype: DType, to: &mut [u8]) {
    match dtype {
        DType::F32 => to.copy_from_slice(&f32::from(u8::from(truth)).to_le_bytes()),
        DType::F64 => to.copy_from_slice(&f64::from(u8::from(truth)).to_le_bytes()),
        DType::I32 => to.copy_from_slice(&i32::from(truth).to_le_bytes()),
        _ => to[0] = u8::from(truth),
    }
}

/// Why a tensor of a file is no first value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unconverted {
    /// Why, as a clause.
    pub why: String,
    /// What to do.
    pub help: Option<&'static str>,
}

/// All elements of a tensor of a file, little-endian, as those of a parameter or a state; what is not finite is refused.
pub fn converted(dtype: Dtype, data: &[u8], to: DType) -> Result<Vec<u8>, Unconverted> {
    let kinds =
        || Unconverted { why: format!("it has elements of {dtype:?}, not {}", to.name()), help: None };
    let elem = Elem::of(dtype).ok_or_else(kinds)?;
    let conversion = Conversion::new((elem, false), to, None, true).ok_or_else(kinds)?;
    let mut out = vec![0; data.len() / elem.bytes() * to.bytes()];
    conversion.run(data, &mut out).map_err(|(at, bad)| {
        let cannot = |value: String| Unconverted {
            why: format!("its element {at} is {value}, which no {} can be", to.name()),
            help: None,
        };
        match bad {
            BadValue::Integer(v) | BadValue::Outside(v) => cannot(v.to_string()),
            BadValue::Float(v) => cannot(format!("{v:?}")),
            BadValue::NotFinite(v) => Unconverted {
                why: format!("its element {at} is {v}, and a first value is a finite number"),
                help: Some(
                    "its training diverged, or the file is damaged: take an earlier one, or fetch it again",
                ),
            },
        }
    })?;
    Ok(out)
}

/// The value of little-endian bytes.
fn integer(elem: Elem, bytes: &[u8]) -> i128 {
    use meshwright_files::tensor::array;
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
    use meshwright_files::tensor::array;
    match elem {
        Elem::F16 => f16::from_le_bytes(array(bytes)).to_f64(),
        Elem::BF16 => bf16::from_le_bytes(array(bytes)).to_f64(),
        Elem::F32 => f32::from_le_bytes(array(bytes)).into(),
        _ => f64::from_le_bytes(array(bytes)),
    }
}
