//! Graphs under construction: the values of a step with shapes and dtypes, and the operations that compute them.
//!
//! Operations are recorded in an order in which they can run. [`GraphBuilder::finish`] drops those that nobody needs, gives
//! every value an id, and marks last uses, so that storage is handed over where it ends.

use super::ops::base;
use burn_backend::{DType as BurnType, Shape};
use burn_ir::{
    BaseOperationIr, CustomOpIr, FloatOperationIr, GraphIr, MatmulOpIr, OperationIr, PermuteOpIr, ScalarIr,
    ShapeOpIr, TensorId, TensorIr, TensorStatus,
};
use meshwright_plan::BufId;

/// A value of the step that is lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Val(usize);

/// Where a tensor is kept between operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TensorSlot {
    /// A buffer of the Plan; of pairs in two parts the values.
    Buffer(BufId),
    /// The indices of a buffer of pairs in two parts.
    Indices(BufId),
    /// A constant table that is uploaded once.
    Table(usize),
    /// A result that no buffer of the Plan is.
    Temporary(u64),
    /// What a loop leaves of a position, in place of a buffer of the Plan with all positions.
    Residual(BufId, usize),
}

/// The kind of a slot is in the upper bits of its id.
const KIND_SHIFT: u32 = 40;
/// A position is in the lower bits of the rest.
const POSITION_BITS: u32 = 20;

impl TensorSlot {
    /// The position of what is kept is below it, and the number of its buffer too.
    pub(crate) const POSITIONS: usize = 1 << POSITION_BITS;

    /// Its id in a graph.
    pub(crate) fn id(self) -> TensorId {
        let id = |kind: u64, n: u64| TensorId::new(kind << KIND_SHIFT | n);
        match self {
            TensorSlot::Buffer(b) => id(0, u64::from(b.0)),
            TensorSlot::Indices(b) => id(1, u64::from(b.0)),
            TensorSlot::Table(t) => id(2, t as u64),
            TensorSlot::Temporary(n) => id(3, n),
            TensorSlot::Residual(b, position) => id(4, u64::from(b.0) << POSITION_BITS | position as u64),
        }
    }

    /// The slot of an id.
    pub(crate) fn of(id: TensorId) -> TensorSlot {
        let n = id.value() & ((1 << KIND_SHIFT) - 1);
        match id.value() >> KIND_SHIFT {
            0 => TensorSlot::Buffer(BufId(n as u32)),
            1 => TensorSlot::Indices(BufId(n as u32)),
            2 => TensorSlot::Table(n as usize),
            3 => TensorSlot::Temporary(n),
            _ => TensorSlot::Residual(BufId((n >> POSITION_BITS) as u32), n as usize & (Self::POSITIONS - 1)),
        }
    }

    /// A use of its tensor in a graph.
    pub(crate) fn tensor(self, shape: &[usize], dtype: BurnType, status: TensorStatus) -> TensorIr {
        TensorIr { id: self.id(), shape: Shape::from(shape.to_vec()), status, dtype }
    }
}

/// Buffers by number, the rest with a letter: `b7`, `i7` (indices), `k0` (constants), `t12`.
impl std::fmt::Display for TensorSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TensorSlot::Buffer(b) => write!(f, "b{}", b.0),
            TensorSlot::Indices(b) => write!(f, "i{}", b.0),
            TensorSlot::Table(t) => write!(f, "k{t}"),
            TensorSlot::Temporary(n) => write!(f, "t{n}"),
            TensorSlot::Residual(b, position) => write!(f, "b{}[{position}]", b.0),
        }
    }
}

/// A constant table of integers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) shape: Vec<usize>,
    pub(crate) elements: Vec<i32>,
}

/// What differs among backends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capabilities {
    /// How truth values are stored within a step.
    pub(crate) boolean: BurnType,
    /// Whether all matrix products are to be the backend's own operation, in place of Burn's.
    pub(crate) own_matmul: bool,
    /// Whether kernels of our own multiply half types on tensor cores.
    #[cfg(feature = "cuda")]
    pub(crate) tensor_cores: bool,
    /// Whether products do more in the same kernel.
    #[cfg(feature = "cuda")]
    pub(crate) epilogues: bool,
    /// Whether there are kernels of our own whose units wait for each other, for folds and whatever is not element-wise.
    #[cfg(feature = "cuda")]
    pub(crate) own_kernels: bool,
    /// Whether there are kernels for element-wise steps.
    #[cfg(any(feature = "cuda", feature = "cubecl-cpu"))]
    pub(crate) own_maps: bool,
    /// Whether kernels work on the memory of the host. They take empty tensors, and pairs in one part; storage goes back to
    /// the backend, so what an operation of Burn reads last is dropped by an operation of its own.
    pub(crate) host_kernels: bool,
    /// How many scores of an attention in plain operations there are at a time, about.
    pub(crate) scores_at_once: usize,
}

/// A straight-line stretch of operations.
pub(crate) struct Segment {
    /// The operations.
    pub(crate) graph: GraphIr,
    /// For each operation the step of the Plan that it belongs to.
    pub(crate) steps: Vec<usize>,
}

impl Segment {
    pub(crate) fn new(operations: Vec<(OperationIr, usize)>) -> Segment {
        let (operations, steps) = operations.into_iter().unzip();
        Segment { graph: GraphIr::new(operations), steps }
    }

    /// The operations of one step.
    pub(crate) fn of_step(operations: Vec<OperationIr>, step: usize) -> Segment {
        let steps = vec![step; operations.len()];
        Segment { graph: GraphIr::new(operations), steps }
    }
}

struct Value {
    shape: Vec<usize>,
    dtype: BurnType,
    /// Where it is kept.
    slot: Option<TensorSlot>,
    /// Whether it was stored, to outlive the step.
    stored: bool,
    /// Whether an operation of Burn makes it in this step: its storage is Burn's, or that of another value.
    of_burn: bool,
}

/// Writes an operation down, once it is known where its inputs and results are kept.
type WriteOperation = Box<dyn FnOnce(&[TensorIr], &[TensorIr]) -> OperationIr + Send>;

struct GraphNode {
    write: WriteOperation,
    /// Whether it is Burn's own, not a kernel.
    of_burn: bool,
    inputs: Vec<Val>,
    outs: Vec<Val>,
}

/// Operations of one step, and what outlives it.
pub(crate) struct GraphBuilder {
    values: Vec<Value>,
    nodes: Vec<GraphNode>,
    /// Tables of the whole program.
    pub(crate) tables: Vec<Table>,
    pub(crate) capabilities: Capabilities,
    temporaries: u64,
}

impl GraphBuilder {
    /// For a backend of these capabilities.
    pub(crate) fn new(capabilities: Capabilities) -> GraphBuilder {
        GraphBuilder { values: vec![], nodes: vec![], tables: vec![], capabilities, temporaries: 0 }
    }

    pub(crate) fn shape(&self, v: Val) -> &[usize] {
        &self.values[v.0].shape
    }

    pub(crate) fn dtype(&self, v: Val) -> BurnType {
        self.values[v.0].dtype
    }

    fn value(&mut self, shape: Vec<usize>, dtype: BurnType, slot: Option<TensorSlot>, of_burn: bool) -> Val {
        self.values.push(Value { shape, dtype, slot, stored: false, of_burn });
        Val(self.values.len() - 1)
    }

    /// What is stored there when the step begins.
    pub(crate) fn read(&mut self, slot: TensorSlot, shape: &[usize], dtype: BurnType) -> Val {
        let known = self.values.iter().position(|v| v.slot == Some(slot));
        known.map(Val).unwrap_or_else(|| self.value(shape.to_vec(), dtype, Some(slot), false))
    }

    /// A table of integers.
    pub(crate) fn table(&mut self, shape: &[usize], elements: Vec<i32>) -> Val {
        let table = Table { shape: shape.to_vec(), elements };
        let known = self.tables.iter().position(|t| *t == table);
        let at = known.unwrap_or_else(|| {
            self.tables.push(table);
            self.tables.len() - 1
        });
        self.read(TensorSlot::Table(at), shape, BurnType::I32)
    }

    /// An operation of Burn, written of its inputs and its result.
    pub(crate) fn node<const N: usize>(
        &mut self,
        inputs: [Val; N],
        shape: Vec<usize>,
        dtype: BurnType,
        write: impl FnOnce([TensorIr; N], TensorIr) -> OperationIr + Send + 'static,
    ) -> Val {
        self.node_of(inputs.to_vec(), shape, dtype, |inputs, out| {
            write(std::array::from_fn(|i| inputs[i].clone()), out)
        })
    }

    /// An operation of Burn with any number of inputs.
    pub(crate) fn node_of(
        &mut self,
        inputs: Vec<Val>,
        shape: Vec<usize>,
        dtype: BurnType,
        write: impl FnOnce(&[TensorIr], TensorIr) -> OperationIr + Send + 'static,
    ) -> Val {
        let out = self.value(shape, dtype, None, true);
        let write: WriteOperation = Box::new(|inputs, outs| write(inputs, outs[0].clone()));
        self.nodes.push(GraphNode { write, of_burn: true, inputs, outs: vec![out] });
        out
    }

    /// An operation of Burn with one input, whose result has the same shape and dtype.
    pub(crate) fn alike(
        &mut self,
        a: Val,
        write: impl FnOnce(TensorIr, TensorIr) -> OperationIr + Send + 'static,
    ) -> Val {
        let (shape, dtype) = (self.shape(a).to_vec(), self.dtype(a));
        self.node([a], shape, dtype, |[input], out| write(input, out))
    }

    /// A kernel of the backend, by name and number, with results of these shapes and dtypes.
    pub(crate) fn kernel(
        &mut self,
        (name, number): (&'static str, usize),
        inputs: Vec<Val>,
        outs: impl IntoIterator<Item = (Vec<usize>, BurnType)>,
    ) -> Vec<Val> {
        let outs: Vec<Val> =
            outs.into_iter().map(|(shape, dtype)| self.value(shape, dtype, None, false)).collect();
        let write: WriteOperation = Box::new(move |inputs, outs| {
            let number = vec![ScalarIr::UInt(number as u64)];
            OperationIr::Custom(CustomOpIr::with_scalars(name, inputs, outs, number))
        });
        self.nodes.push(GraphNode { write, of_burn: false, inputs, outs: outs.clone() });
        outs
    }

    pub(crate) fn reshape(&mut self, a: Val, shape: &[usize]) -> Val {
        if self.shape(a) == shape { a } else { self.reshaped(a, shape.to_vec()) }
    }

    fn reshaped(&mut self, a: Val, shape: Vec<usize>) -> Val {
        let dtype = self.dtype(a);
        self.node([a], shape, dtype, |[input], out| {
            base(input.dtype, BaseOperationIr::Reshape(ShapeOpIr { input, out }))
        })
    }

    pub(crate) fn permute(&mut self, a: Val, axes: &[usize]) -> Val {
        if axes.iter().copied().eq(0..axes.len()) {
            return a;
        }
        let shape = axes.iter().map(|i| self.shape(a)[*i]).collect();
        let (dtype, axes) = (self.dtype(a), axes.to_vec());
        self.node([a], shape, dtype, |[input], out| {
            base(input.dtype, BaseOperationIr::Permute(PermuteOpIr { input, out, axes }))
        })
    }

    /// `[.., rows, columns]` of `[.., rows, summed]` and `[.., summed, columns]`.
    pub(crate) fn matmul(&mut self, a: Val, b: Val) -> Val {
        let mut shape = self.shape(a).to_vec();
        let last = shape.len() - 1;
        shape[last] = self.shape(b)[last];
        let dtype = self.dtype(a);
        self.node([a, b], shape, dtype, move |[lhs, rhs], out| {
            OperationIr::Float(dtype, FloatOperationIr::Matmul(MatmulOpIr { lhs, rhs, out }))
        })
    }

    /// A slot that outlives the step, until it is read.
    pub(crate) fn fresh(&mut self) -> TensorSlot {
        self.temporaries += 1;
        TensorSlot::Temporary(self.temporaries)
    }

    /// Says where a value goes. One that is kept already is copied, or seen a second time.
    pub(crate) fn store(&mut self, v: Val, slot: TensorSlot) {
        let mut v = v;
        if self.values[v.0].slot.is_some() {
            v = self.reshaped(v, self.shape(v).to_vec());
        }
        let value = &mut self.values[v.0];
        (value.slot, value.stored) = (Some(slot), true);
    }

    /// The operations of the step, which ends `ending`.
    pub(crate) fn finish(&mut self, ending: &[TensorSlot]) -> Vec<OperationIr> {
        let (mut values, nodes) = (std::mem::take(&mut self.values), std::mem::take(&mut self.nodes));
        let mut needed: Vec<bool> = values.iter().map(|v| v.stored).collect();
        let mut kept = vec![];
        for node in nodes.into_iter().rev() {
            if node.outs.iter().any(|o| needed[o.0]) {
                node.inputs.iter().for_each(|i| needed[i.0] = true);
                kept.push(node);
            }
        }
        // What has no slot yet lives within the step.
        let mut within = vec![false; values.len()];
        for out in kept.iter().rev().flat_map(|n| &n.outs) {
            if values[out.0].slot.is_none() {
                values[out.0].slot = Some(self.fresh());
                within[out.0] = true;
            }
        }
        let slot = |v: Val| values[v.0].slot.unwrap_or(TensorSlot::Temporary(0));
        let tensor = |v: Val, status| slot(v).tensor(&values[v.0].shape, values[v.0].dtype, status);
        // Backwards: the first use that is met is the last.
        let mut used = vec![false; values.len()];
        let (mut operations, mut dropped) = (vec![], vec![]);
        for node in kept {
            let keeps_storage = self.capabilities.host_kernels && node.of_burn;
            let mut inputs: Vec<TensorIr> = Vec::with_capacity(node.inputs.len());
            for v in node.inputs.iter().rev() {
                let first_met = !std::mem::replace(&mut used[v.0], true);
                let mut ends = first_met && (within[v.0] || ending.contains(&slot(*v)));
                if ends && keeps_storage && !values[v.0].of_burn {
                    // After its views are gone.
                    dropped.push(slot(*v));
                    ends = false;
                }
                let status = if ends { TensorStatus::ReadWrite } else { TensorStatus::ReadOnly };
                inputs.push(tensor(*v, status));
            }
            inputs.reverse();
            let outs: Vec<TensorIr> = node.outs.iter().map(|o| tensor(*o, TensorStatus::NotInit)).collect();
            operations.push((node.write)(&inputs, &outs));
        }
        operations.reverse();
        let met = |s: &TensorSlot| used.iter().zip(&values).any(|(used, v)| *used && v.slot == Some(*s));
        let unread = ending.iter().filter(|s| !met(s)).copied();
        let drop_of =
            |s: TensorSlot| OperationIr::Drop(s.tensor(&[1], BurnType::F32, TensorStatus::ReadWrite));
        operations.extend(dropped.into_iter().chain(unread).map(drop_of));
        operations
    }
}
