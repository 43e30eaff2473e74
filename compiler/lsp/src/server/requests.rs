//! The requests that are being answered.

use lsp_server::{ErrorCode, RequestId, Response};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a request was taken back; what answers it looks before it begins.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cancelled(Arc<AtomicBool>);

impl Cancelled {
    /// Whether nobody waits for the answer any more.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Requests without an answer so far.
#[derive(Default)]
pub(super) struct Requests(HashMap<RequestId, Cancelled>);

impl Requests {
    /// A request has come.
    pub(super) fn begin(&mut self, id: RequestId) -> Cancelled {
        self.0.entry(id).or_default().clone()
    }

    /// Whether an answer is still waited for; it is not from then on.
    pub(super) fn end(&mut self, id: &RequestId) -> bool {
        self.0.remove(id).is_some()
    }

    /// Takes a request back; its answer says so.
    pub(super) fn cancel(&mut self, id: &RequestId) -> Option<Response> {
        let cancelled = self.0.remove(id)?;
        cancelled.0.store(true, Ordering::Relaxed);
        let message = "the client took the request back".to_string();
        Some(Response::new_err(id.clone(), ErrorCode::RequestCanceled as i32, message))
    }
}
