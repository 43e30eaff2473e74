//! Steps that are one kernel, whichever pass found them. Later passes, the verifier and the lowering read these groups, and know
//! no kind of kernel.

use crate::kernels::Kernel;
use crate::lowering::local::Local;
use meshwright_plan::BufId;
use meshwright_sorted::{SortedMap, SortedSet};

/// Steps that are one kernel.
#[derive(Clone, Debug)]
pub struct FusedGroup {
    /// Steps of the group, in the order of the Plan.
    pub steps: Vec<usize>,
    /// Steps between them that run after the group.
    pub after: Vec<usize>,
    /// Values without other consumers.
    pub inner: SortedSet<BufId>,
    /// The kernel.
    pub call: FusedCall,
}

/// The kernel of a group, with its operands and its results.
#[derive(Clone, Debug)]
pub struct FusedCall {
    /// The kernel.
    pub kernel: Kernel,
    /// Operands.
    pub reads: Vec<Local>,
    /// Results.
    pub writes: Vec<Local>,
}

impl FusedGroup {
    /// The last step, in whose position the group runs.
    pub fn last(&self) -> usize {
        self.steps.last().copied().unwrap_or(0)
    }
}

/// The fused groups of a Plan. No step is in two of them.
#[derive(Clone, Debug, Default)]
pub struct FusedGroups {
    /// Groups by their last step.
    pub at: SortedMap<usize, FusedGroup>,
    /// Last step of the group, by each of its steps.
    pub members: SortedMap<usize, usize>,
    /// Last step of the group after which a step runs, by that step.
    pub waiting: SortedMap<usize, usize>,
    /// Values between steps of a group, which are never stored.
    pub never: SortedSet<BufId>,
}

impl Extend<FusedGroup> for FusedGroups {
    fn extend<T: IntoIterator<Item = FusedGroup>>(&mut self, groups: T) {
        for group in groups {
            self.members.extend(group.steps.iter().map(|step| (*step, group.last())));
            self.waiting.extend(group.after.iter().map(|step| (*step, group.last())));
            self.never.extend(&group.inner);
            self.at.insert(group.last(), group);
        }
    }
}

impl FromIterator<FusedGroup> for FusedGroups {
    fn from_iter<T: IntoIterator<Item = FusedGroup>>(groups: T) -> FusedGroups {
        let mut all = FusedGroups::default();
        all.extend(groups);
        all
    }
}
