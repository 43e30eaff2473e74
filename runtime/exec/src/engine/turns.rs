//! The order in which the pieces of a loop's body run, and what goes from one iteration to the next in between.

use meshwright_plan::BufId;

/// The buffers of what goes from one iteration to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carried {
    /// What it starts as.
    pub(crate) start: BufId,
    /// Whether that ends there.
    pub(crate) ends: bool,
    pub(crate) current: BufId,
    pub(crate) next: BufId,
    /// What it is in the end.
    pub(crate) last: BufId,
    /// Whether nothing in the body reads the current.
    pub(crate) unread: bool,
    /// The lag of the step that makes what is next.
    pub(crate) lag: usize,
}

/// What is done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// A carry becomes current: what it starts as, or what the iteration before has made.
    Carry { carry: usize, made: bool },
    /// A piece of the body runs for a position of the dim.
    Run { piece: usize, position: usize },
    /// A carry is what it is in the end: what the last iteration has made, or its current.
    End { carry: usize, made: bool },
}

/// `lags` says for each piece of the body in how many turns after the first ones it runs, `size` how many positions the dim has.
pub(super) fn turns(size: usize, reverse: bool, carries: &[Carried], lags: &[usize]) -> Vec<Turn> {
    let iteration = |turn: usize, lag: usize| turn.checked_sub(lag).filter(|k| *k < size);
    let turns = size + lags.iter().copied().max().unwrap_or(0);
    let mut all = vec![];
    for turn in 0..turns {
        for (carry, c) in carries.iter().enumerate() {
            match turn {
                0 => all.push(Turn::Carry { carry, made: false }),
                // What nobody reads in the body stays until another takes its place.
                _ if c.unread && iteration(turn, c.lag).is_none() => {}
                _ if iteration(turn - 1, c.lag).is_none() => {}
                _ => all.push(Turn::Carry { carry, made: true }),
            }
        }
        for (piece, lag) in lags.iter().enumerate() {
            let Some(k) = iteration(turn, *lag) else { continue };
            all.push(Turn::Run { piece, position: if reverse { size - 1 - k } else { k } });
        }
    }
    for (carry, c) in carries.iter().enumerate() {
        // What is made in an earlier turn than the last one has become the current since.
        let made = c.unread || turns.checked_sub(1).is_some_and(|last| iteration(last, c.lag).is_some());
        all.push(Turn::End { carry, made });
    }
    all
}
