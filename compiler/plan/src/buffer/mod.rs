//! Buffers: what a device holds of a value, and how steps name its extents.

pub(super) mod buffer_layout;

use crate::{Axis, Cuts, DType, Dim, Dims, Mesh, PartialAxes, Window, largest_shard, shard};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A buffer, by position in [`crate::Plan::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BufId(pub u32);

/// One extent of a buffer: the size of the whole and the axes that split it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Extent {
    /// Elements of the whole value along it.
    pub size: usize,
    /// Axes that split it, major first.
    pub axes: Vec<Axis>,
    /// Where the device holds not its shard but what a loop that is split over `axes` needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    /// Places between the device whose shard it holds and the device itself, in the order in which `axes` count devices, the
    /// first after the last: 0 for its own.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rotated: u16,
    /// Where shards have given lengths. The axes of these come first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuts: Option<Box<Cuts>>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(rotated: &u16) -> bool {
    *rotated == 0
}

impl Extent {
    /// A dim that is split over some axes.
    pub fn of(dims: &Dims, dim: Dim, axes: &[Axis]) -> Extent {
        let cuts = dims.cuts(dim).filter(|cuts| axes.starts_with(&cuts.axes));
        let cuts = cuts.map(|cuts| Box::new(cuts.clone()));
        Extent { size: dims.size(dim), axes: axes.to_vec(), window: None, rotated: 0, cuts }
    }

    /// The position that is stored at each place, where these differ.
    pub fn order(&self) -> Option<Vec<usize>> {
        self.cuts.as_ref().filter(|cuts| cuts.reorders()).map(|cuts| cuts.positions())
    }

    /// The global range that the device at `coords` holds.
    pub fn range(&self, mesh: &Mesh, coords: &[usize]) -> Range<usize> {
        if self.rotated > 0 {
            let holder = mesh.after(coords, &self.axes, usize::from(self.rotated));
            return shard(self.size, &self.axes, mesh, &holder);
        }
        match (&self.window, &self.cuts) {
            (Some(w), _) => w.shard(self.size, &self.axes, mesh, coords),
            (None, None) => shard(self.size, &self.axes, mesh, coords),
            (None, Some(cuts)) => {
                let stage = cuts.axes.iter().fold(0, |at, a| at * mesh.size(*a) + coords[usize::from(a.0)]);
                let stored = cuts.stored(stage);
                let own = shard(stored.len(), &self.axes[cuts.axes.len()..], mesh, coords);
                stored.start + own.start..stored.start + own.end
            }
        }
    }

    /// Elements of the largest range that a device holds.
    pub fn largest(&self, mesh: &Mesh) -> usize {
        match (&self.window, &self.cuts) {
            (Some(w), _) => w.largest(self.size, &self.axes, mesh),
            (None, None) => largest_shard(self.size, &self.axes, mesh),
            (None, Some(cuts)) => {
                let most = (0..cuts.stages()).map(|stage| cuts.stored(stage).len()).max().unwrap_or(0);
                largest_shard(most, &self.axes[cuts.axes.len()..], mesh)
            }
        }
    }
}

/// A buffer: written once in a step (or bound before it), dense and row-major over its extents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// Element type.
    pub dtype: DType,
    /// Its extents, major first.
    pub extents: Vec<Extent>,
    /// Axes over which each device holds only a part of the value, and the monoid that finishes it.
    #[serde(default, skip_serializing_if = "PartialAxes::is_empty")]
    pub partial: PartialAxes,
}

/// A buffer as one step sees it: its dims by name, in the buffer's storage order (row-major, dense).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operand {
    /// The buffer.
    pub buf: BufId,
    /// Name of each of its extents.
    pub dims: Vec<Dim>,
}

impl Buffer {
    /// A buffer of finished values.
    pub fn new(dtype: DType, extents: Vec<Extent>) -> Buffer {
        Buffer { dtype, extents, partial: PartialAxes::new() }
    }

    /// The axes that split its extents.
    pub fn split_axes(&self) -> impl Iterator<Item = Axis> + '_ {
        self.extents.iter().flat_map(|e| e.axes.iter().copied())
    }

    /// Whether an axis splits one of its extents.
    pub fn is_split_over(&self, axis: Axis) -> bool {
        self.split_axes().any(|a| a == axis)
    }

    /// Global ranges that the device at `coords` holds.
    pub fn ranges(&self, mesh: &Mesh, coords: &[usize]) -> Vec<Range<usize>> {
        self.extents.iter().map(|e| e.range(mesh, coords)).collect()
    }

    /// Dims that are stored in another order, each with the position at each place.
    pub fn orders(&self) -> Vec<(usize, Vec<usize>)> {
        self.extents.iter().enumerate().filter_map(|(dim, e)| Some((dim, e.order()?))).collect()
    }

    /// Local shape on the device at `coords`.
    pub fn shape(&self, mesh: &Mesh, coords: &[usize]) -> Vec<usize> {
        self.ranges(mesh, coords).iter().map(|r| r.len()).collect()
    }

    /// Elements of the largest shard.
    pub fn largest(&self, mesh: &Mesh) -> usize {
        self.extents.iter().map(|e| e.largest(mesh)).product()
    }

    /// Bytes of the largest shard.
    pub fn largest_bytes(&self, mesh: &Mesh) -> usize {
        self.largest(mesh) * self.dtype.bytes()
    }
}
