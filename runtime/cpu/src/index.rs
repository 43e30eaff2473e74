//! Lookups and their transpose.

use super::kernel::{Args, KernelWork, exactly};
use super::kernels::{Access, Along, JointPositions, KernelError, LookupKernel, ScatterAddKernel, Slice};
use meshwright_device::LoweringError;
use meshwright_device::lowering::local::{DeviceContext, Local};
use meshwright_plan::{DType, Dim};

pub(super) fn lookup(
    context: &DeviceContext<'_>,
    dims: &[Dim],
    reads: &[Local],
    writes: &[Local],
) -> Result<KernelWork, LoweringError> {
    let ((table, indices), [out]) = (first(reads)?, exactly(writes)?);
    context.check_aligned(&reads.iter().chain([out]).collect::<Vec<_>>(), dims)?;
    let at = Positions::of(table, dims, indices)?;
    let index = at.access(&out.dims);
    let kernel = LookupKernel::new(&out.shape, &table.access(&out.dims), at.along, &index)?;
    Ok(KernelWork::to_one(move |args, out| {
        let table = args.read(0)?;
        at.read(args, |index| kernel.run(table, index, out))
    }))
}

pub(super) fn scatter_add(
    context: &DeviceContext<'_>,
    dims: &[Dim],
    reads: &[Local],
    writes: &[Local],
) -> Result<KernelWork, LoweringError> {
    let ((values, indices), [out]) = (first(reads)?, exactly(writes)?);
    let all: Vec<&Local> = reads.iter().chain([out]).collect();
    context.check_aligned(&all, dims)?;
    // Over all dims of the values, and what these lack of the others before them.
    let of_indices = indices.iter().flat_map(|i| &i.dims);
    let missing = of_indices.chain(out.dims.iter().filter(|d| !dims.contains(d)));
    let mut over: Vec<Dim> = vec![];
    for d in missing.filter(|d| values.at(**d).is_none()) {
        if !over.contains(d) {
            over.push(*d);
        }
    }
    over.extend(&values.dims);
    let mut shape = vec![];
    for d in &over {
        let held = all.iter().find(|l| l.at(*d).is_some());
        shape.push(held.map_or(Ok(0), |l| l.range(*d).map(ExactSizeIterator::len))?);
    }
    let at = Positions::of(out, dims, indices)?;
    let [v, o] = [values, out].map(|l| l.access(&over));
    let kernel = ScatterAddKernel::new(&shape, &v, &at.access(&over), &o, at.along)?;
    Ok(KernelWork::to_one(move |args, out| {
        let values = args.read(0)?;
        at.read(args, |index| kernel.run(values, index, out))
    }))
}

/// The first operand, and the others.
fn first(reads: &[Local]) -> Result<(&Local, &[Local]), String> {
    reads.split_first().ok_or_else(|| "no operands".into())
}

/// Positions that the index operands give.
struct Positions {
    along: Along,
    /// Dims and sizes of the positions.
    dims: Vec<Dim>,
    shape: Vec<usize>,
    dtype: DType,
    /// Conversion of positions along several dims into one position.
    joint: Option<JointPositions>,
}

impl Positions {
    fn of(of: &Local, dims: &[Dim], indices: &[Local]) -> Result<Positions, LoweringError> {
        let alongs = dims.iter().map(|d| along(of, *d)).collect::<Result<Vec<_>, _>>()?;
        if let ([index], [along]) = (indices, &alongs[..]) {
            let (dims, shape) = (index.dims.clone(), index.shape.clone());
            return Ok(Positions { along: *along, dims, shape, dtype: index.dtype, joint: None });
        }
        if indices.len() != dims.len() {
            return Err(LoweringError::Plan(format!("{} indices of {} dims", indices.len(), dims.len())));
        }
        let (mut over, mut shape) = (vec![], vec![]);
        for (d, n) in indices.iter().flat_map(|i| i.dims.iter().zip(&i.shape)) {
            if !over.contains(d) {
                over.push(*d);
                shape.push(*n);
            }
        }
        let parts: Vec<(Access, Along)> = indices.iter().map(|i| i.access(&over)).zip(alongs).collect();
        let joint = JointPositions::new(&shape, &parts)?;
        Ok(Positions { along: joint.along(), dims: over, shape, dtype: DType::I32, joint: Some(joint) })
    }

    fn access(&self, over: &[Dim]) -> Access {
        Access::by_dims(self.dtype, over, &self.dims, &self.shape)
    }

    fn read(
        &self,
        args: &Args<'_>,
        then: impl FnOnce(Slice<'_>) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        let Some(joint) = &self.joint else { return then(args.read(1)?) };
        let indices = (1..args.len()).map(|k| args.read(k)).collect::<Result<Vec<_>, _>>()?;
        then(Slice::I32(&joint.run(&indices)?))
    }
}

fn along(local: &Local, dim: Dim) -> Result<Along, String> {
    let range = local.range(dim)?;
    Ok(Along { stride: local.stride(dim), start: range.start, len: range.len() })
}
