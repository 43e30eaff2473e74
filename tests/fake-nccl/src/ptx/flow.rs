//! Where the lanes of a warp are. Those that are furthest behind run, so that lanes that parted meet again at the first
//! instruction that both come to.

use super::machine::{LAUNCH_FAILED, Outcome, trouble};

/// Lanes at the same instruction.
#[derive(Clone, Copy, Debug)]
struct Group {
    at: usize,
    mask: u32,
    /// For others to come to the same instruction.
    waits: bool,
}

/// The group that runs, and the others.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) at: usize,
    pub(super) mask: u32,
    /// Lanes that have not ended.
    pub(super) lanes: u32,
    others: Vec<Group>,
    /// The first instruction ahead at which others are; 0 to look at once.
    pub(super) next: usize,
}

impl Flow {
    pub(super) fn new(mask: u32) -> Flow {
        Flow { at: 0, mask, lanes: mask, others: Vec::new(), next: usize::MAX }
    }

    /// Joins those that are where the running group came to, and goes on with the group that is furthest behind.
    pub(super) fn settle(&mut self) -> Outcome {
        if self.mask != 0 {
            self.others.push(Group { at: self.at, mask: self.mask, waits: false });
        }
        self.others.sort_unstable_by_key(|group| group.at);
        self.others.dedup_by(|later, earlier| {
            let same = later.at == earlier.at;
            if same {
                earlier.mask |= later.mask;
                earlier.waits = false;
            }
            same
        });
        let Some(chosen) = self.others.iter().position(|group| !group.waits) else {
            let lane = self.others.first().map_or(0, |group| group.mask.trailing_zeros() as usize);
            return trouble(LAUNCH_FAILED, lane, "lanes wait for others that never come");
        };
        let group = self.others.remove(chosen);
        (self.at, self.mask) = (group.at, group.mask);
        let ahead = self.others.iter().map(|other| other.at).filter(|at| *at > group.at);
        self.next = ahead.min().unwrap_or(usize::MAX);
        Ok(())
    }

    /// Some lanes go elsewhere.
    pub(super) fn branch(&mut self, taken: u32, to: usize) {
        let stay = self.mask & !taken;
        // Others may be between here and there.
        if to <= self.at && !self.others.is_empty() {
            self.next = 0;
        }
        if taken == 0 {
            self.at += 1;
        } else if stay == 0 {
            self.at = to;
        } else {
            self.others.push(Group { at: to, mask: taken, waits: false });
            self.mask = stay;
            self.at += 1;
            self.next = 0;
        }
    }

    /// Some lanes, not all, go elsewhere; the others stay at this instruction for now.
    pub(super) fn part(&mut self, taken: u32, to: usize) {
        if taken != 0 {
            self.others.push(Group { at: to, mask: taken, waits: false });
            self.mask &= !taken;
            self.next = 0;
        }
    }

    /// Lanes end; whether all have.
    pub(super) fn exit(&mut self, mask: u32) -> Outcome<bool> {
        self.lanes &= !mask;
        self.mask &= !mask;
        self.at += 1;
        if mask != 0 {
            // Nobody waits for them any more.
            self.others.iter_mut().for_each(|group| group.waits = false);
            self.next = 0;
        }
        if self.lanes == 0 {
            return Ok(true);
        }
        if self.mask == 0 {
            self.settle()?;
        }
        Ok(false)
    }

    /// Others run until they come here.
    pub(super) fn wait(&mut self) -> Outcome {
        self.others.push(Group { at: self.at, mask: self.mask, waits: true });
        self.mask = 0;
        self.settle()
    }
}
