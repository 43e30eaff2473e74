//! Products of matrices that no fast kernel of a GPU computes, found on a Plan.

use super::place::place;
use crate::error::ExecError;
use meshwright_device::lowering::contraction::{Contraction, contraction};
use meshwright_device::lowering::local::{DeviceContext, Local};
use meshwright_device::passes::rounded_factors::rounded_buffers;
use meshwright_gpu::matmuls::LARGE_PRODUCT;
use meshwright_plan::{Plan, Prim};

/// Bytes of one load in the fast kernels of a Hopper GPU.
const LOAD: usize = 16;

/// A large product that no fast kernel computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowMatmul {
    /// The step of the Plan.
    pub step: usize,
    /// Batches, rows, columns and summed terms, of the device with the largest shards.
    pub extents: [usize; 4],
    /// Why, in words.
    pub because: String,
}

/// Large matmuls of a Plan that tensor cores do not compute: those of wide types whose factors are not rounded to TF32, or
/// narrower than one load of such a kernel. Other extents that are not multiples of 16 bytes are cut (`meshwright_gpu::matmuls`).
///
/// # Errors
/// Where the Plan contradicts itself.
pub fn slow_matmuls(plan: &Plan) -> Result<Vec<SlowMatmul>, ExecError> {
    let (context, rounded) = (DeviceContext::new(plan, 0), rounded_buffers(plan));
    let mut found = vec![];
    for (number, step) in plan.steps.iter().enumerate().filter(|(_, s)| matches!(s.prim, Prim::Contract)) {
        let at = |problem| ExecError::Plan { place: place(plan, 0, None, Some(number)), problem };
        let locals: Result<Vec<Local>, String> = step.all().map(|o| context.local(o)).collect();
        let locals = locals.map_err(at)?;
        let [a, b, out] = &locals[..] else { continue };
        let Contraction::Matmul(product) = contraction(a, b, out).map_err(at)? else { continue };
        let [batches @ .., rows, columns] = &product.shape[..] else { continue };
        let extents = [batches.iter().product(), *rows, *columns, product.summed];
        let multiplications: f64 = extents.iter().map(|n| *n as f64).product();
        if multiplications < LARGE_PRODUCT {
            continue;
        }
        let names = ["rows", "columns", "terms of each sum"];
        let least = LOAD / a.dtype.bytes();
        let narrow = names.iter().zip(&extents[1..]).find(|(_, n)| **n < least);
        let few_digits = a.dtype.is_half() || step.reads.iter().all(|o| rounded.contains(&o.buf));
        let because = match narrow {
            _ if !few_digits => format!("tensor cores do not multiply `{}` exactly", a.dtype),
            Some((name, n)) => format!("it has {n} {name}, and tensor cores take {least} at a time"),
            None => continue,
        };
        found.push(SlowMatmul { step: number, extents, because });
    }
    Ok(found)
}
