//! The folder of a run's checkpoints.

use super::encode::{self, Checkpoint, FORMAT, Meta, TensorInfo};
use super::names::{BEST, data_step, manifest_step, stem};
use super::tensor_file::TensorFile;
use meshwright_diag::{Diagnostic, codes};
use meshwright_files::durable::{FileReader, Fs, remove_leftovers, tried, write_durably};
use meshwright_files::folder::Folder;
use meshwright_files::{Checked, RawTensor};
use serde::{Deserialize, Serialize};
use sha2::Digest;
use std::io::{self, Read};
use std::path::Path;

/// Number of checkpoints that are kept by default.
const KEEP: usize = 2;

/// Advice for a folder without a checkpoint.
pub const NAME_A_RUN: &str = "name a run that has saved a checkpoint (`meshwright runs ls` lists runs), or go on with this one: `meshwright train --run RUN --resume`";

/// Most bytes of a manifest.
const MAX_MANIFEST: u64 = 1 << 20;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    format: u32,
    meta: Meta,
    files: Vec<File>,
}

impl Manifest {
    /// The name of its file.
    pub(super) fn file(&self) -> &str {
        self.files.first().map_or("", |f| f.name.as_str())
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) name: String,
    bytes: u64,
    sha256: String,
}

/// A folder of checkpoints.
#[derive(Debug)]
pub struct Store<F = Folder> {
    pub(super) fs: F,
    /// Name in messages.
    pub(super) name: String,
    /// Number of the newest checkpoints that are kept.
    pub(super) keep: usize,
}

/// A checkpoint of a folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Which {
    /// The newest good one.
    #[default]
    Newest,
    /// The one that was noted as the best.
    Best,
    /// That of a step.
    Step(u64),
}

/// As `--from` has it; the newest is what is taken without.
impl std::fmt::Display for Which {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Which::Newest => f.write_str("the newest"),
            Which::Best => f.write_str("best"),
            Which::Step(step) => write!(f, "{step}"),
        }
    }
}

/// Refuses to choose among the checkpoints of one file.
pub fn one_only(file: &Path, which: Which) -> Checked<()> {
    if which == Which::Newest {
        return Ok(());
    }
    let message = format!("`--from {which}`, but `{}` is a file, which holds one checkpoint", file.display());
    Err(Box::new(
        Diagnostic::error(codes::E0516, message).help("leave `--from` out, or name the folder of the run"),
    ))
}

/// The best checkpoint by a metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Its step.
    pub step: u64,
    /// The metric by which it is the best.
    pub metric: String,
    /// The value.
    pub value: f64,
}

/// Why a checkpoint cannot be loaded.
pub(super) enum Unusable {
    /// It differs from the bytes that were written.
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
    /// The fault.
    pub why: String,
}

impl std::fmt::Display for Skipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the checkpoint of step {} cannot be used: {}", self.step, self.why)
    }
}

/// The newest good checkpoint.
#[derive(Debug)]
pub struct Loaded {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// Newer ones that are damaged.
    pub skipped: Vec<Skipped>,
}

/// The contents of a checkpoint, from its header.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Position of the run.
    pub meta: Meta,
    /// Its tensors by name.
    pub tensors: Vec<TensorInfo>,
    /// Name of the file that holds them.
    pub file: String,
    /// Size of that file.
    pub bytes: u64,
}

impl Store<Folder> {
    /// The checkpoints in `folder`, to write more: creates it if it is missing, and removes remains of interrupted
    /// writes.
    ///
    /// # Errors
    ///
    /// E0514 where the folder cannot be written.
    pub fn create(folder: Folder) -> Checked<Self> {
        let name = folder.path().display().to_string();
        let folder = folder.create().map_err(|e| failed(&name, &e))?;
        Store::on(folder, name)
    }

    /// The checkpoints in `folder`, to read only: nothing in it is touched.
    pub fn read_only(folder: Folder) -> Self {
        Store { name: folder.path().display().to_string(), fs: folder, keep: KEEP }
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

    /// The same, which keeps this number of the newest, at least one, besides the best.
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
        write_durably(&self.fs, BEST, &[&json]).map_err(|e| failed(&self.name, &e))?;
        // The one that was the best before need not stay.
        let Some(newest) = self.newest_step()? else { return Ok(()) };
        match self.manifest(newest) {
            Ok((_, file)) => self.prune(newest, &file.name).map_err(|e| failed(&self.name, &e)),
            Err(_) => Ok(()),
        }
    }

    /// The checkpoint noted as the best, if one was and it is there.
    ///
    /// # Errors
    ///
    /// If the system does not give the note, so that the best is not taken for a worthless one.
    pub fn best(&self) -> io::Result<Option<Best>> {
        let read = tried(|| {
            let (mut source, len) = self.fs.open(BEST)?;
            let mut bytes = Vec::new();
            (&mut source).take(len.min(MAX_MANIFEST)).read_to_end(&mut bytes).map(|_| bytes)
        });
        let bytes = match read {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let malformed = |e| {
            io::Error::other(format!("`{BEST}` is malformed ({e}): remove it to go on without a best one"))
        };
        let best: Best = serde_json::from_slice(&bytes).map_err(malformed)?;
        let there = self.fs.list()?.iter().filter_map(|n| manifest_step(n)).any(|s| s == best.step);
        Ok(there.then_some(best))
    }

    /// The newest step that has a manifest.
    ///
    /// # Errors
    ///
    /// E0512 where the folder cannot be read.
    pub fn newest_step(&self) -> Checked<Option<u64>> {
        Ok(self.steps()?.pop())
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
        let manifest = self.write_tensors(meta, tensors)?;
        self.write_manifest(&manifest)?;
        self.prune(meta.step, manifest.file()).map_err(|e| {
            let d = failed(&self.name, &e);
            Box::new(d.note(format!(
                "the checkpoint of step {} is written, but older ones cannot be removed",
                meta.step
            )))
        })
    }

    /// Writes the tensors of a checkpoint, which counts once its manifest is written.
    pub(super) fn write_tensors<'a>(
        &self,
        meta: &Meta,
        tensors: impl IntoIterator<Item = (&'a str, &'a RawTensor)>,
    ) -> Checked<Manifest> {
        let tensors: Vec<_> = tensors.into_iter().collect();
        let encoded = encode::encode(meta, &tensors).map_err(|e| failed(&self.name, &e))?;
        let parts = encoded.parts();
        let mut hash = sha2::Sha256::new();
        parts.iter().for_each(|part| hash.update(part));
        let sha256 = hex(hash);
        // The name holds the content's hash: a second checkpoint of the same step replaces the first only by its manifest.
        let name = format!("{}-{}.safetensors", stem(meta.step), &sha256[..16]);
        let file = File { name: name.clone(), bytes: encoded.len(), sha256 };
        write_durably(&self.fs, &name, &parts).map_err(|e| failed(&self.name, &e))?;
        Ok(Manifest { format: FORMAT, meta: meta.clone(), files: vec![file] })
    }

    /// Writes a manifest, and replaces one of the same step.
    pub(super) fn write_manifest(&self, manifest: &Manifest) -> Checked<()> {
        let json = serde_json::to_vec_pretty(manifest).map_err(|e| failed(&self.name, &e))?;
        let name = format!("{}.json", stem(manifest.meta.step));
        write_durably(&self.fs, &name, &[&json]).map_err(|e| failed(&self.name, &e))
    }

    /// Removes the files of a step but the one that its manifest names.
    pub(super) fn remove_others(&self, step: u64, keep: &str) -> Checked<()> {
        let others = |n: &&String| data_step(n) == Some(step) && n.as_str() != keep;
        let remove = || self.fs.list()?.iter().filter(others).try_for_each(|n| self.fs.remove(n));
        remove().map_err(|e| failed(&self.name, &e))
    }

    /// Loads a checkpoint; `None` where there has never been one.
    ///
    /// # Errors
    ///
    /// E0512 if the requested one is missing or damaged, and the errors of [`Store::newest`].
    pub fn find(&self, which: Which) -> Checked<Option<Loaded>> {
        let missing = |what: String| {
            let d = Diagnostic::error(codes::E0512, format!("`{}` holds no {what}", self.name));
            let steps: Vec<String> = self.steps().unwrap_or_default().iter().map(u64::to_string).collect();
            Box::new(if steps.is_empty() {
                d.help(NAME_A_RUN)
            } else {
                d.help(format!("it holds those of steps {}", steps.join(", ")))
            })
        };
        let step = match which {
            Which::Newest => return self.newest(),
            Which::Step(step) => step,
            Which::Best => match self.best().map_err(|e| self.unreadable(&e))? {
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
        Ok(Some(Loaded { checkpoint: self.at(step)?, skipped: vec![] }))
    }

    /// Loads the checkpoint of a step.
    pub(super) fn at(&self, step: u64) -> Checked<Checkpoint> {
        self.load(step).map_err(|unusable| self.not_usable(step, unusable))
    }

    pub(super) fn not_usable(&self, step: u64, unusable: Unusable) -> Box<Diagnostic> {
        let (Unusable::Damaged(why) | Unusable::Unread(why)) = unusable;
        let message = format!("the checkpoint of step {step} in `{}` cannot be used: {why}", self.name);
        Box::new(Diagnostic::error(codes::E0512, message))
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

    /// The checkpoint without a manifest. One file of tensors may be of a first checkpoint that was cut off before its
    /// manifest: it counts if it is whole. Several have lost theirs: a run must not begin again on top of them.
    fn unlisted(&self) -> Checked<Option<Loaded>> {
        let names = self.names()?;
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
        let names = self.names()?;
        let (mut repaired, mut bad) = (vec![], vec![]);
        for name in names.iter().filter(|n| data_step(n).is_some()) {
            let step = data_step(name).unwrap_or_default();
            if names.contains(&format!("{}.json", stem(step))) {
                continue;
            }
            match self.whole(name) {
                Ok((checkpoint, file)) => {
                    let manifest = Manifest { format: FORMAT, meta: checkpoint.meta, files: vec![file] };
                    self.write_manifest(&manifest)?;
                    repaired.push(step);
                }
                Err(why) => bad.push(Skipped { step, why }),
            }
        }
        Ok((repaired, bad))
    }

    /// A file of tensors that is what its name says.
    fn whole(&self, name: &str) -> Result<(Checkpoint, File), String> {
        let (mut source, bytes) = self.fs.open(name).map_err(|e| e.to_string())?;
        let sha256 = hashed(&mut *source).map_err(|e| e.to_string())?;
        let checkpoint = TensorFile::new(source, bytes).and_then(Checkpoint::of)?;
        if *name != format!("{}-{}.safetensors", stem(checkpoint.meta.step), &sha256[..16]) {
            return Err(format!("`{name}` is not what was written under this name"));
        }
        Ok((checkpoint, File { name: name.into(), bytes, sha256 }))
    }

    pub(super) fn unreadable(&self, why: &dyn std::fmt::Display) -> Box<Diagnostic> {
        let message = format!("the checkpoints in `{}` cannot be read: {why}", self.name);
        Box::new(Diagnostic::error(codes::E0512, message))
    }

    /// Names of all files.
    fn names(&self) -> Checked<Vec<String>> {
        self.fs.list().map_err(|why| {
            let d = self.unreadable(&why);
            if why.kind() == io::ErrorKind::NotFound { Box::new(d.help(NAME_A_RUN)) } else { d }
        })
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
        let names = self.names()?;
        let mut steps: Vec<u64> = names.iter().filter_map(|n| manifest_step(n)).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    /// Opens a file, which must have as many bytes as `fits` accepts, and reads of it. What fails for the moment is tried again.
    fn read<T>(
        &self,
        name: &str,
        fits: impl Fn(u64) -> Result<(), String>,
        read: impl Fn(Box<dyn FileReader>, u64) -> io::Result<T>,
    ) -> Result<T, Unusable> {
        let once = || -> io::Result<Result<T, String>> {
            let (source, len) = self.fs.open(name)?;
            match fits(len) {
                Ok(()) => read(source, len).map(Ok),
                Err(why) => Ok(Err(why)),
            }
        };
        match tried(once) {
            Ok(read) => read.map_err(Unusable::Damaged),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                Err(Unusable::Damaged(format!("`{name}` is missing")))
            }
            Err(e) => Err(Unusable::Unread(format!("`{name}`: {e}"))),
        }
    }

    fn manifest(&self, step: u64) -> Result<(Manifest, File), Unusable> {
        let name = format!("{}.json", stem(step));
        let small =
            |len| if len > MAX_MANIFEST { Err(format!("its manifest has {len} bytes")) } else { Ok(()) };
        let bytes = self.read(&name, small, |mut source, _| {
            let mut bytes = Vec::new();
            source.read_to_end(&mut bytes).map(|_| bytes)
        })?;
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
        Ok(self.loaded(step)?.1)
    }

    /// A checkpoint, and the file of its tensors.
    pub(super) fn loaded(&self, step: u64) -> Result<(File, Checkpoint), Unusable> {
        let (manifest, file) = self.manifest(step)?;
        let opened = self.read(
            &file.name,
            |len| sized(&file, len),
            |mut source, len| Ok((hashed(&mut *source)?, source, len)),
        );
        let (sha256, source, len) = opened?;
        if sha256 != file.sha256 {
            return Err(format!("`{}` is damaged: its SHA-256 is wrong", file.name).into());
        }
        let checkpoint = TensorFile::new(source, len).and_then(Checkpoint::of)?;
        if checkpoint.meta != manifest.meta {
            return Err(Unusable::Damaged("its manifest contradicts its file".into()));
        }
        Ok((file, checkpoint))
    }

    fn describe(&self, step: u64) -> Result<Entry, String> {
        let (_, file) = self.manifest(step).map_err(|e| match e {
            Unusable::Damaged(why) | Unusable::Unread(why) => why,
        })?;
        let (source, len) =
            self.fs.open(&file.name).map_err(|e| format!("`{}` cannot be read: {e}", file.name))?;
        sized(&file, len)?;
        let opened = TensorFile::new(source, len).and_then(Checkpoint::of);
        let Checkpoint { meta, tensors, .. } = opened.map_err(|why| format!("`{}`: {why}", file.name))?;
        Ok(Entry { meta, tensors, file: file.name, bytes: len })
    }
}

fn sized(file: &File, len: u64) -> Result<(), String> {
    if len == file.bytes {
        return Ok(());
    }
    Err(format!("`{}` has {len} bytes instead of {}", file.name, file.bytes))
}

fn hex(hash: sha2::Sha256) -> String {
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// The SHA-256 of a whole file, which is then at its start again.
fn hashed(source: &mut dyn FileReader) -> io::Result<String> {
    let (mut hash, mut piece) = (sha2::Sha256::new(), vec![0; 1 << 20]);
    loop {
        match source.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => hash.update(&piece[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    source.rewind()?;
    Ok(hex(hash))
}

pub(super) fn failed(place: &str, why: &dyn std::fmt::Display) -> Box<Diagnostic> {
    let message = format!("the checkpoint in `{place}` cannot be written: {why}");
    Box::new(Diagnostic::error(codes::E0514, message))
}
