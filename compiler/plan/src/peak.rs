//! What a device holds at a step, and at the moment when it holds most.

use crate::{BufId, Plan};
use std::collections::{BTreeMap, BTreeSet};

/// A buffer that is alive at a step, or at the peak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeakBuffer {
    /// The path of its value.
    pub path: String,
    /// The buffer.
    pub buf: BufId,
    /// Bytes on the device with the largest block.
    pub bytes: u64,
}

impl Plan {
    /// The buffers that are alive when most bytes are, largest first: their sum is `peak_bytes` of the summary.
    pub fn at_peak(&self) -> Vec<PeakBuffer> {
        // The moment first, and then what is alive in it.
        self.alive_in(self.peak_of(|_| true).1)
    }

    /// `peak_bytes` where a device never makes these buffers.
    pub fn peak_without(&self, absent: &BTreeSet<BufId>) -> u64 {
        self.peak_of(|b| !absent.contains(&b)).0
    }

    /// The most bytes of buffers of some kind that are alive at once, and in the last of how many steps.
    fn peak_of(&self, is_there: impl Fn(BufId) -> bool) -> (u64, usize) {
        let bytes = |b: BufId| if is_there(b) { self.buffer(b).largest_bytes(&self.mesh) as u64 } else { 0 };
        let mut live: u64 = self.program_inputs.iter().map(|i| bytes(i.buf)).sum();
        let (mut most, mut steps) = (live, 0);
        for (i, step) in self.steps.iter().enumerate() {
            live += step.writes.iter().map(|o| bytes(o.buf)).sum::<u64>();
            // A result in the place of an operand takes nothing.
            live -= step.aliases.iter().map(|(from, _)| bytes(*from)).sum::<u64>();
            if live > most {
                (most, steps) = (live, i + 1);
            }
            live -= step.free.iter().map(|b| bytes(*b)).sum::<u64>();
        }
        (most, steps)
    }

    /// The buffers that are alive while a step runs, largest first.
    pub fn alive_at(&self, step: usize) -> Vec<PeakBuffer> {
        self.alive_in(self.steps.len().min(step + 1))
    }

    /// The buffers that are alive in the last of so many steps, and before the first step for none.
    fn alive_in(&self, steps: usize) -> Vec<PeakBuffer> {
        let bytes = |b: BufId| self.buffer(b).largest_bytes(&self.mesh) as u64;
        let mut paths: BTreeMap<BufId, &str> = BTreeMap::new();
        for i in &self.program_inputs {
            paths.extend([Some(i.buf), i.next].into_iter().flatten().map(|b| (b, i.name.as_str())));
        }
        for step in &self.steps {
            for (k, o) in step.writes.iter().enumerate() {
                let path = step.origin.get(k).or(step.origin.first()).map_or("", |p| p.path.as_str());
                paths.entry(o.buf).or_insert(path);
            }
        }
        let mut alive: BTreeSet<BufId> = self.program_inputs.iter().map(|i| i.buf).collect();
        for (i, step) in self.steps[..steps].iter().enumerate() {
            alive.extend(step.writes.iter().map(|o| o.buf));
            let given = step.aliases.iter().map(|(from, _)| from);
            let freed = step.free.iter().filter(|_| i + 1 < steps);
            for b in given.chain(freed) {
                alive.remove(b);
            }
        }
        let path = |b| paths.get(&b).copied().unwrap_or_default().to_string();
        let mut list: Vec<PeakBuffer> =
            alive.into_iter().map(|buf| PeakBuffer { path: path(buf), buf, bytes: bytes(buf) }).collect();
        list.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.path.cmp(&b.path)));
        list
    }
}
