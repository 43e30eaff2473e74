//! A mesh spread over several processes gives what one process gives, and they begin, stop and fail together. Here a process
//! is a thread that shares nothing with the others but a wire; the same with real processes is in `mpirun`.

use crate::support::{SMALL, SMALL_DIMS, Trained, folder, options, tensors, told, trained};
use meshwright_comm::{Group, Timeouts, Transport, World};
use meshwright_exec::Processes;
use meshwright_runs::checkpoint::Which;
use meshwright_runs::metrics::Event;
use meshwright_runs::policies::SaveEvery;
use meshwright_train::{
    Devices, EvalOptions, Failure, Finished, Progress, Project, ProjectOptions, TraceOptions, TrainOptions,
    evaluate, train,
};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Runs `process` on a thread for each process; the processes have so many devices each.
fn spread<T: Send>(devices: &[usize], process: impl Fn(usize, Devices) -> T + Sync) -> Vec<T> {
    spread_within(Timeouts::for_tests(), devices, process)
}

fn spread_within<T: Send>(
    timeouts: Timeouts,
    devices: &[usize],
    process: impl Fn(usize, Devices) -> T + Sync,
) -> Vec<T> {
    let mut ends = World::new(devices.iter().sum(), timeouts).into_iter();
    let wires = World::new(devices.len(), timeouts);
    std::thread::scope(|scope| {
        let process = &process;
        let mut running = vec![];
        for (at, (wire, n)) in wires.into_iter().zip(devices).enumerate() {
            let ends: Vec<Box<dyn Transport>> =
                ends.by_ref().take(*n).map(|e| Box::new(e) as Box<dyn Transport>).collect();
            running.push(scope.spawn(move || {
                let group = Group::world(devices.len(), at).unwrap();
                let processes = Arc::new(Processes::connected(ends, Box::new(wire), group).unwrap());
                process(at, Devices { processes, timeouts, ..Devices::default() })
            }));
        }
        running.into_iter().map(|r| r.join().unwrap()).collect()
    })
}

/// What a process of a training saw.
struct Seen {
    ended: Result<Finished, Failure>,
    losses: Vec<f64>,
}

fn train_on(
    project: &ProjectOptions,
    o: &TrainOptions,
    stop: &AtomicBool,
    mut look: impl FnMut(&Progress),
) -> Seen {
    let loaded = Project::load(project);
    let project = loaded.project.unwrap_or_else(|| panic!("{:?}", loaded.diagnostics));
    let mut losses = vec![];
    let ended = train(&project, &loaded.sources, o, stop, &mut |p| {
        look(&p);
        if let Progress::Event { event: Event::Step(s), .. } = p {
            losses.push(s.loss);
        }
    });
    Seen { ended, losses }
}

fn run_options(folder: &Path, run: &str, steps: u64) -> TrainOptions {
    TrainOptions {
        data: Some(folder.join("data").display().to_string()),
        steps: Some(steps),
        seed: Some(3),
        run: Some(folder.join(run)),
        ..TrainOptions::default()
    }
}

/// Trains as [`trained`] does, on processes with so many devices each.
fn trained_on(devices: &[usize], project: &ProjectOptions, folder: &Path, run: &str, steps: u64) -> Trained {
    let seen = spread(devices, |_, devices| {
        let o = TrainOptions { devices, ..run_options(folder, run, steps) };
        train_on(project, &o, &AtomicBool::new(false), |_| {})
    });
    for s in &seen {
        let ended = s.ended.as_ref().unwrap_or_else(|e| panic!("{devices:?}: {}", told(e)));
        assert_eq!(ended.steps, steps);
        assert_eq!(s.losses, seen[0].losses, "{devices:?}");
    }
    Trained { losses: seen[0].losses.clone(), gradient_norm: None, tensors: tensors(&folder.join(run)) }
}

fn mlp(layout: &str) -> ProjectOptions {
    options("mlp", "r=2,c=2", layout, &[SMALL_DIMS, &[("hidden", 11)]].concat())
}

const LAYOUTS: [&str; 2] = ["batch -> r; hidden -> c", "batch -> r, c; params: rows -> c"];

#[test]
fn processes_train_as_one_does_to_the_last_bit() {
    let dir = folder(SMALL);
    for (i, layout) in LAYOUTS.iter().enumerate() {
        let alone = trained(&mlp(layout), dir.path(), &format!("alone{i}"), 6);
        for devices in [&[1, 1, 1, 1][..], &[2, 2], &[3, 1]] {
            let run = format!("spread{i}-{devices:?}");
            assert_eq!(trained_on(devices, &mlp(layout), dir.path(), &run, 6), alone, "{layout} {devices:?}");
        }
    }
}

#[test]
fn a_run_of_processes_goes_on_in_one_and_the_other_way_round() {
    let dir = folder(SMALL);
    let project = mlp(LAYOUTS[0]);
    let whole = trained(&project, dir.path(), "whole", 8);
    let resumed = |run: &str, devices: &[usize]| {
        let seen = spread(devices, |at, devices| {
            let o = TrainOptions { devices, resume: true, ..run_options(dir.path(), run, 8) };
            // Only the first process knows of the run's folder and its settings.
            let o = if at == 0 { o } else { TrainOptions { run: Some("nowhere".into()), ..o } };
            train_on(&project, &o, &AtomicBool::new(false), |_| {})
        });
        for s in &seen {
            assert!(s.ended.is_ok(), "{:?}", s.ended);
            assert_eq!(s.losses, whole.losses[4..]);
        }
        assert_eq!(tensors(&dir.path().join(run)), whole.tensors);
    };
    trained_on(&[2, 2], &project, dir.path(), "there", 4);
    resumed("there", &[4]);
    trained(&project, dir.path(), "back", 4);
    resumed("back", &[1, 2, 1]);
}

#[test]
fn an_evaluation_and_predictions_are_those_of_one_process() {
    let dir = folder(SMALL);
    let project = mlp(LAYOUTS[0]);
    trained(&project, dir.path(), "run", 5);
    let both = |devices: Devices, at: usize| {
        let loaded = Project::load(&project);
        let p = loaded.project.unwrap();
        let eval = EvalOptions {
            data: Some(dir.path().join("data").display().to_string()),
            split: "test".into(),
            checkpoint: if at == 0 { dir.path().join("run") } else { "nowhere".into() },
            devices,
            ..EvalOptions::default()
        };
        let found = evaluate(&p, &loaded.sources, &eval, &mut |_, _| {});
        found.unwrap_or_else(|e| panic!("{}", told(&e))).evaluation
    };
    let alone = both(Devices::default(), 0);
    for result in spread(&[1, 2, 1], |at, devices| both(devices, at)) {
        assert_eq!(result, alone);
    }
}

#[test]
fn one_process_that_is_asked_to_stop_stops_all_after_the_same_step() {
    let dir = folder(SMALL);
    let project = mlp(LAYOUTS[0]);
    let seen = spread(&[2, 2], |at, devices| {
        let o = TrainOptions { devices, ..run_options(dir.path(), "run", 20) };
        let stop = AtomicBool::new(false);
        train_on(&project, &o, &stop, |p| {
            if at == 1 && matches!(p, Progress::StepDone { step: 7, .. }) {
                stop.store(true, Ordering::Relaxed);
            }
        })
    });
    for s in &seen {
        let ended = s.ended.as_ref().unwrap();
        assert_eq!((ended.steps, ended.interrupted, s.losses.len()), (7, true, 7));
    }
    // With a checkpoint, from which it goes on as if nothing had been.
    let o = TrainOptions { resume: true, ..run_options(dir.path(), "run", 20) };
    let rest = train_on(&project, &o, &AtomicBool::new(false), |_| {});
    let whole = trained(&project, dir.path(), "whole", 20);
    assert_eq!([&seen[0].losses[..], &rest.losses[..]].concat(), whole.losses);
}

/// What each process of a run with two devices each says: the messages of what it failed by, none where another says it.
fn failures(
    folder: &Path,
    project: impl Fn(usize) -> ProjectOptions + Sync,
    change: impl Fn(usize, &mut TrainOptions) + Sync,
    look: impl Fn(usize, &Progress) + Sync,
) -> Vec<String> {
    let seen = spread(&[2, 2], |at, devices| {
        let mut o = TrainOptions { devices, ..run_options(folder, "run", 6) };
        change(at, &mut o);
        train_on(&project(at), &o, &AtomicBool::new(false), |p| look(at, p))
    });
    seen.into_iter().map(|s| told(&s.ended.unwrap_err())).collect()
}

#[test]
fn processes_that_are_asked_for_different_things_say_who_and_what() {
    let dir = folder(SMALL);
    let lr = |at: usize| ProjectOptions {
        sets: vec![("lr".into(), if at == 1 { 0.25 } else { 0.5 })],
        ..mlp(LAYOUTS[0])
    };
    let said = failures(dir.path(), lr, |_, _| {}, |_, _| {});
    assert!(said[0].contains("E0526") && said[0].contains("rank 2 of the run has `lr` = 0.25"), "{said:?}");
    assert_eq!(said[1], "", "it was said twice");
    let same = |_: usize| mlp(LAYOUTS[0]);
    let said = failures(dir.path(), same, |at, o| o.steps = Some(6 + at as u64), |_, _| {});
    assert!(said[0].contains("`--steps` = 7"), "{said:?}");
    type Change<'a> = &'a (dyn Fn(&mut TrainOptions) + Sync);
    let unlike: [(Change<'_>, &str); 6] = [
        (&|o| o.run = None, "`--no-save` = true, rank 0 has false"),
        (&|o| o.trace = Some(TraceOptions { file: "t.json".into(), steps: Some(3..=5) }), "`--trace` = true"),
        (
            &|o| o.trace = Some(TraceOptions { file: "t.json".into(), steps: Some(3..=5) }),
            "`--trace-steps` = 3..5, rank 0 has none",
        ),
        (&|o| o.saves.every = Some(SaveEvery::Steps(2)), "`--checkpoint-every` = 2, rank 0 has none"),
        (&|o| o.evaluation.patience = Some(4), "`--patience` = 4, rank 0 has none"),
        (&|o| o.from = Which::Best, "`--from` = best, rank 0 has the newest"),
    ];
    for (change, text) in unlike {
        let change = |at: usize, o: &mut TrainOptions| {
            if at == 1 {
                change(o)
            }
        };
        let said = failures(dir.path(), same, change, |_, _| {});
        assert!(said[0].contains("E0526") && said[0].contains(text), "{text}: {said:?}");
    }
    let other = folder(crate::support::Sizes { examples: 280, ..SMALL });
    let data = other.path().join("data").display().to_string();
    let change = |at: usize, o: &mut TrainOptions| {
        if at == 1 {
            o.data = Some(data.clone());
        }
    };
    let said = failures(dir.path(), same, change, |_, _| {});
    assert!(said[0].contains("rank 2") && said[0].contains("280 examples"), "{said:?}");
    assert!(!dir.path().join("run").exists(), "a run that did not begin left a folder");
}

#[test]
fn what_only_one_process_lacks_is_said_by_that_one() {
    let dir = folder(SMALL);
    let change = |at: usize, o: &mut TrainOptions| {
        if at == 1 {
            o.data = Some("/no/such/folder".into());
        }
    };
    let said = failures(dir.path(), |_| mlp(LAYOUTS[0]), change, |_, _| {});
    assert_eq!(said[0], "");
    assert!(said[1].contains("/no/such/folder"), "{said:?}");
    // What all lack is said by the first.
    let change = |_: usize, o: &mut TrainOptions| o.data = Some("/no/such/folder".into());
    let said = failures(dir.path(), |_| mlp(LAYOUTS[0]), change, |_, _| {});
    assert!(said[0].contains("/no/such/folder") && said[1].is_empty(), "{said:?}");
}

#[test]
fn a_loss_that_is_not_finite_is_said_once() {
    let dir = folder(SMALL);
    let wild = |_: usize| ProjectOptions { sets: vec![("lr".into(), 1e30)], ..mlp(LAYOUTS[0]) };
    let said = failures(dir.path(), wild, |_, _| {}, |_, _| {});
    assert!(said[0].contains("E0517") && said[1].is_empty(), "{said:?}");
}

#[test]
fn a_checkpoint_that_cannot_be_written_ends_all_processes() {
    let dir = folder(SMALL);
    let spoil = |at: usize, p: &Progress| {
        if at == 0 && matches!(p, Progress::StepDone { step: 3, .. }) {
            let checkpoints = dir.path().join("run/checkpoints");
            std::fs::remove_dir_all(&checkpoints).unwrap();
            std::fs::write(&checkpoints, "in the way").unwrap();
        }
    };
    let said = failures(dir.path(), |_| mlp(LAYOUTS[0]), |_, _| {}, spoil);
    assert!(said[0].contains("E0514") && said[1].is_empty(), "{said:?}");
}

/// Each process has a path of its own here: a second file would show.
#[test]
fn the_first_process_alone_writes_the_file_for_prometheus() {
    let dir = folder(SMALL);
    let run = |run: &str, path: &(dyn Fn(usize) -> Option<std::path::PathBuf> + Sync)| {
        spread(&[2, 2], |at, devices| {
            let o = TrainOptions { devices, metrics_file: path(at), ..run_options(dir.path(), run, 3) };
            train_on(&mlp(LAYOUTS[0]), &o, &AtomicBool::new(false), |_| {})
        })
    };
    let file = |at: usize| dir.path().join(format!("{at}.prom"));
    let seen = run("a", &|at| Some(file(at)));
    assert!(seen.iter().all(|s| s.ended.is_ok()));
    let text = std::fs::read_to_string(file(0)).unwrap();
    assert!(text.contains("state=\"finished\"} 1\n") && text.contains("/a\"} 3\n"), "{text}");
    assert!(!file(1).exists());
    // What the first cannot write is told before the run, once, and ends all.
    let seen = run("b", &|at| Some(dir.path().join("nowhere").join(format!("{at}.prom"))));
    let said: Vec<String> = seen.iter().map(|s| told(s.ended.as_ref().unwrap_err())).collect();
    assert!(said[0].contains("E0511") && said[1].is_empty() && !dir.path().join("b").exists(), "{said:?}");
    let seen = run("c", &|at| (at == 0).then(|| file(at)));
    let said: Vec<String> = seen.iter().map(|s| told(s.ended.as_ref().unwrap_err())).collect();
    assert!(said.concat().contains("`--metrics-file` = "), "{said:?}");
}

/// What processes tell each other has the time of the first step only in that step, also where devices have ends of their own;
/// and a user understands what was missed.
#[test]
fn a_process_that_stands_still_is_missed_as_soon_as_a_device_would_be() {
    let dir = folder(SMALL);
    let timeouts = Timeouts { first_step: Duration::from_secs(60), later: Duration::from_secs(2) };
    let seen = spread_within(timeouts, &[2, 2], |at, devices| {
        let o = TrainOptions { devices, ..run_options(dir.path(), "run", 4) };
        train_on(&mlp(LAYOUTS[0]), &o, &AtomicBool::new(false), |p| {
            if at == 1 && matches!(p, Progress::StepDone { step: 2, .. }) {
                std::thread::sleep(Duration::from_secs(5));
            }
        })
    });
    let said = told(seen[0].ended.as_ref().unwrap_err());
    for part in [
        "rank 0 timed out after 2.",
        " of `xent: whether to go on after step 2` at line ",
        "waiting for rank 2 of process 1 (",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!((seen[0].losses.len(), seen[1].losses.len()), (2, 2));
}
