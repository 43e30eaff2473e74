//! A resolved program with other sizes of its dims: same values, another table.

use crate::program::Program;
use crate::resolve::{evaluated, too_large};
use meshwright_plan::Dim;

/// Why the text must be resolved again to give dims other sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NeedsText {
    /// The size of this dim, which changes, went into a value as a number.
    Captured(Dim),
    /// This const, which changes, may have gone into a value.
    Const(String),
    /// The sizes, or the values that they lead to, are refused: the text says where.
    Refused,
}

impl Program {
    /// The same program with some dims of other sizes. Dims whose sizes are expressions of these follow, and the types of
    /// all values are checked again. Values, dims and parameters keep their numbers, so a [`crate::Layout`] made for this
    /// program is one for the other too.
    ///
    /// # Errors
    /// Where the result is not known to be what [`crate::resolve::resolve`] makes of the text with those sizes.
    pub fn rebind(&self, sizes: &[(String, usize)]) -> Result<Program, NeedsText> {
        let (dims, consts) = evaluated(&self.declarations, sizes).ok_or(NeedsText::Refused)?;
        let changes = |d: &Dim| dims.size(*d) != self.graph.dims.size(*d);
        if let Some(d) = self.graph.captured.iter().copied().find(changes) {
            return Err(NeedsText::Captured(d));
        }
        if let Some((name, _)) = consts.iter().find(|(name, value)| self.consts.get(*name) != Some(value)) {
            return Err(NeedsText::Const(name.clone()));
        }
        let mut program = self.clone();
        program.graph = std::mem::take(&mut program.graph).resized(dims).ok_or(NeedsText::Refused)?;
        if program.graph.ids().any(|id| too_large(&program.graph, id).is_some()) {
            return Err(NeedsText::Refused);
        }
        Ok(program)
    }
}
