//! Lines with which a step would move other bytes or hold others: what copies of parameters are kept, and when gradients are
//! reduced.

use crate::compile::Compiled;
use crate::layout::Layout;
use meshwright_diag::Span;
use meshwright_syntax::ast::{ReduceWhen, ScopeKind};
use serde::Serialize;

/// What a line of a layout would make of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AlternativeReport {
    /// The line.
    pub line: String,
    /// Bytes that a device gives to collectives with it.
    pub collective_bytes: u64,
    /// Most bytes that a device holds at once with it.
    pub peak_bytes: u64,
}

/// The lines that would make a difference to a training step under a layout, of those that trade bytes for memory; the step is
/// compiled for each.
pub fn alternatives(
    layout: &Layout,
    with: &Compiled,
    compile: impl Fn(&Layout) -> Option<Compiled>,
) -> Vec<AlternativeReport> {
    let rules = layout.effective().rules;
    let splits = |kinds: &[ScopeKind]| {
        rules.iter().any(|r| !r.axes.is_empty() && r.scope.kind.is_some_and(|k| kinds.contains(&k)))
    };
    let mut lines = Vec::new();
    if layout.keep.is_empty() && splits(&[ScopeKind::Params]) {
        let keep = vec![(None, Span::default())];
        lines.push(("keep params".to_string(), Layout { keep, ..layout.clone() }));
    }
    let split = splits(&[ScopeKind::Params, ScopeKind::Grads, ScopeKind::Moments]);
    let now = layout.reduce_when.map(|(when, _)| when);
    // Which of them is the default is up to the rule that splits each gradient.
    let whens = [ReduceWhen::Once, ReduceWhen::ByPart].into_iter().filter(|when| now != Some(*when));
    for when in whens.filter(|_| split && with.plan.microbatches.is_some()) {
        let reduce_when = Some((when, Span::default()));
        lines.push((format!("reduce grads {}", when.words()), Layout { reduce_when, ..layout.clone() }));
    }
    let now = &with.plan.summary;
    let differing = |(line, layout): (String, Layout)| {
        let then = compile(&layout)?.plan.summary;
        let (collective_bytes, peak_bytes) = (then.collective_bytes, then.peak_bytes);
        let differs = (collective_bytes, peak_bytes) != (now.collective_bytes, now.peak_bytes);
        differs.then_some(AlternativeReport { line, collective_bytes, peak_bytes })
    };
    lines.into_iter().filter_map(differing).collect()
}
