//! **Invariant:** what users give, damaged in any way, is answered with diagnostics: no panic, no hang. Targets are in
//! `targets/`; each takes valid texts or files and edits them at random for some seconds, or minutes with `LONG=1`. A failure
//! prints the seed that repeats it (`BOLERO_RANDOM_SEED=…`). With a nightly compiler, `cargo bolero test NAME` is guided by
//! coverage.

use bolero::TypeGenerator;
use std::time::Duration;

/// One change of a text or a file; places are shares of its length.
#[derive(Clone, Debug, TypeGenerator)]
pub enum Edit {
    /// Removes a run.
    Remove(u16, u8),
    /// Writes a run again, some times.
    Repeat(u16, u8, u8),
    /// Inserts one of the target's words.
    Insert(u16, u8),
    /// Puts one of the target's words in place of a run.
    Replace(u16, u8, u8),
    /// Exchanges two runs.
    Exchange(u16, u16, u8),
    /// Puts a run of another valid input in place of one.
    Splice(u16, u8, u16, u16),
    /// Sets a byte.
    Byte(u16, u8),
}

/// How long a target runs.
pub fn time() -> Duration {
    Duration::from_secs(if std::env::var_os("LONG").is_some_and(|v| v == "1") { 300 } else { 4 })
}

/// A place in `n` elements.
fn place(share: u16, n: usize) -> usize {
    usize::from(share) * (n + 1) / (usize::from(u16::MAX) + 1)
}

/// `input` with all edits made to it; `words` and `others` are what is inserted.
pub fn edited(input: &[u8], edits: &[Edit], words: &[&[u8]], others: &[Vec<u8>]) -> Vec<u8> {
    /// No input grows beyond what is read anyway.
    const MOST: usize = 1 << 16;
    let mut out = input.to_vec();
    for edit in edits.iter().take(16) {
        let n = out.len();
        let run = |at: u16, length: u8| {
            let at = place(at, n);
            at..(at + usize::from(length)).min(n)
        };
        let word = |k: u8| words[usize::from(k) % words.len()].to_vec();
        match *edit {
            Edit::Remove(at, length) => drop(out.drain(run(at, length))),
            Edit::Repeat(at, length, times) => {
                let run = run(at, length);
                let copies = out[run.clone()].repeat(usize::from(times));
                out.splice(run.end..run.end, copies);
            }
            Edit::Insert(at, k) => drop(out.splice(run(at, 0), word(k))),
            Edit::Replace(at, length, k) => drop(out.splice(run(at, length), word(k))),
            Edit::Exchange(a, b, length) => {
                let (a, b) = (run(a, length), run(b, length));
                let (from, to) = if a.start <= b.start { (a, b) } else { (b, a) };
                if from.end <= to.start {
                    let (first, second) = (out[from.clone()].to_vec(), out[to.clone()].to_vec());
                    out.splice(to, first);
                    out.splice(from, second);
                }
            }
            Edit::Splice(at, length, which, from) => {
                if let Some(other) = others.get(place(which, others.len().saturating_sub(1))) {
                    let start = place(from, other.len());
                    let end = (start + usize::from(length)).min(other.len());
                    out.splice(run(at, length), other[start..end].to_vec());
                }
            }
            Edit::Byte(at, byte) => {
                let at = place(at, n);
                if let Some(b) = out.get_mut(at) {
                    *b = byte;
                }
            }
        }
        out.truncate(MOST);
    }
    out
}
