//! The thread that answers. What it is asked for may end in a panic, which is a bug of the compiler: the request fails, and the
//! server goes on.

use super::dispatch;
use super::requests::Cancelled;
use crate::features::diagnostics;
use crate::features::diagnostics::TextDiagnostics;
use crate::project::Projects;
use crate::snapshot::Snapshot;
use crossbeam_channel::{Receiver, Sender};
use lsp_server::{ErrorCode, Request, Response};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Stack of the thread: trees are as deep as texts are nested.
const STACK: usize = 64 << 20;

/// What the thread is asked for.
pub(super) enum WorkerTask {
    /// To answer a request.
    Answer(Request, Snapshot, Cancelled),
    /// To find what is wrong with the open texts, as they were at this revision.
    Diagnose(u64, Snapshot),
}

/// What it has to say.
pub(super) enum WorkerAnswer {
    /// The answer to a request.
    Answer(Response),
    /// What is wrong with the texts.
    Diagnosed(Vec<TextDiagnostics>),
}

/// Starts the thread, which ends when no more tasks can come. `newest` is the revision of the texts: what is wrong with an older
/// one is not looked for.
///
/// # Errors
/// Where the system gives no thread.
pub(super) fn start(
    tasks: Receiver<WorkerTask>,
    done: Sender<WorkerAnswer>,
    newest: Arc<AtomicU64>,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    let run = move || {
        let mut projects = Projects::default();
        for task in tasks {
            let said = match task {
                WorkerTask::Answer(_, _, cancelled) if cancelled.is_set() => continue,
                WorkerTask::Answer(request, snapshot, _) => {
                    let id = request.id.clone();
                    let answer = catch_unwind(AssertUnwindSafe(|| {
                        dispatch::answer(request, &snapshot, &mut projects)
                    }));
                    WorkerAnswer::Answer(answer.unwrap_or_else(|_| {
                        projects = Projects::default();
                        let message = "internal error: a bug in Meshwright".to_string();
                        Response::new_err(id, ErrorCode::InternalError as i32, message)
                    }))
                }
                WorkerTask::Diagnose(revision, _) if revision < newest.load(Ordering::Relaxed) => continue,
                WorkerTask::Diagnose(_, snapshot) => {
                    match catch_unwind(AssertUnwindSafe(|| diagnostics::all(&snapshot, &mut projects))) {
                        Ok(found) => WorkerAnswer::Diagnosed(found),
                        Err(_) => {
                            projects = Projects::default();
                            continue;
                        }
                    }
                }
            };
            if done.send(said).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("answers".into()).stack_size(STACK).spawn(run)
}
