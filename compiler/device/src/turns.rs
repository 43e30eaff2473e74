//! Order of the launches of a loop's body, and of the carries between iterations.

use meshwright_plan::BufId;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The buffers of a carry.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Carried {
    /// First value.
    pub start: BufId,
    /// Whether the lifetime of `start` ends there.
    pub ends: bool,
    /// Value that an iteration reads.
    pub current: BufId,
    /// Value that an iteration writes for the next one.
    pub next: BufId,
    /// Value after the loop.
    pub last: BufId,
    /// Whether nothing in the body reads the current value.
    pub unread: bool,
    /// Lag of the step that computes the next value.
    pub lag: usize,
}

/// An action of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Turn {
    /// A carry gets its value for an iteration.
    Carry {
        /// Index among the carries of the loop.
        carry: usize,
        /// True if the value is `next` of the previous iteration, false if it is `start`.
        made: bool,
    },
    /// A launch of the body runs.
    Run {
        /// Index in the body of the loop.
        launch: usize,
        /// Position along the dim of the loop.
        position: usize,
    },
    /// After a loop without iterations a carry has its initial value.
    Skip {
        /// Index among the carries of the loop.
        carry: usize,
    },
    /// A carry gets its value after the loop.
    End {
        /// Index among the carries of the loop.
        carry: usize,
        /// True if the value is `next` of the last iteration, false if it is `current`.
        made: bool,
    },
}

/// Actions of a loop over `positions` in order, from the last position to the first if `reverse`. `lags` has the lag of each
/// launch of the body: the number of turns by which it runs later than the launches with lag 0 of the same iteration.
pub fn turns(positions: Range<usize>, reverse: bool, carries: &[Carried], lags: &[usize]) -> Vec<Turn> {
    let size = positions.len();
    if size == 0 {
        return (0..carries.len()).map(|carry| Turn::Skip { carry }).collect();
    }
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
