//! The suite of transports on devices that are threads, and (with feature `mpi`) on processes that `mpirun` starts: alone,
//! failing on purpose, and killed or stopped at random moments.

use meshwright_comm::{Timeouts, World};
use meshwright_tests::transports::{NO_SKIPS, SuiteSettings, run};
use std::time::Duration;

#[test]
fn threads_pass_the_suite_of_transports() {
    for (n, pause) in [(4, 100), (6, 50), (3, 0), (1, 0)] {
        let settings = SuiteSettings {
            exact: true,
            rounds_each: false,
            pause: Duration::from_micros(pause),
            skips: NO_SKIPS,
        };
        let wrong: Vec<String> = std::thread::scope(|scope| {
            let ends = World::new(n, Timeouts::for_tests()).into_iter();
            let devices: Vec<_> = ends.map(|mut end| scope.spawn(move || run(&mut end, settings))).collect();
            let outcomes = devices.into_iter().flat_map(|device| device.join().unwrap());
            outcomes.filter_map(|(name, result)| result.err().map(|e| format!("{name}: {e}"))).collect()
        });
        assert!(wrong.is_empty(), "{n} devices: {wrong:#?}");
    }
}

#[cfg(feature = "mpi")]
mod processes {
    use std::io::{BufRead, BufReader};
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    /// Processes of the suite on this machine, with what they say.
    struct MpiJob {
        mpirun: Child,
        processes: usize,
        lines: std::sync::mpsc::Receiver<String>,
    }

    /// How a job ended.
    struct Ended {
        success: bool,
        said: Vec<String>,
    }

    impl MpiJob {
        fn start(args: &[&str]) -> MpiJob {
            MpiJob::of(4, args)
        }

        fn of(processes: usize, args: &[&str]) -> MpiJob {
            MpiJob::with(processes, None, args)
        }

        /// With a library that every process loads before all others.
        fn with(processes: usize, library: Option<&Path>, args: &[&str]) -> MpiJob {
            let mut command = Command::new("mpirun");
            if let Some(library) = library {
                command.arg("-x").arg(format!("LD_PRELOAD={}", library.display()));
            }
            command.args(["-n", &processes.to_string(), "--oversubscribe", "--allow-run-as-root"]);
            if args.contains(&"endless") {
                // On a busy machine a second is little for those that are left to say what they know.
                command.args(["--mca", "odls_base_sigkill_timeout", "3"]);
            }
            command.args(["--mca", "mpi_yield_when_idle", "1", env!("CARGO_BIN_EXE_meshwright-under-test")]);
            command.args(["transport-suite", "mpi"]).args(args);
            command.stdout(Stdio::null()).stderr(Stdio::piped()).stdin(Stdio::null());
            let mut mpirun = command.spawn().unwrap();
            let stderr = mpirun.stderr.take().unwrap();
            let (send, lines) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                    if send.send(line).is_err() {
                        return;
                    }
                }
            });
            MpiJob { mpirun, processes, lines }
        }

        /// Process ids by rank.
        fn pids(&self) -> Vec<String> {
            let mut pids = vec![String::new(); self.processes];
            while pids.iter().any(String::is_empty) {
                let line = self.lines.recv_timeout(Duration::from_secs(60)).unwrap();
                let words: Vec<&str> = line.split_whitespace().collect();
                if let ["rank", rank, "is", "process", pid, ..] = words[..] {
                    pids[rank.parse::<usize>().unwrap()] = pid.trim_end_matches(',').to_string();
                }
            }
            pids
        }

        fn end(mut self, most: Duration) -> Ended {
            let since = Instant::now();
            let status = loop {
                match self.mpirun.try_wait().unwrap() {
                    Some(status) => break status,
                    None if since.elapsed() > most => {
                        self.mpirun.kill().unwrap();
                        panic!("it hangs: {:#?}", self.lines.try_iter().collect::<Vec<_>>());
                    }
                    None => std::thread::sleep(Duration::from_millis(20)),
                }
            };
            Ended { success: status.success(), said: self.lines.iter().collect() }
        }
    }

    fn passes(args: &[&str]) {
        passes_of(4, args);
    }

    fn passes_of(processes: usize, args: &[&str]) {
        let ended = MpiJob::of(processes, args).end(Duration::from_secs(240));
        assert!(ended.success, "{processes} {args:?}: {:#?}", ended.said);
    }

    #[test]
    fn processes_pass_the_suite_of_transports() {
        passes(&["--deterministic", "--pause-us", "100"]);
        passes(&[]);
    }

    #[test]
    fn processes_cut_long_buffers_into_chunks() {
        passes(&["--deterministic", "--limit", "1000"]);
        passes(&["--limit", "1000", "--unchecked"]);
    }

    #[test]
    fn processes_of_several_devices_pass_the_suite() {
        passes_of(2, &["--devices", "2", "--pause-us", "100"]);
        passes_of(2, &["--devices", "3", "--limit", "1000"]);
        passes_of(3, &["--devices", "1", "--unchecked"]);
    }

    /// What all others than the one at fault, or all, must say.
    #[test]
    fn processes_that_fail_name_who_and_what() {
        let cases = [
            // The first two that came to it, of which one is the one at fault.
            ("dtype", 4, "rank 1…disagree on the dtype: all_reduce #1 of `v1` at line 11 (sum of [1 f"),
            ("skip", 4, "rank 1…disagree on the sequence number: barrier #"),
            (
                "stall",
                3,
                "in all_reduce #1 of `v1` at line 11; waiting for rank 2 (last call: all_reduce #0 of `v0`",
            ),
            ("in-turn", 1, "itself blocked by rank 3 (last call: all_reduce #0 of `v0` at line 10)"),
            ("circle", 1, "rank 1 (last call: barrier #4 of `v4` at line 14)"),
            ("leave", 3, "rank 2 left without entering all_reduce #1 of `v1` at line 11"),
            (
                "cancel",
                3,
                "rank 1 cancelled all_reduce #1 of `v1` at line 11 before all ranks had entered it",
            ),
            ("abort", 3, "rank 1 ended: no space left on device"),
            ("panic", 1, "rank 1 ended: its thread panicked, while this rank was in all_reduce #1 of `v1`"),
        ];
        for (fault, times, text) in cases {
            fails(|limit| MpiJob::start(&["--timeout-ms", limit, fault]), fault, times, text);
        }
    }

    /// So many processes must say a line with all parts of the text, if not within two seconds, as on a busy machine, then within
    /// ten.
    fn fails(job: impl Fn(&str) -> MpiJob, fault: &str, times: usize, text: &str) {
        let has_all = |line: &&String| text.split('…').all(|part| line.contains(part));
        let mut said = vec![];
        for limit in ["2000", "10000"] {
            let ended = job(limit).end(Duration::from_secs(60));
            if !ended.success && ended.said.iter().filter(has_all).count() >= times {
                return;
            }
            said = ended.said;
        }
        panic!("{fault}: not {times} times {text:?}: {said:#?}");
    }

    /// Ranks 0 and 1 are of one process, 2 and 3 of another.
    #[test]
    fn devices_of_processes_that_fail_name_who_and_what() {
        let cases = [
            // Each process finds the first two that came to it.
            ("dtype", 4, "disagree on the dtype: all_reduce #1 of `v1` at line 11 (sum of [1 f"),
            ("skip", 4, "disagree on the sequence number: barrier #"),
            (
                "stall",
                2,
                "in all_reduce #1 of `v1` at line 11; waiting for rank 2 of process 1 (last call: all_reduce #0 of `v0`",
            ),
            (
                "in-turn",
                1,
                "itself blocked by rank 3 of process 1 (last call: all_reduce #0 of `v0` at line 10)",
            ),
            ("leave", 3, "rank 2 left without entering all_reduce #1 of `v1` at line 11"),
            ("cancel", 2, "cancelled all_reduce #1 of `v1` at line 11 before all ranks had entered it"),
            ("abort", 3, "rank 1 ended: no space left on device"),
            ("panic", 1, "rank 1 ended: its thread panicked, while this rank was in all_reduce #1 of `v1`"),
        ];
        for (fault, times, text) in cases {
            let job = |limit: &str| MpiJob::of(2, &["--devices", "2", "--timeout-ms", limit, fault]);
            fails(job, fault, times, text);
        }
    }

    /// The faulty MPI library, compiled into a folder.
    fn faulty_mpi(folder: &Path) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fake-mpi/src/lib.rs");
        let beside = Path::new(env!("CARGO")).with_file_name("rustc");
        let rustc = if beside.exists() { beside } else { PathBuf::from("rustc") };
        let built = folder.join("libfake_mpi.so");
        let mut command = Command::new(rustc);
        command.args(["--edition", "2024", "--crate-type", "cdylib", "--crate-name", "fake_mpi"]);
        let done = command.arg(source).arg("-o").arg(&built).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        built
    }

    #[test]
    fn after_a_call_that_failed_half_way_the_library_is_called_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let library = faulty_mpi(folder.path());
        for fault in ["refused", "doubted"] {
            let job = MpiJob::with(4, Some(&library), &["--timeout-ms", "5000", "--unchecked", fault]);
            let ended = job.end(Duration::from_secs(60));
            let says = |text: &str| ended.said.iter().any(|line| line.contains(text));
            assert!(!ended.success, "{fault}: {:#?}", ended.said);
            assert!(says("error [1]: rank 1: MPI_ERR_OTHER"), "{fault}: {:#?}", ended.said);
            assert!(!says("the library is called after it has refused"), "{fault}: {:#?}", ended.said);
        }
    }

    #[test]
    fn a_process_that_dies_before_a_communicator_is_the_one_that_is_named() {
        let ended = MpiJob::start(&["--timeout-ms", "20000", "unready"]).end(Duration::from_secs(60));
        let unresponsive = |rank| {
            let text = format!("rank {rank} (unresponsive)");
            ended.said.iter().filter(|line| line.contains(&text)).count()
        };
        assert!(!ended.success && unresponsive(1) > 0, "{:#?}", ended.said);
        assert_eq!(unresponsive(0) + unresponsive(2) + unresponsive(3), 0, "{:#?}", ended.said);
    }

    #[test]
    fn a_process_that_dies_in_making_a_communicator_ends_those_that_make_it() {
        let folder = tempfile::tempdir().unwrap();
        let job = MpiJob::with(4, Some(&faulty_mpi(folder.path())), &["--timeout-ms", "20000", "groups"]);
        let ended = job.end(Duration::from_secs(60));
        let text = "for ranks [0, 1] to set up their communicator: one of them is stopped or dead";
        let told = ended
            .said
            .iter()
            .any(|line| line.starts_with("error: rank 0 timed out after") && line.contains(text));
        assert!(!ended.success && told, "{:#?}", ended.said);
    }

    /// Kills or stops a process after so many milliseconds.
    fn strike(job: MpiJob, signal: &str, process: usize, after: u64) -> Ended {
        let pids = job.pids();
        std::thread::sleep(Duration::from_millis(after));
        let struck = Command::new("kill").args([signal, &pids[process]]).status().unwrap();
        assert!(struck.success());
        job.end(Duration::from_secs(30))
    }

    #[test]
    fn a_killed_or_stopped_process_is_named_with_the_collective_it_is_missed_in() {
        // Moments that differ from run to run.
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let mut random = u64::from(now.subsec_nanos()) | 1;
        for signal in ["-KILL", "-STOP"] {
            // Of four processes, and of two of two devices each: the process, and its ranks, one of which must be missed.
            for (devices, process, ranks) in [("", 0, "0"), ("", 2, "2"), ("2", 1, "23")] {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let after = 50 + (random >> 33) % 800;
                let endless = ["--timeout-ms", "2000", "endless"];
                let job = match devices {
                    "" => MpiJob::start(&endless),
                    n => MpiJob::of(2, &[&["--devices", n], &endless[..]].concat()),
                };
                let ended = strike(job, signal, process, after);
                let case = format!("{signal} of process {process} after {after} ms: {:#?}", ended.said);
                assert!(!ended.success, "{case}");
                // The rank that speaks, the collective's number, its value and line, and who is missing.
                let names = |line: &&String| {
                    let of =
                        if devices.is_empty() { String::new() } else { format!(" of process {process}") };
                    let missing = |r: char| line.contains(&format!("rank {r}{of} (unresponsive)"));
                    let text = ["; waiting for ", " #", " of `v", "` at line "];
                    line.starts_with("error [")
                        && text.iter().all(|part| line.contains(part))
                        && ranks.chars().any(missing)
                };
                assert!(ended.said.iter().any(|line| names(&line)), "{case}");
            }
        }
    }
}
