//! The registry: every family, and what its samples call.

use crate::call::{OpCall, Piece, Setting, Value};
use crate::family::Family;
use crate::ops;
use crate::sample::{PieceNames, Sample, SampleInput};
use crate::signature::Form;
use crate::{Graph, Id, OpError};
use meshwright_diag::codes;
use meshwright_plan::{DType, Dim};
use std::sync::Arc;

/// Every family, in order.
pub fn families() -> impl Iterator<Item = &'static Family> {
    ops::FAMILIES.iter().flat_map(|f| f.iter())
}

/// The family of that name or symbol; of two with one name (`max(x, y)` and `max[d](x)`) the one with `brackets`, or
/// without.
pub fn family(name: &str, brackets: bool) -> Option<&'static Family> {
    written(name, brackets).or_else(|| families().find(|f| f.name == name))
}

/// The family that is written as a call of that name, with brackets or without.
pub fn written(name: &str, brackets: bool) -> Option<&'static Family> {
    families().find(|f| {
        f.name == name && f.signature.form == Form::Named && f.signature.groups.is_empty() != brackets
    })
}

impl Sample {
    /// A sample whose gradient is checked too.
    pub fn new(
        label: &'static str,
        inputs: Vec<SampleInput>,
        build: impl Fn(&mut Graph, &[Id]) -> Result<Id, OpError> + Send + Sync + 'static,
    ) -> Self {
        Sample { label, inputs, build: Arc::new(build), differentiable: true, calls: None }
    }

    /// The same without a check of the gradient: it has none.
    pub fn flat(mut self) -> Self {
        self.differentiable = false;
        self
    }

    /// The same of a call of a family alone.
    fn calling(self, name: &'static str) -> Self {
        Sample { calls: Some(name), ..self }
    }

    /// A sample that writes a family's name with pieces (by name: dims, dims behind the arrow, dim behind `by`), groups and
    /// settings. Dims that no operand has are declared with the sizes of `more`.
    pub fn bracket(
        label: &'static str,
        name: &'static str,
        groups: &'static [&'static [PieceNames]],
        options: &'static [(&'static str, Setting)],
        more: &'static [(&'static str, usize)],
        inputs: Vec<SampleInput>,
    ) -> Self {
        Sample::new(label, inputs, move |g, x| {
            for (dim, size) in more {
                if g.dims.find(dim).is_none() {
                    g.dims.add(*dim, *size);
                }
            }
            let find = |names: &[&str]| names.iter().filter_map(|d| g.dims.find(d)).collect::<Vec<_>>();
            let piece = |(dims, to, by): &PieceNames| Piece {
                dims: find(dims),
                to: find(to),
                by: by.and_then(|b| g.dims.find(b)),
            };
            let groups = groups.iter().map(|g| g.iter().map(piece).collect()).collect();
            let args = x.iter().map(|i| Value::Tensor(*i)).collect();
            called(g, name, OpCall { groups, options: options.to_vec(), ..OpCall::of(args, DType::F64) })
        })
        .calling(name)
    }

    /// A sample that writes a family's name over dims (by name) of its operands.
    pub fn call(
        label: &'static str,
        name: &'static str,
        dims: &'static [&'static str],
        inputs: Vec<SampleInput>,
    ) -> Self {
        Sample::new(label, inputs, move |g, x| {
            let dims: Vec<Dim> = dims.iter().filter_map(|d| g.dims.find(d)).collect();
            let args = x.iter().map(|i| Value::Tensor(*i)).collect();
            called(g, name, OpCall::of(args, DType::F64).over(&dims))
        })
        .calling(name)
    }
}

/// What the family of that name makes of a call.
fn called(g: &mut Graph, name: &str, call: OpCall) -> Result<Id, OpError> {
    match family(name, !call.groups.is_empty()) {
        Some(f) => f.call(g, call),
        None => Err(OpError::new(codes::E0201, format!("no op `{name}`"))),
    }
}
