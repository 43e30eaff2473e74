//! A product in which some factors are one-hots, summed: what `sum[choice](one_hot[choice](best) * table)` and the dispatch of
//! tokens to experts are. The one-hots are never made: along a dim that is summed it looks up, along one that stays it adds up.

use crate::family::{float, index_of, integer, no_spelling};
use crate::{
    Emit, ExpandWhen, F64Tensor, Family, Graph, Id, Linear, Lookup, Mask, Op, OpError, Precision, Roles,
    Sample, ScatterAdd, Signature, Type, union,
};
use meshwright_diag::codes;
use meshwright_plan::{DType, Dim, Dims, Monoid};

/// The product of factors and of a one-hot for each of `hots`, of which the dims in `out` remain. Operands are the factors, then
/// for each of `hots` the position along it, an `i32` that lacks all of them; beyond its end the one-hot is 0.
///
/// Each of `hots` is a dim of a factor or of the result.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IndexedProduct {
    /// The dims of the one-hots.
    pub hots: Vec<Dim>,
    /// Dims of the result, in order; each occurs in an operand or in `hots`.
    pub out: Vec<Dim>,
}

/// It is recognized in products.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "indexed_product",
    signature: Signature::SYNTAX,
    doc: "A product with one-hots, summed: a lookup, the sum of values at positions, or both.",
    build: no_spelling,
    samples: || {
        let (b, s, c, k, d) = (("b", 2), ("s", 5), ("c", 3), ("k", 2), ("d", 4));
        let to = |hots: &'static [&'static str], out: &'static [&'static str]| {
            move |g: &mut Graph, x: &[Id]| {
                let of = |names: &[&str]| names.iter().filter_map(|n| g.dims.find(n)).collect::<Vec<_>>();
                let op = IndexedProduct { hots: of(hots), out: of(out) };
                Ok(g.op(op, x))
            }
        };
        let slot = || integer(&[b, s], 0.0, 4.0);
        vec![
            Sample::new(
                "dispatched",
                vec![float(&[b, s, d]), float(&[b, k, c]), index_of(&[b, s], c), slot()],
                to(&["c", "k"], &["b", "c", "k", "d"]),
            ),
            Sample::new(
                "combined",
                vec![float(&[b, c, k, d]), float(&[b, s, c]), index_of(&[b, s], c), slot()],
                to(&["c", "k"], &["b", "s", "d"]),
            ),
            Sample::new(
                "one stays",
                vec![float(&[b, s, d]), float(&[c, k, d]), index_of(&[b, s], c), slot()],
                to(&["c", "k"], &["b", "c", "d"]),
            ),
            Sample::new(
                "nothing is summed",
                vec![float(&[b, s]), float(&[c, d]), index_of(&[b, s], c)],
                to(&["c"], &["b", "s", "c", "d"]),
            ),
        ]
    },
}];

impl IndexedProduct {
    /// The factors, and the positions.
    fn parts<'a, T>(&self, x: &'a [T]) -> (&'a [T], &'a [T]) {
        x.split_at(x.len() - self.hots.len())
    }

    /// The one-hots that are dims of a value, with their positions.
    fn indexed(&self, g: &Graph, positions: &[Id], of: &[Dim]) -> (Vec<Dim>, Vec<Id>) {
        debug_assert!(positions.iter().all(|p| !self.hots.iter().any(|d| g.ty(*p).has(*d))));
        self.hots.iter().zip(positions).filter(|(d, _)| of.contains(d)).map(|(d, p)| (*d, *p)).unzip()
    }
}

impl Op for IndexedProduct {
    fn name(&self) -> &'static str {
        "indexed_product"
    }

    fn infer(&self, x: &[&Type], table: &Dims) -> Result<Type, OpError> {
        let (factors, positions) = self.parts(x);
        for (i, t) in factors.iter().enumerate() {
            if !t.dtype.is_float() || t.dtype != factors[0].dtype {
                return Err(
                    OpError::new(codes::E0202, format!("a product with one-hots of {}", t.dtype)).operand(i)
                );
            }
        }
        for (i, (t, dim)) in positions.iter().zip(&self.hots).enumerate() {
            if t.dtype != DType::I32 || self.hots.iter().any(|d| t.has(*d)) {
                let what =
                    format!("positions along `{}` are {}{}", table.name(*dim), t.dtype, table.list(&t.dims));
                return Err(OpError::new(codes::E0205, what).operand(factors.len() + i));
            }
        }
        Ok(Type::new(factors[0].dtype, self.out.clone()))
    }

    fn ordered(&self, _: &[&Type], _: &Type, _: &Dims) -> Vec<Dim> {
        self.hots.clone()
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::new(x, y, Monoid::Sum, Linear::Only((0..self.parts(x).0.len()).collect()))
    }

    fn precision(&self, _: &[&Type], _: &Type) -> Precision {
        Precision::Sums
    }

    fn vjp(&self, g: &mut Graph, x: &[Id], y: Id, dy: Id, need: &[bool]) -> Vec<Option<Id>> {
        let (factors, positions) = self.parts(x);
        let dims = g.ty(y).dims.clone();
        let dy = g.expanded(dy, &dims);
        let mut gradient = |i: usize| {
            let others = factors.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, f)| *f);
            let operands: Vec<Id> =
                std::iter::once(dy).chain(others).chain(positions.iter().copied()).collect();
            let out = g.ty(factors[i]).dims.clone();
            g.op(IndexedProduct { hots: self.hots.clone(), out }, &operands)
        };
        let of_factors = (0..factors.len()).map(|i| need[i].then(|| gradient(i))).collect::<Vec<_>>();
        of_factors.into_iter().chain(positions.iter().map(|_| None)).collect()
    }

    fn expand_when(&self) -> ExpandWhen {
        ExpandWhen::Always
    }

    fn expand(&self, g: &mut Graph, x: &[Id]) -> Option<Id> {
        let (factors, positions) = self.parts(x);
        // A one-hot times a value is the one-hot times what the value is at its position.
        let mut found = Vec::with_capacity(factors.len());
        for f in factors {
            let (dims, at) = self.indexed(g, positions, &g.ty(*f).dims);
            found.push(if dims.is_empty() { *f } else { entries(g, *f, dims, &at) });
        }
        let (dims, at) = self.indexed(g, positions, &self.out);
        let over = union(at.iter().map(|p| g.ty(*p)));
        let summed = over.iter().copied().filter(|d| !self.out.contains(d));
        let keep: Vec<Dim> = self.out.iter().copied().filter(|d| !dims.contains(d)).chain(summed).collect();
        let mut values = g.contract_to(&found, &keep);
        if keep.len() + dims.len() > self.out.len() {
            return Some(
                g.op(ScatterAdd { dims, out: self.out.clone() }, &[&[values], at.as_slice()].concat()),
            );
        }
        // Sums are `f32`, whatever is stored.
        let wide = g.ty(values).dtype.wide();
        values = g.cast(values, wide);
        for (d, p) in dims.into_iter().zip(at) {
            let here = g.index(d);
            let hit = g.binary("==", p, here);
            let all = union([g.ty(values), g.ty(hit)]);
            let repeated = g.expanded(values, &all);
            values = g.op(Mask, &[hit, repeated]);
        }
        Some(values)
    }

    fn lower(&self, _: &mut dyn Emit) {}

    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        let (factors, positions) = self.parts(x);
        let mut over: Vec<Dim> = Vec::new();
        for d in y.dims.iter().chain(x.iter().flat_map(|t| &t.dims)) {
            if !over.contains(d) && !self.hots.contains(d) {
                over.push(*d);
            }
        }
        let all = [over.as_slice(), &self.hots].concat();
        let mut out = F64Tensor::build(table, &y.dims, |_| 0.0);
        crate::tensor::each_position(&table.shape(&over), |at| {
            let position = |(d, p): (&Dim, &&F64Tensor)| {
                let found = p.at(&over, at);
                (0.0..table.size(*d) as f64).contains(&found).then_some(found as usize)
            };
            let hots: Vec<Option<usize>> = self.hots.iter().zip(positions).map(position).collect();
            let there = |of: &[Dim]| self.hots.iter().zip(&hots).all(|(d, h)| h.is_some() || !of.contains(d));
            let hot = hots.iter().map(|h| h.unwrap_or(0));
            let place: Vec<usize> = at.iter().copied().chain(hot).collect();
            if there(&y.dims) {
                let value = |f: &&F64Tensor| if there(&f.dims) { f.at(&all, &place) } else { 0.0 };
                let o = out.offset(&all, &place);
                out.data[o] += factors.iter().map(value).product::<f64>();
            }
        });
        out
    }
}

/// The entries of a table at positions along `dims`, stored as the table is.
fn entries(g: &mut Graph, table: Id, dims: Vec<Dim>, at: &[Id]) -> Id {
    let stored = g.ty(table).dtype;
    let found = g.op(Lookup { dims }, &[&[table], at].concat());
    g.nodes[found].ty.dtype = stored;
    found
}
