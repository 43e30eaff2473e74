//! What ends a collective.

use crate::Tag;
use meshwright_plan::{DType, Monoid};
use std::fmt;
use std::time::Duration;

/// Which collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Folds equal shapes.
    AllReduce,
    /// Joins pieces.
    AllGather,
    /// Folds, and keeps a piece.
    ReduceScatter,
    /// Sends a piece to each member.
    AllToAll,
    /// Sends ranges to some members.
    Permute,
    /// Copies from one member to all.
    Broadcast,
    /// Waits for all.
    Barrier,
}

impl Kind {
    /// Every collective.
    pub const ALL: [Kind; 7] = [
        Kind::AllReduce,
        Kind::AllGather,
        Kind::ReduceScatter,
        Kind::AllToAll,
        Kind::Permute,
        Kind::Broadcast,
        Kind::Barrier,
    ];

    /// As the Plan and `explain` name it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::AllReduce => "all_reduce",
            Kind::AllGather => "all_gather",
            Kind::ReduceScatter => "reduce_scatter",
            Kind::AllToAll => "all_to_all",
            Kind::Permute => "permute",
            Kind::Broadcast => "broadcast",
            Kind::Barrier => "barrier",
        }
    }
}

/// A call, as errors name it: `all_reduce #17 of `h1` at line 20`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallName {
    /// Which collective.
    pub kind: Kind,
    /// Its tag.
    pub tag: Tag,
}

impl fmt::Display for CallName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.name(), self.tag)
    }
}

/// A member that has not come to a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Its rank.
    pub rank: usize,
    /// The last collective that it started, if the transport knows.
    pub at: Option<CallName>,
    /// It was asked, and did not answer: its process is stopped, dead or cut off. Threads always answer.
    pub silent: bool,
}

/// Calls of two members that do not belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// What differs.
    pub what: &'static str,
    /// The two members, in ascending rank.
    pub sides: [Side; 2],
}

/// One side of a [`Mismatch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
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
    /// Members did not come in time.
    #[error(
        "rank {rank} waited {:.1} s in {call} for {}{}",
        waited.as_secs_f64(), list_missing(missing), in_turn(missing, stuck)
    )]
    Timeout {
        /// The rank that gave up first.
        rank: usize,
        /// What it waited in.
        call: CallName,
        /// How long.
        waited: Duration,
        /// Who had not come, in ascending rank; nobody where the transport cannot tell.
        missing: Vec<Missing>,
        /// Who holds all of them up, in ascending rank: the missing ones, or those that these wait for in turn. A
        /// transport that cannot tell gives the missing ones.
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
        /// What this device was in.
        call: Option<CallName>,
    },
    /// A member closed its transport without coming to this collective.
    #[error("rank {rank} has left without coming to {call}")]
    Left {
        /// The rank that left.
        rank: usize,
        /// The collective.
        call: CallName,
    },
    /// A member started the collective, and gave it up before all had come.
    #[error("rank {rank} gave up {call} before all had come")]
    Withdrawn {
        /// The rank that gave up.
        rank: usize,
        /// The collective.
        call: CallName,
    },
    /// The arguments of a call contradict each other; nothing was sent.
    #[error("rank {rank}: {call}: {problem}")]
    BadCall {
        /// The caller.
        rank: usize,
        /// The call.
        call: CallName,
        /// What is wrong.
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
        /// What should be the same.
        what: String,
        /// Those that differ from the most frequent contents, in ascending order.
        ranks: Vec<usize>,
        /// The lowest rank with the most frequent contents.
        like: usize,
    },
    /// The process was told to end (by a signal) while it waited for members that did not come.
    #[error("rank {rank} was told to end while it waited in {call} for {}", list_missing(missing))]
    Terminated {
        /// The rank that was told.
        rank: usize,
        /// What it waited in.
        call: CallName,
        /// Who had not come, in ascending rank.
        missing: Vec<Missing>,
    },
    /// The communication library refused or broke a call.
    #[error("rank {rank}: {reason}{}", during(call))]
    Library {
        /// The caller.
        rank: usize,
        /// What it was in.
        call: Option<CallName>,
        /// The library's words.
        reason: String,
    },
    /// A fault that a test asked for; see [`crate::Faulty`].
    #[error("rank {rank}: fault on purpose in {call}")]
    Injected {
        /// The faulty rank.
        rank: usize,
        /// The call in which it struck.
        call: CallName,
    },
}

impl CommError {
    /// Whether it only says that another device ended: such errors are not the cause.
    pub fn is_consequence(&self) -> bool {
        matches!(self, CommError::Aborted { .. } | CommError::Left { .. } | CommError::Withdrawn { .. })
    }
}

fn plural<T>(items: &[T]) -> &'static str {
    if items.len() == 1 { "" } else { "s" }
}

fn list(ranks: &[usize]) -> String {
    ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

fn list_missing(missing: &[Missing]) -> String {
    if missing.is_empty() {
        return "its end, although all members have come".into();
    }
    let one = |m: &Missing| match &m.at {
        _ if m.silent => format!("rank {}, which does not answer", m.rank),
        Some(call) => format!("rank {}, which was last in {call}", m.rank),
        None => format!("rank {}, which has not started any collective", m.rank),
    };
    missing.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn in_turn(missing: &[Missing], stuck: &[Missing]) -> String {
    let ranks = |all: &[Missing]| all.iter().map(|m| m.rank).collect::<Vec<_>>();
    match ranks(stuck) {
        held if held == ranks(missing) => String::new(),
        _ => format!("; these are held up by {}", list_missing(stuck)),
    }
}

fn during(call: &Option<CallName>) -> String {
    call.as_ref().map(|c| format!(", while this rank was in {c}")).unwrap_or_default()
}
