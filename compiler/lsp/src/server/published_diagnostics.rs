//! What the client has been told to be wrong.

use crate::features::diagnostics::TextDiagnostics;
use lsp_types::PublishDiagnosticsParams;
use lsp_types::notification::{Notification as _, PublishDiagnostics};
use meshwright_sorted::SortedMap;

/// What was said last, by URI.
#[derive(Default)]
pub(super) struct Published(SortedMap<String, TextDiagnostics>);

impl Published {
    /// The messages by which the client learns what is wrong now: nothing is said twice, and what is right again is said once.
    pub(super) fn update(&mut self, found: Vec<TextDiagnostics>) -> Vec<lsp_server::Notification> {
        let mut now: SortedMap<String, TextDiagnostics> =
            found.into_iter().map(|f| (f.uri.as_str().to_string(), f)).collect();
        for (uri, before) in &self.0 {
            if !now.contains_key(uri) && !before.diagnostics.is_empty() {
                now.insert(
                    uri.clone(),
                    TextDiagnostics { version: None, diagnostics: Vec::new(), ..before.clone() },
                );
            }
        }
        let changed = now.iter().filter(|(uri, f)| self.0.get(*uri) != Some(f));
        let messages = changed.map(|(_, f)| message(f)).collect();
        now.retain(|_, f| f.version.is_some() || !f.diagnostics.is_empty());
        self.0 = now;
        messages
    }
}

fn message(found: &TextDiagnostics) -> lsp_server::Notification {
    let TextDiagnostics { uri, version, diagnostics } = found.clone();
    let params = PublishDiagnosticsParams { uri, diagnostics, version };
    lsp_server::Notification::new(PublishDiagnostics::METHOD.to_string(), params)
}
