//! What a training run needs beside the engine: data, checkpoints, the run's folder and its metrics.
//!
//! **Invariant:** nothing here depends on the layout. Data is addressed by record and declared order, checkpoints hold
//! whole tensors by parameter path, and example order is a function of (seed, epoch, index) alone. What is read from
//! disk is checked before it is used; a bad file is a diagnostic, never a panic.

pub mod against;
mod arrays;
pub mod bench;
pub mod calibrate;
pub mod catalog;
mod catch;
pub mod checkpoint;
mod clock;
mod cluster_job;
mod consensus;
pub mod corpus;
pub mod data;
mod device_failure;
mod devices;
pub mod estimates;
mod evaluator;
mod failure;
mod files;
pub mod folder;
pub mod foresight;
mod generation;
mod history;
mod hugging_face;
pub mod inference;
mod init;
mod logs;
mod map_text;
pub mod measured;
mod memory;
pub mod metrics;
mod metrics_log;
mod not_finite;
mod plan_memory;
mod poles;
mod policies;
mod prediction;
pub mod project;
mod recorded;
pub mod removal;
mod replacing;
pub mod run_dir;
mod run_error;
pub mod runs;
mod session;
mod settings;
pub mod standard;
mod tensor;
pub mod text;
mod totals;
pub mod trace;
mod trainer;
pub mod training;
mod training_loop;
mod utilization;
mod warnings;

pub use arrays::PredictedOutput;
pub use bench::{BenchOptions, BenchResult, bench};
pub use catch::panics_are_awaited;
pub use clock::{milliseconds_of, now as time_of_day};
pub use cluster_job::{ClusterJob, SUBMITTED};
pub use consensus::agree_on_result;
pub use device_failure::described;
pub use devices::{Asked, Devices};
pub use failure::Failure;
pub use generation::{BeamSearch, GenerateOptions, Generated, GeneratedText, Sampling, TextEnd, generate};
pub use hugging_face::{HfExport, HfExported, HfImport, HfImported, export_hf, hf_model, import_hf};
pub use inference::{EvalOptions, Evaluated, evaluate, read_checkpoint};
pub use init::{InitFrom, NameMap};
pub use logs::LogFormat;
pub use memory::available_bytes;
pub use plan_memory::{fits_device, lines_that_fit_device};
pub use policies::{EvaluationPolicy, Monitor, PolicySettings, SaveEvery, SavePolicy};
pub use prediction::{PredictOptions, Prediction, predict};
pub use project::{Loaded, Project, ProjectOptions};
pub use recorded::{Recorded, recorded};
pub use replacing::{ReplacingFile, write_whole};
pub use tensor::RawTensor;
pub use trace::TraceOptions;
pub use trainer::train;
pub use training::{Finished, Progress, TrainOptions};
pub use warnings::CHOSEN_ON_TEST;

/// A result whose error is one message to the user.
pub type Checked<T> = Result<T, Box<meshwright_diag::Diagnostic>>;

#[cfg(target_endian = "big")]
compile_error!("data, checkpoints and buffers share one byte order: little-endian");
