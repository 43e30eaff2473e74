//! Passes that decide about a whole Plan on one device, each from the Plan and the decisions before it.
//! [`crate::decisions::decide`] has their order.

mod added_matmuls;
pub mod attention_bits;
pub mod canonical;
pub mod epilogues;
pub mod fp8_matmuls;
pub mod inlined;
pub mod masks;
pub mod residuals;
pub mod rounded_factors;
pub mod step_order;
