//! The interface of cuBLASLt, from `cublasLt.h`: declared here, since existing bindings cannot open a file that the
//! user names.

use crate::load::functions;
use std::ffi::{c_char, c_int, c_void};

/// Result of a function, 0 for success.
pub(super) type LtStatus = c_int;

pub(super) const SUCCESS: LtStatus = 0;

/// A handle of the library: of itself, a description, a layout or a preference.
pub(super) type LtHandle = *mut c_void;

/// An algorithm, in the library's own terms.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Algorithm(pub(super) [u64; 8]);

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Proposal {
    pub(super) algorithm: Algorithm,
    pub(super) workspace: usize,
    pub(super) state: LtStatus,
    pub(super) waves: f32,
    reserved: [c_int; 4],
}

functions! {
    /// The functions for matmuls.
    pub(super) Functions needs "cuBLAS 12" {
        create = "cublasLtCreate" (*mut LtHandle) -> LtStatus;
        destroy = "cublasLtDestroy" (LtHandle) -> LtStatus;
        version = "cublasLtGetVersion" () -> usize;
        status_text = "cublasLtGetStatusString" (LtStatus) -> *const c_char;
        description_create = "cublasLtMatmulDescCreate" (*mut LtHandle, c_int, c_int) -> LtStatus;
        description_set = "cublasLtMatmulDescSetAttribute" (LtHandle, c_int, *const c_void, usize) -> LtStatus;
        description_destroy = "cublasLtMatmulDescDestroy" (LtHandle) -> LtStatus;
        layout_create = "cublasLtMatrixLayoutCreate" (*mut LtHandle, c_int, u64, u64, i64) -> LtStatus;
        layout_set = "cublasLtMatrixLayoutSetAttribute" (LtHandle, c_int, *const c_void, usize) -> LtStatus;
        layout_destroy = "cublasLtMatrixLayoutDestroy" (LtHandle) -> LtStatus;
        preference_create = "cublasLtMatmulPreferenceCreate" (*mut LtHandle) -> LtStatus;
        preference_set = "cublasLtMatmulPreferenceSetAttribute" (LtHandle, c_int, *const c_void, usize) -> LtStatus;
        preference_destroy = "cublasLtMatmulPreferenceDestroy" (LtHandle) -> LtStatus;
        propose = "cublasLtMatmulAlgoGetHeuristic" (
            LtHandle, LtHandle, LtHandle, LtHandle, LtHandle, LtHandle, LtHandle, c_int, *mut Proposal, *mut c_int
        ) -> LtStatus;
        check = "cublasLtMatmulAlgoCheck" (
            LtHandle, LtHandle, LtHandle, LtHandle, LtHandle, LtHandle, *const Algorithm, *mut Proposal
        ) -> LtStatus;
        algorithm_get = "cublasLtMatmulAlgoConfigGetAttribute" (
            *const Algorithm, c_int, *mut c_void, usize, *mut usize
        ) -> LtStatus;
        multiply = "cublasLtMatmul" (
            LtHandle, LtHandle, *const c_void, *const c_void, LtHandle, *const c_void, LtHandle, *const c_void,
            *const c_void, LtHandle, *mut c_void, LtHandle, *const Algorithm, *mut c_void, usize, *mut c_void
        ) -> LtStatus;
    }
}

/// `cublasComputeType_t`: the type of the sum.
pub(super) mod compute {
    pub(in super::super) const F32: i32 = 68;
    pub(in super::super) const F32_BY_TF32: i32 = 77;
    pub(in super::super) const F64: i32 = 70;
}

/// `cudaDataType_t`.
pub(super) mod data {
    pub(in super::super) const F32: i32 = 0;
    pub(in super::super) const F64: i32 = 1;
    pub(in super::super) const F16: i32 = 2;
    pub(in super::super) const BF16: i32 = 14;
    pub(in super::super) const E4M3: i32 = 28;
    pub(in super::super) const E5M2: i32 = 29;
}

/// `CUBLASLT_ALGO_CONFIG_ID` of `cublasLtMatmulAlgoConfigAttributes_t`: which family of kernels an algorithm is of.
pub(super) const KERNEL_FAMILY: c_int = 0;

/// `cublasLtMatmulDescAttributes_t`.
pub(super) mod description {
    pub(in super::super) const TRANSPOSE_A: i32 = 3;
    pub(in super::super) const TRANSPOSE_B: i32 = 4;
    pub(in super::super) const EPILOGUE: i32 = 7;
    pub(in super::super) const BIAS_POINTER: i32 = 8;
    /// `CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE`.
    pub(in super::super) const BIAS_STRIDE: i32 = 10;
    pub(in super::super) const AUX_POINTER: i32 = 11;
    pub(in super::super) const AUX_LEADING: i32 = 12;
    pub(in super::super) const A_SCALE_POINTER: i32 = 17;
    pub(in super::super) const B_SCALE_POINTER: i32 = 18;
    pub(in super::super) const BIAS_TYPE: i32 = 26;
}

/// `cublasOperation_t`.
pub(super) const TRANSPOSED: i32 = 1;

/// `cublasLtEpilogue_t`, some of whose values are sums: `RELU_AUX_BIAS` is the sum of three.
pub(super) mod epilogue {
    pub(in super::super) const DEFAULT: u32 = 1;
    pub(in super::super) const RELU: u32 = 2;
    pub(in super::super) const BIAS: u32 = 4;
    pub(in super::super) const GELU: u32 = 32;
    /// With a second operand or result.
    pub(in super::super) const AUX: u32 = 128;
    pub(in super::super) const GELU_GRAD: u32 = 64 | AUX;
    pub(in super::super) const RELU_GRAD: u32 = 8 | AUX;
    /// A is our right factor.
    pub(in super::super) const SUMS_OF_A: u32 = 256;
    pub(in super::super) const SUMS_OF_B: u32 = 512;
}

/// `cublasLtMatrixLayoutAttribute_t`.
pub(super) mod layout {
    pub(in super::super) const BATCH_COUNT: i32 = 5;
    pub(in super::super) const BATCH_STRIDE: i32 = 6;
}

/// `cublasLtMatmulPreferenceAttributes_t`.
pub(super) mod preference {
    pub(in super::super) const MAX_WORKSPACE: i32 = 1;
    pub(in super::super) const REDUCTIONS: i32 = 3;
    /// `CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE`, besides none: parts of a sum are added in the type of the sum, never
    /// in the type of the result.
    pub(in super::super) const IN_COMPUTE_TYPE: u32 = 2;
    /// The other matrices follow.
    pub(in super::super) const MIN_ALIGNMENT_A: i32 = 5;
}
