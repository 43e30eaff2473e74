//! Which records can be decoded: all are tried, where damaged ones are to be left out.

use super::column::{Column, Runs, Scratch};
use meshwright_diag::{Diagnostic, codes};
use std::sync::atomic::{AtomicUsize, Ordering};

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
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(chunks).max(1);
    let next = AtomicUsize::new(0);
    let work = || {
        let (mut done, mut scratch) = (Vec::new(), Scratch::default());
        loop {
            let chunk = next.fetch_add(1, Ordering::Relaxed);
            if chunk >= chunks {
                return done;
            }
            let mut bad = Vec::new();
            for record in chunk * CHUNK..records.min((chunk + 1) * CHUNK) {
                let tried = encoded.iter().try_for_each(|c| {
                    let mut out = vec![0; c.width()];
                    c.read(record, &Runs::whole(out.len()), &mut out, &mut scratch)
                });
                bad.extend(tried.err().map(|d| (record, d)));
            }
            done.push((chunk, bad));
        }
    };
    let mut all = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut all = work();
        for thread in others {
            match thread.join() {
                Ok(done) => all.extend(done),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    });
    all.sort_by_key(|(chunk, _)| *chunk);
    let mut bad = Vec::new();
    for (record, d) in all.into_iter().flat_map(|(_, bad)| bad) {
        if d.code.id != codes::E0502.id {
            return Err(d);
        }
        bad.push((record, d.message.clone()));
    }
    let mut left_out = bad.iter().map(|b| b.0).peekable();
    let kept = (0..records).filter(|r| left_out.next_if_eq(r).is_none()).map(|r| r as u32).collect();
    Ok((kept, bad.into_iter().map(|b| b.1).collect()))
}
