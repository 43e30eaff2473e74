//! Every code of the compiler has a case that shows it.

use crate::markdown::Page;
use meshwright_diag::codes;
use std::sync::Arc;

/// Codes without a case, and where they are tested instead.
const ELSEWHERE: &[(&str, &str)] = &[
    ("E0103", "needs a file of a mebibyte: compiler/syntax/tests/syntax/limits.rs"),
    ("E0104", "needs a statement of several hundred kilobytes: compiler/syntax/tests/syntax/limits.rs"),
    ("E0108", "about formatting, not compiling: compiler/syntax/tests/syntax/format.rs"),
];

/// Which codes of E01 to E03 no case shows.
pub(crate) fn codes(pages: &[Arc<Page>]) -> Result<(), String> {
    let shown = |id: &str| {
        let head = format!("[{id}]");
        pages
            .iter()
            .flat_map(|p| &p.sections)
            .flat_map(|s| &s.blocks)
            .any(|b| b.info.starts_with("diagnostic") && b.text.contains(&head))
    };
    let mut problems = Vec::new();
    for code in codes::ALL.iter().filter(|c| c.id < "E04") {
        let elsewhere = ELSEWHERE.iter().any(|e| e.0 == code.id);
        match (shown(code.id), elsewhere) {
            (false, false) => problems.push(format!("{} ({}) has no case", code.id, code.title())),
            (true, true) => problems.push(format!("{} has a case: take it off the list", code.id)),
            _ => {}
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}
