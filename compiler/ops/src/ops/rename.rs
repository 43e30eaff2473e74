//! Renaming a dim, `x[seq -> key]`: the only place where a placement changes its name. Nothing moves.

use crate::family::{float, no_spelling};
use crate::{
    Emit, F64Tensor, Family, Graph, Id, Kind, Linear, Loop, Op, OpError, Role, Roles, Sample, Signature, Type,
};
use meshwright_diag::codes;
use meshwright_plan::{Dim, Dims};

/// The same value with one dim called otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rename {
    /// The dim of the operand.
    pub from: Dim,
    /// Its new name, of the same size.
    pub to: Dim,
}

/// How it is written; `dims` of the call are the old and the new name.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "rename",
    signature: Signature::SYNTAX,
    doc: "`x[seq -> key]`: the dim `seq` under the name `key`, which is declared and of the same size.",
    build: no_spelling,
    samples: || {
        vec![Sample::new("rename", vec![float(&[("a", 5), ("b", 3)]), float(&[("c", 5)])], |g, x| {
            let (from, to) = (g.ty(x[0]).dims[0], g.ty(x[1]).dims[0]);
            let r = g.op(Rename { from, to }, &[x[0]]);
            Ok(g.product(&[r, x[1]]))
        })]
    },
}];

impl Op for Rename {
    fn name(&self) -> &'static str {
        "rename"
    }

    fn infer(&self, x: &[&Type], table: &Dims) -> Result<Type, OpError> {
        let (from, to) = (table.name(self.from), table.name(self.to));
        let has = table.list(&x[0].dims);
        if !x[0].has(self.from) {
            return Err(OpError::no_dim(format!("`[{from} -> {to}]`"), self.from, (0, x[0]), table));
        }
        if x[0].has(self.to) {
            return Err(OpError::new(
                codes::E0203,
                format!("`[{from} -> {to}]` of a value that already has a dim `{to}`: it has {has}"),
            )
            .operand(0)
            .help("declare another name of the same size for it"));
        }
        if table.size(self.from) != table.size(self.to) {
            return Err(OpError::new(
                codes::E0204,
                format!(
                    "`{from}` = {} is renamed to `{to}` = {}: the sizes differ",
                    table.size(self.from),
                    table.size(self.to)
                ),
            )
            .help(format!("declare `dim {to} = {from}`")));
        }
        let dims = x[0].dims.iter().map(|d| if *d == self.from { self.to } else { *d }).collect();
        Ok(Type { dtype: x[0].dtype, dims, range: x[0].range })
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        let back = |d: Dim| if d == self.to { self.from } else { d };
        let loops = y
            .dims
            .iter()
            .map(|d| Loop {
                dim: *d,
                role: Role::Parallel,
                on: vec![x[0].has(back(*d)).then_some(back(*d))],
                windows: vec![None],
            })
            .collect();
        Roles { loops, linear: Linear::Only([0].into()) }
    }

    fn kind(&self) -> Kind {
        Kind::Rename { from: self.from, to: self.to }
    }

    fn vjp(&self, g: &mut Graph, _: &[Id], _: Id, dy: Id, _: &[bool]) -> Vec<Option<Id>> {
        let has = g.ty(dy).has(self.to);
        vec![Some(if has { g.op(Rename { from: self.to, to: self.from }, &[dy]) } else { dy })]
    }

    fn lower(&self, _: &mut dyn Emit) {}

    fn flops(&self, _: &[&Type], _: &Type, _: &dyn Fn(Dim) -> u64, _: &Dims) -> u64 {
        0
    }

    fn oracle(&self, x: &[&F64Tensor], y: &Type, _: &Dims) -> F64Tensor {
        let old: Vec<Dim> = y.dims.iter().map(|d| if *d == self.to { self.from } else { *d }).collect();
        F64Tensor { dims: y.dims.clone(), second: Vec::new(), ..x[0].ordered(&old) }
    }
}
