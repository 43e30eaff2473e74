//! Classes of elements: finite, infinite or NaN.

use super::HostData;
use serde::{Deserialize, Serialize};

/// The worst class of some elements: finite, infinite or NaN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Finiteness {
    /// All are finite.
    #[default]
    Finite,
    /// Some are infinite.
    Infinite,
    /// Some are not numbers.
    NotANumber,
}

impl Finiteness {
    /// The worst class of a tensor's elements; for pairs, of their values.
    pub fn of(data: &HostData) -> Finiteness {
        fn worst<T: Copy>(elements: &[T], wide: impl Fn(T) -> f64) -> Finiteness {
            elements.iter().map(|x| of(wide(*x))).max().unwrap_or_default()
        }
        fn of(x: f64) -> Finiteness {
            match x {
                _ if x.is_nan() => Finiteness::NotANumber,
                _ if x.is_infinite() => Finiteness::Infinite,
                _ => Finiteness::Finite,
            }
        }
        match data {
            HostData::F32(v) => worst(v, f64::from),
            HostData::F64(v) => worst(v, |x| x),
            HostData::BF16(v) => worst(v, f64::from),
            HostData::F16(v) => worst(v, f64::from),
            HostData::PairF32(_) | HostData::PairF64(_) => worst(&data.to_f64(), |x| x),
            HostData::I32(_) | HostData::U8(_) | HostData::Bool(_) => Finiteness::Finite,
        }
    }
}
