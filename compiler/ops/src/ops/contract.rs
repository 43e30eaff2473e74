//! Contraction: the product of any number of values, summed over the dims that the result lacks. `a * b` is one that sums
//! nothing; `sum[d](a * b)` is one by definition, so that the product is never materialized.

use crate::family::{float, integer};
use crate::{Computes, Emit, F64Tensor, Family, Graph, Id, Kind, Linear, Op, OpError, Precision, Roles, Sample, Signature, Type, union};
use meshwright_diag::codes;
use meshwright_plan::expr::{BinaryFn, Reg, Scalar};
use meshwright_plan::{DType, Dim, Dims, Expr, Monoid, Operand, Prim};
use std::sync::Arc;

/// The product of its operands, of which the dims in `out` remain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Contract {
    /// Dims of the result, in order; each occurs in an operand.
    pub out: Vec<Dim>,
}

/// How a product is written; with `sum[…]` around it the resolver makes one contraction of both.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "*",
    signature: Signature::INFIX,
    doc: "Product, broadcast by name. `sum[d](a * b * c)` is one contraction.",
    build: |g, c| {
        let x = c.unified(g, true)?;
        let out = union(x.iter().map(|i| g.ty(*i)));
        g.add_op(Arc::new(Contract { out }), &x)
    },
    samples,
}];

fn contraction(label: &'static str, out: &'static [&'static str], inputs: Vec<crate::family::SampleInput>) -> Sample {
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
        contraction("scaled", &["a"], vec![float(&[]), float(&[a, b]), float(&[b])]),
        contraction("a dim of one operand is summed", &["a"], vec![float(&[a, b, c]), float(&[a, b])]),
        contraction("of integers", &["a", "c"], vec![integer(&[a, b], -3.0, 4.0), integer(&[b, c], -3.0, 4.0)]).flat(),
        contraction("dot of integers", &[], vec![integer(&[a, b], -3.0, 4.0), integer(&[b, a], -3.0, 4.0)]).flat(),
    ]
}

impl Op for Contract {
    fn name(&self) -> &'static str {
        "contract"
    }

    fn infer(&self, x: &[&Type], _: &Dims) -> Result<Type, OpError> {
        for (i, t) in x.iter().enumerate() {
            if t.dtype != x[0].dtype || !(t.dtype.is_float() || t.dtype == DType::I32) {
                return Err(OpError::new(codes::E0202, format!("a product of {} and {}", x[0].dtype, t.dtype))
                    .operand(i)
                    .help(format!("convert one of them: `cast(…, {})`", x[0].dtype)));
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
        // A dim that only one operand has is summed before anything is multiplied.
        for i in 0..work.len() {
            let alone = |d: &Dim| !self.out.contains(d) && work.iter().enumerate().all(|(j, o)| j == i || !o.dims.contains(d));
            let keep: Vec<Dim> = work[i].dims.iter().copied().filter(|d| !alone(d)).collect();
            if keep.len() < work[i].dims.len() {
                stored[i] = stored[i].wide();
                let out = if work.len() == 1 { e.output(&keep) } else { e.temp(stored[i], &keep) };
                e.push(Prim::Reduce { monoid: Monoid::Sum }, vec![work[i].clone()], out.clone());
                work[i] = out;
            }
        }
        while work.len() > 1 {
            let dims = |work: &[Operand]| work.iter().map(|o| o.dims.clone()).collect::<Vec<_>>();
            let (i, j) = if work.len() == 2 { (0, 1) } else { cheapest_pair(&dims(&work), &self.out, e.dims()) };
            let b = work.remove(j);
            let a = work.remove(i);
            let of = (stored.remove(i), stored.remove(j - 1));
            // What is stored in between is as narrow as its factors.
            let between = if of.0 == of.1 || of.1 != DType::BF16 { of.0 } else { of.1 };
            let keep = kept(&a.dims, &b.dims, &dims(&work), &self.out);
            let joined = joined(&a.dims, &b.dims);
            let first = a.clone();
            let (a, b, order) = storage_order(a, b, &keep, &self.out);
            let of = if a == first { of } else { (of.1, of.0) };
            let last = work.is_empty();
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
            let at = i.min(work.len());
            work.insert(at, out);
            stored.insert(at, to);
        }
    }

    fn flops(&self, x: &[&Type], _: &Type, size: &dyn Fn(Dim) -> u64, table: &Dims) -> u64 {
        let positions = |dims: &[Dim]| dims.iter().map(|d| size(*d)).product::<u64>();
        let all = union(x.iter().copied());
        if x.len() < 3 || all.len() == self.out.len() {
            return x.len().max(2) as u64 * positions(&all);
        }
        // As it is lowered: first what one operand alone is summed over, then pair by pair.
        let mut work: Vec<Vec<Dim>> = x.iter().map(|t| t.dims.clone()).collect();
        let mut flops = 0;
        for i in 0..work.len() {
            let needed = |d: &Dim| self.out.contains(d) || work.iter().enumerate().any(|(j, o)| j != i && o.contains(d));
            let keep: Vec<Dim> = work[i].iter().copied().filter(needed).collect();
            if keep.len() < work[i].len() {
                flops += positions(&work[i]);
                work[i] = keep;
            }
        }
        while work.len() > 1 {
            let (i, j) = cheapest_pair(&work, &self.out, table);
            let b = work.remove(j);
            let a = work.remove(i);
            let keep = kept(&a, &b, &work, &self.out);
            let joined = joined(&a, &b);
            flops += if keep.len() == joined.len() { 1 } else { 2 } * positions(&joined);
            work.insert(i.min(work.len()), keep);
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

/// Dims of the product of `a` and `b`.
fn joined(a: &[Dim], b: &[Dim]) -> Vec<Dim> {
    a.iter().chain(b.iter().filter(|d| !a.contains(d))).copied().collect()
}

/// Dims of the product of `a` and `b` that the result or another operand still needs.
fn kept(a: &[Dim], b: &[Dim], rest: &[Vec<Dim>], out: &[Dim]) -> Vec<Dim> {
    let needed = |d: &Dim| out.contains(d) || rest.iter().any(|o| o.contains(d));
    joined(a, b).into_iter().filter(needed).collect()
}

/// The pair, of operands with these dims, whose product is smallest; of equal ones the one with fewer multiplications,
/// then the first.
fn cheapest_pair(work: &[Vec<Dim>], out: &[Dim], table: &Dims) -> (usize, usize) {
    let size = |dims: &[Dim]| dims.iter().map(|d| table.size(*d) as u128).product::<u128>();
    let mut best = None;
    for i in 0..work.len() {
        for j in i + 1..work.len() {
            let rest: Vec<Vec<Dim>> =
                work.iter().enumerate().filter(|(k, _)| *k != i && *k != j).map(|(_, o)| o.clone()).collect();
            let keep = kept(&work[i], &work[j], &rest, out);
            let cost = (size(&keep), size(&joined(&work[i], &work[j])), i, j);
            best = Some(best.map_or(cost, |b: (u128, u128, usize, usize)| b.min(cost)));
        }
    }
    best.map_or((0, 1), |b| (b.2, b.3))
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
