//! Names of a layout: axes, and dims and paths of its model.

use super::collector::Collector;
use super::symbols::SymbolKind;
use meshwright_diag::Span;
use meshwright_sorted::SortedMap;
use meshwright_syntax::ast::{DimPattern, LayoutFile, LayoutKind, Name, Rule};

impl Collector<'_> {
    /// Adds the names of a layout.
    pub(super) fn layout(&mut self, file: &LayoutFile) {
        let mut axes: SortedMap<String, usize> = SortedMap::new();
        for item in &file.items {
            let LayoutKind::Mesh(mesh) = &item.kind else { continue };
            for a in &mesh.axes {
                let whole = (a.name.span.to(a.size_span), "", None);
                let symbol = self.declared(SymbolKind::Axis, &a.name, whole);
                axes.entry(a.name.text.clone()).or_insert(symbol);
            }
        }
        for item in &file.items {
            match &item.kind {
                LayoutKind::Rule(rule) => self.rule(rule, item.span, &mut axes),
                LayoutKind::Gather(dims) | LayoutKind::Ring(dims) => {
                    dims.iter().for_each(|d| self.dim_of_layout(d))
                }
                LayoutKind::Recompute(paths) | LayoutKind::KeepParams(paths) => {
                    paths.iter().for_each(|p| self.path(p.span));
                }
                LayoutKind::Order { dim, axes: over } => {
                    self.dim_of_layout(dim);
                    self.axes(over, item.span, &mut axes);
                }
                LayoutKind::Mesh(_)
                | LayoutKind::Microbatches { .. }
                | LayoutKind::Schedule(_)
                | LayoutKind::Chunks { .. }
                | LayoutKind::Stages(_)
                | LayoutKind::ReduceGrads
                | LayoutKind::ReduceWhen(_) => {}
            }
        }
    }

    fn rule(&mut self, rule: &Rule, item: Span, axes: &mut SortedMap<String, usize>) {
        for d in &rule.dims {
            if let DimPattern::Dim(name) = d {
                self.dim_of_layout(name);
            }
        }
        self.axes(&rule.axes, item, axes);
        rule.scope.path.iter().for_each(|p| self.path(p.span));
    }

    /// An axis that no `mesh` line declares has its declaration where a line names it first.
    fn axes(&mut self, named: &[Name], item: Span, axes: &mut SortedMap<String, usize>) {
        for a in named {
            match axes.get(&a.text) {
                Some(symbol) => self.use_of(a.span, Some(*symbol)),
                None => {
                    let symbol = self.declared(SymbolKind::Axis, a, (item, "", None));
                    axes.insert(a.text.clone(), symbol);
                }
            }
        }
    }

    fn dim_of_layout(&mut self, name: &Name) {
        self.use_of(name.span, self.dims.get(name.text.as_str()).copied());
    }
}
