//! Errors that end a collective.

use crate::signature::Signature;
use crate::wire::Malformed;
use crate::{CallName, Tag};
use meshwright_plan::{DType, Monoid};
use std::fmt;
use std::time::Duration;

/// A member that has not entered a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Its rank.
    pub rank: usize,
    /// The last collective that it started, if the transport knows.
    pub last_call: Option<CallName>,
    /// It was asked, and did not answer: its process is stopped, dead or cut off. Threads always answer.
    pub unresponsive: bool,
    /// The number that the launcher has given to its process, where processes have several devices: then it is not the rank.
    pub process: Option<usize>,
}

/// Calls of two members that do not belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The difference.
    pub what: &'static str,
    /// The two members, in ascending rank.
    pub sides: [MismatchSide; 2],
}

/// One side of a [`Mismatch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MismatchSide {
    /// The member.
    pub rank: usize,
    /// Its call.
    pub call: CallName,
    /// Dtypes and counts of its call, in words.
    pub details: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b] = &self.sides;
        let Mismatch { what, .. } = self;
        write!(f, "rank {} and rank {} disagree on the {what}: ", a.rank, b.rank)?;
        write!(f, "{} ({}) against {} ({})", a.call, a.details, b.call, b.details)
    }
}

/// Why a collective ended without a result. The contents of its output buffers are then unspecified, and the group
/// cannot be used further: the device is expected to end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// Members did not enter in time.
    #[error(
        "rank {rank} timed out after {:.1} s in {call}; {}{}",
        waited.as_secs_f64(), waiting_for(missing), blocked_by(missing, stuck)
    )]
    Timeout {
        /// The rank that gave up first.
        rank: usize,
        /// The call in which it waited.
        call: CallName,
        /// The time.
        waited: Duration,
        /// Who had not entered, in ascending rank; nobody where the transport cannot tell.
        missing: Vec<Missing>,
        /// The ranks that block all of them, in ascending rank: the missing ones, or those for which these wait in
        /// turn. A transport that does not know them gives the missing ones.
        stuck: Vec<Missing>,
    },
    /// Two members made calls that do not belong together.
    #[error("{0}")]
    Mismatch(Box<Mismatch>),
    /// A device ended by an error or a panic, and everything ends with it.
    #[error("rank {rank} ended: {reason}{}", during(call))]
    Aborted {
        /// The rank that ended.
        rank: usize,
        /// Why, in its own words.
        reason: String,
        /// This device's call.
        call: Option<CallName>,
    },
    /// A member closed its transport without entering this collective.
    #[error("rank {rank} left without entering {call}")]
    Left {
        /// The rank that left.
        rank: usize,
        /// The collective.
        call: CallName,
    },
    /// A member started the collective, and cancelled it before all had entered.
    #[error("rank {rank} cancelled {call} before all ranks had entered it")]
    Cancelled {
        /// The rank that cancelled it.
        rank: usize,
        /// The collective.
        call: CallName,
    },
    /// The arguments of a call contradict each other; nothing was sent.
    #[error("rank {rank}: {call}: {problem}")]
    InvalidCall {
        /// The caller.
        rank: usize,
        /// The call.
        call: CallName,
        /// The problem.
        problem: String,
    },
    /// No such fold on elements of that type.
    #[error("{call}: no {monoid} of {dtype}")]
    NoFold {
        /// The call.
        call: CallName,
        /// The fold.
        monoid: Monoid,
        /// The dtype.
        dtype: DType,
    },
    /// Ranks that should hold the same bytes do not.
    #[error("the {what} differs on rank{} {} from the one on rank {like}", plural(ranks), list(ranks))]
    Disagree {
        /// The value that should be the same.
        what: String,
        /// Ranks that differ from the most frequent contents, in ascending order.
        ranks: Vec<usize>,
        /// The lowest rank with the most frequent contents.
        like: usize,
    },
    /// The process was asked to terminate (by a signal) while it waited for members that did not enter.
    #[error("rank {rank} was asked to terminate in {call}; {}", waiting_for(missing))]
    Terminated {
        /// The rank that was asked.
        rank: usize,
        /// The call in which it waited.
        call: CallName,
        /// Who had not entered, in ascending rank.
        missing: Vec<Missing>,
    },
    /// The communication library refused or broke a call.
    #[error("rank {rank}: {reason}{}", during(call))]
    Library {
        /// The caller.
        rank: usize,
        /// Its call.
        call: Option<CallName>,
        /// The library's words.
        reason: String,
    },
    /// A message of another rank that cannot be read.
    #[error("rank {rank}: a message of rank {from} in {call}: {problem}")]
    Malformed {
        /// The receiver.
        rank: usize,
        /// The sender.
        from: usize,
        /// The call in which it was received.
        call: CallName,
        /// The fault.
        problem: Malformed,
    },
    /// A fault that a test asked for; see [`crate::FaultInjector`].
    #[error("rank {rank}: fault on purpose in {call}")]
    Injected {
        /// The injector rank.
        rank: usize,
        /// The call in which it struck.
        call: CallName,
    },
}

impl CommError {
    /// The mismatch between the calls of two members, at positions among `members`, if there is one.
    pub fn mismatch(
        members: &[usize],
        a: (usize, &Tag, &Signature),
        b: (usize, &Tag, &Signature),
    ) -> Option<CommError> {
        let what = Signature::conflict(a, b)?;
        let side = |(position, tag, signature): (usize, &Tag, &Signature)| MismatchSide {
            rank: members[position],
            call: signature.name(tag),
            details: signature.describe(),
        };
        let mut sides = [side(a), side(b)];
        sides.sort_by_key(|side| side.rank);
        Some(CommError::Mismatch(Box::new(Mismatch { what, sides })))
    }

    /// The same error in the view of another call: a rank that was not the cause gets the cause.
    pub(crate) fn seen_from(&self, call: &CallName) -> CommError {
        match self {
            CommError::Aborted { rank, reason, .. } => {
                CommError::Aborted { rank: *rank, reason: reason.clone(), call: Some(call.clone()) }
            }
            other => other.clone(),
        }
    }

    /// Whether it is a consequence of another device's error, not the cause.
    pub fn is_consequence(&self) -> bool {
        matches!(self, CommError::Aborted { .. } | CommError::Left { .. } | CommError::Cancelled { .. })
    }
}

fn plural<T>(items: &[T]) -> &'static str {
    if items.len() == 1 { "" } else { "s" }
}

fn list(ranks: &[usize]) -> String {
    ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

fn waiting_for(missing: &[Missing]) -> String {
    match missing {
        [] => "all members have entered it, and it does not end".into(),
        _ => format!("waiting for {}", described(missing)),
    }
}

fn described(ranks: &[Missing]) -> String {
    let one = |m: &Missing| {
        let who = match m.process {
            Some(process) => format!("rank {} of process {process}", m.rank),
            None => format!("rank {}", m.rank),
        };
        match &m.last_call {
            _ if m.unresponsive => format!("{who} (unresponsive)"),
            Some(call) => format!("{who} (last call: {call})"),
            None => format!("{who} (no call yet)"),
        }
    };
    ranks.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn blocked_by(missing: &[Missing], stuck: &[Missing]) -> String {
    let ranks = |all: &[Missing]| all.iter().map(|m| m.rank).collect::<Vec<_>>();
    match (ranks(stuck), missing) {
        (blocking, _) if blocking == ranks(missing) => String::new(),
        (_, [_]) => format!(", itself blocked by {}", described(stuck)),
        _ => format!(", themselves blocked by {}", described(stuck)),
    }
}

fn during(call: &Option<CallName>) -> String {
    call.as_ref().map(|c| format!(", while this rank was in {c}")).unwrap_or_default()
}
