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

    /// `r=2 x c=2`.
    pub fn describe(&self) -> String {
        if self.axes.is_empty() {
            return "one device".into();
        }
        self.axes.iter().map(|a| format!("{}={}", a.name, a.size)).collect::<Vec<_>>().join(" x ")
    }
}
