//! Seconds below which no candidate can come, without compiling it.

use crate::shape::{ALL, AxisDims, Families};
use crate::space::{Space, Stored};
use crate::work::{ModelWork, ProductKernel};
use meshwright_plan::Phase;

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
    /// Whether a kernel of this phase along these families may be split over the axis. What is stored split is split where it is updated, and
    /// ops that the rules leave alone may follow parameters that are.
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
    /// The axes of a mesh of which the first have sets; of the others each may split everything, also what no rule splits and only parameters that are
    /// stored split may.
    pub fn shares(&self, mesh: &[usize], sets: &[usize], stored: &[Stored]) -> Vec<Shares> {
        let of = |(at, size): (usize, &usize)| Shares {
            size: *size as f64,
            families: sets.get(at).map_or(ALL, |s| self.sets[*s].families | self.kept_families),
            stored: stored.get(at).copied().unwrap_or(Stored::Params),
        };
        mesh.iter().enumerate().map(of).collect()
    }
}

/// `B0`: launches, and each kernel of the step on one device, shared out over the axes that may split it, at the fastest rates; products at
/// those that their shapes then reach. `again` is the choice of what is computed again.
pub fn roofline(work: &ModelWork, axes: &[Shares], again: usize) -> f64 {
    let (Some(sums), Some(rates)) = (work.kernels.get(again), &work.rates) else { return 0.0 };
    let shared = |phase, families, seconds: f64| {
        axes.iter().filter(|a| a.splits(phase, families)).fold(seconds, |s, a| s / a.size)
    };
    // Where heads are split, neither kernels of attention nor their launches need be there.
    let whole = axes.iter().all(|a| a.families & work.whole_heads == 0);
    let attention = sums.attention.iter().filter(|_| whole);
    let plain = sums.plain.iter().chain(attention);
    let plain = plain.map(|((phase, families), seconds)| shared(*phase, *families, *seconds));
    let launch = if whole { sums.launch } else { 0.0 };
    let product = |k: &ProductKernel| {
        let (moves, computes) =
            (shared(k.phase, k.families, k.rest.0), shared(k.phase, k.families, k.rest.1));
        let split = |a: &Shares| match a.stored {
            // What the rules leave alone may follow parameters along any dim.
            Stored::Params => AxisDims::Any(a.families),
            _ => AxisDims::Of(a.families),
        };
        let seconds =
            |p: &usize| work.shapes.least(*p, rates, axes.iter().map(|a| (a.size as u64, split(a))));
        k.times * moves.max(k.of.iter().map(seconds).sum::<f64>() + computes)
    };
    launch + plain.sum::<f64>() + sums.products.iter().map(product).sum::<f64>()
}

/// Bytes of parameters and states that a device holds at least; with `gradients` those of parameters too, which parts of a batch add up.
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
