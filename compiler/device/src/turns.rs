//! Order of the launches of a loop's body, and of the carries between iterations.

use meshwright_plan::BufId;
use std::ops::Range;

/// The buffers of what goes from one iteration to the next.
#[derive(Clone, Copy, Debug)]
pub struct Carried {
    /// First value.
    pub start: BufId,
    /// Whether the lifetime of `start` ends there.
    pub ends: bool,
    pub current: BufId,
    pub next: BufId,
    /// Value after the loop.
    pub last: BufId,
    /// Whether nothing in the body reads the current.
    pub unread: bool,
    /// The lag of the step that makes what is next.
    pub lag: usize,
}

/// An action of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// A carry becomes current: what it starts as, or what the iteration before has made.
    Carry { carry: usize, made: bool },
    /// A launch of the body, by its place there, runs for a position of the dim.
    Run { launch: usize, position: usize },
    /// A carry is what it is in the end: what the last iteration has made, or its current.
    End { carry: usize, made: bool },
}

/// `lags` says for each launch of the body in how many turns after the first ones it runs.
pub fn turns(positions: Range<usize>, reverse: bool, carries: &[Carried], lags: &[usize]) -> Vec<Turn> {
    let size = positions.len();
    let iteration = |turn: usize, lag: usize| turn.checked_sub(lag).filter(|k| *k < size);
    let turns = size + lags.iter().copied().max().unwrap_or(0);
    let mut all = vec![];
    for turn in 0..turns {
        for (carry, c) in carries.iter().enumerate() {
            match turn {
                0 => all.push(Turn::Carry { carry, made: false }),
                // A carry without consumers in the body is kept until the next one replaces it.
                _ if c.unread && iteration(turn, c.lag).is_none() => {}
                _ if iteration(turn - 1, c.lag).is_none() => {}
                _ => all.push(Turn::Carry { carry, made: true }),
            }
        }
        for (launch, lag) in lags.iter().enumerate() {
            let Some(k) = iteration(turn, *lag) else { continue };
            let position = positions.start + if reverse { size - 1 - k } else { k };
            all.push(Turn::Run { launch, position });
        }
    }
    for (carry, c) in carries.iter().enumerate() {
        // A value from an earlier turn than the last one is the current one by now.
        let made = c.unread || turns.checked_sub(1).is_some_and(|last| iteration(last, c.lag).is_some());
        all.push(Turn::End { carry, made });
    }
    all
}
