//! Positions along several dims, for kernels that read elements at places of their own.

use super::arguments::first;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use cubecl::std::FastDivmod;
pub(crate) use meshwright_device::kernels::dims::WalkDim;

/// Strides along each dim in the tensor with this index: 0 for a missing dim.
pub(crate) fn strides(dims: &[WalkDim], tensor: &CubeTensor, which: usize) -> Vec<usize> {
    dims.iter().map(|dim| dim.axes[which].map_or(0, |axis| tensor.meta.strides[axis])).collect()
}

/// Vector width of a tensor along the last of some dims, at most `most` and 16 bytes: if it is contiguous there, and
/// all other strides are whole vectors. `own` are the strides along the dims.
pub(crate) fn vector_along(
    tensor: &CubeTensor,
    dims: &[WalkDim],
    own: &[usize],
    others: &[usize],
    most: usize,
) -> usize {
    let (Some(last), Some((1, outer))) = (dims.last(), own.split_last().map(|(last, outer)| (*last, outer)))
    else {
        return 1;
    };
    let fits = |width: &usize| {
        width * tensor.dtype.size() <= 16
            && *width <= most
            && last.size.is_multiple_of(*width)
            && first(tensor).is_multiple_of(*width as u64)
            && outer.iter().chain(others).all(|stride| stride.is_multiple_of(*width))
    };
    [8, 4, 2].into_iter().find(fits).unwrap_or(1)
}

/// Sizes of dims whose last one is walked in vectors of `width` elements; the strides along them become those of
/// vectors.
pub(crate) fn in_vectors(dims: &[WalkDim], width: usize, strides: &mut [&mut Vec<usize>]) -> Vec<usize> {
    let mut sizes: Vec<usize> = dims.iter().map(|dim| dim.size).collect();
    if let Some(last) = sizes.last_mut() {
        *last /= width;
    }
    strides.iter_mut().filter_map(|of| of.last_mut()).for_each(|last| *last *= width);
    sizes
}

/// Dims that are walked together, the last one fastest: their sizes, and how many positions there are.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct DimWalk {
    pub(crate) sizes: Sequence<FastDivmod<u32>>,
    pub(crate) len: u32,
}

/// The walk along dims.
pub(crate) fn walk(dims: &[WalkDim]) -> DimWalkLaunch {
    walk_of(&dims.iter().map(|dim| dim.size).collect::<Vec<_>>())
}

/// The walk along dims of these sizes.
pub(crate) fn walk_of(sizes: &[usize]) -> DimWalkLaunch {
    let len: usize = sizes.iter().product();
    DimWalkLaunch::new(sizes.iter().map(|n| *n as u32).collect(), len as u32)
}

/// The position along each dim.
#[cube]
pub(crate) fn positions(walk: &DimWalk, at: u32) -> Sequence<u32> {
    let rank = comptime!(walk.sizes.len());
    let mut rest = at;
    let mut reversed = Sequence::<u32>::new();
    #[unroll]
    for i in 0..rank {
        let dim = comptime!(rank - 1 - i);
        let mut inner = rest;
        if comptime!(dim > 0) {
            let (outer, within) = walk.sizes.index(dim).div_mod(rest);
            inner = within;
            rest = outer;
        }
        reversed.push(inner);
    }
    reversed.reversed()
}

/// Offset of a position from the first, with these strides along each dim.
#[cube]
pub(crate) fn place(at: &Sequence<u32>, strides: &Sequence<usize>) -> usize {
    let rank = comptime!(at.len());
    let mut sum = 0usize;
    #[unroll]
    for dim in 0..rank {
        sum += *at.index(dim) as usize * *strides.index(dim);
    }
    sum
}
