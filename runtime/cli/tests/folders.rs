//! Folders of runs and sweeps where something is wrong: a start that fails, damaged files, sizes that do not fit the data, and a
//! run that goes on in another way.

use crate::support::{self, events, file, prepared, rows, run_in as run};
use serde_json::Value;
use std::process::Command;

#[test]
#[cfg(unix)]
fn a_run_that_cannot_be_written_leaves_nothing_and_starts_once_it_can() {
    let at = prepared("full-disk");
    let words = ["train", "sums.mw", "--data", "data", "--steps", "2"];
    for (run, folder) in [(&[][..], "runs"), (&["--run", "new/a"][..], "new")] {
        let words = [&words[..], run].concat();
        let limited = |kilobytes: &str| {
            let shell = format!("ulimit -f {kilobytes} && exec \"$0\" \"$@\"");
            let mut c = Command::new("bash");
            c.args(["-c", &shell, env!("CARGO_BIN_EXE_meshwright")]).args(&words).current_dir(&at);
            support::said(c.output().unwrap())
        };
        let (code, _, err) = limited("1");
        assert!(code == 1 && err.contains("E0511") && err.contains("cannot be written: "), "{err}");
        assert!(err.contains("= help: allow larger files there"), "{err}");
        assert!(!at.join(folder).exists(), "{folder}");
        let (code, _, err) = limited("unlimited");
        assert_eq!(code, 0, "{err}");
    }
}

#[test]
#[cfg(unix)]
fn a_new_folder_that_cannot_be_filled_is_removed() {
    let at = support::folder("new-full");
    let shell = "ulimit -f 1 && exec \"$0\" new mine";
    let mut c = Command::new("bash");
    c.args(["-c", shell, env!("CARGO_BIN_EXE_meshwright")]).current_dir(&at);
    let (code, _, err) = support::said(c.output().unwrap());
    assert!(code == 1 && err.contains("E0524") && err.contains("can be made and written to"), "{err}");
    assert!(!at.join("mine").exists());
    let (code, _, err) = run(&at, &["new", "mine"]);
    assert_eq!(code, 0, "{err}");
    let (code, _, err) = run(&at, &["new", "mine"]);
    assert!(code == 1 && err.contains("choose a folder that is not there yet"), "{err}");
}

#[test]
fn damaged_files_of_a_run_have_a_line_and_a_way_out() {
    let at = prepared("damaged");
    events(&at, &["train", "sums.mw", "--data", "data", "--run", "a", "--steps", "2"]);
    let settings = file(&at, "a/run.toml");
    let line = settings.lines().position(|l| l.starts_with("steps = ")).unwrap() + 1;
    let write = |name: &str, text: &str| std::fs::write(at.join(name), text).unwrap();
    for (damaged, why) in [
        (settings.replace("steps = 2", "steps = \"two\""), format!("line {line}, column 9: invalid type")),
        (settings.replace("steps = 2", "steps = = 2"), format!("line {line}, column 9: ")),
        (settings.replace("seed = \"0\"", "seed = \"zero\""), "its `seed` is `zero`".into()),
        (settings.replace("precision = \"f32\"", "precision = \"f31\""), "its `precision` is `f31`".into()),
    ] {
        write("a/run.toml", &damaged);
        let (code, _, err) = run(&at, &["train", "--run", "a", "--resume", "--steps", "3"]);
        let told = format!("a/run.toml` cannot be used: {why}");
        assert!(code == 1 && err.contains("E0511") && err.contains(&told), "{err}");
        assert!(err.contains("= help: correct it there"), "{err}");
        // The other help: another run begins with its values.
        assert!(err.contains("`meshwright train MODEL --init a`"), "{err}");
    }
    let init = ["train", "sums.mw", "--data", "data", "--init", "a", "--no-save", "--steps", "1"];
    let (code, _, err) = run(&at, &init);
    assert_eq!(code, 0, "{err}");
    write("a/run.toml", &settings);
    write("a/costs.json", "{\n\"batch\": ,\n}");
    let (code, _, err) = run(&at, &["runs", "show", "a"]);
    assert!(code == 1 && err.contains("a/costs.json` cannot be used: line 2, column 10: "), "{err}");
    assert!(err.contains("= help: remove the file"), "{err}");
    std::fs::remove_file(at.join("a/costs.json")).unwrap();
    let (code, _, err) = run(&at, &["runs", "show", "a"]);
    assert_eq!(code, 0, "{err}");
}

#[test]
fn a_run_that_goes_on_tells_of_all_that_differs() {
    let at = prepared("differs");
    let mesh = ["--mesh", "r=2"];
    let start =
        ["train", "sums.mw", "--data", "data", "--run", "a", "--steps", "2", "--layout", "batch -> r"];
    events(&at, &[&start[..], &mesh].concat());
    let go_on = |steps: &str, more: &[&str]| {
        let (code, _, err) =
            run(&at, &[&["train", "--run", "a", "--resume", "--steps", steps], more].concat());
        assert_eq!(code, 0, "{err}");
        err
    };
    let err = go_on("3", &["--layout", "batch -> r; microbatches 5; reduce grads once"]);
    let note = "note: layout: batch -> r; microbatches 5; reduce grads once; the run had batch -> r\n";
    assert!(err.contains(note), "{err}");
    let err = go_on(
        "4",
        &["--layout", "batch -> r; microbatches 10", "--no-eval", "--keep", "3", "--timeout", "90"],
    );
    for note in [
        "note: layout: batch -> r; microbatches 10; the run had batch -> r; microbatches 5; reduce grads once\n",
        "note: evaluation: false; the run had true\n",
        "note: keep: 3; the run had the default\n",
        "note: timeout: 90 s; the run had the default\n",
    ] {
        assert!(err.contains(note), "{note}{err}");
    }
    // A setting that stays needs no note.
    let err = go_on("5", &["--no-eval", "--timeout", "90"]);
    assert!(!err.contains("the run had"), "{err}");
}

#[test]
fn what_does_not_fit_the_data_is_skipped_before_anything_runs() {
    let at = prepared("sweep-data");
    let words = |dims: &'static str, run: &'static str| {
        ["sweep", "sums.mw", "--data", "data", "--dim", dims, "--steps", "2", "--run", run]
    };
    let (code, _, err) = run(&at, &words("batch=10,1000", "some"));
    let why = "`batch` = 1000, but there are only 100 examples: not one whole batch";
    assert!(code == 0 && err.contains(why) && err.contains("--dim batch=100"), "{err}");
    assert!(err.contains("2 runs: 1 finished, 1 skipped; "), "{err}");
    // The share that is held out to validate on does not count.
    let share = [&words("batch=95", "share")[..], &["--", "--validation", "0.1"]].concat();
    let (code, _, err) = run(&at, &share);
    assert!(code == 1 && err.contains("there are only 90 examples"), "{err}");

    // A sweep whose runs are all skipped has its folder, with the reasons, and can be continued.
    let (code, _, err) = run(&at, &words("batch=1000,2000", "none"));
    assert!(code == 1 && err.contains("2 runs: 2 skipped; "), "{err}");
    let problems: Value = serde_json::from_str(&file(&at, "none/problems.json")).unwrap();
    let of = &problems["one-device-batch=1000-seed=0"];
    assert!(of["state"] == "skipped" && of["error"] == format!("E0516: {why}"), "{problems}");
    assert!(at.join("none/sweep.toml").is_file() && at.join("none/table.csv").is_file());
    let all = rows(&at, &["sweep", "none", "--table"]);
    assert_eq!(all.iter().map(|r| r["state"].as_str().unwrap()).collect::<Vec<_>>(), ["skipped", "skipped"]);
    // A model that is wrong makes no sweep.
    let (code, _, err) = run(&at, &["sweep", "nowhere.mw", "--steps", "2", "--run", "wrong"]);
    assert!(code == 1 && err.contains("E0515") && !at.join("wrong").exists(), "{err}");
}

#[test]
fn damaged_files_of_a_sweep_have_a_line_and_a_way_out() {
    let at = prepared("sweep-damaged");
    let words =
        ["sweep", "sums.mw", "--data", "data", "--dim", "batch=10,1000", "--steps", "2", "--run", "a"];
    assert_eq!(run(&at, &words).0, 0);
    let write = |name: &str, text: &str| std::fs::write(at.join(name), text).unwrap();
    write("a/problems.json", "{\n \"x\": 1\n}");
    let (code, _, err) = run(&at, &["sweep", "a"]);
    assert!(code == 1 && err.contains("a/problems.json` cannot be used: line 2, column "), "{err}");
    assert!(err.contains("= help: remove the file"), "{err}");
    std::fs::remove_file(at.join("a/problems.json")).unwrap();
    assert_eq!(run(&at, &["sweep", "a"]).0, 0);
    let spec = file(&at, "a/sweep.toml");
    write("a/sweep.toml", &format!("# Mine.\nnonsense = 3\n{spec}"));
    let (code, _, err) = run(&at, &["sweep", "a"]);
    assert!(code == 1 && err.contains("cannot be read: line 2, column 1: unknown field"), "{err}");
    assert!(err.contains("= help: correct it there, or remove the file"), "{err}");
    std::fs::remove_file(at.join("a/sweep.toml")).unwrap();
    let (code, _, err) = run(&at, &words);
    assert!(code == 0 && err.contains("2 runs: 1 finished, 1 skipped; 0"), "{err}");
}
