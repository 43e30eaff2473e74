//! `data`: data is made to train on.

use crate::args::{MakeDataArgs, MakeDataWhat, TokenizeArgs};
use crate::output::console::Console;
use crate::output::json::object;
use crate::output::progress::bar;
use crate::output::table::{Align, Table};
use crate::output::text::{bytes, counted, thousands};
use crate::stop::Stop;
use indicatif::{ProgressBar, ProgressStyle};
use meshwright_data::corpus::{TokenizeProgress, Tokenized, tokenize};
use meshwright_diag::Sources;
use meshwright_files::Checked;
use serde_json::json;
use std::time::{Duration, Instant};

/// Lines of progress come at most so often, where there is no bar.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Runs the command.
pub(crate) fn run(args: &MakeDataArgs, console: &mut Console) -> Result<(), Stop> {
    match &args.what {
        MakeDataWhat::Tokenize(a) => tokenized(a, console),
    }
}

fn tokenized(args: &TokenizeArgs, console: &mut Console) -> Result<(), Stop> {
    let made = made(args, console);
    let made = made.map_err(|d| {
        console.diagnostics(&[*d], &Sources::new());
        Stop::Diagnosed
    })?;
    let out = args.out.display().to_string();
    if console.json() {
        let set = |(name, [tokens, documents, bytes]): &(String, [u64; 3])| json!({ "set": name, "tokens": tokens, "documents": documents, "text_bytes": bytes });
        let sets: Vec<_> = made.sets.iter().map(set).collect();
        let fields = [
            ("folder", out.into()),
            ("vocab", made.vocab.into()),
            ("task", made.task.name().into()),
            ("was_there", made.was_there.into()),
            ("sets", sets.into()),
        ];
        return console.out_json(&object(fields));
    }
    if made.was_there {
        console.note("the folder was complete: nothing is written");
    }
    let mut table = Table::new(&[Align::Left, Align::Right, Align::Right, Align::Right, Align::Right]);
    table.row(["set", "documents", "tokens", "text", "bytes a token"]);
    for (name, [tokens, documents, text]) in &made.sets {
        let each = *text as f64 / (*tokens).max(1) as f64;
        table.row([
            name.clone(),
            thousands(*documents),
            thousands(*tokens),
            bytes(*text),
            format!("{each:.2}"),
        ]);
    }
    let vocab = counted(made.vocab as u64, "token");
    console.out(&format!(
        "{}{out}: a vocabulary of {vocab}; data.toml makes examples for the task `{}`\n",
        table.render(),
        made.task.name()
    ))
}

/// Tokenizes, and shows how it goes.
fn made(args: &TokenizeArgs, console: &mut Console) -> Checked<Tokenized> {
    let options = args.options()?;
    let bar = bar(0, console);
    if let Ok(style) = ProgressStyle::with_template("  {spinner} {msg}") {
        bar.set_style(style);
    }
    let mut watcher = TokenizeWatcher { bar, console, said: Instant::now(), began: Instant::now() };
    let made = tokenize(&options, &mut |p| watcher.see(p));
    watcher.bar.finish_and_clear();
    made
}

/// Shows how tokenizing goes: on a terminal at once, elsewhere in a line now and then.
struct TokenizeWatcher<'a> {
    bar: ProgressBar,
    console: &'a mut Console,
    said: Instant,
    began: Instant,
}

impl TokenizeWatcher<'_> {
    fn see(&mut self, progress: TokenizeProgress) {
        let line = match progress {
            TokenizeProgress::Resumed(documents) => {
                self.console.note(&format!("goes on after {}", counted(documents, "document")));
                return;
            }
            TokenizeProgress::Training(read) => {
                format!("training the tokenizer: {} of text read", bytes(read))
            }
            TokenizeProgress::Tokenizing([documents, tokens, text]) => {
                let rate = tokens as f64 / self.began.elapsed().as_secs_f64().max(1e-9);
                format!(
                    "{}, {}, {} of text, {} tokens/s",
                    counted(documents, "document"),
                    counted(tokens, "token"),
                    bytes(text),
                    thousands(rate as u64)
                )
            }
        };
        self.bar.set_message(line.clone());
        if self.bar.is_hidden() && !self.console.json() && self.said.elapsed() >= LINE_EVERY {
            self.said = Instant::now();
            self.console.err(&format!("{line}\n"));
        }
    }
}
