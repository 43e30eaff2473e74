//! Description of a kernel for a row group.

use super::super::call::KernelCall;
use super::super::map::{MapOperand, prefer};
use super::super::result::{GivenResult, ResultMemory};
use super::expr::{ResultOf, RowExpr, RowResult};
use super::passes::{Keeping, Passes, RowPass};
use crate::stored::stored_as;
use burn_ir::TensorIr;
use meshwright_plan::{DType, Monoid};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Most operands, folds and results, so that addresses fit into the arguments of a kernel and sums into registers.
const MOST: usize = 24;
/// Registers of a thread for values of its elements; and, if it sums columns too, for these sums.
const ROOM: usize = 64;
const ROOM_WITH_COLUMNS: usize = 96;
/// Most row elements of each thread, if it keeps values of them.
const MOST_EACH: usize = 32;
/// Most row elements of each thread for long rows with one kept value, such as rows of vocabularies. A block then has all
/// registers of a multiprocessor.
const MOST_OF_LONG: usize = 100;
/// Threads of a block.
pub const THREADS: usize = 256;
/// Most threads of a block that keep values of their elements: such a block has half of a multiprocessor's registers.
pub const MOST_THREADS: usize = 512;
/// Least rows that keep a large GPU busy, and most elements of a row for which fewer rows are fast enough, if the folds could be
/// cut into chunks instead.
const FEW_ROWS: usize = 64;
const LONG_ROW: usize = 1 << 16;
/// Threads for a row that each pass reads again: enough that the rows in progress stay in the cache between passes.
pub const THREADS_OF_LONG: usize = 1024;

/// A row group on one device. Its dims are the dims of the rows, then the dims along a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowCall {
    /// Passes over a row, in order.
    pub passes: Vec<RowPass>,
    /// Reductions along a row, by the number that passes use.
    pub folds: Vec<Monoid>,
    /// Number of values of an element that a thread keeps at once.
    pub held: usize,
    /// Number of values of a row that a thread keeps.
    pub values: usize,
    /// Number of results that are sums over all rows; they are the last.
    pub columns: usize,
    /// Whether a thread keeps the elements of a row that it reads, and does not read them again.
    pub keeps: bool,
    /// Whether a pass computes with the positions of elements.
    pub has_positions: bool,
    /// Size of the device's block along each dim.
    pub sizes: Vec<usize>,
    /// Global position at which the block begins along each dim.
    pub starts: Vec<usize>,
    /// Number of dims of the rows.
    pub rows: usize,
    /// Number of leading dims that no tensor has: 1 if the group has one row and no dim for it, else 0.
    pub made_up: usize,
    /// Operands, by the number that passes use.
    pub operands: Vec<MapOperand>,
    /// Dtype and elements of each result.
    pub results: Vec<(DType, ResultOf)>,
    /// Operands that may donate their storage to each result, as indices among tensors.
    pub over: Vec<Vec<usize>>,
    /// The half type of operands and results; none if the group has none.
    pub half: Option<DType>,
}

impl KernelCall for RowCall {
    const NAME: &'static str = "rows";
    const BY_ELEMENTS: bool = true;

    /// Sums over rows are of parts, which are folded.
    fn starts(&self) -> u64 {
        1 + u64::from(self.columns > 0)
    }

    fn result_memory(&self, _: &[TensorIr]) -> ResultMemory {
        let given = |over: &Vec<usize>| GivenResult { over: over.clone(), gaps: true, alike: false };
        ResultMemory::Given(self.over.iter().map(given).collect())
    }
}

impl RowCall {
    /// Describes a group on the block `space`, whose first `rows` dims are the dims of the rows; none if there is no kernel for
    /// it.
    pub(crate) fn new(
        of: &RowExpr,
        (space, rows): (&[Range<usize>], usize),
        operands: Vec<MapOperand>,
    ) -> Option<RowCall> {
        match rows {
            // One row: a dim is made up for it, which no tensor has.
            0 => {
                let space: Vec<Range<usize>> = std::iter::once(0..1).chain(space.iter().cloned()).collect();
                RowCall::of_rows(&of.with_a_row(), (&space, 1, 1), with_a_row(operands))
            }
            _ => RowCall::of_rows(of, (space, rows, 0), operands),
        }
    }

    fn of_rows(
        of: &RowExpr,
        (space, rows, made_up): (&[Range<usize>], usize, usize),
        operands: Vec<MapOperand>,
    ) -> Option<RowCall> {
        let known = |dtype: DType| !dtype.is_pair() && dtype != DType::F64;
        let read = operands.iter().all(|operand| match operand {
            MapOperand::Tensor { dtype, .. } => known(*dtype),
            MapOperand::Drawn((kernel, _)) => kernel.can_be_drawn(),
        });
        let few = operands.len() <= MOST && of.results.len() <= MOST && of.folds.len() <= MOST;
        let fits = space.iter().all(|range| !range.is_empty() && i32::try_from(range.end).is_ok());
        if !read || !few || !fits || of.results.is_empty() || !of.results.iter().all(|r| known(r.dtype)) {
            return None;
        }
        let half = of.expr.nodes.iter().map(|n| n.dtype).find(|dtype| dtype.is_half());
        let elements = |of: &[Range<usize>]| of.iter().map(ExactSizeIterator::len).product::<usize>();
        let (many, length) = (elements(&space[..rows]), elements(&space[rows..]));
        if of.spreads && many < FEW_ROWS && length > LONG_ROW {
            return None;
        }
        let passes = |keeping| Passes::of(of, (rows, &operands), (half, keeping));
        let columns = of.results.iter().filter(|r| r.of == ResultOf::Columns).count();
        let mut kept = [Keeping::Costly, Keeping::Elements].into_iter().filter_map(passes);
        let kept = kept.find(|p| length <= MOST_THREADS * most(p.held, columns));
        let keeps = kept.is_some();
        if !keeps && columns > 0 {
            return None;
        }
        let Passes { passes, held, values } = kept.or_else(|| passes(Keeping::Nothing))?;
        let over = over(of, (&passes, &operands), (space.len(), made_up));
        Some(RowCall {
            has_positions: passes.iter().any(RowPass::has_positions),
            passes,
            held,
            values,
            columns,
            keeps,
            folds: of.folds.iter().map(|fold| fold.0).collect(),
            sizes: space.iter().map(ExactSizeIterator::len).collect(),
            starts: space.iter().map(|range| range.start).collect(),
            rows,
            made_up,
            results: of.results.iter().map(|r| (r.dtype, r.of)).collect(),
            over,
            operands,
            half,
        })
    }
}

/// Limit of the elements of a row for one thread, by the values that it keeps and sums of each.
fn most(held: usize, columns: usize) -> usize {
    if (held, columns) == (1, 0) { MOST_OF_LONG } else { room(held, columns) }
}

/// Elements of a row that a thread has room for in its registers.
fn room(held: usize, columns: usize) -> usize {
    let room = if columns > 0 { ROOM_WITH_COLUMNS } else { ROOM };
    MOST_EACH.min(room / (held + columns).max(1))
}

/// Usual number of elements of a thread, if that makes enough threads. A thread that sums columns has as few as there are threads
/// for, so that a multiprocessor holds many of them.
pub fn each(held: usize, columns: usize) -> usize {
    if columns > 0 { 1 } else { room(held, columns) }
}

impl RowCall {
    /// Applies the donations of a Plan: pairs of an operand, as an index among tensors, and the result that takes its storage.
    pub fn with_donations(mut self, donations: &[(usize, usize)]) -> RowCall {
        prefer(&mut self.over, donations);
        self
    }

    /// Dims of each operand that is a tensor.
    pub fn tensors(&self) -> impl Iterator<Item = &Vec<Option<usize>>> {
        self.operands.iter().filter_map(|operand| match operand {
            MapOperand::Tensor { dims, .. } => Some(dims),
            MapOperand::Drawn(_) => None,
        })
    }

    /// Index of the dim of a result for each dim of the group, none if it lacks the dim. The result has elements or rows, not
    /// columns.
    pub fn dims_of(&self, of: ResultOf) -> Vec<Option<usize>> {
        let has = |dim: usize| dim >= self.made_up && (of == ResultOf::Elements || dim < self.rows);
        (0..self.sizes.len()).map(|dim| has(dim).then(|| dim - self.made_up)).collect()
    }
}

fn with_a_row(operands: Vec<MapOperand>) -> Vec<MapOperand> {
    let shifted = |operand| match operand {
        MapOperand::Tensor { dtype, dims } => {
            MapOperand::Tensor { dtype, dims: std::iter::once(None).chain(dims).collect() }
        }
        MapOperand::Drawn((kernel, places)) => {
            MapOperand::Drawn((kernel, places.into_iter().map(|place| place + 1).collect()))
        }
    };
    operands.into_iter().map(shifted).collect()
}

/// For each result that is as large as its operands, the operands of its layout that are not read after it is written.
fn over(
    of: &RowExpr,
    (passes, operands): (&[RowPass], &[MapOperand]),
    (dims, made_up): (usize, usize),
) -> Vec<Vec<usize>> {
    let tensors = operands.iter().enumerate().filter(|(_, o)| matches!(o, MapOperand::Tensor { .. }));
    let tensors: Vec<(usize, &MapOperand)> = tensors.collect();
    let whole = |operand: &MapOperand| match operand {
        MapOperand::Tensor { dtype, dims: of } => {
            of[made_up..].iter().copied().eq((0..dims - made_up).map(Some)).then_some(*dtype)
        }
        MapOperand::Drawn(_) => None,
    };
    let written = |result: usize| passes.iter().position(|pass| pass.writes(result)).unwrap_or(0);
    let read = |operand: usize| passes.iter().rposition(|pass| pass.reads(operand)).unwrap_or(0);
    let of_result = |(at, result): (usize, &RowResult)| {
        let fits = |(_, (number, operand)): &(usize, &(usize, &MapOperand))| {
            whole(operand).is_some_and(|dtype| stored_as(dtype) == stored_as(result.dtype))
                && read(*number) <= written(at)
        };
        match result.of {
            ResultOf::Elements => tensors.iter().enumerate().filter(fits).map(|(slot, _)| slot).collect(),
            ResultOf::Rows | ResultOf::Columns => vec![],
        }
    };
    of.results.iter().enumerate().map(of_result).collect()
}
