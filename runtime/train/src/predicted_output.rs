//! What a prediction gives for one output.

use meshwright_exec::HostTensor;

/// An output over all examples.
#[derive(Clone, Debug)]
pub struct PredictedOutput {
    /// Its name, or the path of a value.
    pub name: String,
    /// Names of its dims; the example dim, if it has it, is the first.
    pub dims: Vec<String>,
    /// Whether it has a value for each example.
    pub each_example: bool,
    /// The values.
    pub tensor: HostTensor,
}
