//! Meshwright in editors: a server of the Language Server Protocol.
//!
//! `server` has the loop that answers messages, `project` what a text belongs to and what the compiler knows of it, `features` an
//! answer each, and `text` documents and positions in them.
//!
//! **Invariants:** nothing here parses, resolves or splits by itself: each answer is what the compiler says of the texts.
//! Messages and files come by a connection and a [`Host`]; there is no I/O, no clock and no environment. What a client sends may
//! be wrong or half typed: a request ends with its answer or with an error, and the server goes on.

#![allow(
    clippy::mutable_key_type,
    reason = "edits are keyed by URIs in the protocol's own types, and no URI is changed"
)]

mod features;
mod host;
mod project;
mod server;
mod settings;
mod snapshot;
mod text;

pub use host::Host;
pub use lsp_server::Connection;
pub use server::{SessionEnd, serve};
