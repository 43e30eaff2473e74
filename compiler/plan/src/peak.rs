//! What a device holds at the moment when it holds most.

use crate::{BufId, Plan};
use std::collections::BTreeMap;

/// A buffer that is alive at the peak.
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
        let bytes = |b: BufId| self.buffer(b).largest_bytes(&self.mesh) as u64;
        let mut paths: BTreeMap<BufId, &str> = BTreeMap::new();
        for i in &self.program_inputs {
            paths.extend([Some(i.buf), i.next].into_iter().flatten().map(|b| (b, i.name.as_str())));
        }
        let mut alive: BTreeMap<BufId, u64> =
            self.program_inputs.iter().map(|i| (i.buf, bytes(i.buf))).collect();
        let mut live: u64 = alive.values().sum();
        let (mut most, mut at_most) = (live, alive.clone());
        for step in &self.steps {
            for (k, o) in step.writes.iter().enumerate() {
                let path = step.origin.get(k).or(step.origin.first()).map_or("", |p| p.path.as_str());
                paths.entry(o.buf).or_insert(path);
                alive.insert(o.buf, bytes(o.buf));
                live += bytes(o.buf);
            }
            // A result in the place of an operand takes nothing.
            for (from, _) in &step.aliases {
                live -= alive.remove(from).unwrap_or(0);
            }
            if live > most {
                (most, at_most) = (live, alive.clone());
            }
            for b in &step.free {
                live -= alive.remove(b).unwrap_or(0);
            }
        }
        let held = at_most.into_iter();
        let path = |b| paths.get(&b).copied().unwrap_or_default().to_string();
        let mut list: Vec<PeakBuffer> =
            held.map(|(buf, bytes)| PeakBuffer { path: path(buf), buf, bytes }).collect();
        list.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.path.cmp(&b.path)));
        list
    }
}
