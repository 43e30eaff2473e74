//! Families: what users may write, and which op it builds. The list of families is the registry.

use crate::signature::{Form, Signature};
use crate::{Cast, Const, Graph, Id, OpError, ops};
use meshwright_diag::codes;
use meshwright_plan::{DType, Dim};
use std::sync::Arc;

/// An argument of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A tensor.
    Tensor(Id),
    /// A number known at compile time; it takes the dtype of the tensor it meets.
    Number(f64),
    /// A truth value known at compile time.
    Bool(bool),
}

/// What an option of a call is set to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Setting {
    /// `stride = 2`.
    Number(f64),
    /// `reverse = true`.
    Bool(bool),
    /// `padding = same`.
    Word(&'static str),
}

/// A piece of the brackets of a call: `rows by kh`, `rows -> r2 by kh`, `a, b -> c`'s `b -> c`, or dims alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The dims before the arrow, which stand in the operand.
    pub dims: Vec<Dim>,
    /// The dims behind the arrow, which stand in the result; empty without an arrow.
    pub to: Vec<Dim>,
    /// The dim behind `by`.
    pub by: Option<Dim>,
}

/// A call with its arguments evaluated: as it was written, until [`Family::call`] binds it.
#[derive(Clone, Debug)]
pub struct OpCall {
    /// The name of the family.
    pub name: &'static str,
    /// Its operands.
    pub args: Vec<Value>,
    /// The pieces of its brackets, in groups between `;`.
    pub groups: Vec<Vec<Piece>>,
    /// Its options, each once and among those that the family takes; once it is bound, also those that have defaults.
    pub options: Vec<(&'static str, Setting)>,
    /// The program's arithmetic type.
    pub float: DType,
}

/// One spelling with its op, its documentation and samples for the laws.
pub struct Family {
    /// The name or symbol.
    pub name: &'static str,
    /// What a call of it may hold.
    pub signature: Signature,
    /// One paragraph for the reference.
    pub doc: &'static str,
    /// Builds it from a call that fits the signature.
    pub build: fn(&mut Graph, &OpCall) -> Result<Id, OpError>,
    /// What the laws are checked on.
    pub samples: fn() -> Vec<Sample>,
}

/// An operand of a sample: `(name, size)` of its dims, dtype, and what its elements are drawn from.
#[derive(Clone, Debug)]
pub struct SampleInput {
    /// Its dims.
    pub dims: Vec<(&'static str, usize)>,
    /// Its dtype.
    pub dtype: DType,
    /// Elements are drawn from `low..high`.
    pub low: f64,
    /// Upper end of the elements, excluded.
    pub high: f64,
    /// The dim that it indexes.
    pub range: Option<(&'static str, usize)>,
}

/// Builds the value under test from the operands.
pub type SampleBuild = Arc<dyn Fn(&mut Graph, &[Id]) -> Result<Id, OpError> + Send + Sync>;

/// A [`Piece`] by the names of its dims.
pub type PieceNames = (&'static [&'static str], &'static [&'static str], Option<&'static str>);

/// An example of an op, on which its laws are checked.
#[derive(Clone)]
pub struct Sample {
    /// What it shows.
    pub label: &'static str,
    /// Its operands.
    pub inputs: Vec<SampleInput>,
    /// How the value under test is built.
    pub build: SampleBuild,
    /// Whether its gradient is checked against differences.
    pub differentiable: bool,
}

/// A float operand drawn from -2..2.
pub fn float(dims: &[(&'static str, usize)]) -> SampleInput {
    between(dims, -2.0, 2.0)
}

/// A float operand drawn from `low..high`.
pub fn between(dims: &[(&'static str, usize)], low: f64, high: f64) -> SampleInput {
    SampleInput { dims: dims.to_vec(), dtype: DType::F64, low, high, range: None }
}

/// A truth-valued operand.
pub fn truth(dims: &[(&'static str, usize)]) -> SampleInput {
    SampleInput { dims: dims.to_vec(), dtype: DType::Bool, low: 0.0, high: 2.0, range: None }
}

/// An integer operand in `0..size` of the dim it indexes.
pub fn index_of(dims: &[(&'static str, usize)], range: (&'static str, usize)) -> SampleInput {
    SampleInput { dims: dims.to_vec(), dtype: DType::I32, low: 0.0, high: range.1 as f64, range: Some(range) }
}

/// An integer operand in `low..high`.
pub fn integer(dims: &[(&'static str, usize)], low: f64, high: f64) -> SampleInput {
    SampleInput { dims: dims.to_vec(), dtype: DType::I32, low, high, range: None }
}

impl Sample {
    /// A sample whose gradient is checked too.
    pub fn new(
        label: &'static str,
        inputs: Vec<SampleInput>,
        build: impl Fn(&mut Graph, &[Id]) -> Result<Id, OpError> + Send + Sync + 'static,
    ) -> Self {
        Sample { label, inputs, build: Arc::new(build), differentiable: true }
    }

    /// The same without a check of the gradient: it has none.
    pub fn flat(mut self) -> Self {
        self.differentiable = false;
        self
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
    }
}

/// What the family of that name makes of a call.
fn called(g: &mut Graph, name: &str, call: OpCall) -> Result<Id, OpError> {
    match family(name, !call.groups.is_empty()) {
        Some(f) => f.call(g, call),
        None => Err(OpError::new(codes::E0201, format!("no op `{name}`"))),
    }
}

/// Of a family that is not called, but written by other means or made inside of gradients.
pub(crate) fn no_spelling(_: &mut Graph, c: &OpCall) -> Result<Id, OpError> {
    Err(OpError::new(codes::E0201, format!("`{}` has no spelling", c.name)))
}

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

impl Family {
    /// The value that a call makes, once it is bound: checked against the signature, with defaults filled in.
    ///
    /// # Errors
    /// Where the call does not fit, or the op refuses its operands.
    pub fn call(&self, g: &mut Graph, mut call: OpCall) -> Result<Id, OpError> {
        call.name = self.name;
        if self.signature.form != Form::Syntax {
            self.signature.bind(g, &mut call)?;
        }
        (self.build)(g, &call)
    }

    /// How it is written, with everything that it may hold.
    pub fn text(&self) -> String {
        self.signature.text(self.name, true)
    }
}

impl OpCall {
    /// A call of operands alone.
    pub fn of(args: Vec<Value>, float: DType) -> OpCall {
        OpCall { name: "", args, groups: Vec::new(), options: Vec::new(), float }
    }

    /// The same with dims in brackets, where there are any.
    pub fn over(mut self, dims: &[Dim]) -> OpCall {
        if !dims.is_empty() {
            self.groups = vec![vec![Piece { dims: dims.to_vec(), to: Vec::new(), by: None }]];
        }
        self
    }

    /// The dims before the arrows of its first group.
    pub fn dims(&self) -> Vec<Dim> {
        self.groups.iter().take(1).flatten().flat_map(|p| &p.dims).copied().collect()
    }

    /// The one dim of a call that is bound to [`DIM`](crate::signature::DIM).
    pub fn dim(&self) -> Dim {
        self.dims()[0]
    }

    /// The first piece of its brackets.
    pub fn piece(&self) -> &Piece {
        &self.groups[0][0]
    }

    /// An option that is true or false.
    pub fn flag(&self, name: &str) -> bool {
        self.option(name) == Some(Setting::Bool(true))
    }

    /// An option that is a number; `None` where it is a word or not set.
    pub fn number(&self, name: &str) -> Option<f64> {
        match self.option(name)? {
            Setting::Number(v) => Some(v),
            Setting::Bool(b) => Some(f64::from(u8::from(b))),
            Setting::Word(_) => None,
        }
    }

    /// What an option is set to.
    pub fn option(&self, name: &str) -> Option<Setting> {
        self.options.iter().find(|n| n.0 == name).map(|n| n.1)
    }

    /// The operands as tensors of one dtype: numbers take the tensors' dtype, truth values become numbers where `numeric`.
    ///
    /// # Errors
    /// Where two tensors have different dtypes.
    pub fn unified(&self, g: &mut Graph, numeric: bool) -> Result<Vec<Id>, OpError> {
        self.unify(g, &self.args, numeric)
    }

    /// The same of some values.
    ///
    /// # Errors
    /// As [`OpCall::unified`].
    pub fn unify(&self, g: &mut Graph, args: &[Value], numeric: bool) -> Result<Vec<Id>, OpError> {
        let mut dtype: Option<DType> = None;
        for v in args {
            let t = match v {
                Value::Tensor(id) => g.ty(*id).dtype,
                Value::Number(_) => continue,
                Value::Bool(_) => DType::Bool,
            };
            dtype = match dtype {
                None => Some(t),
                Some(d) if d == t => dtype,
                Some(DType::Bool) => Some(t),
                Some(d) if t == DType::Bool => Some(d),
                Some(d) => {
                    return Err(OpError::new(
                        codes::E0202,
                        format!("`{}` of {} and {}: they need one dtype", self.name, d, t),
                    )
                    .help(format!("convert one of them: `cast(…, {d})`")));
                }
            };
        }
        let has_number = args.iter().any(|v| matches!(v, Value::Number(_)));
        let mut dtype = dtype.unwrap_or(self.float);
        if dtype == DType::Bool && (numeric || has_number) {
            dtype = self.float;
        }
        args.iter().map(|v| as_tensor(g, *v, dtype)).collect()
    }

    /// The argument as a tensor; a number becomes one of the program's arithmetic type.
    pub fn tensor(&self, g: &mut Graph, i: usize) -> Id {
        match self.args[i] {
            Value::Tensor(id) => id,
            Value::Number(v) => g.op(Const::new(v, self.float), &[]),
            Value::Bool(b) => g.op(Const::new(f64::from(u8::from(b)), DType::Bool), &[]),
        }
    }
}

/// A value as a tensor of a dtype.
fn as_tensor(g: &mut Graph, v: Value, dtype: DType) -> Result<Id, OpError> {
    match v {
        Value::Tensor(id) if g.ty(id).dtype == dtype => Ok(id),
        Value::Tensor(id) => g.add_op(Arc::new(Cast { to: dtype }), &[id]),
        Value::Bool(b) => Ok(g.op(Const::new(f64::from(u8::from(b)), dtype), &[])),
        Value::Number(v) if dtype.is_int() && v.fract() != 0.0 => {
            Err(OpError::new(codes::E0202, format!("{v} meets a value of {dtype}: it is no integer"))
                .help("write an integer, or cast the value first: `cast(…, float)`"))
        }
        Value::Number(v) => Ok(g.op(Const::new(v, dtype), &[])),
    }
}
