//! Random values, drawn anew in each step: `random_uniform`, `random_normal`, and the mask of `dropout`.

use crate::family::float;
use crate::op::eq_by;
use crate::{
    Emit, F64Tensor, Family, Graph, Id, Kind, Linear, Op, OpError, Precision, Roles, Sample, Signature,
    Source, Type,
};
use meshwright_plan::random::{Distribution, FIXED_SEED, Key, draw};
use meshwright_plan::{DType, Dim, Dims, Drawn, Prim};

/// Random values of dims. Element `i`, row-major over `dims`, is a function of seed, step, `stream` and `i`: a device can
/// make any block of it, and two with different streams are never one computation.
#[derive(Clone, Debug)]
pub struct Random {
    /// Name of the stream: the source path of the call.
    pub stream: String,
    /// What is drawn; truth values for [`Distribution::Bernoulli`].
    pub distribution: Distribution,
    /// Its dims, in the order that elements are counted in.
    pub dims: Vec<Dim>,
    /// Its dtype.
    pub dtype: DType,
}

/// The distribution in words, as the language writes it.
pub fn describe_random(d: &Distribution) -> String {
    match d {
        Distribution::Uniform { low, high } => format!("uniform({low}, {high})"),
        Distribution::Normal { mean, std } => format!("normal({mean}, {std})"),
        Distribution::Bernoulli { rate } => format!("kept({rate})"),
    }
}

fn drawn(g: &mut Graph, stream: &str, distribution: Distribution, like: Id) -> Id {
    let dims = g.ty(like).dims.clone();
    let dtype = if matches!(distribution, Distribution::Bernoulli { .. }) { DType::Bool } else { DType::F64 };
    g.op(Random { stream: stream.into(), distribution, dims, dtype }, &[])
}

/// How they are written: the resolver gives each call a stream of its own, so it builds them itself.
pub(crate) static FAMILY: &[Family] = &[
    Family {
        name: "random_uniform",
        signature: Signature::SYNTAX,
        doc: "`random_uniform[d, e](low, high)`: uniform over `low..high`, drawn anew in each step.",
        build: |g, c| {
            let x = c.tensor(g, 0);
            let r = drawn(g, "random_uniform", Distribution::Uniform { low: -1.0, high: 3.0 }, x);
            Ok(g.sum_of(&[r, x]))
        },
        samples: || vec![Sample::call("uniform", "random_uniform", &[], vec![float(&[("a", 5), ("b", 3)])])],
    },
    Family {
        name: "random_normal",
        signature: Signature::SYNTAX,
        doc: "`random_normal[d, e](mean, std)`: normally distributed, drawn anew in each step.",
        build: |g, c| {
            let x = c.tensor(g, 0);
            let r = drawn(g, "random_normal", Distribution::Normal { mean: 0.5, std: 2.0 }, x);
            Ok(g.product(&[r, x]))
        },
        samples: || vec![Sample::call("normal", "random_normal", &[], vec![float(&[("a", 5), ("b", 7)])])],
    },
    Family {
        name: "dropout",
        signature: Signature::SYNTAX,
        doc: "`dropout(x, rate)`: in training each element is 0 with probability `rate`, else divided by `1 - rate`.",
        build: |g, c| {
            let x = c.tensor(g, 0);
            let kept = drawn(g, "dropout", Distribution::Bernoulli { rate: 0.25 }, x);
            let masked = g.masked(kept, x);
            Ok(g.scaled(masked, 1.0 / 0.75))
        },
        samples: || vec![Sample::call("dropout", "dropout", &[], vec![float(&[("a", 5), ("b", 3)])])],
    },
];

/// A distribution without floats, which are equal by their bits.
fn bits(d: &Distribution) -> (u8, u64, u64) {
    match d {
        Distribution::Uniform { low, high } => (0, low.to_bits(), high.to_bits()),
        Distribution::Normal { mean, std } => (1, mean.to_bits(), std.to_bits()),
        Distribution::Bernoulli { rate } => (2, rate.to_bits(), 0),
    }
}

eq_by!(Random, |r| (r.stream.clone(), bits(&r.distribution), r.dims.clone(), r.dtype));

impl Op for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn detail(&self) -> String {
        format!(" {} of `{}`", describe_random(&self.distribution), self.stream)
    }

    fn infer(&self, _: &[&Type], _: &Dims) -> Result<Type, OpError> {
        Ok(Type::new(self.dtype, self.dims.clone()))
    }

    fn ordered(&self, _: &[&Type], _: &Type, _: &Dims) -> Vec<Dim> {
        self.dims.clone()
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::elementwise(x, y, Linear::No)
    }

    fn kind(&self) -> Kind {
        Kind::Rematerializable(Source::Random)
    }

    fn drawn(&self) -> Option<Drawn> {
        let truth = matches!(self.distribution, Distribution::Bernoulli { .. });
        let Random { stream, distribution, dims, .. } = self.clone();
        truth.then_some(Drawn { stream, distribution, dims })
    }

    fn precision(&self, _: &[&Type], _: &Type) -> Precision {
        Precision::Full
    }

    fn vjp(&self, _: &mut Graph, _: &[Id], _: Id, _: Id, _: &[bool]) -> Vec<Option<Id>> {
        Vec::new()
    }

    fn lower(&self, e: &mut dyn Emit) {
        // The order of storage is the order in which elements are counted.
        let out = e.output(&self.dims);
        e.push(Prim::Random { stream: self.stream.clone(), distribution: self.distribution }, vec![], out);
    }

    fn oracle(&self, _: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        // Outside of training, which has a seed and steps.
        let key = Key::of_step(FIXED_SEED, &self.stream, 0);
        let mut out = F64Tensor::build(table, &y.dims, |_| 0.0);
        for (i, v) in out.data.iter_mut().enumerate() {
            *v = draw(&self.distribution, key, i as u64);
        }
        out
    }
}
