//! Layout files: a rule or a line of settings on each line, none of which may be broken.

use super::runs::{RowKind, Runs};
use super::writer::Writer;
use crate::ast::{LayoutFile, LayoutItem, LayoutKind, PathGlob, Rule, Scope};
use crate::scan::Scan;

/// The file in the one style. `None` where tree and tokens disagree.
pub(super) fn print(file: &LayoutFile, text: &str, scan: &Scan) -> Option<String> {
    let mut w = Writer::new(text, scan);
    let mut runs = Runs::default();
    for (i, item) in file.items.iter().enumerate() {
        // Settings may share a line; rules need not.
        if i > 0 && w.peek() == "," {
            w.word(",");
            w.blank();
        } else {
            separators(&mut w);
            if w.line(i == 0) {
                runs.separate();
            }
        }
        super::layout::item(&mut w, item, &mut runs);
    }
    separators(&mut w);
    w.last_line(file.items.is_empty());
    runs.align(&mut w.pads);
    w.finish()
}

fn separators(w: &mut Writer<'_>) {
    while w.peek() == ";" && !w.commented(0) {
        w.skip();
    }
}

fn item(w: &mut Writer<'_>, item: &LayoutItem, runs: &mut Runs) {
    let LayoutItem { kind, span: _ } = item;
    if let LayoutKind::Rule(rule) = kind {
        return super::layout::rule(w, rule, runs);
    }
    runs.separate();
    w.take();
    w.blank();
    match kind {
        LayoutKind::Mesh(mesh) => commas(w, mesh.axes.len(), |w, _| {
            w.take();
            w.blank();
            w.word("=");
            w.blank();
            w.take();
        }),
        LayoutKind::Gather(names) | LayoutKind::Ring(names) => commas(w, names.len(), |w, _| w.take()),
        LayoutKind::Order { axes, .. } => {
            w.take();
            w.blank();
            w.word("zigzag");
            w.blank();
            commas(w, axes.len(), |w, _| w.take());
        }
        LayoutKind::Recompute(globs) => commas(w, globs.len(), |w, i| glob(w, &globs[i])),
        LayoutKind::KeepParams(globs) => {
            w.word("params");
            if !globs.is_empty() {
                w.blank();
                commas(w, globs.len(), |w, i| glob(w, &globs[i]));
            }
        }
        LayoutKind::Microbatches { .. } | LayoutKind::Schedule(_) | LayoutKind::Chunks { .. } => w.take(),
        LayoutKind::Stages(counts) => commas(w, counts.len(), |w, _| w.take()),
        LayoutKind::ReduceGrads => {
            w.take();
            w.blank();
            w.word("in");
            w.blank();
            w.take();
        }
        LayoutKind::ReduceWhen(when) => {
            w.take();
            for word in when.words().split(' ') {
                w.blank();
                w.word(word);
            }
        }
        LayoutKind::Rule(_) => {}
    }
}

/// `params layers.*: a, b -> x, y when free`.
fn rule(w: &mut Writer<'_>, rule: &Rule, runs: &mut Runs) {
    let Rule { scope: Scope { kind, path }, dims, axes, when_free } = rule;
    if kind.is_some() || path.is_some() {
        let mark = w.mark();
        if kind.is_some() {
            w.take();
        }
        if let Some(path) = path {
            w.blank();
            glob(w, path);
        }
        w.word(":");
        let part = w.part(mark);
        runs.row(RowKind::Scoped, &[part]);
        w.blank();
    } else {
        runs.separate();
    }
    commas(w, dims.len(), |w, _| w.take());
    w.blank();
    w.word("->");
    w.blank();
    if axes.is_empty() {
        w.word("-");
    } else {
        commas(w, axes.len(), |w, _| w.take());
    }
    if when_free.is_some() {
        w.blank();
        w.word("when");
        w.blank();
        w.word("free");
    }
}

fn glob(w: &mut Writer<'_>, path: &PathGlob) {
    w.take_until(path.span.end as usize);
}

fn commas(w: &mut Writer<'_>, count: usize, mut element: impl FnMut(&mut Writer<'_>, usize)) {
    for i in 0..count {
        if i > 0 {
            w.word(",");
            w.blank();
        }
        element(w, i);
    }
}
