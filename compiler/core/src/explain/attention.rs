//! Which softmaxes of a program are attention, and how it is computed.

use crate::lowering::LineOf;
use crate::partition::Spmd;
use meshwright_ops::GraphNote;
use meshwright_plan::{Plan, Prim};
use meshwright_sorted::{SortedMap, SortedSet};
use serde::Serialize;
use std::fmt::Display;

/// A softmax of scores that weights a sum: attention, or nearly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AttentionReport {
    /// The path of the value: the sum, or the softmax if it is not an attention.
    pub value: String,
    /// Its line.
    pub line: u32,
    /// Whether it was recognized.
    pub recognized: bool,
    /// Whether it is computed without storing scores.
    pub tiled: bool,
    /// Why not.
    pub because: Option<String>,
    /// Why the kind of device that was asked for has no kernel for it, which then computes it by plain operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_kernel: Option<String>,
}

impl AttentionReport {
    /// How it is computed, in words.
    fn how(&self) -> String {
        let because = self.because.as_deref().unwrap_or("");
        match (self.recognized, self.tiled, &self.no_kernel) {
            (true, true, None) => "in one step, scores are not stored".into(),
            (true, true, Some(why)) => {
                format!("without a kernel, scores are stored some at a time, since {why}")
            }
            (true, false, _) => format!("by its equations, since {because}"),
            _ => format!("not recognized, since {because}"),
        }
    }

    /// Whether it is one step, for which there is a kernel.
    pub fn is_fast(&self) -> bool {
        self.tiled && self.no_kernel.is_none()
    }
}

/// A line, without its end, for all attention that the same is said of.
pub fn attention_lines<'a>(all: impl Iterator<Item = &'a AttentionReport>) -> Vec<String> {
    /// Most values that a line names.
    const NAMED: usize = 3;
    let mut said: Vec<(String, Vec<String>)> = Vec::new();
    for a in all {
        let (how, place) = (a.how(), format!("`{}` (line {})", a.value, a.line));
        match said.iter_mut().find(|s| s.0 == how) {
            Some(same) => same.1.push(place),
            None => said.push((how, vec![place])),
        }
    }
    let line = |(how, places): (String, Vec<String>)| {
        let more = places.len().saturating_sub(NAMED);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        format!("{how}: {}{more}", places[..places.len().min(NAMED)].join(", "))
    };
    said.into_iter().map(line).collect()
}

/// Notes why a device has no kernel for attention, known by step of the Plan.
pub fn note_no_kernels<Why: Display>(
    all: &mut [AttentionReport],
    plan: &Plan,
    steps: &SortedMap<usize, Why>,
) {
    for (step, why) in steps {
        let (origin, why) = (&plan.steps[*step].origin, why.to_string());
        for a in all.iter_mut() {
            let gradient = format!("d({})", a.value);
            if !origin.iter().any(|o| *o.path == *a.value || *o.path == *gradient) {
                continue;
            }
            match &mut a.no_kernel {
                Some(known) if known.contains(&why) => {}
                Some(known) => *known += &format!("; {why}"),
                none => *none = Some(why.clone()),
            }
        }
    }
}

/// The attention of a program, as any device sees it.
pub fn attention(spmd: &Spmd, plan: &Plan, line_of: &LineOf) -> Vec<AttentionReport> {
    let steps = plan.steps.iter().filter(|s| matches!(s.prim, Prim::Attention { .. }));
    let tiled: SortedSet<&str> = steps.flat_map(|s| &s.origin).map(|o| &*o.path).collect();
    let report = |n: &GraphNote| {
        let recognized = n.because.is_none();
        let tiled = recognized && tiled.contains(&*n.value);
        let split = "a dim along which queries and keys are multiplied, or one of the values alone, is split";
        let because = n.because.clone().or_else(|| (!tiled).then(|| split.to_string()));
        let (value, line) = (n.value.to_string(), line_of(n.span));
        AttentionReport { value, line, recognized, tiled, because, no_kernel: None }
    };
    spmd.step.graph.notes.iter().map(report).collect()
}
