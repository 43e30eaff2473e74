//! Fused element-wise steps: running. Blocks of elements pass through all instructions while they are in the innermost
//! cache; inputs are read and outputs written in place where their layout allows it.

use super::data::{Element, ValueIndexF32, ValueIndexF64};
use super::elementwise::{self, Arithmetic};
use super::functions::unary_bool;
use super::half_types::{Half, by_half};
use super::map::{BLOCK, Instr, MapKernel, MapOp, MapPlace, MapSource};
use super::math::Real;
use super::strided_walk::{copy_strided, stretches};
use super::{Arg, KernelError, Slice, SliceMut, half_types, par};
use meshwright_plan::DType;
use std::cell::RefCell;

/// [`BLOCK`] elements. They begin at a line of the cache, and those of different registers at different distances from
/// the start of a page: the cache could not hold many that begin alike.
#[derive(Default)]
struct Register<T> {
    data: Vec<T>,
    start: usize,
}

impl<T: Element> Register<T> {
    fn new(number: usize) -> Register<T> {
        let line = LINE / size_of::<T>();
        let data = vec![T::default(); BLOCK + 9 * line];
        let start = data.as_ptr().align_offset(LINE).min(line) + number % 8 * line;
        Register { data, start }
    }

    #[inline(always)]
    fn first(&self, n: usize) -> &[T] {
        &self.data[self.start..self.start + n]
    }

    #[inline(always)]
    fn first_mut(&mut self, n: usize) -> &mut [T] {
        &mut self.data[self.start..self.start + n]
    }
}

/// Bytes of a line of the cache.
const LINE: usize = 64;

/// Registers of all dtypes. One set per thread, shared by all kernels.
#[derive(Default)]
struct Banks {
    f64: Vec<Register<f64>>,
    f32: Vec<Register<f32>>,
    i32: Vec<Register<i32>>,
    u8: Vec<Register<u8>>,
}

thread_local! {
    static BANKS: RefCell<Banks> = RefCell::default();
}

impl Banks {
    fn reserve(&mut self, counts: [usize; 4]) {
        fn grow<T: Element>(bank: &mut Vec<Register<T>>, count: usize) {
            while bank.len() < count {
                bank.push(Register::new(bank.len()));
            }
        }
        grow(&mut self.f64, counts[0]);
        grow(&mut self.f32, counts[1]);
        grow(&mut self.i32, counts[2]);
        grow(&mut self.u8, counts[3]);
    }
}

/// Types that have registers.
trait Banked: Arithmetic {
    fn bank(banks: &Banks) -> &Vec<Register<Self>>;
    fn bank_mut(banks: &mut Banks) -> &mut Vec<Register<Self>>;
    /// An operand known to be of this type.
    fn slice<'a>(slice: Slice<'a>) -> &'a [Self] {
        Self::of(slice).unwrap_or(&[])
    }
    /// An operand known to be of this type.
    fn slice_mut<'a>(slice: SliceMut<'a>) -> &'a mut [Self] {
        Self::of_mut(slice).unwrap_or(&mut [])
    }
}

macro_rules! banked {
    ($($t:ident)*) => {$(
        impl Banked for $t {
            fn bank(banks: &Banks) -> &Vec<Register<$t>> {
                &banks.$t
            }
            fn bank_mut(banks: &mut Banks) -> &mut Vec<Register<$t>> {
                &mut banks.$t
            }
        }
    )*};
}
banked!(f64 f32 i32 u8);

/// Calls `$f::<T>($args)` for the type of a dtype; pairs never get here.
macro_rules! by_dtype {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            DType::F64 => {
                type $T = f64;
                $body
            }
            DType::F32 => {
                type $T = f32;
                $body
            }
            DType::I32 => {
                type $T = i32;
                $body
            }
            _ => {
                type $T = u8;
                $body
            }
        }
    };
}

impl MapKernel {
    /// Computes all outputs. `Arg::Out(k)` names an input that is the present contents of output `k`.
    ///
    /// # Errors
    /// If number, dtypes or lengths of the operands are not what was prepared for.
    pub fn run(&self, args: &[Arg<'_>], outs: &mut [SliceMut<'_>]) -> Result<(), KernelError> {
        self.check_operands(args, outs)?;
        if self.total > 0 {
            run(self, args, outs);
        }
        Ok(())
    }
}

/// Runs a kernel over all its elements; operands are checked.
fn run(kernel: &MapKernel, args: &[Arg<'_>], outs: &mut [SliceMut<'_>]) {
    if par::worth(kernel.total) {
        shared(kernel, args, outs.iter_mut().map(SliceMut::reborrow).collect(), 0, kernel.total);
    } else {
        part(kernel, args, outs, 0, kernel.total);
    }
}

/// Elements `base..base + len`, which the outputs hold, cut in two until they are few.
fn shared(kernel: &MapKernel, args: &[Arg<'_>], mut outs: Vec<SliceMut<'_>>, base: usize, len: usize) {
    let Some(mid) = par::middle(len, BLOCK) else {
        part(kernel, args, &mut outs, base, len);
        return;
    };
    let (left, right): (Vec<_>, Vec<_>) = outs.into_iter().map(|o| o.split_at(mid)).unzip();
    rayon::join(
        || shared(kernel, args, left, base, mid),
        || shared(kernel, args, right, base + mid, len - mid),
    );
}

fn part(kernel: &MapKernel, args: &[Arg<'_>], outs: &mut [SliceMut<'_>], base: usize, len: usize) {
    BANKS.with_borrow_mut(|banks| {
        banks.reserve(kernel.banks);
        let mut block = Block { kernel, args, outs, banks, base, start: 0, n: 1 };
        for instr in &kernel.uniform {
            block.execute(instr);
        }
        block.splat(len.min(BLOCK));
        while block.start < len {
            block.n = (len - block.start).min(BLOCK);
            for (k, source) in kernel.inputs.iter().enumerate() {
                block.load(k, source);
            }
            for instr in &kernel.body {
                block.execute(instr);
            }
            for (out, place) in &kernel.stores {
                block.store(*out, *place);
            }
            block.start += block.n;
        }
    });
}

/// The block in work: elements `start..start + n` of the outputs, which begin at element `base` of the iteration.
struct Block<'r, 'o> {
    kernel: &'r MapKernel,
    args: &'r [Arg<'r>],
    outs: &'r mut [SliceMut<'o>],
    banks: &'r mut Banks,
    base: usize,
    start: usize,
    n: usize,
}

/// A destination taken out of its place, so that all else can be read while it is written.
enum Taken<'o, T> {
    Reg(Register<T>, usize),
    Out(SliceMut<'o>, usize),
}

impl<'o> Block<'_, 'o> {
    fn splat(&mut self, n: usize) {
        for (dtype, reg) in &self.kernel.splat {
            by_dtype!(*dtype, T => {
                let reg = &mut T::bank_mut(self.banks)[*reg];
                let x = reg.first(1)[0];
                reg.first_mut(n).fill(x);
            });
        }
    }

    /// Brings an input's elements into its register, unless instructions can read them where they are.
    #[inline]
    fn load(&mut self, k: usize, source: &MapSource) {
        let Some(reg) = source.reg else { return };
        if source.dtype.is_half() {
            by_half!(source.dtype, H => self.gather_narrow::<H>(k, source, reg));
        } else if !(source.dense && matches!(self.args[k], Arg::Slice(_))) {
            by_dtype!(source.dtype, T => self.gather::<T>(k, source, reg));
        }
    }

    fn gather<T: Banked>(&mut self, k: usize, source: &MapSource, reg: usize) {
        let (start, n) = (self.start, self.n);
        let to = T::bank_mut(self.banks)[reg].first_mut(n);
        match self.args[k] {
            Arg::Slice(s) => {
                let from = T::slice(s);
                let stride = source.strides[source.strides.len() - 1];
                stretches(
                    &self.kernel.shape,
                    &source.strides,
                    source.offset,
                    self.base + start,
                    n,
                    |i, at, len| {
                        copy_strided(&mut to[i..i + len], from, at, stride);
                    },
                );
            }
            Arg::Out(o) => to.copy_from_slice(&T::slice(self.outs[o].as_slice())[start..start + n]),
        }
    }

    /// Elements of a half type, in a register of `f32`.
    fn gather_narrow<H: Half>(&mut self, k: usize, source: &MapSource, reg: usize) {
        let (start, n, level) = (self.start, self.n, self.kernel.level);
        let to = f32::bank_mut(self.banks)[reg].first_mut(n);
        match self.args[k] {
            Arg::Out(o) => {
                let from = H::of(self.outs[o].as_slice()).unwrap_or(&[]);
                half_types::upcast(level, &from[start..start + n], to);
            }
            Arg::Slice(s) => {
                let from = H::of(s).unwrap_or(&[]);
                let stride = source.strides[source.strides.len() - 1];
                let (shape, begin) = (&self.kernel.shape, self.base + start);
                stretches(shape, &source.strides, source.offset, begin, n, |i, at, len| match stride {
                    0 => to[i..i + len].fill(from[at].wide()),
                    1 => half_types::upcast(level, &from[at..at + len], &mut to[i..i + len]),
                    _ => {
                        for (j, to) in to[i..i + len].iter_mut().enumerate() {
                            *to = from[at + j * stride].wide();
                        }
                    }
                });
            }
        }
    }

    /// The `n` elements of a place.
    #[inline(always)]
    fn read<T: Banked>(&self, place: MapPlace) -> &[T] {
        let (start, n) = (self.start, self.n);
        match place {
            MapPlace::Reg(r) => T::bank(self.banks)[r].first(n),
            MapPlace::Input(k) => match self.args[k] {
                Arg::Slice(s) if self.kernel.inputs[k].dense && !self.kernel.inputs[k].dtype.is_half() => {
                    &T::slice(s)[self.base + start..][..n]
                }
                _ => self.kernel.inputs[k].reg.map_or(&[], |r| T::bank(self.banks)[r].first(n)),
            },
            MapPlace::Out(o) => &T::slice(self.outs[o].as_slice())[start..start + n],
        }
    }

    #[inline(always)]
    fn write<T: Banked>(&mut self, to: MapPlace, f: impl FnOnce(&mut Self, &mut [T])) {
        let (start, n) = (self.start, self.n);
        let mut taken: Taken<'o, T> = match to {
            MapPlace::Out(o) => {
                let out = std::mem::replace(&mut self.outs[o], SliceMut::U8(&mut []));
                Taken::Out(out, o)
            }
            MapPlace::Reg(r) | MapPlace::Input(r) => {
                Taken::Reg(std::mem::take(&mut T::bank_mut(self.banks)[r]), r)
            }
        };
        match &mut taken {
            Taken::Out(out, _) => f(self, &mut T::slice_mut(out.reborrow())[start..start + n]),
            Taken::Reg(reg, _) => f(self, reg.first_mut(n)),
        }
        match taken {
            Taken::Out(out, o) => self.outs[o] = out,
            Taken::Reg(reg, r) => T::bank_mut(self.banks)[r] = reg,
        }
    }

    fn store(&mut self, out: usize, place: MapPlace) {
        if self.kernel.outs[out].is_half() {
            by_half!(self.kernel.outs[out], H => self.store_narrow::<H>(out, place));
            return;
        }
        by_dtype!(self.kernel.outs[out], T => {
            self.write::<T>(MapPlace::Out(out), |b, d| d.copy_from_slice(b.read(place)));
        });
    }

    fn store_narrow<H: Half>(&mut self, out: usize, place: MapPlace) {
        let (start, n) = (self.start, self.n);
        let mut taken = std::mem::replace(&mut self.outs[out], SliceMut::U8(&mut []));
        if let Some(to) = H::of_mut(taken.reborrow()) {
            half_types::store(self.kernel.level, self.read::<f32>(place), &mut to[start..start + n]);
        }
        self.outs[out] = taken;
    }

    /// The first element of an input of a half type.
    fn first_of<H: Half>(&self, k: usize) -> f32 {
        let of = |s| H::of(s).unwrap_or(&[]);
        let first = match self.args[k] {
            Arg::Slice(s) => of(s)[self.kernel.inputs[k].offset],
            Arg::Out(o) => of(self.outs[o].as_slice())[0],
        };
        first.wide()
    }

    fn execute(&mut self, instr: &Instr) {
        let (level, to) = (self.kernel.level, instr.to);
        match instr.op {
            MapOp::Constant(x) => by_dtype!(instr.dtype, T => self.write::<T>(to, |_, d| {
                // Of a truth value, everything but 0 is true.
                let x = if instr.dtype == DType::Bool { f64::from(u8::from(x != 0.0)) } else { x };
                d.fill(T::constant(x));
            })),
            MapOp::Load(k) if self.kernel.inputs[k].dtype.is_half() => self.write::<f32>(to, |b, d| {
                d.fill(by_half!(b.kernel.inputs[k].dtype, H => b.first_of::<H>(k)));
            }),
            MapOp::Load(k) => by_dtype!(instr.dtype, T => self.write::<T>(to, |b, d| {
                let source = &b.kernel.inputs[k];
                match b.args[k] {
                    Arg::Slice(s) => d.fill(T::slice(s)[source.offset]),
                    Arg::Out(o) => d.fill(T::slice(b.outs[o].as_slice())[0]),
                }
            })),
            MapOp::Index(c) => self.write::<i32>(to, |b, d| {
                let s = &b.kernel.counters[c];
                let step = s.strides[s.strides.len() - 1] as i32;
                let (shape, start) = (&b.kernel.shape, b.base + b.start);
                stretches(shape, &s.strides, s.offset, start, d.len(), |i, at, len| {
                    for (j, d) in d[i..i + len].iter_mut().enumerate() {
                        *d = at as i32 + step * j as i32;
                    }
                });
            }),
            MapOp::PairIndex(k) => self.write::<i32>(to, |b, d| b.pair_index(k, d)),
            MapOp::Unary(f, a) if instr.dtype == DType::Bool => {
                self.write::<u8>(to, |b, d| unary_bool(level, f, b.read(a), d))
            }
            MapOp::Unary(f, a) => by_dtype!(instr.dtype, T => self.write::<T>(to, |b, d| {
                T::unary(level, f, b.read(a), d);
            })),
            MapOp::Binary(f, a, b) if f.is_comparison() => by_dtype!(instr.dtype, T => {
                self.write::<u8>(to, |x, d| T::compare(level, f, x.read(a), x.read(b), d));
            }),
            MapOp::Binary(f, a, b) => by_dtype!(instr.dtype, T => self.write::<T>(to, |x, d| {
                T::binary(level, f, x.read(a), x.read(b), d);
            })),
            MapOp::Select(c, a, b) => by_dtype!(instr.dtype, T => self.write::<T>(to, |x, d| {
                elementwise::select(level, x.read(c), x.read(a), x.read(b), d);
            })),
            MapOp::Power(n, a) => match instr.dtype {
                DType::F64 => self.write::<f64>(to, |b, d| power(n, b.read(a), d)),
                _ => self.write::<f32>(to, |b, d| power(n, b.read(a), d)),
            },
            MapOp::Cast(into, a) => by_dtype!(instr.dtype, T => match into {
                DType::F64 => self.write::<f64>(to, |b, d| T::to_f64(level, b.read(a), d)),
                DType::F32 => self.write::<f32>(to, |b, d| T::to_f32(level, b.read(a), d)),
                // `rounding` leaves no other cast to them.
                DType::BF16 | DType::F16 => self.write::<f32>(to, |b, d| {
                    by_half!(into, H => half_types::round::<H>(level, b.read::<f32>(a), d));
                }),
                DType::I32 => self.write::<i32>(to, |b, d| T::to_i32(level, b.read(a), d)),
                DType::U8 => self.write::<u8>(to, |b, d| T::to_u8(level, b.read(a), d)),
                _ => self.write::<u8>(to, |b, d| elementwise::truth(level, b.read::<T>(a), d)),
            }),
        }
    }

    /// Indices of a block of pairs; the identity's, which is no position, becomes the greatest `i32`.
    fn pair_index(&self, k: usize, d: &mut [i32]) {
        let source = &self.kernel.inputs[k];
        let stride = source.strides[source.strides.len() - 1];
        let n = d.len();
        let mut each = |get: &dyn Fn(usize) -> i32| {
            stretches(
                &self.kernel.shape,
                &source.strides,
                source.offset,
                self.base + self.start,
                n,
                |i, at, len| {
                    for (j, d) in d[i..i + len].iter_mut().enumerate() {
                        *d = get(at + j * stride);
                    }
                },
            );
        };
        if let Arg::Slice(s) = self.args[k] {
            if let Some(p) = ValueIndexF32::of(s) {
                each(&|i| i32::try_from(p[i].index).unwrap_or(i32::MAX));
            } else if let Some(p) = ValueIndexF64::of(s) {
                each(&|i| i32::try_from(p[i].index).unwrap_or(i32::MAX));
            }
        }
    }
}

/// Small powers as the products that a multiplication chain gives.
fn power<T: Real>(n: u8, a: &[T], d: &mut [T]) {
    for (d, x) in d.iter_mut().zip(a) {
        let square = *x * *x;
        *d = match n {
            2 => square,
            3 => square * *x,
            _ => square * square,
        };
    }
}
