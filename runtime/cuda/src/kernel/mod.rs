//! What several kernels share: operands and results, loads of elements, scalar functions, tiles of matrices, random words.

pub(crate) mod arguments;
pub(crate) mod drawn;
pub(crate) mod elements;
pub(crate) mod erf;
pub(crate) mod exp2;
pub(crate) mod operands;
pub(crate) mod program;
pub(crate) mod ptx;
pub(crate) mod random;
pub(crate) mod space;
pub(crate) mod tile;
pub(crate) mod views;
