//! What `explain` says beside its rows: totals, when collectives run, where attention is, and what recomputation saves.

use crate::output::table::{Align, Table};
use crate::output::text::{bytes, counted, dashed, flops, short_seconds, thousands};
use meshwright_core::explain::{
    AlternativeReport, CollectiveReport, RecomputeReport, Report, SlowMatmulReport, attention_lines,
    in_bf16_lines,
};
use meshwright_plan::CollectiveTotal;

/// Where attention was recognized, and where a softmax was nearly one: a line for all of which the same is to be said.
pub(super) fn attention(report: &Report) -> String {
    attention_lines(report.attention.iter()).iter().map(|line| format!("attention  {line}\n")).collect()
}

/// At which steps of the Plan collectives that overlap with others start and are waited for, and what is computed in between;
/// empty without collectives.
pub(super) fn overlap(report: &Report) -> String {
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

pub(super) fn totals(report: &Report) -> String {
    let d = &report.per_device;
    let mut t = Table::new(&[Align::Left, Align::Right, Align::Left]);
    t.row(["compute".into(), flops(d.flops), String::new()]);
    let n = report.totals.iter().map(|t| t.count).sum();
    t.row(["collectives".into(), bytes(d.collective_bytes), format!("in {}", counted(n, "collective"))]);
    for k in &report.totals {
        let kind = format!("{} over {}", dashed(&k.op), k.axes.join(","));
        t.row([String::new(), bytes(k.bytes), format!("in {} {kind}", thousands(k.count))]);
    }
    let flying: Vec<&CollectiveReport> = report.collectives.iter().filter(|c| c.wait > c.start).collect();
    if !flying.is_empty() {
        let size = flying.iter().flat_map(|c| c.parts.iter().map(|p| c.in_step(p))).sum();
        let many = flying.iter().map(|c| c.times).sum();
        let what = format!("in {} in flight while others compute", thousands(many));
        t.row(["overlap".into(), bytes(size), what]);
    }
    t.row(["peak memory".into(), bytes(d.memory.peak_bytes), String::new()]);
    for (name, size) in d.memory.uses().into_iter().filter(|u| u.1 > 0) {
        t.row([String::new(), bytes(size), name.into()]);
    }
    if let Some(device) = &report.device {
        let of_burn = match device.burn_operations {
            0 => String::new(),
            n => format!("on {}, of which {} of Burn", device.device, counted(n, "operation")),
        };
        let what = if of_burn.is_empty() { format!("on {}", device.device) } else { of_burn };
        t.row(["kernels".into(), thousands(device.kernels), what]);
        t.row([String::new(), bytes(device.read_bytes), "read".into()]);
        t.row([String::new(), bytes(device.written_bytes), "written".into()]);
        t.row(["device memory".into(), bytes(device.memory.peak_bytes), "at its peak".into()]);
        for (name, size) in device.memory.uses().into_iter().filter(|u| u.1 > 0) {
            t.row([String::new(), bytes(size), name.into()]);
        }
        if device.arena_bytes > 0 {
            t.row([String::new(), bytes(device.arena_bytes), "in the arena".into()]);
        }
    }
    if let Some(e) = &report.estimate {
        let what = format!("+- {:.0} % on {}", 100.0 * e.error, e.machine);
        t.row(["estimate".into(), short_seconds(e.seconds), what]);
        t.row([String::new(), short_seconds(e.exposed_seconds), "waiting for collectives".into()]);
    }
    format!("per step and device\n{}", t.render())
}

/// What each path of `recompute` saves, and what is computed and moved for it a second time.
pub(super) fn recomputed(report: &Report) -> String {
    report.recompute.iter().map(one_path).collect()
}

/// What other lines would move and hold, beside what the layout does.
pub(super) fn alternatives(report: &Report) -> String {
    let (moved, peak) = (report.per_device.collective_bytes, report.per_device.memory.peak_bytes);
    let one = |a: &AlternativeReport| format!("instead    {}\n", alternative(a, moved, peak));
    report.alternatives.iter().map(one).collect()
}

/// Bytes that a line would move and hold, in place of those without it.
pub(crate) fn alternative(a: &AlternativeReport, moved: u64, peak: u64) -> String {
    let (then, held) = (bytes(a.collective_bytes), bytes(a.peak_bytes));
    let (now, peak) = (bytes(moved), bytes(peak));
    format!("`{}` moves {then} in place of {now}, and has a peak of {held} in place of {peak}", a.line)
}

/// Matmuls of factors in 8 bits that a GPU computes in `bf16`, by reason.
pub(super) fn in_bf16(report: &Report) -> String {
    in_bf16_lines(&report.in_bf16).iter().map(|line| format!("bf16       {line}\n")).collect()
}

/// Large products that no fast kernel of a GPU computes: how many for each reason, and the first of them.
pub(super) fn slow_products(report: &Report) -> String {
    let mut reasons: Vec<(&str, Vec<&SlowMatmulReport>)> = vec![];
    for product in &report.slow_products {
        match reasons.iter_mut().find(|(because, _)| *because == product.because) {
            Some((_, all)) => all.push(product),
            None => reasons.push((&product.because, vec![product])),
        }
    }
    let one = |(because, all): &(&str, Vec<&SlowMatmulReport>)| {
        let first = all.first()?;
        let [batches, rows, columns, terms] = first.extents.map(|n| thousands(n as u64));
        let times = if first.extents[0] > 1 { format!("{batches} times ") } else { String::new() };
        let (path, line) = (&first.path, first.line);
        let others = match all.len() - 1 {
            0 => String::new(),
            1 => ", and 1 other".into(),
            n => format!(", and {} others", thousands(n as u64)),
        };
        Some(format!(
            "slow       `{path}` (line {line}{others}), a product of {times}{rows} x {terms} and {terms} x {columns}: {because}\n"
        ))
    };
    reasons.iter().filter_map(one).collect()
}

fn one_path(r: &RecomputeReport) -> String {
    let saved = match (r.saved_bytes, u64::try_from(r.saved_bytes)) {
        (0, _) => "saves nothing".to_string(),
        (_, Ok(saved)) => format!("saves {} at the peak", bytes(saved)),
        (more, Err(_)) => format!("saves nothing, and takes {} more", bytes(more.unsigned_abs())),
    };
    let mut added = Vec::new();
    added.extend((r.flops > 0).then(|| flops(r.flops)));
    let ops: Vec<String> = r.ops.iter().map(|o| format!("{} {}", thousands(o.count), o.op)).collect();
    added.extend((!ops.is_empty()).then(|| ops.join(", ")));
    let kind = |t: &CollectiveTotal| {
        let size = bytes(t.bytes);
        format!("{size} in {} {} over {}", thousands(t.count), dashed(&t.op), t.axes.join(","))
    };
    added.extend(r.collectives.iter().map(kind));
    let added = if added.is_empty() { "adds nothing".into() } else { format!("adds {}", added.join("; ")) };
    let path = match r.path.split_once(", ") {
        Some((first, others)) => {
            format!("`{first}` and {} more", thousands(others.split(", ").count() as u64))
        }
        None => format!("`{}`", r.path),
    };
    format!("recompute  {path} {saved}, {added}\n")
}
