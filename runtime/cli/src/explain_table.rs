//! The report of `explain` as a table: each value with its placement, each collective at the value it belongs to.

use crate::table::{Align, Table};
use crate::text::{bytes, counted, dashed, flops, thousands};
use meshwright_core::explain::{CollectiveReport, PartReport, Report, ValueReport};
use meshwright_plan::Phase;

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
    format!("mesh  {mesh}\n\n{}{}\n{}{}", t.render(), legend(report), flights(report), totals(report))
}

/// What `+sum(r)` means, where it occurs.
fn legend(report: &Report) -> String {
    let partial = report.values.iter().find_map(|v| {
        let (_, rest) = v.split_by.split_once('+')?;
        let (monoid, axes) = rest.split_once(')')?.0.split_once('(')?;
        Some((monoid, axes))
    });
    partial.map_or(String::new(), |(monoid, axes)| {
        format!("\n  +{monoid}({axes}): each device holds its part of a {monoid} over {axes} that is still to be taken\n")
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
    let values: Vec<&ValueReport> = report.values.iter().filter(|v| v.phase == phase).collect();
    if values.is_empty() && moved.is_empty() {
        return;
    }
    t.text(format!("  {title}"));
    let mut rows: Vec<Vec<Moved>> = values.iter().map(|_| Vec::new()).collect();
    let mut unnamed = Vec::new();
    for m in moved {
        match row_of(&m, &values) {
            Some(i) => rows[i].push(m),
            None => unnamed.push(m),
        }
    }
    for (v, mine) in values.iter().zip(rows) {
        let line = if v.line == 0 { String::new() } else { v.line.to_string() };
        let held = format!("{:<2$}  {:>3$}", shape(v), bytes(v.bytes as u64), widths.shape, widths.bytes);
        let cells = vec![line, v.value.clone(), format!("[{}]", v.dims.join(" ")), held, v.split_by.clone()];
        let mut mine = mine.iter();
        let first = mine.next().map_or_else(|| vec!["-".into()], collective);
        t.row([cells, first].concat());
        for m in mine {
            t.row([vec![String::new(); 5], collective(m)].concat());
        }
    }
    // Collectives inside of an expression, whose value has no name of its own.
    for m in unnamed {
        let line = if m.part.line == 0 { String::new() } else { m.part.line.to_string() };
        let name = if m.part.value.is_empty() { "(unnamed)".into() } else { m.part.value.clone() };
        let blank = String::new();
        t.row([vec![line, name, blank.clone(), blank.clone(), blank], collective(&m)].concat());
    }
}

/// The value that a collective belongs to: of its name and line, or else the last of its name. What is gathered at the end of
/// an update is the new value.
fn row_of(m: &Moved, values: &[&ValueReport]) -> Option<usize> {
    let updated = m.part.value.strip_prefix("update of ").map(|p| format!("new {p}"));
    let named = |v: &&ValueReport| v.value == m.part.value || updated.as_ref() == Some(&v.value);
    let exact = values.iter().rposition(|v| named(v) && v.line == m.part.line);
    exact.or_else(|| values.iter().rposition(named))
}

fn collective(m: &Moved) -> Vec<String> {
    let bucket = m.bucket.map(|n| format!(", bucket {n}")).unwrap_or_default();
    let what = format!("{} {}{bucket}", dashed(&m.whole.op), m.whole.axes.join(","));
    let because =
        if m.part.because.is_empty() { String::new() } else { format!("because {}", m.part.because) };
    vec![what, thousands(m.part.bytes as u64), because]
}

/// Where each collective starts and is joined, and what is computed meanwhile; empty without collectives.
fn flights(report: &Report) -> String {
    if report.collectives.is_empty() {
        return String::new();
    }
    let left = Align::Left;
    let mut t = Table::new(&[Align::Right, Align::Right, left, left, left]);
    t.row(["start", "join", "collective", "of", "meanwhile"]);
    let mut buckets = 0;
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
            None if c.start == c.join => "-".into(),
            None => "other collectives".into(),
        };
        t.row([c.start.to_string(), c.join.to_string(), what, of, meanwhile]);
    }
    format!("steps of the plan at which collectives start and are joined\n{}\n", t.render())
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
        phase: Phase,
        line: u32,
        value: &str,
        dims: &[&str],
        shape: &[usize],
        split_by: &str,
    ) -> ValueReport {
        ValueReport {
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

    fn part(value: &str, bytes: usize, because: &str) -> PartReport {
        PartReport { value: value.into(), line: 20, bytes, because: because.into() }
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
            join: 3,
            meanwhile: 0,
            over: None,
        }
    }

    #[test]
    fn collectives_stand_at_their_values_and_totals_at_the_end() {
        let flying = CollectiveReport {
            start: 7,
            join: 12,
            meanwhile: 4,
            over: Some(("h".into(), "dw(h.w)".into())),
            ..of("all_reduce", "c", Phase::Forward, vec![part("", 8, "`x` is summed")])
        };
        let report = Report {
            mesh: vec![AxisReport { axis: "r".into(), size: 2 }, AxisReport { axis: "c".into(), size: 2 }],
            devices: 4,
            values: vec![
                value(Phase::Forward, 19, "x", &["batch", "rows"], &[50, 28], "batch:r"),
                value(Phase::Forward, 20, "h", &["batch", "hidden"], &[50, 512], "batch:r hidden:c"),
                value(Phase::Forward, 22, "h", &["batch", "hidden"], &[50, 512], "batch:r hidden:c"),
                value(Phase::Forward, 21, "xent", &[], &[], "-"),
                value(Phase::Backward, 20, "dw(h.w)", &["rows", "hidden"], &[28, 512], "hidden:c +sum(r)"),
                value(Phase::Update, 20, "new h.w", &["rows", "hidden"], &[28, 512], "hidden:c"),
            ],
            collectives: vec![
                of("all_reduce", "c", Phase::Forward, vec![part("h", 102_400, "`rows` is summed")]),
                flying,
                of(
                    "all_reduce",
                    "r",
                    Phase::Backward,
                    vec![
                        part("dw(h.w)", 57_344, "`batch` is summed"),
                        part("dw(h.b)", 2048, "`batch` is summed"),
                    ],
                ),
                of(
                    "all_gather",
                    "c",
                    Phase::Update,
                    vec![part("update of h.w", 57_344, "`hidden` is stored whole")],
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
        };
        let expected = "\
mesh  r=2 x c=2 = 4 devices

  line  value                      on each device    split by          collective               bytes/device
  forward
    19  x          [batch rows]    50x28   5.47 KiB  batch:r           -
    20  h          [batch hidden]  50x512   100 KiB  batch:r hidden:c  all-reduce c                  102,400  because `rows` is summed
    22  h          [batch hidden]  50x512   100 KiB  batch:r hidden:c  -
    21  xent       []              scalar       4 B  -                 -
    20  (unnamed)                                                      all-reduce c                        8  because `x` is summed
  backward
    20  dw(h.w)    [rows hidden]   28x512  56.0 KiB  hidden:c +sum(r)  all-reduce r, bucket 1         57,344  because `batch` is summed
    20  dw(h.b)                                                        all-reduce r, bucket 1          2,048  because `batch` is summed
  update
    20  new h.w    [rows hidden]   28x512  56.0 KiB  hidden:c          all-gather c                   57,344  because `hidden` is stored whole

  +sum(r): each device holds its part of a sum over r that is still to be taken

steps of the plan at which collectives start and are joined
  start  join  collective    of              meanwhile
      3     3  all-reduce c  h               -
      7    12  all-reduce c  (unnamed)       4 steps, `h` to `dw(h.w)`
      3     3  all-reduce r  bucket 1        -
      3     3  all-gather c  update of h.w   -

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
