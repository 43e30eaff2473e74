//! Devices that compute by themselves are given the next step before what the last one gave is read. What a run tells and keeps
//! is that of one that waits for each step.

use crate::support::{SMALL, SMALL_DIMS, apart, folder, options, told};
use meshwright_exec::DeviceKind;
use meshwright_plan::Arithmetic;
use meshwright_runs::checkpoint::Which;
use meshwright_runs::metrics::Event;
use meshwright_runs::policies::{EvaluationPolicy, SaveEvery, SavePolicy};
use meshwright_train::{
    Devices, Failure, Finished, Progress, Project, ProjectOptions, TrainOptions, read_checkpoint, train,
};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

fn waits() -> DeviceKind {
    meshwright_cpu::device()
}

fn ahead() -> DeviceKind {
    meshwright_burn::device()
}

/// What a run told, in order: what and when, and a loss where there is one.
type Story = Vec<(String, f64)>;

struct Run<'a> {
    device: DeviceKind,
    folder: &'a Path,
    name: &'a str,
    steps: u64,
    lr: f64,
    /// The step after which it is asked to stop.
    stop_after: Option<u64>,
    save: Option<SaveEvery>,
}

impl Run<'_> {
    fn run(&self) -> (Result<Finished, Failure>, Story) {
        let dims = [SMALL_DIMS, &[("hidden1", 24), ("hidden2", 16)]].concat();
        let o = ProjectOptions {
            precision: Some(Arithmetic::F64),
            sets: vec![("lr".into(), self.lr)],
            ..options("mnist_mlp", "", "", &dims)
        };
        let loaded = Project::load(&o);
        let project = loaded.project.unwrap();
        let o = TrainOptions {
            data: Some(self.folder.join("data").display().to_string()),
            steps: Some(self.steps),
            seed: Some(3),
            run: Some(self.folder.join(self.name)),
            devices: Devices { device: self.device.clone(), ..Devices::default() },
            evaluation: EvaluationPolicy { every: Some(17), ..EvaluationPolicy::default() },
            saves: SavePolicy { every: self.save, keep: 99, ..SavePolicy::default() },
            ..TrainOptions::default()
        };
        let (stop, mut story) = (AtomicBool::new(false), Story::new());
        let done = train(&project, &loaded.sources, &o, &stop, &mut |p| {
            let Progress::Event { event, .. } = p else { return };
            match event {
                Event::Step(s) => {
                    story.push((format!("step {}", s.step), s.loss));
                    if self.stop_after == Some(s.step) {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
                Event::Evaluation { step, eval, .. } => story.push((format!("evaluation {step}"), eval.loss)),
                Event::Epoch { epoch, step, train_loss, .. } => {
                    story.push((format!("epoch {epoch} at {step}"), *train_loss));
                }
                Event::Done { steps, .. } => story.push((format!("done {steps}"), 0.0)),
            }
        });
        (done, story)
    }

    /// The values in the checkpoint of a step; none where there is no such checkpoint.
    fn kept(&self, step: u64) -> Option<Vec<(String, Vec<f64>)>> {
        let found = read_checkpoint(&self.folder.join(self.name), Which::Step(step)).ok()?;
        let whole = found.checkpoint.whole().unwrap();
        Some(whole.into_iter().map(|(name, t)| (name, t.to_f64().unwrap())).collect())
    }
}

fn equal(ahead: &Story, waits: &Story) {
    let names = |story: &Story| story.iter().map(|s| s.0.clone()).collect::<Vec<_>>();
    assert_eq!(names(ahead), names(waits));
    for ((name, a), (_, b)) in ahead.iter().zip(waits) {
        assert!((a - b).abs() <= 1e-9 * b.abs().max(1e-3), "{name}: {a} and {b}");
    }
}

/// 60 steps are two epochs and 10 steps; of evaluations, checkpoints and epochs some fall on the same step.
#[test]
fn a_run_ahead_tells_and_keeps_the_same() {
    let dir = folder(SMALL);
    let [waits, ahead] = [(waits(), "waits"), (ahead(), "ahead")].map(|(device, name)| Run {
        device,
        folder: dir.path(),
        name,
        steps: 60,
        lr: 1e-3,
        stop_after: None,
        save: Some(SaveEvery::Steps(7)),
    });
    let [(done, want), (done_ahead, got)] = [&waits, &ahead].map(Run::run);
    assert_eq!(done.unwrap().steps, 60);
    assert_eq!(done_ahead.unwrap().steps, 60);
    equal(&got, &want);
    let mut compared = 0;
    for step in 1..=60 {
        let (want, got) = (waits.kept(step), ahead.kept(step));
        assert_eq!(want.is_some(), got.is_some(), "a checkpoint of step {step}");
        for ((name, a), (other, b)) in want.into_iter().flatten().zip(got.into_iter().flatten()) {
            assert_eq!(name, other);
            assert!(apart(&a, &b) < 1e-9, "`{name}` of step {step} is off by {:e}", apart(&a, &b));
            compared += 1;
        }
    }
    assert!(compared > 8 * 10, "{compared} values were compared");
}

/// One that is stopped ends with the step that is under way, whose checkpoint it leaves; nothing of it is lost.
#[test]
fn a_run_ahead_stops_with_what_it_has_told() {
    let dir = folder(SMALL);
    let run = Run {
        device: ahead(),
        folder: dir.path(),
        name: "stopped",
        steps: 60,
        lr: 1e-3,
        stop_after: Some(11),
        save: None,
    };
    let (done, story) = run.run();
    let done = done.unwrap();
    assert!(done.interrupted);
    // The step after that was under way.
    assert_eq!((done.steps, story.last().unwrap().0.as_str()), (12, "step 12"));
    let waits = Run { device: waits(), name: "waits", steps: 12, stop_after: None, ..run };
    waits.run().0.unwrap();
    let [want, got] = [&waits, &run].map(|r| r.kept(12).unwrap());
    for ((name, a), (_, b)) in want.iter().zip(&got) {
        assert!(apart(a, b) < 1e-9, "`{name}` is off by {:e}", apart(a, b));
    }
}

/// A checkpoint by the clock is due after every step, and is of a step that was told.
#[test]
fn a_run_ahead_saves_by_the_clock() {
    let dir = folder(SMALL);
    let save = Some(SaveEvery::Time(std::time::Duration::from_nanos(1)));
    let [waits, ahead] = [(waits(), "waits"), (ahead(), "ahead")].map(|(device, name)| Run {
        device,
        folder: dir.path(),
        name,
        steps: 12,
        lr: 1e-3,
        stop_after: None,
        save,
    });
    let [(done, want), (done_ahead, got)] = [&waits, &ahead].map(Run::run);
    done.unwrap();
    done_ahead.unwrap();
    equal(&got, &want);
    let saved: Vec<u64> = (1..=12).filter(|step| ahead.kept(*step).is_some()).collect();
    assert!(saved.len() > 3, "{saved:?}");
    for step in saved {
        let (Some(want), Some(got)) = (waits.kept(step), ahead.kept(step)) else { continue };
        for ((name, a), (_, b)) in want.iter().zip(&got) {
            assert!(apart(a, b) < 1e-9, "`{name}` of step {step} is off by {:e}", apart(a, b));
        }
    }
}

/// A loss that is not finite ends the run at its step, though the next one is under way.
#[test]
fn a_run_ahead_ends_where_its_loss_does() {
    let dir = folder(SMALL);
    let ends: Vec<String> = [(waits(), "waits"), (ahead(), "ahead")]
        .map(|(device, name)| {
            let run =
                Run { device, folder: dir.path(), name, steps: 60, lr: 1e200, stop_after: None, save: None };
            let (done, story) = run.run();
            format!("{} after {:?}", told(&done.unwrap_err()), story.last().map(|s| &s.0))
        })
        .into();
    assert!(ends[0].contains("E0517"), "{ends:?}");
    assert_eq!(ends[0], ends[1]);
}
