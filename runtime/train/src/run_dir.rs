//! The folder of a run: resolved settings (`run.toml`), copies of the texts it was made from (`model.mw`, `used-1.mw`,
//! `rules.layout`), `plan.json`, `history.jsonl`, `metrics.jsonl` and `checkpoints/`.
//!
//! **Invariant:** a folder that holds a run, which is one with a `run.toml`, is never written to but to resume it, and by one
//! process at a time.

use crate::Checked;
use crate::checkpoint::Store;
use crate::checkpoint::fs::{Disk, Fs, open_regular, read_regular, remove_leftovers, write_durably};
use crate::metrics::Event;
use meshwright_diag::{Code, Diagnostic, codes};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const SETTINGS: &str = "run.toml";
const PLAN: &str = "plan.json";
const METRICS: &str = "metrics.jsonl";
const CHECKPOINTS: &str = "checkpoints";
const LOCK: &str = "run.lock";
const MODEL: &str = "model.mw";
const LAYOUT: &str = "rules.layout";
const HISTORY: &str = "history.jsonl";

/// The folder of a run that this process may write to.
#[derive(Debug)]
pub struct RunDir {
    disk: Disk,
    /// Held as long as this lives; the system releases it when the process ends, however it ends.
    _lock: File,
}

impl RunDir {
    /// Checks that a new run may be made there; nothing is written.
    ///
    /// # Errors
    ///
    /// E0510 where it holds a run, or remains of one that its `run.toml` is missing from; and where it is no folder.
    pub fn vacant(path: &Path) -> Checked<()> {
        if path.exists() && !path.is_dir() {
            return Err(refused(path, codes::E0510, "it is not a folder"));
        }
        if path.join(SETTINGS).exists() {
            let message = format!("`{}` already holds a run: there is a `{SETTINGS}`", path.display());
            let error = Diagnostic::error(codes::E0510, message);
            return Err(Box::new(
                error.help("continue it with `--resume`, or give another folder with `--run`"),
            ));
        }
        let filled = |name: &str| {
            let at = path.join(name);
            let length = at.metadata().map_or(0, |m| m.len());
            if at.is_dir() { at.read_dir().is_ok_and(|mut d| d.next().is_some()) } else { length > 0 }
        };
        if let Some(name) = [METRICS, CHECKPOINTS].into_iter().find(|n| filled(n)) {
            let why = format!("there is a `{name}` of a run, but no `{SETTINGS}`");
            let error = refused(path, codes::E0510, &why);
            return Err(Box::new(
                error.help(format!("move `{name}` away, or give another folder with `--run`")),
            ));
        }
        Ok(())
    }

    /// Makes the folder of a new run. It holds a run once [`RunDir::write_settings`] has been called.
    ///
    /// # Errors
    ///
    /// Those of [`RunDir::vacant`]; E0510 too where another process is at work in it, E0511 where it cannot be made.
    pub fn create(path: &Path) -> Checked<RunDir> {
        Self::vacant(path)?;
        let dir = Self::open(path)?;
        // Another process may have made a run there in between.
        Self::vacant(path)?;
        Ok(dir)
    }

    /// Opens the folder of a run to continue it.
    ///
    /// # Errors
    ///
    /// E0510 where it holds no run or another process is at work in it, E0511 where it cannot be used.
    pub fn resume(path: &Path) -> Checked<RunDir> {
        if !holds_run(path) {
            return Err(no_run(path));
        }
        let dir = Self::open(path)?;
        remove_leftovers(&dir.disk).map_err(|e| dir.failed(METRICS, &e))?;
        Ok(dir)
    }

    fn open(path: &Path) -> Checked<RunDir> {
        if path.exists() && !path.is_dir() {
            return Err(refused(path, codes::E0510, "it is not a folder"));
        }
        let disk = Disk::create(path).map_err(|e| refused(path, codes::E0511, &e.to_string()))?;
        let lock =
            open_regular(&path.join(LOCK), OpenOptions::new().create(true).truncate(false).write(true));
        let lock = lock.map_err(|e| refused(path, codes::E0511, &e.to_string()))?;
        match lock.try_lock() {
            Ok(()) => Ok(RunDir { disk, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(refused(path, codes::E0510, "another process trains in it")),
            Err(TryLockError::Error(e)) => Err(refused(path, codes::E0511, &e.to_string())),
        }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.disk.folder()
    }

    /// The checkpoints of the run, to write more.
    ///
    /// # Errors
    ///
    /// E0514 where their folder cannot be written.
    pub fn checkpoints(&self) -> Checked<Store> {
        Store::create(checkpoints_in(self.path()))
    }

    /// Writes the resolved settings.
    ///
    /// # Errors
    ///
    /// E0511.
    pub fn write_settings<S: Serialize>(&self, settings: &S) -> Checked<()> {
        let text = toml::to_string(settings).map_err(|e| self.failed(SETTINGS, &e))?;
        self.write(SETTINGS, &text)
    }

    /// Writes copies of the texts that the run was made from: the model's file, those it uses, and the layout.
    ///
    /// # Errors
    ///
    /// E0511.
    pub fn write_texts(&self, model: &str, used: &[&str], layout: Option<&str>) -> Checked<()> {
        self.write(MODEL, model)?;
        for (n, text) in used.iter().enumerate() {
            self.write(&used_name(n + 1), text)?;
        }
        self.write(LAYOUT, layout.unwrap_or(""))
    }

    /// The copy of the model's file.
    ///
    /// # Errors
    ///
    /// E0511.
    pub fn model_text(&self) -> Checked<String> {
        read_text(&self.path().join(MODEL)).map_err(|e| self.failed(MODEL, &e))
    }

    /// Writes the Plan, as JSON.
    ///
    /// # Errors
    ///
    /// E0511.
    pub fn write_plan(&self, json: &str) -> Checked<()> {
        self.write(PLAN, json)
    }

    fn write(&self, name: &str, text: &str) -> Checked<()> {
        write_durably(&self.disk, name, text.as_bytes()).map_err(|e| self.failed(name, &e))
    }

    /// Opens `metrics.jsonl` to append, after cutting it back to what a run had written that has done `steps` steps and
    /// `epochs` epochs: what came later will come again. A torn last line goes too.
    ///
    /// # Errors
    ///
    /// E0511 where it cannot be read or written, or a line other than the last is no event.
    pub fn metrics(&self, steps: u64, epochs: u32) -> Checked<MetricsLog> {
        let path = self.path().join(METRICS);
        let text = match read_regular(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(self.failed(METRICS, &e)),
        };
        let kept = cut_back(&text, steps, epochs).map_err(|e| self.failed(METRICS, &e))?;
        if kept != text {
            write_durably(&self.disk, METRICS, &kept).map_err(|e| self.failed(METRICS, &e))?;
        }
        let file = open_regular(&path, OpenOptions::new().create(true).append(true));
        Ok(MetricsLog { file: file.map_err(|e| self.failed(METRICS, &e))?, path })
    }

    /// Appends a line to `history.jsonl`, which keeps every start of the run, durably. A torn line of a crash stays, and ends
    /// where it was torn.
    ///
    /// # Errors
    ///
    /// E0511.
    pub fn remember<E: Serialize>(&self, event: &E) -> Checked<()> {
        let append = || -> io::Result<()> {
            let text = serde_json::to_string(event)?;
            let mut file = open_regular(
                &self.path().join(HISTORY),
                OpenOptions::new().create(true).read(true).append(true),
            )?;
            let mut last = [b'\n'];
            if file.metadata()?.len() > 0 {
                file.seek(SeekFrom::End(-1))?;
                file.read_exact(&mut last)?;
            }
            let torn = if last == [b'\n'] { "" } else { "\n" };
            file.write_all(format!("{torn}{text}\n").as_bytes())?;
            file.sync_all()?;
            self.disk.sync_folder()
        };
        append().map_err(|e| self.failed(HISTORY, &e))
    }

    fn failed(&self, name: &str, why: &dyn std::fmt::Display) -> Box<Diagnostic> {
        unusable(&self.path().join(name), why)
    }
}

/// The folder of a run's checkpoints, for those who only read.
pub fn checkpoints_in(run: &Path) -> PathBuf {
    run.join(CHECKPOINTS)
}

/// There is nothing to resume.
pub fn no_run(path: &Path) -> Box<Diagnostic> {
    let message = format!("`{}` has no run to resume: there is no `{SETTINGS}`", path.display());
    let found = Diagnostic::error(codes::E0510, message).help("start it without `--resume`");
    Box::new(
        found.help("`--resume=auto` starts a run where there is none, and continues it where there is one"),
    )
}

/// Whether a folder holds a run.
pub(crate) fn holds_run(folder: &Path) -> bool {
    folder.join(SETTINGS).is_file()
}

/// Copies of the texts that a run was made from.
pub(crate) struct TextCopies {
    /// The model's file, and those that it uses.
    pub(crate) models: Vec<String>,
    pub(crate) layout: String,
}

/// Reads the copies of a run's texts, of which so many are of files that the model uses.
///
/// # Errors
///
/// E0511.
pub(crate) fn read_texts(run: &Path, used: usize) -> Checked<TextCopies> {
    let read = |name: &str| {
        let path = run.join(name);
        read_text(&path).map_err(|e| unusable(&path, &e))
    };
    let names = std::iter::once(MODEL.to_string()).chain((1..=used).map(used_name));
    let models = names.map(|n| read(&n)).collect::<Checked<Vec<String>>>()?;
    Ok(TextCopies { models, layout: read(LAYOUT)? })
}

fn used_name(n: usize) -> String {
    format!("used-{n}.mw")
}

/// Reads the resolved settings of a run.
///
/// # Errors
///
/// E0511.
pub fn read_settings<S: DeserializeOwned>(run: &Path) -> Checked<S> {
    let path = run.join(SETTINGS);
    let text = read_text(&path).map_err(|e| unusable(&path, &e))?;
    toml::from_str(&text).map_err(|e| unusable(&path, &e.message()))
}

fn read_text(path: &Path) -> io::Result<String> {
    let bytes = read_regular(path)?;
    String::from_utf8(bytes)
        .map_err(|e| io::Error::other(format!("byte {} is not UTF-8", e.utf8_error().valid_up_to())))
}

fn refused(path: &Path, code: Code, why: &str) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(code, format!("`{}` cannot be the folder of a run: {why}", path.display())))
}

fn unusable(path: &Path, why: &dyn std::fmt::Display) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(codes::E0511, format!("`{}` cannot be used: {why}", path.display())))
}

/// `metrics.jsonl`, open to append.
#[derive(Debug)]
pub struct MetricsLog {
    file: File,
    path: PathBuf,
}

impl MetricsLog {
    /// Appends an event: one line, in one write.
    ///
    /// # Errors
    ///
    /// E0511.
    pub fn append(&mut self, event: &Event) -> Checked<()> {
        let line = event.line() + "\n";
        self.file.write_all(line.as_bytes()).map_err(|e| unusable(&self.path, &e))
    }

    /// Makes all lines so far durable. To be called before a checkpoint is saved, so that none is lost that a resumed run
    /// will not write again.
    ///
    /// # Errors
    ///
    /// E0511.
    pub fn sync(&self) -> Checked<()> {
        self.file.sync_data().map_err(|e| unusable(&self.path, &e))
    }
}

/// The lines of `text` that a run of so many steps and epochs had written.
fn cut_back(text: &[u8], steps: u64, epochs: u32) -> Result<Vec<u8>, String> {
    #[derive(Deserialize)]
    struct Line {
        event: String,
        step: Option<u64>,
        epoch: Option<u32>,
    }
    let mut kept = Vec::new();
    for (n, line) in text.split_inclusive(|b| *b == b'\n').enumerate() {
        let Some(json) = line.strip_suffix(b"\n") else { break };
        let event: Line =
            serde_json::from_slice(json).map_err(|_| format!("line {} is not an event of a run", n + 1))?;
        let keep = match event.event.as_str() {
            "step" => event.step.is_some_and(|s| s <= steps),
            "epoch" => event.epoch.is_some_and(|e| e <= epochs),
            _ => false,
        };
        if keep {
            kept.extend_from_slice(line);
        }
    }
    Ok(kept)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[derive(Serialize, Deserialize, PartialEq, Debug)]
    struct Settings {
        seed: u64,
        layout: String,
    }

    #[test]
    fn a_run_is_refused_to_all_but_those_who_resume_it() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("runs/a");
        assert_eq!(RunDir::resume(&path).unwrap_err().code.id, "E0510");
        let settings = Settings { seed: 3, layout: "batch -> r".into() };
        {
            let run = RunDir::create(&path).unwrap();
            run.write_settings(&settings).unwrap();
            run.write_plan("{}").unwrap();
            let busy = RunDir::resume(&path).unwrap_err();
            assert!(busy.message.contains("another process"), "{}", busy.message);
        }
        let error = RunDir::create(&path).unwrap_err();
        assert_eq!(error.code.id, "E0510");
        assert!(error.helps[0].contains("--resume"));
        std::fs::write(path.join(".tmp-metrics.jsonl"), "half").unwrap();
        let run = RunDir::resume(&path).unwrap();
        assert!(!path.join(".tmp-metrics.jsonl").exists());
        assert_eq!(read_settings::<Settings>(run.path()).unwrap(), settings);
        assert_eq!(run.checkpoints().unwrap().newest().unwrap(), None);
        let file = parent.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(RunDir::create(&file).unwrap_err().code.id, "E0510");
    }

    #[test]
    fn metrics_are_cut_back_to_the_checkpoint_and_go_on() {
        let parent = tempfile::tempdir().unwrap();
        let run = RunDir::create(parent.path()).unwrap();
        let step = |step| Event::Step { step, loss: step as f64 };
        let epoch = |epoch| Event::Epoch { epoch, train_loss: 1.0, eval: None, seconds: 1.0 };
        let all = [
            step(1),
            step(2),
            epoch(1),
            step(3),
            step(4),
            epoch(2),
            Event::Done { steps: 4, epochs: 2, seconds: 1.0 },
        ];
        let mut log = run.metrics(0, 0).unwrap();
        all.iter().for_each(|e| log.append(e).unwrap());
        log.sync().unwrap();
        let path = parent.path().join(METRICS);
        let lines = |events: &[Event]| events.iter().map(|e| e.line() + "\n").collect::<String>();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), lines(&all));

        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"event\":\"st").unwrap();
        run.metrics(4, 2).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), lines(&all[..6]));
        // A checkpoint after step 3, in the middle of the second epoch.
        run.metrics(3, 1).unwrap().append(&step(4)).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), lines(&all[..5]));
        // A checkpoint after step 2, before its epoch was evaluated.
        run.metrics(2, 0).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), lines(&all[..2]));

        std::fs::write(&path, "{\"event\":\"step\",\"step\":1,\"loss\":1}\nnoise\n{}\n").unwrap();
        let error = run.metrics(5, 5).unwrap_err();
        assert!(error.message.contains("line 2"), "{}", error.message);
    }
}
