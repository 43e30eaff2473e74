//! The operations that still gather members, in order for each group.

use super::op::GroupOp;
use super::state::{Ending, WorldState, lock};
use meshwright_sorted::SortedMap;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// The queues of all groups.
pub(super) struct Queues {
    pub(super) shared: Arc<WorldState>,
    of_groups: Mutex<SortedMap<Arc<[usize]>, Arc<OpQueue>>>,
}

/// The operations of one group that not all members have entered.
pub(super) struct OpQueue {
    members: Arc<[usize]>,
    gathering: Mutex<Gathering>,
}

struct Gathering {
    /// Number of the first of `ops`.
    first: u64,
    ops: VecDeque<Arc<GroupOp>>,
}

impl Queues {
    pub(super) fn new(size: usize) -> Self {
        Queues { shared: Arc::new(WorldState::new(size)), of_groups: Mutex::default() }
    }

    /// The queue of a group, made by whoever asks first.
    pub(super) fn of_group(&self, members: &Arc<[usize]>) -> Arc<OpQueue> {
        let new = || {
            let gathering = Mutex::new(Gathering { first: 0, ops: VecDeque::new() });
            Arc::new(OpQueue { members: members.clone(), gathering })
        };
        lock(&self.of_groups).entry(members.clone()).or_insert_with(new).clone()
    }

    /// Notes that a device ended, and ends the operations that cannot do without it.
    pub(super) fn end(&self, rank: usize, ending: Ending) {
        self.shared.end(rank, ending);
        let queues: Vec<Arc<OpQueue>> = lock(&self.of_groups).values().cloned().collect();
        for queue in queues {
            let ops: Vec<Arc<GroupOp>> = lock(&queue.gathering).ops.iter().cloned().collect();
            ops.iter().for_each(|op| op.look_for_endings());
        }
    }
}

impl OpQueue {
    /// The operation of that number. Every member asks for the numbers in order, so it is among those that gather, or it
    /// is the next one.
    pub(super) fn op(&self, number: u64, shared: &Arc<WorldState>) -> Arc<GroupOp> {
        let mut gathering = lock(&self.gathering);
        let index = (number - gathering.first) as usize;
        if index == gathering.ops.len() {
            gathering.ops.push_back(Arc::new(GroupOp::new(self.members.clone(), shared.clone())));
        }
        gathering.ops[index].clone()
    }

    /// Forgets the operations at the front that all members have come to.
    pub(super) fn retire(&self) {
        let mut gathering = lock(&self.gathering);
        while gathering.ops.front().is_some_and(|op| op.all_came()) {
            gathering.ops.pop_front();
            gathering.first += 1;
        }
    }
}
