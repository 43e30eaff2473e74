//! The folder of a run: resolved settings (`run.toml`), copies of the texts it was made from (`model.mw`, `used-1.mw`,
//! `rules.layout`), `plan.json`, `costs.json`, `history.jsonl`, `metrics.jsonl` and `checkpoints/`. One that was imported has no
//! plan and no metrics, and the `tokenizer.json` that came with its weights.
//!
//! **Invariant:** a folder that holds a run, which is one with a `run.toml`, is never written to but to resume it, and by one
//! process at a time.

use crate::RunCosts;
use crate::checkpoint::Store;
use crate::half_made::HalfMade;
use crate::logs::{EventSink, TENSORBOARD};
use crate::metrics_log::{LogLines, MetricsLog, Stands, cut_back};
use crate::parsed;
use crate::run_error::{damaged, refused, unusable, unwritten};
use meshwright_diag::{Diagnostic, codes};
use meshwright_files::Checked;
use meshwright_files::durable::{TEMP, remove_leftovers, write_durably};
use meshwright_files::folder::{Folder, SETTINGS, holds_run};
use rustix::fs::OFlags;
use serde::{Serialize, de::DeserializeOwned};
use std::fs::{File, Metadata, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const PLAN: &str = "plan.json";
/// The costs of a step by the Plan.
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
/// Other files in the folder of a run.
const BESIDE: [&str; 4] =
    ["metrics.csv", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"];

/// The folder of a run that this process may write to.
#[derive(Debug)]
pub struct RunDir {
    folder: Folder,
    /// A new run that has no settings yet. It is removed before the lock is released.
    half_made: Option<HalfMade>,
    /// Held as long as this lives; the system releases it when the process ends, however it ends.
    _lock: File,
}

impl RunDir {
    /// Checks that a new run may be made there; nothing is written.
    ///
    /// # Errors
    ///
    /// E0510 where it holds a run, or remains of one that its `run.toml` is missing from; and if it is not a folder.
    pub fn vacant(path: &Path) -> Checked<()> {
        if path.exists() && !path.is_dir() {
            return Err(refused(path, codes::E0510, "it is not a folder"));
        }
        let folder = Folder::at(path);
        if folder.kind(SETTINGS).is_some() {
            let message = format!("`{}` already holds a run: there is a `{SETTINGS}`", path.display());
            let error = Diagnostic::error(codes::E0510, message);
            return Err(Box::new(
                error.help("continue it with `--resume`, or give another folder with `--run`"),
            ));
        }
        let there = folder.entries().unwrap_or_default();
        let filled = |name: &str| {
            there.iter().find(|e| e.name == name).is_some_and(|e| match e.kind.is_dir() {
                true => folder.below(name).entries().is_ok_and(|inside| !inside.is_empty()),
                false => e.bytes > 0,
            })
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

    /// Makes the folder of a new run. It holds a run once [`RunDir::write_settings`] has been called; when it is dropped before,
    /// what it has made is removed.
    ///
    /// # Errors
    ///
    /// Those of [`RunDir::vacant`]; E0510 too where another process is at work in it, E0511 where it cannot be made.
    pub fn create(path: &Path) -> Checked<RunDir> {
        Self::vacant(path)?;
        let mut half_made = HalfMade::before(path, makes);
        let mut dir = Self::open(path)?;
        // Another process may have made a run there in between.
        Self::vacant(path)?;
        half_made.fill(LOCK);
        dir.half_made = Some(half_made);
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
        remove_leftovers(&dir.folder).map_err(|e| dir.failed(METRICS, &e))?;
        Ok(dir)
    }

    fn open(path: &Path) -> Checked<RunDir> {
        if path.exists() && !path.is_dir() {
            return Err(refused(path, codes::E0510, "it is not a folder"));
        }
        let folder = Folder::at(path).create().map_err(|e| unwritten(path, &e))?;
        let lock = folder.file(LOCK, OFlags::WRONLY | OFlags::CREATE);
        let lock = lock.map_err(|e| unwritten(&path.join(LOCK), &e))?;
        match lock.try_lock() {
            Ok(()) => Ok(RunDir { folder, half_made: None, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(refused(path, codes::E0510, "another process trains in it")),
            Err(TryLockError::Error(e)) => Err(refused(path, codes::E0511, &e.to_string())),
        }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.root()
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
        self.write(SETTINGS, &text)?;
        if let Some(new) = &self.half_made {
            new.commit();
        }
        Ok(())
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
        read_text(&self.folder, MODEL).map_err(|e| self.failed(MODEL, &e))
    }

    /// Writes the Plan, as JSON.
    ///
    /// # Errors
    ///
    /// E0511.
    pub fn write_plan(&self, json: &str) -> Checked<()> {
        self.write(PLAN, json)
    }

    /// Writes the costs of a step by the Plan, as JSON.
    ///
    /// # Errors
    ///
    /// E0511.
    pub fn write_costs(&self, costs: &RunCosts) -> Checked<()> {
        let text = serde_json::to_string(costs).map_err(|e| self.failed(COSTS, &e))?;
        self.write(COSTS, &format!("{text}\n"))
    }

    /// Writes a file of the tokenizer, under its plain name.
    ///
    /// # Errors
    ///
    /// E0511.
    pub fn write_tokenizer(&self, name: &str, text: &str) -> Checked<()> {
        self.write(name, text)
    }

    fn write(&self, name: &str, text: &str) -> Checked<()> {
        write_durably(&self.folder, name, &[text.as_bytes()])
            .map_err(|e| unwritten(&self.path().join(name), &e))
    }

    /// The contents of `metrics.jsonl`.
    pub fn metrics_text(&self) -> Checked<Vec<u8>> {
        read_log(self.path())
    }

    /// Opens `metrics.jsonl` to append, after cutting it back to what a run had written that stands there: what came later
    /// will come again. A torn last line goes too. Lines that are not events are moved to a file next to it; the message
    /// about that comes second. `sinks` are made for the lines that are kept.
    ///
    /// # Errors
    ///
    /// E0511 where it cannot be read or written.
    pub fn metrics(
        &self,
        stands: Stands,
        sinks: impl FnOnce(&[u8]) -> Checked<Vec<Box<dyn EventSink>>>,
    ) -> Checked<(MetricsLog, Option<String>)> {
        let text = self.metrics_text()?;
        let LogLines { kept, bad } = cut_back(&text, stands);
        let mut note = None;
        if !bad.is_empty() {
            let lines = bad.split(|b| *b == b'\n').count() - 1;
            self.append(ASIDE, &bad)?;
            note = Some(format!(
                "`{METRICS}` has {lines} damaged line{}: set aside in `{ASIDE}`",
                if lines == 1 { "" } else { "s" }
            ));
        }
        if kept != text {
            write_durably(&self.folder, METRICS, &[&kept])
                .map_err(|e| unwritten(&self.path().join(METRICS), &e))?;
        }
        let log = MetricsLog::open(&self.folder, METRICS, &kept, sinks(&kept)?)?;
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
        self.append(HISTORY, format!("{line}\n").as_bytes())
    }

    /// Appends lines to a file, durably.
    fn append(&self, name: &str, lines: &[u8]) -> Checked<()> {
        self.appended(name, lines).map_err(|e| unwritten(&self.path().join(name), &e))
    }

    fn appended(&self, name: &str, lines: &[u8]) -> io::Result<()> {
        let mut file = self.folder.file(name, OFlags::RDWR | OFlags::CREATE | OFlags::APPEND)?;
        let mut last = [b'\n'];
        if file.metadata()?.len() > 0 {
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
        }
        let torn: &[u8] = if last == [b'\n'] { b"" } else { b"\n" };
        file.write_all(&[torn, lines].concat())?;
        file.sync_all()?;
        self.folder.sync_folder()
    }

    fn failed(&self, name: &str, why: &dyn std::fmt::Display) -> Box<Diagnostic> {
        unusable(&self.path().join(name), why)
    }
}

/// The folder of a run's checkpoints.
pub fn checkpoints_in(run: &Path) -> Folder {
    Folder::at(run).below(CHECKPOINTS)
}

/// The contents of a run's `metrics.jsonl`; empty if there is none yet.
///
/// # Errors
///
/// E0511.
pub fn read_log(run: &Path) -> Checked<Vec<u8>> {
    Ok(read_if_there(run, METRICS)?.unwrap_or_default())
}

/// Bytes of the longest line; a longer one is not an event.
const LONGEST_LINE: u64 = 1 << 24;

/// Hands out the lines of `metrics.jsonl` of a run, one after the other: a log may be larger than memory. None where there is
/// none yet.
///
/// # Errors
///
/// E0511.
pub fn each_log_line(run: &Path, mut take: impl FnMut(&[u8])) -> Checked<()> {
    let unread = |e: io::Error| unusable(&run.join(METRICS), &e);
    let file = match Folder::at(run).file(METRICS, OFlags::RDONLY) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened.map_err(unread)?,
    };
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut reader).take(LONGEST_LINE).read_until(b'\n', &mut line).map_err(unread)? as u64 {
            0 => return Ok(()),
            LONGEST_LINE if !line.ends_with(b"\n") => drop(reader.skip_until(b'\n').map_err(unread)?),
            _ => take(&line),
        }
    }
}

/// The contents of a run's `history.jsonl`; empty if there is none.
///
/// # Errors
///
/// E0511.
pub fn read_history(run: &Path) -> Checked<Vec<u8>> {
    Ok(read_if_there(run, HISTORY)?.unwrap_or_default())
}

/// The costs of a run's step; none for a run that did not train, or that an earlier version has started.
///
/// # Errors
///
/// E0511.
pub fn read_costs(run: &Path) -> Checked<Option<RunCosts>> {
    let text = read_if_there(run, COSTS)?;
    let help = "remove the file: the costs of a step are lost, and nothing else of the run";
    let costs = |t: Vec<u8>| parsed::json(&t).map_err(|why| damaged(&run.join(COSTS), &why, help));
    text.map(costs).transpose()
}

fn read_if_there(run: &Path, name: &str) -> Checked<Option<Vec<u8>>> {
    match Folder::at(run).read(name) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(unusable(&run.join(name), &e)),
    }
}

/// The file that is locked as long as a process is at work in a run.
pub fn lock_of(run: &Path) -> Option<Metadata> {
    Folder::at(run).file(LOCK, OFlags::RDONLY).and_then(|lock| lock.metadata()).ok()
}

/// The tokenizer that was imported with a run, if one was.
///
/// # Errors
///
/// E0511 where something that is not a file has its name.
pub fn tokenizer_in(run: &Path) -> Checked<Option<PathBuf>> {
    let path = run.join(TOKENIZER);
    match Folder::at(run).file(TOKENIZER, OFlags::RDONLY) {
        Ok(_) => Ok(Some(path)),
        // A run may also be named by a file of its tensors, which has none.
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(unusable(&path, &e)),
    }
}

/// There is nothing to resume.
pub fn no_run(path: &Path) -> Box<Diagnostic> {
    let message = format!("`{}` has no run to resume: there is no `{SETTINGS}`", path.display());
    let found = Diagnostic::error(codes::E0510, message).help("start it without `--resume`");
    Box::new(
        found.help("`--resume=auto` starts a run where there is none, and continues it where there is one"),
    )
}

/// Copies of the texts that a run was made from.
pub struct TextCopies {
    /// The file of the model, and the files that it uses.
    pub models: Vec<String>,
    /// The layout's rules.
    pub layout: String,
}

/// Reads the copies of a run's texts: `used` is the number of files that the model uses.
///
/// # Errors
///
/// E0511.
pub fn read_texts(run: &Path, used: usize) -> Checked<TextCopies> {
    let folder = Folder::at(run);
    let read = |name: &str| read_text(&folder, name).map_err(|e| unusable(&run.join(name), &e));
    let names = std::iter::once(MODEL.to_string()).chain((1..=used).map(used_name));
    let models = names.map(|n| read(&n)).collect::<Checked<Vec<String>>>()?;
    Ok(TextCopies { models, layout: read(LAYOUT)? })
}

/// Whether a run writes a file of that name into its folder.
pub fn writes(name: &str) -> bool {
    let own = [SETTINGS, PLAN, COSTS, METRICS, LOCK, MODEL, LAYOUT, TOKENIZER, HISTORY, ASIDE];
    let used = || name.strip_prefix("used-")?.strip_suffix(".mw")?.parse::<usize>().ok();
    own.contains(&name) || BESIDE.contains(&name) || name.starts_with(TEMP) || used().is_some()
}

/// Whether a run makes an entry of that name in its folder: a file, or a folder.
fn makes(name: &str) -> bool {
    writes(name) || [CHECKPOINTS, TENSORBOARD].contains(&name)
}

/// Position of a run's file in its removal: as long as the settings are there the folder holds a run, and as long as
/// the lock is, no other process begins one.
pub fn removal_order(name: &str) -> u8 {
    match name {
        LOCK => 2,
        SETTINGS => 1,
        _ => 0,
    }
}

fn used_name(n: usize) -> String {
    format!("used-{n}.mw")
}

/// The settings of a run are damaged.
pub fn unusable_settings(run: &Path, why: &dyn std::fmt::Display) -> Box<Diagnostic> {
    let init = format!(
        "begin another run with its newest checkpoint: `meshwright train MODEL --init {}`",
        run.display()
    );
    let help = "correct it there, or put a copy of the file in its place";
    Box::new(damaged(&run.join(SETTINGS), why, help).help(init))
}

/// Reads the resolved settings of a run.
///
/// # Errors
///
/// E0511.
pub fn read_settings<S: DeserializeOwned>(run: &Path) -> Checked<S> {
    let path = run.join(SETTINGS);
    let text = read_text(&Folder::at(run), SETTINGS).map_err(|e| unusable(&path, &e))?;
    parsed::toml(&text).map_err(|why| unusable_settings(run, &why))
}

fn read_text(folder: &Folder, name: &str) -> io::Result<String> {
    let bytes = folder.read(name)?;
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
    fn a_start_that_fails_leaves_nothing_behind() {
        let parent = tempfile::tempdir().unwrap();
        let names = |at: &Path| {
            let all = Folder::at(at).entries().unwrap().into_iter().map(|e| e.name.into_string().unwrap());
            all.collect::<Vec<_>>()
        };
        // A folder has the name of the file that is written: the write fails.
        let fails = |path: &Path| {
            let run = RunDir::create(path).unwrap();
            run.write_texts("model", &["used"], None).unwrap();
            run.checkpoints().unwrap();
            std::fs::create_dir(path.join(".tmp-plan.json")).unwrap();
            let error = run.write_plan("{}").unwrap_err();
            assert!(error.message.contains("plan.json` cannot be written"), "{}", error.message);
            // Of somebody else, meanwhile.
            std::fs::write(parent.path().join("mine/notes.txt"), "").unwrap();
        };
        let mine = parent.path().join("mine");
        std::fs::create_dir(&mine).unwrap();
        std::fs::write(mine.join("used-1.mw"), "").unwrap();
        fails(&mine.join("runs/a"));
        assert_eq!(names(&mine), ["notes.txt", "used-1.mw"]);
        fails(&mine);
        assert_eq!(names(&mine), ["notes.txt", "used-1.mw"]);
        // One that has settings stays.
        let whole = mine.join("runs/b");
        RunDir::create(&whole).unwrap().write_settings(&Settings { seed: 3, layout: String::new() }).unwrap();
        assert_eq!(names(&whole), ["run.lock", "run.toml"]);
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
