//! Commands on a model and its layout, which start no run.

pub(super) mod against;
pub(crate) mod check;
pub(crate) mod compare;
pub(crate) mod estimate;
pub(crate) mod explain;
pub(super) mod fix;
pub(crate) mod fmt;
mod named_machine;
mod one_estimate;
pub(super) mod passes;
pub(super) mod plan_page;
mod scale;
pub(crate) mod search;
mod search_bench;
