//! Runs of several MPI processes, started by `mpirun`: the numbers of threads, one voice, and an end when a rank dies.

mod different_commands;

use crate::support::{Numbers, SMALL, Said, apart, command, folder, run, tensors};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One job at a time: each has more processes than there may be cores.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `mpirun` with its own arguments, of which each program's begin with `-n`.
pub(crate) fn job(programs: &[(usize, &[&str])]) -> Command {
    let mut job = Command::new("mpirun");
    let example = command(&[]);
    for (i, (ranks, args)) in programs.iter().enumerate() {
        if i > 0 {
            job.arg(":");
        }
        job.args(["-n", &ranks.to_string()]).arg(example.get_program()).args(*args);
    }
    job.current_dir(crate::support::root()).env_remove("MESHWRIGHT_DATA").env("NO_COLOR", "1");
    let settings = [
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
        ("OMPI_MCA_hwloc_base_binding_policy", "none"),
        ("OMPI_MCA_mpi_yield_when_idle", "1"),
    ];
    job.envs(settings).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    job
}

/// Waits for the end of a job, which must come.
pub(super) fn ended(mut child: Child, within: Duration, told: String) -> Said {
    let read = |from: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut text = String::new();
            from.map(|mut f| f.read_to_string(&mut text));
            text
        })
    };
    let out = read(child.stdout.take().map(|o| Box::new(o) as Box<dyn Read + Send>));
    let err = read(child.stderr.take().map(|o| Box::new(o) as Box<dyn Read + Send>));
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begin.elapsed() > within {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("it hangs: {}{}", out.join().unwrap(), err.join().unwrap());
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    Said { code: status.code(), out: told + &out.join().unwrap(), err: err.join().unwrap() }
}

pub(super) fn mpirun(ranks: usize, args: &[&str]) -> Said {
    ended(job(&[(ranks, args)]).spawn().unwrap(), Duration::from_secs(120), String::new())
}

const MLP: [&str; 10] =
    ["--dim", "batch=12", "--dim", "rows=5", "--dim", "cols=4", "--dim", "hidden=11", "--seed", "9"];

/// Arguments of a small training on a mesh of four; the run's folder may be left out.
fn small<'a>(data: &'a str, run: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["train", "mlp", "--data", data, "--mesh", "r=2,c=2", "--cores", "1"];
    args.extend(if run.is_empty() { vec!["--no-save"] } else { vec!["--run", run] });
    args.extend(MLP);
    args.extend(more);
    args
}

/// The losses of a report in JSON.
fn losses(said: &Said) -> Vec<f64> {
    let events = said.out.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
    events.filter(|e| e["event"] == "step").map(|e| e["loss"].as_f64().unwrap()).collect()
}

#[test]
fn ranks_train_and_resume_as_threads_do() {
    let _one = alone();
    let dir = folder(SMALL);
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (data, there, whole) = (at("data"), at("there"), at("whole"));
    for layout in ["batch -> r; hidden -> c", "batch -> r, c; params: rows -> c"] {
        let of = ["--layout", layout, "--format", "json", "--steps"];
        let steps = |n: &'static str| [&of[..], &[n]].concat();
        let threads = run(&small(&data, &whole, &steps("40")));
        assert_eq!(threads.code, Some(0), "{}", threads.err);
        // One report of four ranks, and the same bits.
        let exact = mpirun(4, &small(&data, &there, &[&steps("30")[..], &["--deterministic"]].concat()));
        assert_eq!(exact.code, Some(0), "{}", exact.err);
        assert_eq!(losses(&exact), losses(&threads)[..30], "{layout}");
        assert_eq!(exact.out.lines().filter(|l| l.contains("\"done\"")).count(), 1, "{}", exact.out);
        // What ranks have saved threads go on with,
        let rest = run(&small(&data, &there, &[&steps("35")[..], &["--resume"]].concat()));
        assert_eq!(losses(&rest), losses(&threads)[30..35], "{layout}: {}", rest.err);
        // and the other way round.
        let more = [&steps("40")[..], &["--resume", "--deterministic"]].concat();
        let last = mpirun(4, &small(&data, &there, &more));
        assert_eq!(losses(&last), losses(&threads)[35..], "{layout}: {}", last.err);
        assert_eq!(tensors(there.as_ref()), tensors(whole.as_ref()), "{layout}");
        // MPI's own reductions differ in rounding.
        let near = mpirun(4, &small(&data, "", &[&steps("10")[..], &["--no-eval"]].concat()));
        let difference = apart(&losses(&near), &losses(&threads)[..10]);
        assert!(difference < 1e-6, "{layout}: {difference}");
        std::fs::remove_dir_all(&there).unwrap();
        std::fs::remove_dir_all(&whole).unwrap();
    }
}

/// Two processes with two devices each have the bits of threads, and what they save goes on there.
#[test]
fn processes_of_several_devices_train_as_threads_do() {
    let _one = alone();
    let dir = folder(SMALL);
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (data, there) = (at("data"), at("there"));
    for layout in ["batch -> r; hidden -> c", "batch -> r, c; params: rows -> c"] {
        let of = ["--layout", layout, "--format", "json", "--steps"];
        let steps = |n: &'static str| [&of[..], &[n]].concat();
        let threads = run(&small(&data, "", &steps("12")));
        let several = [&steps("8")[..], &["--devices-per-process", "2"]].concat();
        let processes = mpirun(2, &small(&data, &there, &several));
        assert_eq!(processes.code, Some(0), "{}", processes.err);
        assert_eq!(losses(&processes), losses(&threads)[..8], "{layout}");
        let rest = run(&small(&data, &there, &[&steps("12")[..], &["--resume"]].concat()));
        assert_eq!(losses(&rest), losses(&threads)[8..], "{layout}: {}", rest.err);
        std::fs::remove_dir_all(&there).unwrap();
    }
    let args = small(&data, "", &["--layout", "batch -> r; hidden -> c"]);
    let said = mpirun(2, &args);
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains("`--devices-per-process 2`"), "{}", said.err);
    let said = mpirun(2, &[&args[..], &["--devices-per-process", "3"]].concat());
    assert!(said.err.contains("2 processes have 6 ranks in all"), "{}", said.err);
    assert!(!said.err.contains("mpirun -n"), "{}", said.err);
    let said = run(&[&args[..], &["--devices-per-process", "2"]].concat());
    assert!(said.code == Some(1) && said.err.contains("error[E0525]"), "{}", said.err);
}

#[test]
fn tiles_of_images_on_ranks_are_those_on_threads() {
    let _one = alone();
    let sizes = crate::support::Sizes { examples: 40, test: 10, rows: 12, cols: 12 };
    let dir = folder(sizes);
    let data = dir.path().join("data").display().to_string();
    let mut args = vec!["train", "mnist_conv", "--data", &data, "--no-save", "--cores", "1", "--steps", "4"];
    for dim in ["batch=10", "rows=12", "cols=12", "filters1=3", "filters2=2", "hidden1=8", "hidden2=6"] {
        args.extend(["--dim", dim]);
    }
    args.extend(["--layout", "rows -> b1; cols -> b2", "--mesh", "b1=2,b2=2", "--format", "json"]);
    let threads = run(&args);
    assert_eq!(threads.code, Some(0), "{}", threads.err);
    args.push("--deterministic");
    let ranks = mpirun(4, &args);
    assert_eq!(ranks.code, Some(0), "{}", ranks.err);
    assert_eq!(losses(&ranks).len(), 4);
    let lines = |said: &Said| {
        let whole = said.out.lines().map(|l| l.split(",\"seconds\"").next().unwrap().to_string());
        whole.collect::<Vec<_>>()
    };
    // The evaluation too.
    assert_eq!(lines(&ranks), lines(&threads));
}

/// Stages of a pipeline beside shards of the batch, in each order of microbatches: ranks that are stages receive what threads
/// would, and their evaluation too.
#[test]
fn stages_on_ranks_are_those_on_threads() {
    let layout = |order: &str| format!("batch -> data; layers -> pipe; microbatches 4; {order}");
    let orders =
        ["schedule gpipe", "schedule 1f1b", "schedule zb_h1; stages 1, 2", "chunks 2; stages 1, 1, 1, 0"];
    let layouts = orders.map(|order| ("data=2,pipe=2", layout(order)));
    texts_on_ranks_and_threads("seq=10", &layouts, &[]);
    // The same where a message has not ended for its sender before the receiver asks for it: in fewer bytes than any message has.
    let meets = [
        ("OMPI_MCA_pml", "ob1"),
        ("OMPI_MCA_btl", "self,vader"),
        ("OMPI_MCA_btl_vader_eager_limit", "128"),
        ("OMPI_MCA_btl_vader_rndv_eager_limit", "128"),
    ];
    texts_on_ranks_and_threads("seq=10", &layouts, &meets);
}

/// Keys around a ring of uneven shards, alone and beside heads within attention, and in zigzag order.
#[test]
fn long_sequences_on_ranks_are_those_on_threads() {
    let layouts = [
        ("data=1,ctx=4", "seq -> ctx; ring key"),
        ("around=2,ctx=2", "seq -> around; inside -> ctx; seq -> ctx when free; ring key"),
        ("a=2,b=2", "seq -> a, b; ring key"),
    ];
    texts_on_ranks_and_threads("seq=10", &layouts.map(|(mesh, layout)| (mesh, layout.to_string())), &[]);
    let zigzag = "seq -> ctx; ring key; order seq zigzag ctx".to_string();
    texts_on_ranks_and_threads("seq=16", &[("data=1,ctx=4", zigzag)], &[]);
}

/// Arguments of a small GPT.
fn text<'a>(seq: &'a str, data: &'a str) -> Vec<&'a str> {
    let mut args =
        vec!["train", "gpt", "--preset", "tiny", "--data", data, "--cores", "1", "--format", "json"];
    for dim in ["batch=8", seq, "vocab=320", "layers=3", "heads=2", "d_head=4", "d_ff=8", "places=16"] {
        args.extend(["--dim", dim]);
    }
    args
}

/// Trains a small GPT under each of the layouts over four devices: ranks have the bits of threads, with settings of MPI.
fn texts_on_ranks_and_threads(seq: &str, layouts: &[(&str, String)], settings: &[(&str, &str)]) {
    let _one = alone();
    let dir = tempfile::tempdir().unwrap();
    crate::training::text::tokenized(dir.path(), &["--train", "bpe", "--vocab", "320"]);
    let data = dir.path().join("data").display().to_string();
    let args = [&text(seq, &data)[..], &["--no-save", "--steps", "3"]].concat();
    for (mesh, layout) in layouts {
        let asked = [&args[..], &["--mesh", *mesh, "--layout", layout.as_str()]].concat();
        let threads = run(&asked);
        assert_eq!(threads.code, Some(0), "{}", threads.err);
        let asked = [&asked[..], &["--deterministic"]].concat();
        let ranks = job(&[(4, &asked)]).envs(settings.iter().copied()).spawn().unwrap();
        let ranks = ended(ranks, Duration::from_secs(120), String::new());
        assert_eq!(ranks.code, Some(0), "{}", ranks.err);
        assert_eq!((losses(&ranks).len(), losses(&ranks)), (3, losses(&threads)), "{layout}");
    }
}

#[test]
fn ranks_evaluate_and_predict_as_threads_do() {
    let _one = alone();
    let dir = folder(SMALL);
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (data, trained, model) = (at("data"), at("run"), at("model.mw"));
    let text = std::fs::read_to_string(crate::support::root().join("models/mlp.mw")).unwrap();
    // What is split over ranks, and what is not.
    let outputs = "    output scores = logits\n}\n\nconst lr";
    let text = text.replacen("}\n\nconst lr", outputs, 1);
    assert!(text.contains("output scores"));
    std::fs::write(&model, text).unwrap();
    let mut args = small(&data, &trained, &["--steps", "20", "--layout", "batch -> r; hidden -> c"]);
    args[1] = &model;
    let said = run(&args);
    assert_eq!(said.code, Some(0), "{}", said.err);
    for verb in ["eval", "predict"] {
        let mut args = vec![verb, &model, "--checkpoint", &trained, "--data", &data, "--cores", "1"];
        args.extend(["--mesh", "r=2,c=2", "--layout", "batch -> r; hidden -> c", "--format", "json"]);
        args.extend(&MLP[..8]);
        let threads = run(&args);
        assert_eq!(threads.code, Some(0), "{}", threads.err);
        args.push("--deterministic");
        let ranks = mpirun(4, &args);
        assert_eq!(ranks.code, Some(0), "{}", ranks.err);
        let shown = |s: &Said| s.out.split(",\"seconds\"").next().unwrap().to_string();
        assert_eq!(shown(&ranks), shown(&threads), "{verb}");
        assert!(!ranks.out.is_empty());
    }
}

#[test]
fn a_mesh_that_does_not_fit_the_ranks_is_answered_with_one_that_does() {
    let _one = alone();
    let dir = folder(SMALL);
    let data = dir.path().join("data").display().to_string();
    let mut args = small(&data, "", &["--layout", "batch -> r; hidden -> c"]);
    let mesh = args.iter().position(|a| *a == "r=2,c=2").unwrap();
    args[mesh] = "r=2,c=3";
    let said = mpirun(4, &args);
    assert_eq!(said.code, Some(1), "{}", said.err);
    for part in ["error[E0307]", "4 ranks", "6 devices", "--mesh r=2,c=2", "mpirun -n 6"] {
        assert_eq!(said.err.matches(part).count(), 1, "{part}: {}", said.err);
    }
}

#[test]
fn what_all_ranks_find_wrong_is_said_once() {
    let _one = alone();
    let dir = folder(SMALL);
    let data = dir.path().join("data").display().to_string();
    let said = mpirun(3, &small(&data, "", &["--layout", "bach -> r"]));
    assert_eq!(said.code, Some(1), "{}", said.err);
    assert_eq!(said.err.matches("error[E0302]").count(), 1, "{}", said.err);
    assert!(!said.err.contains("[rank"), "{}", said.err);
}

#[test]
fn what_one_rank_lacks_it_says_itself() {
    let _one = alone();
    let dir = folder(SMALL);
    let data = dir.path().join("data").display().to_string();
    let (one, other) = (small(&data, "", &["--steps", "3"]), small("/no/such/data", "", &["--steps", "3"]));
    let job = job(&[(3, &one), (1, &other)]).spawn().unwrap();
    let said = ended(job, Duration::from_secs(60), String::new());
    assert_eq!(said.code, Some(1), "{}", said.err);
    assert!(said.err.contains("[rank 3] error[") && said.err.contains("/no/such/data"), "{}", said.err);
    assert_eq!(said.err.matches("error[").count(), 1, "{}", said.err);
}

/// The processes of the ranks of a job that runs.
fn processes(job: &Child) -> Vec<i32> {
    let mut ranks = vec![];
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
        let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
        let status = String::from_utf8_lossy(&read("status")).into_owned();
        let parent = status.lines().find_map(|l| l.strip_prefix("PPid:"));
        if parent.and_then(|p| p.trim().parse::<u32>().ok()) != Some(job.id()) {
            continue;
        }
        let environment = String::from_utf8_lossy(&read("environ")).into_owned();
        let rank = environment.split('\0').find_map(|v| v.strip_prefix("OMPI_COMM_WORLD_RANK="));
        ranks.extend(rank.and_then(|r| r.parse::<usize>().ok()).map(|r| (r, pid)));
    }
    ranks.sort_unstable();
    ranks.into_iter().map(|r| r.1).collect()
}

fn signal(name: &str, pid: i32) {
    let sent = Command::new("kill").args([name, &pid.to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Starts a training without end, and sends a signal to one rank at some moment after the first step. How it ends.
fn struck(name: &str, rank: usize, after: Duration, run: &str, data: &str) -> Said {
    struck_of(4, name, rank, after, run, data)
}

/// The same of so many processes, which share four devices.
fn struck_of(count: usize, name: &str, rank: usize, after: Duration, run: &str, data: &str) -> Said {
    let more =
        ["--layout", "batch -> r; hidden -> c", "--format", "json", "--no-eval", "--steps", "10000000"];
    let devices = (4 / count).to_string();
    let each = ["--timeout", "5", "--devices-per-process", &devices];
    let args = small(data, run, &[&more[..], &each[..if count == 4 { 2 } else { 4 }]].concat());
    struck_with(&args, count, name, rank, after)
}

/// The same of a training by its arguments.
fn struck_with(args: &[&str], count: usize, name: &str, rank: usize, after: Duration) -> Said {
    struck_behind(1, args, count, name, rank, after)
}

/// The same at some moment after so many steps.
fn struck_behind(
    steps: usize,
    args: &[&str],
    count: usize,
    name: &str,
    rank: usize,
    after: Duration,
) -> Said {
    // On a busy machine a second is little for those that are left to say what they know.
    let mut child = job(&[(count, args)]).env("OMPI_MCA_odls_base_sigkill_timeout", "3").spawn().unwrap();
    let mut told = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    (0..steps).for_each(|_| assert!(told.read_line(&mut first).unwrap() > 0));
    assert_eq!(first.matches("\"event\":\"step\"").count(), steps, "{first}");
    // Nobody waits for a pipe that is full.
    let rest = std::thread::spawn(move || {
        let mut rest = String::new();
        let _cut = told.read_to_string(&mut rest);
        rest
    });
    std::thread::sleep(after);
    let ranks = processes(&child);
    assert_eq!(ranks.len(), count, "{ranks:?}");
    signal(name, ranks[rank]);
    let mut said = ended(child, Duration::from_secs(60), first);
    said.out += &rest.join().unwrap();
    said
}

/// Whether some line says which rank was where: the collective's number, its value and its line.
fn is_told(err: &str) -> bool {
    err.lines().any(|line| {
        let of = |part: &str| line.split_once(part).map(|(_, after)| after.to_string());
        let number = of(" #").is_some_and(|n| n.starts_with(|c: char| c.is_ascii_digit()));
        let at = of(" at line ").is_some_and(|n| n.starts_with(|c: char| c.is_ascii_digit() && c != '0'));
        number && at && line.contains("rank ") && line.contains(" of `")
    })
}

#[test]
fn a_rank_that_is_killed_ends_the_job_with_its_place() {
    let _one = alone();
    let dir = folder(SMALL);
    let data = dir.path().join("data").display().to_string();
    let mut numbers = Numbers(u64::from(std::process::id()));
    for rank in [numbers.below(4), 0] {
        let after = Duration::from_millis(numbers.below(400) as u64);
        let said = struck("-KILL", rank, after, "", &data);
        assert_ne!(said.code, Some(0));
        assert!(is_told(&said.err), "rank {rank} after {after:?}: {}", said.err);
        assert!(said.err.contains(&format!("rank {rank}")), "{}", said.err);
    }
}

/// What was saved before stays, survivors say how to go on with it, and that works.
#[test]
fn a_killed_job_goes_on_from_its_checkpoint() {
    let _one = alone();
    let dir = folder(SMALL);
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (data, there) = (at("data"), at("there"));
    // Long enough for checkpoints of some epochs.
    let said = struck("-KILL", 2, Duration::from_millis(1500), &there, &data);
    assert!(said.err.contains(&format!("--run {there} --resume")), "{}", said.err);
    let done = losses(&said).len() as u64;
    let steps = (done + 5).to_string();
    let more =
        ["--layout", "batch -> r; hidden -> c", "--no-eval", "--format", "json", "--resume", "--steps"];
    let rest = run(&small(&data, &there, &[&more[..], &[&steps]].concat()));
    assert_eq!(rest.code, Some(0), "{}", rest.err);
    let first = rest.out.lines().find(|l| l.contains("\"step\"")).unwrap();
    let first: serde_json::Value = serde_json::from_str(first).unwrap();
    assert!((2..=done + 1).contains(&first["step"].as_u64().unwrap()), "{first} after {done} steps");
}

/// A stage between others is named by those that wait for its messages.
#[test]
fn a_middle_stage_that_dies_or_stands_still_is_named() {
    let _one = alone();
    let dir = tempfile::tempdir().unwrap();
    crate::training::text::tokenized(dir.path(), &["--train", "bpe", "--vocab", "320"]);
    let data = dir.path().join("data").display().to_string();
    let more = ["--mesh", "pipe=3", "--layout", "layers -> pipe; microbatches 4", "--no-save"];
    let args = [&text("seq=10", &data)[..], &more, &["--no-eval", "--steps", "10000000", "--timeout", "5"]];
    let args = args.concat();
    for name in ["-KILL", "-STOP"] {
        let said = struck_with(&args, 3, name, 1, Duration::from_millis(300));
        assert_ne!(said.code, Some(0));
        assert!(is_told(&said.err), "{name}: {}", said.err);
        assert!(said.err.contains("rank 1") && said.err.contains("step "), "{name}: {}", said.err);
    }
}

/// Stages of which one is killed go on from what they have saved, bit for bit as if nothing had happened.
#[test]
fn stages_of_which_one_is_killed_go_on_with_the_same_bits() {
    let _one = alone();
    let dir = tempfile::tempdir().unwrap();
    crate::training::text::tokenized(dir.path(), &["--train", "bpe", "--vocab", "320"]);
    let at = |name: &str| dir.path().join(name).display().to_string();
    let data = at("data");
    let mut numbers = Numbers(u64::from(std::process::id()) + 2);
    for (i, order) in
        ["schedule zb_h1; stages 0, 2, 1", "chunks 2; stages 1, 0, 1, 0, 1, 0"].iter().enumerate()
    {
        let (there, whole) = (at(&format!("there-{i}")), at(&format!("whole-{i}")));
        let layout = format!("layers -> pipe; microbatches 4; {order}");
        let of = |run: &str, steps: usize, more: &[&str]| -> Vec<String> {
            let steps = steps.to_string();
            let own = ["--mesh", "pipe=3", "--layout", &layout, "--no-eval", "--run", run, "--steps", &steps];
            let all = [&text("seq=10", &data)[..], &own, more].concat();
            all.into_iter().map(String::from).collect()
        };
        let args = of(&there, 10_000_000, &["--deterministic", "--checkpoint-every", "1", "--timeout", "5"]);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let after = Duration::from_millis(numbers.below(400) as u64);
        let said = struck_behind(4, &args, 3, "-KILL", 1 + i, after);
        assert_ne!(said.code, Some(0));
        let done = losses(&said).len();
        let asked = |run: &str, more: &[&str]| of(run, done + 3, more);
        let (rest, straight) = (asked(&there, &["--deterministic", "--resume"]), asked(&whole, &[]));
        let rest = mpirun(3, &rest.iter().map(String::as_str).collect::<Vec<_>>());
        let straight = run(&straight.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!((rest.code, straight.code), (Some(0), Some(0)), "{}{}", rest.err, straight.err);
        // All that was said is what threads say that nothing happens to; what was lost with the last step is said again.
        let (rest, straight) = (losses(&rest), losses(&straight));
        assert_eq!(losses(&said), straight[..done], "{layout}");
        assert!(rest.len() < done + 3, "{layout}: nothing was saved of {done} steps");
        assert_eq!(rest, straight[done + 3 - rest.len()..], "{layout}");
        assert_eq!(tensors(there.as_ref()), tensors(whole.as_ref()), "{layout}");
    }
}

#[test]
fn a_rank_that_stands_still_ends_the_job_within_the_timeout() {
    let _one = alone();
    let dir = folder(SMALL);
    let data = dir.path().join("data").display().to_string();
    let mut numbers = Numbers(u64::from(std::process::id()) + 1);
    let (rank, after) = (numbers.below(4), Duration::from_millis(numbers.below(400) as u64));
    let said = struck("-STOP", rank, after, "", &data);
    assert_ne!(said.code, Some(0));
    assert!(is_told(&said.err), "rank {rank} after {after:?}: {}", said.err);
    // Who waits for another rank, which itself waits for this one, names both.
    let named = ["waiting for", "blocked by"].map(|what| format!("{what} rank {rank}"));
    assert!(named.iter().any(|n| said.err.contains(n)), "{}", said.err);
}

#[test]
fn one_rank_that_is_interrupted_stops_all_with_a_checkpoint() {
    let _one = alone();
    let dir = folder(SMALL);
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (data, there) = (at("data"), at("run"));
    let said = struck("-INT", 2, Duration::from_millis(100), &there, &data);
    assert_eq!(said.code, Some(130), "{}", said.err);
    let steps = losses(&said).len();
    assert!(said.err.contains("interrupted after step"), "{}", said.err);
    let all = format!("{}", steps + 3);
    let rest =
        ["--layout", "batch -> r; hidden -> c", "--format", "json", "--no-eval", "--resume", "--steps", &all];
    let rest = run(&small(&data, &there, &rest));
    assert_eq!(losses(&rest).len(), 3, "{}", rest.err);
}

/// The number of a device is not that of its process, which is what the launcher knows.
#[test]
fn a_device_that_is_missed_is_named_with_its_process() {
    let _one = alone();
    let dir = folder(SMALL);
    let data = dir.path().join("data").display().to_string();
    for process in [0, 1] {
        let said = struck_of(2, "-STOP", process, Duration::from_millis(200), "", &data);
        assert_ne!(said.code, Some(0));
        let named =
            |device: usize| said.err.contains(&format!("rank {device} of process {process} (unresponsive)"));
        assert!(named(2 * process) || named(2 * process + 1), "process {process}: {}", said.err);
    }
}

#[test]
fn a_process_that_never_starts_ends_the_job() {
    let _one = alone();
    let dir = folder(SMALL);
    let data = dir.path().join("data").display().to_string();
    let mut args = small(&data, "", &["--steps", "3", "--timeout", "1"]);
    let mesh = args.iter().position(|a| *a == "r=2,c=2").unwrap();
    args[mesh] = "r=2";
    // MPI waits for the second process, which never calls it.
    let child = job(&[(1, &args)]).args([":", "-n", "1", "sleep", "100"]).spawn().unwrap();
    let said = ended(child, Duration::from_secs(60), String::new());
    assert_ne!(said.code, Some(0));
    assert!(said.err.contains("rank 0: MPI has not started within 6 s"), "{}", said.err);
}

/// All ranks look at the same step, and one says what was found on any of them.
#[test]
fn ranks_find_the_cause_of_a_loss_that_is_not_finite() {
    let _one = alone();
    let dir = folder(SMALL);
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (data, model) = (at("data"), at("model.mw"));
    let text = std::fs::read_to_string(crate::support::root().join("models/mlp.mw")).unwrap();
    let text = text
        .replace("    let logits = dense(h", "    let low = log(dense(h")
        .replace("[classes])\n\n    loss", "[classes]))\n    let logits = low\n\n    loss");
    std::fs::write(&model, text).unwrap();
    let mut args = small(&data, "", &["--layout", "batch -> r; hidden -> c", "--steps", "9", "--no-eval"]);
    args[1] = &model;
    let threads = run(&args);
    let cause = "the first value that is not finite is `low`";
    assert!(
        threads.err.contains(cause) && threads.err.contains("its operands were finite"),
        "{}",
        threads.err
    );
    let ranks = mpirun(4, &args);
    assert_eq!(ranks.code, Some(1), "{}", ranks.err);
    assert_eq!(ranks.err.matches(cause).count(), 1, "{}", ranks.err);
}
