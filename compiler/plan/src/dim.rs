//! Dims: names with a size. A dim is always a tensor's; an axis is always the mesh's.

use crate::{Cuts, Zigzag};
use serde::{Deserialize, Serialize};

/// A dim, by its number in order of declaration. Its name and its size stand in the program's [`Dims`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Dim(pub u32);

/// Names and sizes of the dims of one program, by [`Dim`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dims {
    dims: Vec<(String, usize)>,
    /// Where stages of a pipeline have other shares of a dim than balanced ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cuts: Option<(Dim, Box<Cuts>)>,
    /// Dims whose positions are stored in another order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    zigzags: Vec<(Dim, Zigzag)>,
}

impl Dims {
    /// Declares a dim. The caller sees to it that names differ.
    pub fn add(&mut self, name: impl Into<String>, size: usize) -> Dim {
        self.dims.push((name.into(), size));
        Dim(self.dims.len() as u32 - 1)
    }

    /// Number of elements along a dim in the whole value.
    ///
    /// # Panics
    /// Where the dim is another program's.
    pub fn size(&self, dim: Dim) -> usize {
        self.dims[dim.0 as usize].1
    }

    /// [`Dims::size`]; `None` where the dim is another program's.
    pub fn get(&self, dim: Dim) -> Option<usize> {
        self.dims.get(dim.0 as usize).map(|d| d.1)
    }

    /// Gives a dim another size.
    pub fn resize(&mut self, dim: Dim, size: usize) {
        if let Some(known) = self.dims.get_mut(dim.0 as usize) {
            known.1 = size;
        }
    }

    /// Gives the shards of a dim their lengths.
    pub fn cut(&mut self, dim: Dim, cuts: Cuts) {
        self.cuts = Some((dim, Box::new(cuts)));
    }

    /// The lengths of the shards of a dim, where they are given.
    pub fn cuts(&self, dim: Dim) -> Option<&Cuts> {
        self.cuts.as_ref().filter(|(of, _)| *of == dim).map(|(_, cuts)| &**cuts)
    }

    /// Stores the positions of a dim in another order.
    pub fn put_in_order(&mut self, dim: Dim, zigzag: Zigzag) {
        self.zigzags.push((dim, zigzag));
    }

    /// The order in which the positions of a dim are stored, where it is not their own.
    pub fn zigzag(&self, dim: Dim) -> Option<Zigzag> {
        self.zigzags.iter().find(|(of, _)| *of == dim).map(|(_, zigzag)| *zigzag)
    }

    /// Sizes of several dims.
    pub fn shape(&self, dims: &[Dim]) -> Vec<usize> {
        dims.iter().map(|d| self.size(*d)).collect()
    }

    /// Number of elements of a whole value of these dims.
    pub fn elements(&self, dims: &[Dim]) -> usize {
        dims.iter().map(|d| self.size(*d)).product()
    }

    /// Name of a dim.
    pub fn name(&self, dim: Dim) -> &str {
        self.dims.get(dim.0 as usize).map_or("?", |d| &d.0)
    }

    /// The dim of that name.
    pub fn find(&self, name: &str) -> Option<Dim> {
        let id = self.dims.iter().position(|d| d.0 == name)?;
        Some(Dim(id as u32))
    }

    /// All dims in order of declaration.
    pub fn iter(&self) -> impl Iterator<Item = (Dim, &str)> {
        self.dims.iter().enumerate().map(|(i, d)| (Dim(i as u32), d.0.as_str()))
    }

    /// `[batch hidden]`.
    pub fn list(&self, dims: &[Dim]) -> String {
        let names: Vec<&str> = dims.iter().map(|d| self.name(*d)).collect();
        format!("[{}]", names.join(" "))
    }
}
