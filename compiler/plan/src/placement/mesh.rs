//! The mesh of devices: named axes with sizes.

use serde::{Deserialize, Serialize};

/// A mesh axis, by position in [`Mesh::axes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Axis(pub u8);

/// Name and size of a mesh axis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshAxis {
    /// Its name.
    pub name: String,
    /// Number of devices along it, at least 1.
    pub size: usize,
}

/// An n-dimensional mesh. Ranks count row-major: the last axis varies fastest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mesh {
    /// The axes, major first.
    pub axes: Vec<MeshAxis>,
}

/// Position of a device along each axis of its mesh.
pub type Coords = Vec<usize>;

impl Mesh {
    /// A mesh of the given axes.
    pub fn new<S: Into<String>>(axes: impl IntoIterator<Item = (S, usize)>) -> Self {
        Mesh { axes: axes.into_iter().map(|(n, size)| MeshAxis { name: n.into(), size }).collect() }
    }

    /// Number of devices; 1 for a mesh without axes.
    pub fn devices(&self) -> usize {
        self.axes.iter().map(|a| a.size).product()
    }

    /// Devices along an axis.
    pub fn size(&self, axis: Axis) -> usize {
        self.axes[axis.0 as usize].size
    }

    /// Name of an axis.
    pub fn name(&self, axis: Axis) -> &str {
        &self.axes[axis.0 as usize].name
    }

    /// The axis of that name.
    pub fn find(&self, name: &str) -> Option<Axis> {
        self.axes.iter().position(|a| a.name == name).map(|i| Axis(i as u8))
    }

    /// All axes, major first.
    pub fn iter(&self) -> impl Iterator<Item = Axis> + use<> {
        (0..self.axes.len() as u8).map(Axis)
    }

    /// Coordinates of a rank.
    pub fn coords(&self, mut rank: usize) -> Coords {
        let mut out = vec![0; self.axes.len()];
        for (slot, axis) in out.iter_mut().zip(&self.axes).rev() {
            *slot = rank % axis.size;
            rank /= axis.size;
        }
        out
    }

    /// Rank of coordinates.
    pub fn rank(&self, coords: &[usize]) -> usize {
        self.axes.iter().zip(coords).fold(0, |r, (a, c)| r * a.size + c)
    }

    /// Ranks that share all coordinates with `rank` but those along `axes`, in the order in which `axes` counts them
    /// (major first). This is the group of a collective over `axes`.
    pub fn group(&self, rank: usize, axes: &[Axis]) -> Vec<usize> {
        let mut coords = self.coords(rank);
        let n: usize = axes.iter().map(|a| self.size(*a)).product();
        (0..n)
            .map(|mut i| {
                for a in axes.iter().rev() {
                    coords[a.0 as usize] = i % self.size(*a);
                    i /= self.size(*a);
                }
                self.rank(&coords)
            })
            .collect()
    }

    /// Coordinates of the device some places after that at `coords` in its group over `axes` (major first), the first after the
    /// last.
    pub fn after(&self, coords: &[usize], axes: &[Axis], places: usize) -> Coords {
        let mut out = coords.to_vec();
        axes.iter().rev().fold(places, |places, a| {
            let at = coords[usize::from(a.0)] + places;
            out[usize::from(a.0)] = at % self.size(*a);
            at / self.size(*a)
        });
        out
    }

    /// `r=2 x c=2`.
    pub fn describe(&self) -> String {
        if self.axes.is_empty() {
            return "one device".into();
        }
        self.sizes(" x ")
    }

    /// `r=2,c=2`, as an option of the command line gives it.
    pub fn option(&self) -> String {
        self.sizes(",")
    }

    fn sizes(&self, between: &str) -> String {
        self.axes.iter().map(|a| format!("{}={}", a.name, a.size)).collect::<Vec<_>>().join(between)
    }

    /// A mesh of the same axes with so many devices, near to this one: one axis of another size if that will do, the first
    /// that can; else all devices along the first. None for a mesh without axes.
    pub fn resized(&self, devices: usize) -> Option<Mesh> {
        let others = |at: usize| -> usize {
            self.axes.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, a)| a.size).product()
        };
        let fits = |at: &usize| others(*at) > 0 && devices.is_multiple_of(others(*at));
        let mut mesh = self.clone();
        match (0..self.axes.len()).find(fits) {
            Some(at) => mesh.axes[at].size = devices / others(at),
            None => {
                mesh.axes.iter_mut().for_each(|a| a.size = 1);
                mesh.axes.first_mut()?.size = devices;
            }
        }
        Some(mesh)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_as_groups_are() {
        let mesh = Mesh::new([("a", 3), ("b", 4), ("c", 2)]);
        for axes in [&[Axis(1)][..], &[Axis(0), Axis(2)], &[Axis(2), Axis(1)], &[Axis(1), Axis(2), Axis(0)]] {
            for rank in 0..mesh.devices() {
                let group = mesh.group(rank, axes);
                let own = group.iter().position(|r| *r == rank).unwrap();
                for places in 0..2 * group.len() {
                    let found = mesh.rank(&mesh.after(&mesh.coords(rank), axes, places));
                    assert_eq!(found, group[(own + places) % group.len()], "{axes:?}, {rank}, {places}");
                }
            }
        }
    }

    #[test]
    fn a_mesh_of_another_number_of_devices_is_near() {
        let resized =
            |axes: &[(&str, usize)], n| Mesh::new(axes.iter().copied()).resized(n).map(|m| m.option());
        assert_eq!(resized(&[("r", 2), ("c", 3)], 4).unwrap(), "r=2,c=2");
        assert_eq!(resized(&[("r", 3), ("c", 2)], 4).unwrap(), "r=2,c=2");
        assert_eq!(resized(&[("r", 3), ("c", 3)], 4).unwrap(), "r=4,c=1");
        assert_eq!(resized(&[("r", 2), ("c", 2)], 3).unwrap(), "r=3,c=1");
        assert_eq!(resized(&[], 4), None);
    }
}
