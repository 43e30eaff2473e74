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
    /// Dims that the compiler added, in order, each with the dim of the program whose positions it counts, if any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    made: Vec<(Dim, Option<Dim>)>,
}

impl Dims {
    /// Declares a dim. The caller sees to it that names differ.
    pub fn add(&mut self, name: impl Into<String>, size: usize) -> Dim {
        self.dims.push((name.into(), size));
        Dim(self.dims.len() as u32 - 1)
    }

    /// Adds a dim that the program does not declare, under the first free name of `wanted`, `wanted_`, `wanted__`, ... It counts
    /// positions of `of`, a dim that the program declares, or nothing that the program knows: then no rule of a layout can
    /// mean it.
    pub fn make(&mut self, wanted: &str, size: usize, of: Option<Dim>) -> Dim {
        let mut name = wanted.to_string();
        while self.find(&name).is_some() {
            name.push('_');
        }
        let dim = self.add(name, size);
        self.made.push((dim, of.and_then(|of| self.declared(of))));
        dim
    }

    /// The dim that the program declares for the positions of a dim: itself, unless the compiler added it. `None` for a dim that
    /// counts nothing that the program knows.
    pub fn declared(&self, dim: Dim) -> Option<Dim> {
        self.made.binary_search_by_key(&dim, |(made, _)| *made).map_or(Some(dim), |at| self.made[at].1)
    }

    /// The same dims, without a note on which of them the compiler added.
    pub fn unmarked(&self) -> Dims {
        Dims { made: Vec::new(), ..self.clone() }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dims_of_the_compiler_know_what_they_count() {
        let mut dims = Dims::default();
        let (seq, other) = (dims.add("seq", 4), dims.add("new", 3));
        let fresh = dims.make("new", 2, Some(seq));
        let order = dims.make("new", 2, Some(fresh));
        let counts = dims.make("new", 9, None);
        let names: Vec<&str> = dims.iter().map(|d| d.1).collect();
        assert_eq!(names, ["seq", "new", "new_", "new__", "new___"]);
        let all = [seq, other, fresh, order, counts];
        assert_eq!(all.map(|d| dims.declared(d)), [Some(seq), Some(other), Some(seq), Some(seq), None]);
        assert_eq!(dims.unmarked().declared(counts), Some(counts));
    }
}
