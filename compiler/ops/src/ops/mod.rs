//! One op a file. A new op is one file beside these and one line in the list.

/// Declares the modules, re-exports their ops, and makes the registry of families.
macro_rules! ops {
    ($($module:ident),* $(,)?) => {
        $(mod $module; #[allow(unused_imports, unreachable_pub, reason = "some files hold only families")] pub use $module::*;)*
        /// The families of each file, in the order of the list.
        pub(crate) static FAMILIES: &[&[crate::Family]] = &[$($module::FAMILY),*];
    };
}

mod binary;
mod composite;
mod slides;
mod unary;
pub use binary::{Binary, BinaryDef, Derivatives};
pub use composite::primitive;
pub use unary::{Unary, UnaryDef};

ops! {
    input, constant, index, boundary,
    add, contract, arithmetic, compare, logic,
    neg, exp, log, sqrt, rsqrt, recip, tanh, sigmoid, erf, relu, gelu, silu, abs, sign,
    sin, cos, tan, floor, ceil, round, tf32, fp8, quantized, log1p, expm1, square, softplus, elu, selu, leaky_relu, floor_div,
    cast, select, mask, expand, rename, gradient, stop_gradient, straight_through, norm_root,
    reduce, prod, scaled_squares, truth_folds, arg_reduce, cumsum, top_k, mean, softmax, logsumexp, cross_entropy, cross_entropy_grad,
    attention, lookup, scatter_add, indexed_product, dynamic_update_slice, one_hot, in_range, reverse,
    shift, concat, split_dim,
    random, training,
    convolve, conv, covered, pool, argmax_pool,
}
