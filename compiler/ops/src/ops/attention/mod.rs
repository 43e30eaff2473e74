//! Attention: `softmax[key](score)` of queries and keys, and the sum of values by these weights. The pass that recognizes it in
//! the equations of a program puts [`Attention`] in their place; it is never written.
//!
//! `Attention` becomes three ops ([`AttentionPass`]) that go over the keys without storing scores: the greatest score of each
//! query, the sum of the exponentials, and the values summed by these, each a fold along `key` by a monoid that all
//! collectives have. Where keys are whole on a device the Plan makes one step of the three. Gradients are [`AttentionGrad`]; all
//! they keep are queries, keys, values, the result, and the two numbers of each query.

mod body;
mod positions;
mod recognize;
mod samples;

pub use body::{Body, BodyRef};
pub use positions::replaced_in;
pub use recognize::{AttentionMiss, Recognizer};
pub(crate) use samples::FAMILY;

use crate::{Emit, ExpandWhen, F64Tensor, Graph, Id, Linear, Op, OpError, Precision, Roles, Type};
use body::{computed, evaluated, leaves};
use meshwright_plan::{
    AttentionBias, AttentionOperands, AttentionPart, AttentionSpec, Computed, DType, Dim, Dims, Drawn,
    Monoid, Prim,
};
use std::sync::Arc;

/// An attention: its dims, and the functions around the softmax.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttentionForm {
    /// The dim along which weights sum to 1.
    pub key: Dim,
    /// The dims over which queries and keys are multiplied.
    pub width: Vec<Dim>,
    /// The dims of the product.
    pub space: Vec<Dim>,
    /// The scores as a function of the product.
    pub score: Body,
    /// The weights of the values, as a linear function of the softmax.
    pub weight: Body,
    /// Dims of the result.
    pub out: Vec<Dim>,
    /// Dtype of the scores.
    pub dtype: DType,
    /// Dtypes of the extra operands.
    pub extras: Vec<DType>,
    /// The extra operand that has a gradient of its own, such as learned relative positions.
    pub bias: Option<usize>,
    /// Whether the factors of products are rounded to TF32, as in a program of `tf32`: those that are made inside. Operands are
    /// given rounded.
    pub rounds: bool,
}

/// Attention: `(queries, keys, values, extras…)`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attention(pub Arc<AttentionForm>);

/// One pass over the keys. `Max`: `(queries, keys, extras…)`; `Sum`: `(queries, keys, max, extras…)`; `Values`: `(queries, keys,
/// max, values, extras…)`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttentionPass {
    /// The attention.
    pub form: Arc<AttentionForm>,
    /// The part that it computes.
    pub part: AttentionPart,
}

/// A gradient: `(queries, keys, max, values, scale, delta, cotangent, extras…)`, where `scale` is one divided by the sum of the
/// exponentials, and `delta` the product of result and cotangent of each query; of the values `(queries, keys, max, scale,
/// cotangent, extras…)`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttentionGrad {
    /// The attention.
    pub form: Arc<AttentionForm>,
    /// Of which operand.
    pub of: AttentionPart,
    /// The dims of this operand.
    pub dims: Vec<Dim>,
}

impl AttentionForm {
    /// Dims of the scores but for the keys.
    pub fn rows(&self) -> Vec<Dim> {
        self.space.iter().copied().filter(|d| *d != self.key).collect()
    }

    /// Dims of the result that are of the values alone.
    pub fn values(&self) -> Vec<Dim> {
        self.out.iter().copied().filter(|d| !self.space.contains(d)).collect()
    }

    fn needed_whole(&self) -> Vec<Dim> {
        [self.width.as_slice(), &self.values()].concat()
    }

    /// A factor of a product that is made inside.
    fn factor(&self, g: &mut Graph, x: Id) -> Id {
        if self.rounds { g.unary(&super::TF32, x) } else { x }
    }

    /// The same with factors rounded.
    fn rounding(&self) -> Arc<AttentionForm> {
        Arc::new(AttentionForm { rounds: true, ..self.clone() })
    }

    fn product(&self, g: &mut Graph, [q, k]: [Id; 2]) -> Id {
        g.op(crate::Contract { out: self.space.clone() }, &[q, k])
    }

    /// `exp(score - max)`, which has all dims of the scores, and the product that the scores are made of.
    fn exponentials(&self, g: &mut Graph, of: [Id; 2], max: Id, extras: &[Id]) -> (Id, Id) {
        let product = self.product(g, of);
        let score = self.score.replay(g, product, extras);
        let minus = g.unary(&super::NEG, max);
        let shifted = g.sum_of(&[score, minus]);
        (g.unary(&super::EXP, shifted), product)
    }

    /// The gradient of what scores are computed from, from the operands of a gradient.
    fn score_gradient(&self, g: &mut Graph, x: &[Id], extras: &[Id], by: BodyRef) -> Option<Id> {
        let [q, k, max, v, scale, delta, dy] = *x.first_chunk()?;
        let (e, product) = self.exponentials(g, [q, k], max, extras);
        let p = g.product(&[e, scale]);
        let by_weight = g.contract_to(&[dy, v], &self.space);
        let by_softmax = self.weight.replay(g, by_weight, extras);
        let minus = g.unary(&super::NEG, delta);
        let inner = g.sum_of(&[by_softmax, minus]);
        let slope = self.score.slope(g, product, extras, by);
        Some(g.product(&[p, inner, slope]))
    }

    /// The derivative of a score by the bias, element by element.
    fn slope_by_bias(
        &self,
        table: &Dims,
        (root, extras): (&Type, &[Type]),
        bias: usize,
        draws: &mut Vec<Drawn>,
    ) -> Option<Computed> {
        let mut extras = extras.to_vec();
        // With all dims, so that no derivative on the way is a sum.
        extras[bias].dims.clone_from(&self.space);
        let (mut g, x, more) = leaves(table, root, &extras);
        let loads: Vec<Id> = [&[x], more.as_slice()].concat();
        let value = self.score.slope(&mut g, x, &more, BodyRef::Extra(bias));
        computed(&g, value, &loads, &self.space, draws)
    }

    fn spec(&self, table: &Dims, dtype: DType, extras: &[Type]) -> AttentionSpec {
        match self.described(table, dtype, extras) {
            Some(spec) => spec,
            None => panic!("internal error: an attention of what is not element-wise"),
        }
    }

    /// The specification for steps; `None` if its functions are not element-wise.
    fn described(&self, table: &Dims, dtype: DType, extras: &[Type]) -> Option<AttentionSpec> {
        let mut draws = Vec::new();
        let root = Type::new(dtype, self.space.clone());
        let (mut g, x, more) = leaves(table, &root, extras);
        let loads: Vec<Id> = [&[x], more.as_slice()].concat();
        let value = self.score.replay(&mut g, x, &more);
        let score = computed(&g, value, &loads, &self.space, &mut draws)?;
        let value = self.score.slope(&mut g, x, &more, BodyRef::Root);
        let slope = computed(&g, value, &loads, &self.space, &mut draws)?;
        let bias = match self.bias {
            Some(extra) => {
                let slope = self.slope_by_bias(table, (&root, extras), extra, &mut draws)?;
                Some(AttentionBias { extra, slope })
            }
            None => None,
        };
        let weight = match self.weight.is_identity() {
            true => None,
            false => {
                let value = self.weight.replay(&mut g, x, &more);
                let mut factor = computed(&g, value, &loads, &self.space, &mut draws)?;
                // A linear function of the softmax is its value at 1 times the softmax.
                for n in &mut factor.expr.nodes {
                    if n.scalar == meshwright_plan::expr::Scalar::Load(0) {
                        n.scalar = meshwright_plan::expr::Scalar::Const(1.0);
                    }
                }
                Some(factor)
            }
        };
        Some(AttentionSpec {
            key: self.key,
            width: self.width.clone(),
            values: self.values(),
            space: self.space.clone(),
            score,
            slope,
            bias,
            weight,
            extras: extras.len(),
            draws,
            continues: false,
            rounds: self.rounds,
        })
    }
}

/// Types of a step's extra operands, which are its last ones.
fn lower(form: &AttentionForm, e: &mut dyn Emit, part: AttentionPart, order: &[Dim]) {
    let first = meshwright_plan::AttentionOperands::of(&[part]).extras;
    let extras: Vec<Type> = (first..e.input_count()).map(|i| e.input_type(i).clone()).collect();
    let spec = Box::new(form.spec(e.dims(), e.result_type().dtype, &extras));
    let reads = (0..e.input_count()).map(|i| e.input(i)).collect();
    let out = e.output(order);
    e.push(Prim::Attention { spec, parts: vec![part] }, reads, out);
}

fn model_flops(form: &AttentionForm, part: AttentionPart, table: &Dims) -> u64 {
    let all = |dims: &[Dim]| crate::op::positions(dims, table);
    all(&form.space).saturating_mul(part.model_flops(all(&form.width), all(&form.values())))
}

fn flops(form: &AttentionForm, part: AttentionPart, size: &dyn Fn(Dim) -> u64) -> u64 {
    let elements = |dims: &[Dim]| dims.iter().map(|d| size(*d)).fold(1, u64::saturating_mul);
    elements(&form.space).saturating_mul(part.flops(elements(&form.width), elements(&form.values())))
}

impl Op for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn infer(&self, x: &[&Type], _: &Dims) -> Result<Type, OpError> {
        Ok(Type::new(x[2].dtype, self.0.out.clone()))
    }

    fn ordered(&self, _: &[&Type], _: &Type, table: &Dims) -> Vec<Dim> {
        self.0.ordered(table)
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        let mut whole = self.0.needed_whole();
        whole.push(self.0.key);
        Roles::new(x, y, Monoid::Sum, Linear::Only([2].into())).whole(&whole)
    }

    fn precision(&self, _: &[&Type], _: &Type) -> Precision {
        Precision::Rounded
    }

    fn rounding(&self) -> Option<(Vec<usize>, Arc<dyn Op>)> {
        Some((vec![0, 1, 2], Arc::new(Attention(self.0.rounding()))))
    }

    fn residuals(&self, g: &mut Graph, x: &[Id]) -> Vec<Id> {
        let (q, k, extras) = (x[0], x[1], &x[3..]);
        let max = self.max(g, [q, k], extras);
        vec![max, self.sum(g, [q, k, max], extras)]
    }

    fn vjp(&self, g: &mut Graph, x: &[Id], y: Id, dy: Id, need: &[bool]) -> Vec<Option<Id>> {
        let [q, k, v, ref extras @ .., max, sum] = *x else {
            panic!("internal error: an attention without operands")
        };
        let dy = g.expanded(dy, &self.0.out);
        let delta = g.contract_to(&[y, dy], &self.0.rows());
        let scale = g.unary(&super::RECIP, sum);
        let of_scores = [&[q, k, max, v, scale, delta, dy], extras].concat();
        let of_values = [&[q, k, max, scale, dy], extras].concat();
        let of = [
            (0, AttentionPart::Query, &of_scores),
            (1, AttentionPart::Key, &of_scores),
            (2, AttentionPart::Value, &of_values),
        ];
        let bias = self.0.bias.map(|i| (3 + i, AttentionPart::Bias, &of_scores));
        let mut out: Vec<Option<Id>> = vec![None; need.len()];
        for (i, of, inputs) in of.into_iter().chain(bias).filter(|(i, ..)| need[*i]) {
            let dims = g.ty(x[i]).dims.clone();
            out[i] = Some(g.op(AttentionGrad { form: self.0.clone(), of, dims }, inputs));
        }
        out
    }

    fn expand_when(&self) -> ExpandWhen {
        ExpandWhen::Always
    }

    fn expand(&self, g: &mut Graph, x: &[Id]) -> Option<Id> {
        let (q, k, v, extras) = (x[0], x[1], x[2], &x[3..]);
        let max = self.max(g, [q, k], extras);
        let sum = self.sum(g, [q, k, max], extras);
        let inputs = [&[q, k, max, v], extras].concat();
        let values = g.op(AttentionPass { form: self.0.clone(), part: AttentionPart::Values }, &inputs);
        let scale = g.unary(&super::RECIP, sum);
        let y = g.product(&[values, scale]);
        Some(if g.ty(y).dims == self.0.out { y } else { g.contract_to(&[y], &self.0.out) })
    }

    fn lower(&self, _: &mut dyn Emit) {}

    fn oracle(&self, x: &[&F64Tensor], _: &Type, table: &Dims) -> F64Tensor {
        self.0.oracle(x, table)
    }
}

impl Attention {
    fn max(&self, g: &mut Graph, of: [Id; 2], extras: &[Id]) -> Id {
        g.op(AttentionPass { form: self.0.clone(), part: AttentionPart::Max }, &[&of, extras].concat())
    }

    fn sum(&self, g: &mut Graph, of: [Id; 3], extras: &[Id]) -> Id {
        g.op(AttentionPass { form: self.0.clone(), part: AttentionPart::Sum }, &[&of, extras].concat())
    }
}

impl AttentionForm {
    /// A graph whose leaves are operands that have these values: `fixed` of floats, then the extra ones.
    fn operands(&self, table: &Dims, x: &[&F64Tensor], fixed: usize) -> (Graph, Vec<Id>) {
        let dtype = |i: usize| i.checked_sub(fixed).map_or(self.dtype, |i| self.extras[i]);
        let types: Vec<Type> =
            x.iter().enumerate().map(|(i, t)| Type::new(dtype(i), t.dims.clone())).collect();
        let (g, first, mut rest) = leaves(table, &types[0], &types[1..]);
        rest.insert(0, first);
        (g, rest)
    }

    /// The equations: a softmax along `key`, and a sum of products.
    fn oracle(&self, x: &[&F64Tensor], table: &Dims) -> F64Tensor {
        let (mut g, at) = self.operands(table, x, 3);
        let product = self.product(&mut g, [at[0], at[1]]);
        let score = self.score.replay(&mut g, product, &at[3..]);
        let softmax = g.op(crate::Softmax { dim: self.key, log: false }, &[score]);
        let weight = self.weight.replay(&mut g, softmax, &at[3..]);
        let y = g.contract_to(&[weight, at[2]], &self.out);
        evaluated(&g, &at, x, y)
    }
}

/// Oracle of an op by what it expands to.
fn by_expansion(
    form: &AttentionForm,
    op: &dyn Op,
    x: &[&F64Tensor],
    fixed: usize,
    table: &Dims,
) -> F64Tensor {
    let (mut g, at) = form.operands(table, x, fixed);
    match op.expand(&mut g, &at) {
        Some(y) => evaluated(&g, &at, x, y),
        None => panic!("internal error: `{}` does not expand", op.name()),
    }
}

impl Op for AttentionPass {
    fn name(&self) -> &'static str {
        "attention_pass"
    }

    fn detail(&self) -> String {
        format!(" {}", self.part.name())
    }

    fn infer(&self, x: &[&Type], _: &Dims) -> Result<Type, OpError> {
        let dims = if self.part == AttentionPart::Values { self.form.out.clone() } else { self.form.rows() };
        Ok(Type::new(x[0].dtype, dims))
    }

    fn ordered(&self, _: &[&Type], _: &Type, table: &Dims) -> Vec<Dim> {
        self.form.ordered(table)
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        let values = self.part == AttentionPart::Values;
        let linear = if values { Linear::Only([3].into()) } else { Linear::No };
        let monoid = if self.part == AttentionPart::Max { Monoid::Max } else { Monoid::Sum };
        Roles::new(x, y, monoid, linear).whole(&self.form.needed_whole())
    }

    fn precision(&self, _: &[&Type], _: &Type) -> Precision {
        Precision::Inside
    }

    fn rounding(&self) -> Option<(Vec<usize>, Arc<dyn Op>)> {
        let (form, at) = (self.form.rounding(), AttentionOperands::of(&[self.part]));
        Some((at.multiplied().collect(), Arc::new(AttentionPass { form, part: self.part })))
    }

    fn vjp(&self, _: &mut Graph, x: &[Id], _: Id, _: Id, _: &[bool]) -> Vec<Option<Id>> {
        // The attention that they are made of has the gradient.
        vec![None; x.len()]
    }

    fn expand_when(&self) -> ExpandWhen {
        ExpandWhen::Split(self.form.needed_whole())
    }

    fn expand(&self, g: &mut Graph, x: &[Id]) -> Option<Id> {
        let (form, of) = (&self.form, [x[0], x[1]]);
        Some(match self.part {
            AttentionPart::Max => {
                let product = form.product(g, of);
                let score = form.score.replay(g, product, &x[2..]);
                g.reduce(Monoid::Max, score, &[form.key])
            }
            AttentionPart::Sum => {
                let (e, _) = form.exponentials(g, of, x[2], &x[3..]);
                g.reduce(Monoid::Sum, e, &[form.key])
            }
            _ => {
                let (e, _) = form.exponentials(g, of, x[2], &x[4..]);
                let weight = form.weight.replay(g, e, &x[4..]);
                let weight = form.factor(g, weight);
                g.contract_to(&[weight, x[3]], &form.out)
            }
        })
    }

    fn lower(&self, e: &mut dyn Emit) {
        let order = if self.part == AttentionPart::Values { self.form.out.clone() } else { self.form.rows() };
        lower(&self.form, e, self.part, &order);
    }

    fn flops(&self, _: &[&Type], _: &Type, size: &dyn Fn(Dim) -> u64, _: &Dims) -> u64 {
        flops(&self.form, self.part, size)
    }

    fn model_flops(&self, _: &[&Type], _: &Type, table: &Dims) -> u64 {
        model_flops(&self.form, self.part, table)
    }

    fn positions(&self, _: &[&Type], _: &Type, table: &Dims) -> u64 {
        crate::op::positions(&self.form.space, table)
    }

    fn oracle(&self, x: &[&F64Tensor], _: &Type, table: &Dims) -> F64Tensor {
        by_expansion(&self.form, self, x, meshwright_plan::AttentionOperands::of(&[self.part]).extras, table)
    }
}

impl Op for AttentionGrad {
    fn name(&self) -> &'static str {
        "attention_grad"
    }

    fn detail(&self) -> String {
        format!(" of the {}", self.of.name())
    }

    fn infer(&self, x: &[&Type], _: &Dims) -> Result<Type, OpError> {
        Ok(Type::new(x[0].dtype, self.dims.clone()))
    }

    fn ordered(&self, _: &[&Type], _: &Type, table: &Dims) -> Vec<Dim> {
        self.form.ordered(table)
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        let value = self.of == AttentionPart::Value;
        let linear = Linear::Only(if value { [3, 4].into() } else { [4].into() });
        Roles::new(x, y, Monoid::Sum, linear).whole(&self.form.needed_whole())
    }

    fn precision(&self, _: &[&Type], _: &Type) -> Precision {
        // A bias is a parameter, or is made of one: its terms are added in full, however they are split.
        if self.of == AttentionPart::Bias { Precision::Inside } else { Precision::Rounded }
    }

    fn rounding(&self) -> Option<(Vec<usize>, Arc<dyn Op>)> {
        let (form, at) = (self.form.rounding(), AttentionOperands::of(&[self.of]));
        Some((at.multiplied().collect(), Arc::new(AttentionGrad { form, ..self.clone() })))
    }

    fn vjp(&self, _: &mut Graph, x: &[Id], _: Id, _: Id, _: &[bool]) -> Vec<Option<Id>> {
        // Second derivatives are not part of the language.
        vec![None; x.len()]
    }

    fn expand_when(&self) -> ExpandWhen {
        ExpandWhen::Split(self.form.needed_whole())
    }

    fn expand(&self, g: &mut Graph, x: &[Id]) -> Option<Id> {
        let form = &self.form;
        if self.of == AttentionPart::Value {
            let ([q, k, max, scale, dy], extras) = (*x.first_chunk()?, &x[5..]);
            let (e, _) = form.exponentials(g, [q, k], max, extras);
            let p = g.product(&[e, scale]);
            let weight = form.weight.replay(g, p, extras);
            let weight = form.factor(g, weight);
            return Some(g.contract_to(&[weight, dy], &self.dims));
        }
        let ([q, k, ..], extras) = (*x.first_chunk::<7>()?, &x[7..]);
        let factors = match (self.of, form.bias) {
            (AttentionPart::Bias, Some(i)) => {
                let mut extras = extras.to_vec();
                // With all dims, so that no derivative on the way is a sum.
                extras[i] = g.expanded(extras[i], &form.space);
                vec![form.score_gradient(g, x, &extras, BodyRef::Extra(i))?]
            }
            (of, _) => {
                let other = if of == AttentionPart::Query { k } else { q };
                let slope = form.score_gradient(g, x, extras, BodyRef::Root)?;
                vec![form.factor(g, slope), other]
            }
        };
        Some(g.op(crate::Contract { out: self.dims.clone() }, &factors))
    }

    fn lower(&self, e: &mut dyn Emit) {
        lower(&self.form, e, self.of, &self.dims);
    }

    fn flops(&self, _: &[&Type], _: &Type, size: &dyn Fn(Dim) -> u64, _: &Dims) -> u64 {
        flops(&self.form, self.of, size)
    }

    fn model_flops(&self, _: &[&Type], _: &Type, table: &Dims) -> u64 {
        model_flops(&self.form, self.of, table)
    }

    fn positions(&self, _: &[&Type], _: &Type, table: &Dims) -> u64 {
        crate::op::positions(&self.form.space, table)
    }

    fn oracle(&self, x: &[&F64Tensor], _: &Type, table: &Dims) -> F64Tensor {
        by_expansion(&self.form, self, x, meshwright_plan::AttentionOperands::of(&[self.of]).extras, table)
    }
}
