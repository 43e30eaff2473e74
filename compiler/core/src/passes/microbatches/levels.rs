//! In which loop over the parts of a batch each value is made: what reads a sum over all parts follows the loop that sums them.
//!
//! A loss like `sum(each) / sum(counted)` needs two: the gradient of each example reads the sum of what is counted. Everything is
//! made in the last loop in which it may be, so that what a gradient needs of the forward pass is not kept from an earlier loop.

use super::parts::{BatchPart, Mixed};
use crate::passes::linear::{ScopeItem, items};
use meshwright_ops::{Graph, Id, InputOpKind, Kind, RepeatId};
use meshwright_plan::{IdVec, Phase};
use meshwright_sorted::{SortedMap, SortedSet};

/// The items around all loops of a step, in order, each with its level.
pub(super) struct Levels {
    /// Everything in order: operands before their users.
    pub(super) order: Vec<ScopeItem>,
    /// The values of each; values that leave a loop are the loop's.
    pub(super) values: SortedMap<ScopeItem, Vec<Id>>,
    /// Of what is made in loops over the parts: those in which it is.
    pub(super) inside: SortedMap<ScopeItem, SortedSet<usize>>,
    /// Of what is made outside: how many of the loops come before it.
    pub(super) outside: SortedMap<ScopeItem, usize>,
    /// Number of loops.
    pub(super) count: usize,
}

/// Use of a value by an item.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// In the loop in which the value is made.
    Here(ScopeItem),
    /// Behind the loop over all parts in which it is made.
    Behind(ScopeItem),
    /// It is made outside of such loops.
    Outside(ScopeItem),
    /// A part of what is given to the step.
    Given,
}

/// Puts everything in order.
pub(super) fn levels(g: &Graph, parts: &IdVec<Id, BatchPart>) -> Result<Levels, Mixed> {
    let mut order = items(g, None);
    order.reverse();
    let mut values: SortedMap<ScopeItem, Vec<Id>> = SortedMap::new();
    for id in g.ids() {
        values.entry(item_of(g, id)).or_default().push(id);
    }
    // Values that leave a loop belong to it.
    order.retain(|i| values.contains_key(i));
    let made_in_parts =
        |i: &ScopeItem| values[i].iter().any(|id| parts[*id] != BatchPart::Same && !is_input(g, *id));
    let parted: SortedSet<ScopeItem> = order.iter().copied().filter(made_in_parts).collect();
    let mut all = Search {
        g,
        parts,
        values: &values,
        parted: &parted,
        first: SortedMap::new(),
        last: SortedMap::new(),
    };
    all.earliest(&order);
    let count = parted.iter().map(|i| all.first[i] + 1).max().unwrap_or(0);
    all.latest(&order, count);
    let mut inside: SortedMap<ScopeItem, SortedSet<usize>> = SortedMap::new();
    for item in order.iter().rev().filter(|i| parted.contains(i)) {
        let mut mine = inside.remove(item).unwrap_or_default();
        mine.insert(all.last[item]);
        for x in all.reads(*item) {
            if let Reading::Here(from) = all.reading(*item, x)
                && from != *item
            {
                inside.entry(from).or_default().extend(&mine);
            }
        }
        if mine.len() > 1 && all.is_dear(*item) {
            return Err(all.twice(&order));
        }
        inside.insert(*item, mine);
    }
    let mut outside: SortedMap<ScopeItem, usize> = SortedMap::new();
    for item in order.iter().filter(|i| !parted.contains(i)) {
        let of = |x: Id| match all.reading(*item, x) {
            Reading::Behind(from) => all.last[&from] + 1,
            Reading::Outside(from) => outside.get(&from).copied().unwrap_or(0),
            Reading::Here(_) | Reading::Given => 0,
        };
        let first = all.reads(*item).into_iter().map(of).max().unwrap_or(0);
        // Values that the update computes of parameters and states alone would be live during the loops.
        let updates = |id: &Id| {
            let node = g.node(*id);
            node.origin.phase == Phase::Update && !matches!(node.op.kind(), Kind::Input(_))
        };
        outside.insert(*item, if values[item].iter().all(updates) { all.last[item] } else { first });
    }
    Ok(Levels { order, values, inside, outside, count })
}

/// An input of the program.
pub(super) fn is_input(g: &Graph, id: Id) -> bool {
    matches!(g.node(id).op.kind(), Kind::Input(InputOpKind::Input { .. }))
}

/// The item of a value: itself, or the outermost loop in which it is computed.
fn item_of(g: &Graph, id: Id) -> ScopeItem {
    let outermost = |mut of: RepeatId| {
        while let Some(parent) = g.repeats[of].parent {
            of = parent;
        }
        ScopeItem::Loop(of)
    };
    match (g.node(id).scope, g.boundary(id)) {
        (Some(of), _) => outermost(of),
        (None, Some(b)) if g.node(g.node(id).inputs[0]).scope.is_some() => outermost(b.of),
        (None, _) => ScopeItem::Value(id),
    }
}

struct Search<'a> {
    g: &'a Graph,
    parts: &'a IdVec<Id, BatchPart>,
    values: &'a SortedMap<ScopeItem, Vec<Id>>,
    /// Items in loops over the parts.
    parted: &'a SortedSet<ScopeItem>,
    /// The first loop in which each may be made; of what is made outside, the loops that come before it.
    first: SortedMap<ScopeItem, usize>,
    /// The last loop in which each may be made; what is made outside comes before that loop.
    last: SortedMap<ScopeItem, usize>,
}

impl Search<'_> {
    fn reads(&self, item: ScopeItem) -> SortedSet<Id> {
        self.values[&item].iter().flat_map(|id| self.g.depends_on(*id)).collect()
    }

    fn reading(&self, reader: ScopeItem, x: Id) -> Reading {
        let from = item_of(self.g, x);
        match (self.parted.contains(&from), self.parted.contains(&reader)) {
            (false, true) if is_input(self.g, x) && self.parts[x] == BatchPart::Examples => Reading::Given,
            (false, _) => Reading::Outside(from),
            (true, true) if self.parts[x] != BatchPart::Sum || from == reader => Reading::Here(from),
            (true, _) => Reading::Behind(from),
        }
    }

    fn earliest(&mut self, order: &[ScopeItem]) {
        for item in order {
            let of = |x: Id| match self.reading(*item, x) {
                Reading::Here(from) | Reading::Outside(from) if from == *item => 0,
                Reading::Here(from) | Reading::Outside(from) => self.first[&from],
                Reading::Behind(from) => self.first[&from] + 1,
                Reading::Given => 0,
            };
            let first = self.reads(*item).into_iter().map(of).max().unwrap_or(0);
            self.first.insert(*item, first);
        }
    }

    fn latest(&mut self, order: &[ScopeItem], count: usize) {
        for item in order.iter().rev() {
            let parted = self.parted.contains(item);
            let end = if parted { count.saturating_sub(1) } else { count };
            let mine = *self.last.entry(*item).or_insert(end);
            for x in self.reads(*item) {
                let (from, at) = match self.reading(*item, x) {
                    Reading::Here(from) | Reading::Outside(from) if from == *item => continue,
                    Reading::Here(from) | Reading::Outside(from) => (from, mine),
                    Reading::Behind(from) => (from, mine.saturating_sub(1)),
                    Reading::Given => continue,
                };
                let end = if self.parted.contains(&from) { count.saturating_sub(1) } else { count };
                let last = self.last.entry(from).or_insert(end);
                *last = at.min(*last);
            }
        }
    }

    /// The reason why descendants of parameters must be computed twice.
    fn twice(&self, order: &[ScopeItem]) -> Mixed {
        let sums = order.iter().filter(|i| self.parted.contains(i)).flat_map(|reader| {
            self.reads(*reader).into_iter().filter_map(|x| match self.reading(*reader, x) {
                Reading::Behind(from) => Some((x, from)),
                Reading::Outside(from) => self.sum_behind(from).map(|x| (x, item_of(self.g, x))),
                _ => None,
            })
        });
        let at = sums.into_iter().filter(|(_, from)| self.is_dear(*from)).map(|(x, _)| x).min();
        let why = "what is computed of each example reads this sum over all examples, which is itself made of what is trained";
        Mixed { at: at.unwrap_or(Id(0)), why: why.into() }
    }

    /// A sum over all parts on which an outside value depends.
    fn sum_behind(&self, of: ScopeItem) -> Option<Id> {
        let (mut todo, mut seen) = (vec![of], SortedSet::new());
        while let Some(item) = todo.pop() {
            for x in self.reads(item) {
                match self.reading(item, x) {
                    Reading::Behind(from) if self.is_dear(from) => return Some(x),
                    Reading::Outside(from) if seen.insert(from) => todo.push(from),
                    _ => {}
                }
            }
        }
        None
    }

    /// Whether it is made of what is trained or kept, and not of inputs alone.
    fn is_dear(&self, item: ScopeItem) -> bool {
        let (mut todo, mut seen) = (vec![item], SortedSet::new());
        while let Some(item) = todo.pop() {
            let leaf =
                |id: &Id| matches!(self.g.node(*id).op.kind(), Kind::Input(_)) && !is_input(self.g, *id);
            if self.values[&item].iter().any(leaf) {
                return true;
            }
            let from = self.reads(item).into_iter().map(|x| item_of(self.g, x));
            todo.extend(from.filter(|i| seen.insert(*i)));
        }
        false
    }
}
