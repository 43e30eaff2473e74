//! The command as users type it, a file for each part of it. They are one binary: each binary would link all that the command
//! does.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../../../tests/fake-nccl/built.rs"]
mod fake_nccl;
mod support;

mod calibrate;
mod command;
mod devices;
mod estimate;
mod fix;
mod fmt;
mod generate;
mod kept_paths;
mod launch;
mod not_finite;
mod plan_page;
mod predict;
mod report;
mod runs;
mod runs_command;
mod search;
mod seeing;
mod stacks;
mod starting;
mod strangers;
mod sweep;
mod sweep_stopped;
mod weights;
