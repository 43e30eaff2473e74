//! Calls: the properties of their kernels, and the backends that run these.

use super::result::ResultMemory;
use crate::error::KernelError;
use burn_ir::TensorIr;
use std::ops::Range;

/// The properties of a kernel that are known before it runs.
pub trait KernelCall {
    /// Its name in texts.
    const NAME: &'static str;

    /// See [`CallWork::by_elements`].
    const BY_ELEMENTS: bool = false;

    /// Its name, where that depends on the call.
    fn name(&self) -> &'static str {
        Self::NAME
    }

    /// Kernels that a device starts for it.
    fn starts(&self) -> u64 {
        1
    }

    /// Source of the memory of its results, which are these.
    fn result_memory(&self, results: &[TensorIr]) -> ResultMemory {
        ResultMemory::given(results, false)
    }

    /// Its tensors that lie at equal distances in the arena, one after the other.
    fn spaced(&self) -> Vec<SpacedTensors> {
        vec![]
    }

    /// Its work beside its steps.
    fn work(&self) -> CallWork {
        CallWork { by_elements: Self::BY_ELEMENTS, ..CallWork::default() }
    }
}

/// Work of a kernel that a cost model sees neither in its steps nor in the tensors of its launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallWork {
    /// True if it goes element by element: sums of products are folds then, whatever the Plan calls them.
    pub by_elements: bool,
    /// Random values that it draws for other kernels.
    pub draws: u64,
    /// The factor of its matmul that is summed, by number: it is read once more.
    pub summed: Option<usize>,
    /// Whether its matmul is one of factors in 8 bits.
    pub in_8_bits: bool,
    /// Whether the matmuls of its steps are one, whose tiles fill the device together.
    pub joined: bool,
}

/// Tensors of a launch at equal distances, by their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpacedTensors {
    /// Operands.
    Reads(Range<usize>),
    /// Results.
    Writes(Range<usize>),
}

/// A launch on a device, with its operands.
pub trait Launcher {
    /// The results of a kernel.
    type Results;
}

/// Computes the kernel of a call. A backend has an implementation for each.
pub trait Computes<Call>: Launcher {
    /// Gives its results.
    ///
    /// # Errors
    /// Of operands that the kernel does not have.
    fn compute(self, call: &Call) -> Result<Self::Results, KernelError>;
}
