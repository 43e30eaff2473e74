//! What runs: whole trainings on several meshes, resumed and killed ones, the command from end to end, failing devices,
//! broken data. And `tidy`: what is true of the repository itself.

#![allow(clippy::unwrap_used, reason = "tests")]

// The allocator of the command.
use meshwright_cli as _;

mod command;
mod devices;
mod identities;
mod layouts;
mod models;
mod precision;
mod support;
mod tidy;
mod training;
