//! What the steps of a group compute, as one expression.

use meshwright_plan::expr::{Expr, Node, Reg, Scalar};
use meshwright_plan::{DType, Monoid};

/// What an expression loads from this number on are the results of folds.
pub(crate) const FOLDS: u16 = 1 << 15;

/// What a result has elements for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResultOf {
    /// Each element of each row.
    Elements,
    Rows,
    /// Each place along a row: sums over all rows, such as the gradient of a bias.
    Columns,
}

/// A result of a group.
#[derive(Clone, Debug)]
pub(crate) struct RowResult {
    pub(crate) reg: Reg,
    pub(crate) dtype: DType,
    pub(crate) of: ResultOf,
}

/// What is computed of each element of a row.
#[derive(Clone, Debug)]
pub(crate) struct RowExpr {
    /// It loads operands, and from [`FOLDS`] on what the folds gave.
    pub(crate) expr: Expr,
    pub(crate) folds: Vec<(Monoid, Reg)>,
    /// Those of columns last.
    pub(crate) results: Vec<RowResult>,
    /// What a unit may keep of an element, beside what it loads.
    pub(crate) steps: Vec<Reg>,
    /// Whether its folds have kernels that spread a long row over a device.
    pub(crate) spreads: bool,
}

impl RowExpr {
    /// The same with a dim of one row before the others.
    pub(super) fn with_a_row(&self) -> RowExpr {
        let shifted = |node: &Node| match node.scalar {
            Scalar::Index(dim) => Node { scalar: Scalar::Index(dim + 1), ..*node },
            _ => *node,
        };
        RowExpr { expr: Expr { nodes: self.expr.nodes.iter().map(shifted).collect() }, ..self.clone() }
    }
}
