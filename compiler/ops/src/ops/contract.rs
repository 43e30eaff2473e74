//! Contraction: the product of any number of values, summed over the dims that the result lacks. `a * b` is one that sums
//! nothing; `sum[d](a * b)` is one by definition, so that the product is never materialized.

use crate::family::{float, integer};
use crate::{
    Class, Computes, Emit, F64Tensor, Family, Graph, Id, Kind, Linear, Op, OpError, Precision, Roles, Sample,
    Signature, Type, union,
};
use meshwright_diag::codes;
use meshwright_plan::expr::{BinaryFn, Reg, Scalar};
use meshwright_plan::{DType, Dim, Dims, Expr, Monoid, Operand, Prim};
use meshwright_sorted::{SortedMap, SortedSet};
use std::sync::Arc;

/// The product of its operands, summed over all dims but `out`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Contract {
    /// Dims of the result, in order; each occurs in an operand.
    pub out: Vec<Dim>,
}

/// Products as they are written; inside `sum[…]` the resolver makes one contraction of both.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "*",
    signature: Signature::INFIX,
    doc: "Product, broadcast by name. `sum[d](a * b * c)` is one contraction.",
    build: |g, c| {
        let x = c.unified(g, true)?;
        // Dims of parameters come last, so that a result is stored example by example.
        let mut in_order = x.clone();
        in_order.sort_by_key(|i| g.node(*i).origin.class == Class::Param);
        let out = union(in_order.iter().map(|i| g.ty(*i)));
        g.add_op(Arc::new(Contract { out }), &x)
    },
    samples,
}];

fn contraction(
    label: &'static str,
    out: &'static [&'static str],
    inputs: Vec<crate::family::SampleInput>,
) -> Sample {
    Sample::new(label, inputs, move |g, x| {
        let out = out.iter().filter_map(|d| g.dims.find(d)).collect();
        Ok(g.op(Contract { out }, x))
    })
}

fn samples() -> Vec<Sample> {
    let (a, b, c, d) = (("a", 5), ("b", 3), ("c", 4), ("d", 2));
    vec![
        Sample::call("a * b", "*", &[], vec![float(&[a, b]), float(&[b])]),
        contraction("matrix product", &["a", "c"], vec![float(&[a, b]), float(&[b, c])]),
        contraction("transposed", &["c", "a"], vec![float(&[b, a]), float(&[c, b])]),
        contraction("batched", &["a", "b", "d"], vec![float(&[a, b, c]), float(&[a, d, c])]),
        contraction("two summed dims", &["d"], vec![float(&[a, b, c]), float(&[a, b, d])]),
        contraction("three operands", &["a", "d"], vec![float(&[a, b]), float(&[b, c]), float(&[c, d])]),
        contraction("dot", &[], vec![float(&[a, b]), float(&[b, a])]),
        contraction(
            "many operands",
            &["a"],
            vec![
                float(&[a, b]),
                float(&[b]),
                float(&[b, c]),
                float(&[c]),
                float(&[c, d]),
                float(&[d, ("e", 2)]),
                float(&[a]),
                float(&[d, b]),
                float(&[a, c]),
                float(&[]),
            ],
        ),
        contraction("scaled", &["a"], vec![float(&[]), float(&[a, b]), float(&[b])]),
        contraction("a dim of one operand is summed", &["a"], vec![float(&[a, b, c]), float(&[a, b])]),
        contraction(
            "of integers",
            &["a", "c"],
            vec![integer(&[a, b], -3.0, 4.0), integer(&[b, c], -3.0, 4.0)],
        )
        .flat(),
        contraction("dot of integers", &[], vec![integer(&[a, b], -3.0, 4.0), integer(&[b, a], -3.0, 4.0)])
            .flat(),
    ]
}

impl Op for Contract {
    fn name(&self) -> &'static str {
        "contract"
    }

    fn infer(&self, x: &[&Type], _: &Dims) -> Result<Type, OpError> {
        for (i, t) in x.iter().enumerate() {
            if t.dtype != x[0].dtype || !(t.dtype.is_float() || t.dtype == DType::I32) {
                return Err(OpError::new(
                    codes::E0202,
                    format!("a product of {} and {}", x[0].dtype, t.dtype),
                )
                .operand(i)
                .one_dtype(x[0].dtype, t.dtype));
            }
        }
        Ok(Type::new(x[0].dtype, self.out.clone()))
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        let linear = if x.len() == 1 { Linear::Only([0].into()) } else { Linear::EachAlone };
        Roles::new(x, y, Monoid::Sum, linear)
    }

    fn kind(&self) -> Kind {
        Kind::Compute(Computes::Contraction)
    }

    fn precision(&self, x: &[&Type], y: &Type) -> Precision {
        let summed = |t: &&Type| t.dims.iter().any(|d| !y.has(*d));
        if !x.iter().any(summed) {
            return Precision::AsOperands;
        }
        // A sum of element-wise products, such as of squares, is no matrix product.
        let all = union(x.iter().copied());
        let alike = x.iter().filter(|t| !t.dims.is_empty()).all(|t| t.dims.len() == all.len());
        if alike { Precision::Sums } else { Precision::Products }
    }

    fn vjp(&self, g: &mut Graph, x: &[Id], y: Id, dy: Id, need: &[bool]) -> Vec<Option<Id>> {
        if x.len() > FEW {
            return self.through_pairs(g, x, dy, need);
        }
        let dims = g.ty(y).dims.clone();
        let mut out = Vec::new();
        for (i, xi) in x.iter().enumerate() {
            out.push(need[i].then(|| {
                let mut factors = vec![dy];
                factors.extend(x.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, f)| *f));
                let to = g.ty(*xi).dims.clone();
                g.pull_back(&factors, &dims, &to)
            }));
        }
        out
    }

    fn scalar(&self, e: &mut Expr, x: &[Reg], types: &[&Type], y: &Type, _: &Dims) -> Option<Reg> {
        let sums = types.iter().any(|t| t.dims.iter().any(|d| !y.has(*d)));
        if sums { None } else { x.iter().copied().reduce(|a, b| e.binary(BinaryFn::Mul, a, b)) }
    }

    fn lower(&self, e: &mut dyn Emit) {
        let mut work: Vec<Operand> = (0..e.input_count()).map(|i| e.input(i)).collect();
        let mut stored: Vec<DType> = (0..e.input_count()).map(|i| e.input_type(i).dtype).collect();
        let result = e.result_type().dtype;
        let mut pairing = Pairing::new(work.iter().map(|o| o.dims.clone()).collect(), &self.out);
        // A dim that only one operand has is summed before anything is multiplied.
        for i in 0..work.len() {
            let keep = pairing.sum_alone(i);
            if keep.len() < work[i].dims.len() {
                stored[i] = stored[i].wide();
                let out = if work.len() == 1 { e.output(&keep) } else { e.temp(stored[i], &keep) };
                e.push(Prim::Reduce { monoid: Monoid::Sum }, vec![work[i].clone()], out.clone());
                work[i] = out;
            }
        }
        while let Some(TwoFactors { i, j, joined, keep, .. }) = pairing.next(e.dims()) {
            let (a, b, of) = (work[i].clone(), work[j].clone(), (stored[i], stored[j]));
            // Intermediate results are stored as narrowly as their factors.
            let between = if of.0 == of.1 || !of.1.is_half() { of.0 } else { of.1 };
            let first = a.clone();
            let (a, b, order) = storage_order(a, b, &keep, &self.out);
            let of = if a == first { of } else { (of.1, of.0) };
            let last = pairing.left == 1;
            let out = if last { e.output(&order) } else { e.temp(between, &order) };
            let to = if last { result } else { between };
            if keep.len() == joined.len() {
                e.push(multiply([of.0, of.1], to), vec![a, b], out.clone());
            } else if to == DType::I32 {
                // There are matrix products of floats alone.
                let all = e.temp(to, &joined);
                e.push(multiply([of.0, of.1], to), vec![a, b], all.clone());
                e.push(Prim::Reduce { monoid: Monoid::Sum }, vec![all], out.clone());
            } else {
                e.push(Prim::Contract, vec![a, b], out.clone());
            }
            pairing.stored_as(i, order);
            (work[i], stored[i]) = (out, to);
        }
    }

    /// Of the products of two factors, and of the sums over a dim that one factor alone has.
    fn positions(&self, x: &[&Type], _: &Type, table: &Dims) -> u64 {
        let mut pairing = Pairing::new(x.iter().map(|t| t.dims.clone()).collect(), &self.out);
        (0..x.len()).for_each(|i| {
            pairing.sum_alone(i);
        });
        let mut most = x.iter().map(|t| crate::op::positions(&t.dims, table)).max().unwrap_or(1);
        while let Some(pair) = pairing.next(table) {
            most = most.max(crate::op::positions(&pair.joined, table));
        }
        most
    }

    fn flops(&self, x: &[&Type], _: &Type, size: &dyn Fn(Dim) -> u64, table: &Dims) -> u64 {
        let positions = |dims: &[Dim]| dims.iter().map(|d| size(*d)).fold(1, u64::saturating_mul);
        let all = union(x.iter().copied());
        if x.len() < 3 || all.len() == self.out.len() {
            return (x.len().max(2) as u64).saturating_mul(positions(&all));
        }
        // As it is lowered: first what one operand alone is summed over, then pair by pair.
        let mut pairing = Pairing::new(x.iter().map(|t| t.dims.clone()).collect(), &self.out);
        let mut flops: u64 = 0;
        for (i, t) in x.iter().enumerate() {
            if pairing.sum_alone(i).len() < t.dims.len() {
                flops = flops.saturating_add(positions(&t.dims));
            }
        }
        while let Some(TwoFactors { joined, keep, .. }) = pairing.next(table) {
            let each = if keep.len() == joined.len() { 1 } else { 2 };
            flops = flops.saturating_add(positions(&joined).saturating_mul(each));
        }
        flops
    }

    fn model_flops(&self, x: &[&Type], _: &Type, table: &Dims) -> u64 {
        let mut pairing = Pairing::new(x.iter().map(|t| t.dims.clone()).collect(), &self.out);
        (0..x.len()).for_each(|i| {
            pairing.sum_alone(i);
        });
        let mut flops: u64 = 0;
        while let Some(pair) = pairing.next(table) {
            if pair.is_matrix_product() {
                flops = flops.saturating_add(crate::op::positions(&pair.joined, table).saturating_mul(2));
            }
        }
        flops
    }

    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        let mut all: Vec<Dim> = Vec::new();
        for d in x.iter().flat_map(|t| &t.dims) {
            if !all.contains(d) {
                all.push(*d);
            }
        }
        let mut out = F64Tensor::build(table, &y.dims, |_| 0.0);
        crate::tensor::each_position(&table.shape(&all), |at| {
            let o = out.offset(&all, at);
            out.data[o] += x.iter().map(|t| t.at(&all, at)).product::<f64>();
        });
        out
    }
}

/// So many factors are each differentiated by itself, as the product of all others.
const FEW: usize = 8;

impl Contract {
    /// The cotangents of many factors: back through the products of two that they are multiplied by, so that there are as many
    /// products as factors, and not their square.
    fn through_pairs(&self, g: &mut Graph, x: &[Id], dy: Id, need: &[bool]) -> Vec<Option<Id>> {
        let mut pairing = Pairing::new(x.iter().map(|i| g.ty(*i).dims.clone()).collect(), &self.out);
        // The value that replaces each factor, and whether a factor in it needs a gradient.
        let mut work: Vec<(Id, bool)> = x.iter().copied().zip(need.iter().copied()).collect();
        for (i, w) in work.iter_mut().enumerate() {
            w.0 = g.contract_to(&[w.0], &pairing.sum_alone(i));
        }
        let alone = work.clone();
        let mut pairs = Vec::new();
        while let Some(TwoFactors { i, j, keep, .. }) = pairing.next(&g.dims) {
            let (a, b) = (work[i], work[j]);
            // The last is the result, whose cotangent is known.
            let product = if pairing.left == 1 { dy } else { g.contract_to(&[a.0, b.0], &keep) };
            work[i] = (product, a.1 || b.1);
            pairs.push((i, j, a, b, keep));
        }
        let mut cotangent: Vec<Id> = vec![dy; x.len()];
        for (i, j, a, b, dims) in pairs.into_iter().rev() {
            let d = cotangent[i];
            for (at, (of, asked), other) in [(j, b, a.0), (i, a, b.0)] {
                if asked {
                    let to = g.ty(of).dims.clone();
                    cotangent[at] = g.pull_back(&[d, other], &dims, &to);
                }
            }
        }
        let mut back = |i: usize| {
            let (dims, to) = (g.ty(alone[i].0).dims.clone(), g.ty(x[i]).dims.clone());
            g.pull_back(&[cotangent[i]], &dims, &to)
        };
        (0..x.len()).map(|i| need[i].then(|| back(i))).collect()
    }
}

/// Two factors that are multiplied next.
struct TwoFactors {
    /// The place of the first, which the product takes.
    i: usize,
    /// The place of the second.
    j: usize,
    /// Numbers of dims of the first and of the second.
    ranks: [usize; 2],
    /// Dims of both.
    joined: Vec<Dim>,
    /// Those of them that the result or another factor still needs.
    keep: Vec<Dim>,
}

impl TwoFactors {
    /// True if something is summed and each factor has a dim that the other lacks, so that every element is multiplied more
    /// than once. A sum of element-wise products, such as of squares, or of a matrix and a vector, takes the time of reading it.
    fn is_matrix_product(&self) -> bool {
        self.keep.len() < self.joined.len() && self.ranks.iter().all(|n| *n < self.joined.len())
    }
}

/// Kinds of factors (each with its own dims) whose pairs are compared: the first ones. The products of a program have fewer; one
/// with more is planned in time that grows with its factors alone.
const KINDS: usize = 8;

/// In which order the factors of a product are multiplied: each time the pair whose product is smallest; of equal ones the
/// one with fewer multiplications, then the first.
struct Pairing<'a> {
    /// Dims of the factors that are left.
    work: Vec<Option<Vec<Dim>>>,
    /// The number of factors left.
    left: usize,
    out: &'a [Dim],
    /// The number of factors with each dim.
    counts: SortedMap<Dim, usize>,
    /// Places of factors with the same dims.
    kinds: SortedMap<Vec<Dim>, SortedSet<usize>>,
    /// The kind of the first factor of each, by its place.
    firsts: SortedMap<usize, Vec<Dim>>,
}

impl<'a> Pairing<'a> {
    fn new(factors: Vec<Vec<Dim>>, out: &'a [Dim]) -> Self {
        let mut p = Pairing {
            work: vec![None; factors.len()],
            left: 0,
            out,
            counts: SortedMap::new(),
            kinds: SortedMap::new(),
            firsts: SortedMap::new(),
        };
        for (i, dims) in factors.into_iter().enumerate() {
            p.insert(i, dims);
        }
        p
    }

    fn insert(&mut self, i: usize, dims: Vec<Dim>) {
        dims.iter().for_each(|d| *self.counts.entry(*d).or_default() += 1);
        let mut kind = dims.clone();
        kind.sort_unstable();
        let same = self.kinds.entry(kind.clone()).or_default();
        let first = same.first().copied();
        same.insert(i);
        if first.is_none_or(|f| i < f) {
            first.and_then(|f| self.firsts.remove(&f));
            self.firsts.insert(i, kind);
        }
        self.work[i] = Some(dims);
        self.left += 1;
    }

    fn take(&mut self, i: usize) -> Vec<Dim> {
        let Some(dims) = self.work[i].take() else { return Vec::new() };
        for d in &dims {
            self.counts.entry(*d).and_modify(|n| *n -= 1);
        }
        let mut kind = dims.clone();
        kind.sort_unstable();
        if let Some(same) = self.kinds.get_mut(&kind) {
            same.remove(&i);
            if self.firsts.remove(&i).is_some()
                && let Some(next) = same.first()
            {
                self.firsts.insert(*next, kind);
            }
        }
        self.left -= 1;
        dims
    }

    /// The factor in a place is summed over the dims that it alone has; gives its other dims.
    fn sum_alone(&mut self, i: usize) -> Vec<Dim> {
        let mut dims = self.take(i);
        let others = |d: &Dim| self.counts.get(d).is_some_and(|n| *n > 0);
        dims.retain(|d| self.out.contains(d) || others(d));
        self.insert(i, dims.clone());
        dims
    }

    /// The order in which the dims of a product are stored.
    fn stored_as(&mut self, i: usize, dims: Vec<Dim>) {
        if let Some(stored) = &mut self.work[i] {
            *stored = dims;
        }
    }

    /// Takes the next pair, and puts its product in the place of the first; `None` where all is one.
    fn next(&mut self, table: &Dims) -> Option<TwoFactors> {
        if self.left < 2 {
            return None;
        }
        let (i, j) = self.cheapest(table)?;
        let (a, b) = (self.take(i), self.take(j));
        let joined: Vec<Dim> = a.iter().chain(b.iter().filter(|d| !a.contains(d))).copied().collect();
        let ranks = [a.len(), b.len()];
        let needed = |d: &Dim| self.out.contains(d) || self.counts.get(d).is_some_and(|n| *n > 0);
        let keep: Vec<Dim> = joined.iter().copied().filter(needed).collect();
        self.insert(i, keep.clone());
        Some(TwoFactors { i, j, ranks, joined, keep })
    }

    fn cheapest(&self, table: &Dims) -> Option<(usize, usize)> {
        let firsts: Vec<(usize, &Vec<Dim>)> = self.firsts.iter().take(KINDS).map(|(i, k)| (*i, k)).collect();
        let mut best = None;
        for (at, (i, a)) in firsts.iter().enumerate() {
            let twin = self.kinds.get(*a).and_then(|same| same.iter().nth(1));
            let twin = twin.map(|j| (*j, *a));
            for (j, b) in twin.into_iter().chain(firsts[at + 1..].iter().copied()) {
                let cost = (self.cost(a, b, table), *i, j);
                best = Some(best.map_or(cost, |b: ((u128, u128), usize, usize)| b.min(cost)));
            }
        }
        best.map(|b| (b.1, b.2))
    }

    /// Elements of the product of two factors, and multiplications.
    fn cost(&self, a: &[Dim], b: &[Dim], table: &Dims) -> (u128, u128) {
        let (mut keep, mut joined) = (1u128, 1u128);
        let both = b.iter().filter(|d| !a.contains(d));
        for d in a.iter().chain(both) {
            let size = table.size(*d) as u128;
            let mine = usize::from(a.contains(d)) + usize::from(b.contains(d));
            joined = joined.saturating_mul(size);
            if self.out.contains(d) || self.counts.get(d).is_some_and(|n| *n > mine) {
                keep = keep.saturating_mul(size);
            }
        }
        (keep, joined)
    }
}

/// The order of factors and of the result's dims: common dims, then those of the first factor, then of the second; with
/// the factors swapped where that gives the declared order of the result, so that no later step must transpose.
fn storage_order(a: Operand, b: Operand, keep: &[Dim], wanted: &[Dim]) -> (Operand, Operand, Vec<Dim>) {
    let wanted: Vec<Dim> = wanted.iter().copied().filter(|d| keep.contains(d)).collect();
    let order = |p: &Operand, q: &Operand| -> Vec<Dim> {
        let group = |f: &dyn Fn(&Dim) -> bool| -> Vec<Dim> {
            let mut dims: Vec<Dim> = wanted.iter().copied().filter(|d| f(d)).collect();
            dims.extend(keep.iter().copied().filter(|d| f(d) && !wanted.contains(d)));
            dims
        };
        let (inp, inq) = (|d: &Dim| p.dims.contains(d), |d: &Dim| q.dims.contains(d));
        [group(&|d| inp(d) && inq(d)), group(&|d| inp(d) && !inq(d)), group(&|d| !inp(d))].concat()
    };
    let (first, second) = (order(&a, &b), order(&b, &a));
    if second == wanted && first != wanted { (b, a, second) } else { (a, b, first) }
}

/// `out = a * b`, nothing summed; factors and result with their dtypes.
fn multiply(factors: [DType; 2], dtype: DType) -> Prim {
    let mut expr = Expr::default();
    let [x, y] = [0, 1].map(|i| {
        let stored = factors[i];
        let load = expr.push(Scalar::Load(i as u16), stored);
        expr.cast(load, stored.wide())
    });
    let product = expr.binary(BinaryFn::Mul, x, y);
    let r = expr.cast(product, dtype);
    Prim::Map { expr, regs: vec![r] }
}
