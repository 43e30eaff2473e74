//! The folder of a run: resolved settings (`run.toml`), copies of the texts it was made from (`model.mw`, `used-1.mw`,
//! `rules.layout`), `plan.json`, `costs.json`, `history.jsonl`, `metrics.jsonl` and `checkpoints/`. One that was imported has no plan and no
//! metrics, and the `tokenizer.json` that came with its weights.
//!
//! **Invariant:** a folder that holds a run, which is one with a `run.toml`, is never written to but to resume it, and by one
//! process at a time.

use crate::Checked;
use crate::checkpoint::Store;
use crate::checkpoint::fs::{Disk, Fs, TEMP, open_regular, read_regular, remove_leftovers, write_durably};
use crate::folder::entries;
use crate::logs::EventSink;
use crate::metrics_log::{LogLines, MetricsLog, Stands, cut_back};
use crate::run_error::{refused, unusable};
use crate::runs::RunCosts;
use meshwright_diag::{Diagnostic, codes};
use serde::{Serialize, de::DeserializeOwned};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const SETTINGS: &str = "run.toml";
const PLAN: &str = "plan.json";
/// What a step costs by the Plan.
const COSTS: &str = "costs.json";
const METRICS: &str = "metrics.jsonl";
const CHECKPOINTS: &str = "checkpoints";
const LOCK: &str = "run.lock";
const MODEL: &str = "model.mw";
const LAYOUT: &str = "rules.layout";
/// The tokenizer of a model that was imported.
const TOKENIZER: &str = "tokenizer.json";
const HISTORY: &str = "history.jsonl";
/// Lines of `metrics.jsonl` that are none.
const ASIDE: &str = "metrics.damaged";
/// What else lies beside them in the folder of a run.
const BESIDE: [&str; 4] =
    ["metrics.csv", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"];

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
            if at.is_dir() { entries(&at).is_ok_and(|e| !e.is_empty()) } else { length > 0 }
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

    /// Writes what a step costs by the Plan, as JSON.
    ///
    /// # Errors
    ///
    /// E0511.
    pub(crate) fn write_costs(&self, costs: &RunCosts) -> Checked<()> {
        let text = serde_json::to_string(costs).map_err(|e| self.failed(COSTS, &e))?;
        self.write(COSTS, &format!("{text}\n"))
    }

    /// Writes a file of the tokenizer, under its plain name.
    ///
    /// # Errors
    ///
    /// E0511.
    pub(crate) fn write_tokenizer(&self, name: &str, text: &str) -> Checked<()> {
        self.write(name, text)
    }

    fn write(&self, name: &str, text: &str) -> Checked<()> {
        write_durably(&self.disk, name, &[text.as_bytes()]).map_err(|e| self.failed(name, &e))
    }

    /// What `metrics.jsonl` holds.
    pub(crate) fn metrics_text(&self) -> Checked<Vec<u8>> {
        read_log(self.path())
    }

    /// Opens `metrics.jsonl` to append, after cutting it back to what a run had written that stands there: what came later
    /// will come again. A torn last line goes too. Lines that are no events are set aside in a file beside it; what is said
    /// of that comes second. `sinks` are made for the lines that are kept.
    ///
    /// # Errors
    ///
    /// E0511 where it cannot be read or written.
    pub(crate) fn metrics(
        &self,
        stands: Stands,
        sinks: impl FnOnce(&[u8]) -> Checked<Vec<Box<dyn EventSink>>>,
    ) -> Checked<(MetricsLog, Option<String>)> {
        let text = self.metrics_text()?;
        let LogLines { kept, bad } = cut_back(&text, stands);
        let mut note = None;
        if !bad.is_empty() {
            let lines = bad.split(|b| *b == b'\n').count() - 1;
            self.append(ASIDE, &bad).map_err(|e| self.failed(ASIDE, &e))?;
            note = Some(format!(
                "`{METRICS}` has {lines} damaged line{}: set aside in `{ASIDE}`",
                if lines == 1 { "" } else { "s" }
            ));
        }
        if kept != text {
            write_durably(&self.disk, METRICS, &[&kept]).map_err(|e| self.failed(METRICS, &e))?;
        }
        let log = MetricsLog::open(self.path().join(METRICS), &kept, sinks(&kept)?)?;
        Ok((log, note))
    }

    /// Appends a line to `history.jsonl`, which keeps every start of the run, durably. A torn line of a crash stays, and ends
    /// where it was torn.
    ///
    /// # Errors
    ///
    /// E0511.
    pub fn remember<E: Serialize>(&self, event: &E) -> Checked<()> {
        let line = serde_json::to_string(event).map_err(|e| self.failed(HISTORY, &e))?;
        self.append(HISTORY, format!("{line}\n").as_bytes()).map_err(|e| self.failed(HISTORY, &e))
    }

    /// Appends lines to a file, durably.
    fn append(&self, name: &str, lines: &[u8]) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = open_regular(&self.path().join(name), options.create(true).read(true).append(true))?;
        let mut last = [b'\n'];
        if file.metadata()?.len() > 0 {
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
        }
        let torn: &[u8] = if last == [b'\n'] { b"" } else { b"\n" };
        file.write_all(&[torn, lines].concat())?;
        file.sync_all()?;
        self.disk.sync_folder()
    }

    fn failed(&self, name: &str, why: &dyn std::fmt::Display) -> Box<Diagnostic> {
        unusable(&self.path().join(name), why)
    }
}

/// The folder of a run's checkpoints, for those who only read.
pub fn checkpoints_in(run: &Path) -> PathBuf {
    run.join(CHECKPOINTS)
}

/// What `metrics.jsonl` of a run holds; nothing where there is none yet.
///
/// # Errors
///
/// E0511.
pub(crate) fn read_log(run: &Path) -> Checked<Vec<u8>> {
    Ok(read_if_there(&run.join(METRICS))?.unwrap_or_default())
}

/// What `history.jsonl` of a run holds; nothing where there is none.
///
/// # Errors
///
/// E0511.
pub(crate) fn read_history(run: &Path) -> Checked<Vec<u8>> {
    Ok(read_if_there(&run.join(HISTORY))?.unwrap_or_default())
}

/// What a step of a run costs; none of a run that did not train, or that an earlier version has started.
///
/// # Errors
///
/// E0511.
pub(crate) fn read_costs(run: &Path) -> Checked<Option<RunCosts>> {
    let path = run.join(COSTS);
    let text = read_if_there(&path)?;
    text.map(|t| serde_json::from_slice(&t).map_err(|e| unusable(&path, &e))).transpose()
}

fn read_if_there(path: &Path) -> Checked<Option<Vec<u8>>> {
    match read_regular(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(unusable(path, &e)),
    }
}

/// The file that is locked as long as a process is at work in a run.
pub fn lock_of(run: &Path) -> PathBuf {
    run.join(LOCK)
}

/// The tokenizer that was imported with a run, if one was.
pub fn tokenizer_in(run: &Path) -> Option<PathBuf> {
    Some(run.join(TOKENIZER)).filter(|t| t.is_file())
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
pub fn holds_run(folder: &Path) -> bool {
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

/// Whether a run writes a file of that name into its folder.
pub(crate) fn writes(name: &str) -> bool {
    let own = [SETTINGS, PLAN, COSTS, METRICS, LOCK, MODEL, LAYOUT, TOKENIZER, HISTORY, ASIDE];
    let used = || name.strip_prefix("used-")?.strip_suffix(".mw")?.parse::<usize>().ok();
    own.contains(&name) || BESIDE.contains(&name) || name.starts_with(TEMP) || used().is_some()
}

/// When a file of a run goes, where the run is removed: as long as the settings are there the folder holds a run, and as long as the
/// lock is, nobody else begins one.
pub(crate) fn removal_order(name: &str) -> u8 {
    match name {
        LOCK => 2,
        SETTINGS => 1,
        _ => 0,
    }
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::metrics::{Event, StepMetrics};
    use serde::Deserialize;

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
        assert!(run.checkpoints().unwrap().newest().unwrap().is_none());
        let file = parent.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(RunDir::create(&file).unwrap_err().code.id, "E0510");
    }

    #[test]
    fn a_log_goes_on_after_the_checkpoint_and_damaged_lines_are_set_aside() {
        let parent = tempfile::tempdir().unwrap();
        let run = RunDir::create(parent.path()).unwrap();
        let step = |step| Event::Step(StepMetrics { step, loss: step as f64, ..StepMetrics::default() });
        let stands = |steps, epochs| Stands { steps, epochs, open: false };
        let open = |steps, epochs| run.metrics(stands(steps, epochs), |_| Ok(vec![])).unwrap();
        let lines: Vec<String> = (1..=4).map(|n| step(n).line()).collect();
        let (mut log, _) = open(0, 0);
        lines.iter().zip(1..).for_each(|(line, n)| log.append(line, &step(n)).unwrap());
        log.sync().unwrap();
        let path = parent.path().join(METRICS);
        let text = |n: usize| lines[..n].iter().map(|l| format!("{l}\n")).collect::<String>();
        let (written, mark) = (std::fs::read_to_string(&path).unwrap(), log.mark());
        assert_eq!((written.as_str(), mark.bytes), (text(4).as_str(), text(4).len() as u64));

        // A torn last line, and a damaged one.
        std::fs::write(&path, format!("{}noise\n{{\"event\":\"st", text(3))).unwrap();
        let (log, note) = open(2, 0);
        assert_eq!(log.mark().bytes, text(2).len() as u64);
        assert_eq!(note.unwrap(), "`metrics.jsonl` has 1 damaged line: set aside in `metrics.damaged`");
        assert_eq!(std::fs::read_to_string(parent.path().join(ASIDE)).unwrap(), "noise\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text(2));
    }

    #[test]
    #[cfg(unix)]
    fn files_that_are_links_or_pipes_are_refused() {
        let parent = tempfile::tempdir().unwrap();
        let run = RunDir::create(parent.path()).unwrap();
        let outside = tempfile::NamedTempFile::new().unwrap();
        std::os::unix::fs::symlink(outside.path(), parent.path().join(METRICS)).unwrap();
        let stands = Stands { steps: 0, epochs: 0, open: false };
        let open = || run.metrics(stands, |_| Ok(vec![])).err().unwrap();
        assert!(open().message.contains("a symbolic link, not a regular file"), "{}", open().message);
        std::fs::remove_file(parent.path().join(METRICS)).unwrap();
        let made = std::process::Command::new("mkfifo").arg(parent.path().join(METRICS)).status().unwrap();
        assert!(made.success());
        assert!(open().message.contains("not a regular file"), "{}", open().message);
    }
}
