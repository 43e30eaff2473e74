//! The names of launches, and of the tensors that they read and write.

use crate::error::KernelError;
use crate::iteration::Iteration;
use burn_backend::{DType as BurnType, Shape};
use burn_ir::{TensorId, TensorIr, TensorStatus};
use meshwright_plan::{ArenaId, BufId, Dim, Plan};
use meshwright_sorted::SortedMap;
use serde::{Deserialize, Serialize};

/// A launch of a device plan, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LaunchId(pub u32);

impl ArenaId for LaunchId {
    fn at(position: usize) -> Self {
        LaunchId(position as u32)
    }

    fn position(self) -> usize {
        self.0 as usize
    }
}

/// A constant table of integers. A device plan lists its tables, and the device uploads each once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// Extents.
    pub shape: Vec<usize>,
    /// Elements, row-major.
    pub elements: Vec<i32>,
}

/// Storage of a tensor between operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TensorSlot {
    /// A buffer of the Plan; of pairs in two parts the values.
    Buffer(BufId),
    /// The indices of a buffer of pairs in two parts.
    Indices(BufId),
    /// The transposed matrix of a buffer that is stored as FP8.
    Turned(BufId),
    /// A constant table that is uploaded once.
    Table(usize),
    /// A result that no buffer of the Plan is.
    Temporary(u64),
    /// The value of one position of a loop, in place of a stack of the Plan with all positions. The buffer names the stack.
    Residual(BufId, usize),
    /// Random bits that a step draws at one position of its loop, for a step of another loop.
    DrawnBits(usize, usize),
}

/// The slots of a device plan. The id of a tensor is the index of its slot; each slot is in the table once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Vec<TensorSlot>", try_from = "Vec<TensorSlot>")]
pub struct Slots {
    all: Vec<TensorSlot>,
    ids: SortedMap<TensorSlot, TensorId>,
}

impl Slots {
    /// The slots of all buffers of a Plan: a device is also given inputs that no launch reads.
    pub fn new(plan: &Plan) -> Slots {
        let mut slots = Slots::default();
        for (at, buffer) in plan.buffers.iter().enumerate() {
            let buf = BufId(at as u32);
            slots.insert(TensorSlot::Buffer(buf));
            if buffer.dtype.is_pair() {
                slots.insert(TensorSlot::Indices(buf));
            }
        }
        slots
    }

    /// The id of a slot, which is added if it is new.
    pub fn insert(&mut self, slot: TensorSlot) -> TensorId {
        *self.ids.entry(slot).or_insert_with(|| {
            self.all.push(slot);
            TensorId::new(self.all.len() as u64 - 1)
        })
    }

    /// A use of a tensor in a graph.
    pub fn tensor(
        &mut self,
        slot: TensorSlot,
        shape: &[usize],
        dtype: BurnType,
        status: TensorStatus,
    ) -> TensorIr {
        TensorIr { id: self.insert(slot), shape: Shape::from(shape.to_vec()), status, dtype }
    }

    /// All slots, each at the index that is its id.
    pub fn all(&self) -> &[TensorSlot] {
        &self.all
    }

    /// The slot of an id.
    pub fn get(&self, id: TensorId) -> Option<TensorSlot> {
        self.all.get(id.value() as usize).copied()
    }

    /// The slot of an id in texts.
    pub fn name(&self, id: TensorId) -> String {
        self.get(id).map_or_else(|| format!("unknown {}", id.value()), |slot| slot.to_string())
    }

    /// The id of a slot; none if no launch uses it.
    pub fn id(&self, slot: TensorSlot) -> Option<TensorId> {
        self.ids.get(&slot).copied()
    }

    /// The tensors of a buffer: its values, and its indices if it may have any.
    pub fn of_buffer(&self, buf: BufId) -> impl Iterator<Item = TensorId> + use<> {
        [TensorSlot::Buffer(buf), TensorSlot::Indices(buf)].map(|slot| self.id(slot)).into_iter().flatten()
    }

    /// The constant tables, by number.
    pub fn tables(&self) -> impl Iterator<Item = (usize, TensorId)> {
        self.ids.iter().filter_map(|(slot, id)| match slot {
            TensorSlot::Table(number) => Some((*number, *id)),
            _ => None,
        })
    }
}

impl From<Slots> for Vec<TensorSlot> {
    fn from(slots: Slots) -> Self {
        slots.all
    }
}

impl TryFrom<Vec<TensorSlot>> for Slots {
    type Error = String;

    /// # Errors
    /// If a slot is listed twice: it would have two ids.
    fn try_from(all: Vec<TensorSlot>) -> Result<Slots, String> {
        let mut slots = Slots::default();
        for (at, slot) in all.into_iter().enumerate() {
            if slots.insert(slot).value() != at as u64 {
                return Err(format!("slot `{slot}` is listed twice"));
            }
        }
        Ok(slots)
    }
}

/// Buffers by number, the rest with a letter: `b7`, `i7` (indices), `b7'` (the transposed matrix), `k0` (constants), `t12`,
/// `d3[0]` (bits that step 3 draws).
impl std::fmt::Display for TensorSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TensorSlot::Buffer(b) => write!(f, "b{}", b.0),
            TensorSlot::Indices(b) => write!(f, "i{}", b.0),
            TensorSlot::Turned(b) => write!(f, "b{}'", b.0),
            TensorSlot::Table(t) => write!(f, "k{t}"),
            TensorSlot::Temporary(n) => write!(f, "t{n}"),
            TensorSlot::Residual(b, position) => write!(f, "b{}[{position}]", b.0),
            TensorSlot::DrawnBits(step, position) => write!(f, "d{step}[{position}]"),
        }
    }
}

/// A value that loops leave to others, position by position.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Residual {
    /// The loops, outermost first.
    pub over: Vec<StoredPositions>,
    /// Tensors of the positions, row-major.
    pub tensors: Vec<TensorId>,
}

/// The stored positions of a loop, counted from the first one that the device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredPositions {
    /// Dim of the loop.
    pub dim: Dim,
    /// The lowest position that is read; those below are not stored.
    pub from: usize,
    /// Number of stored positions.
    pub count: usize,
}

impl Residual {
    /// The tensor of the position in an iteration; none if it is not stored.
    ///
    /// # Errors
    /// If no loop is over one of its dims.
    pub fn tensor(&self, at: Iteration) -> Result<Option<TensorId>, KernelError> {
        let mut index = 0;
        for of in &self.over {
            match at.position(of.dim)?.checked_sub(of.from).filter(|position| *position < of.count) {
                Some(position) => index = index * of.count + position,
                None => return Ok(None),
            }
        }
        Ok(self.tensors.get(index).copied())
    }
}
