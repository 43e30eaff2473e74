//! What a kernel runs on: the registers of a warp's lanes, and the memory that they reach.

use super::copies::Copies;
use super::groups::Products;
use super::memory::{Known, Memory, Shadow};

/// Lanes of a warp.
pub(super) const LANES: usize = 32;
/// All of them.
pub(super) const ALL: u32 = u32::MAX;

/// A register of each lane.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Lanes<T>(pub(super) [T; LANES]);

/// Lanes in a mask, from the first.
pub(super) fn lanes_of(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 != 0)
}

/// What kept a kernel from going on.
#[derive(Debug)]
pub(super) struct Trouble {
    /// As CUDA numbers errors.
    pub(super) code: i32,
    pub(super) lane: usize,
    pub(super) text: String,
}

pub(super) const ILLEGAL_ADDRESS: i32 = 700;
pub(super) const LAUNCH_TIMEOUT: i32 = 702;
pub(super) const ILLEGAL_INSTRUCTION: i32 = 715;
pub(super) const MISALIGNED_ADDRESS: i32 = 716;
pub(super) const LAUNCH_FAILED: i32 = 719;

pub(super) type Outcome<T = ()> = Result<T, Box<Trouble>>;

/// A lane's trouble.
pub(super) fn trouble<T>(code: i32, lane: usize, text: impl Into<String>) -> Outcome<T> {
    Err(Box::new(Trouble { code, lane, text: text.into() }))
}

/// What an instruction does to the lanes of a mask.
pub(super) type Step = Box<dyn Fn(&mut Machine<'_>, u32) -> Outcome + Send + Sync>;

/// A warp: each register is 32 bits of each lane, or 64; a predicate is a mask of lanes. 16 bits and less have zeros above them.
#[derive(Default)]
pub(super) struct Warp {
    pub(super) narrow: Vec<Lanes<u32>>,
    pub(super) wide: Vec<Lanes<u64>>,
    pub(super) predicates: Vec<u32>,
    /// The local memory of one lane after the other.
    pub(super) local: Vec<u64>,
    /// In its block.
    pub(super) index: u32,
    /// What goes on while it runs: copies to shared memory, and products of warps together.
    pub(super) copies: Copies,
    pub(super) products: Products,
}

/// What a register holds of a lane.
pub(super) trait Word: Copy + Default + Send + Sync + 'static {
    const IS_WIDE: bool;
    fn registers(warp: &Warp) -> &[Lanes<Self>];
    fn registers_mut(warp: &mut Warp) -> &mut [Lanes<Self>];
    fn from_bits(bits: u64) -> Self;
    fn bits(self) -> u64;
}

impl Word for u32 {
    const IS_WIDE: bool = false;
    fn registers(warp: &Warp) -> &[Lanes<u32>] {
        &warp.narrow
    }
    fn registers_mut(warp: &mut Warp) -> &mut [Lanes<u32>] {
        &mut warp.narrow
    }
    fn from_bits(bits: u64) -> u32 {
        bits as u32
    }
    fn bits(self) -> u64 {
        self.into()
    }
}

impl Word for u64 {
    const IS_WIDE: bool = true;
    fn registers(warp: &Warp) -> &[Lanes<u64>] {
        &warp.wide
    }
    fn registers_mut(warp: &mut Warp) -> &mut [Lanes<u64>] {
        &mut warp.wide
    }
    fn from_bits(bits: u64) -> u64 {
        bits
    }
    fn bits(self) -> u64 {
        self
    }
}

/// Writes a register of the lanes in a mask.
#[inline(always)]
pub(super) fn put<T: Word>(warp: &mut Warp, register: usize, mask: u32, values: &Lanes<T>) {
    let to = &mut T::registers_mut(warp)[register];
    if mask == ALL {
        *to = *values;
        return;
    }
    for lane in 0..LANES {
        to.0[lane] = if mask >> lane & 1 != 0 { values.0[lane] } else { to.0[lane] };
    }
}

/// A number as an instruction sees what is in a register.
pub(super) trait Value: Copy + Send + Sync + 'static {
    type Slot: Word;
    fn of(slot: Self::Slot) -> Self;
    fn slot(self) -> Self::Slot;
}

macro_rules! values {
    ($($ty:ty as $slot:ty, $of:expr, $to:expr;)*) => {$(
        impl Value for $ty {
            type Slot = $slot;
            #[inline(always)]
            fn of(slot: $slot) -> $ty {
                ($of)(slot)
            }
            #[inline(always)]
            fn slot(self) -> $slot {
                ($to)(self)
            }
        }
    )*};
}

values! {
    u8 as u32, |s| s as u8, u32::from;
    i8 as u32, |s| s as i8, |x: i8| u32::from(x as u16);
    u16 as u32, |s| s as u16, u32::from;
    i16 as u32, |s| s as i16, |x: i16| u32::from(x as u16);
    u32 as u32, |s| s, |x| x;
    i32 as u32, |s| s as i32, |x| x as u32;
    f32 as u32, f32::from_bits, f32::to_bits;
    u64 as u64, |s| s, |x| x;
    i64 as u64, |s| s as i64, |x| x as u64;
    f64 as u64, f64::from_bits, f64::to_bits;
}

/// Runs one block, a warp at a time.
pub(super) struct Machine<'a> {
    /// The one that runs.
    pub(super) warp: Warp,
    pub(super) shared: Vec<u64>,
    pub(super) shared_bytes: usize,
    /// Of a lane's local memory.
    pub(super) local_bytes: usize,
    pub(super) arguments: &'a [u8],
    pub(super) memory: &'a dyn Memory,
    pub(super) known: Known,
    /// Who used which byte of shared memory, where that is watched.
    pub(super) shadow: Option<Shadow>,
    pub(super) grid: [u32; 3],
    pub(super) sides: [u32; 3],
    /// The block that runs.
    pub(super) block: [u32; 3],
    /// Instructions of warps so far, of all blocks.
    pub(super) clock: u64,
    /// So many count as a kernel that never ends.
    pub(super) limit: u64,
}
