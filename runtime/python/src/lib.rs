//! Meshwright for Python: the native module below the package `meshwright`, which gives it its names and its documentation.
//!
//! **Invariant:** nothing is computed or decided here. Questions are command lines, which [`meshwright_cli::embedded`] answers as
//! the command does; steps are those of [`meshwright_train::StepSession`]. The interpreter is free while either works, and what
//! cannot work in a fork of a process is refused there.

mod arrays;
mod batches;
mod command;
mod process;
mod session;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(command::embed, module)?)?;
    module.add_function(wrap_pyfunction!(command::command, module)?)?;
    module.add_function(wrap_pyfunction!(command::stop, module)?)?;
    module.add_function(wrap_pyfunction!(command::answer, module)?)?;
    module.add_function(wrap_pyfunction!(command::leave, module)?)?;
    module.add_class::<session::Session>()?;
    module.add_class::<batches::Batches>()
}
