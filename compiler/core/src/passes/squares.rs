//! Norms whose sums of squares may be beyond the dtype although the norms are not.
//!
//! Squares are summed twice, as they are and of scaled elements, both over the same positions: so under any layout both are
//! finished by the same collectives. The second sum counts only where the first is not finite: all other norms are what the first
//! sum gives.

use meshwright_ops::{Graph, Id, SQRT, ScaledSquares};
use meshwright_plan::{Dim, square_scale};

/// Sums of squares, as they are and of scaled elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Squares {
    plain: Id,
    scaled: Id,
}

impl Squares {
    /// Of a value, over all dims but those in `keep`.
    pub(crate) fn of(g: &mut Graph, x: Id, keep: &[Dim]) -> Squares {
        let out = keep.iter().copied().filter(|d| g.ty(x).has(*d)).collect();
        Squares { plain: g.contract_to(&[x, x], keep), scaled: g.op(ScaledSquares { out }, &[x]) }
    }

    /// Of several values together, all of one dtype.
    pub(crate) fn joint(g: &mut Graph, all: &[Squares]) -> Squares {
        let plain: Vec<Id> = all.iter().map(|s| s.plain).collect();
        let scaled: Vec<Id> = all.iter().map(|s| s.scaled).collect();
        Squares { plain: g.sum_of(&plain), scaled: g.sum_of(&scaled) }
    }

    /// The root of the sum of squares times `factor`.
    pub(crate) fn root(self, g: &mut Graph, factor: f64) -> Id {
        let dtype = g.ty(self.plain).dtype;
        let root = |g: &mut Graph, sum: Id| {
            let sum = if factor == 1.0 { sum } else { g.scaled(sum, factor) };
            g.unary(&SQRT, sum)
        };
        let (plain, scaled) = (root(g, self.plain), root(g, self.scaled));
        let whole = g.scaled(scaled, 1.0 / square_scale(dtype));
        let infinity = g.constant(f64::INFINITY, dtype);
        // NaN is no less.
        let fits = g.binary("<", self.plain, infinity);
        g.choose(fits, plain, whole)
    }
}
