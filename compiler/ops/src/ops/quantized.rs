//! A value in 8 bits, scaled by its own greatest magnitude.

use super::{ABS, POWER_OF_TWO, RECIP, ROUND_E4M3, ROUND_E5M2};
use crate::family::{between, no_spelling};
use crate::{
    Emit, F64Tensor, Family, Graph, Id, Linear, Op, OpError, Roles, Sample, Signature, Type, UnaryDef,
};
use meshwright_plan::{Dim, Dims, Fp8, Monoid, power_of_two};

/// A value, each element of which is the nearest number of a format of 8 bits, times a power of two: the least by which the
/// greatest magnitude of the whole value is a number of the format. Where an element is not finite, none is.
///
/// It stands for what it is made of until a step is in parts: of a value that a part of the batch has, the greatest of this
/// part counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quantized {
    /// The format.
    pub format: Fp8,
}

/// Programs of `fp8` have it.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "quantized",
    signature: Signature::SYNTAX,
    doc: "A value in 8 bits: each element is the nearest number of E4M3 or E5M2, times the least power of two by which the greatest magnitude is such a number.",
    build: no_spelling,
    samples: || {
        Fp8::ALL.into_iter().flat_map(|format| [1e-3, 3e4].map(|most| sample(format, most))).collect()
    },
}];

/// Elements of up to this size.
fn sample(format: Fp8, most: f64) -> Sample {
    let label = match (format, most < 1.0) {
        (Fp8::E4M3, true) => "e4m3 of small numbers",
        (Fp8::E4M3, false) => "e4m3 of large numbers",
        (Fp8::E5M2, true) => "e5m2 of small numbers",
        (Fp8::E5M2, false) => "e5m2 of large numbers",
    };
    let x = between(&[("a", 5), ("b", 3)], -most, most);
    // Its gradient goes straight through: no difference has it.
    Sample::new(label, vec![x], move |g, x| Ok(g.op(Quantized { format }, x))).flat()
}

impl Quantized {
    /// The greatest scale: its inverse is a normal number.
    pub const GREATEST_SCALE: f64 = (1u128 << 126) as f64;

    /// Magnitudes of a value, in the dtype in which it is stored.
    pub fn sizes(g: &mut Graph, x: Id) -> Id {
        let stored = g.ty(x).dtype;
        let sizes = g.unary(&ABS, x);
        g.nodes[sizes].ty.dtype = stored;
        sizes
    }

    /// The scale that fits the greatest of magnitudes along `dims`: the greatest power of two by which it is a number of the
    /// format. There is one for each position of the other dims; it is 0 where a magnitude is not finite.
    pub fn scale(self, g: &mut Graph, sizes: Id, dims: &[Dim]) -> Id {
        let stored = g.ty(sizes).dtype;
        let most = g.reduce(Monoid::Max, sizes, dims);
        g.nodes[most].ty.dtype = stored;
        let wide = stored.wide();
        let greatest = g.constant(self.format.greatest().into(), wide);
        let times = g.binary("/", greatest, most);
        // Of a value of zeros, or nearly.
        let limit = g.constant(Quantized::GREATEST_SCALE, wide);
        let times = g.binary("min", times, limit);
        g.unary(&POWER_OF_TWO, times)
    }

    /// A value rounded to the format with a scale and its inverse, and stored as it was.
    pub fn rounded(self, g: &mut Graph, x: Id, [scale, inverse]: [Id; 2]) -> Id {
        let stored = g.ty(x).dtype;
        let scaled = g.product(&[x, scale]);
        let rounded = g.unary(self.rounding(), scaled);
        let back = g.product(&[rounded, inverse]);
        g.nodes[back].ty.dtype = stored;
        back
    }

    /// The function that rounds to the format.
    pub fn rounding(self) -> &'static UnaryDef {
        match self.format {
            Fp8::E4M3 => &ROUND_E4M3,
            Fp8::E5M2 => &ROUND_E5M2,
        }
    }
}

impl Op for Quantized {
    fn name(&self) -> &'static str {
        self.format.name()
    }

    fn infer(&self, x: &[&Type], _: &Dims) -> Result<Type, OpError> {
        Ok(x[0].clone())
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::elementwise(x, y, Linear::No)
    }

    fn vjp(&self, _: &mut Graph, _: &[Id], _: Id, dy: Id, _: &[bool]) -> Vec<Option<Id>> {
        vec![Some(dy)]
    }

    fn expand(&self, g: &mut Graph, x: &[Id]) -> Option<Id> {
        let x = x[0];
        let dims = g.ty(x).dims.clone();
        if g.dims.elements(&dims) == 0 {
            return Some(x);
        }
        let sizes = Quantized::sizes(g, x);
        let scale = self.scale(g, sizes, &dims);
        let inverse = g.unary(&RECIP, scale);
        Some(self.rounded(g, x, [scale, inverse]))
    }

    fn lower(&self, _: &mut dyn Emit) {}

    fn oracle(&self, x: &[&F64Tensor], _: &Type, _: &Dims) -> F64Tensor {
        let data = &x[0].data;
        let most = data.iter().fold(0.0, |most: f64, v| most.max(v.abs()));
        let scale = (f64::from(self.format.greatest()) / most).min(Quantized::GREATEST_SCALE);
        let finite = data.iter().all(|v| v.is_finite());
        let scale = if finite { f64::from(power_of_two(scale as f32)) } else { f64::NAN };
        let rounded = |v: &f64| f64::from(self.format.round((v * scale) as f32)) / scale;
        F64Tensor { data: data.iter().map(rounded).collect(), ..x[0].clone() }
    }
}
