//! Positions along several dims as positions along one: of an index for each dim, where together they lead.

use super::strided_walk::Walk;
use super::{Access, Along, KernelError, Slice};
use meshwright_plan::DType;

/// Prepared positions: `out[i] = sum over the dims of (index[i] - start) * stride`, in units of the least stride, and -1 where
/// this device does not hold one of the indices.
#[derive(Clone, Debug)]
pub struct JointPositions {
    parts: Vec<Part>,
    unit: usize,
    total: usize,
}

/// One of the dims.
#[derive(Clone, Debug)]
struct Part {
    walk: Walk,
    along: Along,
    /// Units from one position to the next.
    step: usize,
    reach: usize,
}

impl JointPositions {
    /// Prepares for indices over `shape`, each `I32`, with where it leads.
    ///
    /// # Errors
    /// If a stride is missing, an index is of another dtype, or strides are no multiples of the least one.
    pub fn new(shape: &[usize], parts: &[(Access, Along)]) -> Result<JointPositions, KernelError> {
        let unit = parts.iter().map(|(_, along)| along.stride).min().unwrap_or(1).max(1);
        let part = |(access, along): &(Access, Along)| {
            if access.dtype != DType::I32 {
                return Err(KernelError::DType { expected: DType::I32, found: access.dtype });
            }
            if along.stride % unit != 0 {
                return Err(KernelError::Unsupported("strides that have no common unit".into()));
            }
            let (walk, reach) = (Walk::new(shape, &[access])?, access.reach(shape));
            Ok(Part { walk, along: *along, step: along.stride / unit, reach })
        };
        let parts = parts.iter().map(part).collect::<Result<_, _>>()?;
        Ok(JointPositions { parts, unit, total: shape.iter().product() })
    }

    /// The dim that they are positions along.
    pub fn along(&self) -> Along {
        let held = |p: &Part| p.along.len > 0;
        let last: usize = self.parts.iter().map(|p| p.along.len.saturating_sub(1) * p.step).sum();
        Along { stride: self.unit, start: 0, len: if self.parts.iter().all(held) { last + 1 } else { 0 } }
    }

    /// The positions of indices.
    ///
    /// # Errors
    /// If there are fewer indices, or dtypes or lengths are not what was prepared for.
    pub fn run(&self, indices: &[Slice<'_>]) -> Result<Vec<i32>, KernelError> {
        let mut out = vec![0; self.total];
        for (part, index) in self.parts.iter().zip(indices) {
            super::check_in(index, DType::I32, part.reach)?;
            let Slice::I32(index) = index else { continue };
            let (inner, step) = (part.walk.inner(), part.walk.inner_stride(0));
            part.walk.each_row(0..part.walk.rows(), |row, [at]| {
                for (j, out) in out[row * inner..][..inner].iter_mut().enumerate() {
                    let local = i64::from(index[at + j * step]) - part.along.start as i64;
                    let held = *out >= 0 && (0..part.along.len as i64).contains(&local);
                    *out = if held { *out + local as i32 * part.step as i32 } else { -1 };
                }
            });
        }
        Ok(out)
    }
}
