//! What runs: whole trainings on several meshes, resumed and killed ones, the command from end to end, failing devices,
//! broken data. And `tidy`: what is true of the repository itself.

#![allow(clippy::unwrap_used, reason = "tests")]

// The allocator of the command.
use meshwright_cli as _;

mod accuracy;
mod agree;
mod async_devices;
mod bf16;
mod broken;
mod cli;
mod datasets;
mod device_decisions;
mod device_plans;
mod drawn;
#[cfg(feature = "cuda")]
mod dry_run;
mod epochs;
mod estimates;
mod evaluation;
mod every_layout;
mod f16;
mod faults;
#[cfg(feature = "cuda")]
mod gpu_faults;
mod gpu_launches;
mod gradients;
mod groups;
mod growth;
mod half;
mod hugging_face;
mod imports;
mod kept;
mod loops;
mod loss_parts;
mod memory;
mod mesh_tensorflow;
#[cfg(feature = "mpi")]
mod mpirun;
mod nccl;
mod optimizers;
mod overlap;
mod pages;
mod planning;
mod processes;
mod provenance;
mod ptx;
mod published;
mod reduce_grads;
mod resume;
mod settings;
mod sizes;
#[cfg(feature = "cubecl-cpu")]
mod stand_in;
mod standard;
mod support;
mod text;
mod tidy;
mod tiles;
mod trace;
mod transformers;
mod transports;
mod utilization;
mod windows;
