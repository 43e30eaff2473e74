//! One dim as several and several as one: `x[d_model -> heads * d_head]` and back. Row-major: the last dim runs fastest.

use crate::family::{float, no_spelling};
use crate::{Emit, F64Tensor, Family, Graph, Id, Linear, Op, OpError, Roles, Sample, Signature, Type};
use meshwright_diag::codes;
use meshwright_plan::{Dim, Dims, Prim, Window};

/// `y[a = i, b = j] = x[dim = i * size(b) + j]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SplitDim {
    /// The dim of the operand.
    pub dim: Dim,
    /// The dims of the result, the outermost first.
    pub to: Vec<Dim>,
}

/// `y[to = i * size(b) + j] = x[a = i, b = j]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MergeDims {
    /// The dims of the operand, the outermost first.
    pub dims: Vec<Dim>,
    /// The dim of the result.
    pub to: Dim,
}

/// How they are written; `dims` of the call are the one dim, then the others.
pub(crate) static FAMILY: &[Family] = &[
    Family {
        name: "cut",
        signature: Signature::SYNTAX,
        doc: "`x[d_model -> heads * d_head]`: one dim as several, whose sizes multiply to its own.",
        build: no_spelling,
        samples: || {
            let cut = |label: &'static str, d: usize, sizes: &'static [(&'static str, usize)]| {
                Sample::new(label, vec![float(&[("c", 2), ("d", d), ("e", 3)]), float(sizes)], |g, x| {
                    let (dim, to) = (g.ty(x[0]).dims[1], g.ty(x[1]).dims.clone());
                    let y = g.op(SplitDim { dim, to }, &[x[0]]);
                    Ok(g.product(&[y, x[1]]))
                })
            };
            vec![
                cut("in two", 12, &[("a", 4), ("b", 3)]),
                cut("uneven", 15, &[("a", 5), ("b", 3)]),
                cut("in three", 12, &[("a", 3), ("b", 2), ("f", 2)]),
            ]
        },
    },
    Family {
        name: "join",
        signature: Signature::SYNTAX,
        doc: "`x[heads * d_head -> d_model]`: several dims as one, whose size is the product of theirs.",
        build: no_spelling,
        samples: || {
            let join = |label: &'static str,
                        dims: &'static [(&'static str, usize)],
                        joined: &'static [usize],
                        d: usize| {
                Sample::new(label, vec![float(dims), float(&[("d", d)])], move |g, x| {
                    let (all, to) = (g.ty(x[0]).dims.clone(), g.ty(x[1]).dims[0]);
                    let y = g.op(MergeDims { dims: joined.iter().map(|i| all[*i]).collect(), to }, &[x[0]]);
                    Ok(g.product(&[y, x[1]]))
                })
            };
            vec![
                join("two", &[("c", 2), ("a", 4), ("b", 3)], &[1, 2], 12),
                join("apart and turned", &[("b", 3), ("c", 2), ("a", 5)], &[2, 0], 15),
                join("three", &[("a", 3), ("b", 2), ("f", 2)], &[0, 1, 2], 12),
            ]
        },
    },
];

/// Sizes that do not multiply to the one dim's.
fn check(one: Dim, many: &[Dim], table: &Dims) -> Result<(), OpError> {
    let product = table.elements(many);
    if product == table.size(one) {
        return Ok(());
    }
    let (name, list) = (table.name(one), many.iter().map(|d| table.name(*d)).collect::<Vec<_>>().join(" * "));
    let sizes = many.iter().map(|d| table.size(*d).to_string()).collect::<Vec<_>>().join(" * ");
    Err(OpError::new(
        codes::E0204,
        format!("`{list}` = {sizes} = {product}, but `{name}` = {}", table.size(one)),
    )
    .help(format!("declare `dim {name} = {list}`")))
}

fn has(x: &Type, want: &[Dim], lack: &[Dim], table: &Dims) -> Result<(), OpError> {
    let list = table.list(&x.dims);
    if let Some(d) = want.iter().find(|d| !x.has(**d)) {
        let name = table.name(*d);
        return Err(
            OpError::new(codes::E0203, format!("a value without the dim `{name}`: it has {list}")).operand(0)
        );
    }
    if let Some(d) = lack.iter().find(|d| x.has(**d)) {
        let name = table.name(*d);
        return Err(OpError::new(
            codes::E0203,
            format!("a value that already has a dim `{name}`: it has {list}"),
        )
        .operand(0));
    }
    let mut seen = Vec::new();
    for d in want.iter().chain(lack) {
        if seen.contains(d) {
            return Err(OpError::new(codes::E0203, format!("`{}` stands there twice", table.name(*d))));
        }
        seen.push(*d);
    }
    Ok(())
}

fn inner(many: &[Dim], table: &Dims) -> usize {
    table.elements(&many[1..])
}

impl Op for SplitDim {
    fn name(&self) -> &'static str {
        "cut"
    }

    fn infer(&self, x: &[&Type], table: &Dims) -> Result<Type, OpError> {
        check(self.dim, &self.to, table)?;
        has(x[0], &[self.dim], &self.to, table)?;
        let mut dims = Vec::new();
        for d in &x[0].dims {
            if *d == self.dim { dims.extend(&self.to) } else { dims.push(*d) }
        }
        Ok(Type { dtype: x[0].dtype, dims, range: x[0].range })
    }

    fn ordered(&self, _: &[&Type], _: &Type, _: &Dims) -> Vec<Dim> {
        [&[self.dim], self.to.as_slice()].concat()
    }

    fn roles(&self, x: &[&Type], y: &Type, table: &Dims) -> Roles {
        let window = Window::cut(table.size(self.to[0]), inner(&self.to, table));
        Roles::elementwise(x, y, Linear::Only([0].into()))
            .window(self.to[0], 0, self.dim, window)
            .whole(&self.to[1..])
    }

    fn vjp(&self, g: &mut Graph, _: &[Id], y: Id, dy: Id, _: &[bool]) -> Vec<Option<Id>> {
        let dims = g.ty(y).dims.clone();
        let dy = g.expanded(dy, &dims);
        vec![Some(g.op(MergeDims { dims: self.to.clone(), to: self.dim }, &[dy]))]
    }

    fn lower(&self, e: &mut dyn Emit) {
        let from = e.input(0);
        let mut order = Vec::new();
        for d in &from.dims {
            if *d == self.dim { order.extend(&self.to) } else { order.push(*d) }
        }
        let out = e.output(&order);
        e.push(Prim::SplitDim { dim: self.dim, to: self.to.clone() }, vec![from], out);
    }

    fn flops(&self, _: &[&Type], _: &Type, _: &dyn Fn(Dim) -> u64, _: &Dims) -> u64 {
        0
    }

    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        let mut dims = y.dims.clone();
        dims.push(self.dim);
        F64Tensor::build(table, &y.dims, |at| {
            let place = |d: &Dim| at[y.dims.iter().position(|e| e == d).unwrap_or(0)];
            let mut at = at.to_vec();
            at.push(self.to.iter().fold(0, |i, d| i * table.size(*d) + place(d)));
            x[0].at(&dims, &at)
        })
    }
}

impl Op for MergeDims {
    fn name(&self) -> &'static str {
        "join"
    }

    fn infer(&self, x: &[&Type], table: &Dims) -> Result<Type, OpError> {
        check(self.to, &self.dims, table)?;
        has(x[0], &self.dims, &[self.to], table)?;
        let mut dims = Vec::new();
        for d in &x[0].dims {
            if *d == self.dims[0] {
                dims.push(self.to);
            } else if !self.dims.contains(d) {
                dims.push(*d);
            }
        }
        Ok(Type { dtype: x[0].dtype, dims, range: x[0].range })
    }

    fn ordered(&self, _: &[&Type], _: &Type, _: &Dims) -> Vec<Dim> {
        [&[self.to], self.dims.as_slice()].concat()
    }

    fn roles(&self, x: &[&Type], y: &Type, table: &Dims) -> Roles {
        let window = Window::joined(table.size(self.to), inner(&self.dims, table));
        Roles::elementwise(x, y, Linear::Only([0].into()))
            .window(self.to, 0, self.dims[0], window)
            .whole(&self.dims[1..])
    }

    fn vjp(&self, g: &mut Graph, _: &[Id], y: Id, dy: Id, _: &[bool]) -> Vec<Option<Id>> {
        let dims = g.ty(y).dims.clone();
        let dy = g.expanded(dy, &dims);
        vec![Some(g.op(SplitDim { dim: self.to, to: self.dims.clone() }, &[dy]))]
    }

    fn lower(&self, e: &mut dyn Emit) {
        let from = e.input(0);
        let (mut order, mut result) = (Vec::new(), Vec::new());
        for d in &from.dims {
            if *d == self.dims[0] {
                order.extend(&self.dims);
                result.push(self.to);
            } else if !self.dims.contains(d) {
                order.push(*d);
                result.push(*d);
            }
        }
        let from = e.reordered(&from, &order);
        let out = e.output(&result);
        e.push(Prim::MergeDims { dims: self.dims.clone(), to: self.to }, vec![from], out);
    }

    fn flops(&self, _: &[&Type], _: &Type, _: &dyn Fn(Dim) -> u64, _: &Dims) -> u64 {
        0
    }

    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        let mut dims = y.dims.clone();
        dims.extend(&self.dims);
        let k = y.dims.iter().position(|d| *d == self.to).unwrap_or(0);
        F64Tensor::build(table, &y.dims, |at| {
            let mut rest = at[k];
            let mut places = Vec::new();
            for d in self.dims.iter().rev() {
                places.push(rest % table.size(*d));
                rest /= table.size(*d);
            }
            let mut at = at.to_vec();
            at.extend(places.iter().rev());
            x[0].at(&dims, &at)
        })
    }
}
