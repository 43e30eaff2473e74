//! The folder of a run: when it comes into being, what it says of the run, and what a resumed run may change.

use crate::support::{SMALL, folder, options, run, told};
use meshwright_runs::metrics::Event;
use meshwright_train::{Progress, Project, TrainOptions, train};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

const SIZES: [&str; 6] = ["--dim", "rows=5", "--dim", "cols=4", "--dim", "hidden=7"];

#[test]
fn a_start_that_fails_leaves_no_run() {
    let dir = folder(SMALL);
    let path = |n: &str| dir.path().join(n).display().to_string();
    let (data, to) = (path("data"), path("a"));
    let args = [&["train", "mlp", "--data", &data, "--run", &to, "--steps", "2"], &SIZES[..]].concat();
    let said = run(&[&args[..], &["--dim", "batch=4000"]].concat());
    assert!(said.code == Some(1) && said.err.contains("E0516"), "{}", said.err);
    assert!(!Path::new(&to).exists());
    // An empty folder, as an earlier failure may have left it, is free.
    std::fs::create_dir_all(dir.path().join("a/checkpoints")).unwrap();
    std::fs::write(dir.path().join("a/run.lock"), "").unwrap();
    let said = run(&[&args[..], &["--dim", "batch=12"]].concat());
    assert_eq!(said.code, Some(0), "{}", said.err);
    // Checkpoints without a `run.toml` are nobody's to overwrite.
    std::fs::remove_file(dir.path().join("a/run.toml")).unwrap();
    let said = run(&[&args[..], &["--dim", "batch=12"]].concat());
    assert!(said.code == Some(1) && said.err.contains("E0510"), "{}", said.err);
}

#[test]
fn a_run_remembers_its_settings_and_is_resumed_with_no_others() {
    let dir = folder(SMALL);
    let path = |n: &str| dir.path().join(n).display().to_string();
    let (data, to, file) = (path("data"), path("run"), path("mine.mw"));
    let text = std::fs::read_to_string(crate::support::root().join("models/mlp.mw")).unwrap();
    // A const that the model reads, beside the one of the `train` block.
    let text = text.replace("/ 255", "/ scale") + "const scale = 255\n";
    std::fs::write(&file, format!("use \"empty.mw\"\n{text}")).unwrap();
    std::fs::write(dir.path().join("empty.mw"), "const unused = 2\n").unwrap();
    let base = [&["train", &file, "--data", &data, "--run", &to][..], &SIZES].concat();
    let own = ["--dim", "batch=12", "--set", "lr=0.05", "--seed", "9"];
    let both = ["--layout", "batch -> r; hidden -> c", "--mesh", "r=2,c=2"];
    let said = run(&[&base[..], &own, &both, &["--steps", "30", "--cores", "2"]].concat());
    assert_eq!(said.code, Some(0), "{}", said.err);

    let read = |n: &str| std::fs::read_to_string(dir.path().join("run").join(n)).unwrap();
    let settings: toml::Table = read("run.toml").parse().unwrap();
    for (key, value) in [
        ("model", "\"mlp\"".to_string()),
        ("file", format!("\"{file}\"")),
        ("seed", "\"9\"".into()),
        ("precision", "\"f32\"".into()),
        ("cores", "2".into()),
        ("steps", "30".into()),
        ("data", format!("\"{data}\"")),
        ("examples", "300".into()),
    ] {
        assert_eq!(settings[key].to_string(), value, "{key}");
    }
    assert_eq!(settings["set"]["lr"].as_float(), Some(0.05));
    assert_eq!(settings["consts"]["lr"].as_float(), Some(0.05));
    assert_eq!(settings["consts"]["unused"].as_float(), Some(2.0));
    assert_eq!(settings["dims"]["batch"].as_integer(), Some(12));
    assert_eq!(settings["layout"].as_array().unwrap().len(), 2);
    assert_eq!(read("model.mw"), std::fs::read_to_string(&file).unwrap());
    assert_eq!(read("used-1.mw"), "const unused = 2\n");
    assert_eq!(read("rules.layout"), both[1]);

    // What changes the numbers is refused, with both values.
    std::fs::create_dir(dir.path().join("other")).unwrap();
    crate::support::write_data(&dir.path().join("other"), crate::support::Sizes { examples: 290, ..SMALL });
    let other = path("other");
    let resume =
        |own: &[&str], more: &[&str]| run(&[&base[..], own, &["--resume", "--steps", "40"], more].concat());
    for (what, more, values) in [
        ("seed", &["--dim", "batch=12", "--set", "lr=0.05", "--seed", "8"][..], ["9", "8"]),
        ("const", &["--dim", "batch=12", "--set", "lr=0.05", "--set", "scale=256"], ["255", "256"]),
        ("dim", &["--dim", "batch=20", "--set", "lr=0.05"], ["12", "20"]),
    ] {
        let said = resume(more, &both);
        assert!(said.code == Some(1) && said.err.contains("error[E0518]"), "{what}: {}", said.err);
        assert!(
            values
                .iter()
                .all(|v| said.err.contains(&format!("= {v}")) || said.err.contains(&format!("with {v}"))),
            "{what}: {}",
            said.err
        );
    }
    let elsewhere: Vec<&str> = base.iter().map(|a| if *a == data { other.as_str() } else { *a }).collect();
    let said = run(&[&elsewhere[..], &own, &both, &["--resume", "--steps", "40"]].concat());
    assert!(said.code == Some(1) && said.err.contains("E0518"), "{}", said.err);
    assert!(said.err.contains("300") && said.err.contains("290"), "{}", said.err);
    assert_eq!(settings, read("run.toml").parse().unwrap());

    // The rest may change and is told; the seed need not be said again.
    std::fs::rename(dir.path().join("data"), dir.path().join("moved")).unwrap();
    let moved = path("moved");
    std::fs::write(&file, format!("// A word more.\nuse \"empty.mw\"\n{text}")).unwrap();
    let elsewhere: Vec<&str> = base.iter().map(|a| if *a == data { moved.as_str() } else { *a }).collect();
    let more = ["--resume", "--mesh", "a=3", "--layout", "batch -> a", "--cores", "1"];
    let said = run(&[&elsewhere[..], &own[..4], &more].concat());
    assert_eq!(said.code, Some(0), "{}", said.err);
    for part in ["mesh: a=3", "r=2", "layout: batch -> a", "cores: 1", "data: ", "has changed"] {
        assert!(said.err.contains(part), "{part}: {}", said.err);
    }
    // It was meant to be 30 steps long, and still is.
    assert!(said.out.contains("nothing to do: 30 of 30"), "{}", said.out);
}

#[test]
fn a_stop_in_the_last_step_comes_too_late() {
    let dir = folder(SMALL);
    let loaded =
        Project::load(&options("mlp", "", "", &[("batch", 12), ("rows", 5), ("cols", 4), ("hidden", 7)]));
    let project = loaded.project.unwrap();
    let o = TrainOptions {
        data: Some(dir.path().join("data").display().to_string()),
        steps: Some(4),
        ..TrainOptions::default()
    };
    for (at, done) in [(3, false), (4, true)] {
        let stop = AtomicBool::new(false);
        let mut told_done = false;
        let finished = train(&project, &loaded.sources, &o, &stop, &mut |p| match p {
            Progress::StepDone { step, .. } if step == at => stop.store(true, Ordering::Relaxed),
            Progress::Event { event: Event::Done { steps, .. }, .. } => told_done = *steps == 4,
            _ => {}
        });
        let finished = finished.unwrap_or_else(|e| panic!("{}", told(&e)));
        assert_eq!((finished.steps, finished.interrupted, told_done), (at, !done, done));
    }
}
