//! What one stage alone has is sent by that stage to be everywhere, where a sum has others add their zeros.

use super::propagation::Walk;
use super::reshard::Reshard;
use super::spmd::CopyId;
use meshwright_ops::Id;
use meshwright_plan::{Collective, Monoid};

impl Walk<'_> {
    /// Notes which stage alone has what an op makes.
    pub(super) fn note_root(&mut self, id: Id, inputs: &[CopyId], out: CopyId) {
        let facts = self.facts;
        let copies = &self.state.copies;
        let operands = inputs.iter().map(|x| (*x, &copies[*x].placement.partial));
        let operands: Vec<_> = operands.filter(|(_, partial)| !partial.is_empty()).collect();
        let axes = |of| facts.loop_axes(of).to_vec();
        let made = (id, &copies[out].placement.partial, out);
        self.state.roots.made((facts.graph(), facts.mesh), &axes, made, &operands);
    }

    /// Whether one stage alone has a value, as its op makes it.
    pub(super) fn is_rooted(&self, id: Id) -> bool {
        let natural = self.state.natural[id].as_ref().filter(|p| !p.partial.is_empty());
        natural.is_some_and(|p| self.state.roots.of(self.state.have(self.facts, id, p)).is_some())
    }

    /// A step of a path: from the one member that has a value instead of a sum of all.
    pub(super) fn sent_by_root(&self, kind: Reshard, from: CopyId) -> Reshard {
        match (kind, self.state.roots.of(from)) {
            (Reshard::Collective(Collective::AllReduce { axes, monoid: Monoid::Sum }), Some(root))
                if self.state.copies[from].placement.partial.keys().eq(&axes) =>
            {
                Collective::Broadcast { axes, root }.into()
            }
            (kind, _) => kind,
        }
    }
}
