//! Costs of launches: bytes read and written, floating-point operations, and number of runs.

use crate::copies::{LaunchCopies, copies};
use crate::kernels::Kernel;
use crate::launch::{DevicePlan, Launch, LaunchKind};
use crate::slot::LaunchId;
use burn_ir::{BaseOperationIr as Base, OperationIr, TensorIr};
use meshwright_plan::Plan;
use meshwright_sorted::SortedMap;
use serde::Serialize;

/// Memory traffic and floating-point operations of a launch. A tensor counts once for each launch that reads or writes it,
/// regardless of caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LaunchCosts {
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Floating-point operations, of the device with the largest shards.
    pub flops: u64,
}

/// Costs of a device plan, each launch multiplied by its number of runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Kernels that are started, operations of Burn that compute included. Views do not count.
    pub kernels: u64,
    /// The part of `kernels` that are operations of Burn, and copies of what its views leave scattered.
    pub burn: u64,
    /// Collectives that are started.
    pub collectives: u64,
    /// Traffic and operations.
    #[serde(flatten)]
    pub traffic: LaunchCosts,
    /// Size of the arena in bytes; 0 on targets without one.
    pub arena_bytes: u64,
    /// Peak of the bytes of live buffers, without those that are fused away.
    pub peak_bytes: u64,
}

impl LaunchCosts {
    fn add(&mut self, other: LaunchCosts, times: u64) {
        self.read += other.read * times;
        self.written += other.written * times;
        self.flops += other.flops * times;
    }
}

fn bytes<'t>(tensors: impl IntoIterator<Item = &'t TensorIr>) -> u64 {
    let mut counted: Vec<&TensorIr> = vec![];
    for tensor in tensors {
        if !counted.iter().any(|other| other.id == tensor.id) {
            counted.push(tensor);
        }
    }
    counted.iter().map(|t| (t.shape.num_elements() * t.dtype.size()) as u64).sum()
}

/// Whether an operation of Burn is a view of its operand, or a drop: it moves no data.
pub fn is_view(operation: &OperationIr) -> bool {
    match operation {
        OperationIr::BaseFloat(op) | OperationIr::BaseInt(op) | OperationIr::BaseBool(op) => {
            matches!(op, Base::Reshape(_) | Base::Permute(_) | Base::Expand(_) | Base::Slice(_))
        }
        OperationIr::Drop(_) => true,
        _ => false,
    }
}

impl Launch {
    /// The tensors that a kernel reads. A matmul sums a factor as it multiplies it: the last operand is that factor once more.
    fn read_from_memory(&self, kernel: &Kernel) -> &[TensorIr] {
        match kernel {
            Kernel::MatmulEpilogue(call) if call.beside.summed().is_some() => {
                self.reads.split_last().map_or(&[], |(_, others)| others)
            }
            _ => &self.reads,
        }
    }

    /// Costs of one run, without copies ([`CostTable::of`]). For a collective only its packing and unpacking count, as launches
    /// of their own.
    pub fn traffic(&self, plan: &Plan) -> LaunchCosts {
        let flops = self.steps.iter().filter_map(|s| plan.steps.get(*s)).map(|s| s.flops(plan)).sum();
        let (read, written) = match &self.kind {
            // Views, moves of handles, and memory as it is.
            LaunchKind::Kernel(
                Kernel::IterationSlice(_) | Kernel::Store(_) | Kernel::Load { .. } | Kernel::Blank,
            ) => (0, 0),
            LaunchKind::Kernel(Kernel::IterationUpdate(_)) => {
                let value = bytes(self.reads.get(1));
                (value, value)
            }
            LaunchKind::Kernel(kernel) => (bytes(self.read_from_memory(kernel)), bytes(&self.writes)),
            LaunchKind::Burn(burn) => {
                let moved = || burn.graph.operations.iter().filter(|o| !is_view(o));
                (moved().map(|o| bytes(o.inputs())).sum(), moved().map(|o| bytes(o.outputs())).sum())
            }
            _ => (0, 0),
        };
        LaunchCosts { read, written, flops }
    }
}

/// The costs of each launch of a device plan: what its line shows, and what totals add up.
pub struct CostTable<'a> {
    device: &'a DevicePlan,
    plan: &'a Plan,
    copies: SortedMap<LaunchId, LaunchCopies>,
}

impl<'a> CostTable<'a> {
    /// Costs of one run of a launch, with the copies that it makes. A launch in place only writes what its value's launch writes.
    pub fn of(&self, id: LaunchId) -> LaunchCosts {
        if self.device.arena.in_place.contains(&id) {
            return LaunchCosts::default();
        }
        let mut costs = self.device.launches[id].traffic(self.plan);
        if let Some(made) = self.copies.get(&id) {
            costs.add(LaunchCosts { read: made.bytes, written: made.bytes, flops: 0 }, 1);
        }
        costs
    }

    fn add(&self, all: &mut Totals, ids: &[LaunchId], times: u64) {
        for id in ids {
            let launch = &self.device.launches[*id];
            let mut inner = times;
            let copies = self.copies.get(id).map_or(0, |made| made.kernels);
            (all.kernels, all.burn) = (all.kernels + times * copies, all.burn + times * copies);
            match &launch.kind {
                LaunchKind::Free | LaunchKind::Wait { .. } => {}
                LaunchKind::Kernel(_) if self.device.arena.in_place.contains(id) => {}
                LaunchKind::Kernel(kernel) => all.kernels += times * kernel.starts(),
                LaunchKind::Burn(burn) => {
                    let computes = burn.graph.operations.iter().filter(|o| !is_view(o)).count() as u64;
                    (all.kernels, all.burn) = (all.kernels + times * computes, all.burn + times * computes);
                }
                LaunchKind::Collective(_) => all.collectives += times,
                LaunchKind::Loop(of) => inner *= of.runs.len() as u64,
            }
            all.traffic.add(self.of(*id), times);
            self.add(all, &self.device.inner(launch).collect::<Vec<_>>(), inner);
        }
    }
}

impl DevicePlan {
    /// The costs of its launches.
    pub fn costs<'a>(&'a self, plan: &'a Plan) -> CostTable<'a> {
        CostTable { device: self, plan, copies: copies(self) }
    }

    /// Sum over all launches.
    pub fn totals(&self, plan: &Plan) -> Totals {
        let mut all =
            Totals { arena_bytes: self.arena.bytes, peak_bytes: self.peak_bytes(plan), ..Totals::default() };
        self.costs(plan).add(&mut all, &self.body, 1);
        all
    }
}
