//! Fixes of diagnostics as code actions.

use super::diagnostics::meets;
use super::place::{location, text};
use crate::project::{Analysis, Projects};
use crate::snapshot::Snapshot;
use lsp_types::{
    CodeAction, CodeActionKind, CodeActionOrCommand, CodeActionParams, NumberOrString, TextEdit, Uri,
    WorkspaceEdit,
};
use meshwright_diag::{Diagnostic, Fix, applicable, repair};
use std::collections::HashMap;

/// The fixes of what is wrong in a range, and one action for all that are sure.
pub(crate) fn actions(
    snapshot: &Snapshot,
    projects: &mut Projects,
    params: &CodeActionParams,
) -> Option<Vec<CodeActionOrCommand>> {
    let uri = &params.text_document.uri;
    let (a, file) = text(snapshot, projects, uri)?;
    let wanted = |kind: &CodeActionKind| {
        let only = params.context.only.as_ref();
        only.is_none_or(|all| all.iter().any(|k| kind.as_str().starts_with(k.as_str())))
    };
    let mut out = Vec::new();
    if wanted(&CodeActionKind::QUICKFIX) {
        let here = a.diagnostics().filter(|d| meets(snapshot, &a, d, uri, params.range));
        for d in here {
            out.extend(d.fixes.iter().filter_map(|f| quick_fix(snapshot, &a, params, (d, f))));
        }
    }
    if wanted(&CodeActionKind::SOURCE_FIX_ALL) {
        let found: Vec<Diagnostic> = a.diagnostics().cloned().collect();
        let repaired = repair(&found, &a.sources, false, &|f| f == file);
        out.extend(repaired.into_iter().map(|r| {
            let edits = r.applied.iter().filter_map(|f| {
                let range = location(snapshot, &a, f.span)?.range;
                Some(TextEdit { range, new_text: f.after.clone() })
            });
            let changes = HashMap::from([(uri.clone(), edits.collect())]);
            CodeAction {
                title: "apply all fixes that are sure".into(),
                kind: Some(CodeActionKind::SOURCE_FIX_ALL),
                edit: Some(WorkspaceEdit::new(changes)),
                ..CodeAction::default()
            }
        }));
    }
    Some(out.into_iter().map(CodeActionOrCommand::CodeAction).collect())
}

fn quick_fix(
    snapshot: &Snapshot,
    a: &Analysis,
    params: &CodeActionParams,
    (d, fix): (&Diagnostic, &Fix),
) -> Option<CodeAction> {
    let at = location(snapshot, a, fix.span)?;
    let edit = TextEdit { range: at.range, new_text: fix.replacement.clone() };
    let of_code =
        |shown: &&lsp_types::Diagnostic| shown.code == Some(NumberOrString::String(d.code.id.into()));
    let shown: Vec<_> = params.context.diagnostics.iter().filter(of_code).cloned().collect();
    let changes: HashMap<Uri, Vec<TextEdit>> = HashMap::from([(at.uri, vec![edit])]);
    Some(CodeAction {
        title: fix.title.clone(),
        kind: Some(CodeActionKind::QUICKFIX),
        diagnostics: (!shown.is_empty()).then_some(shown),
        edit: Some(WorkspaceEdit::new(changes)),
        is_preferred: applicable(d, &a.sources, false).is_some_and(|sure| sure == fix).then_some(true),
        ..CodeAction::default()
    })
}
