//! Ending communicators by force.
//!
//! `ncclCommAbort` tells the kernels of its communicator to end, and then waits for the GPU. There a kernel of another
//! communicator may come first, whose members never come: it ends only when that communicator is aborted as well. So all
//! are told before one is waited for, on a thread each; groups of NCCL would do it in one call, but only since 2.22.

use super::api::{CommHandle, Nccl};
use super::device::Gpu;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// How long they may take, once all have been told. Threads that take longer are left behind: the program is about to end.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// How long where they only end with graphs that use them: the kernels have ended by then.
pub(super) const ONLY_TOLD: Duration = Duration::from_secs(1);

/// A communicator, and how it is ended.
struct Condemned {
    comm: CommHandle,
    abort: unsafe extern "C" fn(CommHandle) -> i32,
}

#[expect(unsafe_code, reason = "handed to one thread")]
// SAFETY: NCCL allows communicators to be used by different threads one after the other.
unsafe impl Send for Condemned {}

impl Condemned {
    fn end(self) {
        #[expect(unsafe_code, reason = "frees a communicator")]
        // SAFETY: nobody else knows it any more. The library stays open until the program ends.
        let _ = unsafe { (self.abort)(self.comm) };
    }
}

/// Aborts communicators that nobody else uses any more, all at once.
pub(super) fn abort_all(
    comms: impl IntoIterator<Item = CommHandle>,
    patience: Duration,
    gpu: &Arc<Gpu>,
    nccl: &Nccl,
) {
    let (done, ended) = channel();
    let mut running = 0;
    for comm in comms {
        let condemned = Condemned { comm, abort: nccl.f.abort };
        let (gpu, done) = (gpu.clone(), done.clone());
        let thread = std::thread::Builder::new().name("nccl-abort".into());
        let started = thread.spawn(move || {
            let _ = gpu.bind();
            condemned.end();
            let _ = done.send(());
        });
        // Without a thread the communicator is left as it is: its memory ends with the program.
        running += usize::from(started.is_ok());
    }
    let begin = Instant::now();
    for _ in 0..running {
        if ended.recv_timeout(patience.saturating_sub(begin.elapsed())).is_err() {
            return;
        }
    }
}
