//! Roots of sums of squares, which norms are made of.

use super::{Add, Binary, Contract, DIV, Mean, RSQRT, Reduce, SQRT, SQUARE, Unary, UnaryDef};
use crate::family::between;
use crate::{Emit, Family, Graph, Id, Kind, Linear, Op, OpError, Roles, Sample, Signature, Source, Type};
use meshwright_plan::expr::{BinaryFn, Reg};
use meshwright_plan::{DType, Dims, Expr, Monoid};

/// The square root of a sum of squares, or its reciprocal. Where the sum is beyond the dtype the root is not a number: infinity
/// and 0 would be wrong, and nothing that is multiplied by 0 would show it. Where it is so small that squares are lost the
/// reciprocal is infinite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NormRoot {
    /// Whether it is the reciprocal.
    pub inverse: bool,
}

/// Patterns alone make it.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "norm_root",
    signature: Signature::SYNTAX,
    doc: "The root of a sum of squares, or its reciprocal.",
    build: |g, c| {
        let x = c.tensor(g, 0);
        Ok(g.op(NormRoot { inverse: false }, &[x]))
    },
    samples: || vec![sample("the root", false), sample("its reciprocal", true)],
}];

fn sample(label: &'static str, inverse: bool) -> Sample {
    let x = between(&[("a", 5), ("b", 3)], 0.5, 3.0);
    Sample::new(label, vec![x], move |g, x| Ok(g.op(NormRoot { inverse }, x)))
}

impl NormRoot {
    /// The function that it is of a sum that fits.
    fn def(self) -> &'static UnaryDef {
        if self.inverse { &RSQRT } else { &SQRT }
    }

    /// The cotangent of the sum, but for the factor of [`NormRoot::moved`]: of large and small sums the whole would not fit where
    /// the cotangent of what is squared does.
    pub fn reduced(self, g: &mut Graph, y: Id, dy: Id) -> Id {
        if self.inverse {
            let part = g.product(&[dy, y]);
            g.scaled(part, -0.5)
        } else {
            g.scaled(dy, 0.5)
        }
    }

    /// What is squared, `x`, with the rest of the derivative by the sum: the root and it are of one magnitude.
    pub fn moved(self, g: &mut Graph, sum: Id, y: Id, x: Id) -> Id {
        if self.inverse {
            let one = g.product(&[x, y]);
            g.product(&[one, y])
        } else {
            let inverse = g.op(NormRoot { inverse: true }, &[sum]);
            g.product(&[x, inverse])
        }
    }
}

/// Of a sum of squares below this, squares are lost that count: below the least normal number they are 0.
fn least(dtype: DType) -> f64 {
    1e4 * if dtype == DType::F64 { f64::MIN_POSITIVE } else { f64::from(f32::MIN_POSITIVE) }
}

/// What a value is the square of, perhaps times others and summed: the two operands that are one and the same.
pub fn squared(g: &Graph, id: Id) -> Option<[Id; 2]> {
    let node = g.node(id);
    let any = (*node.op).as_any();
    if any.downcast_ref::<Unary>().is_some_and(|op| op.0.name == SQUARE.name) {
        return Some([node.inputs[0]; 2]);
    }
    any.downcast_ref::<Contract>().filter(|_| node.inputs.len() <= FEW)?;
    let pairs = node.inputs.iter().enumerate().flat_map(|(i, x)| node.inputs[..i].iter().map(|y| [*y, *x]));
    pairs.into_iter().find(|[x, y]| alike(g, *x, *y, &mut FEW.clone()))
}

/// Factors of a product, and values that are compared, within which a square is looked for.
const FEW: usize = 8;

/// Whether two values are computed alike of the same, as where a text says them twice.
fn alike(g: &Graph, x: Id, y: Id, left: &mut usize) -> bool {
    if x == y {
        return true;
    }
    let Some(less) = left.checked_sub(1) else { return false };
    *left = less;
    let (a, b) = (g.node(x), g.node(y));
    let drawn = a.op.kind() == Kind::Rematerializable(Source::Random);
    *a.op == *b.op
        && a.scope == b.scope
        && a.inputs.len() == b.inputs.len()
        && !drawn
        && g.boundary(x).is_none()
        && a.inputs.iter().zip(&b.inputs).all(|(x, y)| alike(g, *x, *y, left))
}

/// The operands of a value that hold squares where it does: of sums, means, scaled values and quotients; none of all others.
pub fn may_sum_squares(g: &Graph, id: Id) -> &[Id] {
    let node = g.node(id);
    let any = (*node.op).as_any();
    let sums = any.downcast_ref::<Reduce>().is_some_and(|op| op.monoid == Monoid::Sum);
    if any.downcast_ref::<Binary>().is_some_and(|op| op.0.name == DIV.name) {
        &node.inputs[..1]
    } else if sums || any.is::<Mean>() || any.is::<Contract>() || any.is::<Add>() {
        &node.inputs
    } else {
        &[]
    }
}

impl Op for NormRoot {
    fn name(&self) -> &'static str {
        if self.inverse { "norm_rsqrt" } else { "norm_sqrt" }
    }

    fn infer(&self, x: &[&Type], _: &Dims) -> Result<Type, OpError> {
        Ok(x[0].clone())
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::elementwise(x, y, Linear::No)
    }

    fn vjp(&self, g: &mut Graph, x: &[Id], y: Id, dy: Id, need: &[bool]) -> Vec<Option<Id>> {
        Unary(self.def()).vjp(g, x, y, dy, need)
    }

    fn scalar(&self, e: &mut Expr, x: &[Reg], _: &[&Type], _: &Type, _: &Dims) -> Option<Reg> {
        let dtype = e.dtype(x[0]);
        let (zero, infinity) = (e.constant(0.0, dtype), e.constant(f64::INFINITY, dtype));
        let fits = e.binary(BinaryFn::Lt, x[0], infinity);
        let lost = e.select(fits, zero, infinity);
        let mut sum = e.binary(BinaryFn::Sub, x[0], lost);
        if self.inverse {
            let least = e.constant(least(dtype), dtype);
            let tiny = e.binary(BinaryFn::Lt, sum, least);
            sum = e.select(tiny, zero, sum);
        }
        Some((self.def().expr)(e, sum))
    }

    fn lower(&self, _: &mut dyn Emit) {}

    fn element(&self, x: &[f64], y: &Type) -> Option<f64> {
        Some(match x[0] {
            x if x == f64::INFINITY => f64::NAN,
            x if self.inverse && x < least(y.dtype) => f64::INFINITY,
            x => (self.def().oracle)(x),
        })
    }
}
