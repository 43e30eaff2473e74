//! The search: candidates in the order of their bounds, until no bound is below the best estimate.
//!
//! A node is a mesh with the sets of some of its axes, a base, or a candidate. Children are made as they are needed, the one with the lowest bound
//! first, so a space of billions is never listed. A base has a set for each axis, and nothing besides: it is compiled, and bounds all that
//! have its rules and store values split, take the batch in parts, or compute loops again. A fixed number of candidates is compiled at once and their results are taken in order: the
//! answer does not depend on the number of threads.

use crate::alone::{AxesAlone, AxisOfSet};
use crate::base::BaseWork;
use crate::base_bound::{BaseBound, BasePlace};
use crate::bound::{held, roofline};
use crate::compiled::{CandidateRefusal, CandidateResult, Subject};
use crate::space::{Space, Stored};
use crate::text::{Candidate, WrittenLayout};
use crate::work::ModelWork;
use meshwright_cost::estimate::{Estimate, EstimateError, Fits};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::atomic::{AtomicUsize, Ordering as Atomic};
use std::sync::{Mutex, PoisonError};

/// Candidates that are compiled at once, whatever the number of threads.
const AT_ONCE: usize = 8;
/// Candidates whose times differ by less than this, relatively, are equal: the simplest is chosen.
pub const TIE: f64 = 0.005;

/// A candidate with its estimate.
#[derive(Clone, Debug)]
pub struct FoundLayout {
    /// The candidate.
    pub candidate: Candidate,
    /// Its text.
    pub written: WrittenLayout,
    /// Its estimate.
    pub estimate: Estimate,
}

/// Candidates without an estimate, or that do not fit, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rejected {
    /// Rules that do not go together.
    pub conflict: u64,
    /// A gather that no rule implies.
    pub gather: u64,
    /// Too large for the memory.
    pub memory: u64,
}

/// What a search has found.
#[derive(Clone, Debug, Default)]
pub struct SearchOutcome {
    /// All estimated candidates that fit, the best first.
    pub found: Vec<FoundLayout>,
    /// No candidate that was not estimated is faster than this.
    pub bound: f64,
    /// Programs that were compiled.
    pub compiled: u64,
    /// Rejected candidates that were looked at.
    pub rejected: Rejected,
    /// Sets that no layout may have, since alone over an axis they need a gather or do not go together, with the reason.
    pub refused: BTreeMap<usize, CandidateRefusal>,
    /// The candidate that misses least, where one does not fit.
    pub nearest: Option<FoundLayout>,
}

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
    /// Asked between compilations, and told how far it is: whether to stop.
    pub stop: &'a mut dyn FnMut(Progress) -> bool,
}

/// A node of the search.
#[derive(Clone, Debug)]
enum TreeNode {
    /// The children of a mesh with some sets, in the order of their bounds, from a position on.
    Axes { mesh: Vec<usize>, sets: Vec<usize>, children: Vec<(f64, usize)>, from: usize },
    /// A mesh with all its sets, before any of its candidates is made.
    Base(Candidate),
    /// A candidate.
    Leaf(Candidate),
}

/// A node in the order of its bound; of equal bounds that with fewer axes and rules, then the older.
#[derive(Clone, Debug)]
struct Entry {
    bound: f64,
    rank: (usize, usize, u64),
    node: TreeNode,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        // A heap gives the greatest.
        other.bound.total_cmp(&self.bound).then_with(|| other.rank.cmp(&self.rank))
    }
}

/// A search under way.
pub struct Search<'a> {
    space: &'a Space,
    work: &'a ModelWork,
    subject: &'a Subject<'a>,
    heap: BinaryHeap<Entry>,
    alone: AxesAlone,
    made: u64,
    outcome: SearchOutcome,
}

/// What is done for a batch.
enum Task {
    /// A set alone over an axis.
    Alone(AxisOfSet),
    /// A candidate that is a base.
    Base(Candidate),
    /// Another candidate.
    Estimate(Candidate),
}

/// Its result.
enum Done {
    Alone(Box<CandidateResult<BaseWork>>),
    Bounded(Box<CandidateResult<(Estimate, BaseWork)>>),
    Estimated(Box<CandidateResult<Estimate>>),
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
            made: 0,
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
        loop {
            self.outcome.bound = self.heap.peek().map_or(f64::INFINITY, |e| e.bound);
            let best = self.best();
            let progress = Progress { compiled: self.outcome.compiled, best, bound: self.outcome.bound };
            if (limits.stop)(progress) {
                break;
            }
            let batch = self.batch();
            if batch.is_empty() {
                break;
            }
            let results = self.done(&batch, limits.cores);
            for (task, done) in batch.into_iter().zip(results) {
                self.take(task, done)?;
            }
        }
        self.outcome.bound = self.heap.peek().map_or(f64::INFINITY, |e| e.bound);
        self.outcome.found.sort_by(|a, b| {
            a.estimate.seconds.total_cmp(&b.estimate.seconds).then_with(|| a.candidate.cmp(&b.candidate))
        });
        choose(&mut self.outcome.found);
        self.outcome.refused = self.alone.refused;
        Ok(self.outcome)
    }

    fn best(&self) -> Option<f64> {
        self.outcome.found.iter().map(|f| f.estimate.seconds).min_by(f64::total_cmp)
    }

    /// The next tasks; none where the best is proven.
    fn batch(&mut self) -> Vec<Task> {
        let limit = self.best().map_or(f64::INFINITY, |s| s * (1.0 + TIE));
        let (mut batch, mut probes, mut held) = (Vec::new(), BTreeSet::new(), Vec::new());
        while batch.len() < AT_ONCE {
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
            if c.sets.iter().any(|s| self.alone.refused.contains_key(s)) {
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
            } else if self.held_too_much(&c, base) {
                self.outcome.rejected.memory += if base { self.space.alike(&c.mesh, &c.sets) } else { 1 };
            } else {
                batch.push(if base { Task::Base(c) } else { Task::Estimate(c) });
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
        let mut children: Vec<(f64, usize)> = Vec::new();
        for set in self.space.next(&mesh, &sets) {
            let with = [&sets[..], &[set]].concat();
            let of = |stored: &[Stored]| roofline(self.work, &self.space.shares(&mesh, &with, stored), 0);
            // Parameters that are stored split may have any kernel split.
            let bound = of(&vec![Stored::Whole; with.len()]).min(of(&self.most(&with)));
            children.push((bound.max(least), set));
        }
        children.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
        if let Some((bound, _)) = children.first() {
            self.push(*bound, TreeNode::Axes { mesh, sets, children, from: 0 });
        }
    }

    /// All that may be stored over the axes with these sets.
    fn most(&self, sets: &[usize]) -> Vec<Stored> {
        let of = |s: &usize| if self.space.sets[*s].sums { Stored::Params } else { Stored::Whole };
        sets.iter().map(of).collect()
    }

    /// The bound of the first axes of a mesh, each alone.
    fn least(&mut self, mesh: &[usize], sets: &[usize]) -> f64 {
        self.alone.least((self.space, self.work, self.subject), (mesh, sets))
    }

    fn base(&mut self, bound: f64, mesh: Vec<usize>, sets: Vec<usize>) {
        let stored = vec![Stored::Whole; sets.len()];
        self.push(bound, TreeNode::Base(Candidate { mesh, sets, stored, parts: 0, recompute: 0 }));
    }

    /// Adds the candidates with the rules of a base.
    fn variants(&mut self, base: &Candidate, of: &BaseWork) {
        let (space, work) = (self.space, self.work);
        let Some(rates) = &work.rates else { return };
        let bound = BaseBound::new(of, BasePlace::whole(&base.mesh), rates, self.subject.machine);
        for parts in 0..space.parts_of(&base.mesh, &base.sets) {
            for stored in space.stored(&base.sets, space.parts[parts]) {
                let axes = space.shares(&base.mesh, &base.sets, &stored);
                let none = roofline(work, &axes, 0);
                for recompute in 0..space.recompute.len() {
                    let c = Candidate { stored: stored.clone(), parts, recompute, ..base.clone() };
                    if c != *base {
                        let again = roofline(work, &axes, recompute);
                        self.push(
                            again.max(bound.seconds(&c.stored, parts, again - none)),
                            TreeNode::Leaf(c),
                        );
                    }
                }
            }
        }
    }

    fn push(&mut self, bound: f64, node: TreeNode) {
        self.made += 1;
        let rank = match &node {
            TreeNode::Axes { mesh, sets, .. } => (mesh.len(), sets.len(), self.made),
            TreeNode::Base(c) | TreeNode::Leaf(c) => {
                let extras = c.stored.iter().filter(|s| **s != Stored::Whole).count();
                (c.mesh.len(), extras + c.parts + c.recompute, self.made)
            }
        };
        self.heap.push(Entry { bound, rank, node });
    }

    /// Runs the tasks on threads; results are in the order of the tasks.
    fn done(&self, batch: &[Task], cores: usize) -> Vec<Done> {
        let next = AtomicUsize::new(0);
        let results: Mutex<Vec<(usize, Done)>> = Mutex::new(Vec::new());
        let bounded = |text: &WrittenLayout| Done::Bounded(Box::new(self.subject.base(text, self.work)));
        let run = || {
            loop {
                let at = next.fetch_add(1, Atomic::Relaxed);
                let Some(task) = batch.get(at) else { return };
                let done = match task {
                    Task::Alone(of) => {
                        let of = AxesAlone::compiled((self.space, self.work, self.subject), *of);
                        Done::Alone(Box::new(of))
                    }
                    Task::Base(c) => bounded(&self.space.written(c)),
                    Task::Estimate(c) => {
                        Done::Estimated(Box::new(self.subject.estimate(&self.space.written(c))))
                    }
                };
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
                    self.variants(&candidate, &base);
                    // Of equal sets that store alike there is no candidate: they are one axis.
                    if self.space.stored(&candidate.sets, 1).contains(&candidate.stored) {
                        self.estimated(candidate, estimate);
                    }
                }
            },
            (Task::Estimate(candidate), Done::Estimated(done)) => match *done {
                Err(why) => self.refuse(why, 1),
                Ok(estimate) => self.estimated(candidate, estimate?),
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

    fn estimated(&mut self, candidate: Candidate, estimate: Estimate) {
        let fits = !matches!(estimate.memory.fits, Fits::No { .. });
        let found = FoundLayout { written: self.space.written(&candidate), candidate, estimate };
        if fits {
            self.outcome.found.push(found);
            return;
        }
        self.outcome.rejected.memory += 1;
        let peak = |f: &FoundLayout| f.estimate.memory.peak_bytes;
        if self.outcome.nearest.as_ref().is_none_or(|n| peak(&found) < peak(n)) {
            self.outcome.nearest = Some(found);
        }
    }

    /// Whether parameters and optimizer state alone do not fit: those of a candidate, or of all with the rules of a base.
    fn held_too_much(&self, c: &Candidate, base: bool) -> bool {
        let most = if base { self.most(&c.sets) } else { c.stored.clone() };
        let axes = self.space.shares(&c.mesh, &c.sets, &most);
        held(self.work, &axes) > self.subject.machine.device.memory
    }
}

/// Puts the best first: of those within [`TIE`] of the fastest the one with the fewest rules, then the least memory, then the first by its text.
fn choose(found: &mut [FoundLayout]) {
    let Some(least) = found.first().map(|f| f.estimate.seconds) else { return };
    let ties = found.partition_point(|f| f.estimate.seconds <= least * (1.0 + TIE));
    let key = |f: &FoundLayout| (f.written.lines.len(), f.estimate.memory.peak_bytes, f.written.clone());
    let best = (0..ties).min_by_key(|i| key(&found[*i])).unwrap_or(0);
    found[..=best].rotate_right(1);
}
