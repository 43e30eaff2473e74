//! Text to trees: the parsers of model files and layout files, and the formatter of both.
//!
//! **Invariant:** bad input is answered with diagnostics, several independent ones per file, in time linear in
//! its size; it never panics, never recurses deeper than [`MAX_DEPTH`] and never reads more than [`MAX_BYTES`].

pub mod ast;
mod division;
mod format;
mod layout;
mod model;
mod mtf;
mod report;
mod scan;

pub use format::{WIDTH, format_layout, format_model};
pub use layout::{layout_keywords, parse_layout, read_layout};
pub use model::{keywords, parse_model, read_model};
pub use mtf::{parse_mesh, parse_mtf_layout};
pub use scan::{Comment, Language, Token, TokenKind, Tokens, tokens};

/// The deepest tree the parser builds: brackets, calls, signs and chains of operators counted together.
pub const MAX_DEPTH: usize = 512;
/// The most brackets, braces and parentheses open at once.
pub const MAX_NESTING: usize = 128;
/// The largest file, in bytes.
pub const MAX_BYTES: usize = 1 << 20;
/// The most errors reported for one file.
pub const MAX_ERRORS: usize = meshwright_diag::MAX_REPORTED;
