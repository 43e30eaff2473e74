//! What the server answers, a file for each request.

pub(crate) mod actions;
pub(crate) mod completion;
pub(crate) mod definition;
pub(crate) mod diagnostics;
pub(crate) mod folding;
pub(crate) mod format;
pub(crate) mod hover;
pub(crate) mod inlay;
pub(crate) mod lens;
pub(crate) mod outline;
mod pages;
mod place;
mod placements;
pub(crate) mod rename;
pub(crate) mod semantic;
mod values;
