//! Description of an input, for messages.

use super::convert::{BadValue, Ignored};
use crate::source::FileRef;
use meshwright_diag::{Diagnostic, codes};
use meshwright_plan::DType;

/// An input, for messages.
#[derive(Clone, Debug)]
pub(crate) struct InputInfo {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    /// What its values count along, and to which end.
    pub(crate) range: Option<(RangeOf, usize)>,
    /// A number that stands for no value.
    pub(crate) ignored: Option<Ignored>,
}

#[derive(Clone, Debug)]
pub(crate) enum RangeOf {
    Dim(String),
    /// The weights of this input.
    Weights(String),
    /// The tokens of a vocabulary.
    Vocabulary,
}

/// The name of a file; of one that no system would take the ends, so that what is wrong with it is still read.
fn shortened(file: &FileRef) -> String {
    const LONG: usize = 1000;
    let name = file.to_string();
    let chars = name.chars().count();
    if chars <= LONG {
        return name;
    }
    let end = |skip: usize| name.chars().skip(skip).take(100).collect::<String>();
    format!("{}…{}", end(0), end(chars - 100))
}

impl InputInfo {
    /// The error of a file that cannot be read.
    pub(crate) fn unreadable(&self, file: &FileRef, why: &str) -> Box<Diagnostic> {
        let message = format!("`{}` cannot be read as data for `{}`: {why}", shortened(file), self.name);
        Box::new(Diagnostic::error(codes::E0502, message))
    }

    /// The error of a value that the input cannot have, with how many more of its kind there are.
    pub(crate) fn bad_value(
        &self,
        bad: BadValue,
        record: usize,
        file: &FileRef,
        more: usize,
    ) -> Box<Diagnostic> {
        let mut error = self.bad(bad, record).note(format!("records of `{file}` count from 0"));
        if more > 0 {
            error = error.note(format!("{more} more values are outside"));
        }
        Box::new(error)
    }

    /// The same of a record that is a member of a file.
    pub(crate) fn bad_member(&self, bad: BadValue, record: usize, place: &str) -> Box<Diagnostic> {
        Box::new(self.bad(bad, record).note(format!("this record is {place}")))
    }

    fn bad(&self, bad: BadValue, record: usize) -> Diagnostic {
        let (name, dtype) = (&self.name, self.dtype);
        let of = format!("record {record} of `{name}`");
        let (why, help) = match (bad, &self.range) {
            (BadValue::Integer(value), _) => {
                (format!("{of} has the value {value}, which `{dtype}` cannot hold"), None)
            }
            (BadValue::Float(value), _) => {
                // Large numbers are then `1e300`, not 301 digits.
                (format!("{of} has the value {value:?}, which `{dtype}` cannot hold"), None)
            }
            (BadValue::NotFinite(value), _) => (
                format!("{of} has the value {value}, which is not finite"),
                Some("mend the data, or let such values pass with `--allow-nonfinite`".to_string()),
            ),
            (BadValue::Outside(value), Some((RangeOf::Dim(dim), n))) if value < 0 => (
                format!(
                    "{of} has the value {value}, outside `{dim}`, which counts from 0 to {}",
                    n.saturating_sub(1)
                ),
                Some(format!(
                    "where it stands for no value, say so in `data.toml` (`ignore = {value}`), and give the model a mask: `counted = {{ mask_of = \"{name}\" }}`"
                )),
            ),
            (BadValue::Outside(value), Some((RangeOf::Dim(dim), n))) => (
                format!(
                    "{of} has the value {value}, outside `{dim}`, which counts from 0 to {}",
                    n.saturating_sub(1)
                ),
                Some(format!("if the data is right, declare a larger `dim {dim}`")),
            ),
            (BadValue::Outside(value), Some((RangeOf::Weights(input), n))) => (
                format!("{of} has the value {value}, but `{input}` has {n} `weights`, for 0 to {}", n - 1),
                Some("give one weight for each value".to_string()),
            ),
            (BadValue::Outside(value), Some((RangeOf::Vocabulary, n))) => (
                format!("{of} has the value {value}, but the vocabulary ends at {}", n.saturating_sub(1)),
                Some(
                    "the file is damaged: fetch it again, or make it again with `meshwright data tokenize`"
                        .into(),
                ),
            ),
            (BadValue::Outside(value), None) => (format!("{of} has the value {value}"), None),
        };
        let error = Diagnostic::error(codes::E0506, why);
        match help {
            Some(help) => error.help(help),
            None => error,
        }
    }
}
