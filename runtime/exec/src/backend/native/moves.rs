//! What moves elements: copies, and the packing around collectives.

use super::kernel::{Held, Kernel, KernelWork, exactly};
use super::kernels::{Arg, CopyKernel, KernelError, UpdateKernel, copy_bytes};
use crate::collective::halo::Halo;
use crate::collective::pack::{Blocked, PackedBlock, StridedView, in_turn, pack, unpack};
use crate::engine::context::{DeviceContext, Local};
use crate::engine::graph::Val;
use crate::engine::lowering::{Lowering, LoweringError};
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
    Ok(KernelWork::in_place(all.access(&out.dims), move |args, out| {
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
    Ok(KernelWork::in_place(all.access(&out.dims), move |args, mut out| {
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

impl Lowering<'_, Kernel> {
    /// See [`crate::backend::Backend::pack`].
    pub(super) fn pack(&mut self, arrays: &[Blocked<'_>]) -> Val {
        let views: Vec<StridedView> =
            arrays.iter().map(|a| StridedView::new(&a.local.shape, a.axis)).collect();
        let ranges = arrays.iter().map(|a| a.ranges.as_slice());
        let (blocks, elements) = in_turn(&views.iter().copied().zip(ranges).collect::<Vec<_>>());
        let local = arrays[0].local;
        let bytes = local.dtype.bytes();
        let work = KernelWork::to_one(move |args, out| {
            let packed = out.into_bytes();
            for (k, (view, blocks)) in views.iter().zip(&blocks).enumerate() {
                pack(args.read(k)?.bytes(), packed, *view, blocks, bytes);
            }
            Ok(())
        });
        let packed = Local { shape: vec![elements], ..local.clone() };
        let held = arrays.iter().map(|a| Held { local: a.local.clone(), val: a.val });
        self.one("pack", work, &held.collect::<Vec<_>>(), &packed).val
    }

    /// See [`crate::backend::Backend::unpack`].
    pub(super) fn unpack(&mut self, packed: Val, local: &Local, axis: usize, blocks: &[PackedBlock]) -> Val {
        let view = StridedView::new(&local.shape, axis);
        let (bytes, blocks) = (local.dtype.bytes(), blocks.to_vec());
        let work = KernelWork::to_one(move |args, out| {
            unpack(args.read(0)?.bytes(), out.into_bytes(), view, &blocks, bytes);
            Ok(())
        });
        self.one("unpack", work, &[Held { local: local.clone(), val: packed }], local).val
    }

    /// See [`crate::backend::Backend::join_halo`].
    pub(super) fn join_halo(
        &mut self,
        halo: &Halo,
        received: Option<Val>,
        own: Option<Val>,
        local: &Local,
    ) -> Val {
        let (bytes, halo) = (local.dtype.bytes(), halo.clone());
        let has = [received.is_some(), own.is_some()];
        let work = KernelWork::to_one(move |args, out| {
            let received = if has[0] { args.read(0)?.bytes() } else { &[] };
            let own = if has[1] { args.read(usize::from(has[0]))?.bytes() } else { &[] };
            halo.unpack(own, received, out.into_bytes(), bytes);
            Ok(())
        });
        let reads: Vec<Held> =
            received.into_iter().chain(own).map(|val| Held { local: local.clone(), val }).collect();
        self.one("join_halo", work, &reads, local).val
    }
}
