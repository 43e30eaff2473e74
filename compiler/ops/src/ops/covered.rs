//! How many elements a position of a window covers: by what `mean_pool` divides.

use crate::family::no_spelling;
use crate::{
    Emit, F64Tensor, Family, Graph, Id, Kind, Linear, Op, OpError, Precision, Roles, Sample, Signature,
    Source, Type,
};
use meshwright_plan::expr::{BinaryFn, Reg, Scalar};
use meshwright_plan::{DType, Dim, Dims, Expr, SlidingWindow};

/// The number of taps that meet an element, along the positions of a slide. A function of the position alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Covered {
    /// How the window slides.
    pub slide: SlidingWindow,
    /// Dtype of the count.
    pub dtype: DType,
}

/// `mean_pool` is made of it.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "covered",
    signature: Signature::SYNTAX,
    doc: "The number of elements under each position of a window.",
    build: no_spelling,
    samples: || {
        let sample = |label, tap: usize, stride, dilation, low| {
            Sample::new(
                label,
                vec![crate::family::float(&[("n", 5), ("i", 9)])],
                move |g: &mut Graph, x: &[Id]| {
                    let dims = g.ty(x[0]).dims.clone();
                    let tap = g.dims.find("tap").unwrap_or_else(|| g.dims.add("tap", tap));
                    let slide = SlidingWindow { wide: dims[1], narrow: dims[0], tap, stride, dilation, low };
                    let count = g.op(Covered { slide, dtype: DType::F64 }, &[]);
                    Ok(g.product(&[count, x[0]]))
                },
            )
        };
        vec![sample("neighbors", 3, 2, 1, 1), sample("every other", 3, 2, 2, 3)]
    },
}];

impl Covered {
    /// Whether every position covers as many elements as there are taps.
    pub fn is_constant(slide: &SlidingWindow, table: &Dims) -> bool {
        let last = table.size(slide.narrow).saturating_sub(1) * slide.stride;
        slide.low == 0 && last + slide.reach(table) < table.size(slide.wide)
    }
}

impl Op for Covered {
    fn name(&self) -> &'static str {
        "covered"
    }

    fn infer(&self, _: &[&Type], _: &Dims) -> Result<Type, OpError> {
        Ok(Type::new(self.dtype, vec![self.slide.narrow]))
    }

    fn ordered(&self, _: &[&Type], _: &Type, _: &Dims) -> Vec<Dim> {
        vec![self.slide.narrow]
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::elementwise(x, y, Linear::No)
    }

    fn kind(&self) -> Kind {
        Kind::Rematerializable(Source::Position)
    }

    fn precision(&self, _: &[&Type], _: &Type) -> Precision {
        Precision::Full
    }

    fn vjp(&self, _: &mut Graph, _: &[Id], _: Id, _: Id, _: &[bool]) -> Vec<Option<Id>> {
        Vec::new()
    }

    fn scalar(&self, e: &mut Expr, _: &[Reg], _: &[&Type], _: &Type, table: &Dims) -> Option<Reg> {
        let s = &self.slide;
        let t = DType::I32;
        let n = e.push(Scalar::Index(0), t);
        let stride = e.constant(s.stride as f64, t);
        let from = e.binary(BinaryFn::Mul, n, stride);
        let zero = e.constant(0.0, t);
        let count = if s.dilation == 1 {
            // Taps from the first that meets an element to the last.
            let low = e.constant(s.low as f64, t);
            let before = e.binary(BinaryFn::Sub, low, from);
            let first = e.binary(BinaryFn::Max, before, zero);
            let size = e.constant(table.size(s.wide) as f64, t);
            let end = e.binary(BinaryFn::Add, before, size);
            let taps = e.constant(table.size(s.tap) as f64, t);
            let end = e.binary(BinaryFn::Min, end, taps);
            e.binary(BinaryFn::Sub, end, first)
        } else {
            let mut count = zero;
            for tap in 0..table.size(s.tap) {
                let by = e.constant((tap * s.dilation) as f64 - s.low as f64, t);
                let at = e.binary(BinaryFn::Add, from, by);
                let after = e.binary(BinaryFn::Ge, at, zero);
                let size = e.constant(table.size(s.wide) as f64, t);
                let before = e.binary(BinaryFn::Lt, at, size);
                let inside = e.binary(BinaryFn::And, after, before);
                let one = e.cast(inside, t);
                count = e.binary(BinaryFn::Add, count, one);
            }
            count
        };
        Some(e.cast(count, self.dtype))
    }

    fn lower(&self, _: &mut dyn Emit) {}

    fn oracle(&self, _: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        F64Tensor::build(table, &y.dims, |at| {
            (0..table.size(self.slide.tap)).filter(|t| self.slide.element(at[0], *t, table).is_some()).count()
                as f64
        })
    }
}
