//! A call of a built-in, with its arguments evaluated.

use crate::{Graph, Id, OpError};
use meshwright_diag::codes;
use meshwright_plan::{DType, Dim};

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

/// A call with its arguments evaluated: as it was written, until [`Family::call`](crate::Family::call) binds it.
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
                    .one_dtype(d, t));
                }
            };
        }
        let has_number = args.iter().any(|v| matches!(v, Value::Number(_)));
        let mut dtype = dtype.unwrap_or(self.float);
        if dtype == DType::Bool && (numeric || has_number) {
            dtype = self.float;
        }
        args.iter().map(|v| g.as_tensor(*v, dtype)).collect()
    }

    /// The argument as a tensor; a number becomes one of the program's arithmetic type.
    pub fn tensor(&self, g: &mut Graph, i: usize) -> Id {
        match self.args[i] {
            Value::Tensor(id) => id,
            Value::Number(v) => g.constant(v, self.float),
            Value::Bool(b) => g.constant(f64::from(u8::from(b)), DType::Bool),
        }
    }
}
