//! The type of a value: its dtype, its dims, and for indices the dim that they index.

use meshwright_plan::{DType, Dim, Dims};

/// Type of a value. Dims are in storage order, which has no meaning but for inputs and parameters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Type {
    /// Element type.
    pub dtype: DType,
    /// Its dims, each once.
    pub dims: Vec<Dim>,
    /// For integers: the dim that they are positions in.
    pub range: Option<Dim>,
}

impl Type {
    /// A type without a range.
    pub fn new(dtype: DType, dims: impl Into<Vec<Dim>>) -> Self {
        Type { dtype, dims: dims.into(), range: None }
    }

    /// The type that is computed in: `f32` in place of `bf16` and `f16`.
    pub fn wide(&self) -> Type {
        Type { dtype: self.dtype.wide(), ..self.clone() }
    }

    /// Whether it has the dim.
    pub fn has(&self, dim: Dim) -> bool {
        self.dims.contains(&dim)
    }

    /// Elements of the whole value.
    pub fn elements(&self, dims: &Dims) -> usize {
        dims.elements(&self.dims)
    }
}

/// The dims of several values, each once: as one of the values has them if one has all, else in order of first occurrence. So the
/// result of an element-wise op is stored as its largest operand, wherever that stands in the program.
pub fn union<'a>(types: impl IntoIterator<Item = &'a Type>) -> Vec<Dim> {
    let all: Vec<&Type> = types.into_iter().collect();
    let mut out = Vec::new();
    for d in all.iter().flat_map(|t| &t.dims) {
        if !out.contains(d) {
            out.push(*d);
        }
    }
    all.iter().find(|t| t.dims.len() == out.len()).map_or(out, |t| t.dims.clone())
}
