//! The server: a loop that takes messages, and a thread that answers them.
//!
//! The loop applies edits in the order in which they come, and hands each request to the thread together with a snapshot of the
//! texts as they were then. So an edit never waits for an answer, and an answer never sees half of an edit.

mod capabilities;
mod dispatch;
mod main_loop;
mod published_diagnostics;
mod requests;
mod worker;

pub use main_loop::SessionEnd;

use crate::host::Host;
use lsp_server::{Connection, ProtocolError};
use std::sync::Arc;

/// Answers the messages of a connection until it ends.
///
/// # Errors
/// Where what comes is not the protocol.
pub fn serve(connection: &Connection, host: Arc<dyn Host>) -> Result<SessionEnd, ProtocolError> {
    let (id, params) = connection.initialize_start()?;
    let params = serde_json::from_value(params).unwrap_or_default();
    connection.initialize_finish(id, capabilities::answer())?;
    main_loop::run(connection, host, &params)
}
