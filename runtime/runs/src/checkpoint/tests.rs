//! Faults: a crash between any two file operations, with any of the unsynced ones lost, failing operations, and damage.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::encode::encode;
use super::*;
use meshwright_files::RawTensor;
use meshwright_files::durable::{FileReader, Fs};
use meshwright_files::folder::Folder;
use meshwright_plan::DType;
use meshwright_sorted::SortedMap;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;

/// A folder in memory that knows what a crash would leave: content since the last sync may be lost or cut, and any subset
/// of the renames, creations and removals since the last sync of the folder.
#[derive(Clone, Default)]
struct Memory(Rc<RefCell<State>>);

#[derive(Clone, Default)]
struct State {
    files: Vec<Content>,
    names: SortedMap<String, usize>,
    durable: SortedMap<String, usize>,
    pending: Vec<Change>,
    /// Operations that change something, so far.
    ops: usize,
    /// From this operation on, nothing works any more (or only this one fails).
    stop_at: Option<usize>,
    fail_once: bool,
}

#[derive(Clone, Default)]
struct Content {
    now: Vec<u8>,
    synced: Vec<u8>,
}

#[derive(Clone)]
enum Change {
    Link(String, usize),
    Unlink(String),
    Rename(String, String, usize),
}

fn apply(names: &mut SortedMap<String, usize>, change: &Change) {
    match change {
        Change::Link(name, file) => drop(names.insert(name.clone(), *file)),
        Change::Unlink(name) => drop(names.remove(name)),
        Change::Rename(from, to, file) => {
            names.remove(from);
            names.insert(to.clone(), *file);
        }
    }
}

impl State {
    fn step(&mut self) -> io::Result<()> {
        let op = self.ops;
        self.ops += 1;
        match self.stop_at {
            Some(at) if op == at || (op > at && !self.fail_once) => {
                Err(io::Error::other("no space left on device"))
            }
            _ => Ok(()),
        }
    }

    fn change(&mut self, change: Change) {
        apply(&mut self.names, &change);
        self.pending.push(change);
    }

    fn find(&self, name: &str) -> io::Result<usize> {
        self.names.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Every folder that a crash at this moment may leave.
    fn after_crash(&self) -> Vec<Memory> {
        let mut out = Vec::new();
        for subset in 0..1u32 << self.pending.len() {
            for content in 0..3 {
                let mut names = self.durable.clone();
                for (_, change) in self.pending.iter().enumerate().filter(|(i, _)| subset >> i & 1 == 1) {
                    apply(&mut names, change);
                }
                let files = self.files.iter().map(|f| {
                    let data = match content {
                        _ if f.now == f.synced => f.now.clone(),
                        0 => f.synced.clone(),
                        1 => f.now[..f.now.len() / 2].to_vec(),
                        _ => f.now.clone(),
                    };
                    Content { now: data.clone(), synced: data }
                });
                let state =
                    State { files: files.collect(), durable: names.clone(), names, ..State::default() };
                out.push(Memory(Rc::new(RefCell::new(state))));
            }
        }
        out
    }
}

impl Fs for Memory {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.0.borrow().names.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<(Box<dyn FileReader>, u64)> {
        let state = self.0.borrow();
        let data = state.files[state.find(name)?].now.clone();
        let len = data.len() as u64;
        Ok((Box::new(io::Cursor::new(data)), len))
    }

    fn write(&self, name: &str, parts: &[&[u8]]) -> io::Result<()> {
        let bytes = parts.concat();
        let mut state = self.0.borrow_mut();
        let failed = state.step();
        if failed.is_err() && !state.fail_once {
            return failed;
        }
        let file = match state.find(name) {
            Ok(file) => file,
            Err(_) => {
                state.files.push(Content::default());
                let file = state.files.len() - 1;
                state.change(Change::Link(name.into(), file));
                file
            }
        };
        // A write that fails has written a part.
        let part = if failed.is_ok() { bytes.len() } else { bytes.len() / 3 };
        state.files[file].now = bytes[..part].to_vec();
        failed
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        state.step()?;
        let file = state.find(name)?;
        state.files[file].synced = state.files[file].now.clone();
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        state.step()?;
        let file = state.find(from)?;
        state.change(Change::Rename(from.into(), to.into(), file));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        state.step()?;
        state.find(name)?;
        state.change(Change::Unlink(name.into()));
        Ok(())
    }

    fn sync_folder(&self) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        state.step()?;
        state.durable = state.names.clone();
        state.pending.clear();
        Ok(())
    }
}

fn raw<const N: usize>(dtype: DType, shape: &[usize], data: [[u8; N]; 6]) -> RawTensor {
    RawTensor { dtype, shape: shape.to_vec(), data: data.concat() }
}

/// A checkpoint in memory.
#[derive(Clone, Debug, PartialEq)]
struct Saved {
    meta: Meta,
    tensors: SortedMap<String, RawTensor>,
}

/// All of a checkpoint that is open.
fn saved(c: &Checkpoint) -> Saved {
    Saved { meta: c.meta.clone(), tensors: c.whole().unwrap() }
}

fn newest<F: Fs>(store: &Store<F>) -> Option<Saved> {
    store.newest().unwrap().map(|l| saved(&l.checkpoint))
}

/// What is read of the bytes of a file.
fn decode(bytes: Vec<u8>) -> Result<Checkpoint, String> {
    let len = bytes.len() as u64;
    TensorFile::new(Box::new(io::Cursor::new(bytes)), len).and_then(Checkpoint::of)
}

/// A checkpoint whose every part tells which it is.
fn checkpoint(step: u64, variant: u64) -> Saved {
    let value = (step * 10 + variant) as f64;
    let tensors = SortedMap::from([
        ("dense.w".to_string(), raw(DType::F64, &[2, 3], [value.to_le_bytes(); 6])),
        ("dense.w/m".to_string(), raw(DType::F32, &[6], [(value as f32).to_le_bytes(); 6])),
    ]);
    Saved { meta: Meta::new("mlp", step, 1, step * 100, variant), tensors }
}

fn save<F: Fs>(store: &Store<F>, c: &Saved) -> meshwright_files::Checked<()> {
    store.save(&c.meta, c.tensors.iter().map(|(n, t)| (n.as_str(), t)))
}

fn open(memory: &Memory) -> Store<Memory> {
    Store::on(memory.clone(), "run".into()).unwrap()
}

/// Runs `save(new)` after `before` and stops at every operation in turn.
fn crash_everywhere(before: &[Saved], new: &Saved) -> usize {
    let prepare = || {
        let memory = Memory::default();
        before.iter().for_each(|c| save(&open(&memory), c).unwrap());
        memory.0.borrow_mut().ops = 0;
        memory
    };
    let (mut states, previous) = (0, before.last());
    for stop in 0.. {
        let memory = prepare();
        let store = open(&memory);
        memory.0.borrow_mut().stop_at = Some(stop);
        let acknowledged = save(&store, new).is_ok();
        let reached = memory.0.borrow().ops > stop;
        let left = memory.0.borrow().after_crash();
        for after in left {
            states += 1;
            let store = open(&after);
            let loaded = newest(&store);
            assert!(
                loaded.as_ref() == Some(new) || (!acknowledged && loaded.as_ref() == previous),
                "stopped at operation {stop}: {:?}",
                loaded.map(|c| c.meta)
            );
            assert_eq!(store.list().unwrap().1, [], "no manifest without its file");
            assert!(after.list().unwrap().iter().all(|n| !n.starts_with(meshwright_files::durable::TEMP)));
            // The run goes on from there.
            let next = checkpoint(new.meta.step + 100, 7);
            save(&store, &next).unwrap();
            assert_eq!(newest(&store).unwrap(), next);
        }
        if !reached {
            assert!(acknowledged);
            return states;
        }
    }
    unreachable!("the loop ends where nothing is stopped")
}

#[test]
fn a_crash_at_any_moment_leaves_the_previous_or_the_new_one() {
    let states = crash_everywhere(&[], &checkpoint(100, 0))
        + crash_everywhere(&[checkpoint(100, 0)], &checkpoint(200, 0))
        + crash_everywhere(&[checkpoint(100, 0), checkpoint(200, 0), checkpoint(300, 0)], &checkpoint(400, 0))
        // The same step again, with another content.
        + crash_everywhere(&[checkpoint(100, 0), checkpoint(200, 0)], &checkpoint(200, 1));
    assert!(states > 200, "{states}");
}

#[test]
fn a_failing_operation_is_reported_and_harms_nothing() {
    let (old, new) = (checkpoint(100, 0), checkpoint(200, 0));
    for at in 0..8 {
        let memory = Memory::default();
        let store = open(&memory);
        save(&store, &old).unwrap();
        {
            let mut state = memory.0.borrow_mut();
            (state.ops, state.stop_at, state.fail_once) = (0, Some(at), true);
        }
        let error = save(&store, &new).unwrap_err();
        assert_eq!(error.code.id, "E0514");
        assert!(error.message.contains("no space left"), "{}", error.message);
        let loaded = newest(&store).unwrap();
        assert!(loaded == old || loaded == new, "operation {at}");
        memory.0.borrow_mut().stop_at = None;
        save(&store, &new).unwrap();
        assert_eq!(newest(&store).unwrap(), new);
    }
}

#[test]
fn two_are_kept() {
    let memory = Memory::default();
    let store = open(&memory);
    for step in [100, 200, 300] {
        save(&store, &checkpoint(step, 0)).unwrap();
    }
    let (entries, skipped) = store.list().unwrap();
    assert_eq!(entries.iter().map(|e| e.meta.step).collect::<Vec<_>>(), [200, 300]);
    assert_eq!(skipped, []);
    assert_eq!(memory.list().unwrap().len(), 4);
    let tensors: Vec<_> =
        entries[1].tensors.iter().map(|t| (t.name.as_str(), t.dtype.name(), t.shape.clone())).collect();
    assert_eq!(tensors, [("dense.w", "f64", vec![2, 3]), ("dense.w/m", "f32", vec![6])]);
}

/// A copy of the files with those of step 200 changed by `f`.
fn damaged(files: &SortedMap<String, Vec<u8>>, name: &str, f: impl Fn(&mut Vec<u8>)) -> Store<Memory> {
    let memory = Memory::default();
    for (n, bytes) in files {
        let mut bytes = bytes.clone();
        if n == name {
            f(&mut bytes);
        }
        memory.write(n, &[&bytes]).unwrap();
    }
    open(&memory)
}

fn files_of(memory: &Memory) -> SortedMap<String, Vec<u8>> {
    let read = |n: String| {
        let mut bytes = Vec::new();
        memory.open(&n).unwrap().0.read_to_end(&mut bytes).unwrap();
        (n, bytes)
    };
    memory.list().unwrap().into_iter().map(read).collect()
}

#[test]
fn damage_is_found_and_the_one_before_is_loaded() {
    let (old, new) = (checkpoint(100, 0), checkpoint(200, 0));
    let memory = Memory::default();
    [&old, &new].iter().for_each(|c| save(&open(&memory), c).unwrap());
    let files = files_of(&memory);
    for (name, bytes) in files.iter().filter(|(n, _)| n.starts_with("step-0000000200")) {
        for at in 0..bytes.len() {
            for bit in [1, 0x80] {
                let store = damaged(&files, name, |b| b[at] ^= bit);
                let loaded = store.newest().unwrap().unwrap();
                // A changed blank in the manifest changes nothing; anything else must be found.
                let found = saved(&loaded.checkpoint);
                if found != new || !name.ends_with(".json") {
                    assert_eq!(found, old, "{name} byte {at}");
                    assert_eq!(loaded.skipped.len(), 1);
                    assert_eq!(loaded.skipped[0].step, 200);
                }
                store.list().unwrap();
            }
            let store = damaged(&files, name, |b| b.truncate(at));
            assert!(newest(&store).unwrap() == old || at + 1 == bytes.len(), "{name} cut to {at}");
            store.list().unwrap();
        }
        let store = damaged(&files, name, |b| b.push(0));
        assert_eq!(newest(&store).unwrap(), old);
        let store = damaged(&files, name, |_| ());
        store.fs_remove(name);
        assert_eq!(newest(&store).unwrap(), old, "without {name}");
    }
    let store = damaged(&files, "step-0000000200.json", |b| {
        *b = String::from_utf8_lossy(b).replace("\"seed\": 0", "\"seed\": 9").into_bytes();
    });
    assert_eq!(store.newest().unwrap().unwrap().skipped[0].why, "its manifest contradicts its file");
    // Resumed from step 100, the run passes the damaged one and removes it.
    let data = files.keys().find(|n| n.starts_with("step-0000000200-")).unwrap();
    let store = damaged(&files, data, |b| b[40] ^= 1);
    save(&store, &checkpoint(150, 0)).unwrap();
    let steps: Vec<u64> = store.list().unwrap().0.iter().map(|e| e.meta.step).collect();
    assert_eq!(steps, [100, 150]);

    let memory = Memory::default();
    memory.write("step-0000000005.json", &[b"{}"]).unwrap();
    let error = open(&memory).newest().unwrap_err();
    assert_eq!(error.code.id, "E0512");
    assert!(error.notes[0].starts_with("step 5: its manifest is malformed"), "{:?}", error.notes);
    assert_eq!(newest(&open(&Memory::default())), None);
}

#[test]
fn old_ones_stay_where_the_newest_is_damaged() {
    let memory = Memory::default();
    let store = open(&memory).keeping(3);
    for step in [100, 200, 300] {
        save(&store, &checkpoint(step, 0)).unwrap();
    }
    let files = files_of(&memory);
    let data = files.keys().find(|n| n.starts_with("step-0000000300-")).unwrap();
    let cut = damaged(&files, data, |b| b.truncate(b.len() / 2)).keeping(1);
    let error = cut.old().unwrap_err();
    assert!(error.code.id == "E0512" && error.message.contains("step 300"), "{}", error.message);
    assert_eq!(cut.list().unwrap().0.len() + cut.list().unwrap().1.len(), 3);
    // The best stays, and of the others what is said goes.
    store.mark_best(100, "loss", 0.5).unwrap();
    let store = store.keeping(1);
    let old = store.old().unwrap();
    assert!(old.len() == 2 && old.iter().all(|n| n.starts_with("step-0000000200")), "{old:?}");
    store.remove(&old).unwrap();
    let steps: Vec<u64> = store.list().unwrap().0.iter().map(|e| e.meta.step).collect();
    assert_eq!((steps, store.old().unwrap()), (vec![100, 300], vec![]));
}

#[test]
fn bytes_are_the_same_for_the_same_content_and_read_back() {
    let c = checkpoint(3, 1);
    let tensors: Vec<_> = c.tensors.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let backwards: Vec<_> = tensors.iter().rev().copied().collect();
    let bytes = encode(&c.meta, &tensors).unwrap().parts().concat();
    assert_eq!(bytes, encode(&c.meta, &backwards).unwrap().parts().concat());
    // The format's own library reads the same.
    let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert!(c.tensors.iter().all(|(n, t)| theirs.tensor(n).unwrap().data() == t.data), "{theirs:?}");
    assert_eq!(saved(&decode(bytes).unwrap()), c);
    assert!(encode(&c.meta, &[tensors[0], tensors[0]]).err().unwrap().contains("twice"));
    let meta = Meta { format: 2, ..c.meta.clone() };
    assert_eq!(
        decode(encode(&meta, &tensors).unwrap().parts().concat()).unwrap_err(),
        "its format is 2, this program reads 1"
    );
}

#[test]
fn a_tensor_must_be_there_with_its_shape() {
    let c = checkpoint(3, 1);
    let tensors: Vec<_> = c.tensors.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let c = decode(encode(&c.meta, &tensors).unwrap().parts().concat()).unwrap();
    assert!(c.fits("dense.w", DType::F64, &[2, 3]).is_ok());
    let wrong = c.fits("dense.w", DType::F32, &[3, 2]).unwrap_err();
    assert_eq!(wrong.message, "`dense.w` is [2, 3] in the checkpoint of step 3, [3, 2] in the model");
    // Floats of another width are taken, and elements of another kind are not.
    for dtype in [DType::I32, DType::Bool] {
        let wrong = c.fits("dense.w", dtype, &[2, 3]).unwrap_err();
        assert!(
            wrong.code.id == "E0513" && wrong.message.contains(" is of f64 in the checkpoint"),
            "{wrong:?}"
        );
    }
    let missing = c.fits("dense.v", DType::F32, &[2, 3]).unwrap_err();
    assert!(missing.helps[0].starts_with("it has `dense.w`"), "{:?}", missing.helps);
    assert!(c.only(["dense.w", "dense.w/m"]).is_ok());
    assert_eq!(c.only(["dense.w"]).unwrap_err().code.id, "E0513");
}

#[test]
fn it_works_on_a_disk() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a/checkpoints");
    let store = Store::create(Folder::at(&path)).unwrap();
    std::fs::write(path.join(".tmp-step-0000000001.json"), "half").unwrap();
    let c = checkpoint(5, 2);
    save(&store, &c).unwrap();
    let store = Store::create(Folder::at(&path)).unwrap();
    assert_eq!(newest(&store).unwrap(), c);
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 2);
    let entry = Store::read_only(Folder::at(&path)).list().unwrap().0.remove(0);
    assert_eq!(saved(&read_file(&path.join(&entry.file)).unwrap()), c);
    assert_eq!(
        Store::read_only(Folder::at(folder.path().join("none"))).newest().unwrap_err().code.id,
        "E0512"
    );
}

impl Store<Memory> {
    fn fs_remove(&self, name: &str) {
        self.file_operations().remove(name).unwrap();
    }
}
