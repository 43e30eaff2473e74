//! What the command prints: texts, tables and JSON, on a terminal and elsewhere.

pub(super) mod console;
pub(super) mod explain_table;
pub(super) mod json;
pub(super) mod pager;
pub(super) mod patience;
pub(super) mod progress;
pub(super) mod repeats;
pub(super) mod table;
pub(super) mod text;
