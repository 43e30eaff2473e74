//! Where the layout puts a value, and what it communicates for it.

use super::values::{bytes, seconds, thousands};
use crate::project::{Analysis, PlacedModel};
use meshwright_core::explain::{CollectiveReport, PartReport, Report};
use meshwright_plan::Phase;
use meshwright_sorted::SortedSet;

/// Most rows and most collectives of one value that are shown.
const SHOWN: usize = 12;

impl Analysis {
    /// The value of a path under the layout: its shard, its placement, and every collective that it causes. `None` where nothing
    /// is placed, or the value is not kept under its path.
    pub(super) fn placement(&self, path: &str) -> Option<String> {
        let layout = self.pair.layout.as_ref()?;
        let placed = self.placed()?;
        let report = placed.report.as_ref()?;
        let rows: Vec<_> = report.values.iter().filter(|v| bears(&v.value, path)).collect();
        let collectives = of_path(report, path);
        if rows.is_empty() && collectives.is_empty() {
            return None;
        }
        let mesh: Vec<String> = report.mesh.iter().map(|a| format!("{} = {}", a.axis, a.size)).collect();
        let mut out = format!("**`{path}`** under `{}` on the mesh {}\n", layout.name(), mesh.join(", "));
        if !rows.is_empty() {
            out.push_str("\n| on each device | shard | | split by |\n|---|---|---|---|\n");
            for v in rows.iter().take(SHOWN) {
                let shape: Vec<String> = v.shape.iter().map(|n| thousands(*n as u64)).collect();
                let shape = if shape.is_empty() { "scalar".to_string() } else { shape.join(" x ") };
                let split = if v.split_by == "-" { "replicated".into() } else { format!("`{}`", v.split_by) };
                out.push_str(&format!(
                    "| `{}` | {shape} {} | {} | {split} |\n",
                    v.value,
                    v.dtype,
                    bytes(v.bytes as u64)
                ));
            }
        }
        let own: SortedSet<(String, String)> =
            collectives.iter().map(|(c, p)| (c.op.clone(), p.value.clone())).collect();
        let mut lines: Vec<String> = collectives.into_iter().map(|(c, p)| self.moved(c, p)).collect();
        lines.extend(self.elsewhere(placed, path, &own));
        if lines.is_empty() {
            out.push_str("\nIt causes no collective.\n");
        }
        let more = lines.len().saturating_sub(SHOWN);
        lines.iter().take(SHOWN).for_each(|l| out.push_str(&format!("\n- {l}")));
        if more > 0 {
            out.push_str(&format!("\n- and {more} more: `meshwright explain` lists them"));
        }
        Some(out)
    }

    /// A collective of the value itself.
    fn moved(&self, c: &CollectiveReport, part: &PartReport) -> String {
        let times =
            if c.times > 1 { format!(", {} times a step", thousands(c.times)) } else { String::new() };
        let time = c.time.map_or(String::new(), |t| format!(", {}", seconds(t.seconds)));
        let rule = part.rule.map_or(String::new(), |line| format!(" (layout line {line})"));
        format!(
            "{} of `{}` over {} in the {}: {} bytes{times}{time}, because {}{rule}",
            words(&c.op),
            part.value,
            axes(&c.axes),
            phase(c.phase),
            thousands(part.bytes as u64),
            part.because,
        )
    }

    /// Collectives of other values that the split of this one brings about.
    fn elsewhere(&self, placed: &PlacedModel, path: &str, own: &SortedSet<(String, String)>) -> Vec<String> {
        let mut out = Vec::new();
        for why in placed.why(path) {
            for c in &why.collectives {
                // There it has its dims behind it.
                let value = c.value.rsplit_once('[').map_or(c.value.as_str(), |v| v.0);
                if own.contains(&(c.op.clone(), value.to_string())) {
                    continue;
                }
                let line = format!(
                    "{} of `{}` over {} in the {}: {} bytes, because {}: this value is split along `{}`",
                    words(&c.op),
                    value,
                    axes(&c.axes),
                    phase(c.phase),
                    thousands(c.bytes as u64),
                    c.because,
                    why.dim,
                );
                if !out.contains(&line) {
                    out.push(line);
                }
            }
        }
        out
    }
}

/// Whether a row is about the value of a path: itself, its gradient, its states and its next value.
fn bears(row: &str, path: &str) -> bool {
    let inner = row.strip_prefix("new ").unwrap_or(row);
    let inner = inner.strip_prefix("d(").and_then(|r| r.strip_suffix(')')).unwrap_or(inner);
    inner == path || inner.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'))
}

fn of_path<'r>(report: &'r Report, path: &str) -> Vec<(&'r CollectiveReport, &'r PartReport)> {
    let parts = report.collectives.iter().flat_map(|c| c.parts.iter().map(move |p| (c, p)));
    parts.filter(|(_, p)| bears(&p.value, path)).collect()
}

/// `all_reduce` as people write it.
pub(super) fn words(op: &str) -> String {
    op.replace('_', "-")
}

/// `` `a`, `b` ``.
pub(super) fn axes(names: &[String]) -> String {
    names.iter().map(|a| format!("`{a}`")).collect::<Vec<_>>().join(", ")
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Forward => "forward pass",
        Phase::Backward => "backward pass",
        Phase::Update => "update",
    }
}
