//! The place that a request is about, and places of answers.

use crate::project::{Analysis, Projects};
use crate::snapshot::Snapshot;
use crate::text::{path_of, uri_of};
use lsp_types::{Location, TextDocumentPositionParams, Uri};
use meshwright_diag::{FileId, Span};
use std::path::PathBuf;
use std::sync::Arc;

/// A place in a text that belongs to a model.
pub(super) struct RequestPlace {
    /// What is known of the model.
    pub(super) analysis: Arc<Analysis>,
    /// The text.
    pub(super) file: FileId,
    /// The byte.
    pub(super) offset: u32,
}

impl RequestPlace {
    /// Of a request.
    pub(super) fn of(
        snapshot: &Snapshot,
        projects: &mut Projects,
        at: &TextDocumentPositionParams,
    ) -> Option<RequestPlace> {
        let (analysis, file) = text(snapshot, projects, &at.text_document.uri)?;
        let f = &analysis.files[file.0 as usize];
        let offset = f.lines().offset(analysis.sources.text(file), at.position) as u32;
        Some(RequestPlace { analysis, file, offset })
    }
}

/// The analysis of a text, and the number of the text there.
pub(super) fn text(
    snapshot: &Snapshot,
    projects: &mut Projects,
    uri: &Uri,
) -> Option<(Arc<Analysis>, FileId)> {
    let path = path_of(uri);
    let analysis = projects.of(snapshot, &path)?;
    let file = analysis.file(&path)?;
    Some((analysis, file))
}

/// Where a span stands, as editors open it. What ships is put on the shelf of the host.
pub(super) fn location(snapshot: &Snapshot, a: &Analysis, span: Span) -> Option<Location> {
    let file = a.file_of(span)?;
    let text = a.sources.text(span.file);
    let path = if file.on_disk { file.path.clone() } else { shelved(snapshot, &file.path, text)? };
    let range = file.lines().range(text, span.start as usize, span.end as usize);
    Some(Location { uri: uri_of(&path)?, range })
}

/// A text that ships, as a file: `std:nn`, or the layout of a name. Options lie in no file.
fn shelved(snapshot: &Snapshot, name: &std::path::Path, text: &str) -> Option<PathBuf> {
    let name = name.to_str()?;
    match name.strip_prefix("std:") {
        Some(library) => snapshot.host.shelve(&format!("std/{library}.mw"), text),
        None if name.starts_with("--") || text.is_empty() => None,
        None => snapshot.host.shelve(&format!("layouts/{name}.layout"), text),
    }
}
