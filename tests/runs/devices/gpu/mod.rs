//! GPUs: their launches by plain kernels, and their engine on the stand-in for the driver.

#[cfg(feature = "cuda")]
pub(in crate::devices) mod counts;
#[cfg(feature = "cuda")]
pub(in crate::devices) mod dry_run;
#[cfg(feature = "cuda")]
pub(in crate::devices) mod faults;
pub(in crate::devices) mod launches;
pub(in crate::devices) mod rings;
#[cfg(feature = "cuda")]
pub(in crate::devices) mod stages;
#[cfg(feature = "cuda")]
pub(in crate::devices) mod sums;
