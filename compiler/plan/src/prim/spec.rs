//! The columns of the table of primitives: what every pass wants to know of each, said once.

use crate::{Dim, Monoid};

/// Properties of a primitive, for passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Its name, for listings.
    pub name: &'static str,
    /// Its operands.
    pub reads: Operands,
    /// Its results.
    pub writes: Operands,
    /// Which operand's storage a result may take.
    pub donation: Donation,
    /// The treatment of operands and results of `bf16` and `f16`.
    pub half: HalfFloats,
    /// Which dtypes go together.
    pub dtypes: DTypes,
    /// True if a row of the result (the elements along the dim that the primitive names, or one element if it names none)
    /// depends on nothing but that row of the operands, so that any range of rows can be computed by itself.
    pub rowwise: bool,
    /// The dim of a row, of which a device needs all.
    pub row: Option<Dim>,
    /// In which operands it is linear, so that partial sums may pass through it.
    pub linear: Linear,
    /// The reduction over dims that its result lacks.
    pub folds: Option<Monoid>,
    /// The estimate of its work.
    pub work: Work,
    /// The kernels that compute it.
    pub family: KernelFamily,
}

/// Families of kernels, by what limits their time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KernelFamily {
    /// Attention.
    Attention,
    /// Matrix products.
    Matmul,
    /// Convolutions.
    Convolve,
    /// Sums into tables.
    TableSum,
    /// Cumulative sums, sorting and greatest elements.
    Scan,
    /// Sums and extremes in windows.
    Pool,
    /// Lookups in tables.
    Lookup,
    /// All else: kernels that read and write memory.
    Memory,
}

impl KernelFamily {
    /// The name in machine files.
    pub fn name(self) -> &'static str {
        match self {
            KernelFamily::Attention => "attention",
            KernelFamily::Matmul => "matmul",
            KernelFamily::Convolve => "convolve",
            KernelFamily::TableSum => "scatter",
            KernelFamily::Scan => "scan",
            KernelFamily::Pool => "pool",
            KernelFamily::Lookup => "lookup",
            KernelFamily::Memory => "memory_bound",
        }
    }
}

/// Operands of a primitive, by position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operands {
    /// As many as there are names.
    Named(&'static [&'static str]),
    /// Any number of one kind.
    Many(&'static str),
}

/// Which results may be written into the storage of which operands. Shape and dtype must be the same besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Donation {
    /// None.
    Never,
    /// Any result into any operand that it reads in the order in which it writes the result: each element depends on none of
    /// the operand but that at its own position.
    Aligned,
    /// The result into the first operand, if no other operand is that buffer too: each row depends on the operand's own row.
    First,
    /// Each result into the operand of its position, if no other operand is that buffer too.
    Paired,
}

/// The treatment of operands and results of the half types, `bf16` and `f16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HalfFloats {
    /// The primitive takes them, and sums in `f32`.
    Native,
    /// It computes on copies in `f32`; results are rounded once, where they are stored.
    Widened,
}

/// Which dtypes of operands and results go together. Where a primitive computes on copies in `f32`, the half types count as
/// `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DTypes {
    /// All have one.
    Same,
    /// All floats have one, or some are of a half type where the others are `f32`.
    Mixed,
    /// The operand in this position has positions, in `I32`; all others have one.
    Positions(usize),
    /// The result has positions, in `I32`.
    GivesPositions,
    /// All operands but the first have positions, in `I32`; that and the result have one.
    Entries,
    /// The same as [`DTypes::Entries`], but the result is a sum: of a half type it is `f32`.
    Scatters,
    /// The result is a fold: sums and products of half types are `f32`, what finds an extreme gives pairs.
    Folds,
    /// As the expression of a map says.
    Expression,
    /// There is nothing to compare, or it is compared elsewhere.
    Any,
}

/// In which operands a primitive is linear: there `f` of a sum is the sum of `f`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linear {
    /// In none.
    Never,
    /// In each of these positions alone, the other operands held fixed.
    Alone(&'static [usize]),
    /// In all operands together.
    Jointly,
    /// In its operand, which it only moves: there `f` of any fold is the fold of `f`.
    Moved,
    /// As the expression of a map is.
    Expression,
}

/// Floating-point operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// None: it moves data.
    Moves,
    /// As many for each element of the first operand.
    Input(u64),
    /// As many for each element of the first result.
    Output(u64),
    /// As many for each position of the dims of all operands and results.
    Space(u64),
    /// Those of the expression of a map, for each element of a result.
    Expression,
    /// A product and a sum for each tap at each position of a convolution.
    Taps,
    /// The work of each part of an attention for each pair of a query and a key.
    Attention,
    /// One for each tap at each element of the first operand.
    TapsOfInput,
    /// One for each tap at each element of the result.
    TapsOfOutput,
}

impl Operands {
    /// True if this number is allowed.
    pub fn takes(self, count: usize) -> bool {
        match self {
            Operands::Named(names) => names.len() == count,
            Operands::Many(_) => true,
        }
    }

    /// The name of the operand at a position.
    pub fn name(self, position: usize) -> &'static str {
        match self {
            Operands::Named(names) => names.get(position).copied().unwrap_or("too many"),
            Operands::Many(name) => name,
        }
    }
}
