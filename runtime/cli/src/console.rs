//! Standard output and standard error: who is spoken to, in which format, in colour or not.

use crate::args::{ColorChoice, Format};
use crate::panics::please_report;
use crate::stop::{self, Stop};
use meshwright_diag::{Diagnostic, Severity, Sources, codes, render};
use meshwright_exec::ExecError;
use meshwright_train::Failure;
use serde::Serialize;
use serde_json::json;
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Stderr, Stdout, Write};

/// The two streams.
pub(crate) struct Console {
    out: BufWriter<Stdout>,
    err: Stderr,
    color: bool,
    format: Format,
}

impl Console {
    /// The streams of this process.
    pub(crate) fn new(color: ColorChoice, format: Format) -> Self {
        let err = io::stderr();
        let asked_not = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        let color = match color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => err.is_terminal() && !asked_not,
        };
        Console { out: BufWriter::new(io::stdout()), err, color, format }
    }

    /// Whether reports are JSON.
    pub(crate) fn json(&self) -> bool {
        self.format == Format::Json
    }

    /// Writes a part of the report.
    pub(crate) fn out(&mut self, text: &str) -> Result<(), Stop> {
        Ok(self.out.write_all(text.as_bytes())?)
    }

    /// Writes a value as a line of JSON.
    pub(crate) fn out_json<T: Serialize>(&mut self, value: &T) -> Result<(), Stop> {
        // Numbers, texts and lists of them always serialise.
        let text = serde_json::to_string(value).unwrap_or_default();
        self.out(&(text + "\n"))
    }

    /// Hands what was written to the system: at the end, and after each line that somebody may wait for.
    pub(crate) fn flush(&mut self) -> Result<(), Stop> {
        Ok(self.out.flush()?)
    }

    /// Writes to standard error. Whoever closes it does not want to know.
    pub(crate) fn err(&mut self, text: &str) {
        let _ = self.err.write_all(text.as_bytes());
    }

    /// Something worth knowing.
    pub(crate) fn note(&mut self, text: &str) {
        if self.json() {
            self.err(&format!("{}\n", json!({ "note": text })));
        } else {
            self.err(&format!("note: {text}\n"));
        }
    }

    /// Diagnostics, and where to read more of their codes.
    pub(crate) fn diagnostics(&mut self, diagnostics: &[Diagnostic], sources: &Sources) {
        if self.json() {
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
        self.err(&render::full_all(&found, sources, self.color));
        let mut errors: Vec<&str> = diagnostics.iter().filter(|d| d.is_error()).map(|d| d.code.id).collect();
        let n = errors.len();
        errors.sort_unstable();
        errors.dedup();
        if let Some(code) = errors.first() {
            let count = if n == 1 { "1 error".to_string() } else { format!("{n} errors") };
            let more = if errors.len() > 1 { format!(" ({})", errors.join(", ")) } else { String::new() };
            self.err(&format!("\n{count}{more}; `meshwright explain {code}` says more\n"));
        }
    }

    /// Says why a run failed.
    pub(crate) fn failed(&mut self, failure: Failure, sources: &Sources) -> Stop {
        match failure {
            Failure::Diagnostics(found) => self.diagnostics(&found, sources),
            Failure::Exec(ref e @ ExecError::Panicked { .. }) => {
                let said = e.to_string().replacen(": internal error: ", ": ", 1);
                return Stop::Internal(Some(said));
            }
            Failure::Exec(e) => {
                let found = Diagnostic::error(codes::E0520, e.to_string());
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
