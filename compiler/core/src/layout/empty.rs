//! Devices that hold nothing of a dim, because its axes have more devices than it has elements.

use super::rules::{Layout, RuleDim};
use crate::program::Program;
use meshwright_diag::{Diagnostic, codes};
use std::collections::BTreeSet;

/// A warning for each dim that a rule splits over more devices than it has elements. That is correct, and wasteful.
pub(super) fn empty_shards(layout: &Layout, program: &Program, out: &mut Vec<Diagnostic>) {
    let dims = &program.graph.dims;
    let mut said = BTreeSet::new();
    for rule in &layout.rules {
        let RuleDim::Dim(dim) = rule.dim else { continue };
        let (size, parts) =
            (dims.size(dim), rule.axes.iter().map(|a| layout.mesh.size(*a)).product::<usize>());
        if size >= parts || !said.insert(dim) {
            continue;
        }
        let axes: Vec<String> = rule.axes.iter().map(|a| format!("`{}`", layout.mesh.name(*a))).collect();
        let axes = axes.join(", ");
        let (name, idle) = (dims.name(dim), parts - size);
        let hold = if idle == 1 { "holds" } else { "hold" };
        let message = format!("{idle} of {parts} devices along {axes} {hold} nothing of `{name}` = {size}");
        let d = Diagnostic::warning(codes::E0312, message).at(rule.span, format!("`{}`", rule.text));
        let other = match size {
            0 | 1 => format!("split another dim over {axes}, or leave the rule out"),
            n => format!("take at most {n} devices along {axes}, or split another dim over it"),
        };
        out.push(d.help(other));
    }
}
