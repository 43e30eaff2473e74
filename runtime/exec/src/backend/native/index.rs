//! Lookups and their transpose.

use super::kernel::{KernelWork, exactly};
use super::kernels::{Along, LookupKernel, ScatterAddKernel};
use crate::engine::context::{DeviceContext, Local};
use crate::engine::lowering::LoweringError;
use meshwright_plan::Dim;

pub(super) fn lookup(
    context: &DeviceContext<'_>,
    dim: Dim,
    reads: &[Local],
    writes: &[Local],
) -> Result<KernelWork, LoweringError> {
    let ([table, index], [out]) = (exactly(reads)?, exactly(writes)?);
    context.check_aligned(&[table, index, out], &[dim])?;
    let along = along(table, dim)?;
    let kernel = LookupKernel::new(&out.shape, &table.access(&out.dims), along, &index.access(&out.dims))?;
    Ok(KernelWork::to_one(move |args, out| kernel.run(args.read(0)?, args.read(1)?, out)))
}

pub(super) fn scatter_add(
    context: &DeviceContext<'_>,
    dim: Dim,
    reads: &[Local],
    writes: &[Local],
) -> Result<KernelWork, LoweringError> {
    let ([values, index], [out]) = (exactly(reads)?, exactly(writes)?);
    context.check_aligned(&[values, index, out], &[dim])?;
    // Over all dims of the values, and what these lack of the others before them.
    let missing = index.dims.iter().chain(out.dims.iter().filter(|d| **d != dim));
    let mut over: Vec<Dim> = vec![];
    for d in missing.filter(|d| values.at(**d).is_none()) {
        if !over.contains(d) {
            over.push(*d);
        }
    }
    over.extend(&values.dims);
    let mut shape = vec![];
    for d in &over {
        let held = [values, index, out].into_iter().find(|l| l.at(*d).is_some());
        shape.push(held.map_or(Ok(0), |l| l.range(*d).map(ExactSizeIterator::len))?);
    }
    let along = along(out, dim)?;
    let [v, i, o] = [values, index, out].map(|l| l.access(&over));
    let kernel = ScatterAddKernel::new(&shape, &v, &i, &o, along)?;
    Ok(KernelWork::to_one(move |args, out| kernel.run(args.read(0)?, args.read(1)?, out)))
}

fn along(local: &Local, dim: Dim) -> Result<Along, String> {
    let range = local.range(dim)?;
    Ok(Along { stride: local.stride(dim), start: range.start, len: range.len() })
}
