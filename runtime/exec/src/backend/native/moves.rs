//! What moves elements: copies, and the packing around collectives.

use super::kernel::{Held, Kernel, KernelWork, exactly};
use super::kernels::CopyKernel;
use crate::collective::halo::Halo;
use crate::collective::pack::{Blocked, PackedBlock, StridedView, in_turn, pack, unpack};
use crate::engine::context::Local;
use crate::engine::graph::Val;
use crate::engine::lowering::{Lowering, LoweringError};

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
