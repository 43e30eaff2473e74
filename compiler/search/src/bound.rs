//! Seconds below which no candidate can come, without compiling it.

use crate::shape::{ALL, AxisDims, Families};
use crate::space::{Space, Stored};
use crate::work::{KernelSums, MatmulKernel, ModelWork};
use meshwright_plan::Phase;
use std::ops::Range;

/// An axis, as far as bounds are concerned.
#[derive(Clone, Copy, Debug)]
pub struct Shares {
    /// Devices along it.
    pub size: f64,
    /// Families that are split over it.
    pub families: Families,
    /// What is stored over it.
    pub stored: Stored,
}

impl Shares {
    /// Whether a kernel of this phase along these families may be split over the axis. What is stored split is split where it is
    /// updated, and ops that the rules leave alone may follow parameters that are.
    fn splits(&self, phase: Phase, families: Families) -> bool {
        let whole = match self.stored {
            Stored::Whole => false,
            Stored::Moments | Stored::Grads => phase == Phase::Update,
            Stored::Params => true,
        };
        whole || self.families & families != 0
    }
}

impl Space {
    /// The axes of a mesh of which the first have sets; of the others each may split everything, also what no rule splits and
    /// only parameters that are stored split may.
    pub fn shares(&self, mesh: &[usize], sets: &[usize], stored: &[Stored]) -> Vec<Shares> {
        let of = |(at, size): (usize, &usize)| Shares {
            size: *size as f64,
            families: sets.get(at).map_or(ALL, |s| self.sets[*s].families | self.kept_families),
            stored: stored.get(at).copied().unwrap_or(Stored::Params),
        };
        mesh.iter().enumerate().map(of).collect()
    }
}

/// `B0`: launches, and each kernel of the step on one device, shared out over the axes that may split it, at the fastest rates;
/// products at those that their shapes then reach. `again` is the choice of what is computed again, `parts` has the positions of
/// the numbers of parts that the batch may be taken in.
pub fn roofline(work: &ModelWork, axes: &[Shares], again: usize, parts: &Range<usize>) -> f64 {
    work.kernels.get(again).map_or(0.0, |sums| least(work, sums, axes, parts))
}

fn least(work: &ModelWork, sums: &KernelSums, axes: &[Shares], parts: &Range<usize>) -> f64 {
    let Some(rates) = &work.rates else { return 0.0 };
    // More parts launch and move no less.
    let fewest = |of: &[f64]| of.get(parts.start).copied().unwrap_or(0.0);
    let shared = |phase, families, seconds: f64| {
        axes.iter().filter(|a| a.splits(phase, families)).fold(seconds, |s, a| s / a.size)
    };
    // Where heads are split, neither kernels of attention nor their launches need be there.
    let whole = axes.iter().all(|a| a.families & work.whole_heads == 0);
    let attention = sums.attention.iter().filter(|_| whole);
    let plain = sums.plain.iter().chain(attention);
    let plain = plain.map(|((phase, families), seconds)| shared(*phase, *families, fewest(seconds)));
    let launch = if whole { fewest(&sums.launch) } else { 0.0 };
    let product = |k: &MatmulKernel| {
        let [moves, computes] = [fewest(&k.moves), k.computes].map(|s| shared(k.phase, k.families, s));
        let split = |a: &Shares| match a.stored {
            // What the rules leave alone may follow parameters along any dim.
            Stored::Params => AxisDims::Any(a.families),
            _ => AxisDims::Of(a.families),
        };
        let axes = || axes.iter().map(|a| (a.size as u64, split(a)));
        let seconds = |p: &usize| work.shapes.least(*p, rates, axes(), parts);
        k.times * moves.max(k.of.iter().map(seconds).sum::<f64>() + computes)
    };
    launch + plain.sum::<f64>() + sums.products.iter().map(product).sum::<f64>()
}

impl Space {
    /// `B0` of candidates whose first axes have sets and store this much, with [what is computed again and the parts](roofline).
    ///
    /// Of the stages of a pipeline one does what the mean of them does at least. Each begins with what those before it give it of
    /// the first part of the batch, and half of them come before the mean.
    pub fn roofline(
        &self,
        work: &ModelWork,
        (mesh, sets): (&[usize], &[usize]),
        stored: &[Stored],
        (again, parts): (usize, &Range<usize>),
    ) -> f64 {
        let axes = self.shares(mesh, sets, stored);
        let (all, stages) = (roofline(work, &axes, again, parts), self.stages(mesh));
        let chunks = self.pipes(mesh).iter().map(|p| p.chunks).max().unwrap_or(1);
        let most = self.parts.get(parts.end.saturating_sub(1)).filter(|_| !self.choices.kept.microbatches);
        let (Some((_, layers)), Some(most)) = (self.layers.filter(|_| stages > 1), most) else {
            return all / stages as f64;
        };
        let part = (layers / (stages * chunks)) as f64 / (layers * most) as f64;
        let begins = (stages - 1) as f64 * part * least(work, &work.layers, &axes, parts);
        all / stages as f64 + begins / 2.0
    }
}

/// Bytes of parameters and states that a device holds at least; with `gradients` those of parameters too, which parts of a batch
/// add up.
pub fn held(work: &ModelWork, axes: &[Shares], gradients: bool) -> f64 {
    let over = |families: Families, bytes: f64, least: Stored| {
        let splits = |a: &&Shares| a.stored >= least || a.families & families != 0;
        axes.iter().filter(splits).fold(bytes, |b, a| b / a.size)
    };
    let shared = work.held.iter().map(|((state, families), bytes)| match (state, gradients) {
        (true, _) => over(*families, *bytes, Stored::Moments),
        (false, true) => over(*families, *bytes, Stored::Params) + over(*families, *bytes, Stored::Grads),
        (false, false) => over(*families, *bytes, Stored::Params),
    });
    shared.sum()
}
