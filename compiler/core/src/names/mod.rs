//! The declaration that each name of a text means: what an editor goes to, lists and renames.
//!
//! It follows the rules by which the resolver finds names, but reads texts as they are written: each layer once, whether it is
//! called or not, and texts with errors, too. A name that nothing declares is left out.

mod body;
mod collector;
mod declarations;
mod layout;
mod paths;
mod symbols;

pub use symbols::{Names, PathElement, Symbol, SymbolKind};

use meshwright_diag::Sources;
use meshwright_syntax::ast::{LayoutFile, ModelFile};

impl Names {
    /// Those of a model, of the files that it uses, and of a layout for it. `files` has the used ones first.
    pub fn of(files: &[&ModelFile], layout: Option<&LayoutFile>, sources: &Sources) -> Names {
        let mut all = declarations::collect(files, sources);
        if let Some(layout) = layout {
            all.layout(layout);
        }
        let mut names = all.names;
        names.uses.sort_unstable();
        names.uses.dedup();
        names
    }
}
