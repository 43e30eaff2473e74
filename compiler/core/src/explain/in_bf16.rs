//! Matmuls of factors in 8 bits that a GPU computes in `bf16`, and why.

use meshwright_plan::Plan;
use meshwright_sorted::SortedMap;
use serde::Serialize;
use std::fmt::Display;

/// A matmul of factors in 8 bits that a GPU computes in `bf16`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bf16MatmulReport {
    /// Its path.
    pub path: String,
    /// Line of the model file, 0 where there is none.
    pub line: u32,
    /// Why, in words.
    pub because: String,
}

/// The matmuls of these steps of a Plan.
pub fn in_bf16<Why: Display>(plan: &Plan, steps: &SortedMap<usize, Why>) -> Vec<Bf16MatmulReport> {
    let one = |(step, why): (&usize, &Why)| {
        let origin = plan.steps.get(*step).and_then(|s| s.origin.first());
        let (path, line) = origin.map_or((String::new(), 0), |o| (o.path.to_string(), o.line));
        Bf16MatmulReport { path, line, because: why.to_string() }
    };
    steps.iter().map(one).collect()
}

/// A line for each reason: the first matmul, and the number of others.
pub fn in_bf16_lines(all: &[Bf16MatmulReport]) -> Vec<String> {
    let mut reasons: Vec<(&Bf16MatmulReport, usize)> = vec![];
    for matmul in all {
        match reasons.iter_mut().find(|(first, _)| first.because == matmul.because) {
            Some((_, others)) => *others += 1,
            None => reasons.push((matmul, 0)),
        }
    }
    let one = |(first, others): &(&Bf16MatmulReport, usize)| {
        let line = if first.line > 0 { format!(" (line {})", first.line) } else { String::new() };
        let others = match others {
            0 => String::new(),
            1 => " and 1 other".into(),
            n => format!(" and {n} others"),
        };
        format!("`{}`{line}{others}: {}", first.path, first.because)
    };
    reasons.iter().map(one).collect()
}
