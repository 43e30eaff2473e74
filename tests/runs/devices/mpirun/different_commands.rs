//! Ranks that are asked for different things end with an error that names them.

use super::{alone, ended, job, small};
use crate::support::{SMALL, folder};
use std::time::Duration;

#[test]
fn ranks_that_are_asked_for_different_things_are_named() {
    let _one = alone();
    let dir = folder(SMALL);
    let data = dir.path().join("data").display().to_string();
    let layout = ["--layout", "batch -> r; hidden -> c", "--steps", "3", "--set"];
    let (one, other) = ([&layout[..], &["lr=0.1"]].concat(), [&layout[..], &["lr=0.2"]].concat());
    let (one, other) = (small(&data, "", &one), small(&data, "", &other));
    let job = job(&[(2, &one), (1, &other), (1, &one)]).spawn().unwrap();
    let said = ended(job, Duration::from_secs(60), String::new());
    assert_eq!(said.code, Some(1), "{}", said.err);
    assert_eq!(said.err.matches("error[E0526]").count(), 1, "{}", said.err);
    assert!(said.err.contains("rank 2 of the run has `lr` = 0.2, rank 0 has 0.1"), "{}", said.err);
}

/// What each rank is asked for decides which messages it sends, so it is compared before any other.
#[test]
fn ranks_of_different_commands_end_at_once() {
    let _one = alone();
    let dir = folder(SMALL);
    let [data, run, other] = ["data", "run", "other"].map(|p| dir.path().join(p).display().to_string());
    let steps = ["--layout", "batch -> r; hidden -> c", "--steps", "3"];
    let (unsaved, saved) = (small(&data, "", &steps), small(&data, &run, &steps));
    let unnamed: Vec<&str> = unsaved.iter().copied().filter(|a| *a != "--no-save").collect();
    let eval = ["eval", &other, "--mesh", "r=2,c=2"];
    let again = [&saved[..], &["--resume=auto"]].concat();
    for (first, rest, text) in [
        (
            &unsaved[..],
            &saved[..],
            "the folder of its run = none (`--no-save`), rank 1 has the one of `--run`",
        ),
        (&unnamed, &unsaved, "the folder of its run = a new one, rank 1 has none (`--no-save`)"),
        (&eval, &saved, "the command = eval, rank 1 has train"),
        (&again, &saved, "`--resume` = auto, rank 1 has none"),
    ] {
        let job = job(&[(1, first), (3, rest)]).spawn().unwrap();
        let said = ended(job, Duration::from_secs(60), String::new());
        assert_eq!(said.code, Some(1), "{}", said.err);
        let text = format!("rank 0 of the run has {text}");
        assert!(said.err.contains("error[E0526]") && said.err.contains(&text), "{text}: {}", said.err);
    }
}
