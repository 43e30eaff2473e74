//! A prepared kernel, with its operands and results.

use super::pool::Pool;
use super::tensor::{owns_storage, slice, slice_mut, view_of_part};
use crate::kernels::{Arg, KernelError, Slice, SliceMut};
use burn_flex::FlexTensor;
use meshwright_device::LoweringError;
use meshwright_device::lowering::local::Local;
use meshwright_device::stored::{stored_as, stored_shape};
use meshwright_exec::backend::RngState;
use meshwright_plan::DType;

/// The function of a kernel on its operands and results.
type RunKernel = Box<dyn Fn(&Args<'_>, &mut [SliceMut<'_>]) -> Result<(), KernelError> + Send>;

/// Source of a kernel's results.
enum How {
    /// It writes them.
    Run(RunKernel),
    /// Its result is one part of its operand along the first dim, in the operand's storage: which one.
    View(Box<dyn Fn(RngState) -> Result<usize, KernelError> + Send>),
}

/// A kernel that is prepared for a step, before it is known where its operands are.
pub(crate) struct KernelWork {
    how: How,
}

impl KernelWork {
    /// A kernel with any number of results.
    pub(crate) fn new(
        run: impl Fn(&Args<'_>, &mut [SliceMut<'_>]) -> Result<(), KernelError> + Send + 'static,
    ) -> KernelWork {
        KernelWork { how: How::Run(Box::new(run)) }
    }

    /// No work: the result is the part of the operand along its first dim that `part` chooses, and shares its storage.
    pub(crate) fn view(part: impl Fn(RngState) -> Result<usize, KernelError> + Send + 'static) -> KernelWork {
        KernelWork { how: How::View(Box::new(part)) }
    }

    /// A kernel with one result.
    pub(crate) fn to_one(
        run: impl Fn(&Args<'_>, SliceMut<'_>) -> Result<(), KernelError> + Send + 'static,
    ) -> KernelWork {
        KernelWork::new(move |args, outs| match outs {
            [out] => run(args, out.reborrow()),
            _ => Err(KernelError::Count { expected: 1, found: outs.len() }),
        })
    }
}

/// Exactly `N` operands or results.
pub(super) fn exactly<const N: usize>(locals: &[Local]) -> Result<&[Local; N], LoweringError> {
    let found = locals.len();
    locals.try_into().map_err(|_| LoweringError::Plan(format!("{found} operands where {N} are needed")))
}

/// A result of a kernel.
pub(crate) struct Output {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    /// The input whose storage it takes over.
    pub(crate) aliases: Option<usize>,
}

/// A kernel of a program.
pub(crate) struct Kernel {
    pub(crate) work: KernelWork,
    /// Dtypes of the operands, in the order of the operation.
    pub(crate) inputs: Vec<DType>,
    /// For each operand of the kernel the position among the inputs.
    pub(crate) loads: Vec<usize>,
    pub(crate) outputs: Vec<Output>,
}

/// The operands of a kernel that runs.
pub(crate) struct Args<'a> {
    kernel: &'a Kernel,
    /// Nothing where a result took the storage.
    inputs: &'a [Option<FlexTensor>],
    /// Per input, the output that has taken its storage, if any.
    became: &'a [Option<usize>],
    pub(crate) rng: RngState,
}

impl Args<'_> {
    /// An operand, whose storage a result may overwrite.
    pub(crate) fn arg(&self, operand: usize) -> Arg<'_> {
        let at = self.kernel.loads[operand];
        match &self.inputs[at] {
            Some(tensor) => Arg::Slice(slice(tensor, self.kernel.inputs[at])),
            None => Arg::Out(self.became[at].unwrap_or(0)),
        }
    }

    /// An operand.
    pub(crate) fn read(&self, operand: usize) -> Result<Slice<'_>, KernelError> {
        match self.arg(operand) {
            Arg::Slice(slice) => Ok(slice),
            Arg::Out(_) => Err(KernelError::Unsupported("this operand cannot be overwritten".into())),
        }
    }

    /// Number of operands.
    pub(crate) fn len(&self) -> usize {
        self.kernel.loads.len()
    }

    /// All operands.
    pub(crate) fn all(&self) -> impl Iterator<Item = Arg<'_>> {
        (0..self.len()).map(|k| self.arg(k))
    }
}

impl Kernel {
    /// Runs it on a tensor for each of its inputs, whose storage goes back to the pool where `ends` says that this is the last
    /// use. Gives the results.
    pub(crate) fn run(
        &self,
        mut inputs: Vec<Option<FlexTensor>>,
        ends: impl Fn(usize) -> bool,
        rng: RngState,
        pool: &mut Pool,
    ) -> Result<Vec<FlexTensor>, KernelError> {
        let run = match &self.work.how {
            How::Run(run) => run,
            How::View(part) => {
                let all = inputs.first().and_then(Option::as_ref);
                let all = all.ok_or(KernelError::Count { expected: 1, found: 0 })?;
                let shapes = self.outputs.iter().map(|o| stored_shape(o.dtype, &o.shape));
                let position = part(rng)?;
                return Ok(shapes.map(|shape| view_of_part(all, position, shape)).collect());
            }
        };
        let mut became: Vec<Option<usize>> = vec![None; inputs.len()];
        let mut outs = Vec::with_capacity(self.outputs.len());
        for (k, out) in self.outputs.iter().enumerate() {
            let reused = out.aliases.and_then(|at| {
                let free = |t: &mut FlexTensor| owns_storage(t) && t.dtype() == stored_as(out.dtype);
                let tensor = inputs[at].take_if(free)?;
                became[at] = Some(k);
                Some(tensor)
            });
            outs.push(match reused {
                Some(tensor) => tensor,
                None => pool.take(out.dtype, &out.shape)?,
            });
        }
        let args = Args { kernel: self, inputs: &inputs, became: &became, rng };
        let mut written: Vec<SliceMut<'_>> =
            outs.iter_mut().zip(&self.outputs).map(|(t, o)| slice_mut(t, o.dtype)).collect();
        run(&args, &mut written)?;
        for (at, tensor) in inputs.into_iter().enumerate() {
            if let Some(tensor) = tensor.filter(|_| ends(at)) {
                pool.give(tensor);
            }
        }
        Ok(outs)
    }
}
