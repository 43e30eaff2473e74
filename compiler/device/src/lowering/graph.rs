//! Graphs under construction: the values of a step with shapes and dtypes, and the operations that compute them.
//!
//! Operations are recorded in an order in which they can run. [`GraphBuilder::finish`] drops dead ones, gives every
//! value an id, and marks last uses, so that storage is donated at the end of its lifetime.

use crate::kernels::Kernel;
use crate::lowering::ops::base;
use crate::slot::{Residual, Slots, StoredPositions, Table, TensorSlot};
use crate::target::Target;
use burn_backend::DType as BurnType;
use burn_ir::{
    BaseOperationIr, FloatOperationIr, MatmulOpIr, OperationIr, PermuteOpIr, ShapeOpIr, TensorIr,
    TensorStatus,
};
use meshwright_plan::Plan;
use meshwright_sorted::{SortedMap, SortedSet};

/// A value of the step that is lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Val(usize);

/// An operation of a lowered step.
#[derive(Debug)]
pub(crate) enum Operation {
    /// A kernel, with its operands and results.
    Kernel(Kernel, Vec<TensorIr>, Vec<TensorIr>),
    /// An operation of Burn.
    Burn(Box<OperationIr>),
    /// The end of a tensor.
    Free(TensorSlot),
}

struct Value {
    shape: Vec<usize>,
    dtype: BurnType,
    /// Its slot.
    slot: Option<TensorSlot>,
    /// Whether it was stored, and so outlives the step.
    stored: bool,
    /// Whether an operation of Burn in this step is its producer: its storage is Burn's, or that of another value.
    of_burn: bool,
}

/// Writes an operation down, once it is known where its inputs and results are kept.
type WriteOperation = Box<dyn FnOnce(&[TensorIr], &[TensorIr]) -> OperationIr + Send>;

struct GraphNode {
    what: NodeKind,
    inputs: Vec<Val>,
    outs: Vec<Val>,
}

enum NodeKind {
    Kernel(Kernel),
    Burn(WriteOperation),
}

/// Operations of one step, and its results.
pub(crate) struct GraphBuilder {
    values: Vec<Value>,
    /// The value of each slot.
    value_of: SortedMap<TensorSlot, Val>,
    nodes: Vec<GraphNode>,
    /// Tables of the whole program.
    pub tables: Vec<Table>,
    /// Slots of the whole program.
    pub slots: Slots,
    /// The step whose operations are recorded.
    pub step: usize,
    /// The target of the lowering.
    pub target: Target,
    temporaries: u64,
}

impl GraphBuilder {
    /// For a kind of device.
    pub(crate) fn new(plan: &Plan, target: Target) -> GraphBuilder {
        GraphBuilder {
            values: vec![],
            value_of: SortedMap::new(),
            nodes: vec![],
            tables: vec![],
            slots: Slots::new(plan),
            step: 0,
            target,
            temporaries: 0,
        }
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

    /// Value of a slot at the begin of the step.
    pub(crate) fn read(&mut self, slot: TensorSlot, shape: &[usize], dtype: BurnType) -> Val {
        if let Some(known) = self.value_of.get(&slot) {
            return *known;
        }
        let val = self.value(shape.to_vec(), dtype, Some(slot), false);
        self.value_of.insert(slot, val);
        val
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
        self.nodes.push(GraphNode { what: NodeKind::Burn(write), inputs, outs: vec![out] });
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

    /// A kernel with results of these shapes and dtypes.
    pub(crate) fn kernel(
        &mut self,
        kernel: impl Into<Kernel>,
        inputs: Vec<Val>,
        outs: impl IntoIterator<Item = (Vec<usize>, BurnType)>,
    ) -> Vec<Val> {
        let outs: Vec<Val> =
            outs.into_iter().map(|(shape, dtype)| self.value(shape, dtype, None, false)).collect();
        self.nodes.push(GraphNode { what: NodeKind::Kernel(kernel.into()), inputs, outs: outs.clone() });
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

    /// The values of a loop over `dim` from a position on, each in the slot of its position.
    pub(crate) fn residual(
        &mut self,
        over: Vec<StoredPositions>,
        slot: impl Fn(usize) -> TensorSlot,
    ) -> Residual {
        let all = over.iter().map(|of| of.count).product();
        Residual { over, tensors: (0..all).map(|at| self.slots.insert(slot(at))).collect() }
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
        self.value_of.entry(slot).or_insert(v);
    }

    /// The operations of the step, which ends `ending`.
    pub(crate) fn finish(&mut self, ending: &[TensorSlot]) -> Vec<Operation> {
        let (mut values, nodes) = (std::mem::take(&mut self.values), std::mem::take(&mut self.nodes));
        self.value_of.clear();
        let ends_here: SortedSet<TensorSlot> = ending.iter().copied().collect();
        let mut needed: Vec<bool> = values.iter().map(|v| v.stored).collect();
        let mut kept = vec![];
        for node in nodes.into_iter().rev() {
            // An operation without results has an effect.
            if node.outs.is_empty() || node.outs.iter().any(|o| needed[o.0]) {
                node.inputs.iter().for_each(|i| needed[i.0] = true);
                kept.push(node);
            }
        }
        // Values without a slot live within the step.
        let mut within = vec![false; values.len()];
        for out in kept.iter().rev().flat_map(|n| &n.outs) {
            if values[out.0].slot.is_none() {
                values[out.0].slot = Some(self.fresh());
                within[out.0] = true;
            }
        }
        let slot = |v: Val| values[v.0].slot.unwrap_or(TensorSlot::Temporary(0));
        let slots = &mut self.slots;
        let mut tensor =
            |v: Val, status| slots.tensor(slot(v), &values[v.0].shape, values[v.0].dtype, status);
        // Backwards: the first use that is met is the last.
        let mut used = vec![false; values.len()];
        let (mut operations, mut dropped) = (vec![], vec![]);
        for node in kept {
            let keeps_storage = self.target.host_kernels && matches!(node.what, NodeKind::Burn(_));
            let mut inputs: Vec<TensorIr> = Vec::with_capacity(node.inputs.len());
            for v in node.inputs.iter().rev() {
                let first_met = !std::mem::replace(&mut used[v.0], true);
                let mut ends = first_met && (within[v.0] || ends_here.contains(&slot(*v)));
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
            operations.push(match node.what {
                NodeKind::Kernel(kernel) => Operation::Kernel(kernel, inputs, outs),
                NodeKind::Burn(write) => Operation::Burn(Box::new(write(&inputs, &outs))),
            });
        }
        operations.reverse();
        let met: SortedSet<TensorSlot> =
            used.iter().zip(&values).filter(|(used, _)| **used).filter_map(|(_, v)| v.slot).collect();
        let unread = ending.iter().filter(|s| !met.contains(s)).copied();
        operations.extend(dropped.into_iter().chain(unread).map(Operation::Free));
        operations
    }
}
