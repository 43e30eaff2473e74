//! The folder of a run that nobody named.

use meshwright_diag::{Diagnostic, codes};
use meshwright_exec::Processes;
use meshwright_files::folder::entries;
use meshwright_train::{Failure, agree_on_result};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The folder of runs that nobody named.
pub(crate) const RUNS: &str = "runs";

/// A folder that was made for a run before it is known whether the run can begin: it is taken away again if nothing was written
/// to it, and with it `runs`, if it is alone there.
pub(super) struct ClaimedRun {
    folder: PathBuf,
    /// Whether this process has made it.
    mine: bool,
}

impl ClaimedRun {
    /// The folder.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for ClaimedRun {
    fn drop(&mut self) {
        // A folder that holds something stays.
        if self.mine && std::fs::remove_dir(&self.folder).is_ok() {
            let _others_are_there = std::fs::remove_dir(RUNS);
        }
    }
}

/// The folder of a new run: the first process chooses it for all, and makes it, so that no other run takes it.
pub(super) fn claim(model: &str, processes: &Processes) -> Result<ClaimedRun, Failure> {
    let mine = processes.is_first();
    let chosen = if mine { next_run(model) } else { Ok(PathBuf::new()) };
    let chosen = chosen.map_err(|e| {
        let why = Diagnostic::error(codes::E0511, format!("no folder can be made in `{RUNS}`: {e}"));
        Failure::from(why.help("choose the folder of the run: `--run DIR`"))
    });
    let chosen = agree_on_result(processes, "the run's folder", chosen)?;
    let told = processes.broadcast("the run's folder".into(), chosen.to_string_lossy().into_owned())?;
    Ok(ClaimedRun { folder: PathBuf::from(told), mine })
}

/// Makes `runs/MODEL-N`, with an N greater than any that is there.
fn next_run(model: &str) -> std::io::Result<PathBuf> {
    let name = Path::new(model).file_stem().map_or("model".into(), |s| s.to_string_lossy().into_owned());
    loop {
        std::fs::create_dir_all(RUNS)?;
        let there = entries(Path::new(RUNS))?;
        let taken: Vec<String> = there.iter().map(|e| e.name.to_string_lossy().into_owned()).collect();
        let folder = Path::new(RUNS).join(format!("{name}-{}", next_number(&name, &taken)));
        match std::fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            // Another run has begun at the same time, or has failed and taken `runs` away.
            Err(e) if matches!(e.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound) => {}
            Err(e) => return Err(e),
        }
    }
}

fn next_number(name: &str, taken: &[String]) -> u64 {
    let number = |t: &String| t.strip_prefix(name)?.strip_prefix('-')?.parse::<u64>().ok();
    taken.iter().filter_map(number).max().unwrap_or(0).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_numbered_for_each_model() {
        let taken = ["mlp-1", "mlp-9", "mlp-10", "mlp_wide-30", "mlp-x", "other"].map(String::from);
        assert_eq!(next_number("mlp", &taken), 11);
        assert_eq!(next_number("mlp_wide", &taken), 31);
        assert_eq!(next_number("new", &taken), 1);
    }
}
