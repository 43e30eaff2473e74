//! The command: as it is, or asked by a program.

use crate::process::{failed, not_forked};
use meshwright_cli::embedded::{self, Reply};
use meshwright_cli::{Embedding, exit_code};
use pyo3::prelude::*;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Says by which words the command is started as a process, and where the data is that ships.
#[pyfunction]
pub(crate) fn embed(program: Vec<OsString>, data: PathBuf) {
    meshwright_cli::embed(Embedding { program, data });
}

/// Runs the command line, of which the first word is the name of the program; gives its exit code.
#[pyfunction]
pub(crate) fn command(py: Python<'_>, args: Vec<OsString>) -> PyResult<u8> {
    not_forked(py)?;
    Ok(py.detach(|| exit_code(args)))
}

/// Has the answer that another thread waits for end as Ctrl-C would.
#[pyfunction]
pub(crate) fn stop() {
    embedded::ask_to_stop();
}

/// Leaves the processes that this one is connected with; ends them where the program has failed.
#[pyfunction]
pub(crate) fn leave(py: Python<'_>, failed: bool) {
    if not_forked(py).is_ok() {
        py.detach(|| embedded::leave(failed));
    }
}

/// Answers the words of a command line: what it prints, and what it says beside that. AnswerWriter go to `each` instead, where
/// that is given.
///
/// Raises what the command would say where it fails, and what `each` raises, which ends the command.
#[pyfunction]
#[pyo3(signature = (words, each = None))]
pub(crate) fn answer(
    py: Python<'_>,
    words: Vec<OsString>,
    each: Option<Py<PyAny>>,
) -> PyResult<(String, String)> {
    not_forked(py)?;
    let lines = AnswerWriter { each, state: Arc::default() };
    let state = lines.state.clone();
    let ended = py.detach(|| embedded::answer(&words, Box::new(lines)));
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(raised) = state.raised.take() {
        return Err(raised);
    }
    match ended {
        Reply { code: 0, said, .. } => Ok((String::from_utf8_lossy(&state.text).into_owned(), said)),
        ended => Err(failed(py, &ended)),
    }
}

/// Standard output of an answer.
struct AnswerWriter {
    each: Option<Py<PyAny>>,
    state: Arc<Mutex<WriterState>>,
}

/// What was written and not handed on, and what was raised when a line was.
#[derive(Default)]
struct WriterState {
    text: Vec<u8>,
    raised: Option<PyErr>,
}

impl Write for AnswerWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut lines: Vec<u8> = Vec::new();
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.text.extend_from_slice(bytes);
            if self.each.is_some() {
                let end = state.text.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
                lines.extend(state.text.drain(..end));
            }
        }
        let handed = Python::attach(|py| {
            // Ctrl-C ends what writes.
            py.check_signals()?;
            let Some(each) = &self.each else { return Ok(()) };
            String::from_utf8_lossy(&lines).lines().try_for_each(|line| each.call1(py, (line,)).map(drop))
        });
        handed.map(|()| bytes.len()).map_err(|raised| {
            self.state.lock().unwrap_or_else(PoisonError::into_inner).raised.get_or_insert(raised);
            io::ErrorKind::BrokenPipe.into()
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
