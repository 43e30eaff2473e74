//! `runs`: runs that are there, listed, shown, compared, plotted, exported, summarized and removed.

use crate::support::{command, file, lines, prepared, run_in as run, said};
use meshwright_runs::clock::milliseconds_of;
use parquet::basic::{LogicalType, TimeUnit};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::RowAccessor;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Trains the small model in a run of its own.
fn trained(at: &Path, name: &str, more: &[&str]) {
    let place = format!("runs/{name}");
    let first = ["train", "sums.mw", "--data", "data", "--metrics", "accuracy", "--run", &place];
    let (code, _, err) = run(at, &[&first, more].concat());
    assert_eq!(code, 0, "{err}");
}

/// Two runs that differ in layout and batch, and one in a folder deeper.
fn three(name: &str) -> PathBuf {
    let at = prepared(name);
    trained(&at, "one", &["--epochs", "2"]);
    trained(&at, "two", &["--epochs", "2", "--layout", "batch -> r", "--mesh", "2"]);
    trained(&at, "deep/er/three", &["--steps", "4", "--dim", "batch=20", "--set", "lr=0.1", "--seed", "5"]);
    at
}

fn ok(at: &Path, args: &[&str]) -> String {
    let (code, out, err) = run(at, args);
    assert_eq!(code, 0, "{args:?}: {out}{err}");
    out
}

/// The error of a command that must fail.
fn wrong(at: &Path, args: &[&str], code: i32) -> String {
    let (is, out, err) = run(at, args);
    assert_eq!(is, code, "{args:?}: {out}{err}");
    err
}

fn names(at: &Path, more: &[&str]) -> Vec<String> {
    let all = lines(&ok(at, &[&["runs", "ls", "--format", "jsonl"], more].concat()));
    all.iter().map(|r| r["run"].as_str().unwrap().to_string()).collect()
}

#[test]
fn runs_are_listed_filtered_and_sorted() {
    let at = three("runs-ls");
    // The newest first, at any depth.
    assert_eq!(names(&at, &[]), ["runs/deep/er/three", "runs/two", "runs/one"]);
    assert_eq!(names(&at, &["runs/deep"]), ["runs/deep/er/three"]);
    assert_eq!(names(&at, &["runs", "runs/deep", "--sort", "run"]).len(), 3);
    // By whatever path, each counts once.
    let whole = at.join("runs").display().to_string();
    assert_eq!(names(&at, &["runs", "./runs", &whole, "runs/../runs/deep", "--sort", "run"]).len(), 3);
    assert_eq!(
        names(&at, &["--only", "batch = 10 and layout != none", "--sort", "run"]),
        ["runs/one", "runs/two"]
    );
    assert_eq!(names(&at, &["--only", "layout = 'batch -> r'"]), ["runs/two"]);
    assert_eq!(names(&at, &["--skip", "model = sums"]), [""; 0]);
    assert_eq!(names(&at, &["--only", "state = finished", "--skip", "devices = 1"]), ["runs/two"]);
    // A dim and a const that nobody gave have their values from the model.
    assert_eq!(names(&at, &["--only", "features = 4 and lr < 0.2"]), ["runs/deep/er/three"]);
    assert_eq!(names(&at, &["--only", "loss < 0"]), [""; 0]);
    assert_eq!(names(&at, &["--only", "loss > 0"]).len(), 3);
    let text = ok(&at, &["runs", "ls"]);
    let titles = text.lines().next().unwrap();
    for title in ["run", "state", "started", "layout", "batch", "test loss"] {
        assert!(titles.contains(title), "{text}");
    }
    assert!(
        text.lines().nth(1).unwrap().contains("runs/deep/er/three") && text.contains("finished"),
        "{text}"
    );

    let err = wrong(&at, &["runs", "ls", "--only", "stat = failed"], 1);
    assert!(err.contains("E0516") && err.contains("did you mean `state`?"), "{err}");
    let err = wrong(&at, &["runs", "ls", "--sort", "lss"], 1);
    assert!(err.contains("the table has no column `lss`"), "{err}");
    assert!(wrong(&at, &["runs", "ls", "none"], 1).contains("E0511"));
    assert!(wrong(&at, &["runs", "ls", "--format", "parquet"], 2).contains("--output"));
    // A folder that is damaged is said, and the others are listed.
    std::fs::write(at.join("runs/one/run.toml"), "noise").unwrap();
    let (code, out, err) = run(&at, &["runs", "ls"]);
    assert!(code == 0 && err.contains("`runs/one` is left out") && out.contains("runs/two"), "{out}{err}");
    let (code, out, err) = run(&at.join("data"), &["runs", "ls"]);
    assert!(code == 0 && out.is_empty() && err.contains("there is no folder `runs` here"), "{out}{err}");
}

#[test]
fn a_run_is_shown_with_its_history_and_its_commands() {
    let at = prepared("runs-show");
    trained(&at, "a", &["--steps", "5", "--checkpoint-every", "2", "--keep", "3"]);
    // By its name in `runs`, and by its path.
    let text = ok(&at, &["runs", "show", "a"]);
    assert_eq!(text, ok(&at, &["runs", "show", "runs/a/"]));
    for part in [
        "runs/a: finished",
        "runs-show/sums.mw`)",
        "batch=10 classes=2 features=4",
        "lr=0.5",
        "5 steps, 0 epochs",
        "start at step 0",
        "step 4",
        "metrics.jsonl",
        "meshwright train sums.mw --data data",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("--resume"), "{text}");
    let shown = lines(&ok(&at, &["runs", "show", "a", "--format", "json"])).remove(0);
    assert_eq!(
        (&shown["state"], &shown["steps"], &shown["settings"]["seed"]),
        (&"finished".into(), &5.into(), &"0".into())
    );
    assert_eq!(shown["costs"]["devices"], 1);
    assert_eq!(shown["history"].as_array().unwrap().len(), 1);
    assert!(shown["wall_seconds"].as_f64().unwrap() > 0.0 && shown["mfu"].as_f64().unwrap() > 0.0, "{shown}");
    let steps: Vec<u64> =
        shown["checkpoints"].as_array().unwrap().iter().map(|c| c["step"].as_u64().unwrap()).collect();
    assert_eq!(steps.last(), Some(&5));
    // One that was killed says how it goes on, and that works.
    let log = file(&at, "runs/a/metrics.jsonl");
    let kept: String = log.lines().filter(|l| !l.contains("\"done\"")).map(|l| format!("{l}\n")).collect();
    std::fs::write(at.join("runs/a/metrics.jsonl"), kept).unwrap();
    let shown = lines(&ok(&at, &["runs", "show", "a", "--format", "json"])).remove(0);
    assert_eq!(
        (&shown["state"], &shown["resume"]),
        (&"interrupted".into(), &"meshwright train --run runs/a --resume".into())
    );

    let err = wrong(&at, &["runs", "show", "aa"], 1);
    assert!(err.contains("E0510") && err.contains("did you mean `a`?"), "{err}");
    let err = wrong(&at, &["runs", "show", "runs"], 1);
    assert!(err.contains("there are runs below, such as `runs/a`"), "{err}");
    std::fs::write(at.join("runs/a/costs.json"), "{").unwrap();
    assert!(wrong(&at, &["runs", "show", "a"], 1).contains("costs.json"));
}

#[test]
fn runs_are_compared() {
    let at = three("runs-diff");
    let text = ok(&at, &["runs", "diff", "one", "two"]);
    assert!(text.starts_with("A  runs/one\nB  runs/two\n"), "{text}");
    let settings = text.split("Settings that differ").nth(1).unwrap().split("\n\n").next().unwrap();
    let layout = settings.lines().find(|l| l.trim_start().starts_with("layout")).unwrap();
    assert!(layout.contains("batch -> r") && !settings.contains("seed"), "{text}");
    assert!(text.contains("all-reduce") && text.contains("new"), "{text}");
    let found =
        lines(&ok(&at, &["runs", "diff", "one", "two", "runs/deep/er/three", "--format", "json"])).remove(0);
    assert_eq!(found["runs"]["C"], "runs/deep/er/three");
    assert_eq!(
        (&found["settings"]["seed"]["A"], &found["settings"]["seed"]["C"]),
        (&"0".into(), &"5".into())
    );
    let settings = found["settings"].as_object().unwrap();
    assert!(settings.contains_key("dims.batch") && !settings.contains_key("dim.batch"), "{settings:?}");
    // The third differs from its first step on, and has no epoch.
    let third = &found["differences"][1];
    assert_eq!((&third["first_step"], &third["common_steps"]), (&1.into(), &4.into()));
    assert_eq!(found["losses"].as_array().unwrap().len(), 4);
    let all_reduce = &found["collectives"][0];
    assert_eq!((&all_reduce["op"], &all_reduce["change"]), (&"all_reduce".into(), &"new".into()));
    let costs: Value = serde_json::from_str(&file(&at, "runs/two/costs.json")).unwrap();
    assert_eq!(all_reduce["runs"]["B"]["bytes"], costs["collectives"][0]["bytes"]);
    // The same run again has the same losses; another text is shown line by line.
    trained(&at, "again", &["--epochs", "2"]);
    let same = ok(&at, &["runs", "diff", "one", "again"]);
    assert!(same.contains("the losses of all 20 common steps are equal"), "{same}");
    assert!(same.contains("The texts of model and layout are the same."), "{same}");
    let text = file(&at, "runs/again/model.mw").replace("normal(0, 0.1)", "normal(0, 0.2)");
    std::fs::write(at.join("runs/again/model.mw"), text).unwrap();
    let other = ok(&at, &["runs", "diff", "one", "again"]);
    assert!(other.contains("-    param w[features, classes] = normal(0, 0.1)\n+    param w[features, classes] = normal(0, 0.2)"), "{other}");
    assert!(wrong(&at, &["runs", "diff", "one", "./runs/one"], 1).contains("compared with itself"));
    assert!(wrong(&at, &["runs", "diff", "one"], 2).contains("RUN"));
}

#[test]
fn curves_are_plotted_in_characters_and_as_svg() {
    let at = three("runs-plot");
    let text = ok(&at, &["runs", "plot", "one", "runs/deep/er/three", "--width", "70", "--height", "12"]);
    let dots = |text: &str| text.chars().filter(|c| ('\u{2801}'..='\u{28ff}').contains(c)).count();
    assert!(dots(&text) > 40 && text.lines().all(|l| l.chars().count() <= 70), "{text}");
    assert!(text.contains("A ⠤⠤ runs/one") && text.contains("B ⠤⠤ runs/deep/er/three"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
    let color = ok(&at, &["runs", "plot", "one", "--color", "always"]);
    assert!(color.contains("\u{1b}[36m"), "{color}");
    // By epoch, an evaluation stands at the end of its epoch; a logarithm needs values above 0.
    let text = ok(&at, &["runs", "plot", "one", "--metric", "test_accuracy", "--by", "epoch"]);
    assert!(text.contains("test_accuracy") && text.contains("epoch"), "{text}");
    ok(&at, &["runs", "plot", "one", "--by", "time", "--smooth", "3", "--log"]);
    let err = wrong(&at, &["runs", "plot", "one", "--metric", "waiting", "--log"], 1);
    assert!(err.contains("leave `--log` out"), "{err}");
    let err = wrong(&at, &["runs", "plot", "one", "--metric", "test_acuracy"], 1);
    assert!(err.contains("did you mean `test_accuracy`?") && err.contains("learning_rate"), "{err}");

    assert_eq!(ok(&at, &["runs", "plot", "one", "two", "--svg", "loss.svg"]), "");
    let svg = file(&at, "loss.svg");
    assert!(
        svg.starts_with("<svg") && svg.contains("runs/two") && svg.matches("<polyline").count() >= 2,
        "{svg}"
    );
    assert!(wrong(&at, &["runs", "plot", "one", "--svg", "none/loss.svg"], 1).contains("cannot be written"));
}

#[test]
fn runs_are_removed_and_nothing_else() {
    let at = three("runs-rm");
    let err = wrong(&at, &["runs", "rm", "one"], 2);
    assert!(err.contains("nobody can be asked here: add `--yes`"), "{err}");
    assert!(at.join("runs/one/run.toml").is_file());
    let out = ok(&at, &["runs", "rm", "one", "two", "--dry-run"]);
    assert!(out.contains("runs/one: would free") && out.contains("2 runs: would free"), "{out}");
    assert_eq!(names(&at, &[]).len(), 3);
    // One at work is refused, and with it all that was named.
    let lock = std::fs::File::create(at.join("runs/two/run.lock")).unwrap();
    lock.lock().unwrap();
    let err = wrong(&at, &["runs", "rm", "one", "two", "--yes"], 1);
    assert!(err.contains("`runs/two` is not removed: a process is at work in it"), "{err}");
    assert_eq!(names(&at, &[]).len(), 3);
    drop(lock);
    std::fs::write(at.join("runs/two/notes.txt"), "mine").unwrap();
    let (code, out, err) = run(&at, &["runs", "rm", "one", "two", "--yes"]);
    assert!(code == 0 && out.contains("runs/one: freed") && out.contains("2 runs: freed"), "{out}{err}");
    assert!(err.contains("`runs/two` stays: it holds `runs/two/notes.txt`"), "{err}");
    assert!(!at.join("runs/one").exists());
    let left: Vec<_> =
        std::fs::read_dir(at.join("runs/two")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["notes.txt"]);
    // A folder that is not a run is refused.
    let err = wrong(&at, &["runs", "rm", "data", "--yes"], 1);
    assert!(
        err.contains("E0510")
            && err.contains("not the folder of a run")
            && at.join("data/data.toml").is_file(),
        "{err}"
    );
}

#[test]
fn old_checkpoints_are_removed_and_the_run_goes_on() {
    let at = prepared("runs-rm-checkpoints");
    trained(&at, "a", &["--steps", "9", "--checkpoint-every", "3", "--keep", "5"]);
    let checkpoints = || {
        let all = lines(&ok(&at, &["runs", "show", "a", "--format", "json"])).remove(0);
        let steps = all["checkpoints"].as_array().unwrap().clone();
        steps.iter().map(|c| c["step"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(checkpoints(), [3, 6, 9]);
    let dry =
        lines(&ok(&at, &["runs", "rm", "a", "--checkpoints", "--dry-run", "--format", "json"])).remove(0);
    assert_eq!((dry["files"].as_array().unwrap().len(), checkpoints().len()), (4, 3));
    let gone = lines(&ok(&at, &["runs", "rm", "a", "--checkpoints", "--yes", "--format", "json"])).remove(0);
    assert_eq!((&gone["bytes"], &gone["files"]), (&dry["bytes"], &dry["files"]));
    assert_eq!(checkpoints(), [9]);
    let (_, _, err) = run(&at, &["runs", "rm", "a", "--checkpoints", "--yes"]);
    assert!(err.contains("there is nothing to remove"), "{err}");
    ok(&at, &["train", "--run", "runs/a", "--resume", "--steps", "12"]);
}

/// Where the newest checkpoint is damaged, those before it are all that there is.
#[test]
fn a_damaged_checkpoint_costs_no_other_and_the_best_stays() {
    let at = prepared("runs-rm-damaged");
    let all = |run: &str| {
        let folder = at.join("runs").join(run).join("checkpoints");
        let names = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    };
    let steps = ["--steps", "9", "--checkpoint-every", "3", "--keep", "5"];
    trained(&at, "a", &steps);
    let before = all("a");
    let newest = before.iter().find(|n| n.starts_with("step-0000000009-")).unwrap();
    let newest = at.join("runs/a/checkpoints").join(newest);
    let bytes = std::fs::read(&newest).unwrap();
    std::fs::write(&newest, &bytes[..bytes.len() / 2]).unwrap();
    for how in ["--dry-run", "--yes"] {
        let err = wrong(&at, &["runs", "rm", "a", "--checkpoints", how], 1);
        assert!(
            err.contains("E0512") && err.contains("step 9") && err.contains("those before it stay"),
            "{err}"
        );
    }
    assert_eq!(all("a"), before);
    // As it says, the run goes on from the one before, and then there is a newest one again.
    ok(&at, &["train", "--run", "runs/a", "--resume"]);
    let dry =
        lines(&ok(&at, &["runs", "rm", "a", "--checkpoints", "--dry-run", "--format", "json"])).remove(0);
    ok(&at, &["runs", "rm", "a", "--checkpoints", "--yes"]);
    assert_eq!((all("a").len(), dry["files"].as_array().unwrap().is_empty()), (2, false));

    trained(&at, "b", &[&steps[..], &["--eval-every", "3", "--keep-best", "loss"]].concat());
    let best = r#"{"step":3,"metric":"loss","value":0.5}"#;
    std::fs::write(at.join("runs/b/checkpoints/best.json"), best).unwrap();
    ok(&at, &["runs", "rm", "b", "--checkpoints", "--yes"]);
    let left = all("b");
    assert!(
        left.contains(&"step-0000000003.json".into()) && left.contains(&"step-0000000009.json".into()),
        "{left:?}"
    );
    assert_eq!(left.len(), 5, "{left:?}");
}

/// Facts that a sweep knows of its runs, and their folders do not, are printed too.
#[test]
fn runs_that_were_killed_are_failed_and_those_without_a_folder_count() {
    let at = prepared("runs-problems");
    let sweep =
        ["sweep", "sums.mw", "--data", "data", "--dim", "batch=10,20,50", "--epochs", "1", "--run", "runs/s"];
    ok(&at, &sweep);
    let path = |batch: u32| at.join(format!("runs/s/one-device-batch={batch}-seed=0"));
    // As the system ends one where memory is short, and one that failed before it had a folder.
    let log = std::fs::read_to_string(path(20).join("metrics.jsonl")).unwrap();
    let cut: String = log.lines().take(2).map(|l| format!("{l}\n")).collect();
    std::fs::write(path(20).join("metrics.jsonl"), cut).unwrap();
    std::fs::remove_dir_all(path(50)).unwrap();
    let killed = "killed by signal 9, as the system does where memory is short";
    let problems = format!(
        r#"{{"one-device-batch=20-seed=0":{{"state":"failed","error":"{killed}"}},"one-device-batch=50-seed=0":{{"state":"failed","error":"E0516: why"}},"one-device-batch=10-seed=0":{{"state":"stopped","error":"not the best"}}}}"#
    );
    std::fs::write(at.join("runs/s/problems.json"), problems).unwrap();
    let csv = ok(&at, &["runs", "ls", "--only", "state = failed", "--sort", "run", "--format", "csv"]);
    assert!(csv.contains("batch=20-seed=0,failed,") && csv.contains("batch=50-seed=0,failed,"), "{csv}");
    assert_eq!((csv.lines().count(), csv.contains(killed)), (3, true), "{csv}");
    let text = ok(&at, &["runs", "stats"]);
    assert!(text.starts_with("3 runs, 66.7 % ended by an error\n"), "{text}");
    assert!(text.contains("failed: killed by signal 9 ") && text.contains("failed: E0516 "), "{text}");
    assert!(text.contains("  stopped ") && !text.contains("another error"), "{text}");
    // A report has the same.
    let (code, _, err) =
        run(&at, &["report", "runs", "runs/s", "runs/s/one-device-batch=10-seed=0", "-o", "r.html"]);
    assert!(code == 0 && err.contains("shows 3 runs"), "{err}");
    // A sweep that nobody can read is said, and its runs are runs.
    std::fs::write(at.join("runs/s/sweep.toml"), "jobs = 0").unwrap();
    let (code, out, err) = run(&at, &["runs", "ls", "--format", "csv"]);
    assert!(code == 0 && out.lines().count() == 3 && err.contains("sweep.toml"), "{out}{err}");
    let (code, _, err) = run(&at, &["report", "runs", "-o", "r.html"]);
    assert!(code == 1 && err.contains("shows 2 runs") && err.contains("sweep.toml"), "{err}");
}

/// `report` and `runs ls` find the same: however deep, no hidden folder, and what is inside of a run.
#[test]
fn a_report_has_the_runs_that_a_list_has() {
    let at = prepared("runs-same");
    for name in ["a", "a/inside", "1/2/3/4/5/6/7/8/9/deep", ".hidden/b"] {
        trained(&at, name, &["--steps", "2"]);
    }
    assert_eq!(names(&at, &["--sort", "run"]), ["runs/1/2/3/4/5/6/7/8/9/deep", "runs/a", "runs/a/inside"]);
    let (code, _, err) = run(&at, &["report", "runs", "-o", "r.html"]);
    assert!(code == 0 && err.contains("shows 3 runs"), "{err}");
}

/// A path that is not a regular file is refused, whatever the command writes.
#[test]
fn devices_and_links_are_not_replaced() {
    let at = three("runs-outputs");
    assert!(std::process::Command::new("mkfifo").arg(at.join("pipe")).status().unwrap().success());
    for file in ["table.csv", "loss.svg", "usage.html", "events.csv"] {
        std::os::unix::fs::symlink("/dev/null", at.join(file)).unwrap();
    }
    for args in [
        &["runs", "ls", "--output", "pipe"][..],
        &["runs", "ls", "--output", "table.csv"],
        &["runs", "plot", "one", "--svg", "loss.svg"],
        &["runs", "stats", "--html", "usage.html"],
        &["runs", "stats", "--output", "pipe"],
        &["runs", "export", "one", "--output", "events.csv"],
        &["report", "runs", "--output", "usage.html"],
        &["sweep", "sums.mw", "--data", "data", "--run", "s", "--output", "pipe"],
    ] {
        assert!(wrong(&at, args, 1).contains("not a regular file"), "{args:?}");
    }
    assert!(at.join("loss.svg").is_symlink() && !at.join("pipe").is_file() && !at.join("s").exists());
}

#[test]
fn events_of_runs_become_one_table() {
    let at = three("runs-export");
    let all = ["runs/one", "runs/two", "runs/deep/er/three"];
    let to = |file: &str| ok(&at, &[&["runs", "export"], &all[..], &["--output", file]].concat());
    let logs: Vec<Value> =
        all.iter().flat_map(|r| lines(&file(&at, &format!("{r}/metrics.jsonl")))).collect();
    assert_eq!(to("a.csv"), format!("wrote {} events of 3 runs to a.csv\n", logs.len()));
    let csv = file(&at, "a.csv");
    assert!(csv.starts_with("run,event,step,epoch,set,"), "{csv}");
    assert_eq!(csv.lines().count(), logs.len() + 1);
    to("a.jsonl");
    assert!(file(&at, "a.jsonl").starts_with("{\"run\":\"runs/one\",\"event\":\"step\",\"step\":1,"));
    let rows = lines(&file(&at, "a.jsonl"));
    for (row, event) in rows.iter().zip(&logs) {
        for (name, value) in event.as_object().unwrap() {
            assert_eq!(row[name].as_f64(), value.as_f64(), "{name}: {row}");
        }
    }
    assert_eq!(
        (rows.len(), &rows[0]["run"], &rows[0]["event"]),
        (logs.len(), &"runs/one".into(), &"step".into())
    );
    to("a.parquet");
    let bytes = std::fs::read(at.join("a.parquet")).unwrap();
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
    // Times are timestamps, as they are in the log.
    let read = SerializedFileReader::new(std::fs::File::open(at.join("a.parquet")).unwrap()).unwrap();
    let schema = read.metadata().file_metadata().schema_descr();
    let time = (0..schema.num_columns()).find(|i| schema.column(*i).name() == "time").unwrap();
    let timestamp = LogicalType::timestamp(true, TimeUnit::MILLIS);
    assert_eq!(schema.column(time).logical_type_ref(), Some(&timestamp));
    for (row, event) in read.get_row_iter(None).unwrap().zip(&logs) {
        let written = milliseconds_of(event["time"].as_str().unwrap()).unwrap();
        assert_eq!(row.unwrap().get_timestamp_millis(time).unwrap(), written);
    }
    assert!(wrong(&at, &["runs", "export", "one", "--output", "a.txt"], 2).contains(".parquet"));
    assert!(
        wrong(&at, &["runs", "export", "one", "--output", "none/a.csv"], 1).contains("cannot be written")
    );
}

#[test]
fn many_runs_are_summarized_with_their_jobs_and_causes() {
    let at = prepared("runs-stats");
    // As a task of a job of Slurm, which began 90 seconds after it was submitted.
    let slurm = [
        ("SLURM_JOB_ID", "41"),
        ("SLURM_JOB_START_TIME", "1769860770"),
        ("MESHWRIGHT_JOB_SUBMITTED", "1769860680"),
    ];
    for name in ["a", "b"] {
        let place = format!("runs/{name}");
        let mut c = command(&["train", "sums.mw", "--data", "data", "--steps", "5", "--run", &place]);
        let (code, _, err) = said(c.envs(slurm).current_dir(&at).output().unwrap());
        assert_eq!(code, 0, "{err}");
    }
    let start = lines(&file(&at, "runs/a/history.jsonl")).remove(0);
    assert_eq!(start["job"]["id"], "41");
    assert_eq!(
        (&start["job"]["submitted"], &start["job"]["started"]),
        (&"2026-01-31T11:58:00Z".into(), &"2026-01-31T11:59:30Z".into())
    );
    trained(&at, "c", &["--steps", "5"]);
    let (code, _, _) = run(
        &at,
        &["train", "sums.mw", "--data", "data", "--steps", "50", "--set", "lr=1e300", "--run", "runs/d"],
    );
    assert_eq!(code, 1);

    let text = ok(&at, &["runs", "stats"]);
    assert!(text.starts_with("4 runs, 25.0 % ended by an error\n"), "{text}");
    assert!(text.contains("failed: E0517 ") && text.contains("90.0 s"), "{text}");
    let rows = lines(&ok(&at, &["runs", "stats", "--format", "jsonl"]));
    let of = |name: &str| rows.iter().find(|r| r["run"] == name).unwrap();
    assert_eq!(
        (&of("runs/a")["queue_seconds"], &of("runs/c")["queue_seconds"]),
        (&90.0.into(), &Value::Null)
    );
    assert_eq!((&of("runs/a")["jobs"], &of("runs/a")["devices"]), (&"41".into(), &1.into()));
    assert!(of("runs/d")["cause"].as_str().unwrap().starts_with("E0517"), "{}", of("runs/d"));
    let wall = of("runs/c")["wall_seconds"].as_f64().unwrap();
    assert!(wall > 0.0 && (of("runs/c")["device_hours"].as_f64().unwrap() - wall / 3600.0).abs() < 1e-12);
    // The page has the same runs, and the conditions choose among them.
    let only = ["runs", "stats", "--only", "state = finished", "--html", "usage.html"];
    assert!(ok(&at, &only).starts_with("3 runs, 0.0 % ended"));
    let page = file(&at, "usage.html");
    assert!(page.contains("Usage of 3 runs") && page.contains("\"runs/a\"") && !page.contains("\"runs/d\""));
    assert!(
        ok(&at, &["runs", "stats", "--only", "state = failed", "--skip", "state = failed"])
            .starts_with("0 runs")
    );
}

#[test]
fn a_shell_completes_the_names_of_runs() {
    let at = three("runs-complete");
    let offers = |word: &str| {
        let mut c = command(&["--", "meshwright", "runs", "show", word]);
        let (code, out, err) = said(c.env("COMPLETE", "fish").current_dir(&at).output().unwrap());
        assert_eq!((code, err.as_str()), (0, ""));
        out.lines().map(|l| l.split('\t').next().unwrap().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(offers("o"), ["one"]);
    assert!(offers("deep").contains(&"deep/er/three".to_string()));
    assert!(offers("runs/t").iter().any(|o| o.starts_with("runs/two")));
}
