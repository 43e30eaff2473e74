//! A run in a process of its own: `train` of our own executable, which tells what it does line by line.

use crate::surroundings;
use meshwright_files::folder::Folder;
use rustix::fs::OFlags;
use serde::Deserialize;
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs::{File, TryLockError};
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

/// How a process ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ProcessEnd {
    /// All is done.
    Well,
    /// It was stopped, and can go on.
    Stopped,
    /// It failed by this.
    Failed(String),
}

/// What happens to a task.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Signal {
    /// Another process is still at work in its folder, and is waited for.
    Waits,
    /// Its process runs.
    Starts,
    /// A step is done.
    Step { step: u64, loss: f64 },
    /// It has ended; with its time.
    Ends { how: ProcessEnd, seconds: f64 },
}

/// What is started, and where what it says of itself goes.
#[derive(Clone, Debug)]
pub(crate) struct RunTask {
    /// The words of the command, without the program.
    pub(crate) words: Vec<String>,
    /// The folder of the run.
    pub(crate) run: PathBuf,
    /// The folder, and in it the file, of its notes and errors.
    pub(crate) logs: Folder,
    pub(crate) log: String,
    /// Bytes that its devices take, by the Plan.
    pub(crate) bytes: u64,
}

/// The log of a task, empty, and locked as long as the process lives that it is given to: also where this one is killed, and that
/// one has not noticed yet. None while another process has it.
pub(super) fn log(task: &RunTask) -> io::Result<Option<File>> {
    let log = task.logs.file(&task.log, OFlags::WRONLY | OFlags::CREATE)?;
    match log.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(e)) => return Err(e),
    }
    log.set_len(0)?;
    Ok(Some(log))
}

/// Starts a process, which inherits the lock of its log. It is in a process group of its own: Ctrl-C reaches it through this
/// process alone, once.
pub(super) fn start(task: &RunTask, log: File) -> io::Result<Child> {
    use std::os::unix::process::CommandExt;
    let (program, first) = surroundings::started_as()?;
    Command::new(program)
        .args(first)
        .args(&task.words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .process_group(0)
        .spawn()
}

/// What of a line of events is shown.
#[derive(Deserialize)]
struct EventLine<'a> {
    event: &'a str,
    step: Option<u64>,
    loss: Option<f64>,
}

/// Follows a process to its end. What it says of its steps is handed on. Where this process dies, the other one finds nobody to
/// talk to, and ends with a checkpoint.
pub(super) fn follow(
    child: &mut Child,
    task: &RunTask,
    told: &mut dyn FnMut(Signal),
) -> io::Result<ProcessEnd> {
    if let Some(out) = child.stdout.take() {
        let mut lines = BufReader::new(out);
        let mut line = Vec::new();
        loop {
            line.clear();
            if lines.read_until(b'\n', &mut line)? == 0 {
                break;
            }
            let Ok(EventLine { event: "step", step: Some(step), loss }) = serde_json::from_slice(&line)
            else {
                continue;
            };
            told(Signal::Step { step, loss: loss.unwrap_or(f64::NAN) });
        }
    }
    Ok(ended(child.wait()?, task))
}

fn ended(status: ExitStatus, task: &RunTask) -> ProcessEnd {
    use crate::stop::{INTERRUPTED, SUCCESS};
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) if code == i32::from(SUCCESS) => ProcessEnd::Well,
        (Some(code), _) if code == i32::from(INTERRUPTED) => ProcessEnd::Stopped,
        // It was stopped as it began, before it could report that.
        (None, Some(SIGHUP | SIGINT | SIGTERM)) => ProcessEnd::Stopped,
        (None, Some(signal)) => ProcessEnd::Failed(killed(signal)),
        (code, _) => {
            ProcessEnd::Failed(said(task).unwrap_or_else(|| format!("exit code {}", code.unwrap_or(-1))))
        }
    }
}

fn killed(signal: i32) -> String {
    let memory = if signal == 9 { ", as the system does where memory is short" } else { "" };
    format!("killed by signal {signal}{memory}")
}

/// The first error that a process has reported, as a diagnostic or in a line of its own; otherwise its last line. The last lines
/// of a panic and of a command line that is refused only say what to do about it.
fn said(task: &RunTask) -> Option<String> {
    let text = String::from_utf8(task.logs.read(&task.log).ok()?).ok()?;
    let error = |line: &str| {
        let said: Value = serde_json::from_str(line).ok()?;
        let d = said.get("diagnostic").filter(|d| d["severity"] == "error")?;
        Some(format!("{}: {}", d["code"].as_str()?, d["message"].as_str()?))
    };
    let plain = |line: &&str| line.starts_with("error") || line.starts_with("internal error");
    let last = || text.lines().rfind(|l| !l.trim().is_empty());
    text.lines().find_map(error).or_else(|| text.lines().find(plain).or_else(last).map(String::from))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn task(at: &std::path::Path) -> RunTask {
        RunTask { words: vec![], run: at.into(), logs: Folder::at(at), log: "log".into(), bytes: 0 }
    }

    #[test]
    fn a_log_is_locked_as_long_as_the_process_lives_that_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        let task = task(at);
        let first = log(&task).unwrap().unwrap();
        assert!(log(&task).unwrap().is_none());
        let mut sleeper = Command::new("sleep").arg("60").stderr(first).spawn().unwrap();
        // Ours is closed; the other one has it still.
        assert!(log(&task).unwrap().is_none());
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert!(log(&task).unwrap().is_some());
    }

    #[test]
    fn the_end_of_a_process_is_told_in_its_own_words() {
        let folder = tempfile::tempdir().unwrap();
        let task = task(folder.path());
        let of = |raw: i32, text: &str| {
            std::fs::write(folder.path().join("log"), text).unwrap();
            ended(ExitStatus::from_raw(raw), &task)
        };
        assert_eq!((of(0, ""), of(130 << 8, "")), (ProcessEnd::Well, ProcessEnd::Stopped));
        let error = "{\"note\":\"x\"}\n{\"diagnostic\":{\"code\":\"E0516\",\"severity\":\"error\",\"message\":\"why\"}}\n";
        assert_eq!(of(1 << 8, error), ProcessEnd::Failed("E0516: why".into()));
        assert_eq!(
            of(101 << 8, "internal error: x\n  please report\n"),
            ProcessEnd::Failed("internal error: x".into())
        );
        let usage = "error: the argument '--cores <N>' cannot be used multiple times\n\nUsage: x\n\nFor more information, try '--help'.\n";
        assert!(matches!(of(2 << 8, usage), ProcessEnd::Failed(why) if why.contains("--cores")));
        assert_eq!(of(101 << 8, "first\nlast\n\n"), ProcessEnd::Failed("last".into()));
        for told in [1, 2, 15] {
            assert_eq!(of(told, ""), ProcessEnd::Stopped);
        }
        assert_eq!(of(2 << 8, ""), ProcessEnd::Failed("exit code 2".into()));
        assert!(matches!(of(9, ""), ProcessEnd::Failed(why) if why.starts_with("killed by signal 9")));
    }
}
