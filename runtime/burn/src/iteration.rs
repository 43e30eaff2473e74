//! One position of a loop's stack, which is known when the body runs.

use burn_backend::Slice;
use burn_ir::{BackendIr, HandleContainer, HandleKind, TensorIr};

/// A position of the first extent, all of the others.
fn ranges(all: &TensorIr, at: usize) -> Vec<Slice> {
    let mut ranges: Vec<Slice> =
        all.shape.to_vec().iter().map(|n| Slice::new(0, Some(*n as isize), 1)).collect();
    ranges[0] = Slice::new(at as isize, Some(at as isize + 1), 1);
    ranges
}

/// The tensor at a position of the first extent of `all`, which its dim loses.
pub fn slice_at<B: BackendIr>(
    handles: &mut HandleContainer<B::Handle>,
    all: &TensorIr,
    out: &TensorIr,
    at: usize,
) -> HandleKind<B> {
    let (ranges, shape) = (ranges(all, at), out.shape.clone());
    if all.dtype.is_float() {
        HandleKind::Float(B::float_reshape(
            B::float_slice(handles.get_float_tensor::<B>(all), &ranges),
            shape,
        ))
    } else if all.dtype.is_bool() {
        HandleKind::Bool(B::bool_reshape(B::bool_slice(handles.get_bool_tensor::<B>(all), &ranges), shape))
    } else {
        HandleKind::Int(B::int_reshape(B::int_slice(handles.get_int_tensor::<B>(all), &ranges), shape))
    }
}

/// `all` with `value` at a position of its first extent.
pub fn update_at<B: BackendIr>(
    handles: &mut HandleContainer<B::Handle>,
    all: &TensorIr,
    value: &TensorIr,
    at: usize,
) -> HandleKind<B> {
    let ranges = ranges(all, at);
    let mut shape = all.shape.clone();
    shape[0] = 1;
    if all.dtype.is_float() {
        let value = B::float_reshape(handles.get_float_tensor::<B>(value), shape);
        HandleKind::Float(B::float_slice_assign(handles.get_float_tensor::<B>(all), &ranges, value))
    } else if all.dtype.is_bool() {
        let value = B::bool_reshape(handles.get_bool_tensor::<B>(value), shape);
        HandleKind::Bool(B::bool_slice_assign(handles.get_bool_tensor::<B>(all), &ranges, value))
    } else {
        let value = B::int_reshape(handles.get_int_tensor::<B>(value), shape);
        HandleKind::Int(B::int_slice_assign(handles.get_int_tensor::<B>(all), &ranges, value))
    }
}
