//! `order seq zigzag ctx`: the order in which positions lie on the devices.

use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_plan::{Axis, Dim, Mesh};
use meshwright_syntax::ast::Name;

/// Positions of a dim in zigzag order: of `2 k` ranges of equal length device `i` of `k` has range `i` and range `2 k - 1 - i`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderRule {
    /// The dim.
    pub dim: Dim,
    /// The axes of the devices, major first.
    pub axes: Vec<Axis>,
    /// Where the layout says so.
    pub span: Span,
}

/// Adds a line of a layout for a dim; axes that the mesh lacks are told elsewhere.
pub(super) fn read(
    (name, dim): (&str, Dim),
    (axes, span): (&[Name], Span),
    mesh: &Mesh,
    orders: &mut Vec<OrderRule>,
    out: &mut Vec<Diagnostic>,
) {
    let mut found: Vec<Axis> = Vec::new();
    for named in axes {
        match mesh.find(&named.text) {
            Some(axis) if found.contains(&axis) => out.push(
                Diagnostic::error(codes::E0305, format!("an order names the axis `{}` twice", named.text))
                    .at(named.span, "the second time")
                    .help("a dim is split over an axis once; leave one out"),
            ),
            axis => found.extend(axis),
        }
    }
    if let Some(first) = orders.iter().find(|o| o.dim == dim) {
        let text = format!("a layout says twice in which order `{name}` is");
        let d = Diagnostic::error(codes::E0318, text).at(span, "the second time");
        out.push(d.and(first.span, "the first time").help("leave one out"));
        return;
    }
    orders.push(OrderRule { dim, axes: found, span });
}
