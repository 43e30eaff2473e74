//! Arrays whose blocks are packed.

use crate::graph::Val;
use crate::local::Local;
use std::ops::Range;

/// An array and the blocks of it along an axis that are packed.
pub(crate) struct Blocked<'a> {
    pub val: Val,
    pub local: &'a Local,
    pub axis: usize,
    pub ranges: Vec<Range<usize>>,
}
