//! Checkpoints as files to work with: exported, compared, renamed.

use super::encode::{AVERAGE, Checkpoint, Encoded, TensorInfo, encode, encode_with};
use super::store::{Entry, Store};
use meshwright_diag::{Diagnostic, codes};
use meshwright_files::durable::{Fs, write_durably};
use meshwright_files::folder::Folder;
use meshwright_files::{Checked, RawTensor};
use meshwright_sorted::{SortedMap, SortedSet};
use std::path::Path;

/// What of a checkpoint is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exported {
    /// All of it.
    Whole,
    /// Parameters and states, without moments and averages.
    Parameters,
    /// The same, with the moving average of each parameter that has one in its place.
    Averages,
}

/// Writes a checkpoint to one `.safetensors` file, which replaces another in one step; gives the number of its tensors.
///
/// # Errors
///
/// E0512 where it cannot be read, E0514 where the file cannot be written.
pub fn export(checkpoint: &Checkpoint, what: Exported, path: &Path) -> Checked<usize> {
    let averaged = |t: &TensorInfo| t.name.ends_with(AVERAGE);
    if what == Exported::Averages && !checkpoint.tensors.iter().any(averaged) {
        let message = format!("the checkpoint of step {} holds no averages", checkpoint.meta.step);
        let d = Diagnostic::error(codes::E0516, message);
        return Err(Box::new(
            d.help("`--params-only` writes the parameters; `ema` in the `train` block keeps averages"),
        ));
    }
    let mut tensors = SortedMap::new();
    for t in &checkpoint.tensors {
        let (name, of) = match what {
            Exported::Whole => (t.name.clone(), t.name.clone()),
            _ if is_parameter(&t.name) => {
                let average = format!("{}{AVERAGE}", t.name);
                let has = what == Exported::Averages && checkpoint.info(&average).is_some();
                (t.name.clone(), if has { average } else { t.name.clone() })
            }
            _ => continue,
        };
        tensors.insert(name, checkpoint.tensor(&of)?);
    }
    let list: Vec<_> = tensors.iter().map(|(n, t)| (n.as_str(), t)).collect();
    write(encode(&checkpoint.meta, &list), path)?;
    Ok(tensors.len())
}

/// Whether a tensor of a checkpoint is a parameter or a state, and neither a moment nor an average.
pub fn is_parameter(name: &str) -> bool {
    !name.contains('/')
}

/// Writes tensors to a `.safetensors` file with a key of metadata, and nothing of a run.
///
/// # Errors
///
/// E0514.
pub fn write_tensors(metadata: (&str, &str), tensors: &[(&str, &RawTensor)], path: &Path) -> Checked<()> {
    write(encode_with(metadata, tensors), path)
}

fn write(encoded: Result<Encoded, String>, path: &Path) -> Checked<()> {
    let failed = |why: String| {
        let message = format!("`{}` cannot be written: {why}", path.display());
        Box::new(Diagnostic::error(codes::E0514, message))
    };
    let encoded = encoded.map_err(failed)?;
    let Some(name) = path.file_name().and_then(|n| n.to_str()) else {
        return Err(failed("it names no file".into()));
    };
    let folder = Folder::at(path.parent().unwrap_or(Path::new("")));
    if path.is_dir() {
        return Err(failed("it is a folder".into()));
    }
    write_durably(&folder, name, &encoded.parts()).map_err(|e| failed(e.to_string()))
}

/// How a tensor of two checkpoints differs.
#[derive(Clone, Debug, PartialEq)]
pub enum Difference {
    /// Only the first has it.
    Gone,
    /// Only the second has it.
    New,
    /// Another dtype or shape.
    Form,
    /// The same form and other values.
    Values {
        /// Elements that differ.
        elements: usize,
        /// The greatest difference.
        most: f64,
        /// The 2-norm of all differences over that of the first's elements.
        relative: f64,
    },
}

/// Compares two checkpoints tensor by tensor; what is equal, bit for bit, has `None`.
///
/// # Errors
///
/// E0512 where one cannot be read.
pub fn compare(a: &Checkpoint, b: &Checkpoint) -> Checked<Vec<(String, Option<Difference>)>> {
    let names: SortedSet<&str> = a.tensors.iter().chain(&b.tensors).map(|t| t.name.as_str()).collect();
    let one = |name: &str| -> Checked<Option<Difference>> {
        Ok(match (a.info(name), b.info(name)) {
            (Some(x), Some(y)) if (x.dtype, &x.shape) == (y.dtype, &y.shape) => {
                differing(name, a.tensor(name)?, b.tensor(name)?)?
            }
            (Some(_), Some(_)) => Some(Difference::Form),
            (Some(_), None) => Some(Difference::Gone),
            _ => Some(Difference::New),
        })
    };
    names.into_iter().map(|n| Ok((n.to_string(), one(n)?))).collect()
}

fn differing(name: &str, a: RawTensor, b: RawTensor) -> Checked<Option<Difference>> {
    if a.data == b.data {
        return Ok(None);
    }
    let numbers = |t: RawTensor| -> Checked<Vec<f64>> {
        let no_numbers = || Diagnostic::error(codes::E0512, format!("`{name}` cannot be read as numbers"));
        t.to_f64().ok_or_else(|| Box::new(no_numbers()))
    };
    let (a, b) = (numbers(a)?, numbers(b)?);
    let (mut elements, mut most, mut apart, mut norm) = (0, 0f64, 0f64, 0f64);
    for (x, y) in a.iter().zip(&b) {
        norm += x * x;
        if x.to_bits() == y.to_bits() {
            continue;
        }
        let d = (x - y).abs();
        elements += 1;
        // A difference that is not a number is the greatest there is.
        most = if d.is_nan() || most.is_nan() { f64::NAN } else { most.max(d) };
        apart += d * d;
    }
    Ok(Some(Difference::Values { elements, most, relative: (apart / norm).sqrt() }))
}

/// New names of tensors, by the old ones.
pub type NewNames = SortedMap<String, String>;

impl<F: Fs> Store<F> {
    /// Gives tensors of all checkpoints other names: `planned` says by the name of each which it gets, of every checkpoint that
    /// is there. Gives the steps, and the names before and after.
    ///
    /// # Errors
    ///
    /// E0512 where a checkpoint cannot be read, E0514 where one cannot be written, and what `planned` refuses.
    pub fn rename(
        &self,
        planned: impl FnOnce(&[Entry]) -> Checked<Vec<NewNames>>,
    ) -> Checked<(Vec<u64>, NewNames)> {
        let (entries, skipped) = self.list()?;
        if let Some(bad) = skipped.first() {
            let d = Diagnostic::error(codes::E0512, bad.to_string());
            return Err(Box::new(d.help("remove its files, or restore them, before others are renamed")));
        }
        let mut all = SortedMap::new();
        let mut written = Vec::new();
        for (e, plan) in entries.iter().zip(planned(&entries)?) {
            let whole = self.at(e.meta.step)?.whole()?;
            let renamed: SortedMap<&str, &RawTensor> =
                whole.iter().map(|(n, t)| (plan.get(n).unwrap_or(n).as_str(), t)).collect();
            written.push((e.meta.step, self.write_tensors(&e.meta, renamed)?));
            all.extend(plan);
        }
        // Manifests make them count, all in a row: what can fail for want of space has been done.
        for (_, manifest) in &written {
            self.write_manifest(manifest)?;
        }
        for (step, manifest) in &written {
            self.remove_others(*step, manifest.file())?;
        }
        Ok((written.into_iter().map(|w| w.0).collect(), all))
    }
}
