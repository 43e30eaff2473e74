//! Checkpoints that need not stay.

use super::names::{data_step, manifest_step};
use super::store::{Store, failed};
use meshwright_files::Checked;
use meshwright_files::durable::Fs;
use std::io;

impl<F: Fs> Store<F> {
    /// Removes all but the checkpoint of `step`, with its file `keep`, and those before it that are kept.
    pub(super) fn prune(&self, step: u64, keep: &str) -> io::Result<()> {
        self.remove_files(&self.unneeded(step, keep)?)
    }

    /// The files that [`Store::prune`] removes. Later steps are left over from a run that went on from an earlier checkpoint
    /// because they are damaged.
    fn unneeded(&self, step: u64, keep: &str) -> io::Result<Vec<String>> {
        let mut names = self.fs.list()?;
        let mut steps: Vec<u64> =
            names.iter().filter_map(|n| manifest_step(n)).filter(|s| *s <= step).collect();
        steps.sort_unstable();
        let mut kept = steps[steps.len().saturating_sub(self.keep)..].to_vec();
        kept.extend(self.best()?.map(|b| b.step));
        names.retain(|n| match (manifest_step(n), data_step(n)) {
            (Some(s), _) => !kept.contains(&s),
            (_, Some(s)) => (s == step && *n != keep) || !(s == step || kept.contains(&s)),
            _ => false,
        });
        Ok(names)
    }

    fn remove_files(&self, names: &[String]) -> io::Result<()> {
        let (manifests, others): (Vec<_>, Vec<_>) = names.iter().partition(|n| manifest_step(n).is_some());
        manifests.iter().try_for_each(|n| self.fs.remove(n))?;
        if !manifests.is_empty() {
            // No manifest may outlive its file.
            self.fs.sync_folder()?;
        }
        others.iter().try_for_each(|n| self.fs.remove(n))
    }

    /// The files of all but the newest so many that are kept, beside the best. The newest is read, and must be whole.
    ///
    /// # Errors
    ///
    /// E0512 where it is not: those before it are all that there is.
    pub fn old(&self) -> Checked<Vec<String>> {
        let Some(newest) = self.newest_step()? else { return Ok(Vec::new()) };
        let (file, _) = self.loaded(newest).map_err(|unusable| {
            let d = *self.not_usable(newest, unusable);
            let help =
                "`meshwright train --run RUN --resume` goes on from the newest good one and saves another";
            Box::new(d.note("it is the newest: those before it stay").help(help))
        })?;
        self.unneeded(newest, &file.name).map_err(|e| self.unreadable(&e))
    }

    /// Removes files that [`Store::old`] gave.
    ///
    /// # Errors
    ///
    /// E0514.
    pub fn remove(&self, old: &[String]) -> Checked<()> {
        self.remove_files(old).map_err(|e| failed(&self.name, &e))
    }
}
