//! Operands of our own kernels, and the memory of their results.

use burn_cubecl::CubeDevice;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_ir::{TensorIr, TensorStatus};
use burn_std::{Metadata, Shape, Strides};
use cubecl::server::Handle;
use meshwright_device::KernelError;
use meshwright_device::arena::{result_bytes, row_pitch};
use meshwright_device::kernels::call::Launcher;
use meshwright_device::stored::extents;
use meshwright_exec::backend::RngState;
use meshwright_sorted::SortedSet;

/// A launch of a kernel of this crate.
pub(crate) struct GpuLaunch<'a> {
    pub(crate) rng: RngState,
    /// The number of the step, in the memory of the device.
    pub(crate) step: &'a CubeTensor,
    pub(crate) inputs: OwnInputs,
    pub(crate) outputs: Vec<ResultSlot<'a>>,
    /// The steps with a `relu` whose bits the run has written.
    pub(crate) relu_bits: &'a mut SortedSet<usize>,
}

impl Launcher for GpuLaunch<'_> {
    type Results = Vec<CubeTensor>;
}

/// Operands of a kernel, some of which end there. Each is held once, so that a tensor without other holders is
/// recognized.
pub(crate) struct OwnInputs {
    pub(crate) tensors: Vec<CubeTensor>,
    pub(crate) ended: Vec<bool>,
}

impl OwnInputs {
    pub(crate) fn new(tensors: Vec<CubeTensor>, irs: &[TensorIr]) -> OwnInputs {
        OwnInputs { tensors, ended: irs.iter().map(|ir| ir.status == TensorStatus::ReadWrite).collect() }
    }
}

/// A result, and where it is to be: in the arena, or wherever there is memory.
pub(crate) struct ResultSlot<'a> {
    pub(crate) ir: &'a TensorIr,
    pub(crate) device: CubeDevice,
    pub(crate) given: Option<Handle>,
}

impl ResultSlot<'_> {
    /// Its memory.
    pub(crate) fn memory(&self) -> CubeTensor {
        self.placed().unwrap_or_else(|| {
            let (client, device) = (self.device.client(), self.device.clone());
            empty_device_contiguous_dtype(client, device, Shape::from(self.ir.shape.to_vec()), self.ir.dtype)
        })
    }

    /// Its memory in the arena, if it has a place: with gaps between rows if there is more than its elements need.
    pub(crate) fn placed(&self) -> Option<CubeTensor> {
        let handle = self.given.clone()?;
        let (shape, dtype) = (self.ir.shape.to_vec(), self.ir.dtype);
        let dense = result_bytes(&shape, dtype.size(), false) == handle.size_in_used();
        let pitch = if dense { shape.last().copied().unwrap_or(1) } else { row_pitch(&shape, dtype.size()) };
        let mut strides = vec![1; shape.len()];
        for dim in (1..shape.len()).rev() {
            let extent = if dim + 1 == shape.len() { pitch } else { shape[dim] };
            strides[dim - 1] = strides[dim] * extent;
        }
        let meta = Metadata::new(Shape::from(shape), Strides::from(strides));
        Some(CubeTensor::new(self.device.client(), handle, meta, self.device.clone(), dtype))
    }

    /// Whether it overwrites a tensor that ends, with the same layout if `alike`: in the arena that is known
    /// beforehand, elsewhere it can if the tensor has no other holder.
    pub(crate) fn is_over(&self, tensor: &CubeTensor, alike: bool) -> Result<bool, KernelError> {
        match &self.given {
            Some(given) if is_same(&tensor.handle, given) && !alike => {
                Err(KernelError::Unsupported("a result has the place of what lies in another order".into()))
            }
            Some(given) => Ok(is_same(&tensor.handle, given)),
            None => Ok(alike && tensor.can_mut()),
        }
    }
}

/// Whether two handles are of the same bytes.
pub(crate) fn is_same(a: &Handle, b: &Handle) -> bool {
    let place = |h: &Handle| (h.offset_start.unwrap_or(0), h.size_in_used());
    place(a) == place(b) && a.memory.descriptor() == b.memory.descriptor()
}

/// Operands and results of a kernel, with the result that takes each input's storage.
pub(crate) struct BoundTensors {
    pub(crate) inputs: Vec<CubeTensor>,
    pub(crate) outputs: Vec<CubeTensor>,
    pub(crate) given: Vec<Option<usize>>,
}

/// The memory of a kernel's results, each in the storage of one of the operands that it may overwrite, if that operand
/// ends and has storage. Such results have these sizes.
pub(crate) fn placed(
    OwnInputs { tensors, ended }: OwnInputs,
    results: &[ResultSlot<'_>],
    (over, sizes): (&[Vec<usize>], &[usize]),
) -> Result<BoundTensors, KernelError> {
    let (mut outputs, mut given) = (vec![], vec![None; tensors.len()]);
    for (o, slot) in results.iter().enumerate() {
        let mut from = None;
        for i in over[o].iter().copied().filter(|i| ended[*i]) {
            if given[i].is_none() && slot.is_over(&tensors[i], is_by_rows(sizes, &tensors[i]))? {
                (from, given[i]) = (Some(i), Some(o));
                break;
            }
        }
        outputs.push(from.map_or_else(|| slot.memory(), |i| tensors[i].clone()));
    }
    Ok(BoundTensors { inputs: tensors, outputs, given })
}

/// Whether a result has the layout of an input, so that the thread that writes an element is the one that reads it.
fn is_by_rows(sizes: &[usize], input: &CubeTensor) -> bool {
    let same = input.meta.shape.iter().copied().eq(extents(sizes));
    // Nowhere two elements in one place, and no other order than by rows. Where there is one position, the next one is nowhere.
    let dims = input.meta.shape.iter().zip(input.meta.strides.iter()).filter(|(size, _)| **size != 1);
    let dims: Vec<(usize, usize)> = dims.map(|(size, stride)| (*size, *stride)).collect();
    let by_rows = dims.windows(2).all(|d| d[0].1 >= d[1].1 * d[1].0) && dims.iter().all(|d| d.1 > 0);
    same && by_rows
}
