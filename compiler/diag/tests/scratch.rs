#![allow(dead_code, clippy::unwrap_used)]
mod support {
    pub(crate) fn root() -> std::path::PathBuf {
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_path_buf()
    }
}
#[path = "../../../tests/runs/tidy/mod.rs"]
mod tidy;
