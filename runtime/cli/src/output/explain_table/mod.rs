//! The report of `explain` as a table: totals, then each value with its placement and each collective at the value that it
//! belongs to. What is shown of a large model is what moves; equal blocks are shown once.

mod pipeline;
mod rows;
mod summary;
mod view;

use crate::output::table::{Align, Screen, Table};
use crate::output::text::counted;
use anstyle::{AnsiColor, Style};
use meshwright_core::explain::{Report, ValueReport};
use meshwright_plan::Phase;
use meshwright_sorted::SortedSet;
use rows::{Widths, phase_rows};
pub(crate) use summary::alternative;
use summary::{alternatives, attention, in_bf16, overlap, recomputed, slow_products, totals};
pub(crate) use view::View;
use view::stem;

/// Paths that a glob could have meant, where none of the globs matches.
pub(crate) fn unmatched<'a>(report: &'a Report, view: &View) -> Option<SortedSet<&'a str>> {
    let any = report.values.iter().any(|v| view.has(&v.value));
    (!any && !view.globs.is_empty()).then(|| report.values.iter().map(|v| stem(&v.value)).collect())
}

const PHASES: [(Phase, &str); 3] =
    [(Phase::Forward, "forward"), (Phase::Backward, "backward"), (Phase::Update, "update")];

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
    let table =
        if shown.is_empty() { String::new() } else { t.render_on(screen) + &legend(&shown) + turns(report) };
    if view.only_collectives {
        return if table.is_empty() { "no collectives\n".into() } else { table };
    }
    let plain =
        |text: String| text.lines().map(|l| screen.line([(l, Style::new())]) + "\n").collect::<String>();
    let overlap = if view.all { format!("\n{}", plain(overlap(report))) } else { String::new() };
    let gap = if table.is_empty() { "" } else { "\n" };
    let hidden = plain(hidden(report, view));
    let attention = plain(
        attention(report)
            + &recomputed(report)
            + &alternatives(report)
            + &slow_products(report)
            + &in_bf16(report),
    );
    let stages = plain(pipeline::pipeline(report));
    format!(
        "mesh  {}\n\n{}{stages}{attention}{gap}{table}{overlap}{hidden}",
        mesh(report),
        plain(totals(report))
    )
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
    let moved: SortedSet<u32> = report.collectives.iter().flat_map(|c| &c.parts).map(|p| p.id).collect();
    let rest = report.values.iter().filter(|v| !moved.contains(&v.id)).count();
    let rest = counted(rest as u64, "value");
    format!(
        "\n{rest} without collectives not shown: `--all` shows every value, `--match GLOB` those of a path\n"
    )
}

/// What `1 ahead` means, where it occurs.
fn turns(report: &Report) -> &'static str {
    let staggered = report.collectives.iter().any(|c| c.ahead.is_some_and(|n| n != 0));
    let text = "\n  1 ahead: in flight while the iteration before its own is computed; 1 behind: while the one after it is\n";
    if staggered { text } else { "" }
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use meshwright_core::explain::{AxisReport, CollectiveReport, DeviceReport, PartReport};
    use meshwright_plan::{CollectiveTotal, PeakMemory};

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
            in_loop: None,
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
            times: 1,
            in_loop: None,
            phase,
            value: String::new(),
            line: 20,
            because: String::new(),
            parts,
            start: 3,
            wait: 3,
            ahead: None,
            meanwhile: 0,
            over: None,
            time: None,
        }
    }

    fn report() -> Report {
        let flying = CollectiveReport {
            start: 7,
            wait: 12,
            times: 4,
            ahead: None,
            meanwhile: 4,
            over: Some(("b2.h".into(), "d(h.w)".into())),
            ..of("all_reduce", "c", Phase::Forward, vec![part(3, "b2.h", 8, "`x` is summed")])
        };
        let total = |op: &str, axis: &str, count, bytes| CollectiveTotal {
            op: op.into(),
            axes: vec![axis.into()],
            count,
            bytes,
        };
        Report {
            attention: vec![],
            recompute: vec![],
            alternatives: vec![],
            slow_products: vec![],
            in_bf16: vec![],
            device: None,
            estimate: None,
            pipeline: None,
            loops: vec![],
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
                memory: PeakMemory {
                    peak_bytes: 4 << 20,
                    parameter_bytes: 3 << 20,
                    residual_bytes: 1 << 20,
                    ..PeakMemory::default()
                },
            },
            totals: vec![
                total("all_reduce", "c", 5, 102_432),
                total("all_reduce", "r", 1, 59_396),
                total("all_gather", "c", 1, 57_344),
            ],
        }
    }

    fn view(all: bool) -> View {
        View { all, ..View::default() }
    }

    const TOTALS: &str = "\
mesh  r=2 x c=2 = 4 devices

per step and device
  compute      324 MFLOP
  collectives    158 KiB  in 7 collectives
                 100 KiB  in 5 all-reduce over c
                58.0 KiB  in 1 all-reduce over r
                56.0 KiB  in 1 all-gather over c
  overlap           32 B  in 4 in flight while others compute
  peak memory   4.00 MiB
                3.00 MiB  parameters
                1.00 MiB  residuals
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
