//! The names of launches, and of the tensors that they read and write.

use burn_backend::{DType as BurnType, Shape};
use burn_ir::{TensorId, TensorIr, TensorStatus};
use meshwright_plan::{ArenaId, BufId};

/// A launch of a device plan, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Extents.
    pub shape: Vec<usize>,
    /// Elements, row-major.
    pub elements: Vec<i32>,
}

/// Storage of a tensor between operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TensorSlot {
    /// A buffer of the Plan; of pairs in two parts the values.
    Buffer(BufId),
    /// The indices of a buffer of pairs in two parts.
    Indices(BufId),
    /// A constant table that is uploaded once.
    Table(usize),
    /// A result that no buffer of the Plan is.
    Temporary(u64),
    /// A residual: the value of one position of a loop, in place of a stack of the Plan with all positions. The buffer names the stack.
    Residual(BufId, usize),
}

/// The kind of a slot is in the upper bits of its id.
const KIND_SHIFT: u32 = 40;
/// A position is in the lower bits of the rest.
const POSITION_BITS: u32 = 20;

impl TensorSlot {
    /// Limit of the positions of residuals and of the numbers of their buffers.
    pub const POSITIONS: usize = 1 << POSITION_BITS;

    /// Slot of the residual of a stack at a position; none if the position is an error.
    pub fn residual<E>(stack: BufId, position: Result<usize, E>) -> Option<TensorSlot> {
        position.ok().map(|position| TensorSlot::Residual(stack, position))
    }

    /// Its id in a graph.
    pub fn id(self) -> TensorId {
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
    pub fn of(id: TensorId) -> TensorSlot {
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
    pub fn tensor(self, shape: &[usize], dtype: BurnType, status: TensorStatus) -> TensorIr {
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
