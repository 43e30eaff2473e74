//! Tensors in another shape, and parts of them, where they lie.

use burn_cubecl::tensor::CubeTensor;
use burn_ir::BaseOperationIr as Base;
use burn_std::{Metadata, Shape, Strides};
use std::ops::Range;

/// Widest access of Burn's kernels in bytes: they can read a tensor at any multiple of it.
const WIDEST: u64 = 16;

/// See [`meshwright_exec::backend::Backend::view`].
pub(crate) fn view(tensor: &CubeTensor, operation: &Base) -> Option<CubeTensor> {
    match operation {
        Base::Reshape(op) => reshaped(tensor, &op.out.shape.to_vec()),
        Base::Slice(op) => {
            let ranges = op.ranges.iter().zip(tensor.meta.shape.iter());
            let part = sliced(tensor, ranges.map(|(slice, size)| slice.to_range(*size)))?;
            part.handle.offset_start.unwrap_or(0).is_multiple_of(WIDEST).then_some(part)
        }
        _ => None,
    }
}

/// A range of each dim.
pub(crate) fn sliced(
    tensor: &CubeTensor,
    ranges: impl IntoIterator<Item = Range<usize>>,
) -> Option<CubeTensor> {
    let ranges: Vec<Range<usize>> = ranges.into_iter().collect();
    let first: usize =
        ranges.iter().zip(tensor.meta.strides.iter()).map(|(r, stride)| r.start * stride).sum();
    let shape: Vec<usize> = ranges.iter().map(ExactSizeIterator::len).collect();
    let fits = |(range, size): (&Range<usize>, &usize)| range.end <= *size && !range.is_empty();
    if ranges.len() != tensor.meta.shape.len() || !ranges.iter().zip(tensor.meta.shape.iter()).all(fits) {
        return None;
    }
    let meta = Metadata::new(Shape::from(shape), tensor.meta.strides.clone());
    let last: usize =
        ranges.iter().zip(tensor.meta.strides.iter()).map(|(r, stride)| (r.end - 1) * stride).sum();
    let bytes = |elements: usize| (elements * tensor.dtype.size()) as u64;
    let after = tensor.handle.size_in_used().checked_sub(bytes(last + 1))?;
    let handle = tensor.handle.clone().offset_start(bytes(first)).offset_end(after);
    Some(CubeTensor::new(tensor.client.clone(), handle, meta, tensor.device.clone(), tensor.dtype))
}

/// The same elements in another shape, without a copy; none if that is impossible. Burn copies a tensor with gaps
/// between its rows whenever other dims are merged.
fn reshaped(tensor: &CubeTensor, shape: &[usize]) -> Option<CubeTensor> {
    let strides = strides(&tensor.meta.shape, &tensor.meta.strides, shape)?;
    let meta = Metadata::new(Shape::from(shape.to_vec()), Strides::from(strides));
    let (client, device) = (tensor.client.clone(), tensor.device.clone());
    Some(CubeTensor::new(client, tensor.handle.clone(), meta, device, tensor.dtype))
}

/// Strides of the new shape, of as many elements. Dims of both shapes that have equally many elements between them are matched,
/// from the first on.
fn strides(shape: &[usize], strides: &[usize], new: &[usize]) -> Option<Vec<usize>> {
    let old: Vec<(usize, usize)> =
        shape.iter().copied().zip(strides.iter().copied()).filter(|(size, _)| *size != 1).collect();
    let (mut made, mut rest) = (vec![1; new.len()], &old[..]);
    let mut from = 0;
    while let Some(next) = (from..new.len()).find(|i| new[*i] != 1) {
        let (mut to, mut many, mut wanted, mut has) = (next + 1, 1, new[next], rest.first()?.0);
        while wanted != has {
            if wanted < has {
                wanted *= new.get(to)?;
                to += 1;
            } else {
                has *= rest.get(many)?.0;
                many += 1;
            }
        }
        let (group, after) = rest.split_at(many);
        if !group.windows(2).all(|dims| dims[0].1 == dims[1].0 * dims[1].1) {
            return None;
        }
        let mut stride = group[many - 1].1;
        for i in (from..to).rev() {
            made[i] = stride;
            stride *= new[i];
        }
        (rest, from) = (after, to);
    }
    rest.is_empty().then_some(made)
}

#[cfg(test)]
mod tests {
    use super::strides;

    #[test]
    fn dims_are_joined_and_parted_where_they_lie() {
        // Rows of 5 with gaps of 3.
        assert_eq!(strides(&[2, 3, 5], &[24, 8, 1], &[6, 5]), Some(vec![8, 1]));
        assert_eq!(strides(&[6, 5], &[8, 1], &[2, 1, 3, 5]), Some(vec![24, 24, 8, 1]));
        assert_eq!(strides(&[6, 5], &[8, 1], &[30]), None);
        assert_eq!(strides(&[6, 5], &[8, 1], &[10, 3]), None);
        // Dense.
        assert_eq!(strides(&[4, 6], &[6, 1], &[3, 8]), Some(vec![8, 1]));
        // With the dims in another order.
        assert_eq!(strides(&[6, 4], &[1, 6], &[24]), None);
        assert_eq!(strides(&[6, 4], &[1, 6], &[2, 3, 4]), Some(vec![3, 1, 6]));
        // Repeated, and with one position of a dim, which may have any stride.
        assert_eq!(strides(&[2, 3, 5], &[0, 0, 1], &[6, 5]), Some(vec![0, 1]));
        assert_eq!(strides(&[3, 5], &[1, 0], &[15]), None);
        assert_eq!(strides(&[2, 1, 5], &[8, 99, 1], &[2, 5]), Some(vec![8, 1]));
        // One element.
        assert_eq!(strides(&[1, 1], &[7, 7], &[1]), Some(vec![1]));
        assert_eq!(strides(&[], &[], &[1, 1]), Some(vec![1, 1]));
    }
}
