//! Which records can be decoded: all are tried, where damaged ones are to be left out.

use super::column::{Column, Scratch};
use meshwright_diag::{Diagnostic, codes};
use rayon::prelude::*;

/// Records that are looked at together.
const CHUNK: usize = 256;

/// The records that all columns have whole, in order, and what is wrong with the others. Several threads decode each record
/// once, so that it is the same for all processes and stays so through the run.
///
/// # Errors
///
/// What is not a damage: sizes, dtypes and values that an input cannot have.
pub(super) fn undamaged(
    columns: &[Column],
    records: usize,
) -> Result<(Vec<u32>, Vec<String>), Box<Diagnostic>> {
    let encoded: Vec<&Column> = columns.iter().filter(|c| c.is_encoded()).collect();
    let chunks = records.div_ceil(CHUNK);
    let look = |scratch: &mut Scratch, chunk: usize| {
        let mut bad = Vec::new();
        for record in chunk * CHUNK..records.min((chunk + 1) * CHUNK) {
            let tried = encoded.iter().try_for_each(|c| c.decode(record, scratch));
            bad.extend(tried.err().map(|d| (record, d)));
        }
        bad
    };
    let all: Vec<_> = (0..chunks).into_par_iter().map_init(Scratch::default, look).collect();
    let mut bad = Vec::new();
    for (record, d) in all.into_iter().flatten() {
        if d.code.id != codes::E0502.id {
            return Err(d);
        }
        bad.push((record, d.message.clone()));
    }
    let mut left_out = bad.iter().map(|b| b.0).peekable();
    let kept = (0..records).filter(|r| left_out.next_if_eq(r).is_none()).map(|r| r as u32).collect();
    Ok((kept, bad.into_iter().map(|b| b.1).collect()))
}
