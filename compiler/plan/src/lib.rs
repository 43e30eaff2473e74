//! What both halves know: dims, dtypes, mesh, placements, scalar expressions, the primitive steps and the Plan.
//!
//! **Invariant:** a [`Plan`] is plain data: serializable, hashable, the same for every rank but for its coordinates,
//! and byte-identical for the same input. Nothing here does I/O, reads a clock, or names a backend.

pub mod actions;
mod arena;
mod arithmetic;
mod buffer;
mod collective;
mod communication;
mod dim;
mod dtype;
mod dtypes;
pub mod expr;
mod in_flight;
pub mod memory;
mod partial;
mod passes;
mod peak;
mod placement;
mod plan;
mod prim;
mod provenance;
pub mod random;
mod repeat;
mod stages;
mod step;
mod subexpression;
mod work;

pub use arena::{ArenaId, IdVec};
pub use arithmetic::{Arithmetic, Fp8, power_of_two, tf32};
pub use buffer::buffer_layout::{BufferLayout, BufferPart};
pub use buffer::{BufId, Buffer, Extent, Operand};
pub use collective::{BusFactor, Collective, CollectiveKind, CollectiveSpec, Portion, Traffic};
pub use communication::CollectiveTotal;
pub use dim::{Dim, Dims};
pub use dtype::{DType, square_scale};
pub use expr::Expr;
pub use memory::PeakMemory;
pub use passes::PipelinePasses;
pub use peak::{PeakBuffer, peak_by_kind};
pub use placement::Placement;
pub use placement::cuts::Cuts;
pub use placement::group::{Group, NotAGroup};
pub use placement::mesh::{Axis, Coords, Mesh, MeshAxis};
pub use placement::shard::{largest_shard, piece, shard};
pub use placement::splits::{PartialAxes, Splits};
pub use placement::zigzag::Zigzag;
pub use plan::{
    InputDecl, Microbatches, OutputDecl, Pipeline, Plan, ProgramInput, ProgramInputKind, Summary,
};
pub use prim::attention::{AttentionBias, AttentionOperands, AttentionPart, AttentionSpec, Computed, Drawn};
pub use prim::monoid::Monoid;
pub use prim::spec::{DTypes, Donation, HalfFloats, KernelFamily, Linear, Operands, Spec, Work};
pub use prim::window::{SlidingWindow, Window, coords_along};
pub use prim::{Part, Prim};
pub use provenance::Provenance;
pub use random::Init;
pub use repeat::{StepLoop, only_member, positions};
pub use stages::{DeviceBlocks, StoredElements};
pub use step::{Arity, Phase, Step};
pub use subexpression::subexpression;
