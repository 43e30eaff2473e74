//! What a device holds at a step, and at the moment when it holds most.

use crate::memory::{ByKind, Lifetime, MemoryKind, Residency, held_on, lifetimes, paths, residency};
use crate::{BufId, DeviceBlocks, PeakMemory, Plan, StoredElements};

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

/// The moment at which a device holds most.
#[derive(Clone, Debug)]
pub(crate) struct Peak<'p> {
    /// Bytes of all buffers.
    pub bytes: u64,
    /// The step.
    pub step: usize,
    /// The device: of the stages of a pipeline the one that holds most.
    pub on: DeviceBlocks<'p>,
}

/// The moment at which devices hold most of the buffers that they make, the first of several.
pub(crate) fn peak<'p>(plan: &'p Plan, held: &[Lifetime], stored: &StoredElements) -> Option<Peak<'p>> {
    let mut found: Option<Peak<'p>> = None;
    for on in plan.device_blocks() {
        let (bytes, step) = peak_on(&on, plan.steps.len(), held, stored);
        if found.as_ref().is_none_or(|p| p.bytes < bytes) {
            found = Some(Peak { bytes, step, on });
        }
    }
    found
}

/// Most bytes on a device, and the step at which it holds them.
pub(crate) fn peak_on(
    on: &DeviceBlocks<'_>,
    steps: usize,
    held: &[Lifetime],
    stored: &StoredElements,
) -> (u64, usize) {
    // What comes and goes with each step.
    let (mut comes, mut goes) = (vec![0u64; steps + 1], vec![0u64; steps + 1]);
    for (_, life, bytes) in all_held(on, held, stored) {
        comes[life.begin] += bytes;
        goes[life.end] += bytes;
    }
    let (mut live, mut most, mut peak) = (0, 0, 0);
    for step in 0..steps.max(1) {
        live = live + comes[step] - goes[step];
        if live > most {
            (most, peak) = (live, step);
        }
    }
    (most, peak)
}

/// The lifetimes of buffers where a device stores some otherwise: these take no storage of an operand, which ends after the step.
fn lives(plan: &Plan, mut planned: Vec<Lifetime>, stored: &StoredElements) -> Vec<Lifetime> {
    for (at, step) in plan.steps.iter().enumerate() {
        for (from, to) in &step.aliases {
            let end = &mut planned[from.0 as usize].end;
            if *end == at && stored.get(to).is_some_and(|each| *each > 0) {
                *end = at + 1;
            }
        }
    }
    planned
}

/// What a device holds, with its bytes: buffers that it makes, then messages between stages.
fn all_held<'a>(
    on: &'a DeviceBlocks<'_>,
    held: &'a [Lifetime],
    stored: &'a StoredElements,
) -> impl Iterator<Item = (BufId, Lifetime, u64)> + 'a {
    let buffers = held.iter().enumerate().map(|(i, life)| (BufId(i as u32), *life));
    let buffers = buffers.filter(|(_, life)| life.begin < life.end);
    let (begin, end) = on.passes();
    let messages = on.messages().iter().map(move |(buf, bytes)| (*buf, Lifetime { begin, end }, *bytes));
    buffers.map(|(buf, life)| (buf, life, on.stored_bytes(buf, stored))).chain(messages)
}

impl Plan {
    /// The buffers that are alive when most bytes are, largest first: their sum is `peak_bytes` of the summary.
    pub fn at_peak(&self) -> Vec<PeakBuffer> {
        let held = lifetimes(self);
        peak(self, &held, &StoredElements::new()).map_or_else(Vec::new, |p| self.alive(&held, p.step, &p.on))
    }

    /// `peak_bytes` where a device stores some buffers otherwise.
    pub fn peak_stored(&self, stored: &StoredElements) -> u64 {
        peak(self, &lives(self, lifetimes(self), stored), stored).map_or(0, |p| p.bytes)
    }

    /// The device that holds most at once: of the stages of a pipeline that of one.
    pub fn fullest(&self) -> DeviceBlocks<'_> {
        let found = peak(self, &lifetimes(self), &StoredElements::new());
        found.map_or_else(|| DeviceBlocks::largest(self), |p| p.on)
    }

    /// The most bytes that a device holds at once, if it stores some buffers otherwise.
    pub fn peak_on(&self, on: &DeviceBlocks<'_>, stored: &StoredElements) -> u64 {
        peak_on(on, self.steps.len(), &lives(self, lifetimes(self), stored), stored).0
    }

    /// The buffers that are alive while a step runs, largest first.
    pub fn alive_at(&self, step: usize) -> Vec<PeakBuffer> {
        let held = lifetimes(self);
        peak(self, &held, &StoredElements::new()).map_or_else(Vec::new, |p| self.alive(&held, step, &p.on))
    }

    fn alive(&self, held: &[Lifetime], step: usize, on: &DeviceBlocks<'_>) -> Vec<PeakBuffer> {
        let paths = paths(self);
        let none = StoredElements::new();
        let alive = all_held(on, held, &none).filter(|(_, l, _)| (l.begin..l.end).contains(&step));
        let mut list: Vec<PeakBuffer> = alive
            .map(|(buf, _, bytes)| {
                let path = paths.get(&buf).copied().unwrap_or_default().to_string();
                PeakBuffer { path, buf, bytes }
            })
            .collect();
        list.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.path.cmp(&b.path)));
        list
    }
}

impl Plan {
    /// Memory of the device with the largest blocks at its peak, by use, if it stores some buffers otherwise.
    pub fn peak_memory(&self, stored: &StoredElements) -> PeakMemory {
        let kinds = peak_by_kind(self, &residency(self, &paths(self)), stored);
        let of = |kind: MemoryKind| kinds[kind as usize];
        PeakMemory {
            peak_bytes: kinds.iter().sum(),
            parameter_bytes: of(MemoryKind::Parameters),
            optimizer_state_bytes: of(MemoryKind::OptimizerState),
            working_copy_bytes: of(MemoryKind::WorkingCopies),
            gradient_bytes: of(MemoryKind::Gradients),
            residual_bytes: of(MemoryKind::Residuals),
            communication_bytes: of(MemoryKind::Communication),
            workspace_bytes: of(MemoryKind::Workspace) + of(MemoryKind::Inputs),
        }
    }
}

/// Bytes by kind during the step that holds most, the first of several, if a device stores some buffers otherwise. Their sum is
/// the Plan's [`Plan::peak_stored`].
pub fn peak_by_kind(plan: &Plan, held: &[Residency], stored: &StoredElements) -> ByKind {
    let planned = held.iter().map(|h| Lifetime { begin: h.begin, end: h.end }).collect();
    let lives = lives(plan, planned, stored);
    let mut sums = ByKind::default();
    let Some(peak) = peak(plan, &lives, stored) else { return sums };
    for (at, (buf, message, bytes)) in held_on(&peak.on, held).enumerate() {
        // Messages come after the buffers.
        let (life, bytes) = match lives.get(at) {
            Some(life) => (*life, peak.on.stored_bytes(buf, stored)),
            None => (Lifetime { begin: message.begin, end: message.end }, bytes),
        };
        if (life.begin..life.end).contains(&peak.step) {
            sums[message.kind as usize] += bytes;
        }
    }
    sums
}
