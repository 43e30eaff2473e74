//! The dims of a model by name, for the rules of a layout.

use crate::program::Program;
use meshwright_diag::MAX_REPORTED;
use meshwright_plan::Dim;
use meshwright_sorted::SortedMap;

/// The dims of a program by name.
pub(super) struct DimIndex<'a> {
    pub(super) program: &'a Program,
    by_name: SortedMap<&'a str, Dim>,
}

impl<'a> DimIndex<'a> {
    pub(super) fn new(program: &'a Program) -> Self {
        DimIndex { program, by_name: program.graph.dims.iter().map(|(d, name)| (name, d)).collect() }
    }

    pub(super) fn find(&self, name: &str) -> Option<Dim> {
        self.by_name.get(name).copied()
    }
}

/// `a`, `b`, `c`: of very many names the first, and how many more there are.
pub(super) fn first_of<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut names = names.into_iter();
    let mut first: Vec<String> = names.by_ref().take(MAX_REPORTED).map(|n| format!("`{n}`")).collect();
    let more = names.count();
    if more > 0 {
        first.push(format!("and {more} more"));
    }
    first.join(", ")
}
