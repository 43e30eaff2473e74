//! Samples of families, for the laws.

use crate::{Graph, Id, OpError};
use meshwright_plan::DType;
use std::sync::Arc;

/// An operand of a sample: `(name, size)` of its dims, dtype, and what its elements are drawn from.
#[derive(Clone, Debug)]
pub struct SampleInput {
    /// Its dims.
    pub dims: Vec<(&'static str, usize)>,
    /// Its dtype.
    pub dtype: DType,
    /// Elements are drawn from `low..high`.
    pub low: f64,
    /// Upper end of the elements, excluded.
    pub high: f64,
    /// The dim that it indexes.
    pub range: Option<(&'static str, usize)>,
}

/// Builds the value under test from the operands.
pub type SampleBuild = Arc<dyn Fn(&mut Graph, &[Id]) -> Result<Id, OpError> + Send + Sync>;

/// A [`Piece`](crate::Piece) by the names of its dims.
pub type PieceNames = (&'static [&'static str], &'static [&'static str], Option<&'static str>);

/// An example of an op, on which its laws are checked.
#[derive(Clone)]
pub struct Sample {
    /// What it shows.
    pub label: &'static str,
    /// Its operands.
    pub inputs: Vec<SampleInput>,
    /// How the value under test is built.
    pub build: SampleBuild,
    /// Whether its gradient is checked against differences.
    pub differentiable: bool,
    /// The family of which the value under test is a call, and nothing more.
    pub calls: Option<&'static str>,
}

/// A float operand drawn from -2..2.
pub fn float(dims: &[(&'static str, usize)]) -> SampleInput {
    between(dims, -2.0, 2.0)
}

/// A float operand drawn from `low..high`.
pub fn between(dims: &[(&'static str, usize)], low: f64, high: f64) -> SampleInput {
    SampleInput { dims: dims.to_vec(), dtype: DType::F64, low, high, range: None }
}

/// A truth-valued operand.
pub fn truth(dims: &[(&'static str, usize)]) -> SampleInput {
    SampleInput { dims: dims.to_vec(), dtype: DType::Bool, low: 0.0, high: 2.0, range: None }
}

/// An integer operand in `0..size` of the dim it indexes.
pub fn index_of(dims: &[(&'static str, usize)], range: (&'static str, usize)) -> SampleInput {
    SampleInput { dims: dims.to_vec(), dtype: DType::I32, low: 0.0, high: range.1 as f64, range: Some(range) }
}

/// An integer operand in `low..high`.
pub fn integer(dims: &[(&'static str, usize)], low: f64, high: f64) -> SampleInput {
    SampleInput { dims: dims.to_vec(), dtype: DType::I32, low, high, range: None }
}
