//! Which rank blocks all others, where ranks wait for each other.

use crate::Missing;
use meshwright_sorted::SortedSet;

/// Of the ranks that somebody waits for, and those that these wait for in turn, the ones that wait for nobody: they block all
/// others. Where all wait in a circle, those whose last call has the lowest number. `waits_for` gives the ranks that a rank
/// waits for, `describe` what is known of a rank.
pub fn blocking(
    missing: Vec<usize>,
    waits_for: impl Fn(usize) -> Vec<usize>,
    describe: impl Fn(usize) -> Missing,
) -> Vec<Missing> {
    let (mut ahead, mut seen, mut stuck) = (missing, SortedSet::new(), SortedSet::new());
    while let Some(rank) = ahead.pop() {
        if !seen.insert(rank) {
            continue;
        }
        let next = waits_for(rank);
        if next.is_empty() {
            stuck.insert(rank);
        }
        ahead.extend(next);
    }
    if !stuck.is_empty() {
        return stuck.into_iter().map(describe).collect();
    }
    let circle: Vec<Missing> = seen.into_iter().map(describe).collect();
    let number = |m: &Missing| m.last_call.as_ref().map(|call| call.tag.sequence);
    let least = circle.iter().map(number).min();
    circle.into_iter().filter(|m| Some(number(m)) == least).collect()
}
