//! What each rule of a layout does, above it: the values that it splits, the collectives that it causes, and their bytes.

use super::place::text;
use super::placements::{axes, words};
use super::values::{bytes, seconds, thousands};
use crate::project::{Analysis, PlacedModel, Projects};
use crate::snapshot::Snapshot;
use lsp_types::{CodeLens, CodeLensParams, Command};
use meshwright_core::explain::Report;
use meshwright_diag::Span;
use meshwright_sorted::SortedMap;
use meshwright_syntax::ast::LayoutKind;

/// Most names that one lens lists.
const LISTED: usize = 4;

/// Answers a request for lenses: of a layout only.
pub(crate) fn lenses(
    snapshot: &Snapshot,
    projects: &mut Projects,
    params: &CodeLensParams,
) -> Option<Vec<CodeLens>> {
    let (a, file) = text(snapshot, projects, &params.text_document.uri)?;
    if a.layout != Some(file) {
        return None;
    }
    let placed = a.placed()?;
    let report = placed.report.as_ref()?;
    let source = a.sources.text(file);
    let lines = a.files[file.0 as usize].lines();
    let mut out = Vec::new();
    for item in &a.rules.items {
        let title = match &item.kind {
            LayoutKind::Mesh(_) => step(&a, placed, report),
            LayoutKind::Rule(_) => a.rule(placed, report, item.span),
            _ => continue,
        };
        let range = lines.range(source, item.span.start as usize, item.span.end as usize);
        // It shows something, and does nothing.
        let command = Command { title, command: String::new(), arguments: None };
        out.push(CodeLens { range, command: Some(command), data: None });
    }
    Some(out)
}

/// What a step costs: at the line of the mesh.
fn step(a: &Analysis, placed: &PlacedModel, report: &Report) -> String {
    let count: u64 = report.totals.iter().map(|t| t.count).sum();
    let of = &report.per_device;
    let model = a.program.as_ref().map_or("", |p| p.model.as_str());
    let mut out = format!(
        "{model}: {} collectives, {} a step on each device",
        thousands(count),
        bytes(of.collective_bytes)
    );
    if let (Some(Ok(e)), Some(machine)) = (&placed.estimate, &a.pair.choice.machine) {
        let waits = e.breakdown.exposed_seconds();
        out.push_str(&format!(
            "; {} ± {:.0}% on {machine}, {} of it waiting for collectives",
            seconds(e.seconds),
            e.error * 100.0,
            seconds(waits)
        ));
    }
    out
}

impl Analysis {
    fn rule(&self, placed: &PlacedModel, report: &Report, at: Span) -> String {
        let values = placed.splits.get(&at).map(Vec::as_slice).unwrap_or_default();
        let mut parts = vec![match values {
            [] => "splits nothing".to_string(),
            // Editors show a lens as it is, without Markdown.
            [one] => format!("splits {one}"),
            all => format!("splits {} values: {}", all.len(), listed(all)),
        }];
        let line = self.sources.line(at) as u32;
        // Kinds of collectives, with how many run in a step, their bytes and their time.
        let mut kinds: SortedMap<(String, String), (u64, u64, f64)> = SortedMap::new();
        for c in &report.collectives {
            let own: u64 = c.parts.iter().filter(|p| p.rule == Some(line)).map(|p| c.in_step(p)).sum();
            if own == 0 {
                continue;
            }
            let all: u64 = c.parts.iter().map(|p| c.in_step(p)).sum();
            let time = placed.estimate.as_ref().and_then(|e| e.as_ref().ok()).map_or(0.0, |e| {
                let of = e.collectives.iter().filter(|x| x.step == c.start).map(|x| x.seconds).sum::<f64>();
                of * own as f64 / all.max(1) as f64
            });
            let kind = kinds.entry((words(&c.op), axes(&c.axes).replace('`', ""))).or_default();
            *kind = (kind.0 + c.times, kind.1.saturating_add(own), kind.2 + time);
        }
        if kinds.is_empty() {
            parts.push("causes no collective".into());
        }
        for ((op, over), (times, moved, time)) in kinds {
            let time = if time > 0.0 { format!(", {}", seconds(time)) } else { String::new() };
            let plural = if times == 1 { "" } else { "s" };
            parts.push(format!(
                "{} {op}{plural} over {over}, {} a step{time}",
                thousands(times),
                bytes(moved)
            ));
        }
        parts.join(" · ")
    }
}

fn listed(all: &[String]) -> String {
    let more = if all.len() > LISTED { ", …" } else { "" };
    format!("{}{more}", all[..all.len().min(LISTED)].join(", "))
}
