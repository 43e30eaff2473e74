//! Errors as exceptions, and processes that a fork has made.

use meshwright_cli::embedded::Reply;
use pyo3::prelude::*;
use std::sync::OnceLock;

/// The exception of a command that failed.
pub(crate) fn failed(py: Python<'_>, ended: &Reply) -> PyErr {
    raised(py, "failed", (ended.code, ended.said.as_str(), ended.found.clone()))
}

/// What a function of the package's module of errors makes of these arguments.
fn raised<'py>(py: Python<'py>, function: &str, with: impl pyo3::call::PyCallArgs<'py>) -> PyErr {
    let made = py.import("meshwright._errors").and_then(|m| m.getattr(function)?.call1(with));
    made.map_or_else(|e| e, PyErr::from_value)
}

/// Prints to the program's standard error what the command would say beside its answer.
pub(crate) fn say(py: Python<'_>, said: &str) -> PyResult<()> {
    let stderr = py.import("sys")?.getattr("stderr")?;
    // A program without a console has none.
    if said.is_empty() || stderr.is_none() { Ok(()) } else { stderr.call_method1("write", (said,)).map(drop) }
}

/// The process that has used this first: threads that were started then are in no fork of it.
static USED_BY: OnceLock<u32> = OnceLock::new();

/// Refuses to work in a fork of the process that has used this first.
pub(crate) fn not_forked(py: Python<'_>) -> PyResult<()> {
    let user = *USED_BY.get_or_init(std::process::id);
    if is_forked(user) { Err(raised(py, "forked", (user,))) } else { Ok(()) }
}

/// Whether this is another process than that one.
pub(crate) fn is_forked(user: u32) -> bool {
    user != std::process::id()
}
