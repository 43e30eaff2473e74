//! What can be folded: blocks, lists over several lines, and runs of comments.

use crate::snapshot::Snapshot;
use crate::text::{LanguageKind, LineIndex, path_of};
use lsp_types::{FoldingRange, FoldingRangeKind, FoldingRangeParams};
use meshwright_syntax::{Language, tokens};

/// Answers a request for what can be folded.
pub(crate) fn ranges(snapshot: &Snapshot, params: &FoldingRangeParams) -> Option<Vec<FoldingRange>> {
    let path = path_of(&params.text_document.uri);
    let text = snapshot.read(&path).ok()?;
    let kind = snapshot.documents.get(&path).map_or_else(|| LanguageKind::of(&path), |d| d.kind);
    Some(of_text(&text, kind))
}

fn of_text(text: &str, kind: LanguageKind) -> Vec<FoldingRange> {
    let language = if kind == LanguageKind::Model { Language::Model } else { Language::Layout };
    let scanned = tokens(text, language);
    let lines = LineIndex::of(text);
    let line = |offset: usize| lines.position(text, offset).line;
    let mut out = Vec::new();
    let mut fold = |start_line: u32, end_line: u32, kind: Option<FoldingRangeKind>| {
        if start_line < end_line {
            out.push(FoldingRange { start_line, end_line, kind, ..FoldingRange::default() });
        }
    };
    let mut open: Vec<usize> = Vec::new();
    for t in &scanned.tokens {
        match &text[t.start..t.end] {
            "{" | "(" | "[" => open.push(t.start),
            "}" | ")" | "]" => {
                if let Some(start) = open.pop() {
                    // The line that closes stays in sight.
                    fold(line(start), line(t.start).saturating_sub(1), None);
                }
            }
            _ => {}
        }
    }
    // Comments that stand alone on lines, one below the other.
    let alone = |c: &&meshwright_syntax::Comment| {
        text[..c.start].rsplit('\n').next().is_some_and(|before| before.trim().is_empty())
    };
    let mut run: Option<(u32, u32)> = None;
    for at in scanned.comments.iter().filter(alone).map(|c| line(c.start)) {
        run = match run {
            Some((first, last)) if last + 1 == at => Some((first, at)),
            other => {
                other.iter().for_each(|(first, last)| fold(*first, *last, Some(FoldingRangeKind::Comment)));
                Some((at, at))
            }
        };
    }
    run.iter().for_each(|(first, last)| fold(*first, *last, Some(FoldingRangeKind::Comment)));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_comments_fold() {
        let text = "//! One.\n//! Two.\n\nmodel m {\n    // alone\n    let y = f(x,\n        z,\n    )\n}\nlet a = 1 // behind\n// below\n";
        let found: Vec<_> =
            of_text(text, LanguageKind::Model).iter().map(|f| (f.start_line, f.end_line)).collect();
        assert_eq!(found, [(5, 6), (3, 7), (0, 1)]);
        // What is not closed folds nothing, and what was not opened neither.
        assert!(of_text("}\n)\nmodel {\n", LanguageKind::Model).is_empty());
    }
}
