//! What a set of files is bound to.

use meshwright_diag::Span;
use meshwright_plan::{Dims, InputDecl};
use meshwright_sorted::SortedMap;

/// Where inputs are declared, by name, for messages that show the declaration. May be empty.
pub type Places = SortedMap<String, Span>;

/// What the inputs of a model are bound to, and how strictly.
#[derive(Clone, Copy, Debug)]
pub struct InputBinding<'a> {
    /// The inputs.
    pub inputs: &'a [InputDecl],
    /// Their dims.
    pub dims: &'a Dims,
    /// Where they are declared.
    pub places: &'a Places,
    /// Let floats pass that are infinite or not numbers.
    pub allow_nonfinite: bool,
}
