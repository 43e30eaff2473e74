//! Attention over some of the keys, which continues that over others: the state of earlier turns counts like one more
//! tile of keys.

use super::super::lower::{Lower, Named};
use super::{Scores, Whole};
use crate::error::LoweringError;
use crate::lowering::graph::Val;
use crate::lowering::local::Local;
use crate::lowering::ops::Binary;
use burn_ir::FloatOperationIr as FloatOp;
use meshwright_plan::{AttentionPart, DType};

/// The state of earlier turns, with the dims of the scores except those of the keys.
#[derive(Clone, Copy)]
pub(super) struct Before {
    sum: Val,
    /// Factor from sums under the earlier maximum to sums under this one.
    factor: Val,
}

impl Lower<'_> {
    /// The maximum so far, the offset of exponents, and the state of earlier turns. The maximum of a row without keys
    /// may be `-inf`, which is no offset.
    pub(super) fn turn(&mut self, s: &Scores<'_>, own: Val) -> (Val, Val, Option<Before>) {
        if !s.whole.goes_on() {
            return (own, own, None);
        }
        let Some([max, sum, _]) = s.whole.spec.state(s.whole.parts) else {
            return (own, self.shift(own), None);
        };
        let (before, sum) = (self.beside_scores(s, max), self.beside_scores(s, sum));
        let max = self.extreme(true, own, before, DType::F32);
        let shift = self.shift(max);
        let less = self.graph.sub(before, shift);
        let factor = self.graph.float(FloatOp::Exp, less);
        (max, shift, Some(Before { sum, factor }))
    }

    fn shift(&mut self, max: Val) -> Val {
        let none = self.graph.scalar(Binary::Eq, max, f64::NEG_INFINITY);
        self.graph.fill(max, none, 0.0)
    }

    /// A sum of weights with that of earlier turns.
    pub(super) fn with_sum(&mut self, s: &Scores<'_>, sum: Named, before: Option<Before>) -> Named {
        let Some(before) = before else { return sum };
        let scaled = self.graph.mul(before.sum, before.factor);
        let scaled = self.without_keys(s, scaled);
        Named { val: self.graph.add(sum.val, scaled.val), dims: sum.dims }
    }

    /// Sums of values, with those of earlier turns.
    pub(super) fn with_values(
        &mut self,
        s: &Scores<'_>,
        sums: Val,
        out: &Local,
        before: Option<Before>,
    ) -> Val {
        let Some((before, [_, _, at])) = before.zip(s.whole.spec.state(s.whole.parts)) else { return sums };
        let values = self.tile_of(s, at);
        let values = self.align(&values, &out.dims);
        let values = self.wide(values);
        let factor = self.without_keys(s, before.factor);
        let factor = self.align(&factor, &out.dims);
        let values = self.graph.mul(values, factor);
        self.graph.add(sums, values)
    }

    /// The results without keys: the state of earlier turns.
    pub(super) fn turn_of_no_keys(
        &mut self,
        whole: &Whole<'_>,
        [max, sum, values]: [usize; 3],
    ) -> Result<(), LoweringError> {
        for (part, out) in whole.parts.iter().zip(&whole.writes).filter(|(_, o)| o.elements() > 0) {
            let from = match part {
                AttentionPart::Max => max,
                AttentionPart::Sum => sum,
                _ => values,
            };
            let mut read = self.read(&whole.reads[from]);
            if *part == AttentionPart::Result {
                let sum = self.read(&whole.reads[sum]);
                let sum = self.align(&sum, &read.dims);
                let scale = self.graph.float(FloatOp::Recip, sum);
                read.val = self.graph.mul(read.val, scale);
            }
            self.write(&read, out);
        }
        Ok(())
    }
}

impl Whole<'_> {
    /// Whether it is one of several turns over keys, or may be.
    pub(super) fn goes_on(&self) -> bool {
        let has = |part| self.parts.contains(&part);
        self.spec.continues || has(AttentionPart::Max) && has(AttentionPart::Values)
    }
}
