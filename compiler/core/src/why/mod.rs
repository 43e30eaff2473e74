//! Why a dim of a value is split as it is: the reasons that the partitioner kept, as a chain from the value to the rules, and
//! the collectives that follow. Nothing is decided again here.

mod collectives;
mod dim_decisions;
mod explanation;
mod find;
mod report;
mod text;

pub use report::{Caused, Fact, Link, PlaceOf, RuleReport, Why};
pub use text::text;

use crate::layout::Layout;
use crate::partition::Spmd;
use crate::rows::Rows;
use explanation::Teller;
use meshwright_diag::Diagnostic;

/// Answers `PATH.DIM` for a partitioned step, or `PATH` for each of its dims. PATH may lack its first elements where that
/// leaves no doubt; that of a layer call stands for the last value in it.
///
/// # Errors
/// Where no value has that path, several end so, or it has no such dim.
pub fn why(
    spmd: &Spmd,
    layout: &Layout,
    question: &str,
    place_of: &PlaceOf,
) -> Result<Vec<Why>, Box<Diagnostic>> {
    let rows = Rows::of(spmd);
    let paths = find::paths(spmd, &rows);
    let t = Teller { spmd, layout, place_of, rows, paths };
    Ok(t.find(question)?.into_iter().map(|(id, dim)| t.answer(id, dim)).collect())
}
