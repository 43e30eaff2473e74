//! Matrix products by the dims that they run along: what is left of each on a device when some are split.

use meshwright_cost::step::DeviceRates;
use meshwright_cost::work::{KernelWork, Matmul};
use meshwright_plan::{Dim, Plan, Prim, Step};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// A set of families of dims. Those beyond the last bit share it, which only makes more dims count as related.
pub type Families = u128;

/// All families.
pub const ALL: Families = Families::MAX;

/// What a dim of a product counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counted {
    /// Rows of the result.
    Rows,
    /// Columns of the result.
    Columns,
    /// What is summed.
    Summed,
    /// Products.
    Batch,
}

/// A product with its dims.
#[derive(Clone, Debug, PartialEq)]
pub struct ShapedMatmul {
    /// Their families, their sizes, and what they count.
    dims: Vec<(Families, u64, Counted)>,
    /// Of which dtype it is.
    of: Matmul,
    /// Number of such products, which may be one.
    joined: u64,
}

impl ShapedMatmul {
    /// The products of a kernel. `size` is that of a dim on the device, `families` those of a dim.
    pub fn all(
        plan: &Plan,
        work: &KernelWork,
        size: impl Fn(Dim, u64) -> u64,
        families: impl Fn(Dim) -> Families,
    ) -> Vec<ShapedMatmul> {
        let steps = work.steps.iter().map(|s| &plan.steps[*s]).filter(|s| matches!(s.prim, Prim::Contract));
        let shaped = |(step, of): (&Step, &Matmul)| {
            let ([a, b], [out]) = step.operands::<2, 1>().ok()?;
            let mut dims: Vec<Dim> = a.dims.iter().chain(&b.dims).copied().collect();
            dims.sort();
            dims.dedup();
            let dims = dims.into_iter().map(|d| {
                let counted = match (a.dims.contains(&d), b.dims.contains(&d), out.dims.contains(&d)) {
                    (true, true, true) => Counted::Batch,
                    (true, false, _) => Counted::Rows,
                    (false, _, _) => Counted::Columns,
                    (true, true, false) => Counted::Summed,
                };
                let local = step.all().find_map(|o| {
                    let at = o.dims.iter().position(|e| *e == d)?;
                    Some(plan.buffer(o.buf).extents[at].largest(&plan.mesh) as u64)
                });
                (families(d), size(d, local.unwrap_or(1)), counted)
            });
            Some(ShapedMatmul { dims: dims.collect(), of: *of, joined: work.joined() })
        };
        steps.zip(&work.products).filter_map(shaped).collect()
    }

    /// The dims that belong to some of these families, as bits.
    pub fn along(&self, families: Families) -> u32 {
        let of = |(at, d): (usize, &(Families, u64, Counted))| u32::from(d.0 & families != 0) << at;
        self.dims.iter().enumerate().map(of).sum()
    }

    /// The least seconds of one part of the examples where each of some axes splits one of its dims.
    pub fn least(&self, rates: &DeviceRates, axes: &[(u64, u32)], (parts, examples): (u64, u32)) -> f64 {
        let of = |at: usize| if examples & (1u32 << at) == 0 { 1 } else { parts };
        self.split(rates, axes, &mut (0..self.dims.len()).map(of).collect::<Vec<u64>>())
    }

    fn split(&self, rates: &DeviceRates, axes: &[(u64, u32)], into: &mut Vec<u64>) -> f64 {
        let Some(((size, along), rest)) = axes.split_first() else { return self.seconds(rates, into) };
        let mut least = f64::INFINITY;
        for at in (0..self.dims.len()).filter(|at| along & (1 << at) != 0) {
            into[at] *= size;
            least = least.min(self.split(rates, rest, into));
            into[at] /= size;
        }
        least
    }

    fn seconds(&self, rates: &DeviceRates, into: &[u64]) -> f64 {
        let mut of = Matmul { m: 1, n: 1, k: 1, batch: 1, ..self.of };
        for ((_, size, counted), into) in self.dims.iter().zip(into) {
            let side = match counted {
                Counted::Rows => &mut of.m,
                Counted::Columns => &mut of.n,
                Counted::Summed => &mut of.k,
                Counted::Batch => &mut of.batch,
            };
            *side *= size.div_ceil(*into);
        }
        // Tiles of one may fit better, or those of each.
        let together = Matmul { batch: of.batch * self.joined, ..of };
        rates.product(&together).min(self.joined as f64 * rates.product(&of))
    }
}

/// The number of a product, axes by their sizes with the dims that they may split, as bits, and positions of numbers of parts.
type SplitMatmul = (usize, Vec<(u64, u32)>, Range<usize>);

/// Products, and what is known of their seconds.
#[derive(Debug, Default)]
pub struct ShapeTable {
    examples: Families,
    parts: Vec<u64>,
    products: Vec<ShapedMatmul>,
    known: Mutex<HashMap<SplitMatmul, f64>>,
}

impl ShapeTable {
    /// Of products that may be done for parts of these examples at a time.
    pub fn new(examples: Families, parts: &[usize]) -> ShapeTable {
        let parts = parts.iter().map(|p| *p as u64).collect();
        ShapeTable { examples, parts, ..ShapeTable::default() }
    }

    /// Families of the dim that counts the examples.
    pub(crate) fn examples(&self) -> Families {
        self.examples
    }

    /// In how many parts the examples may be taken.
    pub fn parts(&self) -> impl Iterator<Item = usize> + '_ {
        self.parts.iter().map(|p| *p as usize)
    }

    /// The number of a product.
    pub fn number(&mut self, of: ShapedMatmul) -> usize {
        self.products.iter().position(|p| *p == of).unwrap_or_else(|| {
            self.products.push(of);
            self.products.len() - 1
        })
    }

    /// [`ShapedMatmul::least`] of a product, for the best number of parts among those at some positions; each axis comes with the
    /// dims that it may split of it.
    pub fn least(
        &self,
        number: usize,
        rates: &DeviceRates,
        axes: impl Iterator<Item = (u64, AxisDims)>,
        among: &Range<usize>,
    ) -> f64 {
        let product = &self.products[number];
        let along = |of: AxisDims| match of {
            AxisDims::Any(families) if product.along(families) == 0 => (1 << product.dims.len()) - 1,
            AxisDims::Any(families) | AxisDims::Of(families) => product.along(families),
        };
        let mut axes: Vec<(u64, u32)> =
            axes.map(|(size, of)| (size, along(of))).filter(|a| a.1 != 0).collect();
        axes.sort_unstable();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let examples = product.along(self.examples);
        let parts = if examples == 0 { &[1] } else { self.parts.get(among.clone()).unwrap_or(&self.parts) };
        let least = |axes: &Vec<(u64, u32)>| {
            let of = |n: &u64| *n as f64 * product.least(rates, axes, (*n, examples));
            parts.iter().map(of).fold(f64::INFINITY, f64::min)
        };
        *known.entry((number, axes, among.clone())).or_insert_with_key(|(_, axes, _)| least(axes))
    }
}

/// The dims that an axis may split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisDims {
    /// Those of some families.
    Of(Families),
    /// Those of some families, or any where there are none of them.
    Any(Families),
}
