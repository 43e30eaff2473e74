//! The inputs of programs: the ranges of each on a device, given anew for a step or held on the device for many steps.

use super::programs::Binding;
use super::{DeviceReport, Engine, Inputs, ProgramId, mismatch};
use crate::error::ExecError;
use crate::tensor::{HostData, HostTensor};
use meshwright_plan::{BufId, DType, Dim, Plan, ProgramInput, ProgramInputKind};
use std::ops::Range;

/// An input as one device needs it.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalInput {
    /// Name of the input. It may occur several times, in different ranges.
    pub name: String,
    /// Its dims in declared order; the first counts examples.
    pub dims: Vec<Dim>,
    /// The device's range of each dim; may be empty.
    pub ranges: Vec<Range<usize>>,
    /// Type of the elements.
    pub dtype: DType,
}

impl LocalInput {
    /// Shape of the tensor that the device needs.
    pub fn shape(&self) -> Vec<usize> {
        self.ranges.iter().map(ExactSizeIterator::len).collect()
    }
}

/// The inputs that the device of that rank needs for a Plan, in the order in which [`Engine::run`] takes them.
pub fn local_inputs(plan: &Plan, rank: usize) -> Vec<LocalInput> {
    let coords = plan.mesh.coords(rank);
    let leaves = plan.program_inputs.iter().filter(|l| l.kind == ProgramInputKind::Input);
    leaves
        .map(|leaf| {
            let buffer = plan.buffer(leaf.buf);
            LocalInput {
                name: leaf.name.clone(),
                dims: leaf.dims.clone(),
                ranges: buffer.ranges(&plan.mesh, &coords),
                dtype: buffer.dtype,
            }
        })
        .collect()
}

/// The name under which an input is kept; no parameter has such a one.
fn kept(id: ProgramId, buf: BufId) -> String {
    format!("input {} of program {}", buf.0, id.0)
}

impl Engine {
    /// The inputs of a program, in the order in which [`Engine::run`] takes them.
    pub fn local_inputs(&self, program: ProgramId) -> Result<Vec<LocalInput>, ExecError> {
        Ok(local_inputs(self.plan(program)?, self.rank))
    }

    /// Keeps inputs on the device, for any number of [`Engine::run_held`], and drops earlier ones. The Plan's peak does
    /// not count their memory.
    ///
    /// # Errors
    ///
    /// If they do not fit the program.
    pub fn hold_inputs(&mut self, program: ProgramId, inputs: Vec<HostTensor>) -> Result<(), ExecError> {
        let plan = self.plan(program)?.clone();
        for (buf, value) in self.fitting(&plan, inputs)? {
            self.executor.set(&kept(program, buf), value);
        }
        Ok(())
    }

    /// Gives up the memory of inputs that are held.
    ///
    /// # Errors
    ///
    /// If there is no such program.
    pub fn release_inputs(&mut self, program: ProgramId) -> Result<(), ExecError> {
        let plan = self.plan(program)?.clone();
        for leaf in plan.program_inputs.iter().filter(|l| l.kind == ProgramInputKind::Input) {
            self.executor.drop_kept(&kept(program, leaf.buf));
        }
        Ok(())
    }

    /// [`Engine::run`] on the inputs that are held.
    ///
    /// # Errors
    ///
    /// If one is not held, and the errors of [`Engine::run`].
    pub fn run_held(&mut self, program: ProgramId, step_number: u64) -> Result<DeviceReport, ExecError> {
        self.run_with(program, Inputs::Held, step_number)
    }

    /// Binds all that a step begins with.
    pub(super) fn bind_all(
        &mut self,
        id: ProgramId,
        plan: &Plan,
        inputs: Inputs,
        step_number: u64,
    ) -> Result<(), ExecError> {
        match inputs {
            Inputs::Given(inputs) => self.bind(id, plan, inputs)?,
            Inputs::Held => self.bind_held(id, plan)?,
        }
        for leaf in &plan.program_inputs {
            match leaf.kind {
                ProgramInputKind::Input => {}
                ProgramInputKind::Param | ProgramInputKind::OptimizerState => {
                    if !self.executor.bind(id.0, leaf.buf, Binding::Stored(&leaf.name)) {
                        let problem = "it has no value yet".into();
                        return Err(ExecError::State { rank: self.rank, name: leaf.name.clone(), problem });
                    }
                }
                ProgramInputKind::StepNumber => {
                    let dtype = plan.buffer(leaf.buf).dtype;
                    let data = HostData::from_f64(dtype, vec![step_number as f64]);
                    let value = HostTensor { shape: vec![], data };
                    self.executor.bind(id.0, leaf.buf, Binding::Host(value));
                }
            }
        }
        Ok(())
    }

    fn bind(&mut self, id: ProgramId, plan: &Plan, inputs: Vec<HostTensor>) -> Result<(), ExecError> {
        for (buf, value) in self.fitting(plan, inputs)? {
            self.executor.bind(id.0, buf, Binding::Host(value));
        }
        Ok(())
    }

    fn bind_held(&mut self, id: ProgramId, plan: &Plan) -> Result<(), ExecError> {
        for leaf in plan.program_inputs.iter().filter(|l| l.kind == ProgramInputKind::Input) {
            if !self.executor.bind(id.0, leaf.buf, Binding::Copy(&kept(id, leaf.buf))) {
                let problem = "the device holds none".into();
                return Err(ExecError::Input { rank: self.rank, name: leaf.name.clone(), problem });
            }
        }
        Ok(())
    }

    /// Each input with its buffer, if all fit.
    fn fitting(&self, plan: &Plan, inputs: Vec<HostTensor>) -> Result<Vec<(BufId, HostTensor)>, ExecError> {
        let rank = self.rank;
        let coords = plan.mesh.coords(rank);
        let leaves: Vec<&ProgramInput> =
            plan.program_inputs.iter().filter(|l| l.kind == ProgramInputKind::Input).collect();
        if leaves.len() != inputs.len() {
            let name = leaves.last().map_or_else(String::new, |l| l.name.clone());
            let problem = format!("{} tensors were given for {} inputs", inputs.len(), leaves.len());
            return Err(ExecError::Input { rank, name, problem });
        }
        let mut fitting = Vec::with_capacity(inputs.len());
        for (leaf, value) in leaves.into_iter().zip(inputs) {
            let buffer = plan.buffer(leaf.buf);
            if let Some(problem) = mismatch(&value, buffer.dtype, &buffer.ranges(&plan.mesh, &coords)) {
                return Err(ExecError::Input { rank, name: leaf.name.clone(), problem });
            }
            fitting.push((leaf.buf, value));
        }
        Ok(fitting)
    }
}
