//! Sweeps that are killed, interrupted or told to end, and go on.

use crate::support::{command, lasting, prepared, rows};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// What is killed in the tests below: runs of some length, two at once.
fn long(folder: &str) -> Vec<String> {
    let words = [
        "sweep",
        "sums.mw",
        "--data",
        "data",
        "--dim",
        "batch=5,10",
        "--set",
        "lr=0.1,0.5",
        "--epochs",
        "60",
    ];
    let more = ["--jobs", "2", "--cores", "2", "--run", folder, "--format", "jsonl"];
    words.iter().chain(&more).map(|w| w.to_string()).collect()
}

fn started(at: &Path, folder: &str) -> Child {
    let words = long(folder);
    let mut c = command(&words.iter().map(String::as_str).collect::<Vec<_>>());
    c.current_dir(at).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn table(at: &Path, folder: &str) -> Vec<Value> {
    let words = long(folder);
    rows(at, &words[..words.len() - 2].iter().map(String::as_str).collect::<Vec<_>>())
        .iter()
        .map(lasting)
        .collect()
}

/// Processes that a process has started, once they are what they are to be: one that was only forked off has the words of its
/// parent, which waits for it and would not hear of its end.
fn children(of: u32) -> Vec<u32> {
    let words = |pid: u32| std::fs::read(format!("/proc/{pid}/cmdline")).ok();
    let all =
        std::fs::read_dir("/proc").unwrap().filter_map(|e| e.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let parent = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    all.filter(|pid| parent(pid) == Some(of) && words(*pid) != words(of)).collect()
}

/// By the system's call: a program `kill` takes so long to start that a short run may have ended.
fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let _gone = kill_process(pid, signal);
}

/// Killed at random moments, alone or with its runs, a sweep goes on to the same table.
#[test]
fn a_sweep_that_is_killed_goes_on_to_the_same_table() {
    let at = prepared("sweep-killed");
    let begin = Instant::now();
    let whole = table(&at, "whole");
    let took = begin.elapsed().as_secs_f64();
    assert_eq!(whole.len(), 4);
    let rounds = if std::env::var_os("LONG").is_some() { 20 } else { 4 };
    let mut random = 11u64;
    let mut share = move || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 40) as f64 / (1u64 << 24) as f64
    };
    for round in 0..rounds {
        let folder = format!("killed-{round}");
        let mut child = started(&at, &folder);
        std::thread::sleep(Duration::from_secs_f64(share() * took));
        let runs = children(child.id());
        child.kill().unwrap();
        if round % 2 == 1 {
            runs.iter().for_each(|pid| signal(*pid, Signal::KILL));
        }
        child.wait().unwrap();
        assert_eq!(table(&at, &folder), whole, "round {round}");
    }
}

/// The processes of a sweep, once there are some.
fn first_runs(sweep: &Child) -> Vec<u32> {
    let begin = Instant::now();
    while children(sweep.id()).is_empty() && begin.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let runs = children(sweep.id());
    assert!(!runs.is_empty());
    runs
}

/// How a sweep and its runs end by a signal: none of them is left, and none has failed.
fn ended_by(by: Signal, sweep: &mut Child, runs: &[u32], at: &Path, folder: &str) {
    signal(sweep.id(), by);
    assert_eq!(sweep.wait().unwrap().code(), Some(130), "{by:?}");
    assert!(runs.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()), "{runs:?}");
    let half = rows(at, &["sweep", folder, "--table"]);
    assert!(half.iter().any(|r| r["state"] != "finished"), "{half:?}");
    assert!(half.iter().all(|r| r["state"] != "failed" && r["state"] != "running"), "{half:?}");
}

/// Ctrl-C ends the runs with checkpoints, and the same command goes on.
#[test]
fn ctrl_c_leaves_a_sweep_that_goes_on() {
    let at = prepared("sweep-interrupted");
    let mut child = started(&at, "a");
    first_runs(&child);
    std::thread::sleep(Duration::from_millis(100));
    let runs = children(child.id());
    ended_by(Signal::INT, &mut child, &runs, &at, "a");
    assert_eq!(table(&at, "a"), table(&at, "whole"));
}

/// A run that is told to stop as it begins, before it can say that it will, has not failed.
#[test]
fn a_run_that_is_stopped_as_it_begins_is_open() {
    let at = prepared("sweep-early");
    let mut child = started(&at, "a");
    let first = first_runs(&child);
    signal(first[0], Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let states: Vec<Value> =
        rows(&at, &["sweep", "a", "--table"]).into_iter().map(|r| r["state"].clone()).collect();
    let open = |s: &&Value| **s == "planned" || **s == "interrupted";
    assert!(states.iter().filter(open).count() == 1 && !states.contains(&"failed".into()), "{states:?}");
    assert_eq!(table(&at, "a").len(), 4);
}

/// Waits until all processes have come to something, by what the system says of them.
fn until(runs: &[u32], is: impl Fn(&str) -> bool) {
    let status = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let begin = Instant::now();
    while !runs.iter().map(status).all(|s| is(&s)) {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "{:?}",
            runs.iter().map(status).collect::<Vec<_>>()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a signal to end has been sent to a process, and not been delivered.
fn waits_for_a_term(status: &str) -> bool {
    let pending = status.lines().find_map(|l| l.strip_prefix("ShdPnd:")).unwrap_or_default();
    u64::from_str_radix(pending.trim(), 16).is_ok_and(|p| p >> (Signal::TERM.as_raw() - 1) & 1 == 1)
}

/// The second one ends them at once, whatever they do.
#[test]
fn a_second_ctrl_c_ends_a_sweep_at_once() {
    let at = prepared("sweep-twice");
    // Longer than anybody waits for: none ends by itself before it is stopped.
    let words = long("a").join(" ").replace("--epochs 60", "--epochs 2000");
    let mut sweep = command(&words.split(' ').collect::<Vec<_>>());
    let mut child = sweep.current_dir(&at).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let runs = first_runs(&child);
    // They cannot hear the first one: each stands still before the sweep tells it to end. One that had still to be stopped, and
    // has just begun, would end by it.
    runs.iter().for_each(|pid| signal(*pid, Signal::STOP));
    until(&runs, |status| status.contains("\nState:\tT"));
    signal(child.id(), Signal::INT);
    until(&runs, waits_for_a_term);
    assert!(child.try_wait().unwrap().is_none());
    signal(child.id(), Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let lives = |pid: &&u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(')').next().and_then(|s| s.split_whitespace().next()).is_some_and(|state| state != "Z")
    };
    let begin = Instant::now();
    while runs.iter().any(|pid| lives(&pid)) && begin.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(runs.iter().filter(lives).count(), 0);
    let half = rows(&at, &["sweep", "a", "--table"]);
    assert!(half.len() == 4 && half.iter().all(|r| r["state"] != "failed"), "{half:?}");
}

/// A script's sweep in the background ignores Ctrl-C, and so do its runs: a signal to end reaches them all the same.
#[test]
fn a_sweep_in_the_background_ends_by_a_signal() {
    let at = prepared("sweep-background");
    // Longer than anybody waits for: runs that do not hear of it would go on.
    let words = long("a").join(" ").replace("--epochs 60", "--epochs 2000");
    let script = format!("trap '' INT; exec {} {words}", env!("CARGO_BIN_EXE_meshwright"));
    let mut shell = std::process::Command::new("bash");
    shell.args(["-c", &script]).current_dir(&at).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = shell.spawn().unwrap();
    first_runs(&child);
    std::thread::sleep(Duration::from_millis(300));
    let runs = children(child.id());
    signal(child.id(), Signal::INT);
    std::thread::sleep(Duration::from_millis(100));
    assert!(child.try_wait().unwrap().is_none());
    ended_by(Signal::TERM, &mut child, &runs, &at, "a");
    let states = rows(&at, &["sweep", "a", "--table"]);
    assert!(states.iter().all(|r| r["state"] != "finished"), "{states:?}");
}
