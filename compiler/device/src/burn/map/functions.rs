//! Functions that a kernel computes element by element, of one step or of several that read the same.

use crate::lowering::local::Local;
use meshwright_plan::expr::{Expr, Reg, Scalar};
use meshwright_plan::{BufId, DType};

/// Most results of a function that is made of several: a thread holds their operands at once.
const MOST_RESULTS: usize = 4;

/// A function of operands on a device.
#[derive(Clone, Debug)]
pub(in crate::burn) struct MapFunction {
    /// Computes its results.
    pub expr: Expr,
    /// What it loads.
    pub reads: Vec<Local>,
    /// Results with the nodes that compute them. All have the same dims.
    pub written: Vec<(Reg, Local)>,
    /// Operands that a Plan donates, each with the result that takes its storage.
    pub donations: Vec<(BufId, BufId)>,
    /// Whether long rows of results may have gaps between them.
    pub gaps: bool,
}

impl Default for MapFunction {
    fn default() -> MapFunction {
        MapFunction { expr: Expr::default(), reads: vec![], written: vec![], donations: vec![], gaps: true }
    }
}

impl MapFunction {
    /// Functions with those made one that walk the same elements and load one of them in common, so that it is read once.
    pub(in crate::burn) fn merged(all: impl IntoIterator<Item = MapFunction>) -> Vec<MapFunction> {
        let mut made: Vec<MapFunction> = vec![];
        for function in all {
            match made.iter_mut().find(|m| m.walks_with(&function)) {
                Some(with) => with.merge(function),
                None => made.push(function),
            }
        }
        made
    }

    fn walks_with(&self, other: &MapFunction) -> bool {
        let space =
            |f: &MapFunction| f.written.first().map(|(_, out)| (out.dims.clone(), out.ranges.clone()));
        let half = |f: &MapFunction| f.expr.nodes.iter().map(|n| n.dtype).find(|d: &DType| d.is_half());
        let halves = [half(self), half(other)];
        let whole = |read: &&Local| Some(read.dims.len()) == self.written.first().map(|w| w.1.dims.len());
        self.gaps == other.gaps
            && self.written.len() + other.written.len() <= MOST_RESULTS
            && space(self) == space(other)
            && (halves[0] == halves[1] || halves.contains(&None))
            && self.reads.iter().filter(whole).any(|read| other.reads.contains(read))
    }

    fn merge(&mut self, other: MapFunction) {
        let place = |read: Local, all: &mut Vec<Local>| {
            all.iter().position(|known| *known == read).unwrap_or_else(|| {
                all.push(read);
                all.len() - 1
            })
        };
        let loads: Vec<usize> = other.reads.into_iter().map(|read| place(read, &mut self.reads)).collect();
        let mut regs: Vec<Reg> = vec![];
        for node in other.expr.nodes {
            let scalar = match node.scalar {
                Scalar::Load(i) => Scalar::Load(loads[usize::from(i)] as u16),
                other => other.map_reads(|r| regs[usize::from(r)]),
            };
            regs.push(self.expr.push(scalar, node.dtype));
        }
        self.written.extend(other.written.into_iter().map(|(reg, out)| (regs[usize::from(reg)], out)));
        self.donations.extend(other.donations);
    }
}
