//! What `explain` says of a pipeline: a row for each stage, how long devices wait, and what would share out the work better.

use crate::output::table::{Align, Table};
use crate::output::text::{bytes, counted, flops, thousands};
use meshwright_core::explain::Report;

/// The stages of a pipeline; empty if there is none.
pub(super) fn pipeline(report: &Report) -> String {
    let Some(p) = &report.pipeline else { return String::new() };
    // Of a kind of device that is named.
    let arenas = p.stages.iter().any(|s| s.arena_bytes.is_some_and(|arena| arena > 0));
    let mut t = Table::new(&vec![Align::Right; if arenas { 10 } else { 9 }]);
    let arena: &[&str] = if arenas { &["arena"] } else { &[] };
    let titles = ["stage", "layers", "parameters", "optimizer", "in flight", "peak"];
    t.titles([&titles[..], arena, &["compute", "messages", "bytes sent"]].concat());
    for s in &p.stages {
        let first = [
            s.stage.to_string(),
            s.layers.to_string(),
            bytes(s.parameter_bytes),
            bytes(s.optimizer_state_bytes),
            s.in_flight.to_string(),
            bytes(s.peak_bytes),
        ];
        let last = [flops(s.flops), thousands(s.sends as u64), bytes(s.send_bytes)];
        let arena = s.arena_bytes.filter(|_| arenas).map(bytes);
        t.row(first.into_iter().chain(arena).chain(last));
    }
    let chunks = if p.chunks > 1 { format!(" in {} chunks each", p.chunks) } else { String::new() };
    let percent = |of: f64| format!("{:.1} %", 100.0 * of);
    let longest = p.stages.iter().max_by_key(|s| s.flops).map_or(0, |s| s.stage);
    let better = p
        .balanced
        .as_ref()
        .map_or_else(String::new, |line| format!("; `{line}` would share the work better"));
    format!(
        "pipeline over {}: {}{chunks}, {}, {}\n{}  bubble {} of the time in which a device computes, {} if all stages took the same time\n  stage {longest} has most to compute{better}\n\n",
        p.axis,
        counted(p.stages.len() as u64, "stage"),
        if p.microbatches == 1 { "1 microbatch".into() } else { format!("{} microbatches", p.microbatches) },
        p.schedule,
        t.render(),
        percent(p.bubble),
        percent(p.bubble_equal_stages),
    )
}
