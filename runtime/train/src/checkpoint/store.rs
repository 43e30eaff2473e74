//! The folder of a run's checkpoints.

use super::encode::{self, Checkpoint, FORMAT, Meta, TensorInfo};
use super::fs::{Disk, Fs, remove_leftovers, write_durably};
use crate::{Checked, RawTensor};
use meshwright_diag::{Diagnostic, codes};
use serde::{Deserialize, Serialize};
use sha2::Digest;
use std::io::{self, Read};
use std::path::PathBuf;

/// How many checkpoints are kept.
const KEEP: usize = 2;

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
        Store { name: folder.display().to_string(), fs: Disk::existing(folder) }
    }
}

impl<F: Fs> Store<F> {
    /// The same over any file operations.
    pub(super) fn on(fs: F, name: String) -> Checked<Self> {
        remove_leftovers(&fs).map_err(|e| failed(&name, &e))?;
        Ok(Store { fs, name })
    }

    #[cfg(test)]
    pub(super) fn file_operations(&self) -> &F {
        &self.fs
    }

    /// Saves a checkpoint: when this returns, it survives a crash. Then removes all but it and the one before.
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
        let kept = &steps[steps.len().saturating_sub(KEEP)..];
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

    /// Loads the newest checkpoint whose manifest and checksums are right, or `None` where there has never been one.
    ///
    /// # Errors
    ///
    /// E0512 where there are checkpoints and none is good, or the folder cannot be read.
    pub fn newest(&self) -> Checked<Option<Loaded>> {
        let mut steps = self.steps()?;
        let mut skipped = Vec::new();
        while let Some(step) = steps.pop() {
            match self.load(step) {
                Ok(checkpoint) => return Ok(Some(Loaded { checkpoint, skipped })),
                Err(why) => skipped.push(Skipped { step, why }),
            }
        }
        if skipped.is_empty() {
            return Ok(None);
        }
        let mut error =
            Diagnostic::error(codes::E0512, format!("no checkpoint in `{}` is usable", self.name));
        for s in &skipped {
            error = error.note(format!("step {}: {}", s.step, s.why));
        }
        Err(Box::new(error.help("start again in another folder, or restore the files from a copy")))
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
        let names = self.fs.list().map_err(|e| {
            let message = format!("the checkpoints in `{}` cannot be read: {e}", self.name);
            Box::new(Diagnostic::error(codes::E0512, message))
        })?;
        let mut steps: Vec<u64> = names.iter().filter_map(|n| manifest_step(n)).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    fn manifest(&self, step: u64) -> Result<(Manifest, File), String> {
        let name = format!("{}.json", stem(step));
        let (mut reader, len) =
            self.fs.open(&name).map_err(|e| format!("its manifest cannot be read: {e}"))?;
        if len > MAX_MANIFEST {
            return Err(format!("its manifest has {len} bytes"));
        }
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).map_err(|e| format!("its manifest cannot be read: {e}"))?;
        let mut manifest: Manifest =
            serde_json::from_slice(&bytes).map_err(|e| format!("its manifest is malformed: {e}"))?;
        if manifest.format != FORMAT {
            return Err(format!("its format is {}, this program reads {FORMAT}", manifest.format));
        }
        if manifest.meta.step != step {
            return Err(format!("its manifest is that of step {}", manifest.meta.step));
        }
        match (manifest.files.pop(), manifest.files.is_empty()) {
            (Some(file), true) if data_step(&file.name) == Some(step) => Ok((manifest, file)),
            _ => Err("its manifest does not name its one file".into()),
        }
    }

    fn load(&self, step: u64) -> Result<Checkpoint, String> {
        let (manifest, file) = self.manifest(step)?;
        let (mut reader, len) =
            self.fs.open(&file.name).map_err(|e| format!("`{}` cannot be read: {e}", file.name))?;
        if len != file.bytes {
            return Err(format!("`{}` has {len} bytes instead of {}", file.name, file.bytes));
        }
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).map_err(|e| format!("`{}` cannot be read: {e}", file.name))?;
        if hex(&bytes) != file.sha256 {
            return Err(format!("`{}` is damaged: its SHA-256 is wrong", file.name));
        }
        let checkpoint = encode::decode(&bytes)?;
        if checkpoint.meta != manifest.meta {
            return Err("its manifest contradicts its file".into());
        }
        Ok(checkpoint)
    }

    fn describe(&self, step: u64) -> Result<Entry, String> {
        let (_, file) = self.manifest(step)?;
        let (mut reader, len) =
            self.fs.open(&file.name).map_err(|e| format!("`{}` cannot be read: {e}", file.name))?;
        if len != file.bytes {
            return Err(format!("`{}` has {len} bytes instead of {}", file.name, file.bytes));
        }
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
