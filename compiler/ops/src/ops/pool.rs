//! Pooling: `max_pool`, `min_pool`, `sum_pool` and `mean_pool` fold what each position of a window covers.

use super::slides::{DILATION, Has, PADDING, STRIDE, WINDOWS, each_covered, replaced, slides};
use super::{ArgmaxPool, Covered, Unpool};
use crate::family::float;
use crate::signature::{Choice, Unset};
use crate::tensor::better;
use crate::{
    Emit, F64Tensor, Family, Graph, Id, Linear, Op, OpCall, OpError, Roles, Sample, Setting, Signature, Type,
};
use meshwright_diag::codes;
use meshwright_plan::{Dim, Dims, Monoid, Prim, SlidingWindow};
use std::sync::Arc;

/// The fold of what each position covers, or with `spread` (sums only) its transpose: every element gets the sum of the
/// positions that cover it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pool {
    /// Sum, max or min.
    pub monoid: Monoid,
    /// How each window slides.
    pub slides: Vec<SlidingWindow>,
    /// From positions to elements.
    pub spread: bool,
}

/// The stride is the size of the window unless it is given.
const SIGNATURE: Signature = Signature {
    options: &[PADDING, Choice { default: Unset::By("the size of the window"), ..STRIDE }, DILATION],
    ..Signature::over(&[WINDOWS])
};

/// How they are written.
pub(crate) static FAMILY: &[Family] = &[
    Family {
        name: "max_pool",
        signature: SIGNATURE,
        doc: "`max_pool[rows -> r2 by kh, cols -> c2 by kw](x, stride = 2, padding = same)`: the greatest element under a \
              window of size `kh` by `kw`, along one to three dims. The stride is the size of the window unless it is \
              given. The gradient goes to the first of the greatest, row-major in the windows as they are written: the last \
              one runs fastest.",
        build: |g, c| build(g, c, Monoid::Max),
        samples: || samples("max_pool"),
    },
    Family {
        name: "min_pool",
        signature: SIGNATURE,
        doc: "`min_pool[rows -> r2 by kh](x)`: the least element under a window, as `max_pool` gives the greatest.",
        build: |g, c| build(g, c, Monoid::Min),
        samples: || samples("min_pool"),
    },
    Family {
        name: "sum_pool",
        signature: SIGNATURE,
        doc: "`sum_pool[rows -> r2 by kh](x)`: the sum of the elements under a window; the stride is its size unless it \
              is given.",
        build: |g, c| build(g, c, Monoid::Sum),
        samples: || samples("sum_pool"),
    },
    Family {
        name: "mean_pool",
        signature: SIGNATURE,
        doc: "`mean_pool[rows -> r2 by kh](x)`: the mean of the elements under a window; padding does not count. The \
              stride is the window's size unless it is given.",
        build: |g, c| {
            super::slides::floats(g, c)?;
            let x = c.unified(g, true)?[0];
            let slides = read(g, c, x)?;
            let sum = g.add_op(
                Arc::new(Pool { monoid: Monoid::Sum, slides: slides.clone(), spread: false }),
                &[x],
            )?;
            let dtype = g.ty(sum).dtype;
            if slides.iter().all(|s| Covered::is_constant(s, &g.dims)) {
                let taps: usize = slides.iter().map(|s| g.dims.size(s.tap)).product();
                return Ok(g.scaled(sum, 1.0 / taps as f64));
            }
            let counts: Vec<Id> =
                slides.into_iter().map(|slide| g.op(Covered { slide, dtype }, &[])).collect();
            let count = g.product(&counts);
            Ok(g.binary("/", sum, count))
        },
        samples: || samples("mean_pool"),
    },
];

const SAME: (&str, Setting) = ("padding", Setting::Word("same"));
const BY1: (&str, Setting) = ("stride", Setting::Number(1.0));

fn samples(name: &'static str) -> Vec<Sample> {
    let (b, r9, s5) = (("b", 2), ("r", 9), ("s", 5));
    vec![
        Sample::bracket(
            "by its size",
            name,
            &[&[(&["r"], &["n"], Some("k"))]],
            &[],
            &[("k", 3), ("n", 3)],
            vec![float(&[b, r9])],
        ),
        Sample::bracket(
            "same, stride 1",
            name,
            &[&[(&["r"], &[], Some("k"))]],
            &[SAME, BY1],
            &[("k", 3)],
            vec![float(&[("r", 7), b])],
        ),
        Sample::bracket(
            "two dims, padded",
            name,
            &[&[(&["r"], &["n"], Some("k")), (&["s"], &["m"], Some("k"))]],
            &[SAME, ("stride", Setting::Number(2.0))],
            &[("k", 3), ("n", 3), ("m", 3)],
            vec![float(&[("r", 5), s5])],
        ),
    ]
}

fn build(g: &mut Graph, c: &OpCall, monoid: Monoid) -> Result<Id, OpError> {
    super::slides::floats(g, c)?;
    let x = c.unified(g, true)?[0];
    let slides = read(g, c, x)?;
    g.add_op(Arc::new(Pool { monoid, slides, spread: false }), &[x])
}

/// The windows of a call, each of whose positions covers something.
fn read(g: &mut Graph, c: &OpCall, x: Id) -> Result<Vec<SlidingWindow>, OpError> {
    let tx = g.ty(x).clone();
    let slides = slides(g, c, &tx, Has::Wide, true)?;
    for s in &slides {
        // A position that begins within the dim covers what it begins with.
        let begins = |n: &usize| n * s.stride < s.low || n * s.stride - s.low >= g.dims.size(s.wide);
        let empty = (0..g.dims.size(s.narrow))
            .filter(begins)
            .find(|n| (0..g.dims.size(s.tap)).all(|t| s.element(*n, t, &g.dims).is_none()));
        if let Some(n) = empty {
            let text = format!(
                "position {n} of `{}` covers nothing but padding of `{}`",
                c.name,
                g.dims.name(s.wide)
            );
            return Err(OpError::new(codes::E0204, text).help("choose less padding, or `padding = same`"));
        }
    }
    Ok(slides)
}

impl Op for Pool {
    fn name(&self) -> &'static str {
        match (self.monoid, self.spread) {
            (Monoid::Max, _) => "max_pool",
            (Monoid::Min, _) => "min_pool",
            (_, false) => "sum_pool",
            (_, true) => "pool_spread_sum",
        }
    }

    fn infer(&self, x: &[&Type], _: &Dims) -> Result<Type, OpError> {
        if !x[0].dtype.is_float() {
            let text = format!("a pool takes floats or truth values, not {}", x[0].dtype);
            return Err(OpError::new(codes::E0202, text).operand(0).help("convert it: `cast(…, float)`"));
        }
        let has = if self.spread { Has::Narrow } else { Has::Wide };
        Ok(Type::new(x[0].dtype, replaced(&x[0].dims, &self.slides, has)))
    }

    fn ordered(&self, _: &[&Type], _: &Type, _: &Dims) -> Vec<Dim> {
        super::slides::dims(&self.slides)
    }

    fn roles(&self, x: &[&Type], y: &Type, table: &Dims) -> Roles {
        let linear = if self.monoid == Monoid::Sum { Linear::Only([0].into()) } else { Linear::No };
        let mut roles = Roles::new(x, y, Monoid::Sum, linear);
        for s in &self.slides {
            roles = if self.spread {
                roles.window(s.wide, 0, s.narrow, s.of_elements(table))
            } else {
                roles.window(s.narrow, 0, s.wide, s.of_positions(table))
            };
        }
        roles
    }

    fn vjp(&self, g: &mut Graph, x: &[Id], y: Id, dy: Id, _: &[bool]) -> Vec<Option<Id>> {
        let dims = g.ty(y).dims.clone();
        let dy = g.expanded(dy, &dims);
        if self.monoid == Monoid::Sum {
            return vec![Some(g.op(Pool { spread: !self.spread, ..self.clone() }, &[dy]))];
        }
        let tap = g.op(ArgmaxPool { monoid: self.monoid, slides: self.slides.clone() }, &[x[0]]);
        vec![Some(g.op(Unpool { slides: self.slides.clone() }, &[tap, dy]))]
    }

    fn lower(&self, e: &mut dyn Emit) {
        let input = e.input(0);
        let has = if self.spread { Has::Narrow } else { Has::Wide };
        let out = e.output(&replaced(&input.dims, &self.slides, has));
        let prim = Prim::Pool { monoid: self.monoid, windows: self.slides.clone(), spread: self.spread };
        e.push(prim, vec![input], out);
    }

    fn flops(&self, x: &[&Type], y: &Type, size: &dyn Fn(Dim) -> u64, table: &Dims) -> u64 {
        let of = if self.spread { x[0] } else { y };
        let taps: usize = self.slides.iter().map(|s| table.size(s.tap)).product();
        of.dims.iter().map(|d| size(*d)).product::<u64>() * taps as u64
    }

    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        let start = match self.monoid {
            Monoid::Max => f64::NEG_INFINITY,
            Monoid::Min => f64::INFINITY,
            _ => 0.0,
        };
        let mut out = F64Tensor::build(table, &y.dims, |_| start);
        let positions = if self.spread { &x[0].dims } else { &y.dims };
        each_covered(table, positions, &self.slides, |at, _, dims, element| {
            let (from, o) = if self.spread {
                (x[0].at(positions, at), out.offset(dims, element))
            } else {
                (x[0].at(dims, element), out.offset(positions, at))
            };
            let old = out.data[o];
            out.data[o] = match self.monoid {
                Monoid::Max if better(true, from, old) => from,
                Monoid::Min if better(false, from, old) => from,
                Monoid::Max | Monoid::Min => old,
                _ => old + from,
            };
        });
        out
    }
}
