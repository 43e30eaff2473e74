//! Maps of the splits of one value. They have an entry or two, and there are several for each value of a program: sorted lists,
//! since a node of a tree has room for eleven.

use crate::{Axis, Dim, Monoid};
use litemap::LiteMap;

/// For each split dim its axes, major first.
pub type Splits = LiteMap<Dim, Vec<Axis>>;

/// Axes over which a value is partial, each with the monoid that finishes it.
pub type PartialAxes = LiteMap<Axis, Monoid>;
