//! Layout rules: from the tree of a layout file to rules over the dims of a program and the axes of a mesh.
//!
//! Everything a rule can say wrong by itself is answered here; what only shows on a value, in `assign.rs`.

mod assign;
mod dim_pairs;
mod index;
mod mesh;
mod order;
mod pipeline;
mod recompute_paths;
mod rules;
mod second_names;
mod unmatched_rules;

pub use assign::{Assigned, Rulebook, assign, check_conflicts};
pub use dim_pairs::dims_together;
pub use mesh::{check_devices, mesh_of, named_mesh};
pub use order::OrderRule;
pub use pipeline::{PipelineOrder, PipelineRule};
pub(crate) use recompute_paths::recomputed_names;
pub use rules::{Layout, Rule, RuleDim, Scope, ScopeClass, layout};
pub use second_names::second_names;
