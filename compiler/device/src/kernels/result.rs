//! The memory of what kernels write.

use meshwright_plan::Dim;

/// How an operation comes by the memory of its results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResultMemory {
    /// It takes what it is given for each result.
    Given(Vec<GivenResult>),
    /// That of its operand, row by row.
    Operand,
    /// That of its first operand where that ends; the second is put there, at the position of a loop over that dim.
    Update(Dim),
    /// It asks the backend.
    Own,
    /// It asks the backend, or gives what it reads in another form.
    Unknown,
}

/// What may be done with a result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenResult {
    /// The operands that it can be written over, where they end.
    pub over: Vec<usize>,
    /// Whether there may be gaps between long rows.
    pub gaps: bool,
}
