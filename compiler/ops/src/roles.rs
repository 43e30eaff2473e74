//! Roles: all that an op ever tells the partitioner.

use crate::{Type, union};
use meshwright_plan::{Dim, Monoid, Window};
use meshwright_sorted::SortedSet;

/// What an op does along one of its dims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Each position is computed on its own.
    Parallel,
    /// The dim is folded away; pieces combine by the monoid.
    Reduction(Monoid),
    /// The op needs the whole dim in one place.
    NeedReplication,
}

/// One dim that an op iterates over. Its name on the result is `dim`; `on` gives the name on each operand where the
/// operand has it (the names differ only in a rename).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loop {
    /// Its name in the loop nest, and on the result if the result has it.
    pub dim: Dim,
    /// Its role.
    pub role: Role,
    /// Its name on every operand; `None` where the operand lacks it.
    pub on: Vec<Option<Dim>>,
    /// For every operand what an interval of this loop needs of its dim, where that is not the same interval.
    pub windows: Vec<Option<Window>>,
}

/// In which operands an op is linear, so that partial sums may pass through it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Linear {
    /// In none.
    No,
    /// In all together: `f(Σa, Σb) = Σ f(a, b)`.
    Jointly,
    /// In each alone, the others held fixed: a product.
    EachAlone,
    /// In one of these alone.
    Only(SortedSet<usize>),
}

/// The loops of an op and where it is linear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roles {
    /// Every dim it iterates over, once.
    pub loops: Vec<Loop>,
    /// Where it is linear.
    pub linear: Linear,
}

impl Roles {
    /// Every dim of the operands with the same name everywhere; those in `reduced` fold with `monoid`, all others pass.
    pub fn new(x: &[&Type], y: &Type, monoid: Monoid, linear: Linear) -> Roles {
        let mut all: Vec<&Type> = x.to_vec();
        all.push(y);
        let loops = union(all.iter().copied())
            .into_iter()
            .map(|dim| Loop {
                dim,
                role: if y.has(dim) { Role::Parallel } else { Role::Reduction(monoid) },
                on: x.iter().map(|t| t.has(dim).then_some(dim)).collect(),
                windows: vec![None; x.len()],
            })
            .collect();
        Roles { loops, linear }
    }

    /// An element-wise op: every dim passes.
    pub fn elementwise(x: &[&Type], y: &Type, linear: Linear) -> Roles {
        Roles::new(x, y, Monoid::Sum, linear)
    }

    /// The same with `dims` needed whole.
    pub fn whole(mut self, dims: &[Dim]) -> Roles {
        for l in self.loops.iter_mut().filter(|l| dims.contains(&l.dim)) {
            l.role = Role::NeedReplication;
        }
        self
    }

    /// The same with the loop `dim` reading the operand in `slot` along its dim `on` through a window. Where the operand's
    /// dim has another name, no loop goes over that name.
    pub fn window(mut self, dim: Dim, slot: usize, on: Dim, window: Window) -> Roles {
        if let Some(l) = self.loops.iter_mut().find(|l| l.dim == dim) {
            l.on[slot] = Some(on);
            l.windows[slot] = Some(window);
        }
        if on != dim {
            for l in self.loops.iter_mut().filter(|l| l.dim == on) {
                l.on[slot] = None;
            }
            self.loops
                .retain(|l| l.dim != on || l.on.iter().any(Option::is_some) || l.role == Role::Parallel);
        }
        self
    }

    /// The loop of that name.
    pub fn get(&self, dim: Dim) -> Option<&Loop> {
        self.loops.iter().find(|l| l.dim == dim)
    }

    /// Whether the operands in `slots` may all be partial sums over one axis, the others being finished.
    pub fn linear_in(&self, slots: &SortedSet<usize>, operands: usize) -> bool {
        if slots.is_empty() {
            return true;
        }
        match &self.linear {
            Linear::No => false,
            Linear::Jointly => slots.len() == operands,
            Linear::EachAlone => slots.len() == 1,
            Linear::Only(s) => slots.len() == 1 && slots.is_subset(s),
        }
    }
}
