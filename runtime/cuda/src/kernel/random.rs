//! Random values by kernels, equal bit by bit to those of the host, so that a step draws and uploads none there.
//!
//! The generator is that of [`meshwright_plan::random`], which is the reference: integers, and for numbers `+ - * /` and `sqrt`
//! in f64. A product whose result goes into a sum is kept from being contracted with it: see [`rounded`].

use burn_backend::DType as BurnType;
use burn_backend::cubecl::dtype_to_storage_type;
use burn_backend::ops::IntTensorOps;
use burn_backend::{TensorData, TensorMetadata};
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeDevice};
use burn_std::Shape;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};
use meshwright_device::kernels::random::{Draws, RandomBlock};
use meshwright_device::stored::extents;
use meshwright_exec::backend::RngState;
use meshwright_plan::random::{Distribution, QUANTILE, Truths};

/// Sets the number of the step that kernels draw at. They read it on the device, so that a step that was recorded draws anew.
pub(crate) fn set_step(device: &CubeDevice, clock: &mut Option<(u64, CubeTensor)>, step: u64) {
    // As in the generator: the lower half of greater numbers.
    let elements = || TensorData::new(vec![step as u32], [1]);
    match clock {
        Some((now, _)) if *now == step => {}
        Some((now, tensor)) => {
            tensor.client.write(&tensor.handle, elements().into_parts().0);
            *now = step;
        }
        None => *clock = Some((step, CubeBackend::int_from_data(elements(), device))),
    }
}

/// Draws a block on a device, with elements of `dtype`; `step` is in its memory.
pub(crate) fn draw(
    kernel: &RandomBlock,
    (rng, step): (RngState, &CubeTensor),
    dtype: BurnType,
    device: &CubeDevice,
) -> CubeTensor {
    let draws = kernel.draws(rng.seed, rng.moment(), rng.first_example);
    let out = empty_device_contiguous_dtype(
        device.client(),
        device.clone(),
        Shape::from(extents(&kernel.shape())),
        dtype,
    );
    let elements = out.shape().num_elements();
    if elements == 0 {
        return out;
    }
    let many = to_a_counter(&draws.distribution);
    let vector = if is_in_groups(&draws, many as u64) { many } else { 1 };
    let dim = CubeDim::new(&out.client, elements / vector);
    let count = calculate_cube_count_elemwise(&out.client, elements / vector, dim);
    let source = source(&draws);
    let step = step.clone().into_linear_view();
    let (address, storage) = (out.required_address_type(), dtype_to_storage_type(dtype));
    let view = out.clone().into_linear_view();
    #[expect(unsafe_code, reason = "bounds are checked by the kernel, which writes no more than its element")]
    // SAFETY: as said.
    unsafe {
        match draws.distribution {
            Distribution::Bernoulli { rate } => {
                let least = least_word(Truths::of(rate));
                truths::launch_unchecked(
                    &out.client,
                    count,
                    dim,
                    address,
                    vector,
                    view,
                    source,
                    step,
                    least,
                    many,
                    vector > 1,
                    storage,
                );
            }
            Distribution::Uniform { low, high } => {
                let range = range(low, high, dtype);
                uniform::launch_unchecked(
                    &out.client,
                    count,
                    dim,
                    address,
                    vector,
                    view,
                    source,
                    step,
                    range,
                    0,
                    storage,
                );
            }
            Distribution::Normal { mean, std } => normal::launch_unchecked(
                &out.client,
                count,
                dim,
                address,
                vector,
                view,
                source,
                step,
                mean,
                std,
                0,
                storage,
            ),
        }
    }
    out
}

/// Number of elements that share a counter.
fn to_a_counter(distribution: &Distribution) -> usize {
    match distribution {
        Distribution::Bernoulli { rate } => Truths::of(*rate).to_a_counter as usize,
        _ => 1,
    }
}

fn source(draws: &Draws) -> DrawnFromLaunch {
    let sizes = draws.dims.iter().map(|d| d.0).collect();
    let strides = draws.dims.iter().map(|d| d.1).collect();
    DrawnFromLaunch::new(generator(draws), draws.first, sizes, strides)
}

/// The generator of a stream at its moment, but for the step.
pub(crate) fn generator(draws: &Draws) -> GeneratorLaunch {
    let ([key_0, key_1], _, repeat) = draws.key.parts();
    GeneratorLaunch::new(key_0, key_1, repeat)
}

/// The least word that is true, of whose bits the highest count.
pub(crate) fn least_word(of: Truths) -> u32 {
    of.least << (32 - of.bits())
}

/// The range of numbers of that type. Rounded to it, a number may reach the bound, which is excluded.
fn range(low: f64, high: f64, dtype: BurnType) -> RangeLaunch {
    let below = high.next_down().max(low);
    let (bound, under) = match dtype {
        BurnType::F32 => {
            let (low, high) = (low as f32, high as f32);
            (f64::from(high), f64::from(high.next_down().max(low)))
        }
        _ => (high, below),
    };
    RangeLaunch::new(low, high - low, high, below, bound, under)
}

/// Whether each group of `of` adjacent elements of the block has one counter.
fn is_in_groups(draws: &Draws, of: u64) -> bool {
    let Some(((size, stride), outer)) = draws.dims.split_last() else { return false };
    let whole = |n: u64| n.is_multiple_of(of);
    *stride == 1 && whole(*size as u64) && whole(draws.first) && outer.iter().all(|d| whole(d.1))
}

/// Words by the count of an element.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Generator {
    key_0: u32,
    key_1: u32,
    repeat: u32,
}

/// The parameters of a block's draws.
#[derive(CubeType, CubeLaunch)]
struct DrawnFrom {
    generator: Generator,
    first: u64,
    sizes: Sequence<FastDivmod<usize>>,
    strides: Sequence<u64>,
}

#[cube]
impl Generator {
    /// The words of a counter at a step: Philox4x32-10.
    pub(crate) fn words(&self, step: u32, counter: u64) -> (u32, u32, u32, u32) {
        let mut a = u32::cast_from(counter & 0xffff_ffff);
        let mut b = u32::cast_from(counter >> 32);
        let mut c = step;
        let mut d = self.repeat;
        let mut key_0 = self.key_0;
        let mut key_1 = self.key_1;
        #[unroll]
        for _ in 0..10 {
            let above_a = u32::mul_hi(a, 0xD251_1F53u32);
            let below_a = a * 0xD251_1F53u32;
            let above_c = u32::mul_hi(c, 0xCD9E_8D57u32);
            let below_c = c * 0xCD9E_8D57u32;
            a = above_c ^ b ^ key_0;
            b = below_c;
            c = above_a ^ d ^ key_1;
            d = below_a;
            key_0 += 0x9E37_79B9u32;
            key_1 += 0xBB67_AE85u32;
        }
        (a, b, c, d)
    }

    /// The word of an element if `many` share a counter; its highest bits count.
    pub(crate) fn word(&self, step: u32, count: u64, #[comptime] many: usize) -> u32 {
        let (a, b, c, d) = self.words(step, count >> comptime!(many.ilog2() as u64));
        let mut place = u32::cast_from(count & comptime!(many as u64 - 1));
        let mut shift = 0u32;
        if comptime!(many == 8) {
            shift = 16u32 - place % 2 * 16u32;
            place /= 2;
        }
        let lower = select(place == 0u32, a, b);
        let upper = select(place == 2u32, c, d);
        select(place < 2u32, lower, upper) << shift
    }
}

#[cube]
impl DrawnFrom {
    /// The count of an element of the block.
    fn count(&self, element: usize) -> u64 {
        let rank = comptime![self.sizes.len()];
        let mut rest = element;
        let mut count = self.first;
        #[unroll]
        for i in 0..rank {
            let dim = comptime![rank - i - 1];
            let (outer, at) = self.sizes.index(dim).div_mod(rest);
            count += u64::cast_from(at) * *self.strides.index(dim);
            rest = outer;
        }
        count
    }

    /// Uniform over the open interval (0, 1).
    fn uniform(&self, step: u32, counter: u64) -> f64 {
        let (a, b, _c, _d) = self.generator.words(step, counter);
        let cell = (u64::cast_from(a) << 20) | u64::cast_from(b >> 12);
        (f64::cast_from(cell) + 0.5f64) * 2.220446049250313e-16f64
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn truths<E: Numeric, N: Size>(
    mut out: LinearViewMut<'_, Vector<E, N>>,
    source: DrawnFrom,
    step: LinearView<'_, u32>,
    least: u32,
    #[comptime] many: usize,
    #[comptime] in_groups: bool,
    #[define(E)] _dtype: ElemType,
) {
    if !out.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let count = source.count(ABSOLUTE_POS * N::value());
    let mut drawn = Vector::<E, N>::empty();
    if comptime!(in_groups) {
        let words = source.generator.words(step.read(0usize), count >> comptime!(many.ilog2() as u64));
        #[unroll]
        for i in 0..many {
            drawn.insert(i, E::cast_from(of_words(words, i, many) >= least));
        }
    } else {
        let word = source.generator.word(step.read(0usize), count, many);
        drawn.insert(0usize, E::cast_from(word >= least));
    }
    out.write(ABSOLUTE_POS, drawn);
}

/// The word of one of the elements that share a counter, of whose bits the highest count.
#[cube]
pub(crate) fn of_words(
    words: (u32, u32, u32, u32),
    #[comptime] element: usize,
    #[comptime] many: usize,
) -> u32 {
    let word = match comptime!(element * 4 / many) {
        0 => words.0,
        1 => words.1,
        2 => words.2,
        _ => words.3,
    };
    if comptime!(many == 8 && element.is_multiple_of(2)) { word << 16u32 } else { word }
}

/// A product, rounded. `zero` is 0, which no compiler knows: so none makes one operation, with one rounding, of the product and
/// the sum that it goes into.
#[cube]
fn rounded(product: f64, zero: u64) -> f64 {
    f64::reinterpret(u64::reinterpret(product) ^ zero)
}

/// A range of uniform numbers.
#[derive(CubeType, CubeLaunch)]
struct Range {
    low: f64,
    size: f64,
    /// The upper bound, which is excluded, and the number that replaces it.
    high: f64,
    below: f64,
    /// The same of the numbers when they are rounded.
    bound: f64,
    under: f64,
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn uniform<E: Numeric, N: Size>(
    mut out: LinearViewMut<'_, Vector<E, N>>,
    source: DrawnFrom,
    step: LinearView<'_, u32>,
    range: Range,
    zero: u64,
    #[define(E)] _dtype: ElemType,
) {
    if !out.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let u = source.uniform(step.read(0usize), source.count(ABSOLUTE_POS));
    let x = range.low + rounded(range.size * u, zero);
    let x = select(x < range.high, x, range.below);
    let x = E::cast_from(x);
    let x = select(x < E::cast_from(range.bound), x, E::cast_from(range.under));
    out.write(ABSOLUTE_POS, Vector::new(x));
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn normal<E: Numeric, N: Size>(
    mut out: LinearViewMut<'_, Vector<E, N>>,
    source: DrawnFrom,
    step: LinearView<'_, u32>,
    mean: f64,
    std: f64,
    zero: u64,
    #[define(E)] _dtype: ElemType,
) {
    if !out.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let z = quantile(source.uniform(step.read(0usize), source.count(ABSOLUTE_POS)), zero);
    out.write(ABSOLUTE_POS, Vector::new(E::cast_from(mean + rounded(std * z, zero))));
}

/// Quantile of the standard normal distribution.
#[cube]
fn quantile(p: f64, zero: u64) -> f64 {
    let q = p - 0.5f64;
    if q.abs() <= 0.425f64 {
        let r = 0.180_625f64 - rounded(q * q, zero);
        q * horner(r, zero, 0usize, 0usize) / horner(r, zero, 0usize, 1usize)
    } else {
        let x = tail(select(q < 0.0f64, p, 1.0f64 - p), zero);
        select(q < 0.0f64, -x, x)
    }
}

/// Distance from the center of the value with this upper tail.
#[cube]
fn tail(beyond: f64, zero: u64) -> f64 {
    let r = (-ln(beyond, zero)).sqrt();
    if r <= 5.0f64 {
        let r = r - 1.6f64;
        horner(r, zero, 1usize, 0usize) / horner(r, zero, 1usize, 1usize)
    } else {
        let r = r - 5.0f64;
        horner(r, zero, 2usize, 0usize) / horner(r, zero, 2usize, 1usize)
    }
}

/// One of the polynomials of the quantile: numerator (0) or denominator (1) of one of its parts.
#[cube]
fn horner(x: f64, zero: u64, #[comptime] part: usize, #[comptime] side: usize) -> f64 {
    let mut sum = 0.0f64;
    #[unroll]
    for k in 0..8usize {
        sum = rounded(sum * x, zero) + comptime!(coefficient(part, side, 7 - k)).runtime();
    }
    sum
}

fn coefficient(part: usize, side: usize, power: usize) -> f64 {
    let (above, below) = &QUANTILE[part];
    [above, below][side][power]
}

/// Natural logarithm of a positive normal number.
#[cube]
fn ln(x: f64, zero: u64) -> f64 {
    let bits = u64::reinterpret(x);
    let m = f64::reinterpret((bits & 0x000f_ffff_ffff_ffffu64) | 0x3ff0_0000_0000_0000u64);
    let large = m > comptime!(std::f64::consts::SQRT_2).runtime();
    let exponent = i32::cast_from((bits >> 52) & 0x7ff) - 1023 + select(large, 1, 0);
    let m = select(large, m * 0.5f64, m);
    let s = (m - 1.0f64) / (m + 1.0f64);
    let z = s * s;
    let mut series = 0.0f64;
    #[unroll]
    for i in 0..11usize {
        series = rounded((series + comptime!(1.0 / (2 * (11 - i) + 1) as f64).runtime()) * z, zero);
    }
    let e = f64::cast_from(exponent);
    let rest = rounded(2.0f64 * s * series, zero) + rounded(e * 1.908_214_929_270_587_7e-10f64, zero);
    rounded(e * 6.931_471_803_691_238e-1f64, zero) + (2.0f64 * s + rest)
}
