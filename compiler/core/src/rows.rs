//! Which values of a partitioned step a user would look for, and at which of them a collective stands. Joined by number: a
//! path is only what is printed.

use crate::partition::{Instr, Spmd};
use meshwright_ops::{Class, Graph, Id, Kind};
use meshwright_plan::Phase;
use meshwright_sorted::{SortedMap, SortedSet};
use std::sync::Arc;

/// The values that are shown.
pub(crate) struct Rows {
    /// Their paths.
    shown: SortedMap<Id, Arc<str>>,
    /// Which of the values of one path is shown.
    bearer: SortedMap<(Arc<str>, Phase), Id>,
}

impl Rows {
    /// Of the values that one path was given to (a `let` is many ops), the last bears it; of the backward pass, finished
    /// gradients; of an update, what the step keeps.
    pub(crate) fn of(spmd: &Spmd) -> Rows {
        let g = &spmd.step.graph;
        let parts = parts_of_sums(g);
        let mut rows = Rows { shown: SortedMap::new(), bearer: SortedMap::new() };
        let mut kept: SortedMap<Id, Arc<str>> = SortedMap::new();
        for goal in &spmd.step.outputs {
            kept.entry(goal.id).or_insert_with(|| format!("new {}", goal.name).into());
        }
        let made: SortedSet<Id> = spmd
            .instrs
            .iter()
            .filter(|i| !matches!(i, Instr::Reshard { .. }))
            .map(|i| spmd.copy(i.out()).value)
            .collect();
        for id in made {
            let n = g.node(id);
            let key = (n.origin.name.clone(), n.origin.phase);
            if n.origin.name.is_empty() {
                continue;
            }
            match n.op.kind() {
                Kind::Input(_) => {
                    rows.shown.insert(id, n.origin.name.clone());
                }
                Kind::Rematerializable(_) => {}
                _ => match n.origin.phase {
                    Phase::Forward if !parts.contains(&id) => {
                        if let Some(earlier) = rows.bearer.insert(key, id) {
                            rows.shown.remove(&earlier);
                        }
                        rows.shown.insert(id, n.origin.name.clone());
                    }
                    Phase::Backward if n.origin.class == Class::Grad => {
                        rows.bearer.insert(key, id);
                        rows.shown.insert(id, n.origin.name.clone());
                    }
                    Phase::Update => rows.shown.extend(kept.get(&id).map(|path| (id, path.clone()))),
                    _ => {}
                },
            }
        }
        rows
    }

    /// The path under which a value is shown, if it is.
    pub(crate) fn path(&self, id: Id) -> Option<&str> {
        self.shown.get(&id).map(|p| &**p)
    }

    /// The value at whose row a collective of `id` stands: the one that bears its path, or itself.
    pub(crate) fn row(&self, g: &Graph, id: Id) -> Id {
        let o = &g.node(id).origin;
        match self.bearer.get(&(o.name.clone(), o.phase)) {
            Some(bearer) if !self.shown.contains_key(&id) => *bearer,
            _ => id,
        }
    }
}

/// Unfinished parts that the partitioner took out of a sum: adds that an earlier value reads.
fn parts_of_sums(g: &Graph) -> SortedSet<Id> {
    let read = |u: Id| g.node(u).inputs.iter().copied().filter(move |x| *x > u);
    g.ids().flat_map(read).filter(|x| matches!(g.node(*x).op.kind(), Kind::Add)).collect()
}
