//! The search: candidates in the order of their bounds, until no bound is below the best estimate.
//!
//! A node is a mesh with the sets of some of its axes, or a candidate. Children are made as they are needed, the one with the lowest bound
//! first, so a space of billions is never listed. A fixed number of candidates is compiled at once and their results are taken in order: the
//! answer does not depend on the number of threads.

use crate::bound::{held, roofline};
use crate::compiled::{CandidateRefusal, Subject};
use crate::space::{Space, Stored};
use crate::text::{Candidate, WrittenLayout};
use crate::work::ModelWork;
use meshwright_cost::estimate::{Estimate, EstimateError, Fits};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::atomic::{AtomicUsize, Ordering as Atomic};
use std::sync::{Mutex, PoisonError};

/// Candidates that are compiled at once, whatever the number of threads.
const AT_ONCE: usize = 16;
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
    /// Sets that are known to be fine alone.
    fine: BTreeSet<usize>,
    /// Candidates that have been made, for those that are reached in several ways.
    seen: BTreeSet<Candidate>,
    made: u64,
    outcome: SearchOutcome,
}

/// What is done for a batch.
enum Task {
    /// A set alone over an axis.
    Probe(usize),
    /// A candidate with its bound.
    Estimate(f64, Candidate),
}

/// Its result.
enum Done {
    Probed(Result<(), CandidateRefusal>),
    Estimated(Box<Result<Result<Estimate, EstimateError>, CandidateRefusal>>),
}

impl<'a> Search<'a> {
    /// Over a space.
    pub fn new(space: &'a Space, work: &'a ModelWork, subject: &'a Subject<'a>) -> Search<'a> {
        let mut search = Search {
            space,
            work,
            subject,
            heap: BinaryHeap::new(),
            fine: BTreeSet::new(),
            seen: BTreeSet::new(),
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
            match node {
                TreeNode::Axes { mesh, sets, children, from } => self.child(mesh, sets, children, from),
                TreeNode::Leaf(c) => {
                    if c.sets.iter().any(|s| self.outcome.refused.contains_key(s)) {
                        continue;
                    }
                    let unknown: Vec<usize> =
                        c.sets.iter().copied().filter(|s| !self.fine.contains(s)).collect();
                    if unknown.is_empty() {
                        if held_too_much(self, &c) {
                            self.outcome.rejected.memory += 1;
                        } else {
                            batch.push(Task::Estimate(bound, c));
                        }
                        continue;
                    }
                    batch.extend(unknown.into_iter().filter(|s| probes.insert(*s)).map(Task::Probe));
                    held.push(Entry { bound, rank, node: TreeNode::Leaf(c) });
                }
            }
        }
        self.heap.extend(held);
        batch
    }

    /// Takes the best child of a node that is left.
    fn child(&mut self, mesh: Vec<usize>, sets: Vec<usize>, children: Vec<(f64, usize)>, from: usize) {
        let Some((bound, set)) = children.get(from).copied() else { return };
        let taken = [&sets[..], &[set]].concat();
        if let Some((next, _)) = children.get(from + 1) {
            let node =
                TreeNode::Axes { mesh: mesh.clone(), sets, children: children.clone(), from: from + 1 };
            self.push(*next, node);
        }
        if taken.len() < mesh.len() {
            self.open(mesh, taken, bound);
        } else {
            self.variants(mesh, taken);
        }
    }

    /// Adds the node of a mesh with some sets. Its bound is at least that of its parent.
    fn open(&mut self, mesh: Vec<usize>, sets: Vec<usize>, least: f64) {
        if sets.len() == mesh.len() {
            return self.variants(mesh, sets);
        }
        let mut children: Vec<(f64, usize)> = Vec::new();
        for set in self.space.next(&mesh, &sets) {
            let with = [&sets[..], &[set]].concat();
            // Parameters that are stored split may have any kernel split.
            let stored = vec![Stored::Whole; with.len()];
            let whole = roofline(self.work, &self.space.shares(&mesh, &with, &stored));
            let most: Vec<Stored> = with
                .iter()
                .map(|s| if self.space.sets[*s].sums { Stored::Params } else { Stored::Whole })
                .collect();
            let split = roofline(self.work, &self.space.shares(&mesh, &with, &most));
            children.push((whole.min(split).max(least), set));
        }
        children.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
        if let Some((bound, _)) = children.first() {
            self.push(*bound, TreeNode::Axes { mesh, sets, children, from: 0 });
        }
    }

    /// Adds the candidates of a mesh with all its sets: the one that stores everything as it is used, and the others.
    fn variants(&mut self, mesh: Vec<usize>, sets: Vec<usize>) {
        for stored in self.space.stored(&sets, 1) {
            let bound = roofline(self.work, &self.space.shares(&mesh, &sets, &stored));
            let candidate =
                Candidate { mesh: mesh.clone(), sets: sets.clone(), stored, parts: 0, recompute: 0 };
            self.leaf(bound, candidate);
        }
    }

    fn leaf(&mut self, bound: f64, candidate: Candidate) {
        if self.seen.insert(candidate.clone()) {
            self.push(bound, TreeNode::Leaf(candidate));
        }
    }

    fn push(&mut self, bound: f64, node: TreeNode) {
        self.made += 1;
        let rank = match &node {
            TreeNode::Axes { mesh, sets, .. } => (mesh.len(), sets.len(), self.made),
            TreeNode::Leaf(c) => {
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
        let run = || {
            loop {
                let at = next.fetch_add(1, Atomic::Relaxed);
                let Some(task) = batch.get(at) else { return };
                let done = match task {
                    Task::Probe(set) => Done::Probed(self.subject.probe(&self.alone(*set))),
                    Task::Estimate(_, c) => {
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

    /// A set alone over an axis of two devices.
    fn alone(&self, set: usize) -> WrittenLayout {
        let mut mesh = vec![2];
        let mut sets = vec![set];
        // Kept lines need their axes.
        while mesh.len() < self.space.choices.kept.axes.len() {
            mesh.push(2);
            let empty = self.space.sets.iter().position(|s| s.dims.is_empty());
            sets.extend(empty);
        }
        let stored = vec![Stored::Whole; mesh.len()];
        self.space.written(&Candidate { mesh, sets, stored, parts: 0, recompute: 0 })
    }

    fn take(&mut self, task: Task, done: Done) -> Result<(), EstimateError> {
        self.outcome.compiled += 1;
        match (task, done) {
            (Task::Probe(set), Done::Probed(Ok(()))) => {
                self.fine.insert(set);
            }
            (Task::Probe(set), Done::Probed(Err(why))) => {
                self.outcome.refused.insert(set, why);
            }
            (Task::Estimate(bound, candidate), Done::Estimated(done)) => match *done {
                Err(CandidateRefusal::Gather) => self.outcome.rejected.gather += 1,
                Err(CandidateRefusal::Conflict) => self.outcome.rejected.conflict += 1,
                Ok(estimate) => self.estimated(bound, candidate, estimate?),
            },
            _ => {}
        }
        Ok(())
    }

    fn estimated(&mut self, bound: f64, candidate: Candidate, estimate: Estimate) {
        let fits = !matches!(estimate.memory.fits, Fits::No { .. });
        let found = FoundLayout { written: self.space.written(&candidate), candidate, estimate };
        if fits {
            self.outcome.found.push(found);
            return;
        }
        self.outcome.rejected.memory += 1;
        self.smaller(bound, &found.candidate);
        let peak = |f: &FoundLayout| f.estimate.memory.peak_bytes;
        if self.outcome.nearest.as_ref().is_none_or(|n| peak(&found) < peak(n)) {
            self.outcome.nearest = Some(found);
        }
    }

    /// What takes more time and less memory than a candidate that does not fit: more parts of the batch, or values that are computed again.
    fn smaller(&mut self, bound: f64, c: &Candidate) {
        let more = c.parts + 1;
        if more < self.space.parts_of(&c.mesh, &c.sets) {
            for stored in self.space.stored(&c.sets, 2) {
                // Gradients that are stored split are another candidate only from the second part on.
                let kin = stored == c.stored || c.parts == 0 && lowered(&stored) == c.stored;
                if kin {
                    self.leaf(bound, Candidate { stored, parts: more, ..c.clone() });
                }
            }
        }
        for recompute in 1..self.space.recompute.len() {
            if c.recompute == 0 {
                self.leaf(bound, Candidate { recompute, ..c.clone() });
            }
        }
    }
}

/// What is stored, without a distinction between gradients and optimizer state.
fn lowered(stored: &[Stored]) -> Vec<Stored> {
    stored.iter().map(|s| if *s == Stored::Grads { Stored::Moments } else { *s }).collect()
}

fn held_too_much(search: &Search<'_>, c: &Candidate) -> bool {
    let axes = search.space.shares(&c.mesh, &c.sets, &c.stored);
    held(search.work, &axes) > search.subject.machine.device.memory
}

/// Puts the best first: of those within [`TIE`] of the fastest the one with the fewest rules, then the least memory, then the first by its text.
fn choose(found: &mut [FoundLayout]) {
    let Some(least) = found.first().map(|f| f.estimate.seconds) else { return };
    let ties = found.partition_point(|f| f.estimate.seconds <= least * (1.0 + TIE));
    let key = |f: &FoundLayout| (f.written.lines.len(), f.estimate.memory.peak_bytes, f.written.clone());
    let best = (0..ties).min_by_key(|i| key(&found[*i])).unwrap_or(0);
    found[..=best].rotate_right(1);
}
