//! Which layers hold parameters, and which call themselves: both are seen before anything is evaluated.

use crate::resolve::call::calls::{Contents, calls_of, contents};
use crate::resolve::report::Report;
use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_sorted::{SortedMap, SortedSet};
use meshwright_syntax::ast::Layer;
use std::collections::VecDeque;

/// The layers of all files.
#[derive(Default, Clone)]
pub(in crate::resolve) struct Layers<'a> {
    pub(in crate::resolve) by_name: SortedMap<&'a str, &'a Layer>,
    /// Layers that hold parameters, themselves or through a layer that they call.
    pub(in crate::resolve) owning: SortedSet<&'a str>,
    /// Layers that call themselves or another such layer: their calls would never end.
    pub(in crate::resolve) endless: SortedSet<&'a str>,
}

struct Shape<'a> {
    /// Layers that it calls, with a place each.
    callees: Vec<(&'a str, Span)>,
    declares: bool,
}

impl<'a> Layers<'a> {
    /// Sorts the layers out; circles are reported.
    pub(in crate::resolve) fn new(by_name: SortedMap<&'a str, &'a Layer>, report: &mut Report) -> Self {
        let mut shapes: SortedMap<&'a str, Shape<'a>> = SortedMap::new();
        for (name, layer) in &by_name {
            let mut c = Contents::default();
            contents(&layer.body, &mut c);
            for default in layer.params.iter().filter_map(|p| p.default.as_ref()) {
                calls_of(default, &mut |call| c.calls.push(call));
            }
            let mut seen = SortedSet::new();
            let calls = c.calls.iter().filter_map(|call| {
                let (callee, _) = by_name.get_key_value(call.name.text.as_str())?;
                seen.insert(*callee).then_some((*callee, call.name.span))
            });
            shapes.insert(name, Shape { callees: calls.collect(), declares: c.declares });
        }
        let mut layers = Layers { by_name, ..Layers::default() };
        layers.sort(&shapes, report);
        layers
    }

    /// Sorts layers after the layers that they call. A layer that is never reached is on a cycle or leads to one.
    fn sort(&mut self, shapes: &SortedMap<&'a str, Shape<'a>>, report: &mut Report) {
        let mut callers: SortedMap<&'a str, Vec<&'a str>> = SortedMap::new();
        let mut waits: SortedMap<&'a str, usize> = SortedMap::new();
        let mut ready: VecDeque<&'a str> = VecDeque::new();
        for (name, shape) in shapes {
            waits.insert(name, shape.callees.len());
            shape.callees.iter().for_each(|c| callers.entry(c.0).or_default().push(name));
            if shape.callees.is_empty() {
                ready.push_back(name);
            }
        }
        let mut reported: SortedSet<&'a str> = SortedSet::new();
        loop {
            while let Some(name) = ready.pop_front() {
                waits.remove(name);
                let shape = &shapes[name];
                if shape.declares || shape.callees.iter().any(|c| self.owning.contains(c.0)) {
                    self.owning.insert(name);
                }
                if shape.callees.iter().any(|c| self.endless.contains(c.0)) {
                    self.endless.insert(name);
                }
                for caller in callers.get(name).into_iter().flatten() {
                    if let Some(n) = waits.get_mut(caller) {
                        *n = n.saturating_sub(1);
                        if *n == 0 && !reported.contains(caller) {
                            ready.push_back(caller);
                        }
                    }
                }
            }
            let Some(start) = waits.keys().next() else { return };
            let circle = circle(shapes, &waits, start);
            report_circle(self.by_name[circle[0].0], &circle, report);
            for (name, _) in circle {
                self.endless.insert(name);
                self.owning.insert(name);
                reported.insert(name);
                ready.push_back(name);
            }
        }
    }
}

/// A circle among the layers that wait, as steps `(layer, place of its call of the next one)`.
fn circle<'a>(
    shapes: &SortedMap<&'a str, Shape<'a>>,
    waits: &SortedMap<&'a str, usize>,
    start: &'a str,
) -> Vec<(&'a str, Span)> {
    let mut path: Vec<(&'a str, Span)> = Vec::new();
    let mut passed: SortedMap<&'a str, usize> = SortedMap::new();
    let mut at = start;
    loop {
        if let Some(k) = passed.insert(at, path.len()) {
            return path.split_off(k);
        }
        // A layer waits because a callee waits, so there always is one.
        let Some(next) = shapes[at].callees.iter().find(|c| waits.contains_key(c.0)) else { return path };
        path.push((at, next.1));
        at = next.0;
    }
}

fn report_circle(first: &Layer, circle: &[(&str, Span)], report: &mut Report) {
    let name = &first.name.text;
    let way = crate::resolve::report::circle(circle.iter().map(|c| c.0), name);
    let mut d = Diagnostic::error(codes::E0211, format!("layer `{name}` calls itself: {way}"))
        .at(circle[0].1, "called here");
    for (from, span) in circle[1..].iter().take(6) {
        d = d.and(*span, format!("called by `{from}`"));
    }
    report.push(
        d.and(first.name.span, "declared here")
            .note("layers are laid out in full when the program is compiled, so a circle of calls would never end")
            .help("write out as many levels as are needed, each as a layer of its own"),
    );
}
