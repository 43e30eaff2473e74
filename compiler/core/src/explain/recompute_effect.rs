//! Effect of the paths of `recompute`: the difference to the same layout without them.

use crate::compile::Compiled;
use crate::layout::Layout;
use crate::passes::recompute::named;
use crate::step::step_graph::StepGraph;
use meshwright_plan::{CollectiveTotal, Plan, Prim, Step};
use meshwright_sorted::{SortedMap, SortedSet};
use serde::Serialize;
use std::sync::Arc;

/// Most values of all compilations without a path together. Beyond, all paths are reported together.
const MOST_VALUES: usize = 30_000;

/// Effect of a path of `recompute`: the difference to the same layout without it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecomputeReport {
    /// The path, or several joined by commas if their effect is reported together.
    pub path: String,
    /// Bytes that a device has less at its peak.
    pub saved_bytes: i64,
    /// Operations that it computes more.
    pub flops: u64,
    /// Steps of the Plan that run more often, by what they do, the most frequent first.
    pub ops: Vec<AddedOp>,
    /// Collectives that run more often.
    pub collectives: Vec<CollectiveTotal>,
}

/// A step that runs more often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AddedOp {
    /// The primitive.
    pub op: String,
    /// Additional runs in a step.
    pub count: u64,
}

/// Effect of each path of `recompute`: the step is compiled again without it. A path has no effect if it alone names no
/// value. If there would be too many values to compile, paths are reported together, by the step without all of them.
pub fn recomputed(
    step: &StepGraph,
    layout: &Layout,
    with: &Compiled,
    compile: impl Fn(&Layout) -> Option<Compiled>,
) -> Vec<RecomputeReport> {
    let named = named(&step.graph, &layout.recompute);
    let alone: SortedSet<usize> = named.values().filter(|by| by.len() == 1).map(|by| by[0]).collect();
    let without = |paths: &SortedSet<&Arc<str>>| {
        let mut less = layout.clone();
        less.recompute.retain(|p| !paths.contains(p));
        compile(&less)
    };
    let mut seen = SortedSet::new();
    let distinct = layout.recompute.iter().enumerate().filter(|(_, p)| seen.insert(*p));
    let together = alone.len().saturating_mul(step.graph.nodes.len()) > MOST_VALUES && alone.len() > 1;
    let (several, each): (Vec<_>, Vec<_>) = distinct.partition(|(i, _)| together && alone.contains(i));
    let mut out = Vec::new();
    if !several.is_empty() {
        let paths = several.iter().map(|(_, p)| &***p).collect::<Vec<_>>().join(", ");
        let of = several.into_iter().map(|p| p.1).collect();
        out.extend(without(&of).map(|less| difference(paths, with, &less)));
    }
    out.extend(each.into_iter().filter_map(|(i, path)| match alone.contains(&i) {
        true => Some(difference(path.to_string(), with, &without(&SortedSet::from([path]))?)),
        false => Some(RecomputeReport { path: path.to_string(), ..RecomputeReport::default() }),
    }));
    out
}

fn difference(path: String, with: &Compiled, without: &Compiled) -> RecomputeReport {
    let (more, less) = (&with.plan, &without.plan);
    let counts = |plan: &Plan| {
        let mut ops: SortedMap<&'static str, u64> = SortedMap::new();
        let computes = |s: &Step| s.computes() && !matches!(s.prim, Prim::Repeat { .. } | Prim::EndRepeat);
        for (step, times) in plan.steps.iter().zip(plan.times()).filter(|(s, _)| computes(s)) {
            *ops.entry(step.name()).or_default() += times;
        }
        ops
    };
    let before = counts(less);
    let grown = |(op, n): (&'static str, u64)| {
        let count = n.saturating_sub(before.get(op).copied().unwrap_or(0));
        (count > 0).then(|| AddedOp { op: op.into(), count })
    };
    let mut ops: Vec<AddedOp> = counts(more).into_iter().filter_map(grown).collect();
    ops.sort_by_key(|o| std::cmp::Reverse(o.count));
    let before = less.communication();
    let mut collectives = more.communication();
    for t in &mut collectives {
        if let Some(b) = before.iter().find(|b| b.op == t.op && b.axes == t.axes) {
            t.count = t.count.saturating_sub(b.count);
            t.bytes = t.bytes.saturating_sub(b.bytes);
        }
    }
    collectives.retain(|t| t.count > 0 || t.bytes > 0);
    RecomputeReport {
        path,
        saved_bytes: less.summary.step_bytes as i64 - more.summary.step_bytes as i64,
        flops: more.summary.flops.saturating_sub(less.summary.flops),
        ops,
        collectives,
    }
}
