//! The file of `--metrics-file`: replaced as a whole while a run goes on, so that whoever reads it finds one text or the next.

use super::prometheus::{Latest, RunFacts, RunState};
use crate::metrics::Event;
use meshwright_diag::{Diagnostic, codes};
use meshwright_files::Checked;
use meshwright_files::replacing::ReplacingFile;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// It is replaced so often, as lines of progress come.
const EVERY: Duration = Duration::from_secs(5);

/// The file of a run.
pub struct MetricsFile {
    path: PathBuf,
    run: RunFacts,
    latest: Latest,
    state: RunState,
    /// When it was tried last to be replaced, and how often it is.
    tried: Instant,
    every: Duration,
    /// Whether it was said that it cannot be written: that is said once.
    warned: bool,
}

impl MetricsFile {
    /// Whether a file can be written there; nothing stays of the attempt.
    ///
    /// # Errors
    ///
    /// E0511.
    pub fn writable(path: &Path) -> Checked<()> {
        ReplacingFile::beside(path).map(drop).map_err(|e| refused(path, &e))
    }

    /// Writes the file of a run that stands after a step.
    ///
    /// # Errors
    ///
    /// E0511.
    pub fn start(path: &Path, run: RunFacts, step: u64) -> Checked<MetricsFile> {
        let mut file = MetricsFile {
            path: path.into(),
            run,
            latest: Latest::at(step),
            state: RunState::Running,
            tried: Instant::now(),
            every: EVERY,
            warned: false,
        };
        file.write().map_err(|e| refused(path, &e))?;
        Ok(file)
    }

    /// Takes an event in, and replaces the file where that is due. Gives what there is to warn of.
    pub fn tell(&mut self, event: &Event) -> Option<String> {
        self.latest.take(event);
        self.goes_on()
    }

    /// Replaces the file where that is due, though nothing is new: the run is alive. Gives what there is to warn of.
    pub fn goes_on(&mut self) -> Option<String> {
        if self.tried.elapsed() < self.every { None } else { self.replace() }
    }

    /// Says how the run has ended. Gives what there is to warn of.
    pub fn end(&mut self, state: RunState) -> Option<String> {
        self.state = state;
        self.replace()
    }

    fn replace(&mut self) -> Option<String> {
        let why = self.write().err()?;
        if std::mem::replace(&mut self.warned, true) {
            return None;
        }
        Some(format!(
            "`{}` cannot be written: {why}; training goes on and tries it again",
            self.path.display()
        ))
    }

    fn write(&mut self) -> io::Result<()> {
        self.tried = Instant::now();
        let text = self.latest.text(&self.run, self.state).map_err(io::Error::other)?;
        let new = ReplacingFile::beside(&self.path)?;
        new.file().write_all(text.as_bytes())?;
        // Not made durable: after a crash of the machine nothing in it is true any more.
        new.replace()
    }
}

impl Drop for MetricsFile {
    /// A run whose end nobody told has failed, however that came.
    fn drop(&mut self) {
        if self.state == RunState::Running {
            // The failure itself is what is reported.
            let _ = self.end(RunState::Failed);
        }
    }
}

fn refused(path: &Path, why: &io::Error) -> Box<Diagnostic> {
    let message = format!("`{}` cannot be written: {why}", path.display());
    let help = "name a file in a folder that is there and that you may write to: `--metrics-file FILE.prom`";
    Box::new(Diagnostic::error(codes::E0511, message).help(help))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::metrics::StepMetrics;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn step(step: u64) -> Event {
        Event::Step(StepMetrics { step, seconds: 0.1, ..StepMetrics::default() })
    }

    fn states(path: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(path).unwrap();
        let on = text.lines().filter(|l| l.contains("_training_state{") && l.ends_with(" 1"));
        on.map(|l| l.split("state=\"").nth(1).unwrap().split('"').next().unwrap().to_string()).collect()
    }

    #[test]
    fn who_reads_finds_a_whole_text_at_any_time_and_nothing_else_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.prom");
        MetricsFile::writable(&path).unwrap();
        assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none());
        let mut file = MetricsFile::start(&path, RunFacts::default(), 0).unwrap();
        file.every = Duration::ZERO;
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut seen = 0;
                while !done.load(Ordering::Relaxed) || seen == 0 {
                    let text = std::fs::read_to_string(&path).unwrap();
                    let whole =
                        text.starts_with("# HELP meshwright_training_devices ") && text.ends_with('\n');
                    assert!(whole && text.contains("\nmeshwright_training_step{"), "{text:?}");
                    seen += 1;
                }
            });
            for n in 1..=500 {
                assert_eq!(file.tell(&step(n)), None);
            }
            done.store(true, Ordering::Relaxed);
            reader.join().unwrap();
        });
        assert_eq!(file.end(RunState::Interrupted), None);
        drop(file);
        assert_eq!(states(&path), ["interrupted"]);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn it_is_replaced_no_more_often_than_it_should_be_and_says_failed_where_nobody_told_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.prom");
        let mut file = MetricsFile::start(&path, RunFacts::default(), 7).unwrap();
        let first = std::fs::read_to_string(&path).unwrap();
        file.tell(&step(8));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), first);
        drop(file);
        assert_eq!(states(&path), ["failed"]);
        assert!(std::fs::read_to_string(&path).unwrap().contains("} 8\n"));
    }

    #[test]
    #[cfg(unix)]
    fn others_may_read_it_as_any_new_file() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let mode = |name: &str| dir.path().join(name).metadata().unwrap().permissions().mode();
        let _file = MetricsFile::start(&dir.path().join("a.prom"), RunFacts::default(), 0).unwrap();
        std::fs::write(dir.path().join("b"), "").unwrap();
        assert_eq!(mode("a.prom"), mode("b"));
    }

    #[test]
    fn what_cannot_be_written_is_refused_before_and_warned_of_once_later() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("gone");
        let path = folder.join("a.prom");
        let error = MetricsFile::writable(&path).unwrap_err();
        assert!(error.code.id == "E0511" && error.message.contains("No such file"), "{}", error.message);
        std::fs::create_dir_all(&path).unwrap();
        let error = MetricsFile::writable(&path).unwrap_err();
        assert!(error.message.contains("not a regular file"), "{}", error.message);
        std::fs::remove_dir(&path).unwrap();
        let mut file = MetricsFile::start(&path, RunFacts::default(), 0).unwrap();
        file.every = Duration::ZERO;
        std::fs::remove_dir_all(&folder).unwrap();
        let warning = file.tell(&step(1)).unwrap();
        assert!(warning.contains("a.prom` cannot be written: ") && warning.contains("goes on"), "{warning}");
        assert_eq!(file.tell(&step(2)), None);
        // Where it can be written again it is.
        std::fs::create_dir(&folder).unwrap();
        assert_eq!((file.tell(&step(3)), file.end(RunState::Finished)), (None, None));
        assert_eq!(states(&path), ["finished"]);
    }
}
