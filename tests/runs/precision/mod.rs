//! Trainings in half types, beside `f32`.

pub(super) mod bf16;
pub(super) mod f16;
mod fp8;
mod fp8_history;
mod fp8_scales;
pub(super) mod half;
mod tf32;
