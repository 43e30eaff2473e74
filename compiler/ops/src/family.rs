//! Families: what users may write, and which op it builds.

use crate::signature::{Form, Signature};
use crate::{Graph, Id, OpError};
use meshwright_diag::codes;

pub use crate::call::{OpCall, Piece, Setting, Value};
pub use crate::registry::{families, family, written};
pub use crate::sample::{
    PieceNames, Sample, SampleBuild, SampleInput, between, float, index_of, integer, truth,
};

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

/// Of a family that is not called, but written by other means or made inside of gradients.
pub(crate) fn no_spelling(_: &mut Graph, c: &OpCall) -> Result<Id, OpError> {
    Err(OpError::new(codes::E0201, format!("`{}` has no spelling", c.name)))
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
