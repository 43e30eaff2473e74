//! Lookups in tables and their transpose as kernels of their own (ADR 52). A sum of the entries with one index is taken by
//! several threads at once, in an order that depends on the indices alone.
//!
//! - [`launch`]: the launches; `kernels`: lookups, and sums with few entries; `order`: which entries each row sums; `sums`: that.

mod kernels;
mod launch;
mod order;
mod sums;
