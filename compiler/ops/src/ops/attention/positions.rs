//! The positions of which the functions of an attention are made, as in a causal mask, and others in their place.

use super::{Attention, AttentionForm, AttentionGrad, AttentionPass, Body};
use crate::{Kind, Op, Source};
use meshwright_plan::{Dim, Dims};
use std::sync::Arc;

impl AttentionForm {
    /// Dims of whose positions its functions are made.
    pub(super) fn ordered(&self, table: &Dims) -> Vec<Dim> {
        let sources = self.score.sources().chain(self.weight.sources());
        // Random values are those of positions, in whatever order these are.
        let sources = sources.filter(|op| op.kind() != Kind::Rematerializable(Source::Random));
        sources.flat_map(|op| op.infer(&[], table).map_or(vec![], |ty| op.ordered(&[], &ty, table))).collect()
    }
}

/// An op of attention in which others stand for the positions and random values that its functions are made of; `None` of what is
/// none.
pub fn replaced_in(op: &dyn Op, other: &dyn Fn(&dyn Op) -> Option<Body>) -> Option<Arc<dyn Op>> {
    let changed = |form: &AttentionForm| {
        let (score, weight) = (form.score.replaced(other), form.weight.replaced(other));
        Arc::new(AttentionForm { score, weight, ..form.clone() })
    };
    let any = op.as_any();
    if let Some(op) = any.downcast_ref::<Attention>() {
        Some(Arc::new(Attention(changed(&op.0))))
    } else if let Some(op) = any.downcast_ref::<AttentionPass>() {
        Some(Arc::new(AttentionPass { form: changed(&op.form), part: op.part }))
    } else {
        let op = any.downcast_ref::<AttentionGrad>()?;
        Some(Arc::new(AttentionGrad { form: changed(&op.form), ..op.clone() }))
    }
}
