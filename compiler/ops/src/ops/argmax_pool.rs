//! The gradient of the greatest and least under a window: which tap holds it, and where its cotangent goes.

use super::slides::{Has, each_covered, replaced};
use crate::family::{float, integer, no_spelling, truth};
use crate::tensor::better;
use crate::{Emit, F64Tensor, Family, Graph, Id, Linear, Op, OpError, Roles, Sample, Signature, Type};
use meshwright_plan::{DType, Dim, Dims, Monoid, Prim, SlidingWindow};

/// Which tap of each position holds the extreme, row-major over the taps of the slides in order; of equal ones the first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ArgmaxPool {
    /// Max or min.
    pub monoid: Monoid,
    /// How each window slides.
    pub slides: Vec<SlidingWindow>,
}

/// Every element gets the sum of the values at those positions whose tap meets it. Operands: taps, values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Unpool {
    /// How each window slides.
    pub slides: Vec<SlidingWindow>,
}

/// Gradients are made of them.
pub(crate) static FAMILY: &[Family] = &[
    Family {
        name: "argmax_pool",
        signature: Signature::SYNTAX,
        doc: "The tap of each position of a window that holds the greatest or least element.",
        build: no_spelling,
        samples: || {
            let sample = |label, monoid, inputs| {
                Sample::new(label, inputs, move |g: &mut Graph, x: &[Id]| {
                    let slides = sample_slides(g)?;
                    Ok(g.op(ArgmaxPool { monoid, slides }, x))
                })
                .flat()
            };
            // Zeros and ones, so that some are equal.
            let equal = |g: &mut Graph, x: &[Id]| {
                let slides = sample_slides(g)?;
                let x = g.cast(x[0], DType::F64);
                Ok(g.op(ArgmaxPool { monoid: Monoid::Max, slides }, &[x]))
            };
            vec![
                sample("greatest", Monoid::Max, vec![float(&[("b", 2), ("i", 7)])]),
                sample("least", Monoid::Min, vec![float(&[("i", 7), ("b", 2)])]),
                Sample::new("equal ones", vec![truth(&[("i", 7), ("b", 3)])], equal).flat(),
            ]
        },
    },
    Family {
        name: "unpool",
        signature: Signature::SYNTAX,
        doc: "The gradient of `max_pool` and `min_pool`: each value goes to the element under one tap of its position.",
        build: no_spelling,
        samples: || {
            let spread = |g: &mut Graph, x: &[Id]| {
                let slides = sample_slides(g)?;
                Ok(g.op(Unpool { slides }, x))
            };
            let dims = [("b", 2), ("n", 4)];
            vec![Sample::new("taps of values", vec![integer(&dims, 0.0, 3.0), float(&dims)], spread).flat()]
        },
    },
];

/// Windows of three over seven elements at every other one.
fn sample_slides(g: &mut Graph) -> Result<Vec<SlidingWindow>, OpError> {
    let mut dim = |name: &str, size: usize| g.dims.find(name).unwrap_or_else(|| g.dims.add(name, size));
    let (wide, narrow, tap) = (dim("i", 7), dim("n", 4), dim("k", 3));
    Ok(vec![SlidingWindow { wide, narrow, tap, stride: 2, dilation: 1, low: 1 }])
}

impl Op for ArgmaxPool {
    fn name(&self) -> &'static str {
        "argmax_pool"
    }

    fn infer(&self, x: &[&Type], _: &Dims) -> Result<Type, OpError> {
        Ok(Type::new(DType::I32, replaced(&x[0].dims, &self.slides, Has::Wide)))
    }

    fn ordered(&self, _: &[&Type], _: &Type, _: &Dims) -> Vec<Dim> {
        super::slides::dims(&self.slides)
    }

    fn roles(&self, x: &[&Type], y: &Type, table: &Dims) -> Roles {
        let roles = Roles::new(x, y, Monoid::Sum, Linear::No);
        self.slides.iter().fold(roles, |r, s| r.window(s.narrow, 0, s.wide, s.of_positions(table)))
    }

    fn vjp(&self, _: &mut Graph, _: &[Id], _: Id, _: Id, _: &[bool]) -> Vec<Option<Id>> {
        vec![None]
    }

    fn lower(&self, e: &mut dyn Emit) {
        let input = e.input(0);
        let out = e.output(&replaced(&input.dims, &self.slides, Has::Wide));
        e.push(Prim::ArgmaxPool { monoid: self.monoid, windows: self.slides.clone() }, vec![input], out);
    }

    fn flops(&self, _: &[&Type], y: &Type, size: &dyn Fn(Dim) -> u64, table: &Dims) -> u64 {
        let taps: usize = self.slides.iter().map(|s| table.size(s.tap)).product();
        y.dims.iter().map(|d| size(*d)).product::<u64>() * taps as u64
    }

    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        let mut out = F64Tensor::build(table, &y.dims, |_| 0.0);
        let mut best: Vec<Option<f64>> = vec![None; out.data.len()];
        each_covered(table, &y.dims, &self.slides, |at, tap, dims, element| {
            let (v, o) = (x[0].at(dims, element), out.offset(&y.dims, at));
            if best[o].is_none_or(|b| better(self.monoid == Monoid::Max, v, b)) {
                best[o] = Some(v);
                out.data[o] = tap as f64;
            }
        });
        out
    }
}

impl Op for Unpool {
    fn name(&self) -> &'static str {
        "unpool"
    }

    fn infer(&self, x: &[&Type], _: &Dims) -> Result<Type, OpError> {
        Ok(Type::new(x[1].dtype, replaced(&x[1].dims, &self.slides, Has::Narrow)))
    }

    fn ordered(&self, _: &[&Type], _: &Type, _: &Dims) -> Vec<Dim> {
        super::slides::dims(&self.slides)
    }

    fn roles(&self, x: &[&Type], y: &Type, table: &Dims) -> Roles {
        let mut roles = Roles::new(x, y, Monoid::Sum, Linear::Only([1].into()));
        for s in &self.slides {
            roles = roles.window(s.wide, 0, s.narrow, s.of_elements(table));
            roles = roles.window(s.wide, 1, s.narrow, s.of_elements(table));
        }
        roles
    }

    fn vjp(&self, _: &mut Graph, _: &[Id], _: Id, _: Id, _: &[bool]) -> Vec<Option<Id>> {
        // Second derivatives are not part of the language.
        vec![None, None]
    }

    fn lower(&self, e: &mut dyn Emit) {
        let (tap, values) = (e.input(0), e.input(1));
        let tap = e.reordered(&tap, &values.dims);
        let out = e.output(&replaced(&values.dims, &self.slides, Has::Narrow));
        e.push(Prim::Unpool { windows: self.slides.clone() }, vec![tap, values], out);
    }

    fn flops(&self, x: &[&Type], _: &Type, size: &dyn Fn(Dim) -> u64, table: &Dims) -> u64 {
        let taps: usize = self.slides.iter().map(|s| table.size(s.tap)).product();
        x[1].dims.iter().map(|d| size(*d)).product::<u64>() * taps as u64
    }

    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        let mut out = F64Tensor::build(table, &y.dims, |_| 0.0);
        let positions: &[Dim] = &x[1].dims;
        each_covered(table, positions, &self.slides, |at, tap, dims, element| {
            if x[0].at(positions, at) as usize == tap {
                let o = out.offset(dims, element);
                out.data[o] += x[1].at(positions, at);
            }
        });
        out
    }
}
