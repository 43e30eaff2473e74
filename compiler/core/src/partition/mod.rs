//! From a step graph and a layout to an SPMD program: the central pass.
//!
//! One walk in op order. The rules give each op the axes of its loops; operands are moved to where those loops need
//! them, by the cheapest chain of collectives; unfinished sums travel through linear ops and are finished once. No op is
//! consulted beyond its roles. Every collective has a cause.

mod cause;
mod follow;
mod pass;
mod reasons;
mod reshard;
mod settle;
mod spmd;

pub use pass::partition;
pub use reasons::{Reason, Refusal};
pub use reshard::Reshard;
pub use spmd::{Cause, CopyId, Instr, PlacedCopy, Spmd, operand_placement};
