//! Memory of the results of kernels.

use burn_ir::TensorIr;
use meshwright_plan::Dim;

/// Source of the memory of an operation's results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResultMemory {
    /// The backend gives memory for each result, in the arena if there is one.
    Given(Vec<GivenResult>),
    /// The memory of its operand, row by row.
    Operand,
    /// The memory of its first operand, if its lifetime ends here. The second operand is written there, at the position of a loop
    /// over that dim.
    Update(Dim),
    /// The operation allocates memory itself.
    Own,
    /// The operation allocates memory itself, or its result is a view of an operand.
    Unknown,
}

/// Memory that a result may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenResult {
    /// Operands that may donate their storage, if their lifetime ends here. A slice of a stack donates its place only to a result
    /// that is stored at that position.
    pub over: Vec<usize>,
    /// Whether long rows may have gaps between them.
    pub gaps: bool,
    /// Whether a donated storage has just those gaps.
    pub alike: bool,
}

impl ResultMemory {
    /// Memory of its own for each result, with or without gaps between rows.
    pub(crate) fn given(results: &[TensorIr], gaps: bool) -> ResultMemory {
        ResultMemory::Given(vec![GivenResult { gaps, ..GivenResult::default() }; results.len()])
    }
}
