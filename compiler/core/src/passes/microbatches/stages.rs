//! The loops over the parts of a batch in a step whose layers are stages of a pipeline. An evaluation has one, of forward passes.
//!
//! Before: one loop over the parts, in which a loop over the layers goes forward and another one backward. After: two loops over
//! the parts, of the forward and of the backward passes. Read in order they are a step on one device (GPipe, Huang et al. 2019);
//! a schedule takes their iterations in another order. What is computed in front of the layers or behind them is in the body of a
//! loop of one iteration, whose dim is split over the stages so that the first stage, or the last one, has its only position. So
//! stages differ in nothing but the positions that they have. What follows the layers is computed at the begin of the backward
//! pass, so that no more than what the layers carry is kept until then.

use super::levels::{Levels, is_input};
use super::parts::BatchPart;
use super::rebuild::{Open, Rebuild};
use crate::passes::linear::ScopeItem;
use crate::passes::stages::Stages;
use meshwright_ops::{Crossing, Graph, Id, Kind, RepeatId};
use meshwright_plan::Dim;
use meshwright_sorted::{SortedMap, SortedSet};

/// Place of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StagePlace {
    /// On each stage in the forward pass.
    Forward,
    /// On the first stage, in front of the layers.
    First,
    /// On the last stage, behind the layers, in the backward pass.
    Last,
    /// On each stage in the backward pass.
    Backward,
    /// On the first stage, behind the layers of the backward pass.
    FirstBackward,
    /// On the last stage, behind the layers, in a program without a backward pass.
    LastForward,
    /// Behind all microbatches, of sums over them.
    Behind,
}

use StagePlace::{Backward, Behind, First, FirstBackward, Forward, Last, LastForward};

impl StagePlace {
    /// The place whose loop is around it.
    fn around(self) -> Option<StagePlace> {
        match self {
            Forward | Backward | Behind => None,
            First | LastForward => Some(Forward),
            Last | FirstBackward => Some(Backward),
        }
    }
}

/// The reason for which a loop cannot be a pipeline.
pub(super) struct NoPipeline {
    /// The value at which it shows.
    pub(super) at: Id,
    /// In words.
    pub(super) why: String,
    /// Advice that works.
    pub(super) fix: PipelineFix,
}

/// Ways to make a pipeline of a loop.
#[derive(Clone, Copy, Debug)]
pub(super) enum PipelineFix {
    /// The loop carries what stages need of each other.
    Carry,
    /// A dim of its own for a value outside of the loop.
    OwnDim,
    /// One loss whose gradients go back through the layers.
    OneLoss,
    /// Nothing.
    NoRule,
}

/// A microbatch that is made of as many values as this, all of them functions of inputs or positions, is made again in the
/// backward pass.
const MOST_AGAIN: usize = 16;

/// A level with a place for each item.
struct Placed {
    place: SortedMap<ScopeItem, StagePlace>,
    item_of: SortedMap<Id, ScopeItem>,
    /// The loop over the layers, forward.
    layers: ScopeItem,
}

/// The values of a level that an item reads of others.
fn reads(
    r: &Rebuild<'_>,
    item: &ScopeItem,
    levels: &Levels,
    item_of: &SortedMap<Id, ScopeItem>,
) -> SortedSet<Id> {
    let all = levels.values[item].iter().flat_map(|id| r.old.depends_on(*id));
    all.filter(|x| item_of.get(x).is_some_and(|from| from != item)).collect()
}

/// The reason why a loop is not a pipeline if a microbatch passes it in another way.
const OTHERWISE: &str = "a microbatch goes through its layers otherwise than forward once and backward once";

/// The loops over the layers on a level.
fn over_layers(g: &Graph, mine: &[ScopeItem], stages: &Stages) -> Vec<ScopeItem> {
    let over = |item: &&ScopeItem| matches!(item, ScopeItem::Loop(of) if g.repeats[*of].dim == stages.dim);
    mine.iter().filter(over).copied().collect()
}

/// Refuses a level in front of the one whose layers are stages if it has loops over the layers too.
pub(super) fn passes_no_layers(
    r: &Rebuild<'_>,
    mine: &[ScopeItem],
    levels: &Levels,
    stages: &Stages,
) -> Result<(), NoPipeline> {
    let first = over_layers(r.old, mine, stages).first().and_then(|item| levels.values[item].first());
    first.map_or(Ok(()), |at| Err(NoPipeline { at: *at, why: OTHERWISE.into(), fix: PipelineFix::NoRule }))
}

/// Places each item of a level.
fn placed(
    r: &Rebuild<'_>,
    mine: &[ScopeItem],
    levels: &Levels,
    stages: &Stages,
) -> Result<Placed, NoPipeline> {
    let g = r.old;
    let loops = over_layers(g, mine, stages);
    let first_value = |item: &ScopeItem| levels.values[item].first().copied().unwrap_or(Id(0));
    let refuse = |at: Id, why: &str, fix: PipelineFix| Err(NoPipeline { at, why: why.into(), fix });
    let reversed = |item: &ScopeItem| matches!(item, ScopeItem::Loop(of) if g.repeats[*of].reverse);
    let (back, forth): (Vec<ScopeItem>, Vec<ScopeItem>) = loops.iter().partition(|item| reversed(item));
    // If no gradient goes back through the layers, since all of them are frozen, the step has forward passes alone.
    let passes = usize::from(!r.batch.evaluates);
    let ([layers], true) = (&forth[..], back.len() <= passes) else {
        let fix = if back.len() > 1 { PipelineFix::OneLoss } else { PipelineFix::NoRule };
        return refuse(loops.first().map_or(Id(0), first_value), OTHERWISE, fix);
    };
    let backward = back.first();
    let last = if backward.is_some() { Last } else { LastForward };
    let item_of: SortedMap<Id, ScopeItem> =
        mine.iter().flat_map(|item| levels.values[item].iter().map(|id| (*id, *item))).collect();
    let reads = |item: &ScopeItem| reads(r, item, levels, &item_of);
    let leaves = |x: Id, how: Crossing| g.boundary(x).is_some_and(|b| b.how == how);
    let mut place: SortedMap<ScopeItem, StagePlace> = SortedMap::from([(*layers, Forward)]);
    place.extend(backward.map(|item| (*item, Backward)));
    // Values that are made of the layers' results.
    for item in mine.iter().filter(|item| *item != layers && Some(*item) != backward) {
        let mut found: SortedSet<StagePlace> = SortedSet::new();
        for x in reads(item) {
            let from = item_of[&x];
            if from == *layers && leaves(x, Crossing::Final) {
                found.insert(last);
            } else if from == *layers && leaves(x, Crossing::Accumulate) {
                // Each stage has its own layers' part of the sum.
                found.insert(Forward);
            } else if Some(&from) == backward {
                found.insert(if leaves(x, Crossing::Final) { FirstBackward } else { Backward });
            } else if let Some(known) = place.get(&from) {
                found.insert(*known);
            }
        }
        if found.iter().any(|place| place.around().is_some())
            && of_all_layers(g, &levels.values[item], stages.dim)
        {
            let why = "it needs something of each layer beside what is behind them";
            return refuse(first_value(item), why, PipelineFix::OwnDim);
        }
        let sums = |id: &Id| r.parts[*id] == BatchPart::Sum;
        let adds = levels.values[item].iter().all(sums) && reads(item).iter().all(sums);
        place.extend(match found.len() {
            0 => None,
            1 if adds || !found.contains(&Behind) => found.pop_first().map(|one| (*item, one)),
            _ if adds => Some((*item, Behind)),
            _ if found.contains(&Forward) => {
                return refuse(
                    first_value(item),
                    "it reads a sum over the layers beside what is behind them; let the loop carry this sum",
                    PipelineFix::Carry,
                );
            }
            _ if found == SortedSet::from([Backward, FirstBackward]) => Some((*item, FirstBackward)),
            _ => {
                return refuse(
                    first_value(item),
                    "it needs both what is in front of the layers and what is behind them",
                    PipelineFix::Carry,
                );
            }
        });
    }
    let mut placed = Placed { place, item_of, layers: *layers };
    placed.rest(r, mine, levels, (backward.copied(), stages.dim));
    Ok(placed)
}

/// True for values that are made of something of each layer: a stage has only the part of its own layers.
fn of_all_layers(g: &Graph, values: &[Id], layers: Dim) -> bool {
    values.iter().any(|id| g.ty(*id).has(layers) || g.input_types(*id).iter().any(|ty| ty.has(layers)))
}

impl Placed {
    /// Places all else where it is read: at one end, or on each stage.
    fn rest(
        &mut self,
        r: &Rebuild<'_>,
        mine: &[ScopeItem],
        levels: &Levels,
        (backward, dim): (Option<ScopeItem>, Dim),
    ) {
        let Placed { place, item_of, layers } = self;
        let g = r.old;
        let reads = |item: &ScopeItem| reads(r, item, levels, item_of);
        let last = if backward.is_some() { Last } else { LastForward };
        for item in mine.iter().rev().filter(|item| **item != *layers && Some(**item) != backward) {
            if place.contains_key(item) {
                continue;
            }
            let mut users: SortedSet<StagePlace> = SortedSet::new();
            for user in mine.iter().filter(|user| *user != item) {
                let read: Vec<Id> = reads(user).into_iter().filter(|x| item_of[x] == *item).collect();
                if read.is_empty() {
                    continue;
                }
                let starts = |x: &Id| {
                    let by = levels.values[user].iter().filter(|id| g.node(**id).inputs.contains(x));
                    by.clone().count() > 0
                        && by
                            .into_iter()
                            .all(|id| matches!(g.boundary(*id).map(|b| b.how), Some(Crossing::Carry(_))))
                };
                let starts = read.iter().all(starts);
                users.insert(match place.get(user) {
                    Some(Forward) if *user == *layers && starts => First,
                    Some(Backward) if Some(*user) == backward && starts => Last,
                    Some(known) => *known,
                    None => Forward,
                });
            }
            let first = users.iter().all(|p| [First, FirstBackward].contains(p));
            // What is summed over microbatches, and nothing else reads, is computed once.
            let summed =
                users.is_empty() && levels.values[item].iter().all(|id| r.parts[*id] == BatchPart::Sum);
            let here = match (users.is_empty(), first, users.iter().all(|p| *p == last)) {
                _ if of_all_layers(g, &levels.values[item], dim) => Forward,
                _ if summed => First,
                (false, true, _) if users.contains(&First) => First,
                (false, true, _) => FirstBackward,
                (false, _, true) => last,
                _ => Forward,
            };
            place.insert(*item, here);
        }
    }
}

/// Two loops over the parts that are being made.
struct StagedLevel<'r, 'a> {
    r: &'r mut Rebuild<'a>,
    placed: Placed,
    stages: Stages,
    open: SortedMap<StagePlace, Open>,
}

/// Makes a level whose layers are stages.
pub(super) fn make(
    r: &mut Rebuild<'_>,
    mine: &[ScopeItem],
    levels: &Levels,
    stages: Stages,
) -> Result<(), NoPipeline> {
    let placed = placed(r, mine, levels, &stages)?;
    let over = r.batch.parts.over;
    let mut open: SortedMap<StagePlace, Open> = SortedMap::new();
    let backward = placed.place.values().any(|place| *place == Backward);
    let places: &[StagePlace] = match backward {
        true => &[Forward, Backward, First, Last, FirstBackward],
        false => &[Forward, First, LastForward],
    };
    for place in places.iter().copied() {
        let of = match place {
            Forward | Backward => r.new.repeat(over, false),
            First | FirstBackward => r.new.repeat(stages.first, false),
            Last | LastForward | Behind => r.new.repeat(stages.last, false),
        };
        let parent = place.around().and_then(|around| open[&around].of);
        r.new.repeats[of].parent = parent;
        if [Last, LastForward].contains(&place) {
            r.new.repeats[of].from = stages.from;
        }
        open.insert(place, Open { of: Some(of), ..Open::default() });
    }
    let mut staged = StagedLevel { r, placed, stages, open };
    let (behind, level): (Vec<ScopeItem>, Vec<ScopeItem>) =
        mine.iter().partition(|item| staged.placed.place[*item] == Behind);
    for item in &level {
        staged.item(*item, &levels.values[item])?;
    }
    for item in &level {
        staged.leave(*item, &levels.values[item]);
    }
    for item in &behind {
        staged.r.item(*item, &levels.values[item], &mut Open::default());
    }
    Ok(())
}

impl StagedLevel<'_, '_> {
    fn scope(&self, place: StagePlace) -> RepeatId {
        self.open[&place].of.unwrap_or(RepeatId(0))
    }

    fn item(&mut self, item: ScopeItem, values: &[Id]) -> Result<(), NoPipeline> {
        let place = self.placed.place[&item];
        // Its operands are brought there first.
        let outside = |id: &Id| !values.contains(id);
        let g = self.r.old;
        let mut reads: SortedSet<Id> = values.iter().flat_map(|id| g.depends_on(*id)).collect();
        reads.retain(outside);
        for x in reads {
            self.bring(x, place)?;
        }
        let mut open = self.open.remove(&place).unwrap_or_default();
        self.r.item(item, values, &mut open);
        self.open.insert(place, open);
        Ok(())
    }

    /// Makes a value known where it is read.
    fn bring(&mut self, x: Id, to: StagePlace) -> Result<Id, NoPipeline> {
        if let Some(known) = self.open[&to].now.get(&x) {
            return Ok(*known);
        }
        let item = self.placed.item_of.get(&x).copied();
        let Some(from) = item.and_then(|item| self.placed.place.get(&item)).copied() else {
            return self.given(x, to);
        };
        let made = match (from, to) {
            _ if from == to => {
                let why = "it is read before it is made".into();
                return Err(NoPipeline { at: x, why, fix: PipelineFix::NoRule });
            }
            (Forward, LastForward) if self.ends_layers(x) => {
                let made = self.bring(x, from)?;
                self.r.new.carry(self.scope(to), made)
            }
            // An end reads the values around it as they are.
            (Forward, First | LastForward) | (Backward, Last | FirstBackward) => self.bring(x, from)?,
            (First | LastForward, Forward) | (Last, Backward) => self.end_gives(x, from),
            (First, FirstBackward) => {
                let kept = self.kept(x, First);
                self.taken(kept, FirstBackward)
            }
            (Forward, Last) if self.ends_layers(x) => {
                let kept = self.kept_at_end(x);
                self.taken(kept, Last)
            }
            (Forward, Backward) if self.again(x) => return self.make_again(x),
            (Forward, Backward) => {
                let made = self.open[&Forward].now[&x];
                let kept = self.r.new.cross(self.scope(Forward), Crossing::Stack, made);
                let of = self.scope(Backward);
                self.r.new.cross(of, Crossing::Slice, kept)
            }
            (Forward, Last | FirstBackward) => self.bring(x, Backward)?,
            _ => {
                let why = "it needs both what is in front of the layers and what is behind them".into();
                return Err(NoPipeline { at: x, why, fix: PipelineFix::Carry });
            }
        };
        self.know(x, to, made);
        Ok(made)
    }

    /// True for a value with which the loop over the layers ends, forward.
    fn ends_layers(&self, x: Id) -> bool {
        self.placed.item_of.get(&x) == Some(&self.placed.layers)
            && self.r.old.boundary(x).is_some_and(|b| b.how == Crossing::Final)
    }

    fn know(&mut self, x: Id, at: StagePlace, made: Id) {
        if let Some(open) = self.open.get_mut(&at) {
            open.now.insert(x, made);
        }
    }

    /// Brings a value from outside of the level, or its part.
    fn given(&mut self, x: Id, to: StagePlace) -> Result<Id, NoPipeline> {
        if let (Some(around), true) = (to.around(), self.r.given.contains_key(&x)) {
            let made = self.given(x, around)?;
            self.know(x, to, made);
            return Ok(made);
        }
        let mut open = self.open.remove(&to).unwrap_or_default();
        let made = self.r.read(x, &mut open);
        self.open.insert(to, open);
        Ok(made)
    }

    /// The result of an end, for the layers: a sum over its only iteration, so that on other stages it is zero.
    fn end_gives(&mut self, x: Id, from: StagePlace) -> Id {
        let made = self.open[&from].now[&x];
        self.r.new.cursor = self.r.old.node(x).origin.clone();
        let sum = self.r.new.cross(self.scope(from), Crossing::Accumulate, made);
        let around = from.around().map(|around| self.scope(around));
        let scope = std::mem::replace(&mut self.r.new.scope, around);
        let sum = self.r.new.cast(sum, self.r.old.ty(x).dtype);
        self.r.new.scope = scope;
        sum
    }

    /// A value of an end in all microbatches.
    fn kept(&mut self, x: Id, from: StagePlace) -> Id {
        let made = self.open[&from].now[&x];
        self.r.new.cursor = self.r.old.node(x).origin.clone();
        let end = self.r.new.cross(self.scope(from), Crossing::Stack, made);
        self.r.new.cross(self.scope(Forward), Crossing::Stack, end)
    }

    /// The result of the layers in all microbatches, on the last stage alone.
    fn kept_at_end(&mut self, x: Id) -> Id {
        let made = self.open[&Forward].now[&x];
        self.r.new.cursor = self.r.old.node(x).origin.clone();
        let end = self.r.new.repeat(self.stages.last, false);
        self.r.new.repeats[end].parent = Some(self.scope(Forward));
        self.r.new.repeats[end].from = self.stages.from;
        let carry = self.r.new.carry(end, made);
        let kept = self.r.new.cross(end, Crossing::Stack, carry);
        self.r.new.cross(self.scope(Forward), Crossing::Stack, kept)
    }

    /// What a loop over the layers ends with, of the stage at its end; zero on others.
    fn of_end(&mut self, x: Id, place: StagePlace) -> Id {
        let made = self.open[&place].now[&x];
        self.r.new.cursor = self.r.old.node(x).origin.clone();
        let (dim, from) =
            if place == Forward { (self.stages.last, self.stages.from) } else { (self.stages.first, 0) };
        let end = self.r.new.repeat(dim, false);
        (self.r.new.repeats[end].parent, self.r.new.repeats[end].from) = (Some(self.scope(place)), from);
        let carry = self.r.new.carry(end, made);
        self.r.new.cross(end, Crossing::Accumulate, carry)
    }

    /// The value of a microbatch at an end, of those of all.
    fn taken(&mut self, kept: Id, to: StagePlace) -> Id {
        let around = to.around().unwrap_or(to);
        let part = self.r.new.cross(self.scope(around), Crossing::Slice, kept);
        self.r.new.cross(self.scope(to), Crossing::Slice, part)
    }

    /// True for a function of inputs and positions that is cheap to make again.
    fn again(&self, x: Id) -> bool {
        let (mut todo, mut seen) = (vec![x], SortedSet::new());
        while let Some(id) = todo.pop() {
            let g = self.r.old;
            let Some(item) = self.placed.item_of.get(&id) else {
                // What stands outside of the level and is an input, or the same for all parts.
                continue;
            };
            if !matches!(item, ScopeItem::Value(_)) || matches!(g.node(id).op.kind(), Kind::Boundary(_)) {
                return false;
            }
            if seen.insert(id) {
                todo.extend(g.depends_on(id));
            }
            if seen.len() > MOST_AGAIN || self.made_of_parameters(id) {
                return false;
            }
        }
        true
    }

    /// True if an op reads something else than inputs and functions of positions.
    fn made_of_parameters(&self, id: Id) -> bool {
        let g = self.r.old;
        let plain = |x: &Id| {
            self.placed.item_of.contains_key(x)
                || is_input(g, *x)
                || matches!(g.node(*x).op.kind(), Kind::Rematerializable(_))
        };
        !g.node(id).inputs.iter().all(plain)
    }

    /// The same value in the backward pass, from what it is made of.
    fn make_again(&mut self, x: Id) -> Result<Id, NoPipeline> {
        for operand in self.r.old.depends_on(x) {
            self.bring(operand, Backward)?;
        }
        let mut open = self.open.remove(&Backward).unwrap_or_default();
        self.r.value(x, &mut open);
        let made = open.now[&x];
        self.open.insert(Backward, open);
        Ok(made)
    }

    /// Brings what is read behind the loops over the parts out of them.
    fn leave(&mut self, item: ScopeItem, values: &[Id]) {
        let place = self.placed.place[&item];
        if let Some(around) = place.around() {
            for id in values {
                if !self.r.leaves_parts(*id) {
                    continue;
                }
                let made = self.open[&place].now[id];
                self.r.new.cursor = self.r.old.node(*id).origin.clone();
                let sum = self.r.new.cross(self.scope(place), Crossing::Accumulate, made);
                self.know(*id, around, sum);
            }
        }
        // What a loop over the layers ends with is that of the stage at its end alone.
        let ends = |id: &&Id| {
            self.r.old.boundary(**id).is_some_and(|b| b.how == Crossing::Final && b.dim == self.stages.dim)
        };
        let finals: Vec<Id> =
            values.iter().filter(ends).filter(|id| self.r.leaves_parts(**id)).copied().collect();
        for id in finals {
            let sum = self.of_end(id, place);
            self.know(id, place, sum);
        }
        let around = place.around().unwrap_or(place);
        let open = self.open.remove(&around).unwrap_or_default();
        self.r.leave(self.scope_of(&open), values, &open);
        self.open.insert(around, open);
    }

    fn scope_of(&self, open: &Open) -> RepeatId {
        open.of.unwrap_or(RepeatId(0))
    }
}
