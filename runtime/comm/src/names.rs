//! How a call is named: every error about it says so.

use crate::CollectiveKind;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Identifies a call among those of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tag {
    /// Number of the call in the program's order; members of a collective must agree on it.
    pub sequence: u64,
    /// The value it is for, as a user would call it.
    pub what: Arc<str>,
    /// Line of the model file, from 1; 0 where there is none.
    pub line: u32,
    /// The collective on whose behalf a transport makes this call on its control plane. Errors then name that collective,
    /// and the sequence number is not compared: the calls that it belongs to may differ, which is to be found out.
    pub control_for: Option<CollectiveKind>,
    /// Whether it is of a message over a link between two stages of a pipeline. Both ends count the messages of the link, so that
    /// its sequence numbers have nothing to do with those of other calls.
    pub is_message: bool,
}

impl Tag {
    /// The tag of a call of the program.
    pub fn new(sequence: u64, what: impl Into<Arc<str>>, line: u32) -> Tag {
        Tag { sequence, what: what.into(), line, control_for: None, is_message: false }
    }

    /// The same of a message over the link from the first of two ranks to the other, which are told with the value.
    #[must_use]
    pub fn over_link(self, [from, to]: [usize; 2]) -> Tag {
        let value = if self.what.is_empty() { "a value".into() } else { format!("`{}`", self.what) };
        let what = format!("{value} from rank {from} to rank {to}").into();
        Tag { what, is_message: true, ..self }
    }

    /// The tag of a call on the control plane on behalf of `call`.
    pub fn control(call: &CallName) -> Tag {
        Tag { control_for: Some(call.kind), ..call.tag.clone() }
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A message has the name of its value in quotes already.
        let quote = if self.is_message { "" } else { "`" };
        write!(f, "#{} of {quote}{}{quote}", self.sequence, self.what)?;
        if self.line > 0 { write!(f, " at line {}", self.line) } else { Ok(()) }
    }
}

/// A call, as errors name it: `all_reduce #17 of `h1` at line 20`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallName {
    /// Which collective.
    pub kind: CollectiveKind,
    /// Its tag.
    pub tag: Tag,
}

impl CallName {
    /// The name of a call; of a control call the name of the call that it was made for.
    pub fn new(kind: CollectiveKind, tag: &Tag) -> CallName {
        let kind = tag.control_for.unwrap_or(kind);
        CallName { kind, tag: Tag { control_for: None, ..tag.clone() } }
    }
}

impl fmt::Display for CallName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.tag.is_message { "message" } else { self.kind.name() };
        write!(f, "{name} {}", self.tag)
    }
}
