//! Pairs of value and index in two parts, and how blocks are packed around collectives.

use crate::collective::blocked::Blocked;
use crate::collective::pack::PackedBlock;
use crate::lowering::graph::{GraphBuilder, Val};
use crate::lowering::local::Local;
use crate::lowering::ops::{Binary, Reduce};
use burn_backend::DType as BurnType;

impl GraphBuilder {
    /// The best pair at each position among the values and indices of all members, one after the other; NaN comes
    /// before all numbers, and the lowest index first among equals.
    pub(crate) fn fold_pairs(
        &mut self,
        greatest: bool,
        members: usize,
        [values, indices]: [Val; 2],
    ) -> [Val; 2] {
        let dtype = self.dtype(values);
        let n = self.shape(values)[0] / members;
        let [values, indices] = [values, indices].map(|v| self.reshape(v, &[members, n]));
        let x = if dtype == BurnType::U8 { self.cast(values, BurnType::I32) } else { values };
        let fold = if greatest { Reduce::Max } else { Reduce::Min };
        let (best, other) = if dtype.is_float() {
            let nan = self.is_nan(x);
            let y = self.fill(x, nan, if greatest { f64::INFINITY } else { f64::NEG_INFINITY });
            let best = self.reduce(fold, y, 0);
            let worse = self.binary(Binary::Ne, y, best);
            let number = self.not(nan);
            let some = self.cast(nan, BurnType::I32);
            let some = self.reduce(Reduce::Max, some, 0);
            let some = self.scalar(Binary::Ne, some, 0.0);
            let everywhere = self.expand(some, &[members, n]);
            let less = self.and(everywhere, number);
            (self.fill(best, some, f64::NAN), self.binary(Binary::Or, worse, less))
        } else {
            let best = self.reduce(fold, x, 0);
            (best, self.binary(Binary::Ne, x, best))
        };
        let key = self.fill(indices, other, f64::from(i32::MAX));
        let index = self.reduce(Reduce::Min, key, 0);
        [self.cast(best, dtype), index]
    }

    /// Blocks of some arrays, each with all its elements, one after the other in one dim: the first of each, then the second
    /// of each, and so on.
    pub(crate) fn pack_blocks(&mut self, arrays: &[Blocked<'_>]) -> Val {
        let mut parts = vec![];
        for turn in 0..arrays.iter().map(|a| a.ranges.len()).max().unwrap_or(0) {
            for a in arrays {
                let Some(block) = a.ranges.get(turn).filter(|b| !b.is_empty()) else { continue };
                let part = self.slice(a.val, a.axis, block.clone());
                let elements = self.shape(part).iter().product();
                parts.push(self.reshape(part, &[elements]));
            }
        }
        self.cat(parts, 0)
    }

    /// The blocks of an axis of an array of that shape, from their places in one dim.
    pub(crate) fn unpack_blocks(
        &mut self,
        packed: Val,
        local: &Local,
        axis: usize,
        blocks: &[PackedBlock],
    ) -> Vec<Val> {
        let around = local.elements() / local.shape[axis].max(1);
        let mut parts = vec![];
        for block in blocks.iter().filter(|b| !b.range.is_empty()) {
            let length = block.range.len();
            let part = self.slice(packed, 0, block.start..block.start + length * around);
            let mut shape = local.shape.clone();
            shape[axis] = length;
            parts.push(self.reshape(part, &shape));
        }
        parts
    }
}
