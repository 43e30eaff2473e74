//! The report of `explain` as a table: totals, then each value with its placement and each collective at the value that it
//! belongs to. What is shown of a large model is what moves; equal blocks are shown once.

use crate::repeats::{Repetition, RowKey, named, runs};
use crate::table::{Align, Screen, Table};
use crate::text::{bytes, counted, dashed, flops, thousands};
use anstyle::{AnsiColor, Style};
use meshwright_core::explain::{CollectiveReport, PartReport, Report, ValueReport};
use meshwright_core::resolve::matches;
use meshwright_plan::Phase;
use std::collections::BTreeSet;

/// What is shown of a report; by default the totals, and the values that a collective moves.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct View {
    /// Every value, and when each collective runs.
    pub(crate) all: bool,
    /// Parts of the step; all of them where empty.
    pub(crate) phases: Vec<Phase>,
    /// Globs of paths; if there are any, only values that one of them matches.
    pub(crate) globs: Vec<String>,
    /// Nothing but rows with collectives.
    pub(crate) only_collectives: bool,
}

impl View {
    /// Whether each value has a row, and nothing is folded.
    fn detailed(&self) -> bool {
        self.all || !self.globs.is_empty()
    }

    fn has(&self, path: &str) -> bool {
        self.globs.is_empty() || self.globs.iter().any(|g| matches(g, path) || matches(g, stem(path)))
    }
}

/// The path that `d(b1.up.w)`, `new b1.up.w` or `b1.up.w/m` is made of.
fn stem(path: &str) -> &str {
    let start = path.rfind(['(', ' ']).map_or(0, |i| i + 1);
    let path = &path[start..];
    &path[..path.find([')', '/']).unwrap_or(path.len())]
}

/// Paths that a glob could have meant, where none of the globs matches.
pub(crate) fn unmatched<'a>(report: &'a Report, view: &View) -> Option<BTreeSet<&'a str>> {
    let any = report.values.iter().any(|v| view.has(&v.value));
    (!any && !view.globs.is_empty()).then(|| report.values.iter().map(|v| stem(&v.value)).collect())
}

const PHASES: [(Phase, &str); 3] =
    [(Phase::Forward, "forward"), (Phase::Backward, "backward"), (Phase::Update, "update")];

/// So many buckets of one kind have one row together.
const MANY_BUCKETS: usize = 4;

/// The report as it is read.
pub(crate) fn render(report: &Report, view: &View, screen: &Screen) -> String {
    let left = Align::Left;
    let mut t = Table::new(&[Align::Right, left, left, left, left, left, Align::Right, left])
        .style(0, Style::new().dimmed())
        .style(1, Style::new().bold())
        .style(5, AnsiColor::Cyan.on_default())
        .style(7, Style::new().dimmed())
        .dispensable(&[3, 2, 4]);
    t.titles(["line", "value", "", "on each device", "split by", "collective", "bytes/device", ""]);
    let widths = Widths::of(report);
    let mut shown = Vec::new();
    for (phase, title) in PHASES {
        if view.phases.is_empty() || view.phases.contains(&phase) {
            shown.extend(phase_rows(report, view, phase, title, &widths, &mut t));
        }
    }
    let table = if shown.is_empty() { String::new() } else { t.render_on(screen) + &legend(&shown) };
    if view.only_collectives {
        return if table.is_empty() { "no collectives\n".into() } else { table };
    }
    let plain =
        |text: String| text.lines().map(|l| screen.line([(l, Style::new())]) + "\n").collect::<String>();
    let overlap = if view.all { format!("\n{}", plain(overlap(report))) } else { String::new() };
    let gap = if table.is_empty() { "" } else { "\n" };
    let hidden = plain(hidden(report, view));
    let attention = plain(attention(report));
    format!("mesh  {}\n\n{}{attention}{gap}{table}{overlap}{hidden}", mesh(report), plain(totals(report)))
}

/// Where attention was recognized, and where a softmax was nearly one: a line for all of which the same is to be said.
fn attention(report: &Report) -> String {
    /// So many are named.
    const NAMED: usize = 3;
    let mut said: Vec<(String, Vec<String>)> = Vec::new();
    for a in &report.attention {
        let because = a.because.as_deref().unwrap_or("");
        let what = match (a.recognized, a.tiled) {
            (true, true) => "in one step, scores are not stored".to_string(),
            (true, false) => format!("by its equations, since {because}"),
            _ => format!("not recognized, since {because}"),
        };
        let place = format!("`{}` (line {})", a.value, a.line);
        match said.iter_mut().find(|s| s.0 == what) {
            Some(same) => same.1.push(place),
            None => said.push((what, vec![place])),
        }
    }
    let line = |(what, places): (String, Vec<String>)| {
        let more = places.len().saturating_sub(NAMED);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        format!("attention  {what}: {}{more}\n", places[..places.len().min(NAMED)].join(", "))
    };
    said.into_iter().map(line).collect()
}

/// The mesh in words.
pub(crate) fn mesh(report: &Report) -> String {
    let axes: Vec<String> = report.mesh.iter().map(|a| format!("{}={}", a.axis, a.size)).collect();
    match axes.len() {
        0 => "one device".into(),
        _ => format!("{} = {}", axes.join(" x "), counted(report.devices as u64, "device")),
    }
}

/// How to see what is not shown.
fn hidden(report: &Report, view: &View) -> String {
    if view.detailed() {
        return String::new();
    }
    let moved: BTreeSet<u32> = report.collectives.iter().flat_map(|c| &c.parts).map(|p| p.id).collect();
    let rest = report.values.iter().filter(|v| !moved.contains(&v.id)).count();
    let rest = counted(rest as u64, "value");
    format!(
        "\n{rest} without collectives not shown: `--all` shows every value, `--match GLOB` those of a path\n"
    )
}

/// What `+sum(r)` means, where it occurs.
fn legend(shown: &[&ValueReport]) -> String {
    let partial = shown.iter().find_map(|v| {
        let (_, rest) = v.split_by.split_once('+')?;
        let (monoid, axes) = rest.split_once(')')?.0.split_once('(')?;
        Some((monoid, axes))
    });
    partial.map_or(String::new(), |(monoid, axes)| {
        format!("\n  +{monoid}({axes}): partial {monoid}, not yet all-reduced over {axes}\n")
    })
}

/// Widths of the two halves of `50x28x28   153 KiB`.
struct Widths {
    shape: usize,
    bytes: usize,
}

impl Widths {
    fn of(report: &Report) -> Self {
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

/// A row, or the further rows of the same value, which are indented in its place.
struct ValueRow {
    path: String,
    cells: Vec<String>,
}

/// The rows of a part of the step; returns the values that have one.
fn phase_rows<'a>(
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
    let known: BTreeSet<u32> = values.iter().map(|v| v.id).collect();
    let other: BTreeSet<u32> = moved.iter().map(|m| m.part.id).filter(|id| !known.contains(id)).collect();
    let mut added = BTreeSet::new();
    values.extend(report.values.iter().filter(|v| other.contains(&v.id) && added.insert(v.id)));
    let (mut seen, mut rows, mut shown) = (BTreeSet::new(), Vec::new(), Vec::new());
    for v in values.into_iter().filter(|v| view.has(&v.value)) {
        // An input that is read in two placements has two rows.
        let first_row = seen.insert(v.id);
        let in_row = |m: &&Moved| first_row && m.part.id == v.id && (view.detailed() || m.bucket.is_none());
        let mut mine = moved.iter().filter(in_row).peekable();
        if mine.peek().is_none() && (view.only_collectives || !view.detailed()) {
            continue;
        }
        shown.push(v);
        let first = mine.next().map_or_else(|| vec!["-".into(), String::new(), String::new()], collective);
        rows.push(ValueRow { path: v.value.clone(), cells: [value(v, widths), first].concat() });
        let further = |m: &Moved| [vec![String::new(); 5], collective(m)].concat();
        rows.extend(mine.map(|m| ValueRow { path: v.value.clone(), cells: further(m) }));
    }
    let buckets = if view.detailed() { Vec::new() } else { buckets };
    if rows.is_empty() && buckets.is_empty() {
        return shown;
    }
    t.text(format!("  {title}"), Style::new().bold());
    if view.detailed() {
        rows.into_iter().for_each(|r| t.row(r.cells));
    } else {
        folded(&rows, t);
    }
    // A bucket has a row of its own; all of its values are shown with `--all`.
    bucket_rows(&buckets).into_iter().for_each(|row| t.row(row));
    let first = buckets.first().and_then(|b| b.1.parts.first()).map(|p| p.id);
    shown.extend(report.values.iter().find(|v| Some(v.id) == first));
    shown
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
    let held = format!("{:<2$}  {:>3$}", shape(v), bytes(v.bytes as u64), widths.shape, widths.bytes);
    vec![line, v.value.clone(), format!("[{}]", v.dims.join(" ")), held, v.split_by.clone()]
}

/// The rows of buckets: one for each, or, of a kind with many, one for all of them.
fn bucket_rows(buckets: &[(usize, &CollectiveReport)]) -> Vec<Vec<String>> {
    let mut kinds: Vec<Vec<(usize, &CollectiveReport)>> = Vec::new();
    for b in buckets {
        match kinds.iter_mut().find(|k| (&k[0].1.op, &k[0].1.axes) == (&b.1.op, &b.1.axes)) {
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
    let what =
        buckets.first().map_or(String::new(), |b| format!("{} {}", dashed(&b.1.op), b.1.axes.join(",")));
    let size: usize = buckets.iter().map(|b| b.1.bytes).sum();
    let reasons: BTreeSet<&str> =
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
fn folded(rows: &[ValueRow], t: &mut Table) {
    let key = |r: &ValueRow| RowKey::new(&r.path, &r.cells[2..7], &r.cells[7]);
    let keys: Vec<RowKey> = rows.iter().map(key).collect();
    for Repetition { start, period, times } in runs(&keys) {
        let block = &rows[start..start + period];
        if times == 1 {
            block.iter().for_each(|r| t.row(r.cells.clone()));
            continue;
        }
        let last = &rows[start + (times - 1) * period..];
        let mut names: Vec<String> = Vec::new();
        for name in block.iter().zip(last).filter_map(|(a, b)| named(&a.path, &b.path)) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        t.text(format!("        {}, each", names.join(", ")), AnsiColor::Yellow.on_default());
        for r in block {
            let mut cells = r.cells.clone();
            cells[1] = format!("  {}", cells[1]);
            t.row(cells);
        }
    }
}

fn collective(m: &Moved) -> Vec<String> {
    let bucket = m.bucket.map(|n| format!(", bucket {n}")).unwrap_or_default();
    let what = format!("{} {}{bucket}", dashed(&m.whole.op), m.whole.axes.join(","));
    let because =
        if m.part.because.is_empty() { String::new() } else { format!("because {}", m.part.because) };
    vec![what, thousands(m.part.bytes as u64), because]
}

/// At which steps of the Plan collectives that overlap with others start and are waited for, and what is computed in between;
/// empty without collectives.
fn overlap(report: &Report) -> String {
    if report.collectives.is_empty() {
        return String::new();
    }
    let left = Align::Left;
    let mut t = Table::new(&[Align::Right, Align::Right, left, left, left]);
    t.row(["start", "wait", "collective", "of", "compute in between"]);
    let (mut buckets, mut at_once) = (0, 0);
    for c in &report.collectives {
        let what = format!("{} {}", dashed(&c.op), c.axes.join(","));
        let first = c.parts.first().map_or("", |p| p.value.as_str());
        let of = match c.parts.len() {
            0 | 1 if first.is_empty() => "(unnamed)".into(),
            0 | 1 => first.into(),
            _ => {
                buckets += 1;
                format!("bucket {buckets}")
            }
        };
        let steps = counted(c.meanwhile as u64, "step");
        let meanwhile = match &c.over {
            Some((one, other)) if one == other => format!("{steps}: `{one}`"),
            Some((first, last)) => format!("{steps}, `{first}` to `{last}`"),
            None => "other collectives".into(),
        };
        if c.start == c.wait {
            at_once += 1;
            continue;
        }
        t.row([c.start.to_string(), c.wait.to_string(), what, of, meanwhile]);
    }
    let all = report.collectives.len();
    let rest = match at_once {
        0 => String::new(),
        n if n == all => "  none: each collective is waited for where it starts\n".into(),
        n => format!("  and {} waited for where started\n", counted(n as u64, "collective")),
    };
    let rows = if at_once == all { String::new() } else { t.render() };
    format!("overlap: the steps of the plan at which collectives start and are waited for\n{rows}{rest}")
}

fn totals(report: &Report) -> String {
    let d = &report.per_device;
    let mut t = Table::new(&[Align::Left, Align::Right, Align::Left]);
    t.row(["compute".into(), flops(d.flops), String::new()]);
    let n = report.collectives.len() as u64;
    t.row(["collectives".into(), bytes(d.collective_bytes), format!("in {}", counted(n, "collective"))]);
    for k in &report.totals {
        let kind = format!("{} over {}", dashed(&k.op), k.axes.join(","));
        t.row([String::new(), bytes(k.bytes as u64), format!("in {} {kind}", thousands(k.count as u64))]);
    }
    let flying: Vec<&CollectiveReport> = report.collectives.iter().filter(|c| c.wait > c.start).collect();
    if !flying.is_empty() {
        let size = flying.iter().map(|c| c.bytes as u64).sum();
        let what = format!("in {} in flight while others compute", thousands(flying.len() as u64));
        t.row(["overlap".into(), bytes(size), what]);
    }
    let parts = [
        ("parameters", d.parameter_bytes),
        ("optimizer", d.optimizer_state_bytes),
        ("activations", d.activation_bytes),
    ];
    t.row(["peak memory".into(), bytes(d.peak_bytes), String::new()]);
    for (name, size) in parts {
        t.row([String::new(), bytes(size), name.into()]);
    }
    format!("per step and device\n{}", t.render())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use meshwright_core::explain::{AxisReport, DeviceReport, totals};

    fn value(
        id: u32,
        phase: Phase,
        line: u32,
        value: &str,
        dims: &[&str],
        shape: &[usize],
        split_by: &str,
    ) -> ValueReport {
        ValueReport {
            id,
            line,
            phase,
            value: value.into(),
            dims: dims.iter().map(|d| d.to_string()).collect(),
            shape: shape.to_vec(),
            dtype: "f32".into(),
            bytes: shape.iter().product::<usize>() * 4,
            split_by: split_by.into(),
        }
    }

    fn part(id: u32, value: &str, bytes: usize, because: &str) -> PartReport {
        PartReport { id, value: value.into(), line: 20, bytes, because: because.into(), rule: None }
    }

    fn of(op: &str, axis: &str, phase: Phase, parts: Vec<PartReport>) -> CollectiveReport {
        CollectiveReport {
            op: op.into(),
            axes: vec![axis.into()],
            bytes: parts.iter().map(|p| p.bytes).sum(),
            phase,
            value: String::new(),
            line: 20,
            because: String::new(),
            parts,
            start: 3,
            wait: 3,
            meanwhile: 0,
            over: None,
        }
    }

    fn report() -> Report {
        let flying = CollectiveReport {
            start: 7,
            wait: 12,
            meanwhile: 4,
            over: Some(("b2.h".into(), "d(h.w)".into())),
            ..of("all_reduce", "c", Phase::Forward, vec![part(3, "b2.h", 8, "`x` is summed")])
        };
        let mut report = Report {
            attention: vec![],
            program: "train".into(),
            mesh: vec![AxisReport { axis: "r".into(), size: 2 }, AxisReport { axis: "c".into(), size: 2 }],
            devices: 4,
            values: vec![
                value(1, Phase::Forward, 19, "x", &["batch", "rows"], &[50, 28], "batch:r"),
                value(2, Phase::Forward, 20, "b1.h", &["batch", "hidden"], &[50, 512], "batch:r hidden:c"),
                value(3, Phase::Forward, 20, "b2.h", &["batch", "hidden"], &[50, 512], "batch:r hidden:c"),
                value(4, Phase::Forward, 21, "xent", &[], &[], "+sum(r)"),
                value(5, Phase::Backward, 20, "d(h.w)", &["rows", "hidden"], &[28, 512], "hidden:c +sum(r)"),
                value(6, Phase::Backward, 20, "d(h.b)", &["hidden"], &[512], "hidden:c +sum(r)"),
                value(7, Phase::Update, 20, "new h.w", &["rows", "hidden"], &[28, 512], "hidden:c"),
            ],
            collectives: vec![
                of("all_reduce", "c", Phase::Forward, vec![part(2, "b1.h", 102_400, "`rows` is summed")]),
                flying,
                of(
                    "all_reduce",
                    "r",
                    Phase::Backward,
                    vec![
                        part(5, "d(h.w)", 57_344, "`batch` is summed"),
                        part(6, "d(h.b)", 2048, "`batch` is summed"),
                        part(4, "xent", 4, "`batch` is summed"),
                    ],
                ),
                of(
                    "all_gather",
                    "c",
                    Phase::Update,
                    vec![part(7, "new h.w", 57_344, "`hidden` is stored whole")],
                ),
            ],
            per_device: DeviceReport {
                flops: 324_000_000,
                collective_bytes: 161_800,
                peak_bytes: 4 << 20,
                parameter_bytes: 3 << 20,
                optimizer_state_bytes: 0,
                activation_bytes: 1 << 20,
            },
            totals: Vec::new(),
        };
        report.totals = totals(&report.collectives);
        report
    }

    fn view(all: bool) -> View {
        View { all, ..View::default() }
    }

    const TOTALS: &str = "\
mesh  r=2 x c=2 = 4 devices

per step and device
  compute      324 MFLOP
  collectives    158 KiB  in 4 collectives
                 100 KiB  in 2 all-reduce over c
                58.0 KiB  in 1 all-reduce over r
                56.0 KiB  in 1 all-gather over c
  overlap            8 B  in 1 in flight while others compute
  peak memory   4.00 MiB
                3.00 MiB  parameters
                     0 B  optimizer
                1.00 MiB  activations
";

    #[test]
    fn every_value_has_a_row_with_its_collectives() {
        let expected = "
  line  value                    on each device    split by          collective              bytes/device
  forward
    19  x       [batch rows]    50x28   5.47 KiB  batch:r           -
    20  b1.h    [batch hidden]  50x512   100 KiB  batch:r hidden:c  all-reduce c                 102,400  because `rows` is summed
    20  b2.h    [batch hidden]  50x512   100 KiB  batch:r hidden:c  all-reduce c                       8  because `x` is summed
    21  xent    []              scalar       4 B  +sum(r)           -
  backward
    20  d(h.w)  [rows hidden]   28x512  56.0 KiB  hidden:c +sum(r)  all-reduce r, bucket 1        57,344  because `batch` is summed
    20  d(h.b)  [hidden]        512     2.00 KiB  hidden:c +sum(r)  all-reduce r, bucket 1         2,048  because `batch` is summed
    21  xent    []              scalar       4 B  +sum(r)           all-reduce r, bucket 1             4  because `batch` is summed
  update
    20  new h.w [rows hidden]   28x512  56.0 KiB  hidden:c          all-gather c                  57,344  because `hidden` is stored whole

  +sum(r): partial sum, not yet all-reduced over r

overlap: the steps of the plan at which collectives start and are waited for
  start  wait  collective    of              compute in between
      7    12  all-reduce c  b2.h            4 steps, `b2.h` to `d(h.w)`
  and 3 collectives waited for where started
";
        let squeeze = |s: &str| {
            s.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
        };
        let text = render(&report(), &view(true), &Screen::default());
        assert_eq!(squeeze(&text), squeeze(&(TOTALS.to_string() + expected)));
        // The halves of a cell stand in columns too.
        let column = |what: &str| text.lines().find_map(|l| l.find(what).map(|i| i + what.len()));
        assert_eq!(column("5.47 KiB"), column("scalar       4 B"));
    }

    #[test]
    fn by_default_what_moves_is_shown_and_a_bucket_in_one_row() {
        let expected = "
  line  value                     on each device    split by          collective    bytes/device
  forward
    20  b1.h      [batch hidden]  50x512   100 KiB  batch:r hidden:c  all-reduce c       102,400  because `rows` is summed
    20  b2.h      [batch hidden]  50x512   100 KiB  batch:r hidden:c  all-reduce c             8  because `x` is summed
  backward
        bucket 1  3 values                                            all-reduce r        59,396  because `batch` is summed
  update
    20  new h.w   [rows hidden]   28x512  56.0 KiB  hidden:c          all-gather c        57,344  because `hidden` is stored whole

  +sum(r): partial sum, not yet all-reduced over r

1 value without collectives not shown: `--all` shows every value, `--match GLOB` those of a path
";
        let mut report = report();
        report.collectives[2].because = "`batch` is summed".into();
        assert_eq!(render(&report, &view(false), &Screen::default()), TOTALS.to_string() + expected);
        let narrow = Screen { width: Some(60), ..Screen::default() };
        let text = render(&report, &view(false), &narrow);
        assert!(text.lines().all(|l| l.chars().count() <= 60), "{text}");
        assert!(text.contains("\n    20  b1.h      all-reduce c       102,400  because `rows…\n"), "{text}");
    }

    #[test]
    fn rows_are_chosen_by_part_path_and_collective() {
        let paths = |v: View| -> Vec<String> {
            let text = render(&report(), &v, &Screen::default());
            let rows = text.lines().skip_while(|l| !l.contains("bytes/device")).skip(1);
            rows.filter(|l| l.starts_with("    "))
                .map(|l| l[8..].split("  ").next().unwrap().into())
                .collect()
        };
        let only = View { only_collectives: true, ..view(true) };
        assert_eq!(paths(only), ["b1.h", "b2.h", "d(h.w)", "d(h.b)", "xent", "new h.w"]);
        let globs = vec!["h.*".to_string()];
        assert_eq!(paths(View { globs: globs.clone(), ..view(false) }), ["d(h.w)", "d(h.b)", "new h.w"]);
        let update = View { globs, phases: vec![Phase::Update], ..view(false) };
        assert_eq!(paths(update), ["new h.w"]);
        let text = render(&report(), &View { only_collectives: true, ..view(false) }, &Screen::default());
        assert!(text.starts_with("  line  value") && !text.contains("compute"), "{text}");
        let none = View { globs: vec!["g.*".into()], ..view(false) };
        assert!(unmatched(&report(), &none).is_some_and(|all| all.contains("h.w") && all.contains("b1.h")));
        assert!(unmatched(&report(), &view(false)).is_none());
    }
}
