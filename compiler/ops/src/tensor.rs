//! Whole values in f64, addressed by dim: what oracles compute on.

use meshwright_plan::Dim;

/// A whole value; row-major over `dims`. Pairs hold value and index as two tensors side by side: see [`F64Tensor::second`].
#[derive(Clone, Debug, PartialEq)]
pub struct F64Tensor {
    /// Its dims in order of storage.
    pub dims: Vec<Dim>,
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
    pub fn new(dims: impl Into<Vec<Dim>>, data: Vec<f64>) -> Self {
        let dims = dims.into();
        assert_eq!(
            dims.iter().map(|d| d.size).product::<usize>(),
            data.len(),
            "elements do not fit the dims"
        );
        F64Tensor { dims, data, second: Vec::new() }
    }

    /// A tensor computed position by position. `f` is given the position along each of `dims`.
    pub fn build(dims: &[Dim], mut f: impl FnMut(&[usize]) -> f64) -> Self {
        let mut data = Vec::new();
        each_position(dims, |at| data.push(f(at)));
        F64Tensor { dims: dims.to_vec(), data, second: Vec::new() }
    }

    /// The element at a position given along `dims`, which may have more dims than the tensor: those are broadcast.
    pub fn at(&self, dims: &[Dim], at: &[usize]) -> f64 {
        self.data[self.offset(dims, at)]
    }

    /// Position in `data` of a position given along `dims`.
    pub fn offset(&self, dims: &[Dim], at: &[usize]) -> usize {
        self.dims.iter().fold(0, |o, d| {
            let i = dims.iter().position(|e| e == d).map_or(0, |k| at[k]);
            o * d.size + i
        })
    }

    /// The same value with its dims stored in another order.
    pub fn ordered(&self, dims: &[Dim]) -> F64Tensor {
        let mut out = F64Tensor::build(dims, |at| self.at(dims, at));
        if !self.second.is_empty() {
            out.second = F64Tensor::build(dims, |at| self.second[self.offset(dims, at)]).data;
        }
        out
    }
}

/// Calls `f` with every position along `dims`, row-major.
pub fn each_position(dims: &[Dim], mut f: impl FnMut(&[usize])) {
    let n: usize = dims.iter().map(|d| d.size).product();
    let mut at = vec![0; dims.len()];
    for _ in 0..n {
        f(&at);
        for k in (0..dims.len()).rev() {
            at[k] += 1;
            if at[k] < dims[k].size {
                break;
            }
            at[k] = 0;
        }
    }
}
