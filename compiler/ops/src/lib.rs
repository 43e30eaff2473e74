//! The ops: what they mean, how they differentiate, what roles their dims play, and how they lower to primitive steps.
//!
//! **Invariant:** nothing here knows a mesh, a collective or a backend. An op says which role each of its dims plays
//! ([`Roles`]); the partitioner derives every collective from that.

mod build;
mod emit;
mod error;
pub mod family;
mod graph;
mod op;
mod ops;
pub mod reference;
mod roles;
pub mod signature;
pub mod tensor;
mod types;

pub use emit::Emit;
pub use error::OpError;
pub use family::{Family, OpCall, Piece, Sample, Setting, Value, families, family};
pub use graph::{Class, Graph, Id, Node, Origin};
pub use op::{Computes, DynEq, DynHash, ExpandWhen, Fold, InputOpKind, Kind, Op, Precision, Source};
pub use ops::*;
pub use roles::{Linear, Loop, Role, Roles};
pub use signature::Signature;
pub use tensor::F64Tensor;
pub use types::{Type, union};
