//! Decisions about a whole Plan on one device, each from the Plan and those before it.

pub mod attention_bits;
pub mod epilogues;
pub mod expression_key;
pub mod inlined;
pub mod lifetimes;
pub mod masks;
pub mod residuals;
pub mod row_groups;
pub mod step_order;
