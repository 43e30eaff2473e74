//! Check of a Plan's dtypes before anything runs: a kernel for a dtype that the device lacks fails in the words of its
//! compiler.

use burn_backend::DType as BurnType;
use meshwright_device::stored::stored_as;
use meshwright_exec::{ExecError, Place, place};
use meshwright_plan::{BufId, DType, Plan, Prim};

/// Fails at the first value of a dtype that the device does not compute with: inputs first, then results of steps, in
/// their order.
///
/// # Errors
/// [`ExecError::DType`], which names the value.
pub fn check(plan: &Plan, rank: usize, computes: impl Fn(BurnType) -> bool) -> Result<(), ExecError> {
    // For pairs, the dtype of their indices; their values have the dtype of the folded values.
    let lacks = |dtype: DType| !computes(if dtype.is_pair() { BurnType::I32 } else { stored_as(dtype) });
    let dtype = |buf: BufId| plan.buffers.get(buf.0 as usize).map(|b| b.dtype);
    for leaf in &plan.program_inputs {
        if let Some(dtype) = dtype(leaf.buf).filter(|t| lacks(*t)) {
            let place = Place { rank, value: leaf.name.clone(), ..Place::default() };
            return Err(ExecError::DType { place: Box::new(place), dtype });
        }
    }
    for (index, step) in plan.steps.iter().enumerate() {
        let written = step.writes.iter().filter_map(|o| dtype(o.buf));
        let within = match &step.prim {
            Prim::Map { expr, .. } => expr.nodes.iter().map(|n| n.dtype).collect(),
            _ => vec![],
        };
        if let Some(dtype) = written.chain(within).find(|t| lacks(*t)) {
            return Err(ExecError::DType { place: place(plan, rank, None, Some(index)), dtype });
        }
    }
    Ok(())
}
