//! `calibrate` of several MPI processes: all are measured, and one writes what was found.

use super::mpirun::{alone, ended, job, mpirun};
use crate::support::run;
use std::time::Duration;

/// Kernels and memory are those of one rank or of all, collectives those of MPI; the first rank writes the file, and estimates by
/// it say so.
#[test]
fn ranks_measure_a_machine_together() {
    let _one = alone();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ranks.machine.toml").display().to_string();
    let of = |more: &[&str]| {
        let asked = [&["calibrate", "--minutes", "0.01", "--mesh", "r=2"][..], more].concat();
        ended(job(&[(2, &asked)]).spawn().unwrap(), Duration::from_secs(900), String::new())
    };
    let said = of(&["--name", "Ranks", "--output", &file]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    for part in ["Ranks, with mpi", "all_reduce among 2", "mlp, batch -> r"] {
        assert!(said.out.contains(part), "{part}: {}", said.out);
    }
    assert_eq!(said.out.matches("written to ").count(), 1, "{}", said.out);
    for part in ["measuring kernels", "measuring memory", "measuring collectives", "measuring overlap"] {
        assert!(said.err.contains(part) && !said.err.contains("[rank"), "{part}: {}", said.err);
    }
    let text = std::fs::read_to_string(&file).unwrap();
    for part in ["engine = \"mpi\"", "(mpi): fitted on the benchmark of collectives", "name = \"Ranks\""] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // What a collective takes of a device is measured where steps are steady enough to tell; else it is that of a device which
    // does nothing beside it.
    let units = |why: &str| text.lines().any(|line| line.starts_with("units = \"") && line.contains(why));
    assert!(units("mpi): a product beside an all-reduce") || units("does nothing else"), "{text}");
    let estimate = |engine: &[&str]| {
        let asked = ["estimate", "mlp", "--layout", "dp", "--mesh", "2", "--machine", &file];
        run(&[&asked[..], engine].concat()).out
    };
    let own = estimate(&[]);
    assert!(own.contains("of Ranks with mpi") && own.contains(" with mpi, "), "{own}");
    assert!(estimate(&["--engine", "threads"]).contains("of Ranks with threads"));
    // A check writes nothing, and is reported once.
    let checked = of(&["--check", &file, "--format", "json"]);
    assert_eq!(checked.code, Some(0), "{}", checked.err);
    let found: serde_json::Value = serde_json::from_str(&checked.out).unwrap();
    assert!(found["errors"]["plans"].as_array().unwrap().len() >= 5, "{found}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
}

/// What is wrong is found before anything is measured, and said once.
#[test]
fn ranks_that_cannot_measure_a_machine_say_so_once() {
    let _one = alone();
    let dir = tempfile::tempdir().unwrap();
    let precious = dir.path().join("precious.toml");
    std::fs::write(&precious, "precious = true\n").unwrap();
    let precious = precious.display().to_string();
    for (more, code) in [
        (["--mesh", "all=3"], "E0307"),
        (["--mesh", "all"], "E0101"),
        (["--output", &precious], "E0524"),
        (["--check", &precious], "E0531"),
    ] {
        let said = mpirun(2, &[&["calibrate"][..], &more].concat());
        assert_eq!(said.code, Some(1), "{}", said.err);
        assert_eq!(said.err.matches(&format!("error[{code}]")).count(), 1, "{}", said.err);
        assert!(!said.err.contains("measuring"), "{}", said.err);
    }
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious = true\n");
}
