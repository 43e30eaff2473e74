//! Kernels as data: the description of each, which is made when a Plan is compiled for a device.

pub mod attention;
pub mod dims;
pub mod fold;
pub mod host;
pub mod index;
pub mod join;
pub mod joint_walk;
pub mod map;
pub mod product;
pub mod random;
pub mod result;
pub mod rows;
pub mod scalar;
pub mod spread;
pub mod windows;

use crate::kernels::result::{GivenResult, ResultMemory};
use crate::slot::Residual;
use attention::AttentionCall;
use burn_ir::TensorIr;
use fold::FoldCall;
use host::HostKernel;
use index::{IndexCall, ScatterCall};
use join::JoinCall;
use map::MapCall;
use meshwright_plan::Dim;
use meshwright_sorted::SortedSet;
use product::{FactorDigits, ProductCall};
use random::RandomBlock;
use rows::RowCall;
use std::sync::Arc;
use windows::{ConvolveCall, PoolCall};

/// A kernel of a program.
#[derive(Clone, Debug)]
pub enum Kernel {
    /// A kernel on the host's memory.
    Host(Arc<HostKernel>),
    /// Random values.
    Random(RandomBlock),
    /// A matrix product that is not left to Burn's own call: its result is of another dtype than the factors, it has one row, or the
    /// target asked for it.
    Matmul(FactorDigits),
    /// `() -> out`: memory with anything in it.
    Blank,
    /// `(all) -> out`: the element at the position of an iteration, of an operand with the dim of a loop first.
    IterationSlice(Dim),
    /// `(all, value) -> out`: the inverse.
    IterationUpdate(Dim),
    /// `(value) -> ()`: keeps a value for its position of a loop.
    Store(Residual),
    /// `() -> out`: the value that was kept for a position.
    Load {
        /// The values.
        residual: Residual,
        /// Whether this is the last consumer of the value, which ends its lifetime.
        last: bool,
    },
    /// Element-wise steps that do not depend on each other.
    Map(Arc<[MapCall]>),
    /// Ranges of tensors, one after the other.
    Join(Arc<JoinCall>),
    /// Folds that do not depend on each other.
    Fold(Arc<[FoldCall]>),
    /// Steps along rows.
    Rows(Arc<RowCall>),
    /// The truth values that an attention draws, a bit for each score: `(table of decided tiles) -> out`.
    AttentionDraws(Arc<AttentionCall>),
    /// An attention.
    Attention(Arc<AttentionCall>),
    /// A convolution.
    Convolve(Arc<ConvolveCall>),
    /// A lookup in a table.
    LookUp(Arc<IndexCall>),
    /// The transpose of a lookup.
    Scatter(Arc<ScatterCall>),
    /// A pool, or the transpose of one.
    Pool(Arc<PoolCall>),
    /// A matrix product with an epilogue.
    Product(Arc<ProductCall>),
}

impl Kernel {
    /// Its name in texts.
    pub fn name(&self) -> &'static str {
        self.described().0
    }

    /// Kernels that a device starts for it.
    pub fn starts(&self) -> u64 {
        if self.moves_nothing() { 0 } else { self.described().1 }
    }

    /// Its name, and the kernels that are started for it, if any are: members are one where they share a signature.
    fn described(&self) -> (&'static str, u64) {
        match self {
            Kernel::Host(kernel) => (kernel.name, 1),
            Kernel::Random(_) => ("random", 1),
            Kernel::Matmul(digits) => (digits.name("matmul", "matmul_tf32"), 1),
            Kernel::Blank => ("blank", 1),
            Kernel::IterationSlice(_) => ("iteration_slice", 1),
            Kernel::IterationUpdate(_) => ("iteration_update", 1),
            Kernel::Store(_) => ("store_residual", 1),
            Kernel::Load { .. } => ("load_residual", 1),
            Kernel::Map(calls) => {
                ("map", calls.iter().map(|c| c.half).collect::<SortedSet<_>>().len() as u64)
            }
            Kernel::Join(_) => ("join", 1),
            Kernel::Fold(calls) => ("fold", FoldCall::starts(calls)),
            // Sums over rows are of parts, which are folded.
            Kernel::Rows(call) => ("rows", 1 + u64::from(call.columns > 0)),
            Kernel::AttentionDraws(_) => ("attention_draws", 1),
            Kernel::Attention(call) => ("attention", call.starts()),
            Kernel::Convolve(_) => ("convolve", 1),
            Kernel::LookUp(_) => ("look_up", 1),
            Kernel::Scatter(call) => ("scatter", call.starts()),
            Kernel::Pool(_) => ("pool", 1),
            Kernel::Product(call) => (call.digits.name("product", "product_tf32"), 1),
        }
    }

    /// Whether it is a view or names memory: no device launches a kernel for it.
    pub fn moves_nothing(&self) -> bool {
        match self {
            Kernel::IterationSlice(_) | Kernel::Store(_) | Kernel::Load { .. } | Kernel::Blank => true,
            // The host shows a part of a tensor, too.
            Kernel::Host(kernel) => kernel.name == "iteration_slice",
            _ => false,
        }
    }

    /// Source of the memory of its results.
    pub fn result_memory(&self, results: &[TensorIr]) -> ResultMemory {
        let plain = |gaps| vec![GivenResult { over: vec![], gaps }; results.len()];
        ResultMemory::Given(match self {
            Kernel::Host(_) | Kernel::IterationSlice(_) | Kernel::Store(_) | Kernel::Load { .. } => {
                return ResultMemory::Unknown;
            }
            Kernel::Random(_) => return ResultMemory::Own,
            Kernel::IterationUpdate(dim) => return ResultMemory::Update(*dim),
            Kernel::Map(calls) => of_maps(calls),
            Kernel::Matmul(_) | Kernel::Join(_) => plain(true),
            Kernel::Blank
            | Kernel::LookUp(_)
            | Kernel::Scatter(_)
            | Kernel::Fold(_)
            | Kernel::AttentionDraws(_)
            | Kernel::Attention(_)
            | Kernel::Convolve(_)
            | Kernel::Pool(_) => plain(false),
            Kernel::Rows(call) => {
                call.over.iter().map(|over| GivenResult { over: over.clone(), gaps: true }).collect()
            }
            Kernel::Product(call) => {
                let mut all = plain(false);
                // Rows of the product itself, where they are one dim.
                all[0].gaps = results[0].shape.to_vec().last() == Some(&call.matrices[1]);
                all
            }
        })
    }
}

fn of_maps(calls: &[MapCall]) -> Vec<GivenResult> {
    let (mut first, mut all) = (0, vec![]);
    for call in calls {
        let result =
            |over: &Vec<usize>| GivenResult { over: over.iter().map(|i| first + i).collect(), gaps: true };
        all.extend(call.over.iter().map(result));
        first += call.tensors();
    }
    all
}
