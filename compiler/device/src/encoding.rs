//! Device plans as bytes.
//!
//! The encoding is postcard's. A Plan is JSON, which cannot write a device plan: scores of masked positions are infinite, and
//! keys of maps are numbers and enums.

use crate::launch::DevicePlan;
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// Bytes that are not a device plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadEncoding {
    /// Another version of the format.
    #[error("the device plan has format {found}, this build reads format {}", DevicePlan::VERSION)]
    Version {
        /// The version that the bytes begin with.
        found: u32,
    },
    /// The bytes do not fit the format.
    #[error("the device plan is damaged: {0}")]
    Damaged(String),
    /// More bytes than the device plan has.
    #[error("the device plan is damaged: {0} bytes follow its end")]
    Rest(usize),
}

/// Equality of bytes. A graph of Burn may have the constant NaN, which differs from itself as a float.
impl PartialEq for DevicePlan {
    fn eq(&self, other: &Self) -> bool {
        self.to_bytes() == other.to_bytes()
    }
}

impl Eq for DevicePlan {}

impl DevicePlan {
    /// Version of the encoding. Raised with every change of a type in a device plan.
    pub const VERSION: u32 = 1;

    /// The version, then all fields of the device plan: equal bytes for equal device plans.
    pub fn to_bytes(&self) -> Vec<u8> {
        match postcard::to_extend(&(DevicePlan::VERSION, self), vec![]) {
            Ok(bytes) => bytes,
            Err(e) => unreachable!("a device plan is plain data of known lengths: {e}"),
        }
    }

    /// Reads the bytes of [`DevicePlan::to_bytes`]. Compiled where it is called: the command does not read device plans, so the
    /// deserializers of all kernels are not built into it.
    ///
    /// # Errors
    /// [`BadEncoding`].
    #[inline]
    pub fn from_bytes(bytes: &[u8]) -> Result<DevicePlan, BadEncoding> {
        let damaged = |e: postcard::Error| BadEncoding::Damaged(e.to_string());
        match postcard::take_from_bytes::<u32>(bytes).map_err(damaged)? {
            (DevicePlan::VERSION, plan) => match postcard::take_from_bytes(plan).map_err(damaged)? {
                (plan, []) => Ok(plan),
                (_, rest) => Err(BadEncoding::Rest(rest.len())),
            },
            (found, _) => Err(BadEncoding::Version { found }),
        }
    }

    /// SHA-256 of [`DevicePlan::to_bytes`], in hexadecimal digits.
    pub fn hash(&self) -> String {
        Sha256::digest(self.to_bytes()).iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}
