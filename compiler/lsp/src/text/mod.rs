//! Documents, positions in them, and their names.

mod document;
mod lines;
mod uri;

pub(crate) use document::{Document, Documents, LanguageKind};
pub(crate) use lines::LineIndex;
pub(crate) use uri::{path_of, uri_of};
