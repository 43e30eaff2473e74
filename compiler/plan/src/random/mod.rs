//! Counter-based random numbers: value `i` of a stream is a function of (seed, stream, step, repeat, `i`) and of nothing
//! else, so no layout, split or order of work can change it.
//!
//! **Invariant:** bits come from Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011), and all arithmetic on them is
//! `+ - * /` and `sqrt` in f64, which IEEE 754 fixes to the last bit. No library function (`ln`, `cos`) is called: those
//! differ between machines.

mod quantile;
mod truths;

pub use quantile::{QUANTILE, Rational, ln, normal_quantile};
use serde::{Deserialize, Serialize};
use sha2::Digest;
use std::ops::Range;
pub use truths::Truths;

/// Initial value of a parameter. Element `i` (row-major in declared order) depends on nothing but the seed, `stream` and
/// `i`; see this module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Init {
    /// One number everywhere.
    Constant(f64),
    /// Normal distribution.
    Normal {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        std: f64,
    },
    /// Normal distribution cut off at two standard deviations (drawn again beyond).
    TruncatedNormal {
        /// Mean before the cut.
        mean: f64,
        /// Standard deviation before the cut.
        std: f64,
    },
    /// Uniform over `low..high`.
    Uniform {
        /// Lower bound, included.
        low: f64,
        /// Upper bound, excluded.
        high: f64,
    },
}

/// What random values of a step are drawn from. `Debug` and the Plan's text show it in full.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// Uniform over `low..high`.
    Uniform {
        /// Lower bound, included.
        low: f64,
        /// Upper bound, excluded.
        high: f64,
    },
    /// Normal distribution.
    Normal {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        std: f64,
    },
    /// Truth values: false with probability `rate`. True where a uniform number of (0, 1) is at least `rate`.
    Bernoulli {
        /// The share of false ones, at least 0 and less than 1.
        rate: f64,
    },
}

/// The seed of random values outside of training, where the step is 0: what evaluations draw is the same in every run.
pub const FIXED_SEED: u64 = 0;

/// What a stream of random numbers depends on, but for the index of the element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    key: [u32; 2],
    step: u32,
    repeat: u32,
}

impl Key {
    /// The stream of that name under `seed`, at step 0 and repeat 0. Streams are told apart by the first 8 bytes of the
    /// SHA-256 of the seed and the name.
    pub fn new(seed: u64, stream: &str) -> Key {
        let digest =
            sha2::Sha256::new().chain_update(seed.to_le_bytes()).chain_update(stream.as_bytes()).finalize();
        let word =
            |at: usize| u32::from_le_bytes([digest[at], digest[at + 1], digest[at + 2], digest[at + 3]]);
        Key { key: [word(0), word(4)], step: 0, repeat: 0 }
    }

    /// The same stream at another step (or epoch) and index of a `repeat`.
    pub fn at(self, step: u32, repeat: u32) -> Key {
        Key { step, repeat, ..self }
    }

    /// The stream of that name in a training step, counted from 1 (modulo 2^32), under the seed of the run.
    pub fn of_step(seed: u64, stream: &str, step: u64) -> Key {
        Key::new(seed, stream).at(step as u32, 0)
    }

    /// The truth values of elements `first`, `first + by`, …: the same as [`draw`] says, without branches, so that it becomes
    /// vector code.
    #[inline(always)]
    pub fn truths<const N: usize>(self, of: Truths, first: u64, by: u64, out: &mut [u8; N]) {
        let at = |i: usize| first.wrapping_add(by.wrapping_mul(i as u64));
        let words = self.words::<N>(|i| at(i) / of.to_a_counter);
        for i in 0..N {
            let place = (at(i) % of.to_a_counter) as u32 * of.bits();
            let word = if place < 64 { [words[0][i], words[1][i]] } else { [words[2][i], words[3][i]] };
            out[i] = u8::from(of.is_true(word[place as usize / 32 % 2] >> (place % 32)));
        }
    }

    /// The same of elements that follow each other, all of `N` counters from `block` on.
    ///
    /// # Panics
    ///
    /// Where `out` is shorter.
    #[inline(always)]
    pub fn truths_in_a_row<const N: usize>(self, of: Truths, block: u64, out: &mut [u8]) {
        let words = self.words::<N>(|i| block.wrapping_add(i as u64));
        let each = of.to_a_counter as usize;
        let out = &mut out[..each * N];
        for (w, words) in words.iter().enumerate() {
            for (out, word) in out.chunks_exact_mut(each).zip(words) {
                if each == 8 {
                    out[2 * w] = u8::from(of.is_true(*word));
                    out[2 * w + 1] = u8::from(of.is_true(*word >> 16));
                } else {
                    out[w] = u8::from(of.is_true(*word));
                }
            }
        }
    }

    /// The bits of `N` counters, word by word.
    #[inline(always)]
    fn words<const N: usize>(self, counter: impl Fn(usize) -> u64) -> [[u32; N]; 4] {
        let (mut a, mut b, mut c, mut d) = ([0u32; N], [0u32; N], [self.step; N], [self.repeat; N]);
        for i in 0..N {
            let index = counter(i);
            (a[i], b[i]) = (index as u32, (index >> 32) as u32);
        }
        let mut key = self.key;
        for _ in 0..10 {
            for i in 0..N {
                let x = u64::from(a[i]) * 0xD251_1F53;
                let y = u64::from(c[i]) * 0xCD9E_8D57;
                (a[i], b[i], c[i], d[i]) =
                    ((y >> 32) as u32 ^ b[i] ^ key[0], y as u32, (x >> 32) as u32 ^ d[i] ^ key[1], x as u32);
            }
            key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
        }
        [a, b, c, d]
    }

    /// The two words of the key, the step and the index of the `repeat`: what a generator on another device needs.
    pub fn parts(self) -> ([u32; 2], u32, u32) {
        (self.key, self.step, self.repeat)
    }

    /// The 128 random bits of the counter `index`.
    pub fn bits(self, index: u64) -> [u32; 4] {
        philox4x32_10([index as u32, (index >> 32) as u32, self.step, self.repeat], self.key)
    }
}

/// The Philox4x32-10 bijection of `counter` under `key`.
pub fn philox4x32_10(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(counter[0]) * 0xD251_1F53;
        let b = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

/// Uniform over the open interval (0, 1): the middles of 2^52 equal cells, so that neither end ever occurs and `1 - u` is
/// exact.
pub fn uniform01(key: Key, index: u64) -> f64 {
    let bits = key.bits(index);
    let cell = (u64::from(bits[0]) << 20) | u64::from(bits[1] >> 12);
    (cell as f64 + 0.5) * (1.0 / (1u64 << 52) as f64)
}

/// The truth value of element `index`, false with the probability `rate`.
pub fn truth(rate: f64, key: Key, index: u64) -> bool {
    let of = Truths::of(rate);
    let place = (index % of.to_a_counter) as u32 * of.bits();
    let word = key.bits(index / of.to_a_counter)[place as usize / 32];
    of.is_true(word >> (place % 32))
}

/// Standard normal, by the inverse of its distribution function; at most 8.3 in size.
pub fn normal(key: Key, index: u64) -> f64 {
    normal_quantile(uniform01(key, index))
}

/// Standard normal given that it is within two standard deviations.
///
/// Drawn as the inverse of the distribution function over its values at -2 and 2: the distribution that drawing again
/// gives, at one draw an element.
pub fn truncated_normal(key: Key, index: u64) -> f64 {
    /// Probability of being below -2.
    const BELOW: f64 = 0.022_750_131_948_179_21;
    let p = 0.5 + (uniform01(key, index) - 0.5) * (1.0 - 2.0 * BELOW);
    normal_quantile(p).clamp(-2.0, 2.0)
}

/// Initial value of element `index` (row-major in declared order) of a parameter.
pub fn value(init: &Init, key: Key, index: u64) -> f64 {
    match *init {
        Init::Constant(x) => x,
        Init::Normal { mean, std } => mean + std * normal(key, index),
        Init::TruncatedNormal { mean, std } => mean + std * truncated_normal(key, index),
        Init::Uniform { low, high } => {
            let x = low + (high - low) * uniform01(key, index);
            // The product may round up to the bound, which is excluded.
            if x < high { x } else { high.next_down().max(low) }
        }
    }
}

/// Random value of element `index` (row-major in declared order) of a stream; truth values are 0 and 1.
pub fn draw(distribution: &Distribution, key: Key, index: u64) -> f64 {
    match *distribution {
        Distribution::Uniform { low, high } => value(&Init::Uniform { low, high }, key, index),
        Distribution::Normal { mean, std } => mean + std * normal(key, index),
        Distribution::Bernoulli { rate } => f64::from(u8::from(truth(rate, key, index))),
    }
}

/// [`draw`] rounded to `f32`; a uniform number stays below its upper bound.
pub fn draw_f32(distribution: &Distribution, key: Key, index: u64) -> f32 {
    let x = draw(distribution, key, index) as f32;
    match *distribution {
        Distribution::Uniform { low, high } if x >= high as f32 => (high as f32).next_down().max(low as f32),
        _ => x,
    }
}

/// Fills `out` with the shard `ranges` of the initial value of a parameter of global `shape`, both row-major in declared
/// order. `stream` is the parameter's path; a state `PATH/ema` of it starts as the parameter `PATH` does.
///
/// # Panics
///
/// Where `ranges` is not a shard of `shape`, or `out` is not of its size: the caller's mistake, never a user's.
pub fn fill(init: &Init, seed: u64, stream: &str, shape: &[usize], ranges: &[Range<usize>], out: &mut [f64]) {
    assert_eq!(shape.len(), ranges.len(), "a range for every dim");
    assert!(
        shape.iter().zip(ranges).all(|(n, r)| r.start <= r.end && r.end <= *n),
        "ranges within the shape"
    );
    assert_eq!(out.len(), ranges.iter().map(ExactSizeIterator::len).product::<usize>(), "size of the shard");
    if let Init::Constant(x) = init {
        return out.fill(*x);
    }
    if out.is_empty() {
        return;
    }
    let key = Key::new(seed, stream.split_once('/').map_or(stream, |s| s.0));
    let (rows, outer) = match ranges.split_last() {
        Some((last, outer)) => (last.clone(), outer),
        None => (0..1, ranges),
    };
    let mut at: Vec<usize> = outer.iter().map(|r| r.start).collect();
    for row in out.chunks_exact_mut(rows.len()) {
        let base = at.iter().zip(shape).fold(0u64, |i, (c, n)| i * *n as u64 + *c as u64);
        let first = base * shape.last().map_or(1, |n| *n as u64) + rows.start as u64;
        for (i, x) in row.iter_mut().enumerate() {
            *x = value(init, key, first + i as u64);
        }
        for (c, r) in at.iter_mut().zip(outer).rev() {
            *c += 1;
            if *c < r.end {
                break;
            }
            *c = r.start;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_its_published_vectors() {
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, out) in cases {
            assert_eq!(philox4x32_10(counter, key), out);
        }
    }

    #[test]
    fn every_part_of_the_key_counts() {
        let key = Key::new(1, "layer.w");
        let others = [
            Key::new(2, "layer.w").bits(5),
            Key::new(1, "layer.v").bits(5),
            key.at(1, 0).bits(5),
            key.at(0, 1).bits(5),
            key.bits(6),
            key.bits(5 + (1 << 32)),
        ];
        for (i, bits) in others.iter().enumerate() {
            assert_ne!(*bits, key.bits(5), "{i}");
        }
    }

    #[test]
    fn truth_values_in_a_row_are_those_one_by_one() {
        for rate in [0.0, 1e-17, 0.1, 0.5, 0.75, 0.999_999] {
            let (d, key, of) =
                (Distribution::Bernoulli { rate }, Key::new(3, "mask").at(7, 0), Truths::of(rate));
            for (first, by) in [(0, 1), (5, 3), ((1 << 32) - 8, 1), (u64::MAX - 3, 2)] {
                let mut out = [2; 16];
                key.truths(of, first, by, &mut out);
                for (i, x) in out.iter().enumerate() {
                    let index = first.wrapping_add(by.wrapping_mul(i as u64));
                    assert_eq!(f64::from(*x), draw(&d, key, index), "{rate} of {index}");
                }
            }
            for block in [0, 7, (1 << 30) - 1] {
                let mut out = [2; 32];
                key.truths_in_a_row::<4>(of, block, &mut out);
                let first = of.to_a_counter * block;
                for (i, x) in out.iter().enumerate().take(4 * of.to_a_counter as usize) {
                    assert_eq!(f64::from(*x), draw(&d, key, first + i as u64), "{rate} of block {block}");
                }
            }
        }
    }

    #[test]
    fn few_bits_are_taken_where_they_give_the_rate() {
        for (rate, short) in
            [(0.0, true), (0.1, true), (0.5, true), (0.99, true), (1e-3, false), (0.999_999, false)]
        {
            let of = Truths::of(rate);
            assert_eq!(of.to_a_counter == 8, short, "{rate}");
            let is = f64::from(of.least) / (1u64 << of.bits()) as f64;
            assert!((is - rate).abs() <= 1e-3 * rate.min(1.0 - rate), "{rate}: {is}");
        }
        // 2^17 draws: five standard deviations of their share are 0.0042.
        let key = Key::new(9, "mask");
        let many = 1u64 << 17;
        let falses = (0..many).filter(|i| !truth(0.1, key, *i)).count();
        assert!((falses as f64 / many as f64 - 0.1).abs() < 0.0042, "{falses} of {many}");
    }

    fn inits() -> [Init; 4] {
        [
            Init::Normal { mean: 1.0, std: 0.5 },
            Init::TruncatedNormal { mean: 0.0, std: 2.0 },
            Init::Uniform { low: -3.0, high: 1.0 },
            Init::Constant(0.25),
        ]
    }

    #[test]
    fn any_block_equals_the_same_part_of_the_whole() {
        let shape = [3, 5, 7];
        for init in inits() {
            let mut whole = vec![0.0; 105];
            fill(&init, 9, "a.b", &shape, &[0..3, 0..5, 0..7], &mut whole);
            for (i, x) in whole.iter().enumerate() {
                assert_eq!(*x, value(&init, Key::new(9, "a.b"), i as u64));
            }
            for (a, b, c) in [(0..2, 1..5, 3..4), (2..3, 0..5, 0..7), (1..1, 0..5, 0..7), (0..3, 4..5, 2..6)]
            {
                let mut part = vec![f64::NAN; a.len() * b.len() * c.len()];
                fill(&init, 9, "a.b", &shape, &[a.clone(), b.clone(), c.clone()], &mut part);
                let mut part = part.into_iter();
                for i in a {
                    for j in b.clone() {
                        for k in c.clone() {
                            assert_eq!(part.next(), Some(whole[(i * 5 + j) * 7 + k]));
                        }
                    }
                }
            }
            let mut scalar = [0.0];
            fill(&init, 9, "a.b", &[], &[], &mut scalar);
            assert_eq!(scalar[0], whole[0]);
        }
    }

    #[test]
    fn logarithm_is_exact_to_a_few_units_in_the_last_place() {
        let cases = [
            (0.1, -2.302_585_092_994_045_6),
            (0.7, -0.356_674_943_938_732_44),
            (1e-16, -36.841_361_487_904_73),
            (0.999_999_9, -1.000_000_049_473_647_4e-7),
            (3.0, 1.098_612_288_668_109_7),
            (1e-300, -690.775_527_898_213_7),
            (1.0, 0.0),
        ];
        for (x, expected) in cases {
            let got: f64 = ln(x);
            assert!(
                (got - expected).abs() <= 4.0 * f64::EPSILON * f64::abs(expected),
                "ln {x} = {got}, {expected}"
            );
        }
        let key = Key::new(3, "ln");
        for i in 0..20_000 {
            let x = uniform01(key, i) * if i % 2 == 0 { 1.0 } else { 1e-9 };
            assert!((ln(x) - x.ln()).abs() <= 4.0 * f64::EPSILON * x.ln().abs(), "ln {x}");
        }
    }

    /// Quantiles to 25 digits by Newton's method in 60-digit arithmetic.
    #[test]
    fn quantiles_are_exact_to_1e_15() {
        let cases = [
            (0.5, 0.0),
            (0.1, -1.281_551_565_544_600_4),
            (0.075, -1.439_531_470_938_456),
            (0.025, -1.959_963_984_540_054),
            (0.001, -3.090_232_306_167_813_5),
            (1e-9, -5.997_807_015_007_687),
            ((1u64 << 36) as f64, -6.651_035_379_893_011),
            ((1u64 << 53) as f64, -8.209_536_151_601_386),
        ];
        for (p, z) in cases {
            let p: f64 = if p > 1.0 { 1.0 / p } else { p };
            let got: f64 = normal_quantile(p);
            assert!((got - z).abs() <= 2e-15 * f64::abs(z), "{p}: {got:e} {z:e}");
            if p > 1e-3 {
                assert!((normal_quantile(1.0 - p) + z).abs() <= 1e-13, "{p}: symmetry");
            }
        }
    }

    /// Distribution functions at a few points against the share of 200,000 draws; a share errs by at most 0.0012
    /// (one standard deviation), the greatest distance of Kolmogorov and Smirnov at 0.1 % is 1.95 / sqrt n = 0.0044.
    #[test]
    fn draws_follow_their_distributions() {
        const N: u64 = 200_000;
        let phi =
            [0.5, 0.691_462_461, 0.841_344_746, 0.933_192_799, 0.977_249_868, 0.993_790_335, 0.998_650_102];
        let phi = |half: i32| if half < 0 { 1.0 - phi[-half as usize] } else { phi[half as usize] };
        let key = Key::new(0, "draws");
        let draw = |f: fn(Key, u64) -> f64| (0..N).map(|i| f(key, i)).collect::<Vec<f64>>();
        let share = |x: &[f64], at: f64| x.iter().filter(|v| **v < at).count() as f64 / N as f64;
        let moment = |x: &[f64], k: i32| x.iter().map(|v| v.powi(k)).sum::<f64>() / N as f64;

        let u = draw(uniform01);
        assert!(u.iter().all(|v| *v > 0.0 && *v < 1.0));
        for at in 1..20 {
            let at = f64::from(at) / 20.0;
            assert!((share(&u, at) - at).abs() < 0.0044, "uniform below {at}");
        }
        let z = draw(normal);
        for half in -6..=6 {
            assert!((share(&z, f64::from(half) / 2.0) - phi(half)).abs() < 0.0044, "normal below {half}/2");
        }
        for (k, expected, error) in [(1, 0.0, 0.01), (2, 1.0, 0.015), (3, 0.0, 0.04), (4, 3.0, 0.1)] {
            assert!((moment(&z, k) - expected).abs() < error, "moment {k}: {}", moment(&z, k));
        }
        let t = draw(truncated_normal);
        let inside = phi(4) - phi(-4);
        assert!(t.iter().all(|v| v.abs() <= 2.0));
        for half in -4..=4 {
            let expected = (phi(half) - phi(-4)) / inside;
            assert!((share(&t, f64::from(half) / 2.0) - expected).abs() < 0.0044, "truncated below {half}/2");
        }
        // Neighbors and streams are independent: correlation within five standard deviations of 0.
        let other = (0..N).map(|i| normal(Key::new(0, "other"), i)).collect::<Vec<_>>();
        let correlation = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>() / N as f64;
        assert!(correlation(&z, &z[1..]).abs() < 0.0112);
        assert!(correlation(&z, &other).abs() < 0.0112);
    }

    #[test]
    fn uniform_never_reaches_its_upper_bound() {
        let init = Init::Uniform { low: 1.0, high: 1.0f64.next_up() };
        let key = Key::new(0, "u");
        assert!((0..1000).all(|i| value(&init, key, i) == 1.0));
    }

    #[test]
    fn draws_of_a_step_are_those_of_its_key() {
        let key = Key::of_step(7, "m/dropout", 3);
        assert_eq!(key, Key::new(7, "m/dropout").at(3, 0));
        let uniform = Distribution::Uniform { low: -1.0, high: 2.0 };
        let close_to_high = Distribution::Uniform { low: 0.0, high: 1e-40 };
        let kept = Distribution::Bernoulli { rate: 0.25 };
        // Between the 64th and the 65th of 2^16 cells.
        let seldom_not = Distribution::Bernoulli { rate: 64.25 / 65536.0 };
        let mut share = 0.0;
        for i in 0..20_000 {
            assert_eq!(draw(&uniform, key, i), value(&Init::Uniform { low: -1.0, high: 2.0 }, key, i));
            assert!(draw_f32(&uniform, key, i) < 2.0);
            assert!((0.0..1e-40).contains(&draw_f32(&close_to_high, key, i)));
            share += draw(&kept, key, i) / 20_000.0;
            let cell = key.bits(i / 8)[i as usize % 8 / 2] >> (i % 2 * 16) & 0xffff;
            assert_eq!(draw(&kept, key, i), f64::from(u8::from(cell >= 1 << 14)));
            let word = key.bits(i / 4)[i as usize % 4];
            assert_eq!(draw(&seldom_not, key, i), f64::from(u8::from(word >= 257 << 14)));
        }
        assert!((share - 0.75).abs() < 0.015, "{share}");
        assert_eq!(draw(&Distribution::Bernoulli { rate: 0.0 }, key, 1), 1.0);
        let n = Distribution::Normal { mean: 3.0, std: 0.5 };
        assert_eq!(draw(&n, key, 5), 3.0 + 0.5 * normal(key, 5));
    }

    /// These bits are promised: a checkpoint-free rerun on another machine or release starts from the same parameters.
    #[test]
    fn bits_stay_as_they_are() {
        let key = Key::new(42, "dense.w");
        let got: Vec<u64> = [0, 1, 1 << 33]
            .iter()
            .flat_map(|i| [uniform01(key, *i), normal(key.at(7, 2), *i), truncated_normal(key, *i)])
            .map(f64::to_bits)
            .collect();
        assert_eq!(got, GOLDEN, "{got:#x?}");
    }

    /// Computed a second time by a separate program.
    const GOLDEN: [u64; 9] = [
        0x3fd5_95ca_fe3d_d15a,
        0xbfd2_28d7_d91f_be89,
        0xbfd9_956d_ffbd_2dfd,
        0x3fc6_3edc_619c_fe84,
        0x3fe9_2094_3706_989a,
        0xbfec_40ff_b585_2c3a,
        0x3fec_b0d2_08e6_188b,
        0x3fd9_f54e_b38d_3339,
        0x3ff2_aef9_8e50_4b0e,
    ];
}
