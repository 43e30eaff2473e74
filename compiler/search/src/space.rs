//! Which layouts there are: meshes, what each axis splits, scopes, microbatches and recomputation.

use crate::shape::{ALL, Families};
use crate::work::ModelWork;
use meshwright_core::layout::{dims_together, second_names};
use meshwright_core::{Program, StepGraph};
use meshwright_cost::pipe::Pipe;
use meshwright_plan::Dim;
use meshwright_plan::actions::PipelineSchedule;
use meshwright_sorted::{SortedMap, SortedSet};

/// Most axes of a mesh.
pub const MOST_AXES: usize = 3;
/// Most sets of dims for an axis. Of more, those of the fewest dims are left out, and the report says how many.
const MOST_SETS: usize = 400;

/// Fixed choices of a search.
#[derive(Clone, Debug, Default)]
pub struct SearchChoices {
    /// Number of devices.
    pub devices: usize,
    /// Names of axes, major first; chosen by what they split where there are none.
    pub axes: Vec<String>,
    /// Axes come in all orders; otherwise axes that split the batch come first.
    pub orders: bool,
    /// Lines of a layout that each candidate keeps.
    pub kept: FixedRules,
    /// Dims that may be gathered although no rule implies it.
    pub gathers: Vec<String>,
    /// The loop of layers may be cut into the stages of a pipeline.
    pub pipes: bool,
}

/// The lines of a layout that each candidate keeps.
#[derive(Clone, Debug, Default)]
pub struct FixedRules {
    /// Their text, without a mesh.
    pub text: String,
    /// Axes that they name.
    pub axes: Vec<String>,
    /// Dims with a rule for all values.
    pub dims: SortedSet<String>,
    /// They have rules for optimizer states, gradients, parameters or paths.
    pub scopes: bool,
    /// The most that these split for all paths.
    pub stored: Stored,
    /// They say which copies of parameters are kept, or when gradients are reduced.
    pub trades: bool,
    /// They have numbers of microbatches.
    pub microbatches: bool,
    /// They have paths to recompute.
    pub recompute: bool,
}

/// Splits of an axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AxisSet {
    /// Dims that are never together in one value.
    pub dims: Vec<Dim>,
    /// A dim that yields to them.
    pub free: Option<Dim>,
    /// Their families.
    pub families: Families,
    /// The batch is among the dims.
    pub batch: bool,
    /// Whether gradients of most parameters are summed over the axis: it splits examples, or positions in them.
    pub sums: bool,
    /// Size of the smallest dim.
    pub smallest: usize,
}

/// Values that are split over an axis, beyond those that the rules for all values split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stored {
    /// None.
    #[default]
    Whole,
    /// The optimizer state.
    Moments,
    /// The gradients too; without microbatches this is the same.
    Grads,
    /// The parameters too.
    Params,
}

/// Lines that trade memory for bytes that are moved, where parameters are stored split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Trades {
    /// Copies of parameters are gathered once a step, and kept.
    pub keep: bool,
    /// Gradients are reduced once a step where otherwise each part of the batch reduces its own, or the other way round.
    pub reduce: bool,
}

impl Trades {
    /// All, the one without lines first.
    const ALL: [Trades; 4] = [
        Trades { keep: false, reduce: false },
        Trades { keep: true, reduce: false },
        Trades { keep: false, reduce: true },
        Trades { keep: true, reduce: true },
    ];
}

/// All layouts of a search.
#[derive(Clone, Debug)]
pub struct Space {
    /// The fixed choices.
    pub choices: SearchChoices,
    /// Splits of an axis: sets with the batch first.
    pub sets: Vec<AxisSet>,
    /// Sets left out since there are too many, at least.
    pub left_out: usize,
    /// Sizes of the axes of each mesh, major first; of a stage, where it has fewer devices than are asked for.
    pub meshes: Vec<Vec<usize>>,
    /// The loop of layers that stages may divide with its iterations, if there is one and they may.
    pub layers: Option<(Dim, usize)>,
    /// Numbers of parts that a step may take its batch in, ascending.
    pub parts: Vec<usize>,
    /// Dims of the loops that may be recomputed, each by itself, or all of them.
    pub recompute: Vec<Vec<String>>,
    /// Examples in a batch.
    pub batch: usize,
    /// Families that the kept lines may split over any axis.
    pub kept_families: Families,
    names: SortedMap<Dim, String>,
}

impl Space {
    /// Of a training step.
    pub fn of(program: &Program, step: &StepGraph, work: &ModelWork, choices: SearchChoices) -> Space {
        let dims = &step.graph.dims;
        let example = program.inputs.first().and_then(|i| i.0.dims.first()).copied();
        let (sets, left_out) = sets(step, work, &choices, example);
        let most = if choices.axes.is_empty() { MOST_AXES } else { choices.axes.len() };
        let least = choices.kept.axes.len();
        let layers = program.layers().filter(|_| choices.pipes);
        let most_stages = layers.map_or(1, |l| l.1);
        let mut meshes = Vec::new();
        for stages in (1..=most_stages.max(1)).filter(|n| choices.devices.is_multiple_of(*n)) {
            factorizations(choices.devices / stages, most, &mut Vec::new(), &mut meshes);
        }
        meshes.retain(|m| m.len() >= least);
        let batch = example.map_or(1, |d| dims.size(d)).max(1);
        let parts = parts(batch, &choices.kept);
        let recompute = recomputations(program, &choices.kept);
        let kept_dims = choices.kept.dims.iter().filter_map(|name| dims.find(name));
        let kept_families = if choices.kept.scopes { ALL } else { work.families(kept_dims) };
        let names = dims.iter().map(|(d, name)| (d, name.to_string())).collect();
        Space { choices, sets, left_out, meshes, layers, parts, recompute, batch, kept_families, names }
    }

    /// Number of pipeline stages, each of which has such a mesh.
    pub fn stages(&self, mesh: &[usize]) -> usize {
        self.choices.devices / mesh.iter().product::<usize>().max(1)
    }

    /// The pipelines of stages with such a mesh; none where one stage has all devices. GPipe is left out: it takes no less time
    /// than 1F1B, and more memory. Chunks divide the layers evenly.
    pub fn pipes(&self, mesh: &[usize]) -> Vec<Pipe> {
        let stages = self.stages(mesh);
        let layers = self.layers.map_or(0, |l| l.1);
        let even = |chunks: &usize| *chunks == 1 || layers.is_multiple_of(stages * chunks);
        let all = (1..=layers / stages.max(1)).filter(even).flat_map(|chunks| {
            [PipelineSchedule::OneForwardOneBackward, PipelineSchedule::ZbH1].map(|schedule| Pipe {
                stages,
                schedule,
                chunks,
                ends: false,
            })
        });
        if stages > 1 { all.collect() } else { Vec::new() }
    }

    /// The name of a dim.
    pub fn name(&self, dim: Dim) -> &str {
        &self.names[&dim]
    }

    /// Whether candidates of the search may have this set.
    pub(crate) fn is_searched(&self, set: usize) -> bool {
        !self.sets[set].dims.is_empty() || !self.choices.kept.axes.is_empty()
    }

    /// Positions of sets that an axis may take, given those of the axes before it and its size.
    pub fn next(&self, mesh: &[usize], before: &[usize]) -> impl Iterator<Item = usize> + '_ {
        let size = mesh[before.len()];
        // An axis that the kept lines name need not split anything else.
        let kept = before.len() < self.choices.kept.axes.len();
        let first = if self.choices.orders || kept { 0 } else { before.last().copied().unwrap_or(0) };
        let before = before.to_vec();
        (first..self.sets.len()).filter(move |i| {
            let set = &self.sets[*i];
            if set.dims.is_empty() {
                return kept;
            }
            let fits = set.smallest >= size;
            // Two axes with the same dims differ by what is stored over them alone.
            let again = before.contains(i) && (self.choices.kept.scopes || !set.sums);
            let strict = |d: &Dim| before.iter().any(|b| self.sets[*b].free == Some(*d));
            let free = |d: &Dim| before.iter().any(|b| self.sets[*b].dims.contains(d));
            fits && !again && !set.dims.iter().any(strict) && !set.free.iter().any(free)
        })
    }

    /// The ways to store over the axes with these sets, apart from that by the rules for all values alone, which is the first.
    pub fn stored(&self, sets: &[usize], parts: usize) -> Vec<Vec<Stored>> {
        let mut all = vec![Vec::new()];
        for (at, i) in sets.iter().enumerate() {
            let levels: &[Stored] = match (self.sets[*i].sums && !self.choices.kept.scopes, parts > 1) {
                (false, _) => &[Stored::Whole],
                (true, false) => &[Stored::Whole, Stored::Moments, Stored::Params],
                (true, true) => &[Stored::Whole, Stored::Moments, Stored::Grads, Stored::Params],
            };
            let with = |before: &Vec<Stored>| {
                let before = before.clone();
                levels.iter().map(move |l| [&before[..], &[*l]].concat())
            };
            all = all.iter().flat_map(with).collect();
            // Equal sets with equal storage are one axis cut in two.
            let twins = || (0..at).filter(|twin| sets[*twin] == *i);
            all.retain(|s: &Vec<Stored>| twins().all(|twin| s[twin] != s[at]));
        }
        all
    }

    /// All that may be stored over the axes with these sets.
    pub(crate) fn most(&self, sets: &[usize]) -> Vec<Stored> {
        let of = |s: &usize| if self.sets[*s].sums { Stored::Params } else { Stored::Whole };
        sets.iter().map(of).collect()
    }

    /// What may be traded with this stored over each axis, in the number of parts at this position: nothing first. Without a rule
    /// for parameters the other time at which gradients may be reduced is that of another rule.
    pub fn trades(&self, stored: &[Stored], parts: usize) -> impl Iterator<Item = Trades> + use<> {
        let kept = &self.choices.kept;
        let most = stored.iter().copied().fold(kept.stored, Stored::max);
        let in_parts = self.parts[parts] > 1 || kept.microbatches;
        let keep = !kept.trades && most == Stored::Params;
        let own = if kept.scopes { Stored::Moments } else { Stored::Params };
        let reduce = !kept.trades && most >= own && in_parts;
        Trades::ALL.into_iter().filter(move |t| (keep || !t.keep) && (reduce || !t.reduce))
    }

    /// The positions of numbers of parts that leave each device along the axes of the batch an example at least. A pipeline
    /// without parts would be no faster than one of its stages with all layers.
    pub fn parts_of(&self, mesh: &[usize], sets: &[usize]) -> std::ops::Range<usize> {
        let alone = self.stages(mesh) == 1 || self.choices.kept.microbatches;
        usize::from(!alone)..self.most_parts(mesh, sets)
    }

    fn most_parts(&self, mesh: &[usize], sets: &[usize]) -> usize {
        let along: usize =
            mesh.iter().zip(sets).filter(|(_, s)| self.sets[**s].batch).map(|(n, _)| *n).product();
        self.parts.iter().filter(|n| **n * along <= self.batch).count().max(1)
    }

    /// Number of layouts with these sets.
    pub fn alike(&self, mesh: &[usize], sets: &[usize]) -> u64 {
        let stored = |parts: usize| -> usize {
            self.stored(sets, self.parts[parts]).iter().map(|stored| self.trades(stored, parts).count()).sum()
        };
        let all: usize = self.parts_of(mesh, sets).map(stored).sum();
        (all * self.recompute.len() * self.pipes(mesh).len().max(1)) as u64
    }

    /// Number of layouts.
    pub fn count(&self) -> u64 {
        let mut known = SortedMap::new();
        let of = |mesh: &Vec<usize>| self.count_from(mesh, &mut Vec::new(), &mut known);
        self.meshes.iter().map(of).fold(0, u64::saturating_add)
    }

    fn count_from(
        &self,
        mesh: &[usize],
        before: &mut Vec<usize>,
        known: &mut SortedMap<AlikeSets, u64>,
    ) -> u64 {
        if before.len() == mesh.len() {
            let key = self.alike_sets(mesh, before);
            return *known.entry(key).or_insert_with(|| self.alike(mesh, before));
        }
        // Sets that are alike in what the number depends on are counted once.
        let mut alike: SortedMap<(bool, bool, bool), (u64, usize)> = SortedMap::new();
        let last = before.len() + 1 == mesh.len();
        let mut total = 0u64;
        for i in self.next(mesh, before).collect::<Vec<_>>() {
            if last {
                let set = &self.sets[i];
                alike.entry((set.batch, set.sums, before.contains(&i))).or_insert((0, i)).0 += 1;
            } else {
                before.push(i);
                total = total.saturating_add(self.count_from(mesh, before, known));
                before.pop();
            }
        }
        for (times, i) in alike.into_values() {
            before.push(i);
            total = total.saturating_add(times.saturating_mul(self.count_from(mesh, before, known)));
            before.pop();
        }
        total
    }

    /// What the number of layouts with these sets depends on.
    fn alike_sets(&self, mesh: &[usize], sets: &[usize]) -> AlikeSets {
        let of = |(at, set): (usize, &usize)| {
            (self.sets[*set].sums, sets[..at].iter().position(|before| before == set))
        };
        let axes = sets.iter().enumerate().map(of).collect();
        (self.stages(mesh), self.most_parts(mesh, sets), axes)
    }
}

/// Stages, the most parts of the batch, and for each axis whether gradients are summed over it, and the first with its set.
type AlikeSets = (usize, usize, Vec<(bool, Option<usize>)>);

/// In how many parts a step may take a batch, ascending.
pub(crate) fn parts(batch: usize, kept: &FixedRules) -> Vec<usize> {
    let divisors = (1..=batch.max(1)).filter(|n| batch.is_multiple_of(*n));
    if kept.microbatches { vec![1] } else { divisors.collect() }
}

/// The loops that may be recomputed: none, each by itself, or all of them.
pub(crate) fn recomputations(program: &Program, kept: &FixedRules) -> Vec<Vec<String>> {
    let mut loops: Vec<String> = Vec::new();
    for r in program.graph.repeats.iter().filter(|r| r.parent.is_none()) {
        let name = program.graph.dims.name(r.dim).to_string();
        if !loops.contains(&name) {
            loops.push(name);
        }
    }
    let mut all = vec![Vec::new()];
    if !kept.recompute {
        all.extend(loops.iter().map(|l| vec![l.clone()]));
        if loops.len() > 1 {
            all.push(loops);
        }
    }
    all
}

/// Ordered factorizations of a number into at most `most` factors of 2 at least.
fn factorizations(n: usize, most: usize, before: &mut Vec<usize>, out: &mut Vec<Vec<usize>>) {
    if n == 1 {
        out.push(before.clone());
        return;
    }
    if before.len() == most {
        return;
    }
    for f in (2..=n).filter(|f| n.is_multiple_of(*f)) {
        before.push(f);
        factorizations(n / f, most, before, out);
        before.pop();
    }
}

/// The sets of dims that an axis may split, and how many are left out. One is empty: that of an axis which kept lines name, or
/// else of devices without work.
fn sets(
    step: &StepGraph,
    work: &ModelWork,
    choices: &SearchChoices,
    example: Option<Dim>,
) -> (Vec<AxisSet>, usize) {
    let g = &step.graph;
    let loops: SortedSet<Dim> = g.repeats.iter().map(|r| r.dim).collect();
    let (together, second) = (dims_together(step), second_names(g));
    let meet = |a: Dim, b: Dim| together.contains(&(a.min(b), a.max(b)));
    let wanted = |d: &Dim| {
        g.dims.size(*d) > 1
            && !loops.contains(d)
            && !second.contains_key(d)
            && !choices.kept.dims.contains(g.dims.name(*d))
    };
    let dims: Vec<Dim> = work.split.iter().copied().filter(wanted).collect();
    let (mut all, mut left_out): (Vec<Vec<Dim>>, usize) = (vec![Vec::new()], 0);
    for d in &dims {
        let mut with: Vec<Vec<Dim>> = all
            .iter()
            .filter(|s| !s.iter().any(|e| meet(*e, *d)))
            .map(|s| [&s[..], &[*d]].concat())
            .collect();
        left_out += with.len().saturating_sub(MOST_SETS * 8);
        with.truncate(MOST_SETS * 8);
        all.extend(with);
    }
    let read: SortedSet<Dim> = step.inputs.iter().flat_map(|i| i.dims.iter().copied()).collect();
    let set = |dims: &Vec<Dim>, free: Option<Dim>| {
        let families = work.families(dims.iter().chain(&free).copied());
        AxisSet {
            families,
            batch: example.is_some_and(|e| dims.contains(&e)),
            sums: dims.iter().any(|d| read.contains(d)) || free.is_some_and(|d| Some(d) == example),
            smallest: dims.iter().chain(&free).map(|d| g.dims.size(*d)).min().unwrap_or(1),
            dims: dims.clone(),
            free,
        }
    };
    let mut out = Vec::new();
    for s in &all {
        if s.is_empty() {
            if !choices.kept.axes.is_empty() {
                // Lines over whose axes kept values are split may be examples.
                out.push(AxisSet { sums: true, ..set(s, None) });
            }
            continue;
        }
        out.push(set(s, None));
        // If nothing else can share the axis, a dim of the data takes it in other values: the rest of the step is split
        // too.
        let full =
            !dims.iter().any(|d| !s.contains(d) && !read.contains(d) && !s.iter().any(|e| meet(*e, *d)));
        if full && !s.iter().any(|d| read.contains(d)) {
            let yields = |d: &&Dim| read.contains(d) && s.iter().any(|e| meet(*e, **d));
            out.extend(dims.iter().filter(yields).map(|d| set(s, Some(*d))));
        }
    }
    // Sets that split the batch come first, then those of many dims.
    out.sort_by_key(|s| (!s.batch && !s.dims.is_empty(), std::cmp::Reverse(s.dims.len()), s.free.is_some()));
    left_out += out.len().saturating_sub(MOST_SETS);
    out.truncate(MOST_SETS);
    if choices.kept.axes.is_empty() {
        out.push(AxisSet { sums: false, ..set(&Vec::new(), None) });
    }
    (out, left_out)
}
