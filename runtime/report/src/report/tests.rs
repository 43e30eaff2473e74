//! What the page of runs is given.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use meshwright_runs::read_all_with;
use meshwright_speed::{process_time, slowness};
use std::fs::{create_dir_all, write};
use std::path::{Path, PathBuf};

const COSTS: &str = "{\"devices\":2,\"batch\":10,\"flops\":1,\"collective_bytes\":64,\"peak_bytes\":6,\"parameter_bytes\":1,\
    \"optimizer_state_bytes\":2,\"gradient_bytes\":3,\"collectives\":[{\"op\":\"all_reduce\",\"axes\":[\"r\",\"c\"],\"count\":4,\"bytes\":64}]}";

/// The folder of a run of so many epochs.
pub(super) fn folder(at: &Path, seed: usize, batch: usize, epochs: u32, steps: u64) {
    create_dir_all(at).unwrap();
    let settings = format!(
        "model = \"m\"\nfile = \"m.mw\"\nseed = \"{seed}\"\nprecision = \"f32\"\nmesh = \"r=2\"\nlayout = [\"batch -> r\"]\n\
         layout_file = \"layouts/dp.layout\"\nepochs = {epochs}\neval = true\nexamples = {}\nfingerprint = \"f\"\n[set]\nlr = 0.5\n\
         [dim]\nbatch = {batch}\n[dims]\nbatch = {batch}\n[consts]\nlr = 0.5\n",
        steps * batch as u64
    );
    write(at.join("run.toml"), settings).unwrap();
    write(at.join("costs.json"), COSTS.replace("\"batch\":10", &format!("\"batch\":{batch}"))).unwrap();
    let mut log = String::new();
    let mut noise = 7 + seed as u64;
    for epoch in 1..=epochs {
        for n in 1..=steps {
            let step = u64::from(epoch - 1) * steps + n;
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let loss = 2.0 / (1.0 + step as f64).sqrt() + (noise >> 40) as f64 / (1u64 << 27) as f64;
            log += &format!(
                "{{\"event\":\"step\",\"step\":{step},\"loss\":{loss},\"train_accuracy\":0.9700000286102295,\"learning_rate\":0.1,\"seconds\":0.004186608,\"examples_per_second\":23885.685022337893,\"model_flops\":327270400,\"mfu\":0.8391890271766409,\"peak_flops\":93150380169.22397,\"bytes_communicated\":64,\"waiting\":0.0,\"memory_bytes\":122212352,\"time\":\"2026-11-23T06:46:12.121Z\"}}\n"
            );
        }
        let (step, loss) = (u64::from(epoch) * steps, 1.0 / f64::from(epoch));
        log += &format!(
            "{{\"event\":\"evaluation\",\"step\":{step},\"set\":\"test\",\"eval_loss\":{loss},\"eval_accuracy\":0.5,\"seconds\":0.1}}\n"
        );
        log += &format!(
            "{{\"event\":\"epoch\",\"epoch\":{epoch},\"step\":{step},\"train_loss\":{loss},\"eval_loss\":{loss},\"eval_accuracy\":0.5,\"seconds\":1.0}}\n"
        );
    }
    log += &format!(
        "{{\"event\":\"done\",\"steps\":{},\"epochs\":{epochs},\"seconds\":2.0}}\n",
        u64::from(epochs) * steps
    );
    write(at.join("metrics.jsonl"), log).unwrap();
}

pub(super) fn read(paths: &[PathBuf], root: &Path) -> Vec<ReportedRun> {
    let points = points_each(paths.len());
    let all = read_all_with(paths, |curves| ThinCurve::of(curves, points));
    let run = |read: meshwright_files::Checked<(RunSummary, ThinCurve)>| {
        let (summary, losses) = read.unwrap();
        ReportedRun { row: RunRow::of(summary, root), losses: Some(losses) }
    };
    all.into_iter().map(run).collect()
}

#[test]
fn a_page_is_given_what_its_charts_draw() {
    let at = tempfile::tempdir().unwrap();
    let root = at.path();
    folder(&root.join("a"), 0, 10, 3, 5);
    folder(&root.join("b"), 1, 20, 2, 5);
    let mut runs = read(&[root.join("a"), root.join("b")], root);
    let planned = RunRow { name: "c".into(), state: "planned", summary: None, ..runs[0].row.clone() };
    runs.push(ReportedRun { row: planned, losses: None });
    let report = RunsReport { title: "two <runs>", made: "", runs: &runs, unreadable: &[] };
    let data = report.data();
    let a = &data["runs"][0];
    assert_eq!(
        (&a["name"], &a["batch"], &a["devices"], &a["seed"]),
        (&json!("a"), &json!(10), &json!(2), &json!(0))
    );
    // All have one learning rate, though each asked for it.
    assert_eq!((&a["layout"], &a["mesh"], &a["sets"]), (&json!("dp"), &json!("r=2"), &json!({})));
    assert_eq!(
        (&a["collectives"], &a["memory"]),
        (
            &json!([["all_reduce", "r and c", 4, 64]]),
            &json!([
                ["parameters", 1],
                ["optimizer state", 2],
                ["copies of parameters", 0],
                ["gradients", 3],
                ["residuals", 0],
                ["communication", 0],
                ["workspace", 0]
            ])
        )
    );
    assert_eq!((&a["step_seconds"], &a["examples"]), (&json!(0.00418661), &json!(50)));
    assert_eq!(a["epochs"]["at"], json!([1, 2, 3]));
    assert_eq!(a["epochs"]["sets"]["test"]["loss"], json!([1, 0.5, 0.333333]));
    assert_eq!(a["epochs"]["sets"]["train"]["accuracy"], json!([0.97, 0.97, 0.97]));
    assert_eq!((&a["losses"]["of"], a["losses"]["steps"].as_array().map(Vec::len)), (&json!(15), Some(15)));
    // A run that is not there has a row, and nothing to draw.
    let c = &data["runs"][2];
    assert_eq!((&c["state"], &c["epochs"], &c["losses"]), (&json!("planned"), &Value::Null, &Value::Null));
    // The table is that of the runs: the same cells in the same columns.
    let names: Vec<&str> =
        data["columns"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    let test_loss = names.iter().position(|n| *n == "test_loss").unwrap();
    assert_eq!(
        (&data["rows"][0][0], &data["rows"][0][test_loss], &data["rows"][2][test_loss]),
        (&json!("a"), &json!(0.333333), &Value::Null)
    );
    assert!(!names.contains(&"estimate_ratio"), "no run was estimated: {names:?}");
    let page = report.page(data);
    assert!(page.contains("<h1>two &lt;runs&gt;</h1>") && page.contains("Draws runs"));
}

/// Steps of 4.19 ms, of which one run was estimated at 2 ms.
#[test]
fn a_page_has_the_estimates_of_runs_beside_their_times() {
    let at = tempfile::tempdir().unwrap();
    let paths = ["a", "b"].map(|name| at.path().join(name));
    for (seed, path) in paths.iter().enumerate() {
        folder(path, seed, 10, 1, 20);
    }
    let estimate = "{\"estimate\":{\"machine\":\"cpu\",\"seconds\":0.002,\"error\":0.15},";
    write(paths[1].join("costs.json"), COSTS.replacen('{', estimate, 1)).unwrap();
    let runs = read(&paths, at.path());
    let data = RunsReport { title: "runs", made: "", runs: &runs, unreadable: &[] }.data();
    let columns = data["columns"].as_array().unwrap();
    let cells = |name: &str| {
        let at = columns.iter().position(|c| c["name"] == name).unwrap();
        (data["rows"][0][at].clone(), data["rows"][1][at].clone())
    };
    assert_eq!(cells("step_ms_median").0, json!(4.18661));
    assert_eq!(cells("estimated_ms"), (Value::Null, json!(2)));
    assert_eq!(cells("estimate_error"), (Value::Null, json!(0.15)));
    assert_eq!(cells("estimate_ratio"), (Value::Null, json!(0.477714)));
}

#[test]
fn numbers_are_short_and_gaps_are_null() {
    assert_eq!(number(0.07281903922557831).to_string(), "0.072819");
    assert_eq!(
        (number(3.0).to_string(), number(-0.0).to_string(), number(1e20).to_string()),
        ("3".into(), "0".into(), "1e+20".into())
    );
    assert_eq!((number(f64::NAN), number(f64::INFINITY)), (Value::Null, Value::Null));
}

#[test]
fn of_many_epochs_some_are_drawn() {
    let at = tempfile::tempdir().unwrap();
    folder(&at.path().join("a"), 0, 10, 7, 1);
    let runs = read(&[at.path().join("a")], at.path());
    let summary = runs[0].row.summary.as_ref().unwrap();
    // Every third one and the last, with what was evaluated at their ends.
    let thin = epochs(summary, 3);
    assert_eq!(thin["at"], json!([1, 4, 7]));
    assert_eq!(thin["sets"]["test"]["loss"], json!([1, 0.25, 0.142857]));
}

/// Making a report of a large study: with LONG set, 500 runs of 10,000 steps. `KEEP=DIR` keeps the page for a browser.
#[test]
#[expect(clippy::print_stdout, reason = "what a long run is for")]
fn a_report_of_many_long_runs_is_small_and_quick() {
    let (runs, epochs, steps) =
        if std::env::var_os("LONG").is_some() { (500, 20, 500) } else { (40, 10, 100) };
    let at = tempfile::tempdir().unwrap();
    let batches = [10, 50, 100, 150, 200, 250];
    let first = |n: usize| at.path().join(n.to_string());
    let mut bytes = 0;
    for n in 0..runs {
        let run = first(n);
        // Ten different logs under many names: the disk need not hold gigabytes.
        folder(&run, n, batches[n % batches.len()], if n < 10 { epochs } else { 0 }, steps);
        if n >= 10 {
            std::fs::remove_file(run.join("metrics.jsonl")).unwrap();
            std::fs::hard_link(first(n % 10).join("metrics.jsonl"), run.join("metrics.jsonl")).unwrap();
        }
        bytes += run.join("metrics.jsonl").metadata().unwrap().len();
    }
    let paths: Vec<PathBuf> = (0..runs).map(first).collect();
    let begin = process_time();
    let read = read(&paths, at.path());
    let reading = process_time() - begin;
    let report = RunsReport { title: "many", made: "", runs: &read, unreadable: &[] };
    let page = report.page(report.data());
    let making = process_time() - begin - reading;
    let size = page.len() as f64 / 1e6;
    println!(
        "{runs} runs of {} steps, {:.0} MB: read in {reading:?}, made in {making:?}, {size:.2} MB",
        u64::from(epochs) * steps,
        bytes as f64 / 1e6
    );
    assert!(size < 5.0, "{size} MB");
    // 20 MB/s, and two seconds, of the processor where this machine is as fast as usual.
    let slow = slowness();
    assert!(reading.as_secs_f64() < (1.0 + bytes as f64 / 20e6) * slow, "{reading:?}");
    assert!(making.as_secs_f64() < 2.0 * slow, "{making:?}");
    if let Some(keep) = std::env::var_os("KEEP") {
        write(Path::new(&keep).join("many.html"), page).unwrap();
    }
}
