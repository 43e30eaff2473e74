//! Source positions, diagnostics and their codes: what every part of the compiler uses to speak to a user.
//!
//! **Invariant:** nothing here prints, and nothing here knows what a tensor is. A [`Diagnostic`] is data; the
//! renderers in [`render`] turn it into text.

pub mod codes;
mod diagnostic;
pub mod foreign;
pub mod render;
mod repair;
mod span;

pub use codes::Code;
pub use diagnostic::{Diagnostic, Fix, Label, MAX_REPORTED, Near, Outcome, Severity, has_errors, nearest};
pub use repair::{Applied, Repaired, applicable, repair};
pub use span::{FileId, Location, Sources, Span};
