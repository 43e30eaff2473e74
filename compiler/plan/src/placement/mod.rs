//! Where a value is: which dim is split over which axes, and over which axes it is still partial.

pub(super) mod cuts;
pub(super) mod group;
pub(super) mod mesh;
pub(super) mod shard;
pub(super) mod splits;
pub(super) mod zigzag;

use crate::{Axis, Dim, Dims, Extent, Mesh, PartialAxes, Splits, Window};
use litemap::LiteMap;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Placement of a value on a mesh. An axis that is named nowhere holds whole copies. Each axis occurs at most once.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Placement {
    /// For each split dim its axes, major first. No entry is empty.
    pub splits: Splits,
    /// Axes over which the value is partial, and the monoid that finishes it.
    pub partial: PartialAxes,
    /// Split dims of which a device holds not its shard but what a loop needs that is split over the same axes. Only a
    /// copy made for one op is so; no value is.
    pub windows: LiteMap<Dim, Window>,
}

impl Placement {
    /// A whole copy on every device.
    pub fn replicated() -> Self {
        Self::default()
    }

    /// A placement of the given splits; empty lists of axes are dropped.
    pub fn split(splits: impl IntoIterator<Item = (Dim, Vec<Axis>)>) -> Self {
        Placement { splits: splits.into_iter().filter(|s| !s.1.is_empty()).collect(), ..Self::default() }
    }

    /// The same with every device holding its shard.
    pub fn without_windows(&self) -> Self {
        Placement { windows: LiteMap::new(), ..self.clone() }
    }

    /// The axes that split a dim, major first.
    pub fn axes(&self, dim: Dim) -> &[Axis] {
        self.splits.get(&dim).map_or(&[], Vec::as_slice)
    }

    /// The axes that split any dim.
    pub fn split_axes(&self) -> impl Iterator<Item = Axis> + '_ {
        self.splits.values().flatten().copied()
    }

    /// Whether an axis occurs, in a split or as partial.
    pub fn uses(&self, axis: Axis) -> bool {
        self.partial.contains_key(&axis) || self.split_axes().any(|a| a == axis)
    }

    /// Appends an axis to the axes of a dim.
    pub fn push(&mut self, dim: Dim, axis: Axis) {
        self.splits.entry(dim).or_default().push(axis);
    }

    /// Removes the minor-most axis of a dim.
    pub fn pop(&mut self, dim: Dim) -> Option<Axis> {
        let axes = self.splits.get_mut(&dim)?;
        let a = axes.pop();
        if axes.is_empty() {
            self.splits.remove(&dim);
        }
        a
    }

    /// The same placement of a value whose dim `from` is called `to`.
    pub fn rename(&self, from: Dim, to: Dim) -> Self {
        let name = |d: &Dim| if *d == from { to } else { *d };
        Placement {
            splits: self.splits.iter().map(|(d, a)| (name(d), a.clone())).collect(),
            partial: self.partial.clone(),
            windows: self.windows.iter().map(|(d, w)| (name(d), *w)).collect(),
        }
    }

    /// How a dim is stored.
    pub fn extent(&self, dim: Dim, dims: &Dims) -> Extent {
        Extent { window: self.windows.get(&dim).copied(), ..Extent::of(dims, dim, self.axes(dim)) }
    }

    /// The range of a dim on the device at `coords`.
    pub fn shard(&self, dim: Dim, dims: &Dims, mesh: &Mesh, coords: &[usize]) -> Range<usize> {
        self.extent(dim, dims).range(mesh, coords)
    }

    /// Elements of the largest shard of a value of dims `of`.
    pub fn elements(&self, of: &[Dim], dims: &Dims, mesh: &Mesh) -> usize {
        of.iter().map(|d| self.extent(*d, dims).largest(mesh)).product()
    }

    /// `batch:r hidden:c +sum(c)`; `-` where whole.
    pub fn describe(&self, dims: &Dims, mesh: &Mesh) -> String {
        let axes = |a: &[Axis]| a.iter().map(|a| mesh.name(*a)).collect::<Vec<_>>().join(",");
        let mut out: Vec<String> =
            self.splits.iter().map(|(d, a)| format!("{}:{}", dims.name(*d), axes(a))).collect();
        out.extend(self.windows.keys().map(|d| format!("window({})", dims.name(*d))));
        out.extend(self.partial.iter().map(|(a, m)| format!("+{m}({})", mesh.name(*a))));
        if out.is_empty() { "-".into() } else { out.join(" ") }
    }
}

/// As the parts that it is made of, so that it can be a JSON value.
impl Serialize for Placement {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let splits: Vec<_> = self.splits.iter().collect();
        let partial: Vec<_> = self.partial.iter().collect();
        let windows: Vec<_> = self.windows.iter().collect();
        (splits, partial, windows).serialize(s)
    }
}

impl<'de> Deserialize<'de> for Placement {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let (splits, partial, windows): (Vec<_>, Vec<_>, Vec<_>) = Deserialize::deserialize(d)?;
        Ok(Placement {
            splits: splits.into_iter().collect(),
            partial: partial.into_iter().collect(),
            windows: windows.into_iter().collect(),
        })
    }
}
