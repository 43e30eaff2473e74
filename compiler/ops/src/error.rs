//! What an op says when it cannot take its operands. The resolver adds the places.

use meshwright_diag::Code;

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
}

impl OpError {
    /// An error of that code.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        OpError { code, message: message.into(), spot: Spot::All, help: None }
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
