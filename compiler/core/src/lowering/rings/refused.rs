//! The errors of attentions that no ring serves, where the layout permits rings alone.

use super::candidates::Unfit;
use crate::layout::Layout;
use crate::partition::{Instr, Spmd};
use meshwright_diag::{Diagnostic, MAX_REPORTED, codes};
use meshwright_ops::Id;
use meshwright_plan::{Plan, Prim, Provenance};
use std::collections::{BTreeMap, BTreeSet};

/// An error for each place in the model. What a scope stores split is gathered by its rule: that asks for no ring.
pub(super) fn errors(
    plan: &Plan,
    unfit: &BTreeMap<usize, Unfit>,
    spmd: &Spmd,
    layout: &Layout,
) -> Vec<Diagnostic> {
    let (g, mut told, mut errors) = (&spmd.step.graph, BTreeSet::new(), Vec::new());
    let span = |p: &Provenance| g.node(Id(p.id)).origin.span;
    for (at, why) in unfit.iter().filter(|(_, why)| !only_stored(why, spmd)) {
        let step = &plan.steps[*at];
        let (Prim::Attention { spec, .. }, Some(of)) = (&step.prim, step.origin.first()) else { continue };
        let Some(ring) = layout.rings.get(&spec.key).filter(|_| !layout.gathers.contains(&spec.key)) else {
            continue;
        };
        if errors.len() >= MAX_REPORTED || !told.insert(span(of)) {
            continue;
        }
        let name = plan.dims.name(spec.key);
        let values: BTreeSet<String> =
            why.gathered.iter().map(|id| format!("`{}`", g.path(Id(*id)))).collect();
        let (values, are) = (Vec::from_iter(&values), if values.len() > 1 { "are" } else { "is" });
        let text = format!(
            "{} {are} gathered along `{name}`, which `ring {name}` does not permit",
            values.iter().map(|v| v.as_str()).collect::<Vec<_>>().join(" and ")
        );
        let mut d = Diagnostic::error(codes::E0317, text).at(span(of), "this attention is no ring");
        if let Some(other) = why.other.as_ref().filter(|o| span(o) != span(of)) {
            d = d.and(span(other), format!("`{}`", other.path));
        }
        let help = format!("let the layout gather what no ring brings: `gather {name}` beside `ring {name}`");
        errors.push(d.and(*ring, "the ring").note(format!("it {}", why.because)).help(help));
    }
    errors
}

/// Whether rules for what is stored imply all gathers of the operands of an attention.
fn only_stored(why: &Unfit, spmd: &Spmd) -> bool {
    let gathers = |id: u32| {
        spmd.instrs.iter().filter_map(move |i| match i {
            Instr::Reshard { cause, out, .. } if spmd.copy(*out).value == Id(id) => Some(cause.stored),
            _ => None,
        })
    };
    why.gathered.iter().all(|id| gathers(*id).any(|stored| stored))
}
