//! The answers in words.

use super::{Caused, Fact, Link, Why};
use meshwright_diag::Location;
use meshwright_plan::Phase;
use std::fmt::Write;

/// All answers, a blank line between each two.
pub fn text(answers: &[Why]) -> String {
    answers.iter().map(one).collect::<Vec<_>>().join("\n")
}

fn one(w: &Why) -> String {
    let mut out = match w.axes.as_slice() {
        [] => format!("{} of {} is replicated: every device has all {}\n", w.dim, w.value, thousands(w.size)),
        axes => format!(
            "{} of {} is split over {}: at most {} of {} on a device\n",
            w.dim,
            w.value,
            axes.join(", "),
            thousands(w.shard),
            thousands(w.size),
        ),
    };
    let placement = if w.split_by == "-" { "replicated" } else { &w.split_by };
    let _ = writeln!(out, "placement: {placement}\n\nwhy");
    for link in &w.chain {
        out.push_str(&chain_link(link));
    }
    out.push_str(&follows(&w.collectives));
    out
}

fn chain_link(link: &Link) -> String {
    let place = link.place.as_ref().map_or(String::new(), |p| format!("  ({})", at(p)));
    let mut out = format!("  {} of {}, by `{}`{place}\n", link.dim, link.value, link.op);
    for f in &link.facts {
        let _ = writeln!(out, "    {}{}", f.text, rule_place(f));
    }
    if link.facts.is_empty() {
        out.push_str("    nothing was decided about it\n");
    }
    out
}

fn rule_place(f: &Fact) -> String {
    let place = f.rule.as_ref().and_then(|r| r.place.as_ref());
    place.map_or(String::new(), |p| format!("  ({})", at(p)))
}

fn at(p: &Location) -> String {
    format!("{}:{}", p.file, p.line)
}

fn follows(all: &[Caused]) -> String {
    if all.is_empty() {
        return "\nno collective follows from it directly\n".into();
    }
    let mut out = format!(
        "\n{} from it\n",
        match all.len() {
            1 => "1 collective follows".to_string(),
            n => format!("{n} collectives follow"),
        }
    );
    for c in all {
        let because = if c.because.is_empty() { String::new() } else { format!(" because {}", c.because) };
        let place = c.place.as_ref().map_or(String::new(), |p| format!("  ({})", at(p)));
        let _ = writeln!(
            out,
            "  {} over {} of {}, {} B, {}{because}{place}",
            c.op.replace('_', "-"),
            c.axes.join(","),
            c.value,
            thousands(c.bytes),
            phase(c.phase),
        );
    }
    out
}

/// `814,090`.
fn thousands(n: usize) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

fn phase(p: Phase) -> &'static str {
    match p {
        Phase::Forward => "forward",
        Phase::Backward => "backward",
        Phase::Update => "update",
    }
}
