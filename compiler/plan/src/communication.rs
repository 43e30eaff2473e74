//! What a step gives to collectives. Whatever prints bytes of a step has them from here.

use crate::{Plan, Step};
use serde::{Deserialize, Serialize};

/// All collectives of one kind over the same axes in a step of a device: that with the largest shards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectiveTotal {
    /// `all_reduce` and so on.
    pub op: String,
    /// Axes of their groups, by name.
    pub axes: Vec<String>,
    /// How often one runs. What stands in a loop counts as often as it runs.
    pub count: u64,
    /// Bytes of all of them.
    pub bytes: u64,
}

impl Plan {
    /// What a step gives to collectives, by kind and axes, in the order in which these first occur.
    pub fn communication(&self) -> Vec<CollectiveTotal> {
        let mut totals: Vec<CollectiveTotal> = Vec::new();
        for (step, times) in self.steps.iter().zip(self.times()) {
            let Some(c) = step.collective() else { continue };
            let axes: Vec<&str> = c.axes().iter().map(|a| self.mesh.name(*a)).collect();
            let bytes = times.saturating_mul(self.bytes_at_once(step));
            match totals.iter_mut().find(|t| t.op == c.name() && t.axes == axes) {
                Some(t) => {
                    (t.count, t.bytes) = (t.count.saturating_add(times), t.bytes.saturating_add(bytes));
                }
                None => totals.push(CollectiveTotal {
                    op: c.name().into(),
                    axes: axes.into_iter().map(String::from).collect(),
                    count: times,
                    bytes,
                }),
            }
        }
        totals
    }

    /// Bytes that a device gives to a collective each time that it runs; 0 of other steps.
    fn bytes_at_once(&self, step: &Step) -> u64 {
        step.collective_bytes(self).iter().map(|b| *b as u64).sum()
    }
}
