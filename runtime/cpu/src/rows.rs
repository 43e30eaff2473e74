//! Steps along a dim that is whole: every row by itself.

use super::kernel::{KernelWork, exactly};
use super::kernels::{
    Access, Arg, CrossEntropyGradKernel, CrossEntropyKernel, KernelError, LogSumExpKernel, SliceMut,
    TopKKernel,
};
use meshwright_device::LoweringError;
use meshwright_device::lowering::local::{DeviceContext, Local};
use meshwright_plan::{DType, Dim};

/// A kernel along one dim of operands that are alike, which may overwrite what it reads: what `prepare` makes of a dtype, a
/// shape and the position of the dim.
pub(super) fn in_place<K>(
    context: &DeviceContext<'_>,
    dim: Dim,
    reads: &[Local],
    writes: &[Local],
    prepare: impl FnOnce(DType, &[usize], usize) -> Result<K, KernelError>,
) -> Result<KernelWork, LoweringError>
where
    K: Fn(Arg<'_>, SliceMut<'_>) -> Result<(), KernelError> + Send + 'static,
{
    let ([input], [out]) = (exactly(reads)?, exactly(writes)?);
    let at = row(context, input, out, dim)?;
    let kernel = prepare(input.dtype, &out.shape, at)?;
    Ok(KernelWork::to_one(move |args, out| kernel(args.arg(0), out)))
}

pub(super) fn top_k(
    context: &DeviceContext<'_>,
    [dim, to]: [Dim; 2],
    reads: &[Local],
    writes: &[Local],
) -> Result<KernelWork, LoweringError> {
    let ([input], [out]) = (exactly(reads)?, exactly(writes)?);
    context.check_aligned(&[input, out], &[])?;
    let Some((last, rows)) = out.dims.split_last().filter(|(last, _)| **last == to) else {
        return Err(LoweringError::Plan("the ranks are not the last dim of their result".into()));
    };
    let (count, ranks) = (input.range(dim)?.len(), out.range(*last)?.clone());
    let access = input.access(&[rows, &[dim]].concat());
    let kernel = TopKKernel::new(&out.shape[..rows.len()], count, &access, ranks)?;
    Ok(KernelWork::to_one(move |args, out| kernel.run(args.read(0)?, out)))
}

pub(super) fn log_sum_exp(
    context: &DeviceContext<'_>,
    dim: Dim,
    reads: &[Local],
    writes: &[Local],
) -> Result<KernelWork, LoweringError> {
    let ([input], [out]) = (exactly(reads)?, exactly(writes)?);
    context.check_aligned(&[input, out], &[])?;
    let (classes, access) = rows_then(input, out, dim)?;
    let kernel = LogSumExpKernel::new(&out.shape, classes, &access)?;
    Ok(KernelWork::to_one(move |args, out| kernel.run(args.read(0)?, out)))
}

pub(super) fn cross_entropy(
    context: &DeviceContext<'_>,
    dim: Dim,
    reads: &[Local],
    writes: &[Local],
) -> Result<KernelWork, LoweringError> {
    let ([logits, label], [out]) = (exactly(reads)?, exactly(writes)?);
    context.check_aligned(&[logits, label, out], &[])?;
    let (classes, access) = rows_then(logits, out, dim)?;
    let kernel = CrossEntropyKernel::new(&out.shape, classes, &access, &label.access(&out.dims))?;
    Ok(KernelWork::to_one(move |args, out| kernel.run(args.read(0)?, args.read(1)?, out)))
}

pub(super) fn cross_entropy_grad(
    context: &DeviceContext<'_>,
    dim: Dim,
    reads: &[Local],
    writes: &[Local],
) -> Result<KernelWork, LoweringError> {
    let ([logits, label, scale], [out]) = (exactly(reads)?, exactly(writes)?);
    context.check_aligned(&[logits, label, scale, out], &[])?;
    let at = row(context, logits, out, dim)?;
    let [labels, scales] = [label, scale].map(|l| l.access(&out.dims));
    let kernel = CrossEntropyGradKernel::new(out.dtype, &out.shape, at, &labels, &scales)?;
    Ok(KernelWork::to_one(move |args, out| kernel.run(args.arg(0), args.read(1)?, args.read(2)?, out)))
}

/// Position of the dim of a row, where operand and result have the same dims.
fn row(context: &DeviceContext<'_>, input: &Local, out: &Local, dim: Dim) -> Result<usize, LoweringError> {
    context.check_aligned(&[input, out], &[])?;
    super::moves::same_dims(input, out)?;
    Ok(input.position(dim)?)
}

/// Access over the rows of `out`, then the classes along `dim`.
fn rows_then(input: &Local, out: &Local, dim: Dim) -> Result<(usize, Access), String> {
    let classes = input.range(dim)?.len();
    Ok((classes, input.access(&[out.dims.as_slice(), &[dim]].concat())))
}
