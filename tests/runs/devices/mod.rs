//! Devices: what each launches and holds, how they communicate, and how they fail.

pub(super) mod async_devices;
pub(super) mod device_decisions;
pub(super) mod device_plans;
pub(super) mod faults;
pub(super) mod gpu;
pub(super) mod links;
pub(super) mod memory;
#[cfg(feature = "mpi")]
pub(super) mod mpi_machines;
#[cfg(feature = "mpi")]
pub(super) mod mpirun;
pub(super) mod nccl;
pub(super) mod overlap;
pub(super) mod pass_order;
pub(super) mod processes;
pub(super) mod ptx;
pub(super) mod reasons;
#[cfg(feature = "cubecl-cpu")]
pub(super) mod stand_in;
pub(super) mod transports;
