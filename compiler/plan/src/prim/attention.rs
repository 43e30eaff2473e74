//! Specification of attention steps: scores of queries and keys, their weights, and the sums of values.

use crate::expr::Reg;
use crate::random::Distribution;
use crate::{Dim, Expr};
use serde::{Deserialize, Serialize};

/// The result of an attention step. With the scores `s` (see [`AttentionSpec::score`]) and the factors `c` of the weights
/// ([`AttentionSpec::weight`]), the first four are those of the forward pass, the others are gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttentionPart {
    /// `max[key](s)`.
    Max,
    /// `sum[key](exp(s - max))`.
    Sum,
    /// `sum[key](exp(s - max) * c * v)`.
    Values,
    /// `Values / Sum`: what an attention gives, of a step that has all keys.
    Result,
    /// The gradient of the queries.
    Query,
    /// The gradient of the keys.
    Key,
    /// The gradient of the values.
    Value,
    /// The gradient of the bias: that of the scores times [`AttentionBias::slope`], summed over the dims that the bias lacks.
    Bias,
}

impl AttentionPart {
    /// True if it is one number for each query.
    pub fn is_of_query(self) -> bool {
        matches!(self, AttentionPart::Max | AttentionPart::Sum)
    }

    /// True if it has dims of its own: those of the width, or of the values. The others are numbers of `f32` at least.
    pub fn has_own_dims(self) -> bool {
        !self.is_of_query() && self != AttentionPart::Bias
    }

    /// True for a gradient.
    pub fn is_gradient(self) -> bool {
        self.is_of_scores() || self == AttentionPart::Value
    }

    /// True for a gradient that is made of that of the scores.
    pub fn is_of_scores(self) -> bool {
        matches!(self, AttentionPart::Query | AttentionPart::Key | AttentionPart::Bias)
    }

    /// Its name, for listings.
    pub fn name(self) -> &'static str {
        match self {
            AttentionPart::Max => "max",
            AttentionPart::Sum => "sum",
            AttentionPart::Values => "values",
            AttentionPart::Result => "result",
            AttentionPart::Query => "query",
            AttentionPart::Key => "key",
            AttentionPart::Value => "value",
            AttentionPart::Bias => "bias",
        }
    }

    /// Floating-point operations for each pair of a query and a key, where keys have `width` elements and values `values`:
    /// its share, where all parts of one pass are computed together.
    pub fn flops(self, width: u64, values: u64) -> u64 {
        match self {
            AttentionPart::Max => 2 * width,
            AttentionPart::Sum => 5,
            AttentionPart::Values | AttentionPart::Result | AttentionPart::Value => 2 * values,
            AttentionPart::Query => 4 * width + 2 * values + 6,
            AttentionPart::Key => 2 * width,
            AttentionPart::Bias => 2,
        }
    }

    /// The same of the model, without what is computed again: scores once, in the forward pass, and nothing element-wise. The
    /// product that the gradients of queries and keys share is counted with the queries.
    pub fn model_flops(self, width: u64, values: u64) -> u64 {
        match self {
            AttentionPart::Max | AttentionPart::Sum | AttentionPart::Bias => 0,
            AttentionPart::Values | AttentionPart::Result | AttentionPart::Query => 2 * width + 2 * values,
            AttentionPart::Key => 2 * width,
            AttentionPart::Value => 2 * values,
        }
    }
}

/// A scalar expression with the register of its result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Computed {
    /// The expression. `Load(0)` is what it is a function of, `Load(1 + i)` the extra operand `i`, and behind these are the
    /// random values; `Index(k)` is the global index along dim `k` of the space.
    pub expr: Expr,
    /// The register of the result.
    pub reg: Reg,
}

/// An extra operand of scores with a gradient of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionBias {
    /// Its position among the extra operands.
    pub extra: usize,
    /// The derivative of a score by it.
    pub slope: Computed,
}

/// Random values that an expression reads: see [`crate::Prim::Random`]. They are never stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drawn {
    /// Name of the stream.
    pub stream: String,
    /// The distribution of the draws.
    pub distribution: Distribution,
    /// The dims in whose order elements are counted, all of the space.
    pub dims: Vec<Dim>,
}

/// The specification that all steps of one attention share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionSpec {
    /// The dim along which weights sum to 1.
    pub key: Dim,
    /// The dims over which queries and keys are multiplied.
    pub width: Vec<Dim>,
    /// The dims of the result that are of the values alone. They may be those of the width.
    pub values: Vec<Dim>,
    /// The dims of the scores.
    pub space: Vec<Dim>,
    /// The score as a function of the product of query and key.
    pub score: Computed,
    /// Its derivative.
    pub slope: Computed,
    /// The extra operand that has a gradient of its own; `None` where none has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bias: Option<AttentionBias>,
    /// The factor of a weight; `Load(0)` is not read. `None` where all are 1.
    pub weight: Option<Computed>,
    /// The number of extra operands.
    pub extras: usize,
    /// The random values.
    pub draws: Vec<Drawn>,
    /// Whether a forward pass goes on where one over other keys has ended: the last three operands are the maximum, the sum and
    /// the values that this has given, and the results are those of all keys so far.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub continues: bool,
    /// Whether the factors that are made inside are rounded to TF32 ([`crate::tf32`]) before they are multiplied: weights times
    /// their factors by values and cotangents, gradients of the product by keys and queries. All else stays as it is, and
    /// operands are given rounded.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rounds: bool,
}

impl AttentionSpec {
    /// The number of operands of a step that gives some parts.
    pub fn operands(&self, parts: &[AttentionPart]) -> usize {
        AttentionOperands::of(parts).extras + self.extras + if self.continues { 3 } else { 0 }
    }

    /// Positions of the maximum, the sum and the values where a step that gives some parts goes on with them.
    pub fn state(&self, parts: &[AttentionPart]) -> Option<[usize; 3]> {
        let first = AttentionOperands::of(parts).extras + self.extras;
        self.continues.then_some([first, first + 1, first + 2])
    }
}

/// Positions of the operands of a step that gives some parts: queries, keys, then those of these that the parts read, then the
/// extra operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionOperands {
    /// The greatest scores, unless the step finds them.
    pub max: Option<usize>,
    /// The values.
    pub values: Option<usize>,
    /// One divided by the sum of the exponentials, of gradients.
    pub scale: Option<usize>,
    /// The product of result and cotangent, of the gradients that are made of those of the scores.
    pub delta: Option<usize>,
    /// The cotangent, of gradients.
    pub cotangent: Option<usize>,
    /// The first extra operand.
    pub extras: usize,
}

impl AttentionOperands {
    /// Those of a step that gives these parts.
    pub fn of(parts: &[AttentionPart]) -> AttentionOperands {
        let mut next = 2;
        let mut take = |there: bool| {
            let at = next;
            next += usize::from(there);
            there.then_some(at)
        };
        let gradient = parts.iter().any(|p| p.is_gradient());
        let max = take(!parts.contains(&AttentionPart::Max));
        let of_scores = parts.iter().any(|p| p.is_of_scores());
        let sums_values = |p: &AttentionPart| matches!(p, AttentionPart::Values | AttentionPart::Result);
        let values = take(of_scores || parts.iter().any(sums_values));
        let scale = take(gradient);
        let delta = take(of_scores);
        let cotangent = take(gradient);
        AttentionOperands { max, values, scale, delta, cotangent, extras: next }
    }

    /// Those that are multiplied, in order: queries, keys, values, the cotangent.
    pub fn multiplied(self) -> impl Iterator<Item = usize> {
        [Some(0), Some(1), self.values, self.cotangent].into_iter().flatten()
    }
}
