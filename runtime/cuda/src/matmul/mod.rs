//! Matrix products that the backend's own call does not do as they are needed.
//!
//! - cuBLASLt computes them if it is there; otherwise Burn's kernels do.
//! - The dtype of the result is an argument, so that a product of half types is not rounded if its consumer reads `f32`.
//! - The factor of a product with one row is made dense: of the kernels that are timed for those, one
//!   (`GemvUnitPerpendicular` of `cubek` 0.3.1) reads it as if it were, and is wrong for a permuted view.

pub(crate) mod blas;
mod epilogue;
mod group;

use burn_backend::{DType as BurnType, TensorMetadata};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::kernel::matmul::{MatmulStrategy, matmul};
use burn_cubecl::tensor::CubeTensor;
use meshwright_device::kernels::matmul::FactorDigits;

/// The product of two tensors of one dtype, with elements of `dtype`, in memory that is given or found.
pub(crate) fn compute(
    left: CubeTensor,
    right: CubeTensor,
    (dtype, digits): (BurnType, FactorDigits),
    out: Option<CubeTensor>,
) -> Result<CubeTensor, String> {
    // No other kernel multiplies codes, and their scales are no operands here.
    if let FactorDigits::Fp8(_) = digits {
        return Err("factors in FP8 have scales".into());
    }
    #[cfg(feature = "cubecl-cpu")]
    if let burn_cubecl::CubeDevice::Cpu(_) = left.device {
        return host::product(left, right, dtype, out).map_err(|e| format!("{e:?}"));
    }
    if let burn_cubecl::CubeDevice::Cuda(gpu) = &left.device
        && let Some(made) = blas::product(gpu.index, &left, &right, (dtype, digits), &out)
    {
        return Ok(made);
    }
    let rows = left.shape().iter().rev().nth(1).copied();
    let left = if rows == Some(1) { into_contiguous(left) } else { left };
    matmul(left, right, out, MatmulStrategy::default(), dtype).map_err(|e| format!("{e:?}"))
}

/// On the stand-in for GPUs the backend would time kernels whose threads wait for each other at every stage: with more threads
/// than cores, some take half a minute for a product. This takes the one kernel that was written for hosts.
#[cfg(feature = "cubecl-cpu")]
mod host {
    use burn_backend::DType as BurnType;
    use burn_backend::cubecl::dtype_to_storage_type;
    use burn_cubecl::kernel::into_contiguous;
    use burn_cubecl::kernel::matmul::init_matmul_output;
    use burn_cubecl::tensor::CubeTensor;
    use cubek::matmul::definition::{MatmulElems, MatmulGlobalElems, MatmulSetupError};
    use cubek::matmul::launch::launch_ref;
    use cubek::matmul::routine::BlueprintStrategy;
    use cubek::matmul::tiled::Strategy;
    use cubek::matmul::tiled::cpu_gemm::CpuGemmStrategy;
    use cubek::std::InputBinding;

    pub(crate) fn product(
        left: CubeTensor,
        right: CubeTensor,
        dtype: BurnType,
        out: Option<CubeTensor>,
    ) -> Result<CubeTensor, MatmulSetupError> {
        let out = out.unwrap_or_else(|| init_matmul_output(&left, &right, dtype));
        let client = out.client.clone();
        let (factor, result) = (dtype_to_storage_type(left.dtype), dtype_to_storage_type(dtype));
        let mut elems =
            MatmulElems::from_globals(&MatmulGlobalElems { lhs: factor, rhs: factor, out: result });
        let bind = |t: CubeTensor| InputBinding::new(into_contiguous(t).binding(), factor);
        let (left, right) = (bind(left), bind(right));
        let strategy = Strategy::CpuGemm(BlueprintStrategy::Inferred(CpuGemmStrategy::default()));
        launch_ref(&strategy.into(), &client, left, right, out.clone().binding(), &mut elems)?;
        Ok(out)
    }
}
