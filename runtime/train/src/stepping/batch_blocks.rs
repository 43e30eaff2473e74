//! Batches as a program has them that runs the steps itself: each device takes its own part of each array, and nothing else is
//! copied.

use crate::devices::{Batch, LoadedProgram, in_dtype};
use crate::project::Project;
use meshwright_diag::{Diagnostic, codes, nearest};
use meshwright_exec::{HostData, HostTensor, LocalInput};
use meshwright_files::Checked;
use meshwright_files::text::listed;
use meshwright_plan::DType;
use std::ops::Range;
use std::sync::Arc;

/// An input as a batch must have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputForm {
    /// Its name.
    pub name: String,
    /// Names of its dims in declared order; the first counts examples.
    pub dims: Vec<String>,
    /// Their sizes.
    pub shape: Vec<usize>,
    /// Type of its elements in the program.
    pub dtype: DType,
    /// Its values must be in `0..range`.
    pub range: Option<usize>,
}

/// The inputs of a project.
pub(crate) fn input_forms(project: &Project) -> Vec<InputForm> {
    let dims = &project.program.graph.dims;
    let form = |i: &meshwright_plan::InputDecl| InputForm {
        name: i.name.clone(),
        dims: i.dims.iter().map(|d| dims.name(*d).to_string()).collect(),
        shape: dims.shape(&i.dims),
        dtype: i.dtype,
        range: i.range.map(|d| dims.size(d)),
    };
    project.program.inputs.iter().map(|i| form(&i.0)).collect()
}

/// A batch that somebody else holds.
pub trait GivenBatch {
    /// The names of its arrays.
    fn names(&self) -> Vec<&str>;
    /// Type and shape of an array; none where there is none of that name.
    fn form(&self, name: &str) -> Option<(DType, Vec<usize>)>;
    /// The part of an array at these ranges, which are within its shape.
    fn part(&self, name: &str, ranges: &[Range<usize>]) -> Option<HostTensor>;
}

/// What the devices of this process need of a batch.
#[derive(Clone, Debug)]
pub struct BatchNeeds {
    of_devices: Arc<Vec<Vec<LocalInput>>>,
    forms: Arc<Vec<InputForm>>,
    allow_nonfinite: bool,
}

/// The parts of a batch that the devices need, checked.
#[derive(Debug)]
pub struct GivenBlocks(pub(crate) Batch);

impl BatchNeeds {
    pub(crate) fn new(program: &LoadedProgram, project: &Project, allow_nonfinite: bool) -> BatchNeeds {
        let (of_devices, forms) = (Arc::new(program.needs.clone()), Arc::new(input_forms(project)));
        BatchNeeds { of_devices, forms, allow_nonfinite }
    }

    /// The inputs that are read, as a batch must have them.
    pub fn inputs(&self) -> impl Iterator<Item = &InputForm> {
        let read = |f: &&InputForm| self.of_devices.iter().flatten().any(|l| l.name == f.name);
        self.forms.iter().filter(read)
    }

    /// Takes the devices' parts of a batch.
    ///
    /// # Errors
    /// E0503 where an input is missing or an array belongs to none, E0504 for other sizes, E0505 for another kind of elements,
    /// E0506 for values that are out of range or not finite.
    pub fn take(&self, given: &dyn GivenBatch) -> Checked<GivenBlocks> {
        self.fits(given)?;
        let one = |leaf: &LocalInput| {
            let part = given.part(&leaf.name, &leaf.ranges).filter(|t| t.shape == leaf.shape());
            let part = part.ok_or_else(|| error(codes::E0504, &leaf.name, "it cannot be sliced"))?;
            if let Some(form) = self.forms.iter().find(|f| f.name == leaf.name) {
                self.holds(form, &part.data)?;
            }
            Ok(in_dtype(part, leaf.dtype))
        };
        let device = |leaves: &Vec<LocalInput>| leaves.iter().map(one).collect::<Checked<Vec<_>>>();
        Ok(GivenBlocks(self.of_devices.iter().map(device).collect::<Checked<_>>()?))
    }

    fn fits(&self, given: &dyn GivenBatch) -> Checked<()> {
        for form in self.inputs() {
            let Some((dtype, shape)) = given.form(&form.name) else {
                let d = Diagnostic::error(codes::E0503, format!("the batch has no `{}`", form.name));
                return Err(Box::new(d.help(format!("it has {}", listed(&given.names())))));
            };
            if shape != form.shape {
                let dims: Vec<String> =
                    form.dims.iter().zip(&form.shape).map(|(d, n)| format!("{d}={n}")).collect();
                let why = format!("it has the shape {shape:?}, and the input has [{}]", dims.join(", "));
                return Err(error(codes::E0504, &form.name, &why));
            }
            let number = |t: DType| matches!(t, DType::F64 | DType::F32 | DType::BF16 | DType::F16);
            if number(dtype) && !number(form.dtype) {
                let why = format!("it has elements of {dtype}, and the input those of {}", form.dtype);
                return Err(error(codes::E0505, &form.name, &why));
            }
        }
        let known = |name: &&str| self.forms.iter().any(|f| f.name == *name);
        let Some(unknown) = given.names().into_iter().find(|n| !known(n)) else { return Ok(()) };
        let message = format!("the batch has `{unknown}`, which is no input of the model");
        let d = Diagnostic::error(codes::E0503, message);
        let names = || self.forms.iter().map(|f| f.name.as_str());
        Err(Box::new(match nearest(unknown, names()) {
            Some(near) => d.help(format!("did you mean `{near}`?")),
            None => d.help(format!("its inputs are {}", listed(&names().collect::<Vec<_>>()))),
        }))
    }

    /// Checks values: those that count along a dim are below its size, and numbers are finite.
    fn holds(&self, form: &InputForm, data: &HostData) -> Checked<()> {
        let odd = match data {
            HostData::F32(v) if !self.allow_nonfinite => {
                v.iter().find(|x| !x.is_finite()).map(ToString::to_string)
            }
            HostData::F64(v) if !self.allow_nonfinite => {
                v.iter().find(|x| !x.is_finite()).map(ToString::to_string)
            }
            _ => None,
        };
        if let Some(value) = odd {
            return Err(error(
                codes::E0506,
                &form.name,
                &format!("it has the value {value}, which is not finite"),
            ));
        }
        let Some(size) = form.range else { return Ok(()) };
        let outside = |x: &&i32| usize::try_from(**x).map_or(true, |x| x >= size);
        let found = match data {
            HostData::I32(v) => v.iter().find(outside).copied(),
            HostData::U8(v) => v.iter().find(|x| usize::from(**x) >= size).map(|x| i32::from(*x)),
            _ => None,
        };
        match found {
            Some(x) => Err(error(
                codes::E0506,
                &form.name,
                &format!("it has the value {x}, which is not in 0..{size}"),
            )),
            None => Ok(()),
        }
    }
}

fn error(code: codes::Code, name: &str, why: &str) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(code, format!("`{name}` of the batch cannot be taken: {why}")))
}
