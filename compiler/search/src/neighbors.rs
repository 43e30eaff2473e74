//! Candidates that differ from one in a single choice.
//!
//! Bounds order a search, and where they are far from the estimates, good candidates come late. From each good candidate that is
//! known, a few steps of one choice each lead to better ones.

use crate::space::{Space, Stored, Trades};
use crate::text::Candidate;
use meshwright_sorted::SortedSet;

/// All candidates of a space that differ from one in the set of an axis, in a prime factor that another axis or the stages have,
/// in what is stored over an axis, in what is recomputed and the number of parts, or in what is traded; more stages take more
/// parts. None has a pipeline chosen.
pub fn neighbors(space: &Space, of: &Candidate) -> SortedSet<Candidate> {
    let c = Candidate { pipe: None, ..of.clone() };
    let mut all = SortedSet::new();
    let mut add = |next: Candidate| all.extend(of_space(space, next));
    // What is not computed again takes memory, which more parts take less of.
    for parts in 0..space.parts.len() {
        for recompute in 0..space.recompute.len() {
            add(Candidate { parts, recompute, ..c.clone() });
        }
    }
    for (keep, reduce) in [(!c.trades.keep, c.trades.reduce), (c.trades.keep, !c.trades.reduce)] {
        add(Candidate { trades: Trades { keep, reduce }, ..c.clone() });
    }
    for at in 0..c.mesh.len() {
        for level in [Stored::Whole, Stored::Moments, Stored::Grads, Stored::Params] {
            let mut next = c.clone();
            next.stored[at] = level;
            add(next);
        }
        for set in 0..space.sets.len() {
            let mut next = c.clone();
            next.sets[at] = set;
            add(next);
        }
    }
    for next in other_meshes(space, &c) {
        add(next);
    }
    all.remove(&c);
    all
}

/// With a prime factor of an axis in another place: in another axis, in a new one with any set, or as stages; or one of the
/// stages in an axis.
fn other_meshes(space: &Space, c: &Candidate) -> Vec<Candidate> {
    let mut all = vec![];
    let mut given = |less: Candidate, p: usize| {
        for to in 0..less.mesh.len() {
            let mut next = less.clone();
            next.mesh[to] *= p;
            all.push(next);
        }
        for set in 0..space.sets.len() {
            let mut next = less.clone();
            next.mesh.push(p);
            next.sets.push(set);
            next.stored.push(Stored::Whole);
            all.push(next);
        }
        // A pipeline of as much more stages is as idle with as many more parts.
        let more = space.parts.partition_point(|n| *n < space.parts[less.parts] * p);
        all.push(Candidate { parts: more.min(space.parts.len() - 1), ..less.clone() });
        all.push(less);
    };
    for p in primes(space.stages(&c.mesh)) {
        let fewer = space.parts.partition_point(|n| *n * p < space.parts[c.parts]);
        given(Candidate { parts: fewer, ..c.clone() }, p);
        given(c.clone(), p);
    }
    for from in 0..c.mesh.len() {
        for p in primes(c.mesh[from]) {
            let mut less = c.clone();
            less.mesh[from] /= p;
            if less.mesh[from] == 1 {
                less.mesh.remove(from);
                less.sets.remove(from);
                less.stored.remove(from);
            }
            given(less, p);
        }
    }
    all
}

/// The distinct prime factors of a number.
fn primes(n: usize) -> Vec<usize> {
    (2..=n).filter(|p| n.is_multiple_of(*p) && (2..*p).all(|d| !p.is_multiple_of(d))).collect()
}

/// The candidate of the space that one stands for: axes in the order of their sets unless all orders are wanted, no more parts
/// than there are examples, and what is stored and traded as its sets and parts allow. None where there is none.
fn of_space(space: &Space, c: Candidate) -> Option<Candidate> {
    let mut axes: Vec<(usize, usize, Stored)> =
        (0..c.mesh.len()).map(|i| (c.sets[i], c.mesh[i], c.stored[i])).collect();
    if !space.choices.orders {
        let kept = space.choices.kept.axes.len().min(axes.len());
        axes[kept..].sort_by_key(|(set, ..)| *set);
    }
    let mesh: Vec<usize> = axes.iter().map(|a| a.1).collect();
    let sets: Vec<usize> = axes.iter().map(|a| a.0).collect();
    let allowed = |at: usize| space.next(&mesh, &sets[..at]).any(|set| set == sets[at]);
    if !space.meshes.contains(&mesh) || !(0..sets.len()).all(allowed) {
        return None;
    }
    let range = space.parts_of(&mesh, &sets);
    let parts = c.parts.clamp(range.start, range.end.checked_sub(1)?.max(range.start));
    let ways = space.stored(&sets, space.parts[parts]);
    let lower = |(set, _, stored): &(usize, usize, Stored)| match stored {
        _ if !space.sets[*set].sums => Stored::Whole,
        Stored::Grads if space.parts[parts] == 1 => Stored::Moments,
        other => *other,
    };
    let stored: Vec<Stored> = axes.iter().map(lower).collect();
    let fits = range.contains(&parts) && ways.contains(&stored);
    let trades = |t: &Trades| (c.trades.keep || !t.keep) && (c.trades.reduce || !t.reduce);
    let trades = space.trades(&stored, parts).filter(trades).last()?;
    fits.then_some(Candidate { mesh, sets, stored, parts, recompute: c.recompute, trades, pipe: None })
}
