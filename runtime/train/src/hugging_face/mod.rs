//! Checkpoints of Hugging Face, in and out. What a model of theirs has to do with one of ours is a map, a file in `models/hf`:
//! which key of `config.json` is which dim or const, and which tensor is which parameter. Both ways go by the same map.

mod choose;
mod config;
mod config_text;
mod export;
mod import;
mod map;
mod product;
mod tied_tensors;
mod tokens;

pub use export::{HfExport, HfExported, export_hf};
pub use import::{HfImport, HfImported, hf_model, import_hf};
