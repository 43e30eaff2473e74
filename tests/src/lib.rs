//! Shared by the suites.

pub mod transports;
