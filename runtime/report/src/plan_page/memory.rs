//! What a device holds, and from when to when: a row for each buffer, then for each message between stages. The curve of memory
//! is their sum.

use super::pools::TextPool;
use super::value_placement::PlacedTypes;
use meshwright_core::Compiled;
use meshwright_plan::{BufId, Dim, memory};
use meshwright_sorted::SortedMap;
use serde::{Serialize, Serializer};

/// A buffer that a device holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HeldBuffer {
    /// The path of its value, by its place among the texts.
    path: usize,
    /// By its place among the types.
    of: usize,
    held: memory::Residency,
    /// Bytes on the device that holds most.
    bytes: u64,
}

/// As a row of numbers: a Plan may have some ten thousand.
impl Serialize for HeldBuffer {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let memory::Residency { kind, begin, end } = self.held;
        (self.path, self.of, kind as u8, begin, end, self.bytes).serialize(s)
    }
}

/// All buffers of a Plan.
pub(super) fn held(
    compiled: &Compiled,
    types: &mut PlacedTypes<'_>,
    texts: &mut TextPool,
) -> Vec<HeldBuffer> {
    let plan = &compiled.plan;
    let paths = memory::paths(plan);
    let held = memory::residency(plan, &paths);
    // A buffer's dims have the names by which it is bound or written.
    let bound = plan.program_inputs.iter().map(|i| (i.buf, &*i.dims));
    let written = plan.steps.iter().flat_map(|s| &s.writes).map(|o| (o.buf, &*o.dims));
    let dims: SortedMap<BufId, &[Dim]> = bound.chain(written).collect();
    let on = plan.fullest();
    let row = |(buf, held, bytes): (BufId, memory::Residency, u64)| {
        let path = texts.at(paths.get(&buf).copied().unwrap_or_default());
        let of = types.of(buf, dims.get(&buf).copied().unwrap_or_default(), texts);
        HeldBuffer { path, of, held, bytes }
    };
    memory::held_on(&on, &held).map(row).collect()
}
