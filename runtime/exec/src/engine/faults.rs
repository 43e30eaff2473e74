//! GPU faults among the errors of devices, with the step of the Plan that failed and the state of the GPU.

use super::Engine;
use super::place::place;
use crate::backend::{DeviceFault, FaultKind};
use crate::error::{ExecError, GpuFault, OutOfMemory, Place};

impl Engine {
    /// The error, with the state of the GPU if it is the GPU's. Call it before the GPU's state changes.
    pub(crate) fn explained(&mut self, error: ExecError) -> ExecError {
        let (known, problem) = match &error {
            ExecError::Device { place, problem } | ExecError::Panicked { place, message: problem } => {
                ((**place).clone(), problem.clone())
            }
            ExecError::Comm { place, source } if !source.is_consequence() => {
                ((**place).clone(), source.to_string())
            }
            ExecError::State { rank, name, problem } => {
                (Place { rank: *rank, value: name.clone(), ..Place::default() }, problem.clone())
            }
            _ => return error,
        };
        match self.executor.fault(&problem) {
            Some(fault) => self.of_gpu(known, fault),
            None => error,
        }
    }

    /// The error of a GPU that came up at `known`.
    fn of_gpu(&self, known: Place, fault: DeviceFault) -> ExecError {
        let DeviceFault { kind, gpu, at, held, device, health } = fault;
        let program = at.map(|at| at.program).or(self.last.map(|id| id.0));
        let plan = program.and_then(|program| self.executor.plan(program)).cloned();
        let place = match (&plan, at) {
            (Some(plan), Some(at)) => {
                let number = Some(at.step_number).filter(|n| *n > 0).or(known.step_number);
                *place(plan, self.rank, number, Some(at.step))
            }
            _ => known,
        };
        match kind {
            FaultKind::OutOfMemory(asked) => {
                let e = OutOfMemory { place, gpu, asked, held, device, plan, lines: None };
                ExecError::OutOfMemory(Box::new(e))
            }
            FaultKind::Error(error) => ExecError::Gpu(Box::new(GpuFault { place, gpu, error, health })),
        }
    }
}
