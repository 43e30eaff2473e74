//! What each rule of a layout splits, for whoever reads the layout.

use crate::compile::Compiled;
use crate::layout::{Layout, Rulebook, assign};
use crate::partition::Instr;
use crate::rows::Rows;
use meshwright_diag::Span;
use meshwright_sorted::{SortedMap, SortedSet};

/// The paths of the values that each rule splits, in the order of the program, by the place of the rule. A value that is split
/// since others are has no rule that splits it.
pub fn split_by_rules(layout: &Layout, compiled: &Compiled) -> SortedMap<Span, Vec<String>> {
    let spmd = &compiled.spmd;
    let g = &spmd.step.graph;
    let rows = Rows::of(spmd);
    let layout = layout.effective();
    let book = Rulebook::new(&layout);
    let mut out: SortedMap<Span, Vec<String>> = SortedMap::new();
    let mut told = SortedSet::new();
    for instr in spmd.instrs.iter().filter(|i| !matches!(i, Instr::Reshard { .. })) {
        let copy = spmd.copy(instr.out());
        let Some(path) = rows.path(copy.value) else { continue };
        let n = g.node(copy.value);
        let said = assign(&book, n.origin.class, &n.origin.path, &n.ty.dims, &g.dims);
        for (axis, rule) in &said.by {
            let splits = |d| said.splits.get(d).is_some_and(|axes| axes.contains(axis));
            let split = n.ty.dims.iter().any(|d| splits(d) && copy.placement.axes(*d).contains(axis));
            let at = layout.rules[*rule].span;
            if split && told.insert((at, path.to_string())) {
                out.entry(at).or_default().push(path.into());
            }
        }
    }
    out
}
