//! Dims: names with a size. A dim is always a tensor's; an axis is always the mesh's.

use serde::{Deserialize, Serialize};

/// A dim, by number, with its size. Names are in [`DimNames`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Dim {
    /// Number in declaration order.
    pub id: u32,
    /// Number of elements along it in the whole value.
    pub size: usize,
}

/// Names of the dims of one program, by [`Dim::id`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DimNames {
    dims: Vec<(String, usize)>,
}

impl DimNames {
    /// Declares a dim. The caller sees to it that names differ.
    pub fn add(&mut self, name: impl Into<String>, size: usize) -> Dim {
        self.dims.push((name.into(), size));
        Dim { id: self.dims.len() as u32 - 1, size }
    }

    /// Name of a dim.
    pub fn name(&self, dim: Dim) -> &str {
        self.dims.get(dim.id as usize).map_or("?", |d| &d.0)
    }

    /// The dim of that name.
    pub fn find(&self, name: &str) -> Option<Dim> {
        let id = self.dims.iter().position(|d| d.0 == name)?;
        Some(Dim { id: id as u32, size: self.dims[id].1 })
    }

    /// All dims in order of declaration.
    pub fn iter(&self) -> impl Iterator<Item = (Dim, &str)> {
        self.dims.iter().enumerate().map(|(i, (n, s))| (Dim { id: i as u32, size: *s }, n.as_str()))
    }

    /// `[batch hidden]`.
    pub fn list(&self, dims: &[Dim]) -> String {
        let names: Vec<&str> = dims.iter().map(|d| self.name(*d)).collect();
        format!("[{}]", names.join(" "))
    }
}
