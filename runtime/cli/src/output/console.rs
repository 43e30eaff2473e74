//! Standard output and standard error: who is spoken to, in which format, in color or not.

use crate::args::{ColorChoice, Format};
use crate::output::pager;
use crate::output::table::Screen;
use crate::panics::please_report;
use crate::stop::{self, Stop};
use meshwright_diag::{Diagnostic, MAX_REPORTED, Severity, Sources, codes, render};
use meshwright_exec::{ExecError, Processes};
use meshwright_train::{Failure, described};
use serde::Serialize;
use serde_json::json;
use std::borrow::Cow;
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

/// How long a process waits before it ends after a failure that the others do not know of, for them to say what they know.
pub(crate) const LAST_WORDS: Duration = Duration::from_millis(300);

/// Standard output: as wide and as high as the terminal is, or as COLUMNS and LINES say.
fn screen(terminal: bool, color: bool) -> Screen {
    if !terminal {
        return Screen { color, ..Screen::default() };
    }
    let given = |name: &str| std::env::var(name).ok()?.parse::<usize>().ok().filter(|n| *n > 0);
    let seen = terminal_size::terminal_size().filter(|(w, h)| w.0 > 0 && h.0 > 0);
    let width = given("COLUMNS").or(seen.map(|s| usize::from(s.0.0))).unwrap_or(80);
    let height = given("LINES").or(seen.map(|s| usize::from(s.1.0))).unwrap_or(24);
    Screen { width: Some(width), height: Some(height), color }
}

/// Lines of a rank that is not the first: each says whose it is.
fn prefixed(rank: usize, text: &str, json: bool) -> String {
    let line = |line: &str| match line.strip_prefix('{') {
        Some(rest) if json => format!("{{\"rank\":{rank},{rest}\n"),
        _ if line.is_empty() => "\n".to_string(),
        _ => format!("[rank {rank}] {line}\n"),
    };
    text.lines().map(line).collect()
}

/// A rendered diagnostic, in whose styles and texts only control characters of ASCII are taken care of.
fn without_others_that_steer(text: &str) -> String {
    let visible = |c: char| match c {
        '\u{7f}'.. if render::steers(c) => c.escape_default().to_string(),
        c => c.into(),
    };
    text.chars().map(visible).collect()
}

/// Lines of JSON in which no character steers a terminal: those that JSON takes as they are can only be in strings.
fn printable_json(text: &str) -> Cow<'_, str> {
    let steers = |c: char| render::steers(c) && c != '\n';
    if !text.contains(steers) {
        return text.into();
    }
    let visible = |c: char| if steers(c) { format!("\\u{:04x}", u32::from(c)) } else { c.into() };
    text.chars().map(visible).collect::<String>().into()
}

/// Where what is said goes.
pub(crate) type TextSink = Box<dyn Write + Send>;

/// The two streams.
pub(crate) struct Console {
    out: BufWriter<TextSink>,
    err: TextSink,
    /// Where a program asks and no terminal: the diagnostics so far, as lines of JSON. What is said is then text in any format.
    asked: Option<Vec<String>>,
    color: bool,
    /// What standard output is.
    screen: Screen,
    format: Format,
    processes: Arc<Processes>,
    /// This rank, where there are several.
    rank: Option<usize>,
    /// Whether a failure was said that the other processes do not know of.
    failed_alone: bool,
}

impl Console {
    /// The streams of this process.
    pub(crate) fn new(color: ColorChoice, format: Format) -> Self {
        let err = io::stderr();
        let asked_not = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        let colored = |terminal: bool| match color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => terminal && !asked_not,
        };
        let out = io::stdout();
        let (color, on_out) = (colored(err.is_terminal()), colored(out.is_terminal()));
        Console {
            screen: screen(out.is_terminal(), on_out),
            out: BufWriter::new(Box::new(out)),
            err: Box::new(err),
            asked: None,
            color,
            format,
            processes: Arc::default(),
            rank: None,
            failed_alone: false,
        }
    }

    /// The streams of a program that asks, which keeps diagnostics apart.
    pub(crate) fn asked(format: Format, out: TextSink, err: TextSink) -> Self {
        Console {
            screen: Screen::default(),
            out: BufWriter::new(out),
            err,
            asked: Some(Vec::new()),
            color: false,
            format,
            processes: Arc::default(),
            rank: None,
            failed_alone: false,
        }
    }

    /// The diagnostics that a program which asks was told.
    pub(crate) fn found(self) -> Vec<String> {
        self.asked.unwrap_or_default()
    }

    /// Whether standard error is a terminal that bars may be drawn on.
    pub(crate) fn draws(&self) -> bool {
        self.asked.is_none() && io::stderr().is_terminal()
    }

    /// Whether notes and diagnostics are JSON.
    fn says_json(&self) -> bool {
        self.json() && self.asked.is_none()
    }

    /// From here on it speaks for a rank of several.
    pub(crate) fn speaks_for(&mut self, rank: usize, ranks: usize) {
        self.rank = (ranks > 1).then_some(rank);
    }

    /// From here on this process is one of these.
    pub(crate) fn joins(&mut self, processes: &Arc<Processes>) {
        self.processes = processes.clone();
        self.speaks_for(processes.rank(), processes.count());
    }

    /// The processes of the run.
    pub(crate) fn processes(&self) -> &Arc<Processes> {
        &self.processes
    }

    /// Whether it speaks for all processes: reports, notes and progress are its alone.
    pub(crate) fn leads(&self) -> bool {
        self.rank.is_none_or(|r| r == 0)
    }

    /// Leaves the other processes. None is to end before the others have said what there is to say: launchers kill the rest
    /// as soon as one has failed.
    pub(crate) fn leaves(&mut self, code: u8) {
        if self.processes.count() == 1 {
            return;
        }
        if !self.failed_alone && code != stop::INTERNAL {
            // Who does not come any more has said why.
            let _ = self.processes.wait_for_all("the end".into());
            return;
        }
        self.processes.abort("it failed");
        std::thread::sleep(LAST_WORDS);
        stop::end_all(code);
    }

    /// Whether reports are JSON.
    pub(crate) fn json(&self) -> bool {
        self.format == Format::Json
    }

    /// Writes a part of the report, in which names and texts of files may be: none of their characters steers the terminal.
    pub(crate) fn out(&mut self, text: &str) -> Result<(), Stop> {
        let text = self.visible(text);
        self.out_styled(&text)
    }

    /// Writes what is as it is to be: a file that is printed, or lines of a [`Screen`], which has made them visible before it
    /// styled them.
    pub(crate) fn out_styled(&mut self, text: &str) -> Result<(), Stop> {
        if !self.leads() {
            return Ok(());
        }
        Ok(self.out.write_all(text.as_bytes())?)
    }

    /// A text without characters that steer a terminal. In JSON they are in strings, which have their own way to say them.
    fn visible<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match self.json() {
            true => printable_json(text),
            false => render::printable(text),
        }
    }

    /// What the report is written on.
    pub(crate) fn screen(&self) -> &Screen {
        &self.screen
    }

    /// Writes a report that may be long: on a terminal that it does not fit on, page by page, unless that is not wanted.
    pub(crate) fn out_paged(&mut self, text: &str, pages: bool) -> Result<(), Stop> {
        let long = self.screen.height.is_some_and(|h| text.lines().count() >= h);
        if pages && long && self.leads() {
            self.flush()?;
            let given = std::env::var("PAGER").ok();
            if pager::command(given).is_some_and(|command| pager::page(&command, text)) {
                return Ok(());
            }
        }
        self.out_styled(text)
    }

    /// Writes a value as a line of JSON.
    pub(crate) fn out_json<T: Serialize>(&mut self, value: &T) -> Result<(), Stop> {
        // Numbers, texts and lists of them always serialize.
        let text = serde_json::to_string(value).unwrap_or_default();
        self.out(&(text + "\n"))
    }

    /// Hands what was written to the system: at the end, and after each line that somebody may wait for.
    pub(crate) fn flush(&mut self) -> Result<(), Stop> {
        Ok(self.out.flush()?)
    }

    /// Writes to standard error, as [`Console::out`] to standard output.
    pub(crate) fn err(&mut self, text: &str) {
        let text = match self.says_json() {
            true => printable_json(text),
            false => render::printable(text),
        };
        self.err_styled(&text);
    }

    /// Writes what is as it is to be. Whoever closes standard error does not want to know.
    fn err_styled(&mut self, text: &str) {
        let text = match self.rank {
            Some(rank) if rank > 0 => prefixed(rank, text, self.says_json()),
            _ => text.to_string(),
        };
        let _ = self.err.write_all(text.as_bytes());
    }

    /// Something worth knowing.
    pub(crate) fn note(&mut self, text: &str) {
        self.say("note", text);
    }

    /// Something that is probably not meant.
    pub(crate) fn warn(&mut self, text: &str) {
        self.say("warning", text);
    }

    fn say(&mut self, what: &str, text: &str) {
        if !self.leads() {
            return;
        }
        if self.says_json() {
            self.err(&format!("{}\n", json!({ what: text })));
        } else {
            self.err(&format!("{what}: {text}\n"));
        }
    }

    /// Diagnostics, and where to read more of their codes.
    pub(crate) fn diagnostics(&mut self, diagnostics: &[Diagnostic], sources: &Sources) {
        if let Some(found) = &mut self.asked {
            found.extend(diagnostics.iter().map(|d| render::json(d, sources)));
        }
        if self.says_json() {
            for d in diagnostics {
                self.err(&format!("{{\"diagnostic\":{}}}\n", render::json(d, sources)));
            }
            return;
        }
        if diagnostics.is_empty() {
            return;
        }
        // Notes say what is so; a line each is enough.
        let (notes, found): (Vec<_>, Vec<_>) =
            diagnostics.iter().cloned().partition(|d| d.severity == Severity::Note);
        self.err(&render::concise_all(&notes, sources));
        self.err_styled(&without_others_that_steer(&render::full_all(&found, sources, self.color)));
        let mut errors: Vec<&str> = diagnostics.iter().filter(|d| d.is_error()).map(|d| d.code.id).collect();
        let n = errors.len();
        errors.sort_unstable();
        errors.dedup();
        if let Some(code) = errors.first() {
            let count = match n {
                1 => "1 error".to_string(),
                // The compiler stops looking for more.
                MAX_REPORTED.. => format!("{n} errors, and perhaps more"),
                _ => format!("{n} errors"),
            };
            let more = if errors.len() > 1 { format!(" ({})", errors.join(", ")) } else { String::new() };
            self.err(&format!("\n{count}{more}; `meshwright explain {code}` says more\n"));
        }
    }

    /// Says why a run failed.
    pub(crate) fn failed(&mut self, failure: Failure, sources: &Sources) -> Stop {
        self.failed_with(failure, sources, None)
    }

    /// [`Console::failed`]; `help` is for a device that failed.
    pub(crate) fn failed_with(&mut self, failure: Failure, sources: &Sources, help: Option<String>) -> Stop {
        let told = self.processes.agreed() || matches!(failure, Failure::Elsewhere);
        self.failed_alone |= !told;
        match failure {
            Failure::Elsewhere => {}
            // The process that failed says why, and the first one that it did.
            Failure::Exec(e) if e.is_consequence() && !self.leads() => {}
            Failure::Diagnostics(found) => self.diagnostics(&found, sources),
            Failure::Exec(ref e @ ExecError::Panicked { .. }) => {
                let said = e.to_string().replacen(": internal error: ", ": ", 1);
                return Stop::Internal(Some(said));
            }
            Failure::Exec(e) => {
                let mut found = described(&e);
                if let ExecError::DType { .. } = e {
                    found = found.help("add `--precision f32`, or run it on the host with `--device cpu`");
                }
                found = help.into_iter().fold(found, Diagnostic::help);
                self.diagnostics(&[found], sources);
            }
        }
        Stop::Diagnosed
    }

    /// Says what is left to be said of the end of a command; returns its exit code.
    pub(crate) fn say_why(&mut self, why: Stop) -> u8 {
        // What was reported before comes before what is said now.
        let written = self.out.flush();
        match why {
            Stop::Diagnosed => stop::DIAGNOSED,
            Stop::Interrupted => stop::INTERRUPTED,
            Stop::Internal(said) => {
                if let Some(said) = said {
                    self.err(&format!("internal error: {said}\n  {}\n", please_report()));
                }
                stop::INTERNAL
            }
            Stop::Usage(text) => {
                self.err(&format!("error: {text}\n\nFor more information, try '--help'.\n"));
                stop::USAGE
            }
            // `meshwright explain … | head` has all that it wants.
            Stop::Output(e) if e.kind() == ErrorKind::BrokenPipe => stop::SUCCESS,
            Stop::Output(e) => {
                let found =
                    Diagnostic::error(codes::E0522, format!("standard output cannot be written: {e}"));
                self.diagnostics(&[found], &Sources::new());
                stop::DIAGNOSED
            }
        }
        .max(if written.is_err_and(|e| e.kind() != ErrorKind::BrokenPipe) {
            stop::DIAGNOSED
        } else {
            0
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_visible_in_json_too() {
        let value = "a\u{1b}[2J\u{9b}2J\u{7f}\u{202e}µ";
        let line = format!("{}\n", json!({ "name": value }));
        let shown = printable_json(&line);
        assert_eq!(shown, "{\"name\":\"a\\u001b[2J\\u009b2J\\u007f\\u202eµ\"}\n");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).ok(), Some(json!({ "name": value })));
    }

    #[test]
    fn lines_of_another_rank_say_so() {
        assert_eq!(prefixed(2, "error: a\n\n  b\n", false), "[rank 2] error: a\n\n[rank 2]   b\n");
        assert_eq!(prefixed(2, "{\"note\":1}\n", true), "{\"rank\":2,\"note\":1}\n");
    }
}
