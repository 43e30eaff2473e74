//! What a loop means: the same step with every iteration written out. Tests compare with it; nothing else is made of it.

use crate::passes::linear::{ScopeItem, items};
use crate::step::step_graph::{OutputKind, StepGraph};
use meshwright_ops::{Boundary, Const, Crossing, Graph, Id, RepeatId};
use meshwright_plan::{DType, IdVec};
use meshwright_sorted::SortedMap;

/// The step without loops. Values around loops keep their names; those of bodies occur once for each iteration.
pub fn unrolled(step: &StepGraph) -> StepGraph {
    let old = &step.graph;
    let mut u = Unroll {
        old,
        new: Graph::new(old.dims.clone()),
        now: old.nodes.table(Id(0)),
        leaving: SortedMap::new(),
    };
    u.scope(None);
    let Unroll { new, now, .. } = u;
    let mut out = step.with_graph(new);
    for goal in &mut out.outputs {
        goal.id = now[goal.id];
        if let OutputKind::Next(leaf) = &mut goal.kind {
            *leaf = now[*leaf];
        }
    }
    out
}

struct Unroll<'a> {
    old: &'a Graph,
    new: Graph,
    /// What each value is, in the iteration that is being written out.
    now: IdVec<Id, Id>,
    /// What leaves loops: the value of each iteration, with its position.
    leaving: SortedMap<Id, Vec<(usize, Id)>>,
}

impl Unroll<'_> {
    fn scope(&mut self, scope: Option<RepeatId>) {
        for item in items(self.old, scope).into_iter().rev() {
            match item {
                ScopeItem::Loop(of) => self.iterations(of),
                ScopeItem::Value(id) => self.value(id),
            }
        }
    }

    fn value(&mut self, id: Id) {
        let mut node = self.old.node(id).clone();
        self.new.cursor = node.origin.clone();
        let made = match self.old.boundary(id) {
            // They are set where the iteration begins.
            Some(Boundary { how: Crossing::Carry(_) | Crossing::Slice, .. }) => return,
            Some(b) => self.left(id, b),
            None => {
                node.inputs.iter_mut().for_each(|x| *x = self.now[*x]);
                node.scope = None;
                self.new.push(node)
            }
        };
        self.now[id] = made;
    }

    fn iterations(&mut self, of: RepeatId) {
        let repeat = &self.old.repeats[of];
        let inside = |id: Id| self.old.within(self.old.node(id).scope, Some(of));
        let reads_it = |id: &Id, b: Boundary| !b.how.leaves() || inside(self.old.node(*id).inputs[0]);
        let mine = |id: &Id| self.old.boundary(*id).is_some_and(|b| b.of == of && reads_it(id, b));
        let crossing: Vec<Id> = self.old.ids().filter(mine).collect();
        let how = |id: &Id| self.old.boundary(*id).map(|b| b.how);
        let leaving: Vec<Id> =
            crossing.iter().copied().filter(|id| how(id).is_some_and(Crossing::leaves)).collect();
        let slices: Vec<Id> = crossing.into_iter().filter(|id| how(id) == Some(Crossing::Slice)).collect();
        leaving.iter().for_each(|out| drop(self.leaving.remove(out)));
        let times = self.old.iterations(of);
        let mut carried: Vec<Id> =
            repeat.carries.iter().map(|(c, _)| self.now[self.old.node(*c).inputs[0]]).collect();
        for k in 0..times {
            let at = repeat.from + if repeat.reverse { times - 1 - k } else { k };
            for ((carry, _), value) in repeat.carries.iter().zip(&carried) {
                self.now[*carry] = *value;
            }
            for slice in &slices {
                self.new.cursor = self.old.node(*slice).origin.clone();
                let position = self.new.op(Const::position(at, repeat.dim), &[]);
                let all = self.now[self.old.node(*slice).inputs[0]];
                self.now[*slice] = match self.new.at(all, repeat.dim, position) {
                    Ok(found) => found,
                    Err(e) => panic!("internal error: what a loop takes cannot be looked up: {e}"),
                };
            }
            self.scope(Some(of));
            carried = repeat.carries.iter().map(|(_, next)| self.now[*next]).collect();
            for out in &leaving {
                let value = self.now[self.old.node(*out).inputs[0]];
                self.leaving.entry(*out).or_default().push((at, value));
            }
        }
    }

    /// What has left a loop.
    fn left(&mut self, id: Id, b: Boundary) -> Id {
        // A value from around the loop is the same in every iteration.
        let outer = self.now[self.old.node(id).inputs[0]];
        let from = self.old.repeats[b.of].from;
        let each = || (from..self.old.dims.size(b.dim)).map(|at| (at, outer)).collect();
        let all = self.leaving.remove(&id).unwrap_or_else(each);
        let dims = self.old.ty(id).dims.clone();
        match b.how {
            Crossing::Accumulate => {
                let parts: Vec<Id> = all.into_iter().map(|(_, v)| v).collect();
                self.new.sum_of(&parts)
            }
            Crossing::Stack => {
                let index = self.new.index(b.dim);
                // A position that the loop leaves out is 0.
                let mut stack = (from > 0).then(|| self.new.constant(0.0, self.old.ty(id).dtype));
                for (at, value) in all {
                    stack = Some(match stack {
                        None => value,
                        Some(before) => {
                            let position = self.new.constant(at as f64, DType::I32);
                            let here = self.new.binary("==", index, position);
                            self.new.choose(here, value, before)
                        }
                    });
                }
                stack.map_or(Id(0), |stack| self.new.expanded(stack, &dims))
            }
            _ => all.last().map_or(Id(0), |(_, v)| *v),
        }
    }
}
