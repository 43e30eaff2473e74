//! A process for each GPU: how communicators are made, and a process that is killed. (Every collective between processes:
//! the suite of transports over MPI.)
//!
//! The tests' own binary is started again for each rank, for a test that does nothing otherwise. The control plane is a
//! transport over files, which knows no more than NCCL's needs.

use super::{options, tag, world};
use crate::TransportMemory;
use crate::nccl::{LaunchOrder, NcclTransport};
use crate::{Abort, AsyncCollective, Call, Collectives, CommError, Group, Tag, Timeouts, Transport};
use meshwright_plan::{Axis, DType, Mesh, Monoid};
use meshwright_sorted::SortedMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SPEC: &str = "MESHWRIGHT_TEST_RANK";

/// A transport over files of one directory: gathers, broadcasts and barriers of host memory, each waited for at once.
struct Files {
    rank: usize,
    size: usize,
    folder: PathBuf,
    counts: SortedMap<Vec<usize>, u64>,
    timeout: Duration,
}

struct EndedCall;

impl AsyncCollective for EndedCall {
    fn wait(&mut self) -> Result<(), CommError> {
        Ok(())
    }
}

struct FilesAbort {
    rank: usize,
    folder: PathBuf,
}

fn put(folder: &Path, name: &str, bytes: &[u8]) {
    let half = folder.join(format!(".{name}.{}", std::process::id()));
    std::fs::write(&half, bytes).unwrap();
    std::fs::rename(half, folder.join(name)).unwrap();
}

impl Abort for FilesAbort {
    fn abort(&self, reason: &str) {
        if self.aborted().is_none() {
            put(&self.folder, "abort", format!("{} {reason}", self.rank).as_bytes());
        }
    }

    fn aborted(&self) -> Option<(usize, String)> {
        let text = std::fs::read_to_string(self.folder.join("abort")).ok()?;
        let (rank, reason) = text.split_once(' ')?;
        Some((rank.parse().ok()?, reason.to_owned()))
    }
}

impl Transport for Files {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    #[expect(unsafe_code, reason = "the trait's promise")]
    unsafe fn post(
        &mut self,
        group: &Group,
        tag: &Tag,
        call: Call<'_>,
    ) -> Result<Box<dyn AsyncCollective>, CommError> {
        let name = call.name(tag);
        let call = call.checked(group, tag, (self.rank, self.size))?;
        let number = self.counts.entry(group.ranks().to_vec()).or_default();
        *number += 1;
        let ranks = group.ranks().iter().map(usize::to_string).collect::<Vec<_>>().join("-");
        let message = |rank: usize| format!("{ranks}.{number}.{rank}");
        // SAFETY: the caller's promise.
        let bytes = |at: *const u8, n: usize| match n {
            0 => &[][..],
            n => unsafe { std::slice::from_raw_parts(at, n) },
        };
        assert!(call.signature.monoid.is_none(), "not a call of the control plane: {name}");
        let inputs = call.memory.iter().zip(call.signature.input_bytes());
        let mine: Vec<u8> = inputs.flat_map(|(memory, n)| bytes(memory.source, n)).copied().collect();
        put(&self.folder, &message(self.rank), &mine);
        let begin = Instant::now();
        let aborter = FilesAbort { rank: self.rank, folder: self.folder.clone() };
        let mut all = Vec::new();
        for rank in group.ranks() {
            let path = self.folder.join(message(*rank));
            all.push(loop {
                if let Ok(bytes) = std::fs::read(&path) {
                    break bytes;
                }
                if let Some((rank, reason)) = aborter.aborted() {
                    return Err(CommError::Aborted { rank, reason, call: Some(name) });
                }
                if begin.elapsed() > self.timeout {
                    let waited = begin.elapsed();
                    let (missing, stuck) = (vec![], vec![]);
                    return Err(CommError::Timeout { rank: self.rank, call: name, waited, missing, stuck });
                }
                std::thread::sleep(Duration::from_micros(100));
            });
        }
        let write = |to: *mut u8, bytes: &[u8]| {
            #[expect(unsafe_code, reason = "the trait's promise")]
            // SAFETY: the caller's promise; the call was checked.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            }
        };
        for target in call.memory.iter().filter_map(|memory| memory.target) {
            match call.signature.root {
                None => write(target, &all.concat()),
                Some(root) => write(target, &all[root]),
            }
        }
        Ok(Box::new(EndedCall))
    }

    fn first_step_done(&mut self) {}

    fn aborter(&self) -> Arc<dyn Abort> {
        Arc::new(FilesAbort { rank: self.rank, folder: self.folder.clone() })
    }
}

/// Runs a part on a rank that is a process of its own: see [`rank_of_its_own`].
fn start(part: &str, rank: usize, size: usize, folder: &Path, variables: &[(&str, &str)]) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["nccl::tests::processes::rank_of_its_own", "--exact", "--nocapture"])
        .env(SPEC, format!("{part} {rank} {size} {}", folder.display()))
        .env("TMPDIR", folder)
        .envs(variables.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Starts all ranks, and waits for them; what they printed.
fn all(part: &str, size: usize, variables: &[(&str, &str)]) -> Vec<(bool, String)> {
    let folder = folder(part);
    let ranks: Vec<Child> = (0..size).map(|rank| start(part, rank, size, &folder, variables)).collect();
    let text =
        |o: &Output| format!("{}{}", String::from_utf8_lossy(&o.stdout), String::from_utf8_lossy(&o.stderr));
    let said =
        ranks.into_iter().map(|r| r.wait_with_output().unwrap()).map(|o| (o.status.success(), text(&o)));
    let said = said.collect();
    let _ = std::fs::remove_dir_all(folder);
    said
}

fn folder(part: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("nccl-ranks-{}-{part}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Not a test of its own: what the processes run that the tests below start.
#[test]
#[expect(clippy::print_stdout, reason = "read by the test that started the process")]
fn rank_of_its_own() {
    let Ok(spec) = std::env::var(SPEC) else { return };
    let words: Vec<&str> = spec.splitn(4, ' ').collect();
    let (rank, size): (usize, usize) = (words[1].parse().unwrap(), words[2].parse().unwrap());
    let folder = PathBuf::from(words[3]);
    let control =
        Box::new(Files { rank, size, folder, counts: SortedMap::new(), timeout: Duration::from_secs(20) });
    let timeouts = Timeouts { first_step: Duration::from_secs(20), later: Duration::from_millis(800) };
    let new = |gpu: usize| NcclTransport::new(control, gpu as u32, &options(timeouts));
    match words[0] {
        "sums" => {
            let mesh = Mesh::new([("r", 2), ("c", 2)]);
            let mut t = new(rank).unwrap();
            assert_eq!((t.launch_order(), t.note()), (LaunchOrder::Events, None));
            let sets = [vec![Axis(0)], vec![Axis(1)], vec![Axis(0), Axis(1)]];
            t.prepare(&mesh, &sets).unwrap();
            let groups = sets.map(|axes| Group::of_mesh(&mesh, rank, &axes).unwrap());
            // One that no axes of the mesh have: its communicator is made at its first use.
            let odd = Group::new([3, 0, 1], rank).ok();
            for (i, group) in groups.iter().chain(&odd).enumerate() {
                let mut memory = t.memory(1000, DType::F32).unwrap();
                memory.write(&(rank as f32).to_ne_bytes().repeat(1000)).unwrap();
                t.all_reduce(group, &tag(i as u64), Monoid::Sum, [memory.buf_mut()]).unwrap();
                let mut got = [0; 4000];
                memory.read(&mut got).unwrap();
                let sum: usize = group.ranks().iter().sum();
                assert!(got == (sum as f32).to_ne_bytes().repeat(1000)[..], "group {group:?}");
            }
        }
        "killed" => {
            let mut t = new(rank).unwrap();
            let error = (0..).find_map(|i| one(&mut t, i).err()).unwrap();
            panic!("ended by: {error}");
        }
        "shared" => {
            let mut t = new(0).unwrap();
            one(&mut t, 0).unwrap();
            one(&mut t, 1).unwrap();
            println!("ordering {:?}", t.launch_order());
        }
        "new" => match new(rank) {
            Ok(t) => println!("ordering {:?}, note {:?}", t.launch_order(), t.note()),
            Err(e) => println!("{e}"),
        },
        other => panic!("no part {other}"),
    }
}

fn one(t: &mut NcclTransport, i: u64) -> Result<(), CommError> {
    let group = world(t);
    let mut memory = t.memory(1000, DType::F32)?;
    memory.write(&[0; 4000])?;
    t.all_reduce(&group, &tag(i), Monoid::Sum, [memory.buf_mut()])?;
    t.settle()?;
    t.first_step_done();
    Ok(())
}

#[test]
fn sums_between_four_processes() {
    for (ok, said) in all("sums", 4, &[]) {
        assert!(ok, "{said}");
    }
}

#[test]
fn a_killed_process_ends_the_others_within_the_timeout() {
    let folder = folder("killed");
    let mut ranks: Vec<Child> = (0..3).map(|rank| start("killed", rank, 3, &folder, &[])).collect();
    // Until all are beyond the first step: after the set-up, two comparisons and the id.
    let begin = Instant::now();
    while !folder.join("0-1-2.4.1").exists() && begin.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(300));
    let begin = Instant::now();
    ranks.remove(1).kill().unwrap();
    for rank in ranks {
        let output = rank.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success());
        assert!(said.contains("timed out after 0.8 s in all_reduce #"), "{said}");
        assert!(said.contains("at line"), "{said}");
    }
    assert!(begin.elapsed() < Duration::from_secs(60));
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn processes_may_share_a_gpu_where_nccl_allows_it() {
    for (ok, said) in all("shared", 2, &[("NCCL_MULTI_RANK_GPU_ENABLE", "1")]) {
        assert!(ok && said.contains("ordering Events"), "{said}");
    }
}

#[test]
fn old_libraries_are_refused_or_noted() {
    let said = |variables: &[(&str, &str)], size| all("new", size, variables).remove(0).1;
    let old = said(&[("FAKE_NCCL_VERSION", "21605")], 1);
    assert!(
        old.contains("NCCL 2.16.5 at ") && old.contains("is too old: 2.18.0 or newer is needed"),
        "{old}"
    );
    let driver = said(&[("FAKE_CUDA_VERSION", "12040")], 1);
    assert!(driver.contains("ordering HostSync"), "{driver}");
    assert!(
        driver.contains("the driver of rank 0 has no events of contexts (CUDA 12.5 or newer is needed)"),
        "{driver}"
    );
    let none = said(&[("FAKE_NCCL_GPUS", "0")], 1);
    assert!(
        none.contains("`cuInit` failed: CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)"),
        "{none}"
    );
}
