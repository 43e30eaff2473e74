//! The folder of a run's checkpoints.

use super::encode::{self, Checkpoint, FORMAT, Meta, TensorInfo};
use super::fs::{Disk, Fs, remove_leftovers, write_durably};
use crate::{Checked, RawTensor};
use meshwright_diag::{Diagnostic, codes};
use serde::{Deserialize, Serialize};
use sha2::Digest;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::Duration;

/// How many checkpoints are kept, unless more are asked for.
const KEEP: usize = 2;

/// Which checkpoint is the best, beside the manifests.
const BEST: &str = "best.json";

/// How often a read that fails is tried, and how long is waited in between.
const TRIES: usize = 3;
const PAUSE: Duration = Duration::from_millis(100);

/// Most bytes of a manifest, and of the header of a safetensors file.
const MAX_MANIFEST: u64 = 1 << 20;
const MAX_HEADER: u64 = 100 << 20;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    format: u32,
    meta: Meta,
    files: Vec<File>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    bytes: u64,
    sha256: String,
}

/// A folder of checkpoints.
#[derive(Debug)]
pub struct Store<F = Disk> {
    fs: F,
    /// As messages call it.
    name: String,
    /// How many of the newest are kept.
    keep: usize,
}

/// Which checkpoint of a folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// The newest good one.
    #[default]
    Newest,
    /// The one that was noted as the best.
    Best,
    /// That of a step.
    Step(u64),
}

/// The best checkpoint by a metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Its step.
    pub step: u64,
    /// What it is the best by.
    pub metric: String,
    /// The value.
    pub value: f64,
}

/// Why a checkpoint cannot be loaded.
enum Unusable {
    /// It is not what was written.
    Damaged(String),
    /// The system does not give it; it may be whole.
    Unread(String),
}

impl From<String> for Unusable {
    fn from(why: String) -> Self {
        Unusable::Damaged(why)
    }
}

/// A checkpoint that was passed over, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Its step.
    pub step: u64,
    /// What is wrong with it.
    pub why: String,
}

impl std::fmt::Display for Skipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the checkpoint of step {} cannot be used: {}", self.step, self.why)
    }
}

/// The newest good checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// Newer ones that are damaged.
    pub skipped: Vec<Skipped>,
}

/// What a checkpoint holds, from its header.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Where the run stood.
    pub meta: Meta,
    /// Its tensors by name.
    pub tensors: Vec<TensorInfo>,
    /// Name of the file that holds them.
    pub file: String,
    /// Size of that file.
    pub bytes: u64,
}

impl Store<Disk> {
    /// The checkpoints in `folder`, to write more: creates it where it is missing, and removes what interrupted writes left.
    ///
    /// # Errors
    ///
    /// E0514 where the folder cannot be written.
    pub fn create(folder: impl Into<PathBuf>) -> Checked<Self> {
        let folder = folder.into();
        let name = folder.display().to_string();
        let disk = Disk::create(folder).map_err(|e| failed(&name, &e))?;
        Store::on(disk, name)
    }

    /// The checkpoints in `folder`, to read only: nothing in it is touched.
    pub fn read_only(folder: impl Into<PathBuf>) -> Self {
        let folder = folder.into();
        Store { name: folder.display().to_string(), fs: Disk::existing(folder), keep: KEEP }
    }
}

impl<F: Fs> Store<F> {
    /// The same over any file operations.
    pub(super) fn on(fs: F, name: String) -> Checked<Self> {
        remove_leftovers(&fs).map_err(|e| failed(&name, &e))?;
        Ok(Store { fs, name, keep: KEEP })
    }

    #[cfg(test)]
    pub(super) fn file_operations(&self) -> &F {
        &self.fs
    }

    /// The same, of which so many of the newest are kept, at least one, beside the best.
    pub fn keeping(self, keep: usize) -> Self {
        Store { keep: keep.max(1), ..self }
    }

    /// Notes that the checkpoint of a step is the best, durably.
    ///
    /// # Errors
    ///
    /// E0514.
    pub fn mark_best(&self, step: u64, metric: &str, value: f64) -> Checked<()> {
        let best = Best { step, metric: metric.into(), value };
        let json = serde_json::to_vec(&best).map_err(|e| failed(&self.name, &e))?;
        write_durably(&self.fs, BEST, &json).map_err(|e| failed(&self.name, &e))?;
        // The one that was the best before need not stay.
        let Some(newest) = self.newest_step() else { return Ok(()) };
        match self.manifest(newest) {
            Ok((_, file)) => self.prune(newest, &file.name).map_err(|e| failed(&self.name, &e)),
            Err(_) => Ok(()),
        }
    }

    /// Which checkpoint was noted as the best, if one was and it is there.
    pub fn best(&self) -> Option<Best> {
        let (mut reader, len) = self.fs.open(BEST).ok()?;
        let mut bytes = Vec::new();
        if len > MAX_MANIFEST || reader.read_to_end(&mut bytes).is_err() {
            return None;
        }
        let best: Best = serde_json::from_slice(&bytes).ok()?;
        self.steps().ok()?.contains(&best.step).then_some(best)
    }

    /// The newest step that has a manifest.
    pub fn newest_step(&self) -> Option<u64> {
        self.steps().ok()?.pop()
    }

    /// Saves a checkpoint: when this returns, it survives a crash. Then removes all but it and those before it that are kept.
    ///
    /// # Errors
    ///
    /// E0514; the earlier checkpoints are there as before.
    pub fn save<'a>(
        &self,
        meta: &Meta,
        tensors: impl IntoIterator<Item = (&'a str, &'a RawTensor)>,
    ) -> Checked<()> {
        let tensors: Vec<_> = tensors.into_iter().collect();
        let bytes = encode::encode(meta, &tensors).map_err(|e| failed(&self.name, &e))?;
        let sha256 = hex(&bytes);
        // The name holds the content's hash: a second checkpoint of the same step replaces the first only by its manifest.
        let name = format!("{}-{}.safetensors", stem(meta.step), &sha256[..16]);
        let file = File { name: name.clone(), bytes: bytes.len() as u64, sha256 };
        let manifest = Manifest { format: FORMAT, meta: meta.clone(), files: vec![file] };
        let json = serde_json::to_vec_pretty(&manifest).map_err(|e| failed(&self.name, &e))?;
        write_durably(&self.fs, &name, &bytes).map_err(|e| failed(&self.name, &e))?;
        write_durably(&self.fs, &format!("{}.json", stem(meta.step)), &json)
            .map_err(|e| failed(&self.name, &e))?;
        self.prune(meta.step, &name).map_err(|e| {
            let d = failed(&self.name, &e);
            Box::new(d.note(format!(
                "the checkpoint of step {} is written, but older ones cannot be removed",
                meta.step
            )))
        })
    }

    /// Removes all but the checkpoint of `step`, with its file `keep`, and those before it that are kept. Later steps are left
    /// over from a run that went on from an earlier checkpoint because they are damaged.
    fn prune(&self, step: u64, keep: &str) -> io::Result<()> {
        let names = self.fs.list()?;
        let mut steps: Vec<u64> =
            names.iter().filter_map(|n| manifest_step(n)).filter(|s| *s <= step).collect();
        steps.sort_unstable();
        let mut kept = steps[steps.len().saturating_sub(self.keep)..].to_vec();
        kept.extend(self.best().map(|b| b.step));
        let old = |n: &&String| manifest_step(n).is_some_and(|s| !kept.contains(&s));
        let mut removed = false;
        for name in names.iter().filter(old) {
            self.fs.remove(name)?;
            removed = true;
        }
        if removed {
            // No manifest may outlive its file.
            self.fs.sync_folder()?;
        }
        let unused = |n: &&String| {
            data_step(n).is_some_and(|s| if s == step { n.as_str() != keep } else { !kept.contains(&s) })
        };
        for name in names.iter().filter(unused) {
            self.fs.remove(name)?;
        }
        Ok(())
    }

    /// Loads a checkpoint; `None` where there has never been one.
    ///
    /// # Errors
    ///
    /// E0512 where the one that is asked for is not there or damaged, and those of [`Store::newest`].
    pub fn find(&self, which: Which) -> Checked<Option<Loaded>> {
        let missing = |what: String| {
            let d = Diagnostic::error(codes::E0512, format!("`{}` holds no {what}", self.name));
            let steps: Vec<String> = self.steps().unwrap_or_default().iter().map(u64::to_string).collect();
            Box::new(if steps.is_empty() {
                d
            } else {
                d.help(format!("it holds those of steps {}", steps.join(", ")))
            })
        };
        let step = match which {
            Which::Newest => return self.newest(),
            Which::Step(step) => step,
            Which::Best => match self.best() {
                Some(best) => best.step,
                None => {
                    let d = missing("checkpoint that was noted as the best".into());
                    return Err(Box::new(d.help("`--keep-best METRIC` of `train` keeps one")));
                }
            },
        };
        if !self.steps()?.contains(&step) {
            return Err(missing(format!("checkpoint of step {step}")));
        }
        match self.load(step) {
            Ok(checkpoint) => Ok(Some(Loaded { checkpoint, skipped: vec![] })),
            Err(Unusable::Damaged(why) | Unusable::Unread(why)) => {
                let message =
                    format!("the checkpoint of step {step} in `{}` cannot be used: {why}", self.name);
                Err(Box::new(Diagnostic::error(codes::E0512, message)))
            }
        }
    }

    /// Loads the newest checkpoint whose manifest and checksums are right, or `None` where there has never been one.
    ///
    /// # Errors
    ///
    /// E0512 where there are checkpoints and none is good, where the folder or a newer checkpoint cannot be read, and where
    /// tensors are there and their manifests are gone.
    pub fn newest(&self) -> Checked<Option<Loaded>> {
        let mut steps = self.steps()?;
        let mut skipped = Vec::new();
        while let Some(step) = steps.pop() {
            match self.load(step) {
                Ok(checkpoint) => return Ok(Some(Loaded { checkpoint, skipped })),
                Err(Unusable::Damaged(why)) => skipped.push(Skipped { step, why }),
                // To go back to an older one for a disk that does not answer would throw work away.
                Err(Unusable::Unread(why)) => {
                    let message =
                        format!("the checkpoint of step {step} in `{}` cannot be read: {why}", self.name);
                    let d = Diagnostic::error(codes::E0512, message);
                    return Err(Box::new(d.help(
                        "try again once the disk answers, or choose an older one with `--from STEP`",
                    )));
                }
            }
        }
        if skipped.is_empty() {
            return self.unlisted();
        }
        let mut error =
            Diagnostic::error(codes::E0512, format!("no checkpoint in `{}` is usable", self.name));
        for s in &skipped {
            error = error.note(format!("step {}: {}", s.step, s.why));
        }
        Err(Box::new(error.help("start again in another folder, or restore the files from a copy")))
    }

    /// What there is where there is no manifest. One file of tensors may be of a first checkpoint that was cut off before its
    /// manifest: it counts where it is whole. Several have lost theirs: a run must not begin again on top of them.
    fn unlisted(&self) -> Checked<Option<Loaded>> {
        let names = self.fs.list().map_err(|e| self.unreadable(&e))?;
        let files: Vec<&str> = names.iter().filter(|n| data_step(n).is_some()).map(String::as_str).collect();
        match files[..] {
            [] => return Ok(None),
            [one] => {
                let whole = self.whole(one).map(|(checkpoint, _)| checkpoint).ok();
                return Ok(whole.map(|checkpoint| Loaded { checkpoint, skipped: vec![] }));
            }
            _ => {}
        }
        let message = format!("`{}` has {} without a manifest", self.name, files.join(", "));
        let d = Diagnostic::error(codes::E0512, message);
        Err(Box::new(d.help("`meshwright ckpt repair RUN` writes manifests for those that are whole")))
    }

    /// Writes the manifests that are missing, for tensors that are whole by the hash in their name; gives their steps, and
    /// what is wrong with the others.
    ///
    /// # Errors
    ///
    /// E0512 where the folder cannot be read, E0514 where it cannot be written.
    pub fn repair(&self) -> Checked<(Vec<u64>, Vec<Skipped>)> {
        let names = self.fs.list().map_err(|e| self.unreadable(&e))?;
        let (mut repaired, mut bad) = (vec![], vec![]);
        for name in names.iter().filter(|n| data_step(n).is_some()) {
            let step = data_step(name).unwrap_or_default();
            if names.contains(&format!("{}.json", stem(step))) {
                continue;
            }
            match self.whole(name) {
                Ok((checkpoint, file)) => {
                    let manifest = Manifest { format: FORMAT, meta: checkpoint.meta, files: vec![file] };
                    let json = serde_json::to_vec_pretty(&manifest).map_err(|e| failed(&self.name, &e))?;
                    write_durably(&self.fs, &format!("{}.json", stem(step)), &json)
                        .map_err(|e| failed(&self.name, &e))?;
                    repaired.push(step);
                }
                Err(why) => bad.push(Skipped { step, why }),
            }
        }
        Ok((repaired, bad))
    }

    /// A file of tensors that is what its name says.
    fn whole(&self, name: &str) -> Result<(Checkpoint, File), String> {
        let (mut reader, _) = self.fs.open(name).map_err(|e| e.to_string())?;
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).map_err(|e| e.to_string())?;
        let sha256 = hex(&bytes);
        let checkpoint = encode::decode(&bytes)?;
        if *name != format!("{}-{}.safetensors", stem(checkpoint.meta.step), &sha256[..16]) {
            return Err(format!("`{name}` is not what was written under this name"));
        }
        Ok((checkpoint, File { name: name.into(), bytes: bytes.len() as u64, sha256 }))
    }

    fn unreadable(&self, why: &dyn std::fmt::Display) -> Box<Diagnostic> {
        let message = format!("the checkpoints in `{}` cannot be read: {why}", self.name);
        Box::new(Diagnostic::error(codes::E0512, message))
    }

    /// What the folder holds, oldest first, from manifests and headers: tensors are not read, checksums not checked.
    ///
    /// # Errors
    ///
    /// E0512 where the folder cannot be read.
    pub fn list(&self) -> Checked<(Vec<Entry>, Vec<Skipped>)> {
        let (mut entries, mut skipped) = (Vec::new(), Vec::new());
        for step in self.steps()? {
            match self.describe(step) {
                Ok(entry) => entries.push(entry),
                Err(why) => skipped.push(Skipped { step, why }),
            }
        }
        Ok((entries, skipped))
    }

    /// Steps that have a manifest, ascending.
    fn steps(&self) -> Checked<Vec<u64>> {
        let names = self.fs.list().map_err(|e| self.unreadable(&e))?;
        let mut steps: Vec<u64> = names.iter().filter_map(|n| manifest_step(n)).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    /// All bytes of a file, which must have as many as `fits` accepts. What fails for the moment is tried again.
    fn read(&self, name: &str, fits: impl Fn(u64) -> Result<(), String>) -> Result<Vec<u8>, Unusable> {
        let once = || -> io::Result<Result<Vec<u8>, String>> {
            let (mut reader, len) = self.fs.open(name)?;
            if let Err(why) = fits(len) {
                return Ok(Err(why));
            }
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes)?;
            Ok(Ok(bytes))
        };
        let mut last = None;
        for again in 0..TRIES {
            match once() {
                Ok(read) => return read.map_err(Unusable::Damaged),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    return Err(Unusable::Damaged(format!("`{name}` is missing")));
                }
                Err(e) => last = Some(e),
            }
            if again + 1 < TRIES {
                std::thread::sleep(PAUSE);
            }
        }
        let why = last.map_or(String::new(), |e| e.to_string());
        Err(Unusable::Unread(format!("`{name}`: {why}")))
    }

    fn manifest(&self, step: u64) -> Result<(Manifest, File), Unusable> {
        let name = format!("{}.json", stem(step));
        let small =
            |len| if len > MAX_MANIFEST { Err(format!("its manifest has {len} bytes")) } else { Ok(()) };
        let bytes = self.read(&name, small)?;
        let mut manifest: Manifest =
            serde_json::from_slice(&bytes).map_err(|e| format!("its manifest is malformed: {e}"))?;
        if manifest.format != FORMAT {
            return Err(format!("its format is {}, this program reads {FORMAT}", manifest.format).into());
        }
        if manifest.meta.step != step {
            return Err(format!("its manifest is that of step {}", manifest.meta.step).into());
        }
        match (manifest.files.pop(), manifest.files.is_empty()) {
            (Some(file), true) if data_step(&file.name) == Some(step) => Ok((manifest, file)),
            _ => Err(Unusable::Damaged("its manifest does not name its one file".into())),
        }
    }

    fn load(&self, step: u64) -> Result<Checkpoint, Unusable> {
        let (manifest, file) = self.manifest(step)?;
        let bytes = self.read(&file.name, |len| sized(&file, len))?;
        if hex(&bytes) != file.sha256 {
            return Err(format!("`{}` is damaged: its SHA-256 is wrong", file.name).into());
        }
        let checkpoint = encode::decode(&bytes)?;
        if checkpoint.meta != manifest.meta {
            return Err(Unusable::Damaged("its manifest contradicts its file".into()));
        }
        Ok(checkpoint)
    }

    fn describe(&self, step: u64) -> Result<Entry, String> {
        let (_, file) = self.manifest(step).map_err(|e| match e {
            Unusable::Damaged(why) | Unusable::Unread(why) => why,
        })?;
        let (mut reader, len) =
            self.fs.open(&file.name).map_err(|e| format!("`{}` cannot be read: {e}", file.name))?;
        sized(&file, len)?;
        let broken = |why: &dyn std::fmt::Display| format!("`{}` has a broken header: {why}", file.name);
        let mut size = [0; 8];
        reader.read_exact(&mut size).map_err(|e| broken(&e))?;
        let size = u64::from_le_bytes(size);
        if size > len.min(MAX_HEADER) {
            return Err(broken(&format!("it should take {size} bytes")));
        }
        let mut head = Vec::new();
        reader.take(size).read_to_end(&mut head).map_err(|e| broken(&e))?;
        let header: safetensors::tensor::Metadata = serde_json::from_slice(&head).map_err(|e| broken(&e))?;
        if (header.data_len() as u64).checked_add(8 + size) != Some(len) {
            return Err(broken(&"its tensors do not fill the file"));
        }
        let (meta, tensors) = encode::describe(&header)?;
        Ok(Entry { meta, tensors, file: file.name, bytes: len })
    }
}

fn sized(file: &File, len: u64) -> Result<(), String> {
    if len == file.bytes {
        return Ok(());
    }
    Err(format!("`{}` has {len} bytes instead of {}", file.name, file.bytes))
}

fn stem(step: u64) -> String {
    format!("step-{step:010}")
}

fn manifest_step(name: &str) -> Option<u64> {
    name.strip_prefix("step-")?.strip_suffix(".json")?.parse().ok()
}

fn data_step(name: &str) -> Option<u64> {
    name.strip_prefix("step-")?.strip_suffix(".safetensors")?.split_once('-')?.0.parse().ok()
}

fn hex(bytes: &[u8]) -> String {
    sha2::Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

fn failed(place: &str, why: &dyn std::fmt::Display) -> Box<Diagnostic> {
    let message = format!("the checkpoint in `{place}` cannot be written: {why}");
    Box::new(Diagnostic::error(codes::E0514, message))
}
