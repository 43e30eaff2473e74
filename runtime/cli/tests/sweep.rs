//! Sweeps as users have them: which runs there are, what is left out, how they go on, and the table.

use crate::support::{self, file, lasting, lines, prepared, rows, run_in as run};
use serde_json::Value;
use std::path::Path;

/// What a sweep of the small model is given.
const GRID: [&str; 9] =
    ["sweep", "sums.mw", "--data", "data", "--dim", "batch=10,20", "--epochs", "3", "--run"];

#[test]
fn a_sweep_runs_what_compiles_and_prints_a_table() {
    let at = prepared("sweep-grid");
    let more = [
        "--layout",
        "batch -> r",
        "--layout",
        "batch -> r; features -> c",
        "--mesh",
        "2,2x2",
        "--one-device",
    ];
    let (code, out, err) = run(&at, &[&GRID[..], &["a", "--seeds", "2"], &more].concat());
    assert_eq!(code, 0, "{err}");
    // Each layout fits one of the meshes: what does not is said once, with its diagnostic.
    assert_eq!(err.matches("error[E03").count(), 2, "{err}");
    assert!(err.contains("is skipped, since it cannot run") && err.contains("for the same reason"), "{err}");
    assert!(err.contains("20 runs: 12 finished, 8 skipped; "), "{err}");
    assert!(out.contains("test loss") && out.contains("r=2,c=2"), "{out}");

    let all = rows(&at, &["sweep", "a", "--table"]);
    assert_eq!(all.len(), 20);
    let of = |name: &str| all.iter().find(|r| r["run"] == name).unwrap_or_else(|| panic!("{name}: {all:?}"));
    let one = of("one-device-batch=10-seed=1");
    let two = of("batch-r-2-batch=10-seed=1");
    assert_eq!((&one["devices"], &two["devices"], &two["mesh"]), (&1.into(), &2.into(), &"r=2".into()));
    assert_eq!((&one["collective_bytes"], &one["loss_difference"]), (&0.into(), &Value::Null));
    assert!(two["collective_bytes"].as_u64().unwrap() > 0 && two["planned_peak_bytes"].as_u64().unwrap() > 0);
    let difference = two["train_loss"].as_f64().unwrap() - one["train_loss"].as_f64().unwrap();
    assert_eq!(two["loss_difference"].as_f64().unwrap(), difference);
    assert!(difference.abs() < 1e-5 && two["speedup"].as_f64().unwrap() > 0.0, "{two}");
    assert_eq!(of("batch-r-2x2-batch=10-seed=0")["state"], "skipped");

    // The numbers are those of the run's own log.
    let log = lines(&file(&at, "a/batch-r-2-batch=10-seed=1/metrics.jsonl"));
    let last = |kind: &str| log.iter().rfind(|e| e["event"] == kind).unwrap();
    assert_eq!(two["train_loss"], last("epoch")["train_loss"]);
    assert_eq!(two["test_loss"], last("evaluation")["eval_loss"]);
    assert_eq!(two["test_accuracy"], last("evaluation")["eval_accuracy"]);
    // The system's count of the most that was resident may fall by some pages: the greatest of the log is the peak.
    let resident = log.iter().flat_map(|e| [e["memory_bytes"].as_u64(), e["peak_memory_bytes"].as_u64()]);
    assert_eq!(two["measured_peak_bytes"].as_u64(), resident.flatten().max());
    assert_eq!(two["collective_bytes"], last("step")["bytes_communicated"]);
    let accuracy = |e: &&Value| e["event"] == "step" && e["step"].as_u64().unwrap() > 20;
    let steps: Vec<f64> =
        log.iter().filter(accuracy).map(|e| e["train_accuracy"].as_f64().unwrap()).collect();
    let mean = steps.iter().sum::<f64>() / steps.len() as f64;
    assert!((two["train_accuracy"].as_f64().unwrap() - mean).abs() < 1e-12 && steps.len() == 10, "{two}");
    let mut times: Vec<f64> =
        log.iter().filter(|e| e["event"] == "step").map(|e| e["seconds"].as_f64().unwrap()).skip(1).collect();
    times.sort_by(f64::total_cmp);
    assert_eq!(two["step_ms_min"].as_f64().unwrap(), times[0] * 1e3);
    assert_eq!(two["step_ms_median"].as_f64().unwrap(), times[14] * 1e3);

    // The folder has the table in every format, and nothing runs again.
    for name in ["table.txt", "table.csv", "table.jsonl", "table.md", "table.parquet", "sweep.toml"] {
        assert!(at.join("a").join(name).metadata().unwrap().len() > 0, "{name}");
    }
    assert_eq!(lines(&file(&at, "a/table.jsonl")), all);
    let before = file(&at, "a/batch-r-2-batch=10-seed=1/history.jsonl");
    let (code, _, err) = run(&at, &["sweep", "a"]);
    assert_eq!((code, file(&at, "a/batch-r-2-batch=10-seed=1/history.jsonl")), (0, before), "{err}");
}

#[test]
fn tables_are_sorted_and_written_in_formats() {
    let at = prepared("sweep-formats");
    let (code, _, err) = run(&at, &[&GRID[..], &["a", "--set", "lr=0.1,0.5"]].concat());
    assert_eq!(code, 0, "{err}");
    let sorted = |by: &str| -> Vec<f64> {
        let all = rows(&at, &["sweep", "a", "--table", "--sort", by]);
        all.iter().map(|r| r["test_loss"].as_f64().unwrap()).collect()
    };
    let (up, mut down) = (sorted("test_loss"), sorted("-test_loss"));
    assert!(up.is_sorted() && up.len() == 4, "{up:?}");
    down.reverse();
    assert_eq!(up, down);
    let (code, _, err) = run(&at, &["sweep", "a", "--table", "--sort", "test_lss"]);
    assert!(
        code == 1 && err.contains("did you mean `test_loss`?") && err.contains("step_ms_median"),
        "{err}"
    );
    let table = |format: &str| run(&at, &["sweep", "a", "--table", "--format", format]);
    let csv = table("csv").1;
    assert!(csv.starts_with("run,state,layout,mesh,devices,batch,lr,seed,steps,"), "{csv}");
    assert_eq!(csv.lines().count(), 5);
    let markdown = table("markdown").1;
    assert!(markdown.lines().nth(1).unwrap().starts_with("| ---"), "{markdown}");
    let (code, _, err) = table("parquet");
    assert!(code == 2 && err.contains("--output"), "{err}");
    let (code, out, err) = run(&at, &["sweep", "a", "--table", "--format", "parquet", "-o", "t.parquet"]);
    assert_eq!((code, out.as_str()), (0, ""), "{err}");
    let bytes = std::fs::read(at.join("t.parquet")).unwrap();
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
}

#[test]
fn a_file_says_the_same_as_options() {
    let at = prepared("sweep-file");
    let toml = "model = \"sums.mw\"\ndata = \"data\"\nepochs = 1\nrun = \"b\"\nskip = [\"batch = 20 and lr > 0.3\"]\n\
        [dim]\nbatch = [10, 20]\n[set]\nlr = [0.1, 0.5]\n";
    std::fs::write(at.join("sweep.toml"), toml).unwrap();
    let options = [
        "sweep",
        "sums.mw",
        "--data",
        "data",
        "--epochs",
        "1",
        "--dim",
        "batch=10,20",
        "--set",
        "lr=0.1,0.5",
    ];
    let by_options =
        rows(&at, &[&options[..], &["--skip", "batch = 20 and lr > 0.3", "--run", "a"]].concat());
    let by_file = rows(&at, &["sweep", "sweep.toml"]);
    assert_eq!(by_file.len(), 3);
    let both = [&by_options, &by_file].map(|all| all.iter().map(lasting).collect::<Vec<_>>());
    assert_eq!(both[0], both[1]);
    assert_eq!(rows(&at, &["sweep", "--file", "sweep.toml", "--run", "c", "--jobs", "2"]).len(), 3);

    // From another folder, by the folder alone.
    std::fs::create_dir(at.join("inside")).unwrap();
    std::fs::remove_dir_all(at.join("b/one-device-batch=10-lr=0.1-seed=0")).unwrap();
    let again = rows(&at.join("inside"), &["sweep", "../b"]);
    assert_eq!(again.iter().map(lasting).collect::<Vec<_>>(), both[1]);
    // What it writes lies where the command was given.
    let (code, _, err) = run(&at.join("inside"), &["sweep", "../b", "--format", "csv", "--output", "t.csv"]);
    assert!(code == 0 && at.join("inside/t.csv").is_file() && !at.join("t.csv").exists(), "{err}");

    for (wrong, why) in [
        ("modl = \"x\"\n", "unknown field"),
        ("epochs = 1\n", "names no model"),
        ("model = \"sums.mw\"\nset.lr = true\n", "expected a number, a list"),
        ("model = \"sums.mw\"\nepochs = 1\nsteps = 1\n", "both epochs and steps"),
        ("model = \"sums.mw\"\njobs = 0\n", "`jobs = 0`"),
        ("model = \"sums.mw\"\nseeds = 4000000000\n", "`seeds = 4000000000`"),
    ] {
        std::fs::write(at.join("wrong.toml"), wrong).unwrap();
        let (code, _, err) = run(&at, &["sweep", "wrong.toml"]);
        assert!(code == 1 && err.contains(why) && err.contains("E0516"), "{wrong}: {err}");
    }
    let (code, _, err) = run(&at, &["sweep", "sweep.toml", "--set", "lr=1"]);
    assert!(code == 2 && err.contains("change it there"), "{err}");
}

#[test]
fn a_run_that_fails_does_not_end_the_sweep() {
    let at = prepared("sweep-fails");
    // A learning rate that no loss survives, and a batch that the data does not have.
    let grid = [
        "sweep",
        "sums.mw",
        "--data",
        "data",
        "--steps",
        "40",
        "--set",
        "lr=0.5,1e300",
        "--dim",
        "batch=10,200",
    ];
    let (code, out, err) = run(&at, &[&grid[..], &["--run", "a"]].concat());
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("4 runs: 1 finished, 1 failed, 2 skipped; "), "{err}");
    assert!(err.contains("error[E0516]: `batch` = 200, but") && err.contains("` failed: E0517: "), "{err}");
    assert!(out.contains("failed") && out.contains("finished"), "{out}");
    let all = rows(&at, &["sweep", "a", "--table"]);
    let failed = all.iter().find(|r| r["run"] == "one-device-batch=10-lr=1e300-seed=0").unwrap();
    assert!(failed["error"].as_str().unwrap().starts_with("E0517: "), "{failed}");
    // Sorted by what no run has, the table is there all the same.
    let sorted = ["sweep", "sums.mw", "--data", "data", "--steps", "40", "--set", "lr=1e300", "--run", "b"];
    let (code, out, err) = run(&at, &[&sorted[..], &["--sort", "-test_accuracy"]].concat());
    assert!(code == 1 && err.contains("no run has `test_accuracy`: the table is in the order"), "{err}");
    assert!(out.contains("failed") && err.contains("` failed: E0517: "), "{out}{err}");
    // The run itself knows, without the sweep.
    let run_dir = at.join("a").join(failed["run"].as_str().unwrap());
    assert!(file(&run_dir, "history.jsonl").contains("\"event\":\"failed\""));
}

#[test]
fn what_cannot_be_is_said_before_anything_runs() {
    let at = prepared("sweep-refused");
    let refused = |args: &[&str], code: i32, why: &str| {
        let (got, _, err) = run(&at, &[&["sweep"], args].concat());
        assert!(got == code && err.contains(why), "{args:?}: {got} {err}");
    };
    refused(&["sums.mw", "--data", "data", "--set", "lr=log:0.1..1"], 1, "--search random");
    refused(&["sums.mw", "--data", "data", "--set", "lr=log:0.1..1", "--search", "random"], 1, "--trials 20");
    refused(
        &["sums.mw", "--data", "data", "--skip", "bacth > 1", "--dim", "batch=10"],
        1,
        "did you mean `batch`?",
    );
    refused(&["sums.mw", "--data", "data", "--set", "l=0.1"], 1, "E0");
    refused(&["sums.mw", "--data", "data", "--run", "a", "--", "--no-save"], 2, "--no-save");
    refused(&["sums.mw", "--data", "data", "--run", "a", "--", "--seed", "3"], 2, "--seed");
    refused(&["sums.mw", "--data", "data", "--run", "a", "--", "--cores", "2"], 2, "--cores");
    refused(&["sums.mw", "--timing", "--jobs", "2"], 2, "--jobs");
    refused(&["sums.mw", "--run", "a"], 1, "there is no data for the inputs");
    refused(&["sums.mw", "--data", "elsewhere", "--run", "a"], 1, "there is no data at `elsewhere`");
    refused(&["data"], 1, "holds no sweep");
    refused(&["nothing", "--run", "a", "--table"], 1, "no sweep in `a`");
    refused(&["sums.mw", "--data", "data", "--sort", "layuot"], 1, "did you mean `layout`?");
    refused(&["sums.mw", "--data", "data", "--sort", "test_lss"], 1, "did you mean `test_loss`?");
    refused(&["sums.mw", "--data", "data", "--output", "none/t.csv"], 1, "none/t.csv` cannot be written");
    assert!(!at.join("a").exists());
    // A folder with a run of other settings under the same name.
    let one = ["sums.mw", "--data", "data", "--steps", "2", "--run", "a"];
    assert_eq!(run(&at, &[&["sweep"], &one[..]].concat()).0, 0);
    let spec = file(&at, "a/sweep.toml");
    let f64 = [&one[..], &["--precision", "f64"]].concat();
    refused(&f64, 1, "the precision was f32, and is f64");
    refused(&[&f64[..], &["--launch", "slurm"]].concat(), 1, "holds another run");
    refused(&[&one[..], &["--", "--no-eval"]].concat(), 1, "what follows `--` was ``, and is `--no-eval`");
    support::data(&at.join("other"));
    let other = ["sums.mw", "--data", "other/data", "--steps", "2", "--run", "a"];
    refused(&other, 1, "sweep-refused/data, and is other/data");
    // What is refused changes nothing: the sweep goes on as what it was.
    assert_eq!(file(&at, "a/sweep.toml"), spec);
    assert_eq!(run(&at, &["sweep", "a"]).0, 0);
    // The same data by another path is the same.
    let same = at.join("data").display().to_string();
    assert_eq!(run(&at, &["sweep", "sums.mw", "--data", &same, "--steps", "2", "--run", "a"]).0, 0);
    assert_eq!(run(&at, &[&["sweep"], &one[..]].concat()).0, 0);
    refused(&["sums.mw", "--data", "data", "--run", "a/one-device-seed=0"], 1, "a single run");
}

#[test]
fn halving_lets_the_best_go_on() {
    let at = prepared("sweep-halving");
    let search = [
        "--set",
        "lr=log:1e-3..1",
        "--search",
        "halving",
        "--trials",
        "9",
        "--epochs",
        "9",
        "--objective",
        "accuracy",
    ];
    let sweep = |folder: &str| {
        let args =
            [&["sweep", "sums.mw", "--data", "data", "--run", folder, "--jobs", "2"], &search[..]].concat();
        rows(&at, &args)
    };
    let all = sweep("a");
    let with = |epochs: u64| all.iter().filter(|r| r["epochs"] == epochs).collect::<Vec<_>>();
    assert_eq!((with(1).len(), with(3).len(), with(9).len()), (6, 2, 1), "{all:?}");
    assert_eq!((&with(9)[0]["state"], &with(1)[0]["state"]), (&"finished".into(), &"stopped".into()));
    // The best after three epochs is the one that has nine.
    let after = |row: &Value, epoch: u64| {
        let log = lines(&file(&at.join("a").join(row["run"].as_str().unwrap()), "metrics.jsonl"));
        let at = log.iter().find(|e| e["event"] == "epoch" && e["epoch"] == epoch).unwrap();
        at["eval_accuracy"].as_f64().unwrap()
    };
    assert!(with(3).iter().all(|r| after(r, 3) <= after(with(9)[0], 3)));
    assert!(with(1).iter().all(|r| with(3).iter().all(|b| after(r, 1) <= after(b, 1))));
    // What it has chosen is named, and that it was chosen on the test set.
    let again = |more: &[&str]| {
        let args = ["sweep", "sums.mw", "--data", "data", "--run", if more.is_empty() { "a" } else { "v" }];
        let (code, _, err) = run(&at, &[&args, &search[..], more].concat());
        assert_eq!(code, 0, "{err}");
        err
    };
    let said = again(&[]);
    let winner = with(9)[0]["run"].as_str().unwrap();
    assert!(said.contains(&format!("note: `{winner}` is the best of 9 trials by accuracy: 0.")), "{said}");
    let warned = "warning: `--search halving` chooses by the test set, as there is no validation set";
    assert!(said.contains(warned) && said.contains("`--validation 0.1`"), "{said}");
    assert!(!again(&["--", "--validation", "0.2"]).contains("warning"));
    let train = ["train", "sums.mw", "--data", "data", "--no-save", "--steps", "2", "--patience", "3"];
    let warned = "warning: `--patience` chooses by the test set";
    assert!(run(&at, &train).2.contains(warned));
    assert!(!run(&at, &[&train[..], &["--validation", "0.2"]].concat()).2.contains("warning"));
    // The same seed draws and chooses the same.
    let again = sweep("b");
    assert_eq!(again.iter().map(lasting).collect::<Vec<_>>(), all.iter().map(lasting).collect::<Vec<_>>());
}

/// By the path of its file, as a shell completes it.
#[test]
fn the_folder_of_a_run_is_never_hidden() {
    let at = prepared("sweep-shown");
    std::fs::write(at.join("dp.layout"), "batch -> r\n").unwrap();
    let args = [
        "sweep",
        "sums.mw",
        "--data",
        "data",
        "--layout",
        "./dp.layout",
        "--mesh",
        "2",
        "--steps",
        "2",
        "--run",
        "a",
    ];
    let all = rows(&at, &args);
    assert_eq!(all[0]["run"], "dp-2-seed=0");
    let (_, out, err) = run(&at, &["runs", "ls", "a", "--format", "csv"]);
    assert_eq!(out.lines().count(), 2, "{out}{err}");
}

/// With `--timing` each run is alone, whatever the sweep did before.
#[test]
fn runs_that_are_timed_are_alone() {
    let at = prepared("sweep-timing");
    let toml =
        "model = \"sums.mw\"\ndata = \"data\"\nepochs = 20\nrun = \"a\"\njobs = 2\ndim.batch = [5, 10]\n";
    std::fs::write(at.join("sweep.toml"), toml).unwrap();
    assert_eq!(rows(&at, &["sweep", "sweep.toml", "--timing"]).len(), 2);
    let times = |batch: u32| {
        let log = lines(&file(&at, &format!("a/one-device-batch={batch}-seed=0/metrics.jsonl")));
        let time = |e: &Value| e["time"].as_str().unwrap().to_string();
        (time(&log[0]), time(log.last().unwrap()))
    };
    let (five, ten) = (times(5), times(10));
    assert!(five.1 <= ten.0 || ten.1 <= five.0, "{five:?} {ten:?}");
    assert!(
        file(&at, "a/sweep.toml").contains("timing = true") && !file(&at, "a/sweep.toml").contains("jobs")
    );
}

/// Rungs end within the steps between two evaluations.
#[test]
fn halving_chooses_by_the_last_evaluation() {
    let at = prepared("sweep-halving-every");
    let args = [
        "sweep",
        "sums.mw",
        "--data",
        "data",
        "--set",
        "lr=0.001,0.5",
        "--search",
        "halving",
        "--reduction",
        "2",
    ];
    let more = ["--epochs", "2", "--run", "a", "--format", "jsonl", "--", "--eval-every", "7"];
    let (code, out, err) = run(&at, &[&args[..], &more].concat());
    assert_eq!(code, 0, "{err}");
    let all = lines(&out);
    let state = |lr: f64| all.iter().find(|r| r["lr"] == lr).unwrap()["state"].clone();
    assert_eq!((state(0.001), state(0.5)), ("stopped".into(), "finished".into()), "{all:?}");
}

/// Draws are runs like others: they are searched once, and go on from the folder.
#[test]
fn a_random_search_draws_what_it_has_drawn() {
    let at = prepared("sweep-random");
    let args = [
        "sweep",
        "sums.mw",
        "--data",
        "data",
        "--set",
        "lr=log:1e-2..1",
        "--search",
        "random",
        "--steps",
        "3",
        "--run",
    ];
    let names = |trials: &str, folder: &str| -> Vec<Value> {
        let all = rows(&at, &[&args[..], &[folder, "--trials", trials]].concat());
        assert!(all.iter().all(|r| r["state"] == "finished"));
        all.into_iter().map(|r| r["run"].clone()).collect()
    };
    let (three, five) = (names("3", "a"), names("5", "a"));
    assert_eq!((three.len(), &five[..3], names("5", "b")), (3, &three[..], five.clone()));
    let history =
        |run: &Value| file(&at.join("a").join(run.as_str().unwrap()), "history.jsonl").lines().count();
    assert!(five.iter().all(|run| history(run) == 1));
}

#[test]
fn a_slurm_array_has_a_task_for_each_run() {
    let at = prepared("sweep-slurm");
    let args = [
        &GRID[..],
        &["a b", "--launch", "slurm", "--cores", "4", "--sbatch", "--time=1:00:00", "--jobs", "3"],
    ]
    .concat();
    let (code, out, err) = run(&at, &args);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("2 runs\nstart them with: sbatch 'a b/sweep.sbatch'\n"), "{out}");
    assert!(out.contains("meshwright sweep 'a b' --table\n"), "{out}");
    let job = file(&at, "a b/sweep.sbatch");
    assert_eq!(support::linted(&job), "", "{job}");
    // From wherever `sbatch` is called.
    let log = format!("#SBATCH --output=\"{}/a b/logs/slurm-%a.log\"", at.display());
    assert!(job.lines().any(|l| l == log) && !job.contains("--gpus"), "{job}");
    for line in
        ["#SBATCH --array=0-1%3", "#SBATCH --cpus-per-task=4", "#SBATCH --time=1:00:00", "#SBATCH --requeue"]
    {
        assert!(job.lines().any(|l| l == line), "{line}: {job}");
    }
    // A shell runs it as a node would.
    let binary = Path::new(env!("CARGO_BIN_EXE_meshwright"));
    let path = format!("{}:{}", binary.parent().unwrap().display(), std::env::var("PATH").unwrap());
    for task in ["0", "1"] {
        let mut shell = std::process::Command::new("bash");
        shell.arg("a b/sweep.sbatch").current_dir(&at).env("SLURM_ARRAY_TASK_ID", task).env("PATH", &path);
        assert!(shell.output().unwrap().status.success());
    }
    let gpus = ["sweep", "sums.mw", "--run", "g", "--launch", "slurm", "--", "--device", "cuda"];
    assert_eq!(run(&at, &gpus).0, 0);
    assert!(file(&at, "g/sweep.sbatch").contains("#SBATCH --gpus-per-task=1\n"));
    let all = rows(&at, &["sweep", "a b", "--table"]);
    assert!(all.len() == 2 && all.iter().all(|r| r["state"] == "finished"), "{all:?}");
    let (code, _, err) = run(&at, &args);
    assert!(code == 1 && err.contains("nothing to launch"), "{err}");
}
