//! The command inside another program, such as an interpreter of Python: asked with the words of a command line, it answers with
//! what it would have printed. Signals are the program's own: a writer that fails ends a training as Ctrl-C would, with a
//! checkpoint.

use crate::args::{Cli, Command, Format};
use crate::commands::project::warn;
use crate::commands::train::prepared;
use crate::output::console::{Console, LAST_WORDS, TextSink};
use crate::{connection, panics, run, signals, stop};
use clap::Parser;
use meshwright_diag::{Diagnostic, Sources};
use meshwright_train::{Failure, Project, TrainOptions};
use std::ffi::OsString;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

/// How a command ended.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// Its exit code.
    pub code: u8,
    /// What it wrote to standard error, as text.
    pub said: String,
    /// Its diagnostics, each an object of JSON as `--format json` writes it.
    pub found: Vec<String>,
}

/// Standard error, kept.
#[derive(Clone, Default)]
struct SharedBytes(Arc<Mutex<Vec<u8>>>);

impl SharedBytes {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl Write for SharedBytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs the command of these words, without the name of the program. What it would write to standard output goes to `out`.
pub fn answer(words: &[OsString], out: TextSink) -> Reply {
    signals::left_to_caller();
    match parsed(words) {
        Ok(command) => told(command.format(), out, |console| run(command, console)),
        Err(ended) => ended,
    }
}

/// Has what [`answer`] does end as Ctrl-C would: a training and the runs of a sweep with their checkpoints.
pub fn ask_to_stop() {
    signals::ask_to_stop();
}

/// Leaves the processes that this one is connected with, which waits until they have come to this too; where the program has
/// failed, it ends all of them.
pub fn leave(failed: bool) {
    let Some(processes) = connection::taken() else { return };
    if failed {
        processes.abort("its program failed");
        std::thread::sleep(LAST_WORDS);
        stop::end_all(stop::DIAGNOSED);
    }
}

fn parsed(words: &[OsString]) -> Result<Command, Reply> {
    let program = OsString::from("meshwright");
    let cli = Cli::try_parse_from(std::iter::once(&program).chain(words));
    cli.map(|cli| cli.command).map_err(|e| Reply {
        code: stop::USAGE,
        said: e.render().to_string(),
        found: Vec::new(),
    })
}

fn told(format: Format, out: TextSink, ask: impl FnOnce(&mut Console) -> Result<(), stop::Stop>) -> Reply {
    let kept = SharedBytes::default();
    let mut console = Console::asked(format, out, Box::new(kept.clone()));
    let ended = panics::caught(|| ask(&mut console)).and_then(|()| console.flush());
    let code = ended.map_or_else(|why| console.say_why(why), |()| stop::SUCCESS);
    console.leaves(code);
    let found = console.found();
    Reply { code, said: kept.text(), found }
}

/// A project, its texts, and how `train` of these words would run it, but for the folder of a run; and what `train` would say of
/// it beside that, such as warnings.
///
/// # Errors
/// What `train` would say of the words, the model, the layout and the devices.
pub fn project(words: &[OsString]) -> Result<((Project, Sources, TrainOptions), String), Reply> {
    signals::left_to_caller();
    let Command::Train(args) = parsed(words)? else {
        let said = "error: these are not the words of `train`\n".into();
        return Err(Reply { code: stop::USAGE, said, found: Vec::new() });
    };
    let mut loaded = None;
    let ended = told(Format::Text, Box::new(io::sink()), |console| {
        loaded = Some(prepared(&args, console)?);
        Ok(())
    });
    match loaded {
        Some(loaded) => Ok((loaded, ended.said)),
        None => Err(ended),
    }
}

/// What the command would say of warnings.
pub fn warned(warnings: &[Diagnostic], sources: &Sources) -> String {
    let said = |console: &mut Console| {
        warn(warnings, console, sources);
        Ok(())
    };
    told(Format::Text, Box::new(io::sink()), said).said
}

/// What the command would say of a failure.
pub fn failed(failure: Failure, sources: &Sources) -> Reply {
    let format = Format::Text;
    told(format, Box::new(io::sink()), |console| Err(console.failed(failure, sources)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use meshwright_diag::codes;

    fn asked(words: &[&str]) -> (Reply, String) {
        let (out, words) = (SharedBytes::default(), words.iter().map(OsString::from).collect::<Vec<_>>());
        let ended = answer(&words, Box::new(out.clone()));
        (ended, out.text())
    }

    #[test]
    fn an_answer_is_what_would_be_printed() {
        let words = ["compare", "mnist_mlp", "--layout", "dp,tp", "--mesh", "4", "--format", "json"];
        let (ended, out) = asked(&words);
        assert_eq!((ended.code, ended.said.as_str(), ended.found.len()), (0, "", 0));
        let found: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(found["variants"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn diagnostics_come_as_text_and_as_data_in_any_format() {
        for format in ["text", "json"] {
            let (ended, _) = asked(&[
                "check",
                "mnist_mlp",
                "--layout",
                "nonsense -> r",
                "--mesh",
                "r=2",
                "--format",
                format,
            ]);
            assert_eq!(ended.code, 1, "{}", ended.said);
            assert!(ended.said.starts_with("error[E0"), "{}", ended.said);
            let found: serde_json::Value = serde_json::from_str(&ended.found[0]).unwrap();
            assert!(ended.said.contains(found["code"].as_str().unwrap()));
        }
        let (ended, _) = asked(&["explain"]);
        assert!(ended.code == 2 && ended.said.contains("Usage: meshwright explain"), "{}", ended.said);
        let ended = failed(Diagnostic::error(codes::E0516, "it cannot be").into(), &Sources::new());
        assert!(ended.code == 1 && ended.said.starts_with("error[E0516]: it cannot be"), "{}", ended.said);
    }

    #[test]
    fn a_writer_that_fails_ends_a_training_with_a_checkpoint() {
        struct Few(usize);
        impl Write for Few {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 = self.0.checked_sub(1).ok_or(io::ErrorKind::BrokenPipe)?;
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let (made, _) = asked(&["new", dir.path().join("points").to_str().unwrap()]);
        assert_eq!(made.code, 0, "{}", made.said);
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
        let (model, data, run) = (at("points/points.mw"), at("points/data"), at("run"));
        let words = ["train", &model, "--data", &data, "--steps", "50", "--run", &run, "--format", "json"];
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let ended = answer(&words, Box::new(Few(3)));
        assert!(ended.code == 1 && ended.said.contains("stopped after step"), "{}", ended.said);
        assert!(dir.path().join("run/checkpoints").is_dir());
        // The next one is not stopped.
        let ended = answer(&[&words[..], &["--resume".into()]].concat(), Box::new(io::sink()));
        assert_eq!(ended.code, 0, "{}", ended.said);
    }
}
