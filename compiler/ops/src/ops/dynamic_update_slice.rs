//! A value with some positions along a dim replaced, from a start on that is known when the step runs: how a cache takes what new
//! positions give.

use super::composite::in_place;
use crate::family::{float, index_of, integer, no_spelling};
use crate::sample::SampleInput;
use crate::{
    Emit, F64Tensor, Family, Graph, Id, Linear, Op, OpError, Precision, Roles, Sample, Signature, Type,
};
use meshwright_diag::codes;
use meshwright_plan::{DType, Dim, Dims, Prim};
use std::sync::Arc;

/// `(all, value, start) -> out`: `out[dim = start + i] = value[from = i]`, and `all` everywhere else. Positions beyond the end of
/// `dim` are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DynamicUpdateSlice {
    /// The dim of `all` along which positions are replaced.
    pub dim: Dim,
    /// What counts them on `value`.
    pub from: Dim,
}

/// Steps that decode are made of it.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "dynamic_update_slice",
    signature: Signature::SYNTAX,
    doc: "A value with some positions along a dim replaced, from a start on that is known when the step runs: caches of decoding.",
    build: no_spelling,
    samples: || {
        let (b, k, h, n) = (("b", 3), ("k", 7), ("h", 4), ("n", 2));
        let sample = |label, inputs: Vec<SampleInput>| {
            Sample::new(label, inputs, |g, x| {
                let [all, value, start] = [0, 1, 2].map(|i| g.ty(x[i]).dims.clone());
                // The first dim of `all` that the others lack, and the one that only the value has.
                let lacking = |d: &&Dim| !value.contains(d) && !start.contains(d);
                let own = |d: &&Dim| !all.contains(d);
                match (all.iter().find(lacking), value.iter().find(own)) {
                    (Some(dim), Some(from)) => {
                        g.add_op(Arc::new(DynamicUpdateSlice { dim: *dim, from: *from }), x)
                    }
                    _ => Err(OpError::new(codes::E0203, "a sample without positions")),
                }
            })
            .flat()
        };
        vec![
            sample("own starts", vec![float(&[b, k, h]), float(&[b, n, h]), index_of(&[b], k)]),
            sample("one start", vec![float(&[h, k, b]), float(&[b, n, h]), index_of(&[], k)]),
            sample("repeated", vec![float(&[b, h, k]), float(&[n, h]), integer(&[b], 0.0, 9.0)]),
        ]
    },
}];

impl Op for DynamicUpdateSlice {
    fn name(&self) -> &'static str {
        "dynamic_update_slice"
    }

    fn infer(&self, x: &[&Type], table: &Dims) -> Result<Type, OpError> {
        let [all, value, start] = x else { return Err(OpError::new(codes::E0212, "it has three operands")) };
        let wrong = |why: String, operand| Err(OpError::new(codes::E0203, why).operand(operand));
        if !all.has(self.dim) || all.has(self.from) {
            return wrong(format!("positions along `{}` are replaced", table.name(self.dim)), 0);
        }
        let known = |d: &Dim| *d == self.from || (*d != self.dim && all.has(*d));
        if !value.has(self.from) || !value.dims.iter().all(known) || value.dtype != all.dtype {
            return wrong(format!("it is no part along `{}`", table.name(self.dim)), 1);
        }
        let row = |d: &Dim| *d != self.dim && all.has(*d);
        if start.dtype != DType::I32 || !start.dims.iter().all(row) {
            return wrong("a start is an i32 for each row".into(), 2);
        }
        Ok((*all).clone())
    }

    fn ordered(&self, _: &[&Type], _: &Type, _: &Dims) -> Vec<Dim> {
        vec![self.dim, self.from]
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        // A device that holds a range of `dim` takes of the value what falls into it.
        Roles::elementwise(x, y, Linear::No).whole(&[self.from])
    }

    fn precision(&self, _: &[&Type], _: &Type) -> Precision {
        // What is kept is stored in full.
        Precision::Full
    }

    fn vjp(&self, _: &mut Graph, x: &[Id], _: Id, _: Id, _: &[bool]) -> Vec<Option<Id>> {
        vec![None; x.len()]
    }

    fn lower(&self, e: &mut dyn Emit) {
        in_place(e, Prim::DynamicUpdateSlice { dim: self.dim, from: self.from, iteration: None });
    }

    fn flops(&self, _: &[&Type], _: &Type, _: &dyn Fn(Dim) -> u64, _: &Dims) -> u64 {
        0
    }

    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        let along = y.dims.iter().position(|d| *d == self.dim).unwrap_or(0);
        let mut dims = y.dims.clone();
        dims.push(self.from);
        F64Tensor::build(table, &y.dims, |at| {
            let i = at[along] as f64 - x[2].at(&y.dims, at);
            if i < 0.0 || i >= table.size(self.from) as f64 {
                return x[0].at(&y.dims, at);
            }
            x[1].at(&dims, &[at, &[i as usize]].concat())
        })
    }
}
