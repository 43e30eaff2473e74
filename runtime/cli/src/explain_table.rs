//! The report of `explain` as a table: each value with its placement, each collective at the value it belongs to.

use crate::repeats::{TableLine, ValueRows, folded};
use crate::table::{Align, Table};
use crate::text::{bytes, counted, dashed, flops, thousands};
use meshwright_core::explain::{CollectiveReport, PartReport, Report, ValueReport};
use meshwright_plan::Phase;
use std::collections::BTreeSet;

/// The table with the totals per step and device.
pub(crate) fn render(report: &Report) -> String {
    let axes: Vec<String> = report.mesh.iter().map(|a| format!("{}={}", a.axis, a.size)).collect();
    let mesh = match axes.len() {
        0 => "one device".into(),
        _ => format!("{} = {}", axes.join(" x "), counted(report.devices as u64, "device")),
    };
    let left = Align::Left;
    let mut t = Table::new(&[Align::Right, left, left, left, left, left, Align::Right, left]);
    t.row(["line", "value", "", "on each device", "split by", "collective", "bytes/device", ""]);
    let widths = Widths::of(report);
    for (phase, title) in
        [(Phase::Forward, "forward"), (Phase::Backward, "backward"), (Phase::Update, "update")]
    {
        phase_rows(report, phase, title, &widths, &mut t);
    }
    format!("mesh  {mesh}\n\n{}{}\n{}{}", t.render(), legend(report), overlap(report), totals(report))
}

/// What `+sum(r)` means, where it occurs.
fn legend(report: &Report) -> String {
    let partial = report.values.iter().find_map(|v| {
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

fn phase_rows(report: &Report, phase: Phase, title: &str, widths: &Widths, t: &mut Table) {
    let mut buckets = 0;
    let mut moved: Vec<Moved> = Vec::new();
    for whole in &report.collectives {
        let bucket = (whole.parts.len() > 1).then(|| {
            buckets += 1;
            buckets
        });
        if whole.phase == phase {
            moved.extend(whole.parts.iter().map(|part| Moved { whole, part, bucket }));
        }
    }
    let mut values: Vec<&ValueReport> = report.values.iter().filter(|v| v.phase == phase).collect();
    // What another part of the step made and this one moves: a parameter that is gathered again, a loss in a bucket.
    for m in &moved {
        if !values.iter().any(|v| v.id == m.part.id) {
            values.extend(report.values.iter().find(|v| v.id == m.part.id));
        }
    }
    if values.is_empty() {
        return;
    }
    t.text(format!("  {title}"));
    let mut seen = BTreeSet::new();
    let mut entries = Vec::new();
    for v in values {
        let line = if v.line == 0 { String::new() } else { v.line.to_string() };
        let held = format!("{:<2$}  {:>3$}", shape(v), bytes(v.bytes as u64), widths.shape, widths.bytes);
        let cells = vec![line, v.value.clone(), format!("[{}]", v.dims.join(" ")), held, v.split_by.clone()];
        // An input that is read in two placements has two rows.
        let first_row = seen.insert(v.id);
        let mut mine = moved.iter().filter(|m| first_row && m.part.id == v.id);
        let first = mine.next().map_or_else(|| vec!["-".into(), String::new(), String::new()], collective);
        let mut rows = vec![[cells, first].concat()];
        rows.extend(mine.map(|m| [vec![String::new(); 5], collective(m)].concat()));
        entries.push(ValueRows { path: v.value.clone(), rows });
    }
    for line in folded(entries) {
        match line {
            TableLine::Row(cells) => t.row(cells),
            TableLine::Same { first, last, of } => t.text(format!("        {first} to {last}: as {of}")),
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
    format!("overlap: the steps of the plan at which collectives start and are waited for\n{rows}{rest}\n")
}

fn totals(report: &Report) -> String {
    let d = &report.per_device;
    let mut t = Table::new(&[Align::Left, Align::Right, Align::Left]);
    t.row(["compute".into(), flops(d.flops), String::new()]);
    let n = report.collectives.len() as u64;
    t.row(["collectives".into(), bytes(d.collective_bytes), format!("in {}", counted(n, "collective"))]);
    let mut kinds: Vec<(String, u64, u64)> = Vec::new();
    for c in &report.collectives {
        let kind = format!("{} over {}", dashed(&c.op), c.axes.join(","));
        match kinds.iter_mut().find(|k| k.0 == kind) {
            Some(k) => (k.1, k.2) = (k.1 + 1, k.2 + c.bytes as u64),
            None => kinds.push((kind, 1, c.bytes as u64)),
        }
    }
    for (kind, count, size) in kinds {
        t.row([String::new(), bytes(size), format!("in {} {kind}", thousands(count))]);
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
mod tests {
    use super::*;
    use meshwright_core::explain::{AxisReport, DeviceReport};

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
        Report {
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
        }
    }

    #[test]
    fn collectives_stand_at_their_values_and_totals_at_the_end() {
        let report = report();
        let expected = "\
mesh  r=2 x c=2 = 4 devices

  line  value                      on each device    split by          collective               bytes/device
  forward
    19  x          [batch rows]    50x28   5.47 KiB  batch:r           -
    20  b1.h       [batch hidden]  50x512   100 KiB  batch:r hidden:c  all-reduce c                  102,400  because `rows` is summed
    20  b2.h       [batch hidden]  50x512   100 KiB  batch:r hidden:c  all-reduce c                        8  because `x` is summed
    21  xent       []              scalar       4 B  +sum(r)           -
  backward
    20  d(h.w)     [rows hidden]   28x512  56.0 KiB  hidden:c +sum(r)  all-reduce r, bucket 1         57,344  because `batch` is summed
    20  d(h.b)     [hidden]        512     2.00 KiB  hidden:c +sum(r)  all-reduce r, bucket 1          2,048  because `batch` is summed
    21  xent       []              scalar       4 B  +sum(r)           all-reduce r, bucket 1              4  because `batch` is summed
  update
    20  new h.w    [rows hidden]   28x512  56.0 KiB  hidden:c          all-gather c                   57,344  because `hidden` is stored whole

  +sum(r): partial sum, not yet all-reduced over r

overlap: the steps of the plan at which collectives start and are waited for
  start  wait  collective    of              compute in between
      7    12  all-reduce c  b2.h            4 steps, `b2.h` to `d(h.w)`
  and 3 collectives waited for where started

per step and device
  compute      324 MFLOP
  collectives    158 KiB  in 4 collectives
                 100 KiB  in 2 all-reduce over c
                58.0 KiB  in 1 all-reduce over r
                56.0 KiB  in 1 all-gather over c
  peak memory   4.00 MiB
                3.00 MiB  parameters
                     0 B  optimizer
                1.00 MiB  activations
";
        let squeeze = |s: &str| {
            s.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
        };
        let text = render(&report);
        assert_eq!(squeeze(&text), squeeze(expected));
        // The halves of a cell stand in columns too.
        let column = |what: &str| text.lines().find_map(|l| l.find(what).map(|i| i + what.len()));
        assert_eq!(column("5.47 KiB"), column("scalar       4 B"));
    }
}
