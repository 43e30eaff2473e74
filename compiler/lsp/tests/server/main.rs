//! The server as a client sees it.

#![allow(clippy::unwrap_used, reason = "tests")]

mod client;
mod features;
mod names;
mod session;
