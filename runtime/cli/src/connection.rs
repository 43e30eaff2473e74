//! The connection of the processes in a program that gives more commands than one: MPI starts once in a process, and ends once.

use crate::signals;
use meshwright_comm::Timeouts;
use meshwright_diag::{Diagnostic, codes};
use meshwright_exec::Processes;
use meshwright_train::Failure;
use std::sync::{Arc, Mutex, PoisonError};

/// What a connection was asked for: fixed orders of reductions, time-outs, and the devices of this process.
type AskedConnection = (bool, Timeouts, usize);

/// The connection, and this process's place among those of its machine.
type Connection = (Arc<Processes>, usize);

static KEPT: Mutex<Option<(AskedConnection, Connection)>> = Mutex::new(None);

/// The connection that there is, where this is part of a program; else a new one.
pub(crate) fn connection(
    asked: AskedConnection,
    connect: impl FnOnce() -> Result<(Processes, usize), Failure>,
) -> Result<Connection, Failure> {
    let connected = || connect().map(|(processes, local)| (Arc::new(processes), local));
    if !signals::are_left_to_caller() {
        return connected();
    }
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    match &*kept {
        Some((same, connection)) if *same == asked => Ok(connection.clone()),
        Some(_) => {
            let message = "the processes of this program are connected already, with another `--deterministic`, `--timeout` or \
                           `--devices-per-process`";
            Err(Diagnostic::error(codes::E0525, message).help("give the same each time").into())
        }
        None => {
            let new = connected()?;
            Ok(kept.insert((asked, new)).1.clone())
        }
    }
}

/// The connection, which is not kept any more; none where there was none.
pub(crate) fn taken() -> Option<Arc<Processes>> {
    let kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner).take();
    kept.map(|(_, (processes, _))| processes)
}
