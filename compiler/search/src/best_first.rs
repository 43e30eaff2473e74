//! The search: candidates in the order of their bounds, until no bound is below the best estimate.
//!
//! A node is a mesh with the sets of some of its axes, a base, or a candidate. Children are made as they are needed, the one with
//! the lowest bound first, so a space of billions is never listed. A base has a set for each axis, and nothing besides: it is
//! compiled, and bounds all that have its rules and store values split, take the batch in parts, or compute loops again. Where
//! the mesh is that of a stage, all its pipelines are estimated by a Plan for each schedule. While the best is far from all
//! bounds, what differs from it in one choice comes first (`neighbors`). A fixed number of candidates is compiled at once and
//! their results are taken in order: the answer does not depend on the number of threads.

use crate::axis_bounds::{AxesAlone, AxisOfSet};
use crate::base::BaseWork;
use crate::climb::Climb;
use crate::compiled::{CandidateRefusal, CandidateResult, Subject};
use crate::levels::RuleBounds;
use crate::memory::{KnownMemory, fits, projected};
use crate::neighbors::neighbors;
use crate::outcome::choose;
pub use crate::outcome::{FoundLayout, Rejected, SearchOutcome, TIE};
use crate::space::{Space, Stored};
use crate::text::Candidate;
use crate::tree::{Entry, TreeNode};
use crate::work::ModelWork;
use meshwright_cost::estimate::{Estimate, EstimateError};
use meshwright_cost::pipe::Pipe;
use meshwright_sorted::{SortedMap, SortedSet};
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicUsize, Ordering as Atomic};
use std::sync::{Mutex, PoisonError};

/// Candidates that are compiled at once, whatever the number of threads.
const AT_ONCE: usize = 8;
/// While the bound is below this part of the best estimate, neighbors of the best come first.
const FAR: f64 = 0.9;
/// Programs after which neighbors come even where no candidate had the lowest bound yet.
const PATIENCE: u64 = 16;
/// Nodes after which a search asks whether to stop.
const ASKED_AFTER: usize = 64;
/// Candidates that a search begins with, before it asks whether to stop.
const STARTS: usize = 8;

/// How far a search is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Programs that were compiled.
    pub compiled: u64,
    /// Seconds of the best candidate.
    pub best: Option<f64>,
    /// No other candidate is faster than this.
    pub bound: f64,
}

/// Limits of a search, from outside: it knows no clock.
pub struct Limits<'a> {
    /// Threads.
    pub cores: usize,
    /// Called between compilations with the progress; gives whether to stop.
    pub stop: &'a mut dyn FnMut(Progress) -> bool,
}

/// A search under way.
pub struct Search<'a> {
    space: &'a Space,
    work: &'a ModelWork,
    subject: &'a Subject<'a>,
    heap: BinaryHeap<Entry>,
    alone: AxesAlone,
    memory: KnownMemory,
    made: u64,
    /// Bases that were compiled.
    bases: SortedMap<RulesOfBase, BaseWork>,
    /// Candidates that were estimated, without their pipelines.
    estimated: SortedSet<Candidate>,
    climb: Climb,
    /// Whether a candidate was estimated in the order of bounds.
    has_base: bool,
    outcome: SearchOutcome,
}

/// A mesh with the sets of its axes.
type RulesOfBase = (Vec<usize>, Vec<usize>);

/// A piece of work in a batch.
enum Task {
    /// A set alone over an axis.
    Alone(AxisOfSet),
    /// A candidate that is a base.
    Base(Candidate),
    /// The stages of pipelines, as a base.
    Stage(Candidate),
    /// Another candidate.
    Estimate(Candidate),
    /// A neighbor of a good candidate, whose turn has not come.
    Near(Candidate),
}

/// Estimates of a candidate, one for each pipeline of its stages if there are any.
type OfPipes = Vec<(Option<Pipe>, Estimate)>;

/// Its result.
enum Done {
    Alone(Box<CandidateResult<BaseWork>>),
    Bounded(Box<CandidateResult<(Estimate, BaseWork)>>),
    Estimated(Box<CandidateResult<OfPipes>>),
}

impl<'a> Search<'a> {
    /// Over a space.
    pub fn new(space: &'a Space, work: &'a ModelWork, subject: &'a Subject<'a>) -> Search<'a> {
        let mut search = Search {
            space,
            work,
            subject,
            heap: BinaryHeap::new(),
            alone: AxesAlone::default(),
            memory: KnownMemory::default(),
            made: 0,
            bases: SortedMap::new(),
            estimated: SortedSet::new(),
            climb: Climb::default(),
            has_base: false,
            outcome: SearchOutcome::default(),
        };
        for mesh in &space.meshes {
            search.open(mesh.clone(), Vec::new(), 0.0);
        }
        search
    }

    /// Runs until the best is proven or the limits stop it.
    ///
    /// # Errors
    /// Where a Plan cannot be estimated.
    pub fn run(mut self, limits: &mut Limits<'_>) -> Result<SearchOutcome, EstimateError> {
        self.run_all(self.starts(), limits.cores)?;
        if self.outcome.found.is_empty() && !self.heap.is_empty() {
            let idle = self.space.with_idle_devices().into_iter().map(Task::Estimate).collect();
            self.run_all(idle, limits.cores)?;
        }
        loop {
            self.raise_bound();
            let progress = self.progress();
            if (limits.stop)(progress) {
                break;
            }
            let batch = self.near(progress).unwrap_or_else(|| self.batch(limits.stop));
            if batch.is_empty() {
                break;
            }
            self.run_all(batch, limits.cores)?;
        }
        self.raise_bound();
        self.compile_least(limits.cores)?;
        self.compile_nearest();
        self.outcome.found.sort_by(|a, b| {
            a.estimate.seconds.total_cmp(&b.estimate.seconds).then_with(|| a.candidate.cmp(&b.candidate))
        });
        choose(&mut self.outcome.found);
        self.outcome.refused = self.alone.refused;
        Ok(self.outcome)
    }

    fn progress(&self) -> Progress {
        Progress { compiled: self.outcome.compiled, best: self.best(), bound: self.outcome.bound }
    }

    /// Runs tasks, and takes their results.
    fn run_all(&mut self, batch: Vec<Task>, cores: usize) -> Result<(), EstimateError> {
        let results = self.done(&batch, cores);
        batch.into_iter().zip(results).try_for_each(|(task, done)| self.take(task, done))
    }

    /// Two candidates for each of the smallest meshes, which store whole, and split, all that they may: one is fast where it
    /// fits, the other fits. So a search that is stopped at once has an answer, and another has something to compare with. The
    /// first axis splits the batch; axes take those of their sets with the lowest bounds.
    fn starts(&self) -> Vec<Task> {
        let mut meshes: Vec<&Vec<usize>> =
            self.space.meshes.iter().filter(|m| self.space.stages(m) == 1).collect();
        meshes.sort_by_key(|m| m.len());
        let start = |mesh: &Vec<usize>| {
            let mut sets = Vec::new();
            while sets.len() < mesh.len() {
                let children = self.children(mesh, &sets, 0.0);
                let splits_batch = |(_, set): &&(f64, usize)| self.space.sets[*set].batch;
                let first = children.iter().find(splits_batch).filter(|_| sets.is_empty());
                sets.push(first.or(children.first())?.1);
            }
            let mut all = self.space.stored(&sets, 1);
            let most = all.pop()?;
            let least = all.drain(..1.min(all.len()));
            let of = |stored| {
                Task::Near(Candidate {
                    mesh: mesh.clone(),
                    sets: sets.clone(),
                    stored,
                    ..Candidate::default()
                })
            };
            Some(least.chain([most]).map(of).collect::<Vec<_>>())
        };
        meshes.into_iter().filter_map(start).flatten().take(STARTS).collect()
    }

    /// Where nothing fits, what was dropped without being compiled may be what misses least: it is compiled to say by how much.
    fn compile_least(&mut self, cores: usize) -> Result<(), EstimateError> {
        let fresh =
            self.memory.least().filter(|c| self.outcome.found.is_empty() && !self.estimated.contains(c));
        let tasks = fresh.cloned().map(Task::Estimate).collect();
        // They were counted when they were dropped.
        let rejected = self.outcome.rejected;
        self.run_all(tasks, cores)?;
        self.outcome.rejected = rejected;
        Ok(())
    }

    /// The candidate that misses least is compiled with its stages, if it has any; it may turn out to fit.
    fn compile_nearest(&mut self) {
        let nearest =
            self.outcome.nearest.take_if(|n| self.outcome.found.is_empty() && projected(&n.estimate));
        let Some(FoundLayout { candidate, written, estimate }) = nearest else { return };
        let own = match self.subject.estimate(&written) {
            Ok(Ok(own)) => own,
            _ => estimate,
        };
        match self.fits(&own) {
            true => self.outcome.found.push(self.found(candidate, own)),
            false => self.misses(candidate, own),
        }
    }

    /// Of a node's children some may have a lower bound than it has, which tells less: what held for all that were left holds for
    /// fewer.
    fn raise_bound(&mut self) {
        let least = self.heap.peek().map_or(f64::INFINITY, |e| e.bound);
        self.outcome.bound = self.outcome.bound.max(least);
    }

    fn best(&self) -> Option<f64> {
        self.outcome.found.iter().map(|f| f.estimate.seconds).min_by(f64::total_cmp)
    }

    /// The next neighbors of the best candidates, or of the one that misses least where none fits; none where the best is near to
    /// the bound.
    fn near(&mut self, progress: Progress) -> Option<Vec<Task>> {
        let best = progress.best.unwrap_or(f64::INFINITY);
        // From where a search begins it is far to the best, but not for ever: of many meshes all may have lower bounds than any
        // candidate.
        let begins = !self.has_base && self.outcome.compiled < PATIENCE;
        if begins || progress.bound >= best * FAR {
            return None;
        }
        let found = self.outcome.found.iter().map(|f| (f.estimate.seconds, &f.candidate));
        let nearest = self.outcome.nearest.as_ref().map(|f| &f.candidate);
        if let Some(from) = self.climb.start(found, nearest) {
            let next = self.better(&from, best);
            self.climb.set_off(from, next);
        }
        let next = self.neighbors_and_sets(best);
        (!next.is_empty()).then_some(next)
    }

    /// The next neighbors that may still be better. Where a set is new, what it takes alone is asked first, which may spare all
    /// that have it.
    fn neighbors_and_sets(&mut self, best: f64) -> Vec<Task> {
        let of = (self.space, self.work, self.subject);
        let (mut tasks, mut probes, mut held) = (Vec::new(), SortedSet::new(), Vec::new());
        while tasks.len() < AT_ONCE
            && let Some(c) = self.climb.next()
        {
            let refused = c.sets.iter().any(|s| self.alone.refused.contains_key(s));
            if refused || self.alone.least(of, (&c.mesh, &c.sets)) >= best {
                continue;
            }
            // Of stages the axes alone say less.
            let whole = self.space.stages(&c.mesh) == 1;
            let unknown = if whole { self.alone.unknown_sets(&c) } else { Vec::new() };
            if unknown.is_empty() {
                self.climb.ask(&c);
                tasks.push(Task::Near(c));
            } else {
                tasks.extend(unknown.into_iter().filter(|of| probes.insert(*of)).map(Task::Alone));
                held.push(c);
            }
        }
        self.climb.put_back(held);
        tasks
    }

    /// The neighbors of a candidate that may be better than the best, with their bounds.
    fn better(&mut self, from: &Candidate, best: f64) -> Vec<(f64, Candidate)> {
        let of = (self.space, self.work, self.subject);
        let mut rules: SortedMap<&RulesOfBase, RuleBounds<'_>> = SortedMap::new();
        let mut next: Vec<(f64, Candidate)> = Vec::new();
        for c in neighbors(self.space, from) {
            let refused = c.sets.iter().any(|s| self.alone.refused.contains_key(s));
            if refused || self.estimated.contains(&c) || self.climb.has_asked(&c) {
                continue;
            }
            let mut bound = c.b0(of.0, of.1).max(self.alone.least(of, (&c.mesh, &c.sets)));
            let base = self.bases.get_key_value(&(c.mesh.clone(), c.sets.clone()));
            if let Some((key, base)) = base.filter(|_| bound < best) {
                let new = || RuleBounds::new((of.0, of.1), (base, &c.mesh), of.2.machine);
                bound = bound.max(rules.entry(key).or_insert_with(new).of(&c).b1);
            }
            if bound < best && self.memory.too_much(of, &c, false).is_none() {
                next.push((bound, c));
            }
        }
        next
    }

    /// The next tasks; those that were found where the limits stop it, since sets that are refused may be in millions of
    /// candidates. None where the best is proven.
    fn batch(&mut self, stop: &mut dyn FnMut(Progress) -> bool) -> Vec<Task> {
        let limit = self.best().map_or(f64::INFINITY, |s| s * (1.0 + TIE));
        let of = (self.space, self.work, self.subject);
        let (mut batch, mut probes, mut held) = (Vec::new(), SortedSet::new(), Vec::new());
        let mut nodes = 0;
        while batch.len() < AT_ONCE {
            nodes += 1;
            // The bound stays: what is taken from the heap is not estimated yet.
            if nodes % ASKED_AFTER == 0 && stop(self.progress()) {
                break;
            }
            let Some(entry) = self.heap.peek() else { break };
            if entry.bound > limit {
                break;
            }
            let Some(Entry { bound, rank, node }) = self.heap.pop() else { break };
            let (c, base) = match node {
                TreeNode::Axes { mesh, sets, children, from } => {
                    self.child(mesh, sets, children, from);
                    continue;
                }
                TreeNode::Base(c) => (c, true),
                TreeNode::Leaf(c) => (c, false),
            };
            if c.sets.iter().any(|s| self.alone.refused.contains_key(s))
                || (!base && self.estimated.contains(&c))
            {
                continue;
            }
            let again = |c| if base { TreeNode::Base(c) } else { TreeNode::Leaf(c) };
            let least = if base { self.least(&c.mesh, &c.sets) } else { bound };
            if least > bound {
                self.heap.push(Entry { bound: least, rank, node: again(c) });
                continue;
            }
            let unknown = if base { self.alone.unknown(self.space, &c) } else { Vec::new() };
            if !unknown.is_empty() {
                batch.extend(unknown.into_iter().filter(|of| probes.insert(*of)).map(Task::Alone));
                held.push(Entry { bound, rank, node: again(c) });
            } else if let Some(bytes) = self.memory.too_much(of, &c, base) {
                self.memory.drop(self.space, bytes, &c, base);
                let alike = if base { self.space.alike(&c.mesh, &c.sets) } else { self.pipes_of(&c) };
                self.outcome.rejected.memory += alike;
            } else {
                batch.push(match base {
                    true if self.space.stages(&c.mesh) > 1 => Task::Stage(c),
                    true => Task::Base(c),
                    false => Task::Estimate(c),
                });
            }
        }
        self.heap.extend(held);
        batch
    }

    /// Takes the best child of a node that is left.
    fn child(&mut self, mesh: Vec<usize>, sets: Vec<usize>, children: Vec<(f64, usize)>, from: usize) {
        let Some((bound, set)) = children.get(from).copied() else { return };
        let taken = [&sets[..], &[set]].concat();
        let refused = self.alone.refused.contains_key(&set);
        let bound = bound.max(self.least(&mesh, &taken));
        if let Some((next, _)) = children.get(from + 1) {
            let node =
                TreeNode::Axes { mesh: mesh.clone(), sets, children: children.clone(), from: from + 1 };
            self.push(*next, node);
        }
        if refused {
            return;
        }
        if taken.len() < mesh.len() {
            self.open(mesh, taken, bound);
        } else {
            self.base(bound, mesh, taken);
        }
    }

    /// Adds the node of a mesh with some sets. Its bound is at least that of its parent.
    fn open(&mut self, mesh: Vec<usize>, sets: Vec<usize>, least: f64) {
        if sets.len() == mesh.len() {
            return self.base(least, mesh, sets);
        }
        let children = self.children(&mesh, &sets, least);
        if let Some((bound, _)) = children.first() {
            self.push(*bound, TreeNode::Axes { mesh, sets, children, from: 0 });
        }
    }

    /// The sets that the next axis of a mesh may take, with their bounds, ascending.
    fn children(&self, mesh: &[usize], sets: &[usize], least: f64) -> Vec<(f64, usize)> {
        let mut children: Vec<(f64, usize)> = Vec::new();
        for set in self.space.next(mesh, sets) {
            let with = [sets, &[set]].concat();
            let parts = self.space.parts_of(mesh, &[]);
            let of = |stored: &[Stored]| self.space.roofline(self.work, (mesh, &with), stored, (0, &parts));
            // Parameters that are stored split may have any kernel split.
            let bound = of(&vec![Stored::Whole; with.len()]).min(of(&self.space.most(&with)));
            children.push((bound.max(least), set));
        }
        children.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
        children
    }

    /// How many candidates have the rules of one: the pipelines of its stages.
    fn pipes_of(&self, c: &Candidate) -> u64 {
        self.space.pipes(&c.mesh).len().max(1) as u64
    }

    /// The bound of the first axes of a mesh, each alone.
    fn least(&mut self, mesh: &[usize], sets: &[usize]) -> f64 {
        self.alone.least((self.space, self.work, self.subject), (mesh, sets))
    }

    fn base(&mut self, bound: f64, mesh: Vec<usize>, sets: Vec<usize>) {
        let stored = vec![Stored::Whole; sets.len()];
        self.push(bound, TreeNode::Base(Candidate { mesh, sets, stored, ..Candidate::default() }));
    }

    /// Adds the candidates with the rules of a base, and keeps it for candidates that others lead to.
    fn variants(&mut self, base: &Candidate, of: BaseWork) {
        let (space, known) = (self.space, (self.space, self.work));
        let mut bounds = RuleBounds::new(known, (&of, &base.mesh), self.subject.machine);
        for c in space.variants(base).filter(|c| c != base || space.stages(&base.mesh) > 1) {
            self.push(bounds.of(&c).b1, TreeNode::Leaf(c));
        }
        self.bases.insert((base.mesh.clone(), base.sets.clone()), of);
    }

    fn push(&mut self, bound: f64, node: TreeNode) {
        self.made += 1;
        let rank = match &node {
            TreeNode::Axes { mesh, sets, .. } => (mesh.len(), sets.len(), self.made),
            TreeNode::Base(c) | TreeNode::Leaf(c) => {
                let extras = c.stored.iter().filter(|s| **s != Stored::Whole).count();
                (
                    c.mesh.len() + usize::from(self.space.stages(&c.mesh) > 1),
                    extras
                        + c.parts
                        + c.recompute
                        + usize::from(c.trades.keep)
                        + usize::from(c.trades.reduce),
                    self.made,
                )
            }
        };
        self.heap.push(Entry { bound, rank, node });
    }

    /// Runs the tasks on threads; results are in the order of the tasks.
    fn done(&self, batch: &[Task], cores: usize) -> Vec<Done> {
        let next = AtomicUsize::new(0);
        let results: Mutex<Vec<(usize, Done)>> = Mutex::new(Vec::new());
        let best = self.best().unwrap_or(f64::INFINITY);
        let run = || {
            loop {
                let at = next.fetch_add(1, Atomic::Relaxed);
                let Some(task) = batch.get(at) else { return };
                let done = self.one(task, best);
                results.lock().unwrap_or_else(PoisonError::into_inner).push((at, done));
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..cores.clamp(1, batch.len().max(1)) {
                scope.spawn(run);
            }
            run();
        });
        let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        results.sort_by_key(|r| r.0);
        results.into_iter().map(|r| r.1).collect()
    }

    fn one(&self, task: &Task, best: f64) -> Done {
        let (space, work, subject) = (self.space, self.work, self.subject);
        match task {
            Task::Alone(of) => Done::Alone(Box::new(AxesAlone::compiled((space, work, subject), *of))),
            Task::Base(c) => Done::Bounded(Box::new(subject.base(&space.written(c), work))),
            Task::Stage(c) => {
                let (text, devices) = (space.written(c), c.mesh.iter().product());
                Done::Alone(Box::new(match space.choices.kept.microbatches {
                    true => subject.base(&text, work).map(|b| b.map(|b| b.1)),
                    false => subject.stage(&text, work, devices),
                }))
            }
            Task::Estimate(c) | Task::Near(c) => {
                let pipes = match task {
                    _ if space.stages(&c.mesh) == 1 => {
                        let alone = subject.estimate(&space.written(c));
                        return Done::Estimated(Box::new(alone.map(|of| of.map(|one| vec![(None, one)]))));
                    }
                    Task::Near(_) => subject.near_pipes(space, c, best),
                    _ => subject.estimate_pipes(space, c),
                };
                let named = |all: Vec<(Pipe, Estimate)>| all.into_iter().map(|(p, e)| (Some(p), e)).collect();
                Done::Estimated(Box::new(pipes.map(|of| of.map(named))))
            }
        }
    }

    fn take(&mut self, task: Task, done: Done) -> Result<(), EstimateError> {
        self.outcome.compiled += 1;
        match (task, done) {
            (Task::Alone(of), Done::Alone(done)) => match *done {
                Err(why) => self.alone.take(of, Err(why)),
                Ok(base) => self.alone.take(of, Ok(base?)),
            },
            (Task::Base(candidate), Done::Bounded(done)) => match *done {
                Err(why) => self.refuse(why, self.space.alike(&candidate.mesh, &candidate.sets)),
                Ok(of) => {
                    let (estimate, base) = of?;
                    self.has_base = true;
                    self.memory.keeps(self.space, &candidate, std::slice::from_ref(&estimate));
                    self.variants(&candidate, base);
                    // Equal sets that store alike are not a candidate: they are one axis.
                    let is_new = self.estimated.insert(candidate.clone());
                    if is_new && self.space.stored(&candidate.sets, 1).contains(&candidate.stored) {
                        self.has_estimate(candidate, estimate);
                    }
                }
            },
            (Task::Stage(candidate), Done::Alone(done)) => match *done {
                Err(why) => self.refuse(why, self.space.alike(&candidate.mesh, &candidate.sets)),
                Ok(base) => self.variants(&candidate, base?),
            },
            // What is refused is counted when its turn comes.
            (Task::Near(_), Done::Estimated(done)) if done.is_err() => {}
            // A projection alone leads on; the candidate is estimated when its turn comes.
            (Task::Near(candidate), Done::Estimated(done)) if matches!(&*done, Ok(Ok(all)) if all.iter().all(|(_, e)| projected(e))) => {
                for (pipe, estimate) in done.ok().into_iter().flatten().flatten() {
                    self.misses(Candidate { pipe, ..candidate.clone() }, estimate);
                }
            }
            (Task::Estimate(candidate) | Task::Near(candidate), Done::Estimated(done)) => match *done {
                Err(why) => self.refuse(why, self.pipes_of(&candidate)),
                Ok(all) => {
                    self.estimated.insert(candidate.clone());
                    let all = all?;
                    self.has_base |= self.outcome.compiled > STARTS as u64;
                    let each: Vec<_> = all.iter().map(|(_, e)| e.clone()).collect();
                    self.memory.keeps(self.space, &candidate, &each);
                    for (pipe, estimate) in all {
                        self.has_estimate(Candidate { pipe, ..candidate.clone() }, estimate);
                    }
                }
            },
            _ => {}
        }
        Ok(())
    }

    fn refuse(&mut self, why: CandidateRefusal, candidates: u64) {
        match why {
            CandidateRefusal::Gather => self.outcome.rejected.gather += candidates,
            CandidateRefusal::Conflict => self.outcome.rejected.conflict += candidates,
        }
    }

    fn has_estimate(&mut self, candidate: Candidate, estimate: Estimate) {
        self.outcome.estimated += 1;
        if self.fits(&estimate) {
            self.outcome.found.push(self.found(candidate, estimate));
        } else {
            self.outcome.rejected.memory += 1;
            self.misses(candidate, estimate);
        }
    }

    fn found(&self, candidate: Candidate, estimate: Estimate) -> FoundLayout {
        FoundLayout { written: self.space.written(&candidate), candidate, estimate }
    }

    fn fits(&self, estimate: &Estimate) -> bool {
        fits(estimate, self.subject.machine.device.memory)
    }

    /// Remembers the candidate that misses least, where one does not fit.
    fn misses(&mut self, candidate: Candidate, estimate: Estimate) {
        if self.fits(&estimate) {
            return;
        }
        let found = self.found(candidate, estimate);
        let peak = |f: &FoundLayout| f.estimate.memory.peak_bytes;
        if self.outcome.nearest.as_ref().is_none_or(|n| peak(&found) < peak(n)) {
            self.outcome.nearest = Some(found);
        }
    }
}
