//! A product as it was asked for, and its computation.

use super::*;

/// A product that fits together.
#[derive(Clone, Copy)]
pub(super) struct Task {
    pub(super) d: Description,
    pub(super) a: Layout,
    pub(super) b: Layout,
    pub(super) out: Layout,
    summed: u64,
}

impl Task {
    pub(super) fn new(d: &Description, a: &Layout, b: &Layout, c: &Layout, out: &Layout) -> Option<Task> {
        let turned = |l: &Layout, t: bool| if t { (l.columns, l.rows) } else { (l.rows, l.columns) };
        let (rows, summed) = turned(a, d.transposed[0]);
        let (other, columns) = turned(b, d.transposed[1]);
        let half = matches!(a.dtype, 2 | 14);
        let one_type = a.dtype == b.dtype
            && (out.dtype == a.dtype || half && out.dtype == 0)
            && (d.follows & (BIAS | SUMS) == 0 || d.bias_type == out.dtype)
            && d.scales == [0, 0];
        let fits = c == out
            && [a, b, out].iter().all(|l| l.leading >= l.rows as i64)
            && other == summed
            && (out.rows, out.columns) == (rows, columns)
            && [a, b].iter().all(|l| l.batches == out.batches)
            && if is_fp8(a) || is_fp8(b) { multiplies_fp8(d, a, b, out) } else { one_type }
            && (a.dtype == 1) == (d.scale == 1)
            && (d.compute != 77 || a.dtype == 0)
            && matches!(
                d.follows,
                1 | 2 | 4 | 6 | 32 | 36 | 130 | 134 | 136 | 160 | 164 | GELU_GRAD | 256 | 512
            )
            && (d.follows & SUMS == 0 || out.batches == 1 || d.bias_stride > 0)
            && (d.follows & AUX == 0
                || d.aux_leading >= out.rows as i64
                    && d.aux_leading % if d.keeps_elements() { 8 } else { 128 } == 0
                    && out.batches == 1)
            && (d.follows == 1 || setting("FAKE_CUBLASLT_EPILOGUES", 1) == 1);
        fits.then_some(Task { d: *d, a: *a, b: *b, out: *out, summed })
    }

    /// Whether the kernels of a Hopper GPU take it: what is side by side begins, follows and ends at multiples of 16 bytes.
    pub(super) fn is_for_hopper(&self, addresses: [usize; 3]) -> bool {
        [&self.a, &self.b, &self.out].into_iter().zip(addresses).all(|(l, address)| {
            let unit = 16 / kind(l.dtype).map_or(16, Kind::bytes) as i64;
            [l.rows as i64, l.leading, l.stride].iter().all(|n| n % unit == 0) && address.is_multiple_of(16)
        })
    }

    /// Whether it multiplies factors of 8 bits.
    pub(super) fn is_fp8(&self) -> bool {
        is_fp8(&self.a)
    }

    /// Counts its multiplications.
    pub(super) fn count(&self, addresses: [usize; 3]) {
        let many = self.out.rows * self.out.columns * self.summed * self.out.batches as u64;
        MULTIPLIED.fetch_add(many, Ordering::SeqCst);
        if !self.is_for_hopper(addresses) {
            REFUSED.fetch_add(many, Ordering::SeqCst);
        }
    }

    /// What an algorithm must say to be one for this product.
    pub(super) fn mark(&self) -> u64 {
        let all =
            [self.out.rows, self.out.columns, self.summed, self.out.batches as u64, self.d.follows.into()];
        let sum = all.iter().fold(7u64, |s, n| s.wrapping_mul(1_000_003).wrapping_add(*n));
        MARK | (sum & 0xffff_ffff) << 16
    }

    pub(super) unsafe fn run(&self, [a, b, out, bias]: [usize; 4], added: Option<usize>) {
        let kinds = [self.a.dtype, self.b.dtype, self.out.dtype].map(kind);
        let [Some(factor), Some(other), Some(made)] = kinds else { return };
        let scale = |at: usize| if at == 0 { 1.0 } else { unsafe { Kind::F32.read(at, 0) } };
        let [by_a, by_b] = self.d.scales.map(scale);
        let at = |l: &Layout, batch: i64, i: u64, j: u64| batch * l.stride + j as i64 * l.leading + i as i64;
        let turned = |t: bool, i: u64, j: u64| if t { (j, i) } else { (i, j) };
        let narrow = |x: f64| if self.d.compute == 77 { tf32(x) } else { x };
        let rows = self.out.rows;
        for batch in 0..i64::from(self.out.batches) {
            // All rows of the result for each summed element: what is side by side is multiplied together.
            let x = |k: u64, row: u64| {
                let (i, j) = turned(self.d.transposed[0], row, k);
                narrow(unsafe { factor.read(a, at(&self.a, batch, i, j)) })
            };
            let left: Vec<f64> = (0..self.summed).flat_map(|k| (0..rows).map(move |row| x(k, row))).collect();
            for column in 0..self.out.columns {
                let begun = |row| {
                    added.map_or(0.0, |added| unsafe { made.read(added, at(&self.out, batch, row, column)) })
                };
                // Scales are those of the product alone.
                let begins = |row| if self.is_fp8() { 0.0 } else { begun(row) };
                let mut sums: Vec<f64> = (0..rows).map(begins).collect();
                for (k, xs) in (0..self.summed).zip(left.chunks_exact(rows.max(1) as usize)) {
                    let (i, j) = turned(self.d.transposed[1], k, column);
                    let y = narrow(unsafe { other.read(b, at(&self.b, batch, i, j)) });
                    match factor {
                        Kind::F64 => sums.iter_mut().zip(xs).for_each(|(sum, x)| *sum += x * y),
                        _ => sums
                            .iter_mut()
                            .zip(xs)
                            .for_each(|(sum, x)| *sum = f64::from((*sum + x * y) as f32)),
                    }
                }
                for (row, mut sum) in (0..rows).zip(sums) {
                    if self.is_fp8() {
                        sum = sum * by_a * by_b + begun(row);
                    }
                    if self.d.follows & BIAS != 0 {
                        sum += unsafe { made.read(bias, batch * self.d.bias_stride + row as i64) };
                    }
                    sum = unsafe { self.activated(sum, (row, column), made) };
                    unsafe { made.write(out, at(&self.out, batch, row, column), sum) };
                }
            }
        }
        for batch in 0..i64::from(self.out.batches) {
            unsafe { self.sum_factor([a, b, bias], batch, factor, made) };
        }
        DONE.fetch_add(1, Ordering::SeqCst);
    }

    /// What an element becomes. Bits are written as it is computed, and read.
    pub(super) unsafe fn activated(&self, x: f64, (row, column): (u64, u64), made: Kind) -> f64 {
        let at = column * self.d.aux_leading as u64 + row;
        let byte = (self.d.aux + at as usize / 8) as *mut u8;
        let bit = 1u8 << (at % 8);
        unsafe {
            match self.d.follows & !BIAS {
                2 => x.max(0.0),
                130 => {
                    *byte = if x > 0.0 { *byte | bit } else { *byte & !bit };
                    x.max(0.0)
                }
                136 if *byte & bit == 0 => 0.0,
                32 => 0.5 * x * (1.0 + inner(x).tanh()),
                GELU_KEEPING => {
                    made.write(self.d.aux, at as i64, x);
                    0.5 * x * (1.0 + inner(x).tanh())
                }
                GELU_GRAD => {
                    let y = made.read(self.d.aux, at as i64);
                    let tanh = inner(y).tanh();
                    let slope = SCALE * (1.0 + 3.0 * CUBES * y * y);
                    x * 0.5 * (1.0 + tanh + y * (1.0 - tanh * tanh) * slope)
                }
                _ => x,
            }
        }
    }

    /// The sums of a factor: of A for each row of the result, or of B for each column.
    pub(super) unsafe fn sum_factor(&self, [a, b, sums]: [usize; 3], batch: i64, factor: Kind, made: Kind) {
        let (address, l, turned, many) = match self.d.follows {
            256 => (a, &self.a, self.d.transposed[0], self.out.rows),
            512 => (b, &self.b, !self.d.transposed[1], self.out.columns),
            _ => return,
        };
        for i in 0..many {
            let mut sum = 0.0;
            for k in 0..self.summed {
                let (row, column) = if turned { (k, i) } else { (i, k) };
                sum += unsafe {
                    factor.read(address, batch * l.stride + column as i64 * l.leading + row as i64)
                };
                if factor != Kind::F64 {
                    sum = f64::from(sum as f32);
                }
            }
            unsafe { made.write(sums, batch * self.d.bias_stride + i as i64, sum) };
        }
    }

    /// Whether all that is read or written is memory of a GPU.
    pub(super) fn is_within(&self, [a, b, out, bias]: [usize; 4]) -> bool {
        let inside = |address: usize, l: &Layout| is_device_memory(address, l.bytes());
        let bytes = self.out.rows as usize * kind(self.out.dtype).map_or(0, Kind::bytes);
        let columns = self.out.columns as usize;
        let bytes = if self.d.follows == 512 { bytes / self.out.rows as usize * columns } else { bytes };
        let before = i64::from(self.out.batches - 1) * self.d.bias_stride;
        let bytes = bytes + before as usize * kind(self.out.dtype).map_or(0, Kind::bytes);
        let biased = self.d.follows & (BIAS | SUMS) == 0 || is_device_memory(bias, bytes);
        let beside = columns * self.d.aux_leading as usize;
        let beside = match self.d.keeps_elements() {
            true => beside * kind(self.out.dtype).map_or(0, Kind::bytes),
            false => beside / 8,
        };
        let aux = self.d.follows & AUX == 0
            || self.d.aux.is_multiple_of(16) && is_device_memory(self.d.aux, beside);
        let scaled = self.d.scales.iter().all(|at| *at == 0 || is_device_memory(*at, 4));
        scaled && inside(a, &self.a) && inside(b, &self.b) && inside(out, &self.out) && biased && aux
    }
}

fn is_fp8(l: &Layout) -> bool {
    kind(l.dtype).is_some_and(Kind::is_fp8)
}

/// Whether the library multiplies these factors of 8 bits (NVIDIA, *cuBLAS*, "cublasLtMatmul", of GPUs before Blackwell): A is
/// transposed and B is not, one of them at least is E4M3, sums are in `f32`, extents and leading dimensions are multiples of 16
/// bytes, and a bias is of the half type. Of epilogues, functions of the elements of the product.
fn multiplies_fp8(d: &Description, a: &Layout, b: &Layout, out: &Layout) -> bool {
    let aligned = |l: &Layout| {
        let bytes = kind(l.dtype).map_or(0, Kind::bytes) as i64;
        [l.rows as i64, l.leading, l.stride].iter().all(|n| (n * bytes) % 16 == 0)
    };
    let bias = if out.dtype == 2 { 2 } else { 14 };
    [a, b].into_iter().all(is_fp8)
        && [a.dtype, b.dtype] != [29, 29]
        && d.transposed == [true, false]
        && (d.compute, d.scale) == (68, 0)
        && matches!(out.dtype, 0 | 2 | 14)
        && [a, b, out].into_iter().all(aligned)
        && matches!(d.follows, 1 | 2 | 4 | 6 | 32 | 36 | 160 | 164)
        && (d.follows & BIAS == 0 || d.bias_type == bias)
}

/// Of the approximation of `gelu`.
const SCALE: f64 = 0.797_884_560_802_865_4;
const CUBES: f64 = 0.044_715;

fn inner(x: f64) -> f64 {
    SCALE * (x + CUBES * x * x * x)
}

/// 10 bits after the point, to the nearest.
fn tf32(x: f64) -> f64 {
    let bits = (x as f32).to_bits();
    f64::from(f32::from_bits(bits.wrapping_add(0xfff + (bits >> 13 & 1)) & !0x1fff))
}
