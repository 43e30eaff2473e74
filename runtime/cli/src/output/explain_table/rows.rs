//! The rows of a part of a step: each value with its collectives, below the loop that it is in; equal blocks are shown once.

use super::view::View;
use crate::output::repeats::{Repetition, RowKey, named, runs};
use crate::output::table::{Align, Table, padded};
use crate::output::text::{bytes, counted, dashed, short_band, short_seconds, thousands};
use anstyle::{AnsiColor, Style};
use meshwright_core::explain::{CollectiveReport, PartReport, Report, ValueReport};
use meshwright_plan::Phase;
use meshwright_sorted::SortedSet;

/// So many buckets of one kind have one row together.
const MANY_BUCKETS: usize = 4;

/// Widths of the two halves of `50x28x28   153 KiB`.
pub(super) struct Widths {
    shape: usize,
    bytes: usize,
}

impl Widths {
    pub(super) fn of(report: &Report) -> Self {
        let width =
            |f: fn(&ValueReport) -> String| report.values.iter().map(|v| f(v).len()).max().unwrap_or(0);
        Widths { shape: width(shape), bytes: width(|v| bytes(v.bytes as u64)) }
    }
}

fn shape(v: &ValueReport) -> String {
    match v.shape.len() {
        0 => "scalar".into(),
        _ => v.shape.iter().map(usize::to_string).collect::<Vec<_>>().join("x"),
    }
}

/// A collective, or its part that concerns one value.
struct Moved<'a> {
    whole: &'a CollectiveReport,
    part: &'a PartReport,
    bucket: Option<usize>,
}

/// A row: of a value, of a further collective of the value above, or of a bucket.
struct ValueRow {
    path: String,
    cells: Vec<String>,
    /// Its loop, by its position in the report.
    in_loop: Option<usize>,
    bucket: bool,
}

/// The rows of a part of the step; returns the values that have one.
pub(super) fn phase_rows<'a>(
    report: &'a Report,
    view: &View,
    phase: Phase,
    title: &str,
    widths: &Widths,
    t: &mut Table,
) -> Vec<&'a ValueReport> {
    let (moved, buckets) = moved(report, phase);
    let mut values: Vec<&ValueReport> = report.values.iter().filter(|v| v.phase == phase).collect();
    // What another part of the step made and this one moves: a parameter that is gathered again, a loss in a bucket.
    let known: SortedSet<u32> = values.iter().map(|v| v.id).collect();
    let other: SortedSet<u32> = moved.iter().map(|m| m.part.id).filter(|id| !known.contains(id)).collect();
    let mut added = SortedSet::new();
    values.extend(report.values.iter().filter(|v| other.contains(&v.id) && added.insert(v.id)));
    let (mut seen, mut rows, mut shown) = (SortedSet::new(), Vec::new(), Vec::new());
    for v in values.into_iter().filter(|v| view.has(&v.value)) {
        // An input that is read in two placements has two rows.
        let first_row = seen.insert(v.id);
        let in_row = |m: &&Moved| first_row && m.part.id == v.id && (view.detailed() || m.bucket.is_none());
        let mine: Vec<&Moved> = moved.iter().filter(in_row).collect();
        if mine.is_empty() && (view.only_collectives || !view.detailed()) {
            continue;
        }
        shown.push(v);
        rows.extend(rows_of(v, v.phase == phase && view.detailed(), &mine, widths));
    }
    let buckets = if view.detailed() { Vec::new() } else { buckets };
    if rows.is_empty() && buckets.is_empty() {
        return shown;
    }
    // A bucket has a row of its own; all of its values are shown with `--all`.
    let mut placed: SortedSet<Option<usize>> = SortedSet::new();
    for in_loop in buckets.iter().map(|b| b.1.in_loop).filter(|l| placed.insert(*l)) {
        let here: Vec<_> = buckets.iter().filter(|b| b.1.in_loop == in_loop).copied().collect();
        let row = |cells: Vec<String>| ValueRow { path: cells[1].clone(), cells, in_loop, bucket: true };
        rows.extend(bucket_rows(&here).into_iter().map(row));
    }
    t.text(format!("  {title}"), Style::new().bold());
    let rows: Vec<&ValueRow> = rows.iter().collect();
    Nested { report, phase, folds: !view.detailed() }.rows(&rows, None, 0, t);
    let first = buckets.first().and_then(|b| b.1.parts.first()).map(|p| p.id);
    shown.extend(report.values.iter().find(|v| Some(v.id) == first));
    shown
}

/// The rows of a value with its collectives: in its own loop where it is `made` in this part of the step, and in each other
/// loop in which it is moved.
fn rows_of(v: &ValueReport, made: bool, mine: &[&Moved], widths: &Widths) -> Vec<ValueRow> {
    let mut places: Vec<Option<usize>> = if made { vec![v.in_loop] } else { Vec::new() };
    for m in mine {
        if !places.contains(&m.whole.in_loop) {
            places.push(m.whole.in_loop);
        }
    }
    let mut rows = Vec::new();
    for in_loop in places {
        let mut here = mine.iter().filter(|m| m.whole.in_loop == in_loop);
        let first =
            here.next().map_or_else(|| vec!["-".into(), String::new(), String::new()], |m| collective(m));
        let row = |cells| ValueRow { path: v.value.clone(), cells, in_loop, bucket: false };
        rows.push(row([value(v, widths), first].concat()));
        rows.extend(here.map(|m| row([vec![String::new(); 5], collective(m)].concat())));
    }
    rows
}

/// Adds rows with loops as headings.
struct Nested<'a> {
    report: &'a Report,
    phase: Phase,
    /// Whether equal blocks are shown once.
    folds: bool,
}

impl Nested<'_> {
    /// The loop right inside `outer` in which, or in a loop of which, `at` is.
    fn child(&self, at: Option<usize>, outer: Option<usize>) -> Option<usize> {
        let mut at = at?;
        while self.report.loops[at].parent != outer {
            at = self.report.loops[at].parent?;
        }
        Some(at)
    }

    /// The rows of a loop, or of what is in none. A loop has the place of its first row; buckets come last.
    fn rows(&self, rows: &[&ValueRow], outer: Option<usize>, depth: usize, t: &mut Table) {
        let (mut plain, mut done) = (Vec::new(), SortedSet::new());
        for row in rows {
            if row.in_loop == outer {
                if row.bucket {
                    self.flush(&mut plain, depth, t);
                    t.row(indented(&row.cells, depth));
                } else {
                    plain.push(*row);
                }
                continue;
            }
            let Some(child) = self.child(row.in_loop, outer) else { continue };
            if !done.insert(child) {
                continue;
            }
            self.flush(&mut plain, depth, t);
            t.text(
                format!("        {}{}", "  ".repeat(depth), self.heading(child)),
                AnsiColor::Yellow.on_default(),
            );
            let inside = |r: &&&ValueRow| r.in_loop != outer && self.child(r.in_loop, outer) == Some(child);
            let inside: Vec<&ValueRow> = rows.iter().filter(inside).copied().collect();
            self.rows(&inside, Some(child), depth + 1, t);
        }
        self.flush(&mut plain, depth, t);
    }

    /// A loop, with what a device gives to collectives in an iteration of it.
    fn heading(&self, id: usize) -> String {
        let l = &self.report.loops[id];
        let own = self.report.times(Some(id));
        let (mut size, mut count) = (0, 0);
        for c in self.report.collectives.iter().filter(|c| c.phase == self.phase) {
            let inside = self.child(c.in_loop, l.parent) == Some(id);
            let times = if inside { c.times / own.max(1) } else { 0 };
            (size, count) = (size + c.bytes as u64 * times, count + times);
        }
        let iterations = counted(l.iterations as u64, "iteration");
        let order = if l.reverse { " from the last" } else { "" };
        let moved = match count {
            0 => String::new(),
            n => format!(", {} in {} each", bytes(size), counted(n, "collective")),
        };
        format!("repeat {}  {iterations}{order}{moved}", l.dim)
    }

    fn flush(&self, plain: &mut Vec<&ValueRow>, depth: usize, t: &mut Table) {
        match self.folds {
            true => folded(plain, depth, t),
            false => plain.iter().for_each(|r| t.row(indented(&r.cells, depth))),
        }
        plain.clear();
    }
}

/// The cells of a row, with its value indented.
fn indented(cells: &[String], depth: usize) -> Vec<String> {
    let mut cells = cells.to_vec();
    if !cells[1].is_empty() {
        cells[1] = format!("{}{}", "  ".repeat(depth), cells[1]);
    }
    cells
}

/// What collectives of a part of the step move, value by value, and those of them that are buckets, numbered in the order of
/// the Plan.
fn moved(report: &Report, phase: Phase) -> (Vec<Moved<'_>>, Vec<(usize, &CollectiveReport)>) {
    let (mut moved, mut buckets, mut number) = (Vec::new(), Vec::new(), 0);
    for whole in &report.collectives {
        let bucket = (whole.parts.len() > 1).then(|| {
            number += 1;
            number
        });
        if whole.phase == phase {
            moved.extend(whole.parts.iter().map(|part| Moved { whole, part, bucket }));
            buckets.extend(bucket.map(|n| (n, whole)));
        }
    }
    (moved, buckets)
}

/// The cells of a value.
fn value(v: &ValueReport, widths: &Widths) -> Vec<String> {
    let line = if v.line == 0 { String::new() } else { v.line.to_string() };
    let size = padded(&bytes(v.bytes as u64), widths.bytes, Align::Right);
    let held = format!("{}  {size}", padded(&shape(v), widths.shape, Align::Left));
    vec![line, v.value.clone(), format!("[{}]", v.dims.join(" ")), held, v.split_by.clone()]
}

/// The rows of buckets: one for each, or, of a kind with many, one for all of them.
fn bucket_rows(buckets: &[(usize, &CollectiveReport)]) -> Vec<Vec<String>> {
    let kind = |c: &CollectiveReport| (c.op.clone(), c.axes.clone(), c.ahead);
    let mut kinds: Vec<Vec<(usize, &CollectiveReport)>> = Vec::new();
    for b in buckets {
        match kinds.iter_mut().find(|k| kind(k[0].1) == kind(b.1)) {
            Some(kind) => kind.push(*b),
            None => kinds.push(vec![*b]),
        }
    }
    let rows = |kind: Vec<(usize, &CollectiveReport)>| match kind.len() >= MANY_BUCKETS {
        true => vec![bucket_row(format!("{} buckets", kind.len()), &kind)],
        false => {
            kind.iter().map(|b| bucket_row(format!("bucket {}", b.0), std::slice::from_ref(b))).collect()
        }
    };
    kinds.into_iter().flat_map(rows).collect()
}

/// The cells of buckets of one kind.
fn bucket_row(name: String, buckets: &[(usize, &CollectiveReport)]) -> Vec<String> {
    let parts: Vec<&PartReport> = buckets.iter().flat_map(|b| &b.1.parts).collect();
    let of = counted(parts.len() as u64, "value");
    let what = buckets
        .first()
        .map_or(String::new(), |b| format!("{} {}{}", dashed(&b.1.op), b.1.axes.join(","), ahead(b.1)));
    let what = what + &time(&buckets.iter().map(|b| b.1).collect::<Vec<_>>());
    let size: usize = buckets.iter().map(|b| b.1.bytes).sum();
    let reasons: SortedSet<&str> =
        parts.iter().map(|p| p.because.as_str()).filter(|r| !r.is_empty()).collect();
    let first = parts.iter().map(|p| p.because.as_str()).find(|r| !r.is_empty());
    let because = match (first, reasons.len()) {
        (None, _) => String::new(),
        (Some(one), 1) => format!("because {one}"),
        (Some(one), n) => format!("because {one}, and {}", counted(n as u64 - 1, "other reason")),
    };
    let none = String::new;
    vec![none(), name, of, none(), none(), what, thousands(size as u64), because]
}

/// Adds rows, those of equal blocks once, indented below the names of the blocks.
fn folded(rows: &[&ValueRow], depth: usize, t: &mut Table) {
    let key = |r: &&ValueRow| RowKey::new(&r.path, &r.cells[2..7], &r.cells[7]);
    let keys: Vec<RowKey> = rows.iter().map(key).collect();
    for Repetition { start, period, times } in runs(&keys) {
        let block = &rows[start..start + period];
        if times == 1 {
            block.iter().for_each(|r| t.row(indented(&r.cells, depth)));
            continue;
        }
        let last = &rows[start + (times - 1) * period..];
        let mut names: Vec<String> = Vec::new();
        for name in block.iter().zip(last).filter_map(|(a, b)| named(&a.path, &b.path)) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let heading = format!("        {}{}, each", "  ".repeat(depth), names.join(", "));
        t.text(heading, AnsiColor::Yellow.on_default());
        block.iter().for_each(|r| t.row(indented(&r.cells, depth + 1)));
    }
}

/// Of a collective in a loop, where it runs for another iteration than what the loop computes then.
fn ahead(c: &CollectiveReport) -> String {
    match c.ahead {
        None | Some(0) => String::new(),
        Some(n) if n > 0 => format!(", {n} ahead"),
        Some(n) => format!(", {} behind", -n),
    }
}

fn collective(m: &Moved) -> Vec<String> {
    let bucket = m.bucket.map(|n| format!(", bucket {n}")).unwrap_or_default();
    let (op, axes) = (dashed(&m.whole.op), m.whole.axes.join(","));
    let what = format!("{op} {axes}{bucket}{}{}", ahead(m.whole), time(&[m.whole]));
    let because =
        if m.part.because.is_empty() { String::new() } else { format!("because {}", m.part.because) };
    vec![what, thousands(m.part.bytes as u64), because]
}

/// The estimated time of collectives in a step with its band: `, 2.1 ms +- 15 %`, and how much of it kernels wait for.
fn time(all: &[&CollectiveReport]) -> String {
    let times: Vec<_> = all.iter().filter_map(|c| c.time).collect();
    if times.is_empty() {
        return String::new();
    }
    let seconds: f64 = times.iter().map(|t| t.seconds).sum();
    let exposed: f64 = times.iter().map(|t| t.exposed_seconds).sum();
    let waits = match exposed {
        e if e < 0.005 * seconds => "hidden".into(),
        e if e >= 0.995 * seconds => "waited for".into(),
        e => format!("waits {}", short_seconds(e)),
    };
    let error = times.iter().map(|t| t.error).fold(0.0, f64::max);
    format!(", {} {} {waits}", short_seconds(seconds), short_band(error))
}
