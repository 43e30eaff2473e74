//! `keep params` that keeps nothing.

use super::reshard::Reshard;
use super::spmd::{CopyId, Instr, PlacedCopy};
use super::step_facts::Facts;
use crate::layout::Layout;
use crate::resolve::matches;
use meshwright_diag::{Diagnostic, codes};
use meshwright_ops::{Id, InputOpKind, Kind};
use meshwright_plan::{Collective, IdVec};
use meshwright_sorted::SortedSet;

/// The kept parameters of which copies are gathered.
pub(super) fn gathered(
    facts: &Facts<'_>,
    instrs: &[Instr],
    copies: &IdVec<CopyId, PlacedCopy>,
) -> SortedSet<String> {
    let gathers = instrs.iter().filter_map(|i| match i {
        Instr::Reshard { kind: Reshard::Collective(Collective::AllGather { .. }), from, .. } => {
            Some(copies[*from].value)
        }
        _ => None,
    });
    gathers.filter(|id| facts.kept(*id)).filter_map(|id| parameter(facts, id)).collect()
}

/// The path of the parameter that a kept value is made of.
fn parameter(facts: &Facts<'_>, mut id: Id) -> Option<String> {
    while let [x] = facts.node(id).inputs[..] {
        id = x;
    }
    match facts.kind(id) {
        Kind::Input(InputOpKind::Param { path, .. }) => Some(path),
        _ => None,
    }
}

/// A note for each item of `keep` that names none of those of which copies are gathered.
pub(super) fn idle(layout: &Layout, gathered: &SortedSet<String>) -> Vec<Diagnostic> {
    let mut out = Vec::new();
    for (path, span) in &layout.keep {
        let names = |parameter: &String| path.as_deref().is_none_or(|p| matches(p, parameter));
        if gathered.iter().any(names) {
            continue;
        }
        let named = path.as_deref().map_or(String::new(), |p| format!(" {p}"));
        let text = format!("`keep params{named}` keeps nothing here: no copy is gathered");
        let help = "leave it out, or split parameters over an axis of the mesh: `params: * -> data`";
        out.push(Diagnostic::note_message(codes::E0319, text).at(*span, "no effect").help(help));
    }
    out
}
