//! Steps of a row group as one expression.

use meshwright_plan::expr::{Expr, Node, Reg, Scalar};
use meshwright_plan::{DType, Monoid};
use serde::{Deserialize, Serialize};

/// First number of the loads that are results of reductions.
pub(crate) const FOLDS: u16 = 1 << 15;

/// Elements of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ResultOf {
    /// Each element of each row.
    Elements,
    /// Each row: values that are equal for all of its elements.
    Rows,
    /// Each place along a row: sums over all rows, such as the gradient of a bias.
    Columns,
}

/// A result of a group.
#[derive(Clone, Debug)]
pub(crate) struct RowResult {
    pub reg: Reg,
    pub dtype: DType,
    pub of: ResultOf,
}

/// Expressions of each element of a row.
#[derive(Clone, Debug)]
pub(crate) struct RowExpr {
    /// The expression. Its loads are operands, and from [`FOLDS`] on results of reductions.
    pub expr: Expr,
    pub folds: Vec<(Monoid, Reg)>,
    /// Results, sums of columns last.
    pub results: Vec<RowResult>,
    /// Values of an element that a thread may keep, besides loads.
    pub steps: Vec<Reg>,
    /// Whether it has kernels that spread a long row over a device.
    pub spreads: bool,
}

impl RowExpr {
    /// Adds a dim with one row before the others.
    pub(crate) fn with_a_row(&self) -> RowExpr {
        let shifted = |node: &Node| match node.scalar {
            Scalar::Index(dim) => Node { scalar: Scalar::Index(dim + 1), ..*node },
            _ => *node,
        };
        RowExpr { expr: Expr { nodes: self.expr.nodes.iter().map(shifted).collect() }, ..self.clone() }
    }
}
