//! What is measured.

use crate::CollectiveKind;
use crate::fold::can_fold;
use meshwright_plan::{DType, Monoid, Portion, Traffic};

/// The collectives that are measured: all that move something.
pub fn kinds() -> impl Iterator<Item = CollectiveKind> {
    CollectiveKind::ALL.into_iter().filter(|k| k.traffic().send != Portion::Nothing)
}

/// The dtypes that are measured.
pub const DTYPES: [DType; 6] = [DType::F64, DType::F32, DType::BF16, DType::F16, DType::I32, DType::U8];

/// The folds that are measured.
pub const MONOIDS: [Monoid; 3] = [Monoid::Sum, Monoid::Max, Monoid::Min];

/// One line of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BenchJob {
    /// Which collective, of [`kinds`].
    pub kind: CollectiveKind,
    /// How reductions fold.
    pub monoid: Monoid,
    /// Type of the elements: one of [`DTYPES`].
    pub dtype: DType,
    /// Size asked for, in bytes; rounded down to whole elements for every device, but at least one.
    pub bytes: usize,
    /// Calls before the timed ones.
    pub warmup: usize,
    /// Timed calls.
    pub iterations: usize,
    /// Calls after them in which every element is compared.
    pub checks: usize,
}

impl BenchJob {
    /// Elements of the greater buffer of a device.
    pub fn elements(&self, members: usize) -> usize {
        let n = self.bytes / self.dtype.bytes();
        let Traffic { send, receive, .. } = self.kind.traffic();
        match [send, receive].contains(&Portion::Pieces) {
            true => (n / members).max(1) * members,
            false => n.max(1),
        }
    }

    /// Why it cannot be measured, if so.
    pub fn problem(&self) -> Option<String> {
        if kinds().all(|k| k != self.kind) {
            return Some(format!("a {} has no size", self.kind));
        }
        if !DTYPES.contains(&self.dtype) || !MONOIDS.contains(&self.monoid) {
            return Some(format!("{} of {} is not measured", self.monoid, self.dtype));
        }
        if self.kind.folds() && !can_fold(self.monoid, self.dtype) {
            return Some(format!("there is no {} of {}", self.monoid, self.dtype));
        }
        None
    }
}
