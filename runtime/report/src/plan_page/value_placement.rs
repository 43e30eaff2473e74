//! Where values are: which part of each dim each device holds. Devices of the same coordinates along the axes of a dim hold the
//! same part of it, so that parts are listed for these axes alone, and only for the devices that are drawn.

use super::pools::TextPool;
use meshwright_plan::{Axis, BufId, Dim, Extent, Mesh, Plan, coords_along, shard};
use meshwright_sorted::SortedMap;
use serde::Serialize;

/// So many devices are drawn at most.
const MOST_DEVICES: usize = 64;

/// For each axis the positions that are drawn: all of them, or the first ones and the last. The longest axes are shortened first.
pub(super) fn shown(mesh: &Mesh) -> Vec<Vec<usize>> {
    let mut counts: Vec<usize> = mesh.axes.iter().map(|a| a.size).collect();
    while counts.iter().product::<usize>() > MOST_DEVICES {
        let Some(longest) = counts.iter_mut().max() else { break };
        *longest = longest.div_ceil(2);
    }
    let positions = |(count, size): (usize, usize)| -> Vec<usize> {
        let first = if count == size || count == 1 { count } else { count - 1 };
        (0..first).chain((first < count).then_some(size - 1)).collect()
    };
    counts.into_iter().zip(&mesh.axes).map(|(count, axis)| positions((count, axis.size))).collect()
}

/// A dim as devices hold it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct ExtentView {
    /// Elements of the whole.
    size: usize,
    /// The axes that split it, major first.
    axes: Vec<u8>,
    /// What each drawn device holds: for the drawn positions of the first axis those of the second, and so on.
    ranges: Vec<(usize, usize)>,
    /// Of a window, the shard that it is taken around.
    #[serde(skip_serializing_if = "Option::is_none")]
    own: Option<Vec<(usize, usize)>>,
    /// Elements of the smallest and the largest part, over all devices.
    lengths: (usize, usize),
}

/// A dtype on dims, each as devices hold it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct PlacedType {
    dtype: &'static str,
    /// Names, by their places among the texts.
    dims: Vec<usize>,
    /// By their places among the extents.
    extents: Vec<usize>,
    /// Axes over which it is partial, each with how it is finished.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    partial: Vec<(u8, &'static str)>,
    /// Bytes of the largest shard.
    bytes: u64,
}

/// All that a Plan has, each once.
pub(super) struct PlacedTypes<'a> {
    plan: &'a Plan,
    shown: &'a [Vec<usize>],
    extents: Vec<ExtentView>,
    types: Vec<PlacedType>,
    known_extents: SortedMap<String, usize>,
    known_types: SortedMap<String, usize>,
}

impl<'a> PlacedTypes<'a> {
    pub(super) fn new(plan: &'a Plan, shown: &'a [Vec<usize>]) -> Self {
        let (known_extents, known_types) = (SortedMap::new(), SortedMap::new());
        PlacedTypes { plan, shown, extents: Vec::new(), types: Vec::new(), known_extents, known_types }
    }

    /// A buffer, with its dims as somebody names them.
    pub(super) fn of(&mut self, buf: BufId, dims: &[Dim], texts: &mut TextPool) -> usize {
        let buffer = self.plan.buffer(buf);
        let key = format!("{buffer:?} {dims:?}");
        if let Some(at) = self.known_types.get(&key) {
            return *at;
        }
        let made = PlacedType {
            dtype: buffer.dtype.name(),
            dims: dims.iter().map(|d| texts.at(self.plan.dims.name(*d))).collect(),
            extents: buffer.extents.iter().map(|e| self.extent(e)).collect(),
            partial: buffer.partial.iter().map(|(a, m)| (a.0, m.name())).collect(),
            bytes: buffer.largest_bytes(&self.plan.mesh) as u64,
        };
        self.types.push(made);
        self.known_types.insert(key, self.types.len() - 1);
        self.types.len() - 1
    }

    fn extent(&mut self, e: &Extent) -> usize {
        let key = format!("{e:?}");
        if let Some(at) = self.known_extents.get(&key) {
            return *at;
        }
        let mesh = &self.plan.mesh;
        let drawn = self.drawn(&e.axes);
        let ends = |r: std::ops::Range<usize>| (r.start, r.end);
        let lengths = coords_along(&e.axes, mesh).map(|c| e.range(mesh, &c).len());
        let lengths = lengths.fold((usize::MAX, 0), |(least, most), n| (least.min(n), most.max(n)));
        let own = |c: &Vec<usize>| ends(shard(e.size, &e.axes, mesh, c));
        self.extents.push(ExtentView {
            size: e.size,
            axes: e.axes.iter().map(|a| a.0).collect(),
            ranges: drawn.iter().map(|c| ends(e.range(mesh, c))).collect(),
            own: e.window.map(|_| drawn.iter().map(own).collect()),
            lengths,
        });
        self.known_extents.insert(key, self.extents.len() - 1);
        self.extents.len() - 1
    }

    /// Coordinates of the devices that are drawn, along some axes.
    fn drawn(&self, axes: &[Axis]) -> Vec<Vec<usize>> {
        let origin = vec![0; self.shown.len()];
        axes.iter().fold(vec![origin], |all, axis| {
            let at = usize::from(axis.0);
            let moved = |c: &Vec<usize>, to: usize| {
                let mut c = c.clone();
                c[at] = to;
                c
            };
            all.iter().flat_map(|c| self.shown[at].iter().map(move |to| moved(c, *to))).collect()
        })
    }

    pub(super) fn done(self) -> (Vec<ExtentView>, Vec<PlacedType>) {
        (self.extents, self.types)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn of_a_large_mesh_the_first_devices_and_the_last_are_drawn() {
        let drawn =
            |sizes: &[usize]| shown(&Mesh::new(sizes.iter().enumerate().map(|(i, n)| (i.to_string(), *n))));
        assert_eq!(drawn(&[2, 3]), [vec![0, 1], vec![0, 1, 2]]);
        assert_eq!(drawn(&[]), Vec::<Vec<usize>>::new());
        let large = drawn(&[128, 8]);
        assert_eq!(large, [vec![0, 1, 2, 3, 4, 5, 6, 127], (0..8).collect()]);
        for sizes in [vec![1024], vec![2; 9], vec![3, 5, 7, 11], vec![1000, 1000], vec![65, 1]] {
            let drawn = drawn(&sizes);
            let count: usize = drawn.iter().map(Vec::len).product();
            assert!(count <= MOST_DEVICES && count > MOST_DEVICES / 4, "{sizes:?}: {count}");
            for (positions, size) in drawn.iter().zip(sizes) {
                assert!(positions.is_sorted_by(|a, b| a < b) && positions.iter().all(|p| *p < size));
                assert!(positions[0] == 0);
            }
        }
    }
}
