//! Short forms for building graphs out of ops: what gradients, expansions and optimizers are written in.

use crate::{
    AND, Add, Binary, BinaryDef, Cast, Const, Contract, DIV, EQ, Expand, FLOOR_DIV, GE, GT, Graph, Id,
    InRange, Index, LE, LT, Lookup, MAX, MIN, MOD, NE, OR, OpError, POW, Reduce, Select, Unary, UnaryDef,
    Value,
};
use meshwright_diag::codes;
use meshwright_plan::{DType, Dim, Monoid};
use std::sync::Arc;

/// Every function of two values.
static BINARY: &[&BinaryDef] =
    &[&DIV, &POW, &MIN, &MAX, &LT, &LE, &GT, &GE, &EQ, &NE, &AND, &OR, &FLOOR_DIV, &MOD];

impl Graph {
    /// A scalar constant.
    pub fn constant(&mut self, v: f64, dtype: DType) -> Id {
        self.op(Const::new(v, dtype), &[])
    }

    /// The sum of several values.
    pub fn sum_of(&mut self, x: &[Id]) -> Id {
        if x.len() == 1 { x[0] } else { self.op(Add, x) }
    }

    /// The product of several values, summed over every dim that is not in `keep`.
    pub fn contract_to(&mut self, x: &[Id], keep: &[Dim]) -> Id {
        let all = crate::union(x.iter().map(|i| self.ty(*i)));
        let out: Vec<Dim> = keep.iter().copied().filter(|d| all.contains(d)).collect();
        if x.len() == 1 && out.len() == self.ty(x[0]).dims.len() {
            return x[0];
        }
        self.op(Contract { out }, x)
    }

    /// The product of several values, broadcast by name.
    pub fn product(&mut self, x: &[Id]) -> Id {
        let out = crate::union(x.iter().map(|i| self.ty(*i)));
        self.op(Contract { out }, x)
    }

    /// A value times a number.
    pub fn scaled(&mut self, x: Id, by: f64) -> Id {
        let c = self.constant(by, self.ty(x).dtype);
        self.product(&[x, c])
    }

    /// A function of one value.
    pub fn unary(&mut self, def: &'static UnaryDef, x: Id) -> Id {
        self.op(Unary(def), &[x])
    }

    /// A function of two values, by its symbol or name.
    pub fn binary(&mut self, name: &str, a: Id, b: Id) -> Id {
        match BINARY.iter().find(|d| d.name == name) {
            Some(def) => self.op(Binary(def), &[a, b]),
            None => panic!("internal error: no binary function `{name}`"),
        }
    }

    /// `where c { x } else { 0 }`.
    pub fn masked(&mut self, c: Id, x: Id) -> Id {
        self.op(crate::Mask, &[c, x])
    }

    /// `where c { a } else { b }`.
    pub fn choose(&mut self, c: Id, a: Id, b: Id) -> Id {
        self.op(Select, &[c, a, b])
    }

    /// A value in another dtype.
    pub fn cast(&mut self, x: Id, to: DType) -> Id {
        if self.ty(x).dtype == to { x } else { self.op(Cast { to }, &[x]) }
    }

    /// An argument as a tensor of a dtype.
    pub fn as_tensor(&mut self, v: Value, dtype: DType) -> Result<Id, OpError> {
        match v {
            Value::Tensor(id) if self.ty(id).dtype == dtype => Ok(id),
            Value::Tensor(id) => self.add_op(Arc::new(Cast { to: dtype }), &[id]),
            Value::Bool(b) => Ok(self.constant(f64::from(u8::from(b)), dtype)),
            Value::Number(v) if dtype.is_int() && v.fract() != 0.0 => {
                Err(OpError::new(codes::E0202, format!("{v} meets a value of {dtype}: it is no integer"))
                    .help("write an integer, or cast the value first: `cast(…, float)`"))
            }
            Value::Number(v) => Ok(self.constant(v, dtype)),
        }
    }

    /// A value at a position along a dim. Only floats are looked up; every integer and truth value is one exactly.
    pub fn at(&mut self, x: Id, dim: Dim, position: Id) -> Result<Id, OpError> {
        let ty = self.ty(x).clone();
        crate::positions(self, position, dim)?;
        if ty.dtype.is_float() {
            return self.add_op(Arc::new(Lookup { dims: vec![dim] }), &[x, position]);
        }
        let table = self.cast(x, DType::F64);
        let found = self.add_op(Arc::new(Lookup { dims: vec![dim] }), &[table, position])?;
        let found = self.cast(found, ty.dtype);
        ty.range.map_or(Ok(found), |dim| self.add_op(Arc::new(InRange { dim }), &[found]))
    }

    /// The position along a dim.
    pub fn index(&mut self, dim: Dim) -> Id {
        self.op(Index { dim }, &[])
    }

    /// Folds dims away; those that the value lacks are ignored.
    pub fn reduce(&mut self, monoid: Monoid, x: Id, dims: &[Dim]) -> Id {
        let dims: Vec<Dim> = dims.iter().copied().filter(|d| self.ty(x).has(*d)).collect();
        if dims.is_empty() { x } else { self.op(Reduce { monoid, dims }, &[x]) }
    }

    /// A value with all of `dims`, repeated along those that it lacks.
    pub fn expanded(&mut self, x: Id, dims: &[Dim]) -> Id {
        if dims.iter().all(|d| self.ty(x).has(*d)) {
            x
        } else {
            self.op(Expand { dims: dims.to_vec() }, &[x])
        }
    }

    /// The cotangent of an operand with dims `x`, where the product of `factors` is what each element of the result with
    /// dims `y` contributes: summed over the dims that the operand lacks, those along which all factors are constant by
    /// their size.
    pub fn pull_back(&mut self, factors: &[Id], y: &[Dim], x: &[Dim]) -> Id {
        let all = crate::union(factors.iter().map(|i| self.ty(*i)));
        let constant: Vec<Dim> = y.iter().copied().filter(|d| !x.contains(d) && !all.contains(d)).collect();
        let constant = self.dims.elements(&constant);
        let c = self.contract_to(factors, x);
        if constant == 1 { c } else { self.scaled(c, constant as f64) }
    }
}
