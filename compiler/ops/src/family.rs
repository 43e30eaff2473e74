//! Families: what users may write, and which op it builds. The list of families is the registry.

use crate::{Cast, Const, Graph, Id, OpError, Type, ops};
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

/// What a named argument of a call is set to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Setting {
    /// `stride = 2`.
    Number(f64),
    /// `reverse = true`.
    Bool(bool),
    /// `padding = same`.
    Word(&'static str),
}

/// A named argument that a family takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Its name.
    pub name: &'static str,
    /// The words that it may be set to.
    pub words: &'static [&'static str],
    /// Whether it may be set to a number or a truth value, known at compile time.
    pub values: bool,
}

/// A piece of the brackets of a call: `rows by kh`, `rows -> r2 by kh`, `a, b -> c`'s `b -> c`, or a dim alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The dims before the arrow, which stand in the operand.
    pub dims: Vec<Dim>,
    /// The dims behind the arrow, which stand in the result; empty without an arrow.
    pub to: Vec<Dim>,
    /// The dim behind `by`.
    pub by: Option<Dim>,
}

/// A call as the user wrote it, with its arguments evaluated.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// The name it was called by.
    pub name: &'a str,
    /// Its arguments.
    pub args: &'a [Value],
    /// Its dims, for `name[dims](…)`.
    pub dims: &'a [Dim],
    /// Its pieces for [`Form::Bracket`], in groups between `;`.
    pub groups: &'a [Vec<Piece>],
    /// Its named arguments, each once and among those that the family takes.
    pub named: &'a [(&'static str, Setting)],
    /// The program's arithmetic type.
    pub float: DType,
}

/// How a family is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `name(x, y)`, with that number of arguments.
    Function(usize),
    /// `x + y` or `-x`, with that number of operands.
    Operator(usize),
    /// `name[dims](x, y)`, with that number of arguments.
    OverDims(usize),
    /// `name[pieces; pieces](x, y, option = …)`, with that number of arguments, or at least so many where `more` is set.
    Bracket {
        /// Number of arguments.
        args: usize,
        /// Whether there may be more.
        more: bool,
        /// What else it takes, by name.
        options: &'static [Choice],
    },
    /// By other means: a rename, an index, or only inside of gradients.
    Syntax,
}

/// One spelling with its op, its documentation and samples for the laws.
pub struct Family {
    /// The name or symbol.
    pub name: &'static str,
    /// How it is written.
    pub form: Form,
    /// One paragraph for the reference.
    pub doc: &'static str,
    /// Builds it. Arguments are checked for number before.
    pub build: fn(&mut Graph, &Call) -> Result<Id, OpError>,
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
        named: &'static [(&'static str, Setting)],
        more: &'static [(&'static str, usize)],
        inputs: Vec<SampleInput>,
    ) -> Self {
        Sample::new(label, inputs, move |g, x| {
            for (dim, size) in more {
                if g.dims.find(dim).is_none() {
                    g.dims.add(*dim, *size);
                }
            }
            let args: Vec<Value> = x.iter().map(|i| Value::Tensor(*i)).collect();
            let find = |names: &[&str]| names.iter().filter_map(|d| g.dims.find(d)).collect::<Vec<_>>();
            let piece = |(dims, to, by): &PieceNames| Piece {
                dims: find(dims),
                to: find(to),
                by: by.and_then(|b| g.dims.find(b)),
            };
            let groups: Vec<Vec<Piece>> = groups.iter().map(|g| g.iter().map(piece).collect()).collect();
            let call = Call { name, args: &args, dims: &[], groups: &groups, named, float: DType::F64 };
            match families().find(|f| f.name == name && matches!(f.form, Form::Bracket { .. })) {
                Some(f) => (f.build)(g, &call),
                None => Err(OpError::new(codes::E0201, format!("no op `{name}`"))),
            }
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
            let args: Vec<Value> = x.iter().map(|i| Value::Tensor(*i)).collect();
            let dims: Vec<Dim> = dims.iter().filter_map(|d| g.dims.find(d)).collect();
            let call = Call { name, args: &args, dims: &dims, groups: &[], named: &[], float: DType::F64 };
            match family(name, !dims.is_empty()) {
                Some(f) => (f.build)(g, &call),
                None => Err(OpError::new(codes::E0201, format!("no op `{name}`"))),
            }
        })
    }
}

/// Every family, in order.
pub fn families() -> impl Iterator<Item = &'static Family> {
    ops::FAMILIES.iter().flat_map(|f| f.iter())
}

/// The family of that name or symbol; of two with one name (`max(x, y)` and `max[d](x)`) the one over dims where
/// `over_dims`.
pub fn family(name: &str, over_dims: bool) -> Option<&'static Family> {
    let over = |f: &Family| matches!(f.form, Form::OverDims(_) | Form::Bracket { .. });
    families()
        .find(|f| f.name == name && over(f) == over_dims)
        .or_else(|| families().find(|f| f.name == name))
}

/// The numbers of arguments that a name takes, ascending: `leaky_relu(x)` and `leaky_relu(x, slope)` are two families of
/// one name, which build by the arguments that there are.
pub fn arities(name: &str, over_dims: bool) -> Vec<usize> {
    let mut out: Vec<usize> = families()
        .filter(|f| f.name == name)
        .filter_map(|f| match f.form {
            Form::Function(n) if !over_dims => Some(n),
            Form::OverDims(n) if over_dims => Some(n),
            _ => None,
        })
        .collect();
    out.sort_unstable();
    out
}

impl Call<'_> {
    /// The arguments as tensors of one dtype: numbers take the tensors' dtype, bools become numbers where `numeric`.
    ///
    /// # Errors
    /// Where two tensors have different dtypes.
    pub fn unified(&self, g: &mut Graph, numeric: bool) -> Result<Vec<Id>, OpError> {
        let mut dtype: Option<DType> = None;
        for v in self.args {
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
        let has_number = self.args.iter().any(|v| matches!(v, Value::Number(_)));
        let mut dtype = dtype.unwrap_or(self.float);
        if dtype == DType::Bool && (numeric || has_number) {
            dtype = self.float;
        }
        self.args.iter().map(|v| as_tensor(g, *v, dtype)).collect()
    }

    /// The argument as a tensor; a number becomes one of the program's arithmetic type.
    pub fn tensor(&self, g: &mut Graph, i: usize) -> Id {
        match self.args[i] {
            Value::Tensor(id) => id,
            Value::Number(v) => g.op(Const::new(v, self.float), &[]),
            Value::Bool(b) => g.op(Const::new(f64::from(u8::from(b)), DType::Bool), &[]),
        }
    }

    /// Checks that an operand has every dim of the call, each named once and at least one.
    ///
    /// # Errors
    /// Where one is missing or named twice.
    pub fn check_dims(&self, g: &Graph, x: &Type) -> Result<(), OpError> {
        for (i, d) in self.dims.iter().enumerate() {
            let name = g.dims.name(*d);
            if self.dims[..i].contains(d) {
                return Err(OpError::new(codes::E0203, format!("`{}[…]` names `{name}` twice", self.name)));
            }
            if !x.has(*d) {
                return Err(OpError::new(
                    codes::E0203,
                    format!(
                        "`{}[{name}]` of a value that has no dim `{name}`: it has {}",
                        self.name,
                        g.dims.list(&x.dims)
                    ),
                )
                .operand(0)
                .help(format!("leave `{name}` out, or name one of {}", g.dims.list(&x.dims))));
            }
        }
        if self.dims.is_empty() {
            return Err(OpError::new(codes::E0203, format!("`{}[…]` needs a dim", self.name))
                .help(format!("name one or more of {}", g.dims.list(&x.dims))));
        }
        Ok(())
    }

    /// The dim of brackets that hold one alone, `name[d]`, of an operand that has it; with the dim behind the arrow where
    /// `arrow` is set, `name[d -> e]`, which the operand lacks.
    ///
    /// # Errors
    /// Where the brackets hold something else, or the operand has other dims.
    pub fn one_piece(&self, g: &Graph, x: &Type, arrow: bool) -> Result<(Dim, Option<Dim>), OpError> {
        let form = if arrow { "one dim and what it becomes, `d -> k`" } else { "one dim" };
        let wrong = || OpError::new(codes::E0203, format!("`{}[…]` takes {form}", self.name));
        let [group] = self.groups else { return Err(wrong()) };
        let [Piece { dims, to, by: None }] = group.as_slice() else { return Err(wrong()) };
        let ([dim], to) = (dims.as_slice(), to.as_slice()) else { return Err(wrong()) };
        let to = match (to, arrow) {
            ([], false) => None,
            ([to], true) => Some(*to),
            _ => return Err(wrong()),
        };
        Call { dims: &[*dim], ..self.clone() }.check_dims(g, x)?;
        if let Some(to) = to
            && (to == *dim || x.has(to))
        {
            let (name, list) = (g.dims.name(to), g.dims.list(&x.dims));
            let text =
                format!("`{}[… -> {name}]` of a value that has the dim `{name}` already: {list}", self.name);
            return Err(OpError::new(codes::E0203, text)
                .operand(0)
                .help("name another dim behind the arrow"));
        }
        Ok((*dim, to))
    }

    /// A named argument that is true or false; false where it is not given.
    ///
    /// # Errors
    /// Where it is something else.
    pub fn flag(&self, name: &str) -> Result<bool, OpError> {
        match self.setting(name) {
            None => Ok(false),
            Some(Setting::Bool(b)) => Ok(b),
            Some(_) => {
                Err(OpError::new(codes::E0212, format!("`{name}` of `{}` is `true` or `false`", self.name)))
            }
        }
    }

    /// A named argument, if it was given.
    pub fn setting(&self, name: &str) -> Option<Setting> {
        self.named.iter().find(|n| n.0 == name).map(|n| n.1)
    }

    /// The one dim of the call.
    ///
    /// # Errors
    /// Where there are none or several.
    pub fn one_dim(&self, g: &Graph) -> Result<Dim, OpError> {
        match self.dims {
            [d] => Ok(*d),
            dims => Err(OpError::new(
                codes::E0203,
                format!("`{}[…]` works along one dim, not {}", self.name, g.dims.list(dims)),
            )),
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
