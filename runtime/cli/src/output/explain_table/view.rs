//! What is chosen of a report.

use meshwright_core::resolve::matches;
use meshwright_plan::Phase;

/// What is shown of a report; by default the totals, and the values that a collective moves.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct View {
    /// Every value, and when each collective runs.
    pub(crate) all: bool,
    /// Parts of the step; all of them where empty.
    pub(crate) phases: Vec<Phase>,
    /// Globs of paths; if there are any, only values that one of them matches.
    pub(crate) globs: Vec<String>,
    /// Nothing but rows with collectives.
    pub(crate) only_collectives: bool,
}

impl View {
    /// Whether each value has a row, and nothing is folded.
    pub(super) fn detailed(&self) -> bool {
        self.all || !self.globs.is_empty()
    }

    /// Whether a value is shown.
    pub(super) fn has(&self, path: &str) -> bool {
        self.globs.is_empty() || self.globs.iter().any(|g| matches(g, path) || matches(g, stem(path)))
    }
}

/// The path that `d(b1.up.w)`, `new b1.up.w` or `b1.up.w/m` is made of.
pub(super) fn stem(path: &str) -> &str {
    let start = path.rfind(['(', ' ']).map_or(0, |i| i + 1);
    let path = &path[start..];
    &path[..path.find([')', '/']).unwrap_or(path.len())]
}
