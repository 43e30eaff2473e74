//! Tests of both parsers, through the public functions.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod editors;
mod errors;
mod format;
mod fuzz;
mod layouts;
mod limits;
mod models;
mod support;
mod tokens;
