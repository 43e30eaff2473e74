//! Copies, and packing around collectives.

use super::kernel::{KernelWork, exactly};
#[cfg(doc)]
use super::kernels::HostWork;
use super::kernels::{Arg, CopyKernel, HostKernel, KernelError, UpdateKernel, copy_bytes};
use meshwright_device::LoweringError;
use meshwright_device::collective::halo::Halo;
use meshwright_device::collective::pack::{PackedBlock, StridedView, pack, unpack};
use meshwright_device::lowering::local::{DeviceContext, Local};
use meshwright_plan::Dim;

/// A copy to another order of dims, or of a part.
pub(super) fn copy(reads: &[Local], writes: &[Local]) -> Result<KernelWork, LoweringError> {
    let ([from], [out]) = (exactly(reads)?, exactly(writes)?);
    let mut access = from.access(&out.dims);
    for (dim, range) in from.dims.iter().zip(&from.ranges) {
        let wanted = out.range(*dim)?;
        if wanted.is_empty() {
            continue;
        }
        if wanted.start < range.start || wanted.end > range.end {
            return Err(LoweringError::Plan(format!("{wanted:?} is to be copied from {range:?}")));
        }
        access.offset += (wanted.start - range.start) * from.stride(*dim);
    }
    if from.dtype != out.dtype {
        return Err(LoweringError::Plan(format!("{} is copied to {}", from.dtype, out.dtype)));
    }
    let kernel = CopyKernel::new(&out.shape, &access)?;
    Ok(KernelWork::to_one(move |args, out| kernel.run(args.read(0)?, out)))
}

/// The element of a dim that lies first, at the position of the iteration: a view, so a loop does not copy its weights.
pub(super) fn iteration_slice(
    dim: Dim,
    reads: &[Local],
    writes: &[Local],
) -> Result<KernelWork, LoweringError> {
    let ([all], [out]) = (exactly(reads)?, exactly(writes)?);
    one_position(dim, all, out)?;
    Ok(KernelWork::view(move |rng| rng.iteration.position(dim)))
}

/// The inverse, in the storage of the whole where that may be written.
pub(super) fn iteration_update(
    dim: Dim,
    reads: &[Local],
    writes: &[Local],
) -> Result<KernelWork, LoweringError> {
    let ([all, value], [out]) = (exactly(reads)?, exactly(writes)?);
    same_dims(all, out)?;
    let bytes = one_position(dim, out, value)?;
    Ok(KernelWork::to_one(move |args, out| {
        let to = args.rng.iteration.position(dim)? * bytes;
        let out = out.into_bytes();
        if let Arg::Slice(before) = args.arg(0) {
            copy_bytes(before.bytes(), out);
        }
        copy_bytes(args.read(1)?.bytes(), &mut out[to..to + bytes]);
        Ok(())
    }))
}

/// Some positions of the first operand, or of its position of the iteration, in its storage where that may be written.
pub(super) fn dynamic_update_slice(
    context: &DeviceContext<'_>,
    [dim, from]: [Dim; 2],
    iteration: Option<Dim>,
    reads: &[Local],
    writes: &[Local],
) -> Result<KernelWork, LoweringError> {
    let ([all, value, start], [out]) = (exactly(reads)?, exactly(writes)?);
    same_dims(all, out)?;
    context.check_aligned(&[all, value, start, out], &[])?;
    let one = match iteration {
        None => out.clone(),
        Some(of) if out.dims.first() == Some(&of) => Local {
            dims: out.dims[1..].to_vec(),
            ranges: out.ranges[1..].to_vec(),
            shape: out.shape[1..].to_vec(),
            ..out.clone()
        },
        Some(_) => return Err(LoweringError::Plan("the dim of its loop is not the first".into())),
    };
    let each = one.elements();
    let walked: Vec<Dim> = one.dims.iter().map(|d| if *d == dim { from } else { *d }).collect();
    let taken = (one.position(dim)?, one.range(dim)?.clone(), value.range(from)?.len());
    let kernel = UpdateKernel::new(&one.shape, taken, &value.access(&walked), &start.access(&walked))?;
    Ok(KernelWork::to_one(move |args, mut out| {
        if let Arg::Slice(before) = args.arg(0) {
            copy_bytes(before.bytes(), out.reborrow().into_bytes());
        }
        let first = iteration.map_or(Ok(0), |of| args.rng.iteration.position(of))? * each;
        let (expected, found) = (first + each, out.len());
        let part = out.part(first..expected).ok_or(KernelError::Length { expected, found })?;
        kernel.run(args.read(1)?, args.read(2)?, part)
    }))
}

/// Bytes of one position along a dim that lies first and is whole.
fn one_position(dim: Dim, all: &Local, one: &Local) -> Result<usize, LoweringError> {
    if all.dims.first() != Some(&dim) || all.dims[1..] != one.dims || all.shape[1..] != one.shape {
        return Err(LoweringError::Plan("one position of a dim is stored otherwise than all".into()));
    }
    Ok(one.elements() * one.dtype.bytes())
}

/// Storage with zeros, or with anything.
pub(super) fn blank(zero: bool) -> Result<KernelWork, LoweringError> {
    Ok(KernelWork::to_one(move |_, out| {
        if zero {
            out.into_bytes().fill(0);
        }
        Ok(())
    }))
}

pub(super) fn same_dims(a: &Local, b: &Local) -> Result<(), String> {
    if a.dims == b.dims { Ok(()) } else { Err("dims of input and result differ".into()) }
}

/// See [`HostWork::Pack`].
pub(super) fn packing(of: &HostKernel, arrays: &[(StridedView, Vec<PackedBlock>)]) -> KernelWork {
    let (bytes, arrays) = (element(of), arrays.to_vec());
    KernelWork::to_one(move |args, out| {
        let packed = out.into_bytes();
        for (k, (view, blocks)) in arrays.iter().enumerate() {
            pack(args.read(k)?.bytes(), packed, *view, blocks, bytes);
        }
        Ok(())
    })
}

/// See [`HostWork::Unpack`].
pub(super) fn unpacking(of: &HostKernel, view: StridedView, blocks: &[PackedBlock]) -> KernelWork {
    let (bytes, blocks) = (element(of), blocks.to_vec());
    KernelWork::to_one(move |args, out| {
        unpack(args.read(0)?.bytes(), out.into_bytes(), view, &blocks, bytes);
        Ok(())
    })
}

/// See [`HostWork::JoinHalo`].
pub(super) fn joining(of: &HostKernel, halo: &Halo, has: [bool; 2]) -> KernelWork {
    let (bytes, halo) = (element(of), halo.clone());
    KernelWork::to_one(move |args, out| {
        let received = if has[0] { args.read(0)?.bytes() } else { &[] };
        let own = if has[1] { args.read(usize::from(has[0]))?.bytes() } else { &[] };
        halo.unpack(own, received, out.into_bytes(), bytes);
        Ok(())
    })
}

/// Bytes of an element of the result.
fn element(of: &HostKernel) -> usize {
    of.writes.first().map_or(0, |out| out.dtype.bytes())
}
