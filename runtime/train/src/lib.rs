//! Training and what follows it: a model and its layout as a project, the loop, evaluation, prediction and generation, first
//! values, and models of Hugging Face.
//!
//! **Invariant:** nothing that is computed or written here depends on the layout, but for rounding. What a model or a command
//! asks for is checked before devices start; what is wrong with it is a diagnostic, never a panic.

mod arrays;
pub mod bench;
pub mod calibrate;
mod devices;
pub mod estimates;
mod failure;
mod generation;
mod hugging_face;
pub mod inference;
mod init;
mod map_text;
mod prediction;
pub mod project;
mod recorded;
mod stepping;
pub mod trace;
pub mod training;

pub use arrays::PredictedOutput;
pub use bench::{BenchOptions, BenchResult, bench};
pub use devices::consensus::{agree_on_result, check_same_configuration};
pub use devices::device_failure::described;
pub use devices::plan_memory::{fits, fits_device, lines_that_fit_device};
pub use devices::{Asked, Devices};
pub use failure::Failure;
pub use generation::{BeamSearch, GenerateOptions, Generated, GeneratedText, Sampling, TextEnd, generate};
pub use hugging_face::{HfExport, HfExported, HfImport, HfImported, export_hf, hf_model, import_hf};
pub use inference::{EvalOptions, Evaluated, evaluate, read_checkpoint};
pub use init::{NameMap, rename_tensors};
pub use prediction::{PredictOptions, Prediction, predict};
pub use project::warnings::CHOSEN_ON_TEST;
pub use project::{Loaded, Project, ProjectOptions};
pub use recorded::{Recorded, recorded};
pub use stepping::batch_blocks::{BatchNeeds, GivenBatch, GivenBlocks, InputForm};
pub use stepping::batch_reader::BatchReader;
pub use stepping::{OpenEvaluation, OpenPrediction, StepSession};
pub use trace::TraceOptions;
pub use training::policies::{monitor_of, policies_of, reports_of};
pub use training::session::has_data;
pub use training::trainer::train;
pub use training::{Finished, Progress, TrainOptions};
