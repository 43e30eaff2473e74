//! Loads of tensors of any type into registers: a thread has a vector of elements that are adjacent along one dim.
#![expect(
    clippy::needless_range_loop,
    reason = "lists that are known when a kernel is compiled are counted, not iterated"
)]

use super::drawn::{Draw, DrawnSource};
use super::program::{ScalarInputs, truth};
use super::random::of_words;
use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use meshwright_plan::DType;

/// Source of an operand in registers. Slots count the tensors of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum OperandSource {
    /// A vector of a tensor.
    Vector(usize),
    /// One element of a tensor, for all lanes of the vector.
    One(usize),
    /// Each lane is loaded separately.
    Each(usize),
    /// A vector of the result to which it donates its storage.
    Output(usize),
    /// Drawn.
    Drawn(DrawnSource),
}

/// Bytes of an element, which choose the list of its tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// `f32`, and `i32` by its bits.
    Word,
    Half,
    Byte,
}

impl Kind {
    pub(crate) const fn of(dtype: DType) -> Kind {
        match dtype {
            DType::BF16 | DType::F16 => Kind::Half,
            DType::U8 | DType::Bool => Kind::Byte,
            _ => Kind::Word,
        }
    }
}

/// Shape of a walk: number of dims, and `width` elements at a time along one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pace {
    pub(crate) rank: usize,
    pub(crate) along: usize,
    pub(crate) width: usize,
}

/// Tensors of one kind of access.
#[derive(CubeType)]
pub(crate) struct Tensors<E: Float, N: Size> {
    pub(crate) words: Sequence<OwnedTensor<Vector<f32, N>>>,
    pub(crate) halves: Sequence<OwnedTensor<Vector<E, N>>>,
    pub(crate) bytes: Sequence<OwnedTensor<Vector<u8, N>>>,
}

/// Tensors that are read one element at a time.
#[derive(CubeType)]
pub(crate) struct Singles<E: Float> {
    pub(crate) words: Sequence<OwnedTensor<f32>>,
    pub(crate) halves: Sequence<OwnedTensor<E>>,
    pub(crate) bytes: Sequence<OwnedTensor<u8>>,
}

/// Tensors and draws of a kernel.
#[derive(CubeType)]
pub(crate) struct Operands<E: Float, N: Size> {
    pub(crate) vectors: Tensors<E, N>,
    pub(crate) singles: Singles<E>,
    pub(crate) draws: Sequence<Draw>,
    /// The number of the step, where something is drawn.
    pub(crate) step: Sequence<OwnedTensor<u32>>,
}

/// The elements of all operands at a position, by operand and then along the vector. `outs` are results in whose storage some
/// are.
#[cube]
pub(crate) fn load<E: Float, N: Size>(
    operands: &Operands<E, N>,
    outs: &Tensors<E, N>,
    at: &Sequence<usize>,
    #[comptime] read: Vec<(OperandSource, DType)>,
    #[comptime] pace: Pace,
) -> Sequence<Sequence<f32>> {
    let mut loaded = Sequence::<Sequence<f32>>::new();
    #[unroll]
    for i in 0..comptime!(read.len()) {
        loaded.push(load_one(operands, outs, at, comptime!(read[i]), pace));
    }
    loaded
}

/// The elements of one operand along the vector.
#[cube]
pub(crate) fn load_one<E: Float, N: Size>(
    operands: &Operands<E, N>,
    outs: &Tensors<E, N>,
    at: &Sequence<usize>,
    #[comptime] read: (OperandSource, DType),
    #[comptime] pace: Pace,
) -> Sequence<f32> {
    let dtype = comptime!(read.1);
    match comptime!(read.0) {
        OperandSource::Vector(slot) => vector_in(&operands.vectors, at, slot, pace, dtype),
        OperandSource::Output(slot) => vector_in(outs, at, slot, pace, dtype),
        OperandSource::One(slot) => singles_in(&operands.singles, at, slot, pace, dtype, false),
        OperandSource::Each(slot) => singles_in(&operands.singles, at, slot, pace, dtype, true),
        OperandSource::Drawn(source) => {
            let draw = operands.draws.index(comptime!(source.which));
            drawn(draw, operands.step.index(0usize)[0usize], at, pace, source)
        }
    }
}

#[cube]
fn vector_in<E: Float, N: Size>(
    tensors: &Tensors<E, N>,
    at: &Sequence<usize>,
    #[comptime] slot: usize,
    #[comptime] pace: Pace,
    #[comptime] dtype: DType,
) -> Sequence<f32> {
    match comptime!(Kind::of(dtype)) {
        Kind::Word => vector_of::<f32, N>(tensors.words.index(slot), at, pace, dtype),
        Kind::Half => vector_of::<E, N>(tensors.halves.index(slot), at, pace, dtype),
        Kind::Byte => vector_of::<u8, N>(tensors.bytes.index(slot), at, pace, dtype),
    }
}

#[cube]
fn singles_in<E: Float>(
    tensors: &Singles<E>,
    at: &Sequence<usize>,
    #[comptime] slot: usize,
    #[comptime] pace: Pace,
    #[comptime] dtype: DType,
    #[comptime] each: bool,
) -> Sequence<f32> {
    match comptime!(Kind::of(dtype)) {
        Kind::Word => singles_of::<f32>(tensors.words.index(slot), at, pace, dtype, each),
        Kind::Half => singles_of::<E>(tensors.halves.index(slot), at, pace, dtype, each),
        Kind::Byte => singles_of::<u8>(tensors.bytes.index(slot), at, pace, dtype, each),
    }
}

/// Offset of the element at a position.
#[cube]
pub(crate) fn place<T: CubePrimitive>(
    tensor: &OwnedTensor<T>,
    at: &Sequence<usize>,
    #[comptime] rank: usize,
) -> usize {
    let mut sum = 0usize;
    #[unroll]
    for dim in 0..rank {
        sum += *at.index(dim) * tensor.stride(dim);
    }
    sum
}

#[cube]
fn vector_of<T: Numeric, N: Size>(
    tensor: &OwnedTensor<Vector<T, N>>,
    at: &Sequence<usize>,
    #[comptime] pace: Pace,
    #[comptime] dtype: DType,
) -> Sequence<f32> {
    let vector = tensor[place(tensor, at, comptime!(pace.rank)) / comptime!(pace.width)];
    let mut lanes = Sequence::<f32>::new();
    #[unroll]
    for lane in 0..comptime!(pace.width) {
        lanes.push(register::<T>(vector.extract(lane), dtype));
    }
    lanes
}

#[cube]
fn singles_of<T: Numeric>(
    tensor: &OwnedTensor<T>,
    at: &Sequence<usize>,
    #[comptime] pace: Pace,
    #[comptime] dtype: DType,
    #[comptime] each: bool,
) -> Sequence<f32> {
    let first = place(tensor, at, comptime!(pace.rank));
    let mut lanes = Sequence::<f32>::new();
    lanes.push(register::<T>(tensor[first], dtype));
    #[unroll]
    for lane in 1..comptime!(pace.width) {
        if comptime!(each) {
            let far = tensor.stride(comptime!(pace.along)) * lane;
            lanes.push(register::<T>(tensor[first + far], dtype));
        } else {
            lanes.push(*lanes.index(0usize));
        }
    }
    lanes
}

#[cube]
fn drawn(
    draw: &Draw,
    step: u32,
    at: &Sequence<usize>,
    #[comptime] pace: Pace,
    #[comptime] drawn: DrawnSource,
) -> Sequence<f32> {
    let mut count = draw.first;
    #[unroll]
    for dim in 0..comptime!(pace.rank) {
        count += u64::cast_from(*at.index(dim)) * *draw.strides.index(dim);
    }
    let mut lanes = Sequence::<f32>::new();
    let many = comptime!(drawn.many);
    if comptime!(drawn.in_groups) {
        let counters = count >> comptime!(many.ilog2() as u64);
        #[unroll]
        for group in 0..comptime!(pace.width.div_ceil(many)) {
            let (a, b, c, d) = draw.generator.words(step, counters + comptime!(group as u64));
            let (mut first, mut second) = (a, b);
            if comptime!(pace.width < many) {
                // The vector is the first or the second half of a counter's bits.
                let is_first = count & comptime!(many as u64 / 2) == 0u64;
                first = select(is_first, a, c);
                second = select(is_first, b, d);
            }
            let words = (first, second, c, d);
            #[unroll]
            for element in 0..comptime!(many.min(pace.width)) {
                lanes.push(draw.truth(of_words(words, element, many)));
            }
        }
    } else {
        #[unroll]
        for lane in 0..comptime!(pace.width) {
            let far = *draw.strides.index(comptime!(pace.along)) * comptime!(lane as u64);
            lanes.push(draw.truth(draw.generator.word(step, count + far, many)));
        }
    }
    lanes
}

/// An element in a register.
#[cube]
fn register<T: Numeric>(x: T, #[comptime] dtype: DType) -> f32 {
    match comptime!(dtype) {
        DType::Bool => truth(x != T::from_int(0)),
        DType::U8 => f32::reinterpret(i32::cast_from(x)),
        _ => f32::cast_from(x),
    }
}

/// A register as an element.
#[cube]
pub(crate) fn element<T: Numeric>(x: f32, #[comptime] dtype: DType) -> T {
    match comptime!(dtype) {
        DType::U8 => T::cast_from(i32::reinterpret(x)),
        _ => T::cast_from(x),
    }
}

/// Operands of an expression at one element of the vector: loads, and the positions of the element after `starts`, if
/// any.
#[cube]
pub(crate) fn element_at(
    loaded: &Sequence<Sequence<f32>>,
    at: &Sequence<usize>,
    starts: &Sequence<u32>,
    #[comptime] lane: usize,
    #[comptime] many: usize,
    #[comptime] pace: Pace,
) -> ScalarInputs {
    let mut loads = Sequence::<f32>::new();
    #[unroll]
    for i in 0..many {
        loads.push(*loaded.index(i).index(lane));
    }
    let mut positions = Sequence::<u32>::new();
    let has = comptime!(starts.len());
    #[unroll]
    for dim in 0..has {
        let beside = comptime!(if dim == pace.along { lane as u32 } else { 0 });
        positions.push(*at.index(dim) as u32 + *starts.index(dim) + beside);
    }
    ScalarInputs { loads, at: positions }
}

/// Writes a vector: of each element's values one, to the result of that slot and type.
#[cube]
pub(crate) fn store_in<E: Float, N: Size>(
    outs: &mut Tensors<E, N>,
    values: &Sequence<Sequence<f32>>,
    at: &Sequence<usize>,
    #[comptime] which: usize,
    #[comptime] to: (usize, DType),
    #[comptime] pace: Pace,
) {
    let (slot, dtype) = comptime!(to);
    match comptime!(Kind::of(dtype)) {
        Kind::Word => store::<f32, N>(outs.words.index_mut(slot), values, at, which, pace, dtype),
        Kind::Half => store::<E, N>(outs.halves.index_mut(slot), values, at, which, pace, dtype),
        Kind::Byte => store::<u8, N>(outs.bytes.index_mut(slot), values, at, which, pace, dtype),
    }
}

#[cube]
fn store<T: Numeric, N: Size>(
    tensor: &mut OwnedTensor<Vector<T, N>>,
    values: &Sequence<Sequence<f32>>,
    at: &Sequence<usize>,
    #[comptime] which: usize,
    #[comptime] pace: Pace,
    #[comptime] dtype: DType,
) {
    let mut vector = Vector::<T, N>::new(element::<T>(*values.index(0usize).index(which), dtype));
    #[unroll]
    for lane in 1..comptime!(pace.width) {
        vector.insert(lane, element::<T>(*values.index(lane).index(which), dtype));
    }
    let to = place(&*tensor, at, comptime!(pace.rank)) / comptime!(pace.width);
    tensor[to] = vector;
}

/// Position of a vector along each dim, for step `step` of the fold of result `result`; `kept` dims are those of results.
/// Sizes are in vectors along the dim that has vectors.
#[cube]
pub(crate) fn position(
    sizes: &Sequence<FastDivmod<usize>>,
    result: usize,
    step: usize,
    #[comptime] kept: usize,
    #[comptime] pace: Pace,
) -> Sequence<usize> {
    let mut reversed = Sequence::<usize>::new();
    let mut rest = step;
    #[unroll]
    for i in 0..comptime!(pace.rank) {
        let dim = comptime!(pace.rank - 1 - i);
        if comptime!(dim + 1 == kept) {
            rest = result;
        }
        let mut at = rest;
        if comptime!(dim > 0 && dim != kept) {
            let (outer, inner) = sizes.index(dim).div_mod(rest);
            at = inner;
            rest = outer;
        }
        reversed.push(at * comptime!(if dim == pace.along { pace.width } else { 1 }));
    }
    reversed.reversed()
}
