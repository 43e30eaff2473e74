//! The Plan: one per-device program, the same for every rank but for its coordinates.

use crate::actions::PipelineSchedule;
use crate::random::Init;
use crate::{Arithmetic, Axis, BufId, Buffer, DType, Dim, Dims, Mesh, Operand, Placement, Prim, Step};
use serde::{Deserialize, Serialize};
use sha2::Digest;

/// Kinds of program inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgramInputKind {
    /// Read from the data for each step. The first dim counts examples. An input may occur as several leaves, in several
    /// placements.
    Input,
    /// A parameter or a state, by its path.
    Param,
    /// A state of the optimizer: `PATH/m`.
    OptimizerState,
    /// The number of the step as a float scalar, from 1.
    StepNumber,
}

/// A program input: a buffer that is bound before the step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProgramInput {
    /// Its kind.
    pub kind: ProgramInputKind,
    /// Input's name or parameter's path.
    pub name: String,
    /// Its buffer.
    pub buf: BufId,
    /// Its dims in declared order, which is the buffer's.
    pub dims: Vec<Dim>,
    /// First value of a parameter or state of the optimizer.
    pub init: Option<Init>,
    /// The buffer that holds its value for the next step, if the step changes it.
    pub next: Option<BufId>,
}

/// An input as the model declares it, for whoever reads data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InputDecl {
    /// Its name.
    pub name: String,
    /// Its dims; the first counts examples.
    pub dims: Vec<Dim>,
    /// Dtype in the program.
    pub dtype: DType,
    /// Values must be in `0..range`.
    pub range: Option<Dim>,
}

/// An output of a Plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutputDecl {
    /// Name: of the loss, the metric, the output, or of an accumulator of an evaluation.
    pub name: String,
    /// Its buffer; for losses and metrics a whole scalar.
    pub buf: BufId,
    /// Its dims, in the buffer's order.
    pub dims: Vec<Dim>,
}

/// Sizes of what the Plan does and holds on one device (the one with the largest shards), per step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes of this device's buffers in collectives: what goes in, or for an all-gather what comes out.
    pub collective_bytes: u64,
    /// Greatest sum of all buffers alive at once, parameters and optimizer state included.
    pub peak_bytes: u64,
    /// Bytes of parameters and states.
    pub parameter_bytes: u64,
    /// Bytes of the optimizer state.
    pub optimizer_state_bytes: u64,
    /// `peak_bytes` less parameters and optimizer state: what a step adds to what is there between steps.
    pub step_bytes: u64,
}

/// A batch that a step goes through in parts: in iteration `k` of the loop over `over`, which has `n` positions, element `i`
/// along `dim` is example `i * n + k` of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Microbatches {
    /// The dim that counts the examples of a part.
    pub dim: Dim,
    /// The dim of the loop.
    pub over: Dim,
}

/// A loop whose iterations are stages of a pipeline. A Plan read in order is one that runs as GPipe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pipeline {
    /// The dim of the loop.
    pub dim: Dim,
    /// The axes of the stages, major first.
    pub axes: Vec<Axis>,
    /// The order in which microbatches pass the stages.
    pub schedule: PipelineSchedule,
    /// Stages of a device.
    pub chunks: usize,
}

/// One program for every device of a mesh.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Version of this format.
    pub version: u32,
    /// Name of the model.
    pub model: String,
    /// `train` or `eval`.
    pub program: String,
    /// The mesh.
    pub mesh: Mesh,
    /// Names and sizes of the dims.
    pub dims: Dims,
    /// Its arithmetic.
    pub float: Arithmetic,
    /// The model's inputs.
    pub inputs: Vec<InputDecl>,
    /// The parts in which it goes through the batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub microbatches: Option<Microbatches>,
    /// The loop whose iterations are stages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<Pipeline>,
    /// All buffers.
    pub buffers: Vec<Buffer>,
    /// Program inputs, bound before the step.
    pub program_inputs: Vec<ProgramInput>,
    /// The steps, in order, on every device.
    pub steps: Vec<Step>,
    /// Outputs.
    pub outputs: Vec<OutputDecl>,
    /// Sizes.
    pub summary: Summary,
}

impl Plan {
    /// Version of the format that this code writes and reads.
    pub const VERSION: u32 = 19;

    /// The Plan as JSON: byte-identical for equal Plans.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads what [`Plan::to_json`] wrote. Compiled where it is called: the command calls it nowhere, and half of this
    /// crate's code would be that of its deserializers.
    #[inline]
    pub fn from_json(text: &str) -> Result<Plan, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// SHA-256 of the JSON, in hexadecimal. Ranks compare it before the first step.
    pub fn hash(&self) -> String {
        sha2::Sha256::digest(self.to_json()).iter().map(|b| format!("{b:02x}")).collect()
    }

    /// True for a training step: random values then depend on the seed of the run and the number of the step.
    pub fn trains(&self) -> bool {
        self.program == "train"
    }

    /// The step at which the collective that starts at step `start` ends: its wait, or that step itself if it is not
    /// async.
    pub fn end_of(&self, start: usize) -> usize {
        let Some(flight) = self.steps.get(start).and_then(|s| s.async_id) else { return start };
        let waits = |s: &Step| s.async_id == Some(flight) && matches!(s.prim, Prim::Wait);
        self.steps.iter().skip(start).position(waits).map_or(start, |i| start + i)
    }

    /// True if two buffers are stored alike: one can reuse the storage of the other.
    pub fn same_storage(&self, a: BufId, b: BufId) -> bool {
        let (a, b) = (self.buffer(a), self.buffer(b));
        a.dtype == b.dtype && a.extents == b.extents
    }

    /// The placement of the buffer of an operand.
    pub fn placement(&self, o: &Operand) -> Placement {
        let buffer = self.buffer(o.buf);
        let mut p = Placement { partial: buffer.partial.clone(), ..Placement::default() };
        for (d, e) in o.dims.iter().zip(&buffer.extents) {
            if !e.axes.is_empty() {
                p.splits.insert(*d, e.axes.clone());
            }
            p.windows.extend(e.window.map(|w| (*d, w)));
        }
        p
    }

    /// A buffer.
    pub fn buffer(&self, id: BufId) -> &Buffer {
        &self.buffers[id.0 as usize]
    }
}
