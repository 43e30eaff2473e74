//! Links between the stages of a pipeline, made when a program is loaded.

use super::place::place;
use super::{Engine, ProgramId};
use crate::backend::DeviceError;
use crate::error::ExecError;

impl Engine {
    /// Makes the links of a program that is loaded. Where messages lie in the memory of a GPU, calls are ordered with the stream
    /// on which it computes from then on, since a message that is received ahead is to keep nothing waiting.
    pub(super) fn prepare_links(&mut self, program: ProgramId) -> Result<(), ExecError> {
        let links = self.executor.links(program.0);
        if links.is_empty() {
            return Ok(());
        }
        let at = place(self.plan(program)?, self.rank, None, None);
        if self.transport.gpu().is_some() {
            let failed = |DeviceError(problem)| ExecError::Device { place: at.clone(), problem };
            if let Some(stream) = self.executor.stream().map_err(failed)? {
                #[expect(unsafe_code, reason = "a stream is known by its address")]
                // SAFETY: it is the stream of the device, which lives as long as the device.
                unsafe {
                    self.transport.compute_on(stream);
                }
            }
        }
        self.transport.prepare_links(&links).map_err(|source| ExecError::Comm { place: at, source })
    }
}
