//! Checkpoints that are written while training goes on.

use super::{Meta, Store};
use meshwright_diag::{Diagnostic, codes};
use meshwright_files::{Checked, RawTensor};
use std::fs::File;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Writes one checkpoint at a time, by a thread of its own.
pub struct Saver {
    store: Arc<Store>,
    writing: Option<(u64, JoinHandle<Checked<()>>)>,
    ended: Option<Checked<u64>>,
}

impl Saver {
    /// Writes to that store.
    pub fn new(store: Store) -> Saver {
        Saver { store: Arc::new(store), writing: None, ended: None }
    }

    /// Begins to write a checkpoint; first what the log says of its steps is made durable. The one before must have ended.
    ///
    /// # Errors
    ///
    /// E0514 where there is no thread to be had.
    pub fn start(&mut self, meta: Meta, tensors: Vec<(String, RawTensor)>, log: Option<File>) -> Checked<()> {
        self.wait();
        let (store, step) = (self.store.clone(), meta.step);
        let write = move || {
            if let Some(log) = log {
                log.sync_data().map_err(|e| failed(&format!("the log cannot be made durable: {e}")))?;
            }
            store.save(&meta, tensors.iter().map(|(n, t)| (n.as_str(), t)))
        };
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(write);
        self.writing = Some((step, thread.map_err(|e| failed(&e.to_string()))?));
        Ok(())
    }

    /// Waits until nothing is written any more.
    pub fn wait(&mut self) {
        let Some((step, thread)) = self.writing.take() else { return };
        let written = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        self.ended = Some(written.map(|()| step));
    }

    /// The step of a checkpoint that has been written since this was last asked, or why it is not. Waits where `wait`.
    pub fn ended(&mut self, wait: bool) -> Option<Checked<u64>> {
        if wait || self.writing.as_ref().is_some_and(|w| w.1.is_finished()) {
            self.wait();
        }
        self.ended.take()
    }

    /// Notes that the checkpoint of a step is the best: it is kept until a better one is noted.
    pub fn mark_best(&self, step: u64, metric: &str, value: f64) -> Checked<()> {
        self.store.mark_best(step, metric, value)
    }
}

fn failed(why: &str) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(codes::E0514, format!("the checkpoint cannot be written: {why}")))
}

/// The first tensor with an element that is not finite.
pub fn not_finite(tensors: &[(String, RawTensor)]) -> Option<&str> {
    tensors.iter().find(|(_, t)| !t.is_finite()).map(|(name, _)| name.as_str())
}
