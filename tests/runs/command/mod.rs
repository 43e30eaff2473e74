//! The command from end to end, its pages, and what it says before anything runs.

pub(super) mod bad_input;
pub(super) mod cli;
pub(super) mod estimates;
pub(super) mod growth;
pub(super) mod mesh_tensorflow;
pub(super) mod pages;
pub(super) mod planning;
pub(super) mod sizes;
pub(super) mod trace;
pub(super) mod utilization;
