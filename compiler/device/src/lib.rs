//! Compiles a Plan for one device: a [`DevicePlan`] has the launches of the device in order, and the offsets of their
//! results.
//!
//! **Invariants:**
//! - A device plan is a function of the Plan, the rank and the [`Target`](target::Target), a value. No GPU is needed to
//!   compile for one.
//! - A device computes the values of the Plan, and starts collectives in the Plan's order.
//! - This is the only crate of the compiler that names Burn, and it names its graphs alone: no backend.

pub mod access;
pub mod arena;
mod burn;
pub mod collective;
pub mod copies;
pub mod costs;
pub mod decisions;
mod encoding;
pub mod error;
pub mod iteration;
pub mod kernels;
pub mod launch;
pub mod lowering;
mod memory;
pub mod passes;
pub mod slot;
pub mod stored;
pub mod target;
pub mod text;
pub mod turns;
pub mod verify;
pub mod view;

pub use encoding::BadEncoding;
pub use error::{CompileError, KernelError, LoweringError};
pub use launch::DevicePlan;
pub use lowering::compile::{compile, compile_launches};
