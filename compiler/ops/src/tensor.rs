//! Whole values in f64, addressed by dim: what oracles compute on.

use meshwright_plan::{Dim, Dims};

/// A whole value; row-major over `dims`. Pairs hold value and index as two tensors side by side: see [`F64Tensor::second`].
#[derive(Clone, Debug, PartialEq)]
pub struct F64Tensor {
    /// Its dims in order of storage.
    pub dims: Vec<Dim>,
    /// Their sizes.
    pub shape: Vec<usize>,
    /// Its elements; truth values are 0 and 1.
    pub data: Vec<f64>,
    /// For pairs: the index that goes with each element.
    pub second: Vec<f64>,
}

impl F64Tensor {
    /// A tensor of the given elements.
    ///
    /// # Panics
    /// Where the number of elements is not the product of the sizes.
    pub fn new(table: &Dims, dims: impl Into<Vec<Dim>>, data: Vec<f64>) -> Self {
        let dims = dims.into();
        let shape = table.shape(&dims);
        assert_eq!(shape.iter().product::<usize>(), data.len(), "elements do not fit the dims");
        F64Tensor { dims, shape, data, second: Vec::new() }
    }

    /// A tensor without dims.
    pub fn scalar(value: f64) -> Self {
        F64Tensor { dims: Vec::new(), shape: Vec::new(), data: vec![value], second: Vec::new() }
    }

    /// A tensor computed position by position. `f` is given the position along each of `dims`.
    pub fn build(table: &Dims, dims: &[Dim], f: impl FnMut(&[usize]) -> f64) -> Self {
        Self::of_shape(dims, table.shape(dims), f)
    }

    fn of_shape(dims: &[Dim], shape: Vec<usize>, mut f: impl FnMut(&[usize]) -> f64) -> Self {
        let mut data = Vec::new();
        each_position(&shape, |at| data.push(f(at)));
        F64Tensor { dims: dims.to_vec(), shape, data, second: Vec::new() }
    }

    /// The element at a position given along `dims`, which may have more dims than the tensor: those are broadcast.
    pub fn at(&self, dims: &[Dim], at: &[usize]) -> f64 {
        self.data[self.offset(dims, at)]
    }

    /// Position in `data` of a position given along `dims`.
    pub fn offset(&self, dims: &[Dim], at: &[usize]) -> usize {
        self.dims.iter().zip(&self.shape).fold(0, |o, (d, size)| {
            let i = dims.iter().position(|e| e == d).map_or(0, |k| at[k]);
            o * size + i
        })
    }

    /// The same value with its dims stored in another order.
    ///
    /// # Panics
    /// Where it lacks one of them.
    pub fn ordered(&self, dims: &[Dim]) -> F64Tensor {
        let size = |d: &Dim| self.dims.iter().position(|e| e == d).map(|k| self.shape[k]);
        let shape: Option<Vec<usize>> = dims.iter().map(size).collect();
        let shape = shape.expect("a value is ordered by its own dims");
        let mut out = F64Tensor::of_shape(dims, shape.clone(), |at| self.at(dims, at));
        if !self.second.is_empty() {
            out.second = F64Tensor::of_shape(dims, shape, |at| self.second[self.offset(dims, at)]).data;
        }
        out
    }
}

/// Calls `f` with every position in a shape, row-major.
pub fn each_position(shape: &[usize], mut f: impl FnMut(&[usize])) {
    let n: usize = shape.iter().product();
    let mut at = vec![0; shape.len()];
    for _ in 0..n {
        f(&at);
        for k in (0..shape.len()).rev() {
            at[k] += 1;
            if at[k] < shape[k] {
                break;
            }
            at[k] = 0;
        }
    }
}
