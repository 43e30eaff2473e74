//! The ops: what they mean, how they differentiate, what roles their dims play, and how they lower to primitive steps.
//!
//! **Invariant:** nothing here knows a mesh, a collective or a backend. An op says which role each of its dims plays
//! ([`Roles`]); the partitioner derives every collective from that.

mod build;
mod call;
mod emit;
mod error;
pub mod family;
mod graph;
mod kind;
mod op;
mod ops;
pub mod reference;
mod registry;
mod repeat;
mod roles;
mod sample;
mod scopes;
pub mod signature;
pub mod tensor;
mod types;

pub use emit::Emit;
pub use error::{OpError, Spot};
pub use family::{Family, OpCall, Piece, Sample, Setting, Value, families, family};
pub use kind::{Computes, ExpandWhen, Fold, InputOpKind, Kind, Precision, Source};
pub use op::{Class, DynEq, DynHash, Graph, GraphNote, Id, Node, Op, Origin, Repeat};
pub use ops::*;
pub use repeat::{Boundary, Crossing, RepeatId};
pub use roles::{Linear, Loop, Role, Roles};
pub use signature::Signature;
pub use tensor::F64Tensor;
pub use types::{Type, union};
