//! From a step graph and a layout to an SPMD program: the central pass.
//!
//! One walk in op order. The rules give each op the axes of its loops; operands are moved to where those loops need
//! them, by the cheapest chain of collectives; partial sums travel through linear ops and are reduced once. No op is
//! consulted beyond its roles. Every collective has a cause.

mod broadcasts;
mod cause;
mod crossings;
mod decision;
mod follow;
mod frames;
mod lazy_sums;
mod propagation;
mod reasons;
mod reduce_grads;
mod repeat;
mod reshard;
mod roots;
mod split_by;
mod spmd;
mod stages;
mod state;
mod step_facts;
mod working_copies;

pub use decision::{Decision, Loops, Reason, Refusal};
pub use propagation::partition;
pub(crate) use reduce_grads::{gradient_terms, keeps_storage, sums};
pub use reshard::Reshard;
pub(crate) use roots::Roots;
pub use spmd::{CarriedCopy, Cause, CopyId, Instr, PlacedCopy, PlacedLoop, Spmd, operand_placement};
