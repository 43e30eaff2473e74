//! GPUs, and their stand-in on the host: the backend that compiles kernels for the device at hand, fused.

use crate::devices::DeviceKind;
use crate::error::ExecError;
use crate::machine::{Machine, PlainMachine};
use crate::plain::Plain;
use burn_cubecl::{Cube, CubeDevice};

/// The machine of a device that kernels are compiled for.
pub(crate) fn machine(kind: DeviceKind, rank: usize) -> Result<Box<dyn Machine>, ExecError> {
    let found = match kind {
        DeviceKind::Cuda(index) => CubeDevice::cuda(index),
        _ => CubeDevice::cpu(),
    };
    let message = |e: &dyn std::fmt::Display| format!("cannot use {kind}: {e}");
    let device = found.map_err(|e| ExecError::Start { rank, message: message(&e) })?;
    Ok(Box::new(PlainMachine::<Cube>::new(device)))
}

impl Plain for Cube {}
