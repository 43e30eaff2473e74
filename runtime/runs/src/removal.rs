//! The files of a run in its folder, and their removal. Files of others stay.

use crate::checkpoint::{Store, stores};
use crate::logs::tensorboard_in;
use crate::run_dir::{RunDir, checkpoints_in, removal_order, writes};
use crate::run_error::unusable;
use meshwright_files::Checked;
use meshwright_files::folder::Folder;
use std::io;
use std::path::{Path, PathBuf};

/// A file that a run wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFile {
    folder: Folder,
    name: String,
    /// Its path, below the folder of the run as that is called.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
}

/// The contents of a run's folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunContents {
    /// The run's files, in the order of their removal: until the last file is gone, the folder holds a run.
    pub files: Vec<RunFile>,
    /// Other entries.
    pub others: Vec<PathBuf>,
}

impl RunContents {
    /// Looks into the folder of a run.
    ///
    /// # Errors
    ///
    /// E0511 where it cannot be read.
    pub fn read(run: &Path) -> Checked<RunContents> {
        let mut all = RunContents::default();
        let (checkpoints, tensorboard) = (checkpoints_in(run), tensorboard_in(run));
        for (folder, own) in [(&checkpoints, stores as fn(&str) -> bool), (&tensorboard, is_event_file)] {
            match all.add(folder, own) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(unusable(&folder.path(), &e)),
                _ => {}
            }
        }
        all.add(&Folder::at(run), writes).map_err(|e| unusable(run, &e))?;
        // A checkpoint counts by its manifest, which goes first.
        let manifest = |f: &RunFile| f.path.extension().is_some_and(|e| e == "json");
        all.files.sort_by_key(|f| (removal_order(&f.name), !manifest(f)));
        all.others.retain(|o| *o != checkpoints.path() && *o != tensorboard.path());
        Ok(all)
    }

    fn add(&mut self, folder: &Folder, own: fn(&str) -> bool) -> io::Result<()> {
        for e in folder.entries()? {
            match e.name.into_string() {
                Ok(name) if e.kind.is_file() && own(&name) => {
                    self.files.push(RunFile { folder: folder.clone(), name, path: e.path, bytes: e.bytes });
                }
                _ => self.others.push(e.path),
            }
        }
        Ok(())
    }

    /// Bytes of what the run wrote.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|f| f.bytes).sum()
    }
}

fn is_event_file(name: &str) -> bool {
    name.starts_with("events.out.tfevents.") && name.ends_with(".meshwright")
}

/// Removes a run, whose folder nobody else can use meanwhile; the folder goes too where nothing else is in it, and with it the
/// links that it was named by. What was removed.
///
/// # Errors
///
/// E0510 where it holds no run or a process is at work in it, E0511 where something cannot be removed: the rest can be removed by
/// another try.
pub fn remove_run(run: &Path) -> Checked<RunContents> {
    let held = RunDir::resume(run)?;
    let all = RunContents::read(run)?;
    for f in &all.files {
        removed(f.folder.remove(&f.name)).map_err(|e| unusable(&f.path, &e))?;
    }
    drop(held);
    for inside in [checkpoints_in(run), tensorboard_in(run)] {
        // A folder with other entries stays.
        let _others_are_there = inside.remove_empty();
    }
    let (links, folder) = resolved(run);
    if std::fs::remove_dir(folder).is_ok() {
        for link in links {
            std::fs::remove_file(&link).map_err(|e| unusable(&link, &e))?;
        }
    }
    Ok(all)
}

/// The links that lead to a folder from one of its names, and that folder.
fn resolved(run: &Path) -> (Vec<PathBuf>, PathBuf) {
    let (mut links, mut folder) = (Vec::new(), run.to_path_buf());
    while let Ok(to) = std::fs::read_link(&folder) {
        let next = folder.parent().unwrap_or(Path::new("")).join(to);
        links.push(std::mem::replace(&mut folder, next));
    }
    (links, folder)
}

/// Removes the checkpoints of a run but the newest, and the one that was noted as the best. What was removed.
///
/// # Errors
///
/// Those of [`remove_run`], and E0512 where the newest checkpoint is not whole: those before it are all that there is.
pub fn remove_old_checkpoints(run: &Path) -> Checked<RunContents> {
    let held = RunDir::resume(run)?;
    let (names, old) = old_of(run)?;
    if !names.is_empty() {
        held.checkpoints()?.remove(&names)?;
    }
    Ok(old)
}

/// The checkpoints that [`remove_old_checkpoints`] would remove.
///
/// # Errors
///
/// E0511 and E0512, where that would be refused too.
pub fn old_checkpoints(run: &Path) -> Checked<RunContents> {
    Ok(old_of(run)?.1)
}

fn old_of(run: &Path) -> Checked<(Vec<String>, RunContents)> {
    let folder = checkpoints_in(run);
    let mut all = RunContents::default();
    match all.add(&folder, stores) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Default::default()),
        added => added.map_err(|e| unusable(&folder.path(), &e))?,
    }
    let names = Store::read_only(folder).keeping(1).old()?;
    all.files.retain(|f| names.contains(&f.name));
    Ok((names, RunContents { files: all.files, others: Vec::new() }))
}

fn removed(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};

    /// A folder with all that a run writes, and files of somebody else.
    fn run_at(run: &Path) {
        for folder in ["checkpoints", "tensorboard", "notes"] {
            create_dir_all(run.join(folder)).unwrap();
        }
        for name in ["run.toml", "run.lock", "metrics.jsonl", "metrics.csv", "used-1.mw", ".tmp-plan.json"] {
            write(run.join(name), "1234").unwrap();
        }
        let checkpoints = ["step-0000000001-00.safetensors", "step-0000000001.json", "best.json"];
        checkpoints.iter().for_each(|n| write(run.join("checkpoints").join(n), "12").unwrap());
        write(run.join("tensorboard/events.out.tfevents.1.2.meshwright"), "1").unwrap();
    }

    #[test]
    fn what_a_run_wrote_goes_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        run_at(&run);
        for other in ["paper.txt", "used-x.mw", "checkpoints/mine.safetensors", "notes/run.toml"] {
            write(run.join(other), "mine").unwrap();
        }
        let all = RunContents::read(&run).unwrap();
        assert_eq!((all.files.len(), all.bytes(), all.others.len()), (10, 31, 4));
        let names: Vec<_> = all.files.iter().map(|f| f.path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names[8..], ["run.toml", "run.lock"]);
        // Somebody at work is not disturbed.
        let held = RunDir::resume(&run).unwrap();
        assert_eq!(remove_run(&run).unwrap_err().code.id, "E0510");
        drop(held);
        remove_run(&run).unwrap();
        assert_eq!(remove_run(&run).unwrap_err().code.id, "E0510");
        let left: Vec<_> = Folder::at(&run).entries().unwrap().into_iter().map(|e| e.name).collect();
        assert_eq!(left, ["checkpoints", "notes", "paper.txt", "used-x.mw"]);
        assert!(run.join("checkpoints/mine.safetensors").is_file());
        let plain = folder.path().join("plain");
        run_at(&plain);
        std::fs::remove_dir(plain.join("notes")).unwrap();
        remove_run(&plain).unwrap();
        assert!(!plain.exists());
        // A link to a run is another name of it: both go, and what stays keeps its names.
        let [latest, newest] = ["latest", "newest"].map(|name| folder.path().join(name));
        for kept in [false, true] {
            run_at(&plain);
            std::fs::remove_dir(plain.join("notes")).unwrap();
            std::os::unix::fs::symlink("plain", &latest).unwrap();
            std::os::unix::fs::symlink(&latest, &newest).unwrap();
            if kept {
                write(plain.join("paper.txt"), "mine").unwrap();
            }
            remove_run(&newest).unwrap();
            assert_eq!([&plain, &latest, &newest].map(|p| p.symlink_metadata().is_ok()), [kept; 3]);
        }
    }
}
