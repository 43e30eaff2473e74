//! The end of an epoch, in runs that are cut before it or within it.

use crate::support::{SMALL, SMALL_DIMS, folder, options, told};
use meshwright_train::{Finished, Progress, Project, TrainOptions, train};
use serde_json::Value;
use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// 300 examples in batches of 12.
const EPOCH: u64 = 25;

/// Trains until so many steps are done; `watch` may stop it.
fn go(dir: &Path, name: &str, steps: u64, resume: bool, watch: impl Fn(&Progress, &AtomicBool)) -> Finished {
    let loaded = Project::load(&options("mlp", "r=2", "batch -> r", SMALL_DIMS));
    let project = loaded.project.unwrap_or_else(|| panic!("{:?}", loaded.diagnostics));
    let o = TrainOptions {
        data: Some(dir.join("data").display().to_string()),
        steps: Some(steps),
        seed: Some(3),
        run: Some(dir.join(name)),
        resume,
        eval: true,
        ..TrainOptions::default()
    };
    let stop = AtomicBool::new(false);
    let finished = train(&project, &loaded.sources, &o, &stop, &mut |p| watch(&p, &stop));
    finished.unwrap_or_else(|e| panic!("{}", told(&e)))
}

fn events(dir: &Path, name: &str, kind: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(dir.join(name).join("metrics.jsonl")).unwrap();
    let all = text.lines().map(|l| serde_json::from_str::<Value>(l).unwrap());
    let mut kept: Vec<Value> = all.filter(|e| e["event"] == kind).collect();
    // What differs from run to run.
    const TIMES: [&str; 8] = [
        "seconds",
        "time",
        "examples_per_second",
        "waiting",
        "memory_bytes",
        "tokens_per_second",
        "mfu",
        "peak_flops",
    ];
    kept.iter_mut().for_each(|e| e.as_object_mut().unwrap().retain(|k, _| !TIMES.contains(&k.as_str())));
    kept
}

#[test]
fn the_mean_loss_of_an_epoch_is_that_of_all_its_steps_also_after_a_resume() {
    let data = folder(SMALL);
    let dir = data.path();
    go(dir, "whole", EPOCH * 2, false, |_, _| {});
    let whole = events(dir, "whole", "epoch");
    let steps = events(dir, "whole", "step");
    let mean =
        steps[..EPOCH as usize].iter().map(|e| e["loss"].as_f64().unwrap()).sum::<f64>() / EPOCH as f64;
    assert_eq!(whole[0]["train_loss"].as_f64(), Some(mean));
    // Cut twice in the first epoch, and at its very end.
    for (i, step) in [9, 20, EPOCH, EPOCH + 1, EPOCH * 2].into_iter().enumerate() {
        go(dir, "cut", step, i > 0, |_, _| {});
    }
    assert_eq!(events(dir, "cut", "epoch"), whole);
}

#[test]
fn an_evaluation_stops_between_batches_and_is_made_up_for() {
    let data = folder(SMALL);
    let dir = data.path();
    go(dir, "whole", EPOCH * 2, false, |_, _| {});
    let watch = |p: &Progress, stop: &AtomicBool| {
        if let Progress::Evaluating { done, total } = p {
            assert!(!stop.load(Ordering::Relaxed), "still evaluating at {done} of {total}");
            stop.store(true, Ordering::Relaxed);
        }
    };
    let stopped = go(dir, "cut", EPOCH * 2, false, watch);
    assert!(stopped.interrupted);
    assert_eq!((stopped.steps, stopped.eval), (EPOCH, None));
    assert_eq!(events(dir, "cut", "epoch"), [Value::Null; 0]);
    // Stopped again, in the evaluation that it makes up for first.
    let again = go(dir, "cut", EPOCH * 2, true, watch);
    assert!(again.interrupted && again.steps == EPOCH);
    let done = go(dir, "cut", EPOCH * 2, true, |_, _| {});
    assert!(!done.interrupted);
    for kind in ["step", "evaluation", "epoch", "done"] {
        assert_eq!(events(dir, "cut", kind), events(dir, "whole", kind), "{kind}");
    }
    // The evaluation at the end of a run that ends within an epoch.
    let last = Cell::new(false);
    let short = go(dir, "short", EPOCH + 3, false, |p, stop| match p {
        Progress::Checkpoint { step, .. } => last.set(*step == EPOCH + 3),
        Progress::Evaluating { .. } if last.get() => {
            assert!(!stop.swap(true, Ordering::Relaxed), "still evaluating");
        }
        _ => {}
    });
    assert!(short.interrupted && short.steps == EPOCH + 3);
    assert_eq!(events(dir, "short", "done"), [Value::Null; 0]);
}
