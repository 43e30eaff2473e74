//! Values one after the other along a dim: `concat[a, b -> c](x, y)`.

use super::Shift;
use crate::family::float;
use crate::signature::{Argument, Arrow, DIM, DimGroup, Given, Of};
use crate::{
    Emit, F64Tensor, Family, Graph, Id, Linear, Op, OpCall, OpError, Roles, Sample, Signature, Type,
};
use meshwright_diag::codes;
use meshwright_plan::{Dim, Dims, Operand, Prim, Window};
use std::sync::Arc;

/// The operands one after the other along `to`. All have the same other dims.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Concat {
    /// The dim of each operand that becomes a part of `to`.
    pub parts: Vec<Dim>,
    /// The dim of the result.
    pub to: Dim,
}

/// How it is written.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "concat",
    signature: Signature {
        operands: &[Argument::once("x"), Argument { name: "y", given: Given::Repeated }],
        ..Signature::over(&[DimGroup {
            text: "a, b -> c",
            most: usize::MAX,
            arrow: Arrow::Last,
            of: Of::Other,
            ..DIM
        }])
    },
    doc: "`concat[a, b -> c](x, y)`: `x` along `a`, then `y` along `b`, as one dim `c` of both sizes; any number of values. A value that lacks one of the other dims is repeated along it.",
    build,
    samples: || {
        let (a, b, c) = (("a", 5), ("b", 2), ("c", 3));
        vec![
            Sample::bracket(
                "two",
                "concat",
                &[&[(&["a"], &[], None), (&["b"], &["e"], None)]],
                &[],
                &[("e", 7)],
                vec![float(&[a, c]), float(&[c, b])],
            ),
            Sample::bracket(
                "three of one dim, one repeated",
                "concat",
                &[&[(&["b"], &[], None), (&["b"], &[], None), (&["b"], &["f"], None)]],
                &[],
                &[("f", 6)],
                vec![float(&[c, b]), float(&[b]), float(&[c, b])],
            ),
        ]
    },
}];

fn build(g: &mut Graph, c: &OpCall) -> Result<Id, OpError> {
    let pieces = &c.groups[0];
    // The signature says that the last piece has an arrow.
    let to = pieces[pieces.len() - 1].to[0];
    if pieces.len() != c.args.len() {
        return Err(OpError::new(
            codes::E0203,
            format!("`concat` of {} values along {} dims", c.args.len(), pieces.len()),
        )
        .help("name a dim for each value"));
    }
    let parts: Vec<Dim> = pieces.iter().map(|p| p.dims[0]).collect();
    let x = c.unified(g, false)?;
    // What lacks one of the other dims is repeated along it, in the order of what lacks the fewest.
    let widest = (0..x.len()).rev().max_by_key(|i| g.ty(x[*i]).dims.len()).unwrap_or(0);
    let like = g.ty(x[widest]).dims.clone();
    let mut others: Vec<Dim> = Vec::new();
    for (id, d) in x.iter().zip(&parts) {
        others.extend(g.ty(*id).dims.iter().copied().filter(|e| e != d).collect::<Vec<_>>());
    }
    others.sort();
    others.dedup();
    let mut all = Vec::new();
    for (i, (id, d)) in x.iter().zip(&parts).enumerate() {
        if !g.ty(*id).has(*d) {
            let what = format!("`concat` along `{}`", g.dims.name(*d));
            return Err(OpError::no_dim(what, *d, (i, g.ty(*id)), &g.dims));
        }
        let all_dims = like
            .iter()
            .map(|e| if *e == parts[widest] { d } else { e })
            .chain(&g.ty(*id).dims)
            .chain(&others);
        let mut dims: Vec<Dim> = Vec::new();
        for dim in all_dims {
            if !dims.contains(dim) {
                dims.push(*dim);
            }
        }
        all.push(g.expanded(*id, &dims));
    }
    g.add_op(Arc::new(Concat { parts, to }), &all)
}

impl Concat {
    /// Where each part begins.
    fn offsets(&self, table: &Dims) -> Vec<usize> {
        self.parts
            .iter()
            .scan(0, |next, d| {
                let at = *next;
                *next += table.size(*d);
                Some(at)
            })
            .collect()
    }
}

impl Op for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn infer(&self, x: &[&Type], table: &Dims) -> Result<Type, OpError> {
        let to = table.name(self.to);
        let size: usize = self.parts.iter().map(|d| table.size(*d)).sum();
        if size != table.size(self.to) {
            let sizes: Vec<String> =
                self.parts.iter().map(|d| format!("`{}` = {}", table.name(*d), table.size(*d))).collect();
            return Err(OpError::new(
                codes::E0204,
                format!(
                    "{} have {size} elements together, but `{to}` = {}",
                    sizes.join(" and "),
                    table.size(self.to)
                ),
            )
            .help(format!("declare `dim {to} = {size}`")));
        }
        let others = |i: usize| {
            let mut dims: Vec<Dim> = x[i].dims.iter().copied().filter(|d| *d != self.parts[i]).collect();
            dims.sort();
            dims
        };
        for (i, t) in x.iter().enumerate() {
            if !t.has(self.parts[i]) || t.dtype != x[0].dtype || others(i) != others(0) {
                return Err(OpError::new(
                    codes::E0203,
                    format!(
                        "values that are joined differ: {} {} and {} {}",
                        x[0].dtype,
                        table.list(&x[0].dims),
                        t.dtype,
                        table.list(&t.dims)
                    ),
                )
                .operand(i));
            }
            if others(i).contains(&self.to) {
                return Err(OpError::new(
                    codes::E0203,
                    format!("this value has the dim `{to}` already: {}", table.list(&t.dims)),
                )
                .operand(i));
            }
        }
        let dims = x[0].dims.iter().map(|d| if *d == self.parts[0] { self.to } else { *d }).collect();
        let range = x[0].range.filter(|r| x.iter().all(|t| t.range == Some(*r)));
        Ok(Type { dtype: x[0].dtype, dims, range })
    }

    fn roles(&self, x: &[&Type], y: &Type, table: &Dims) -> Roles {
        let mut roles = Roles::elementwise(x, y, Linear::Jointly);
        for (i, (d, offset)) in self.parts.iter().zip(self.offsets(table)).enumerate() {
            roles = roles.window(self.to, i, *d, Window::shifted(table.size(self.to), -(offset as i64)));
        }
        roles
    }

    fn vjp(&self, g: &mut Graph, _: &[Id], y: Id, dy: Id, need: &[bool]) -> Vec<Option<Id>> {
        let dims = g.ty(y).dims.clone();
        let dy = g.expanded(dy, &dims);
        let parts = self.parts.iter().zip(self.offsets(&g.dims)).zip(need);
        parts
            .map(|((d, offset), need)| {
                need.then(|| g.op(Shift { from: self.to, to: *d, start: offset as i64, fill: 0.0 }, &[dy]))
            })
            .collect()
    }

    fn lower(&self, e: &mut dyn Emit) {
        // The largest part stays as it is stored.
        let largest = (0..self.parts.len()).rev().max_by_key(|i| e.dims().size(self.parts[*i])).unwrap_or(0);
        let (order, from) = (e.input(largest).dims, self.parts[largest]);
        let name = |part: Dim| order.iter().map(|d| if *d == from { part } else { *d }).collect::<Vec<_>>();
        let out = e.output(&name(self.to));
        let mut reads: Vec<Operand> = Vec::new();
        for (i, d) in self.parts.iter().enumerate() {
            let x = e.input(i);
            reads.push(e.reordered(&x, &name(*d)));
        }
        let parts = self.parts.iter().copied().zip(self.offsets(e.dims())).collect();
        e.push(Prim::Concat { parts, to: self.to }, reads, out);
    }

    fn flops(&self, _: &[&Type], _: &Type, _: &dyn Fn(Dim) -> u64, _: &Dims) -> u64 {
        0
    }

    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        let k = y.dims.iter().position(|d| *d == self.to).unwrap_or(0);
        let offsets = self.offsets(table);
        F64Tensor::build(table, &y.dims, |at| {
            let part = offsets.iter().rposition(|o| *o <= at[k]).unwrap_or(0);
            let mut dims = y.dims.clone();
            dims[k] = self.parts[part];
            let mut at = at.to_vec();
            at[k] -= offsets[part];
            x[part].at(&dims, &at)
        })
    }
}
