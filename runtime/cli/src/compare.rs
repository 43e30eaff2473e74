//! Several layouts, meshes and sizes of one model, side by side: what each costs, and which collectives appear or vanish.

use crate::output::repeats::{Repetition, RowKey, named, runs};
use crate::output::table::{Align, Screen, Table, markdown_table};
use crate::output::text::{bytes, dashed, flops, thousands};
use anstyle::{AnsiColor, Style};
use meshwright_core::explain::{DeviceReport, Report};
use meshwright_files::text::csv_text;
use meshwright_plan::{CollectiveTotal, Phase};
use meshwright_sorted::SortedMap;
use meshwright_train::BenchResult;
use serde::Serialize;

/// A model under one layout, on one mesh, with one choice of sizes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Variant {
    /// The layout as it was given; none where nothing is split.
    pub(crate) layout: Option<String>,
    /// The mesh, in the form of `--mesh`.
    pub(crate) mesh: String,
    /// The sizes in which variants differ.
    pub(crate) dims: SortedMap<String, usize>,
    /// Devices of the mesh.
    pub(crate) devices: usize,
    /// Number of collectives of a step.
    pub(crate) collectives: u64,
    /// Totals of a step on one device.
    pub(crate) per_device: DeviceReport,
    /// Collectives by kind and axes.
    pub(crate) totals: Vec<CollectiveTotal>,
    /// Whether the memory of a device is enough, where that was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<VariantFit>,
    /// Times of steps, where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) measured: Option<BenchResult>,
    /// Milliseconds of a step on the machine that was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) estimated_ms: Option<f64>,
    /// Relative error of these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) estimate_error: Option<f64>,
    /// Estimated over measured time, where both were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) estimate_ratio: Option<f64>,
    /// Each value's collectives.
    #[serde(skip)]
    moved: SortedMap<MovedValue, MovedBytes>,
}

/// The memory of a device, and what a variant needs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct VariantFit {
    /// Bytes that a device has.
    pub(crate) bytes: u64,
    /// Whether the variant needs no more.
    pub(crate) fits: bool,
    /// Lines of the layout with which one that needs more fits; none if none of the tried lines does.
    pub(crate) fits_with: Vec<String>,
    /// Bytes that it needs with these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peak_with: Option<u64>,
}

/// A value with the collective that moves it: in which part of the step that is depends on the bucket that it is in.
type MovedValue = (String, String, Vec<String>);

#[derive(Clone, Debug, PartialEq)]
struct MovedBytes {
    phase: Phase,
    bytes: u64,
    because: String,
    order: usize,
}

/// How a collective differs between two variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Change {
    /// The first variant has none.
    Appears,
    /// The second has none.
    Vanishes,
    /// It has other bytes.
    Resized,
}

/// What differs at one value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Difference {
    pub(crate) change: Change,
    pub(crate) phase: Phase,
    pub(crate) value: String,
    pub(crate) op: String,
    pub(crate) axes: Vec<String>,
    pub(crate) bytes_before: u64,
    pub(crate) bytes_after: u64,
    pub(crate) because: String,
}

/// What differs between two variants, by their positions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Differences {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) changes: Vec<Difference>,
}

impl Variant {
    /// Of a report.
    pub(crate) fn of(
        layout: Option<String>,
        mesh: String,
        dims: &[(String, usize)],
        report: &Report,
    ) -> Self {
        let mut moved: SortedMap<MovedValue, MovedBytes> = SortedMap::new();
        // In the order of the rows of `explain`: that of the Plan follows from where buckets are full.
        let rows: SortedMap<u32, usize> = report.values.iter().enumerate().map(|(i, v)| (v.id, i)).collect();
        for (c, p) in report.collectives.iter().flat_map(|c| c.parts.iter().map(move |p| (c, p))) {
            let order = rows.get(&p.id).copied().unwrap_or(0);
            let place = (p.value.clone(), c.op.clone(), c.axes.clone());
            let first = || MovedBytes { phase: c.phase, bytes: 0, because: p.because.clone(), order };
            moved.entry(place).or_insert_with(first).bytes += c.in_step(p);
        }
        Variant {
            layout,
            mesh,
            dims: dims.iter().cloned().collect(),
            devices: report.devices,
            collectives: report.totals.iter().map(|t| t.count).sum(),
            per_device: report.per_device,
            totals: report.totals.clone(),
            memory: None,
            measured: None,
            estimated_ms: None,
            estimate_error: None,
            estimate_ratio: None,
            moved,
        }
    }

    /// The same with the estimated time of a step and its error against measured ones.
    pub(crate) fn add_estimate(&mut self, seconds: f64, error: f64) {
        let ms = 1e3 * seconds;
        (self.estimated_ms, self.estimate_error) = (Some(ms), Some(error));
        self.estimate_ratio = self.measured.as_ref().map(|m| ms / m.median_ms);
    }

    /// What tells it from the others.
    fn name(&self) -> String {
        let dims: String = self.dims.iter().map(|(d, n)| format!(", {d}={n}")).collect();
        let mesh = if self.mesh.is_empty() { "one device" } else { &self.mesh };
        format!("{} on {mesh}{dims}", self.layout.as_deref().unwrap_or("no layout"))
    }
}

/// A whole comparison.
#[derive(Debug, Serialize)]
pub(crate) struct Comparison<'a> {
    variants: &'a [Variant],
    differences: Vec<Differences>,
}

impl<'a> Comparison<'a> {
    /// Of the variants, the first against each other.
    pub(crate) fn of(variants: &'a [Variant]) -> Self {
        Comparison { variants, differences: differences(variants) }
    }
}

/// What each variant has that the first lacks, and the other way round.
pub(crate) fn differences(variants: &[Variant]) -> Vec<Differences> {
    let Some((first, others)) = variants.split_first() else { return Vec::new() };
    let to = |(i, v): (usize, &Variant)| Differences { from: 0, to: i + 1, changes: changes(first, v) };
    others.iter().enumerate().map(to).collect()
}

/// First what vanishes, then what has another size, then what appears; each in the order of the step.
fn changes(before: &Variant, after: &Variant) -> Vec<Difference> {
    let mut out: Vec<(Phase, usize, Difference)> = Vec::new();
    let mut add = |change, place: &MovedValue, before: u64, after: u64, t: &MovedBytes| {
        let (phase, (value, op, axes)) = (t.phase, place.clone());
        let (bytes_before, bytes_after, because) = (before, after, t.because.clone());
        out.push((
            phase,
            t.order,
            Difference { change, phase, value, op, axes, bytes_before, bytes_after, because },
        ));
    };
    for (place, t) in &before.moved {
        match after.moved.get(place) {
            None => add(Change::Vanishes, place, t.bytes, 0, t),
            Some(now) if now.bytes != t.bytes => add(Change::Resized, place, t.bytes, now.bytes, now),
            Some(_) => {}
        }
    }
    for (place, t) in after.moved.iter().filter(|(place, _)| !before.moved.contains_key(*place)) {
        add(Change::Appears, place, 0, t.bytes, t);
    }
    let rank = |c: Change| [Change::Vanishes, Change::Resized, Change::Appears].iter().position(|x| *x == c);
    out.sort_by_key(|(phase, order, d)| (rank(d.change), *phase, *order));
    out.into_iter().map(|d| d.2).collect()
}

/// A table as cells of text.
struct Cells {
    titles: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    /// How many of the first columns are words, and how many of the last.
    words: usize,
    notes: usize,
}

/// The uses of memory as exact tables and others name them, in the order of `PeakMemory::uses`.
const USES: [(&str, &str); 7] = [
    ("parameter_bytes", "parameters"),
    ("optimizer_state_bytes", "optimizer"),
    ("working_copy_bytes", "copies"),
    ("gradient_bytes", "gradients"),
    ("residual_bytes", "residuals"),
    ("communication_bytes", "communication"),
    ("workspace_bytes", "workspace"),
];

/// The variants; with `exact` numbers as they are, without units.
fn overview(variants: &[Variant], exact: bool) -> Cells {
    let size = |n: u64| if exact { n.to_string() } else { bytes(n) };
    let decimals = |x: f64, few: usize| if exact { x.to_string() } else { format!("{x:.few$}") };
    let (dims, measured) =
        (variants.iter().any(|v| !v.dims.is_empty()), variants.iter().any(|v| v.measured.is_some()));
    let mut titles = vec!["layout", "mesh"];
    titles.extend(dims.then_some("dims"));
    let words = titles.len();
    titles.extend(match exact {
        true => ["devices", "flops", "collectives", "collective_bytes", "peak_bytes"],
        false => ["devices", "compute", "collectives", "moved", "peak"],
    });
    let shown = |k: &usize| exact || variants.iter().any(|v| v.per_device.memory.uses()[*k].1 > 0);
    let uses: Vec<usize> = (0..USES.len()).filter(shown).collect();
    titles.extend(uses.iter().map(|k| if exact { USES[*k].0 } else { USES[*k].1 }));
    titles.extend(measured.then_some(if exact { "median_ms" } else { "ms/step" }));
    let estimated = variants.iter().any(|v| v.estimated_ms.is_some());
    titles.extend(match (estimated, exact) {
        (false, _) => &[][..],
        (true, true) => &["estimated_ms", "estimate_error"],
        (true, false) => &["estimated ms", "+-"],
    });
    let both = measured && estimated;
    titles.extend(both.then_some(if exact { "estimate_ratio" } else { "ratio" }));
    let memory = variants.iter().any(|v| v.memory.is_some());
    titles.extend(if memory { &["fits", "fits_with"][..] } else { &[] });
    let row = |v: &Variant| {
        let d = &v.per_device;
        let mut row = vec![v.layout.clone().unwrap_or_else(|| "-".into()), v.mesh.clone()];
        if dims {
            row.push(v.dims.iter().map(|(d, n)| format!("{d}={n}")).collect::<Vec<_>>().join(" "));
        }
        row.push(v.devices.to_string());
        row.push(if exact { d.flops.to_string() } else { flops(d.flops) });
        row.push(if exact { v.collectives.to_string() } else { thousands(v.collectives) });
        row.extend([d.collective_bytes, d.memory.peak_bytes].map(size));
        row.extend(uses.iter().map(|k| size(d.memory.uses()[*k].1)));
        if measured {
            row.push(v.measured.as_ref().map_or("-".into(), |m| decimals(m.median_ms, 2)));
        }
        if estimated {
            row.push(v.estimated_ms.map_or("-".into(), |ms| decimals(ms, 3)));
            let error = |e: f64| if exact { e.to_string() } else { format!("{:.0} %", 100.0 * e) };
            row.push(v.estimate_error.map_or("-".into(), error));
        }
        if both {
            row.push(v.estimate_ratio.map_or("-".into(), |r| decimals(r, 2)));
        }
        if let Some(m) = &v.memory {
            let with = m.fits_with.join("; ");
            row.push(if m.fits { "yes" } else { "no" }.into());
            row.push(if with.is_empty() && !exact { "-".into() } else { with });
        }
        row
    };
    let notes = if memory { 2 } else { 0 };
    Cells { titles, rows: variants.iter().map(row).collect(), words, notes }
}

const PHASES: [(Phase, &str); 3] =
    [(Phase::Forward, "forward"), (Phase::Backward, "backward"), (Phase::Update, "update")];

/// A difference as cells: sign, part of the step, value, collective, bytes, reason.
fn cells(d: &Difference) -> Vec<String> {
    let sign = match d.change {
        Change::Appears => "+",
        Change::Vanishes => "-",
        Change::Resized => "~",
    };
    let phase = PHASES.iter().find(|p| p.0 == d.phase).map_or("", |p| p.1);
    let size = match d.change {
        Change::Appears => thousands(d.bytes_after),
        Change::Vanishes => thousands(d.bytes_before),
        Change::Resized => {
            format!("{} to {}", thousands(d.bytes_before), thousands(d.bytes_after))
        }
    };
    let what = format!("{} {}", dashed(&d.op), d.axes.join(","));
    let because = if d.because.is_empty() { String::new() } else { format!("because {}", d.because) };
    vec![sign.into(), phase.into(), d.value.clone(), what, size, because]
}

/// How many of each kind there are.
fn summary(changes: &[Difference]) -> String {
    let n = |c: Change| changes.iter().filter(|d| d.change == c).count();
    let verb = |n: usize, one: &str, many: &str| format!("{n} {}", if n == 1 { one } else { many });
    format!(
        "of the values that a collective moves, {}, {}, {}",
        verb(n(Change::Appears), "appears", "appear"),
        verb(n(Change::Vanishes), "vanishes", "vanish"),
        verb(n(Change::Resized), "has another size", "have another size"),
    )
}

/// Which tables are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) totals: bool,
    pub(crate) diff: bool,
}

/// For people.
pub(crate) fn text(variants: &[Variant], shown: Shown, screen: &Screen) -> String {
    let mut parts = Vec::new();
    if shown.totals {
        let cells = overview(variants, false);
        let n = cells.titles.len();
        let align: Vec<Align> = (0..cells.titles.len())
            .map(|i| if i < cells.words || i + cells.notes >= n { Align::Left } else { Align::Right })
            .collect();
        // On a narrow screen what makes up the peak goes first, then the number of devices, which the mesh tells.
        let parts_of_peak = cells.words + 5;
        let mut t = Table::new(&align).style(0, Style::new().bold()).dispensable(
            &[parts_of_peak, parts_of_peak + 1, parts_of_peak + 2, cells.words].map(|i| i.min(n - 1)),
        );
        t.titles(cells.titles);
        cells.rows.into_iter().for_each(|row| t.row(row));
        parts.push(format!("per step and device\n{}", t.render_on(screen)));
    }
    if shown.diff {
        for d in differences(variants) {
            let title = format!("{} against {}", variants[d.to].name(), variants[d.from].name());
            let title = screen.line([(title.as_str(), Style::new().bold())]);
            let summary = screen.line([(format!("  {}", summary(&d.changes)).as_str(), Style::new())]);
            parts.push(format!("{title}\n{summary}\n{}", changed(&d.changes).render_on(screen)));
        }
    }
    parts.join("\n")
}

/// Differences as a table, those of equal blocks once.
fn changed(changes: &[Difference]) -> Table {
    let left = Align::Left;
    let mut t = Table::new(&[left, left, left, left, Align::Right, left])
        .style(2, Style::new().bold())
        .style(3, AnsiColor::Cyan.on_default())
        .style(5, Style::new().dimmed());
    let rows: Vec<Vec<String>> = changes.iter().map(cells).collect();
    let key = |r: &Vec<String>| RowKey::new(&r[2], &[&r[..2], &r[3..5]].concat(), &r[5]);
    let keys: Vec<RowKey> = rows.iter().map(key).collect();
    for Repetition { start, period, times } in runs(&keys) {
        let block = &rows[start..start + period];
        if times > 1 {
            let last = &rows[start + (times - 1) * period..];
            let names = block.iter().zip(last).filter_map(|(a, b)| named(&a[2], &b[2]));
            let mut distinct: Vec<String> = Vec::new();
            names.for_each(|n| {
                if !distinct.contains(&n) {
                    distinct.push(n);
                }
            });
            t.text(format!("     {}, each", distinct.join(", ")), AnsiColor::Yellow.on_default());
        }
        for row in block {
            let mut row = row.clone();
            if times > 1 {
                row[2] = format!("  {}", row[2]);
            }
            t.row(row);
        }
    }
    t
}

/// Tables of Markdown.
pub(crate) fn markdown(variants: &[Variant], shown: Shown) -> String {
    let mut out = Vec::new();
    if shown.totals {
        out.push(table(&overview(variants, false)));
    }
    if shown.diff {
        for d in differences(variants) {
            let (to, from) = (variants[d.to].name(), variants[d.from].name());
            let titles = vec!["", "phase", "value", "collective", "bytes/device", "reason"];
            let rows = d.changes.iter().map(cells).collect();
            let title = format!("**{to}** against **{from}**: {}\n\n", summary(&d.changes));
            out.push(title + &table(&Cells { titles, rows, words: 4, notes: 0 }));
        }
    }
    out.join("\n")
}

fn table(cells: &Cells) -> String {
    markdown_table(&cells.titles, &cells.rows, cells.words)
}

/// One table of comma-separated values, with numbers as they are: the totals, or else the differences.
pub(crate) fn csv(variants: &[Variant], shown: Shown) -> String {
    let quoted = |cell: &String| match csv_text(cell) {
        cell if cell.contains([',', '"', '\n', '\r']) => format!("\"{}\"", cell.replace('"', "\"\"")),
        cell => cell.into_owned(),
    };
    let line = |row: &[String]| row.iter().map(quoted).collect::<Vec<_>>().join(",") + "\n";
    if shown.totals {
        let cells = overview(variants, true);
        let titles: Vec<String> = cells.titles.iter().map(|t| t.to_string()).collect();
        return line(&titles) + &cells.rows.iter().map(|row| line(row)).collect::<String>();
    }
    let mut out =
        String::from("variant,against,change,phase,value,op,axes,bytes_before,bytes_after,because\n");
    for d in differences(variants) {
        for c in &d.changes {
            let change = format!("{:?}", c.change).to_lowercase();
            let phase = PHASES.iter().find(|p| p.0 == c.phase).map_or("", |p| p.1).to_string();
            let names = [variants[d.to].name(), variants[d.from].name(), change, phase];
            let rest = [c.value.clone(), c.op.clone(), c.axes.join(" ")];
            let sizes = [c.bytes_before.to_string(), c.bytes_after.to_string(), c.because.clone()];
            out += &line(&[&names[..], &rest[..], &sizes[..]].concat());
        }
    }
    out
}
