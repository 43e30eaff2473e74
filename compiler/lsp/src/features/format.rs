//! Formatting, as `meshwright fmt` does it.

use crate::snapshot::Snapshot;
use crate::text::{LanguageKind, LineIndex, path_of};
use lsp_types::{DocumentFormattingParams, TextEdit};
use meshwright_diag::FileId;
use meshwright_syntax::{format_layout, format_model};

/// The edits that give a text the one style. Lines that stay are left out, so that the editor keeps its place.
///
/// # Errors
/// Where the text has errors: it is left as it is.
pub(crate) fn edits(
    snapshot: &Snapshot,
    params: &DocumentFormattingParams,
) -> Result<Option<Vec<TextEdit>>, String> {
    let path = path_of(&params.text_document.uri);
    let Some(document) = snapshot.documents.get(&path) else { return Ok(None) };
    let text = &*document.text;
    let (formatted, found) = match document.kind {
        LanguageKind::Model => format_model(FileId(0), text),
        LanguageKind::Layout => format_layout(FileId(0), text),
    };
    let Some(formatted) = formatted else {
        let why = found.first().map_or(String::new(), |d| format!(": {}", d.message));
        return Err(format!("a text with errors is not formatted{why}"));
    };
    Ok(Some(changed(text, &formatted).into_iter().collect()))
}

/// The lines from the first to the last that differ, as one edit.
fn changed(before: &str, after: &str) -> Option<TextEdit> {
    if before == after {
        return None;
    }
    let lines = |text: &str| text.split_inclusive('\n').map(String::from).collect::<Vec<_>>();
    let (old, new) = (lines(before), lines(after));
    let same = |a: &mut dyn Iterator<Item = &String>, b: &mut dyn Iterator<Item = &String>| {
        a.zip(b).take_while(|(x, y)| x == y).count()
    };
    let first = same(&mut old.iter(), &mut new.iter());
    let rest = old.len().min(new.len()) - first;
    let last = same(&mut old.iter().rev(), &mut new.iter().rev()).min(rest);
    let bytes = |lines: &[String]| lines.iter().map(String::len).sum::<usize>();
    let (start, end) = (bytes(&old[..first]), bytes(&old[..old.len() - last]));
    let range = LineIndex::of(before).range(before, start, end);
    Some(TextEdit { range, new_text: new[first..new.len() - last].concat() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_stay_are_left_alone() {
        let edit =
            changed("a\nb \nc\n", "a\nb\nc\n").map(|e| (e.range.start.line, e.range.end.line, e.new_text));
        assert_eq!(edit, Some((1, 2, "b\n".into())));
        assert_eq!(changed("a\na\n", "a\n").map(|e| e.new_text), Some(String::new()));
        assert_eq!(changed("a", "a\n").map(|e| e.new_text), Some("a\n".into()));
        assert_eq!(changed("a\n", "a\n"), None);
    }
}
