//! The meaning of a graph: its oracles, value by value, on whole tensors. It knows no role, no placement and no Plan.

use meshwright_exec::{HostData, HostTensor};
use meshwright_ops::{F64Tensor, Graph, Id};
use meshwright_plan::{DType, Dim};
use meshwright_sorted::SortedMap;

/// Values of the leaves.
pub(crate) type Bound = SortedMap<Id, F64Tensor>;

/// Every value of a graph, given its leaves.
pub(crate) fn walk(g: &Graph, bound: &Bound) -> Vec<F64Tensor> {
    let mut values: Vec<F64Tensor> = Vec::with_capacity(g.nodes.len());
    for id in g.ids() {
        let node = g.node(id);
        let value = match bound.get(&id) {
            Some(v) => v.ordered(&node.ty.dims),
            None => {
                let x: Vec<&F64Tensor> = node.inputs.iter().map(|i| &values[i.0 as usize]).collect();
                node.op.oracle(&x, &node.ty, &g.dims)
            }
        };
        values.push(value);
    }
    values
}

/// For a tensor on its way to a device.
pub(crate) fn to_host(x: &F64Tensor, dtype: DType, dims: &[Dim]) -> HostTensor {
    let x = x.ordered(dims);
    HostTensor::new(x.shape, HostData::from_f64(dtype, x.data)).unwrap()
}

/// For a tensor that comes from devices, in the order of `dims`.
pub(crate) fn from_host(x: &HostTensor, dims: &[Dim]) -> F64Tensor {
    F64Tensor { dims: dims.to_vec(), shape: x.shape.clone(), data: x.data.to_f64(), second: Vec::new() }
}

/// Whether two tensors of the same dims are equal within `tolerance` times the largest magnitude of `want`; a tolerance
/// of 0 asks for equal numbers. Otherwise the first element that differs most, in words.
pub(crate) fn close(got: &[f64], want: &[f64], tolerance: f64) -> Result<(), String> {
    close_from(got, want, tolerance, 0.0)
}

/// The same for values whose magnitude says little, since they may cancel to nothing: the tolerance is of `least` where
/// that is greater.
pub(crate) fn close_from(got: &[f64], want: &[f64], tolerance: f64, least: f64) -> Result<(), String> {
    if got.len() != want.len() {
        return Err(format!("{} elements instead of {}", got.len(), want.len()));
    }
    let scale = want.iter().fold(least, |m: f64, v| if v.is_finite() { m.max(v.abs()) } else { m });
    let mut worst: Option<(f64, usize)> = None;
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let off = if g == w || (g.is_nan() && w.is_nan()) { 0.0 } else { (g - w).abs() };
        if (off.is_nan() || off > tolerance * scale) && worst.is_none_or(|b| off > b.0) {
            worst = Some((off, i));
        }
    }
    match worst {
        None => Ok(()),
        Some((off, i)) => Err(format!(
            "element {i}: {} instead of {}, off by {off:e} where the largest magnitude is {scale:e}",
            got[i], want[i]
        )),
    }
}
