//! The command as users type it, a file for each part of it. They are one binary: each binary would link all that the command
//! does.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../../../tests/fake-nccl/built.rs"]
mod fake_nccl;
mod support;

mod alternatives;
mod calibrate;
mod command;
mod device_plans;
mod devices;
mod estimate;
mod fix;
mod fmt;
mod folders;
mod foresight;
mod generate;
mod help_examples;
mod kept_paths;
mod launch;
mod norms;
mod not_finite;
mod pipelines;
mod plan_page;
mod predict;
mod programs;
mod report;
mod runs;
mod runs_command;
mod search;
mod search_space;
mod seeing;
mod stacks;
mod starting;
mod strangers;
mod sweep;
mod sweep_stopped;
mod weights;

/// A file that is not named above would run no test, and nobody would see it.
#[test]
fn every_file_of_tests_is_named_here() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for file in std::fs::read_dir(folder).unwrap() {
        let name = file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_string();
        let is_here = name == "main" || include_str!("main.rs").contains(&format!("\nmod {name};\n"));
        assert!(is_here, "tests/main.rs has no `mod {name};`");
    }
}
