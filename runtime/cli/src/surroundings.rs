//! The program that the command is a part of, where it is no binary of its own: how it is started again, and where data is that
//! came with it.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// What the program around the command says of it.
#[derive(Clone, Debug)]
pub struct Embedding {
    /// The words that start the command as a process, but for its own: the program, then its first arguments.
    pub program: Vec<OsString>,
    /// The folder of the data that ships.
    pub data: PathBuf,
}

static EMBEDDING: OnceLock<Embedding> = OnceLock::new();

/// Says what the command is a part of. The first time counts.
pub fn embed(embedding: Embedding) {
    // Said again by a module that is loaded again.
    let _known = EMBEDDING.set(embedding);
}

/// The program that is this command, and what its arguments begin with.
pub(crate) fn started_as() -> io::Result<(OsString, &'static [OsString])> {
    match EMBEDDING.get().and_then(|e| e.program.split_first()) {
        Some((program, first)) => Ok((program.clone(), first)),
        None => Ok((std::env::current_exe()?.into(), &[])),
    }
}

/// The folder of the data that ships, where the program around the command has one.
pub(crate) fn data() -> Option<&'static Path> {
    EMBEDDING.get().map(|e| e.data.as_path())
}
