//! The device plan: the launches of one device, as data.

use crate::arena::Arena;
use crate::collective::Prepared;
use crate::collective::calls::TransportCall;
use crate::error::{NoAttentionKernel, NoFp8Matmul};
use crate::kernels::Kernel;
use crate::slot::{LaunchId, Slots, Table};
use crate::target::Target;
use crate::turns::{Carried, Turn};
use burn_ir::{GraphIr, OperationIr, TensorId, TensorIr};
use meshwright_plan::actions::Action;
use meshwright_plan::{BufId, DType, Dim, Group, IdVec, Pipeline, Plan, StoredElements};
use meshwright_sorted::{SortedMap, SortedSet};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The launches of a Plan on one device, in order, with the offsets of their results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DevicePlan {
    /// The target.
    pub target: Target,
    /// Rank of the device.
    pub rank: usize,
    /// All launches, including those in bodies of loops and around collectives.
    pub launches: IdVec<LaunchId, Launch>,
    /// The launches outside of loops, in order.
    pub body: Vec<LaunchId>,
    /// Storage of each tensor, by its id.
    pub slots: Slots,
    /// Constants, which are uploaded once.
    pub tables: Vec<Table>,
    /// Dtype of the values in each buffer of pairs of value and index.
    pub pairs: SortedMap<BufId, DType>,
    /// Buffers that are live at the end of a run.
    pub left: SortedSet<BufId>,
    /// Buffers of the Plan that fusion removes: no launch reads or writes them.
    pub never: SortedSet<BufId>,
    /// Bytes of an element of the buffers that are stored otherwise than in the Plan: 0 of those of `never` whose storage no
    /// other buffer takes, and of stacks of masks that are drawn again. Of a factor in FP8 there is one for its codes, and one
    /// for those of its transposed matrix.
    pub stored: StoredElements,
    /// Reasons why attention is computed by plain operations, by step.
    pub attention_without_kernel: SortedMap<usize, NoAttentionKernel>,
    /// Reasons why matmuls of factors that are rounded to FP8 run in `bf16`, by step; empty on CPUs.
    pub fp8_declined: SortedMap<usize, NoFp8Matmul>,
    /// Offsets of the results of kernels; empty on targets without an arena.
    pub arena: Arena,
}

/// One launch: a kernel, a graph of Burn, a collective, a wait or a loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    /// Kind of the launch.
    pub kind: LaunchKind,
    /// Step of the Plan, the last one if there are several. Fused steps run in the position of this step.
    pub step: usize,
    /// Steps that the launch computes. Empty if it only prepares tensors for the launch that computes the step.
    pub steps: Vec<usize>,
    /// Tensors that a kernel reads. The lifetime of those with the status `ReadWrite` ends here.
    pub reads: Vec<TensorIr>,
    /// Tensors that a kernel writes.
    pub writes: Vec<TensorIr>,
    /// Other tensors whose lifetime ends here.
    pub frees: Vec<TensorId>,
}

/// Kind of a launch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum LaunchKind {
    /// A kernel.
    Kernel(Kernel),
    /// Consecutive operations of Burn.
    Burn(BurnGraph),
    /// No work: only lifetimes end.
    Free,
    /// A blocking collective, or the start of an async one.
    Collective(Box<CollectiveLaunch>),
    /// The end of an async collective.
    Wait {
        /// The launch that started it.
        start: LaunchId,
        /// Launches that unpack the received tensors.
        unpack: Vec<LaunchId>,
    },
    /// A loop.
    Loop(Box<LoopLaunch>),
}

/// A graph of consecutive operations of Burn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BurnGraph {
    /// The operations.
    pub graph: GraphIr,
    /// Step of the Plan of each operation.
    pub steps: Vec<usize>,
}

impl BurnGraph {
    /// Adds an operation of a step.
    pub fn push(&mut self, operation: OperationIr, step: usize) {
        self.graph.operations.push(operation);
        self.steps.push(step);
    }
}

/// A loop over a dim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoopLaunch {
    /// The dim whose positions are iterated.
    pub dim: Dim,
    /// Whether the loop runs from the last position to the first.
    pub reverse: bool,
    /// The lowest position.
    pub from: usize,
    /// The positions along the dim that the device has.
    pub positions: Range<usize>,
    /// The iterated range of them.
    pub runs: Range<usize>,
    /// True of an end of a pipeline, a loop of one iteration that one stage has.
    pub of_one_stage: bool,
    /// Numbers that calls in the loop take on every device, where devices make different calls in it: stages of a pipeline.
    pub numbers: Option<u64>,
    /// Values that an iteration passes to the next.
    pub carries: Vec<Carried>,
    /// Launches of an iteration, in order.
    pub body: Vec<LaunchId>,
    /// Order of launches and positions, with lags unrolled.
    pub turns: Vec<Turn>,
    /// For each pass of a pipeline, where the launches of each chunk are in the body; empty where no schedule orders the
    /// iterations.
    pub passes: Vec<Vec<Range<usize>>>,
}

/// A collective with its packing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CollectiveLaunch {
    /// Kind, group and shards.
    pub prepared: Prepared,
    /// Id of the async collective; none if it is blocking.
    pub async_id: Option<u32>,
    /// Launches that pack the sent tensors.
    pub pack: Vec<LaunchId>,
    /// Calls of the transport.
    pub calls: Vec<TransportCall>,
    /// Launches that unpack the received tensors; empty if it is async.
    pub unpack: Vec<LaunchId>,
    /// The end of a link between two stages; none for a collective.
    pub link: Option<LinkEnd>,
}

/// An end of a link, over which a stage of a pipeline sends to the one behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkEnd {
    /// It sends, and does not wait for the receiver.
    Send,
    /// It receives: a wait for what this begins stands where it is read.
    Receive,
}

/// Most messages that a device has on their way when it goes on after a send.
pub fn most_sent(plan: &Plan) -> usize {
    plan.pipeline.as_ref().map_or(0, Pipeline::most_sent)
}

/// Most messages that a device has begun to receive before it reads them.
pub fn most_ahead(plan: &Plan) -> usize {
    plan.pipeline.as_ref().map_or(0, Pipeline::most_ahead)
}

impl LoopLaunch {
    /// Number of iterations on the device.
    pub fn times(&self) -> usize {
        self.positions.end - self.positions.start.max(self.from)
    }

    /// Launches of the body for an action of a pipeline, each with its microbatch: starts of receives; launches up to the last
    /// wait for a message; or the rest of the pass, sends included.
    pub fn turns_of(&self, action: &Action, launches: &IdVec<LaunchId, Launch>) -> Vec<(usize, usize)> {
        let (Action::Receive(run) | Action::Await(run) | Action::PassRun(run) | Action::Send(run)) = action;
        let own = self.passes.get(run.pass as usize).and_then(|chunks| chunks.get(run.chunk));
        let of = |launch: &usize| &launches[self.body[*launch]];
        let (ahead, own): (Vec<usize>, Vec<usize>) =
            own.cloned().into_iter().flatten().partition(|launch| of(launch).receives_ahead());
        let waits = |launch: &usize| match of(launch).kind {
            LaunchKind::Wait { start, .. } => launches[start].receives_ahead(),
            _ => false,
        };
        let (before, after) = own.split_at(own.iter().rposition(waits).map_or(0, |at| at + 1));
        let chosen = match action {
            Action::Receive(_) => &ahead,
            Action::Await(_) => before,
            Action::PassRun(_) => after,
            Action::Send(_) => &[],
        };
        chosen.iter().map(|launch| (*launch, run.micro)).collect()
    }
}

impl Launch {
    /// Whether it begins to receive a message over a link, for which a later launch waits.
    pub fn receives_ahead(&self) -> bool {
        matches!(&self.kind, LaunchKind::Collective(of) if of.link == Some(LinkEnd::Receive) && of.async_id.is_some())
    }

    /// Step of the first operation.
    fn begins(&self) -> usize {
        match &self.kind {
            LaunchKind::Burn(burn) => burn.steps.first().copied().unwrap_or(self.step),
            _ => self.step,
        }
    }
}

impl LaunchKind {
    /// Name in texts.
    pub fn name(&self) -> &str {
        match self {
            LaunchKind::Kernel(kernel) => kernel.name(),
            LaunchKind::Burn(_) => "burn",
            LaunchKind::Free => "free",
            LaunchKind::Collective(collective) if collective.link.is_some() => {
                if collective.link == Some(LinkEnd::Send) { "send" } else { "receive" }
            }
            LaunchKind::Collective(collective) => {
                collective.calls.first().map_or("collective", |c| c.kind.name())
            }
            LaunchKind::Wait { .. } => "wait",
            LaunchKind::Loop(_) => "loop",
        }
    }
}

impl DevicePlan {
    /// Steps that are complete after each launch. Packing around collectives is not counted.
    pub fn done_after(&self) -> SortedMap<LaunchId, Vec<usize>> {
        let loops = self.launches.iter().filter_map(|launch| match &launch.kind {
            LaunchKind::Loop(of) => Some(&of.body),
            _ => None,
        });
        let computes = |id: &LaunchId| {
            matches!(self.launches[*id].kind, LaunchKind::Kernel(_) | LaunchKind::Burn(_) | LaunchKind::Free)
        };
        let mut found = SortedMap::new();
        for body in loops.chain([&self.body]) {
            let mut done: Vec<usize> = vec![];
            for (at, id) in body.iter().enumerate().filter(|(_, id)| computes(id)) {
                done.extend(&self.launches[*id].steps);
                let next = body.get(at + 1).filter(|next| computes(next));
                if next.is_none_or(|next| self.launches[*next].begins() != self.launches[*id].step) {
                    found.insert(*id, std::mem::take(&mut done));
                }
            }
        }
        found
    }

    /// The links over which it sends or receives, each once.
    pub fn links(&self) -> Vec<Group> {
        let links = self.launches.iter().filter_map(|launch| match &launch.kind {
            LaunchKind::Collective(of) if of.link.is_some() => Some(&of.prepared.group),
            _ => None,
        });
        links.map(|link| (link.ranks(), link)).collect::<SortedMap<_, _>>().into_values().cloned().collect()
    }

    /// Nested launches: the packing of a collective, or the body of a loop.
    pub fn inner(&self, launch: &Launch) -> impl Iterator<Item = LaunchId> + use<'_> {
        let lists: [&[LaunchId]; 2] = match &launch.kind {
            LaunchKind::Collective(c) => [&c.pack, &c.unpack],
            LaunchKind::Wait { unpack, .. } => [unpack, &[]],
            LaunchKind::Loop(of) => [&of.body, &[]],
            LaunchKind::Kernel(_) | LaunchKind::Burn(_) | LaunchKind::Free => [&[], &[]],
        };
        lists.concat().into_iter()
    }
}
