//! Documents, positions in them, and their names.

mod document;
mod lines;
mod uri;

pub(crate) use document::{Document, Documents, Kind};
pub(crate) use lines::Lines;
pub(crate) use uri::{path_of, uri_of};
