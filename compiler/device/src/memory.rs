//! Memory of a device for a program.

use crate::launch::DevicePlan;
use meshwright_plan::{BufId, DeviceBlocks, PeakMemory, Plan};
use meshwright_sorted::SortedSet;

impl DevicePlan {
    /// Most bytes at once of a device with these blocks.
    pub fn peak_on(&self, plan: &Plan, on: &DeviceBlocks<'_>) -> u64 {
        plan.peak_on(on, &self.stored).max(self.reserved(plan, on))
    }

    /// Most bytes at once of the device that needs most.
    pub fn peak_bytes(&self, plan: &Plan) -> u64 {
        plan.peak_stored(&self.stored).max(self.reserved(plan, &plan.fullest()))
    }

    /// The same by use. Gaps of the arena, and what only a device plan has, such as random bits of attention, are workspace.
    pub fn peak_memory(&self, plan: &Plan) -> PeakMemory {
        let live = plan.peak_memory(&self.stored);
        let more = self.peak_bytes(plan).saturating_sub(live.peak_bytes);
        PeakMemory {
            peak_bytes: live.peak_bytes + more,
            workspace_bytes: live.workspace_bytes + more,
            ..live
        }
    }

    /// Bytes that are taken during a whole run: the arena, inputs of the program, and outputs, which outlive it. 0 without an
    /// arena.
    fn reserved(&self, plan: &Plan, on: &DeviceBlocks<'_>) -> u64 {
        if self.arena.bytes == 0 {
            return 0;
        }
        // A next value takes the storage of its input.
        let next: SortedSet<BufId> = plan.program_inputs.iter().filter_map(|i| i.next).collect();
        let outputs = plan.outputs.iter().map(|o| o.buf).filter(|b| !next.contains(b));
        let outside: SortedSet<BufId> = plan.program_inputs.iter().map(|i| i.buf).chain(outputs).collect();
        self.arena.bytes + outside.into_iter().map(|b| on.bytes(b)).sum::<u64>()
    }
}
