//! All kernels that a call describes.

/// Gives a macro the kernels, a row for each: its documentation, its name, and its call. The call says what there is to know of
/// the kernel ([`KernelCall`](super::call::KernelCall)), and each backend computes it ([`Computes`](super::call::Computes)). Of a
/// kernel that fuses steps of a Plan, `fuses` names the module whose function `groups` finds these steps; it is a pass, in the
/// order of the rows.
macro_rules! kernels {
    ($make:ident) => {
        $make! {
            /// Element-wise steps that do not depend on each other.
            Map(map::MapCalls);
            /// Ranges of tensors, one after the other.
            Join(join::JoinCall);
            /// Factors of FP8 matmuls, as bytes.
            Fp8Factor(fp8_factor::Fp8FactorCalls);
            /// Folds that do not depend on each other.
            Fold(fold::FoldCalls);
            /// Steps along rows.
            Rows(rows::RowCall) fuses rows::row_groups;
            /// The truth values that an attention draws, a bit for each score: `(table of decided tiles) -> out`.
            AttentionDraws(attention::AttentionDraws);
            /// An attention.
            Attention(attention::AttentionCall);
            /// A convolution.
            Convolve(windows::ConvolveCall);
            /// A lookup in a table.
            LookUp(index::IndexCall);
            /// The transpose of a lookup.
            Scatter(index::ScatterCall);
            /// A pool, or the transpose of one.
            Pool(windows::PoolCall);
            /// A matmul with an epilogue.
            MatmulEpilogue(matmul::MatmulCall);
            /// Matmuls of one shape that share a factor.
            MatmulGroup(matmul_group::MatmulGroupCall) fuses matmul_group::matmul_groups;
        }
    };
}

pub(crate) use kernels;
