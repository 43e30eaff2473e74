//! The kernel: each unit computes a vector of elements that follow each other along the last dim.

use super::super::drawn::Draw;
use super::super::program::{Element, ScalarProgram, evaluate_all, truth};
use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use meshwright_plan::DType;

/// How the elements of an operand come into registers. Slots count the tensors of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Source {
    /// As a vector.
    Vector(usize),
    /// One element for all of the vector.
    One(usize),
    /// Each element on its own.
    Each(usize),
    /// As a vector of the result in whose storage it is.
    Output(usize),
    /// Drawn; whether one count of the generator gives four of them.
    Drawn(usize, bool),
}

/// What a kernel is compiled for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct MapShape {
    pub(super) program: ScalarProgram,
    /// How each operand is read, and its type.
    pub(super) operands: Vec<(Source, DType)>,
    /// The slot and the type of each result.
    pub(super) outputs: Vec<(usize, DType)>,
    pub(super) rank: usize,
    /// Elements of a vector.
    pub(super) width: usize,
}

/// The dims of a kernel: sizes, of the last one in vectors, and global positions of the first along each.
#[derive(CubeType, CubeLaunch)]
pub(super) struct MapSpace {
    sizes: Sequence<FastDivmod<usize>>,
    starts: Sequence<u32>,
    vectors: usize,
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn element_wise<E: Float, N: Size>(
    words: Sequence<OwnedTensor<Vector<f32, N>>>,
    halves: Sequence<OwnedTensor<Vector<E, N>>>,
    bytes: Sequence<OwnedTensor<Vector<u8, N>>>,
    single_words: Sequence<OwnedTensor<f32>>,
    single_halves: Sequence<OwnedTensor<E>>,
    single_bytes: Sequence<OwnedTensor<u8>>,
    mut out_words: Sequence<OwnedTensor<Vector<f32, N>>>,
    mut out_halves: Sequence<OwnedTensor<Vector<E, N>>>,
    mut out_bytes: Sequence<OwnedTensor<Vector<u8, N>>>,
    draws: Sequence<Draw>,
    step: Sequence<OwnedTensor<u32>>,
    space: MapSpace,
    #[comptime] shape: MapShape,
    #[define(E)] _half: ElemType,
) {
    if ABSOLUTE_POS >= space.vectors {
        terminate!();
    }
    let at = position(&space, comptime!(shape.rank), comptime!(shape.width));
    let mut loaded = Sequence::<Sequence<f32>>::new();
    #[unroll]
    for i in 0..comptime!(shape.operands.len()) {
        let dtype = comptime!(shape.operands[i].1);
        let (rank, width) = comptime!((shape.rank, shape.width));
        let lanes = match comptime!(shape.operands[i].0) {
            Source::Vector(slot) => match comptime!(Kind::of(dtype)) {
                Kind::Word => vector_of::<f32, N>(words.index(slot), &at, rank, width, dtype),
                Kind::Half => vector_of::<E, N>(halves.index(slot), &at, rank, width, dtype),
                Kind::Byte => vector_of::<u8, N>(bytes.index(slot), &at, rank, width, dtype),
            },
            Source::Output(slot) => match comptime!(Kind::of(dtype)) {
                Kind::Word => vector_of::<f32, N>(out_words.index(slot), &at, rank, width, dtype),
                Kind::Half => vector_of::<E, N>(out_halves.index(slot), &at, rank, width, dtype),
                Kind::Byte => vector_of::<u8, N>(out_bytes.index(slot), &at, rank, width, dtype),
            },
            Source::One(slot) => match comptime!(Kind::of(dtype)) {
                Kind::Word => singles_of::<f32>(single_words.index(slot), &at, rank, width, dtype, false),
                Kind::Half => singles_of::<E>(single_halves.index(slot), &at, rank, width, dtype, false),
                Kind::Byte => singles_of::<u8>(single_bytes.index(slot), &at, rank, width, dtype, false),
            },
            Source::Each(slot) => match comptime!(Kind::of(dtype)) {
                Kind::Word => singles_of::<f32>(single_words.index(slot), &at, rank, width, dtype, true),
                Kind::Half => singles_of::<E>(single_halves.index(slot), &at, rank, width, dtype, true),
                Kind::Byte => singles_of::<u8>(single_bytes.index(slot), &at, rank, width, dtype, true),
            },
            Source::Drawn(which, four) => {
                drawn(draws.index(which), step.index(0usize)[0usize], &at, rank, width, four)
            }
        };
        loaded.push(lanes);
    }
    let values = results::<E>(&loaded, &at, &space, comptime!(shape.clone()));
    #[unroll]
    for o in 0..comptime!(shape.outputs.len()) {
        let (slot, dtype) = comptime!(shape.outputs[o]);
        let (rank, width) = comptime!((shape.rank, shape.width));
        match comptime!(Kind::of(dtype)) {
            Kind::Word => store::<f32, N>(out_words.index_mut(slot), &values, &at, o, rank, width, dtype),
            Kind::Half => store::<E, N>(out_halves.index_mut(slot), &values, &at, o, rank, width, dtype),
            Kind::Byte => store::<u8, N>(out_bytes.index_mut(slot), &values, &at, o, rank, width, dtype),
        }
    }
}

/// How many bytes an element has, and so which list its tensor is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// `f32`, and `i32` by its bits.
    Word,
    Half,
    Byte,
}

impl Kind {
    pub(super) const fn of(dtype: DType) -> Kind {
        match dtype {
            DType::BF16 | DType::F16 => Kind::Half,
            DType::U8 | DType::Bool => Kind::Byte,
            _ => Kind::Word,
        }
    }
}

/// The position of this unit's first element along each dim.
#[cube]
fn position(space: &MapSpace, #[comptime] rank: usize, #[comptime] width: usize) -> Sequence<usize> {
    let mut rest = ABSOLUTE_POS;
    let mut reversed = Sequence::<usize>::new();
    #[unroll]
    for i in 0..rank {
        let dim = comptime!(rank - 1 - i);
        let mut at = rest;
        if comptime!(dim > 0) {
            let (outer, inner) = space.sizes.index(dim).div_mod(rest);
            at = inner;
            rest = outer;
        }
        reversed.push(at * comptime!(if i == 0 { width } else { 1 }));
    }
    reversed.reversed()
}

#[cube]
fn place<T: CubePrimitive>(tensor: &OwnedTensor<T>, at: &Sequence<usize>, #[comptime] rank: usize) -> usize {
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
    #[comptime] rank: usize,
    #[comptime] width: usize,
    #[comptime] dtype: DType,
) -> Sequence<f32> {
    let vector = tensor[place(tensor, at, rank) / width];
    let mut lanes = Sequence::<f32>::new();
    #[unroll]
    for lane in 0..width {
        lanes.push(register::<T>(vector.extract(lane), dtype));
    }
    lanes
}

#[cube]
fn singles_of<T: Numeric>(
    tensor: &OwnedTensor<T>,
    at: &Sequence<usize>,
    #[comptime] rank: usize,
    #[comptime] width: usize,
    #[comptime] dtype: DType,
    #[comptime] each: bool,
) -> Sequence<f32> {
    let first = place(tensor, at, rank);
    let mut lanes = Sequence::<f32>::new();
    lanes.push(register::<T>(tensor[first], dtype));
    #[unroll]
    for lane in 1..width {
        if comptime!(each) {
            let far = tensor.stride(comptime!(rank - 1)) * lane;
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
    #[comptime] rank: usize,
    #[comptime] width: usize,
    #[comptime] four: bool,
) -> Sequence<f32> {
    let mut count = draw.first;
    #[unroll]
    for dim in 0..rank {
        count += u64::cast_from(*at.index(dim)) * *draw.strides.index(dim);
    }
    let mut lanes = Sequence::<f32>::new();
    if comptime!(four) {
        #[unroll]
        for group in 0..comptime!(width / 4) {
            let (a, b, c, d) = draw.generator.words(step, (count >> 2) + comptime!(group as u64));
            lanes.push(draw.truth(a));
            lanes.push(draw.truth(b));
            lanes.push(draw.truth(c));
            lanes.push(draw.truth(d));
        }
    } else {
        #[unroll]
        for lane in 0..width {
            let far = *draw.strides.index(comptime!(rank - 1)) * comptime!(lane as u64);
            lanes.push(draw.truth(draw.generator.word(step, count + far)));
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

/// The results of each element of the vector.
#[cube]
fn results<E: Float>(
    loaded: &Sequence<Sequence<f32>>,
    at: &Sequence<usize>,
    space: &MapSpace,
    #[comptime] shape: MapShape,
) -> Sequence<Sequence<f32>> {
    let mut all = Sequence::<Sequence<f32>>::new();
    #[unroll]
    for lane in 0..comptime!(shape.width) {
        let mut loads = Sequence::<f32>::new();
        #[unroll]
        for i in 0..comptime!(shape.operands.len()) {
            loads.push(*loaded.index(i).index(lane));
        }
        let mut positions = Sequence::<u32>::new();
        if comptime!(shape.program.has_positions()) {
            #[unroll]
            for dim in 0..comptime!(shape.rank) {
                let beside = comptime!(if dim + 1 == shape.rank { lane as u32 } else { 0 });
                positions.push(*at.index(dim) as u32 + *space.starts.index(dim) + beside);
            }
        }
        let element = Element { loads, at: positions };
        all.push(evaluate_all::<E>(&element, comptime!(shape.program.clone())));
    }
    all
}

#[cube]
fn store<T: Numeric, N: Size>(
    tensor: &mut OwnedTensor<Vector<T, N>>,
    values: &Sequence<Sequence<f32>>,
    at: &Sequence<usize>,
    #[comptime] which: usize,
    #[comptime] rank: usize,
    #[comptime] width: usize,
    #[comptime] dtype: DType,
) {
    let mut vector = Vector::<T, N>::new(stored::<T>(*values.index(0usize).index(which), dtype));
    #[unroll]
    for lane in 1..width {
        vector.insert(lane, stored::<T>(*values.index(lane).index(which), dtype));
    }
    let to = place(&*tensor, at, rank) / width;
    tensor[to] = vector;
}

#[cube]
fn stored<T: Numeric>(x: f32, #[comptime] dtype: DType) -> T {
    match comptime!(dtype) {
        DType::U8 => T::cast_from(i32::reinterpret(x)),
        _ => T::cast_from(x),
    }
}
