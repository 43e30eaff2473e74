//! Arrays whose blocks are packed.

use crate::lowering::graph::Val;
use crate::lowering::local::Local;
use std::ops::Range;

/// An array and the blocks of it along an axis that are packed.
pub(crate) struct Blocked<'a> {
    pub val: Val,
    pub local: &'a Local,
    pub axis: usize,
    pub ranges: Vec<Range<usize>>,
}
