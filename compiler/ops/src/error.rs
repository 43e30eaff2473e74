//! What an op says when it cannot take its operands. The resolver adds the places.

use crate::Type;
use meshwright_diag::{Code, codes};
use meshwright_plan::{DType, Dim, Dims};

/// The part of a call that a refusal is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// All of it.
    All,
    /// The operand of that number.
    Operand(usize),
    /// The piece of that number in the group of that number.
    Piece(usize, usize),
    /// The option of that name.
    Option(&'static str),
}

/// A refusal: the code, the words, and which operand is at fault.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct OpError {
    /// Its code.
    pub code: Code,
    /// One line, with the names of dims in it.
    pub message: String,
    /// The part of the call at fault.
    pub spot: Spot,
    /// What to do.
    pub help: Option<String>,
    /// A dim that the operand lacks, and what was asked of it.
    pub lacks: Option<Box<(String, Dim)>>,
}

impl OpError {
    /// An error of that code.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        OpError { code, message: message.into(), spot: Spot::All, help: None, lacks: None }
    }

    /// What was asked of operand `i`, of type `of`, that lacks a dim.
    pub fn no_dim(what: impl Into<String>, dim: Dim, (i, of): (usize, &Type), table: &Dims) -> Self {
        let (what, name, has) = (what.into(), table.name(dim), table.list(&of.dims));
        let text = format!("{what} of a value that has no dim `{name}`: it has {has}");
        OpError { lacks: Some(Box::new((what, dim))), ..OpError::new(codes::E0203, text) }.operand(i)
    }

    /// Says how two values get one dtype: that of a program's floats, which depends on its precision, if one of them is a float.
    pub(crate) fn one_dtype(self, a: DType, b: DType) -> Self {
        let to = if a.is_float() || b.is_float() { "float" } else { a.name() };
        self.help(format!("convert one of them: `cast(…, {to})`"))
    }

    /// Says how a value becomes one that a function takes.
    pub(crate) fn converted(self, takes: fn(DType) -> bool) -> Self {
        self.help(if takes(DType::Bool) {
            "compare it: `… != 0`"
        } else {
            "convert it: `cast(…, float)`"
        })
    }

    /// Names the operand at fault.
    pub fn operand(self, i: usize) -> Self {
        self.at(Spot::Operand(i))
    }

    /// Names the part of the call at fault.
    pub fn at(mut self, spot: Spot) -> Self {
        self.spot = spot;
        self
    }

    /// Adds advice.
    pub fn help(mut self, text: impl Into<String>) -> Self {
        self.help = Some(text.into());
        self
    }
}
