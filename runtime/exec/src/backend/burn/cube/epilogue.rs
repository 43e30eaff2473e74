//! A product that does more in the same kernel of cuBLASLt, as an operation of the fusion queue. Where the library turns out to have no kernel
//! for that, the product is computed alone, and the rest by a kernel of our own.

use super::blas::{self, ProductTensors};
use super::folds::{FoldCall, FoldRun};
use super::maps::{MapCall, MapRun};
use super::operation::{QueuedTensor, record, register, tensors};
use super::product::compute;
use crate::backend::burn::blas::Then;
use crate::engine::epilogues::ProductFunction;
use burn_backend::{DType as BurnType, ExecutionError};
use burn_cubecl::fusion::{CubeFusionHandle, FusionCubeRuntime};
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::ops::reshape;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeDevice};
use burn_fusion::stream::Operation;
use burn_ir::{HandleContainer, TensorIr, TensorStatus};
use burn_std::Shape as Extents;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What is known of it when a Plan is loaded. Its operands are the factors as matrices, a bias or bits where it has them, and what the other
/// step reads beside the product.
pub(crate) struct ProductCall {
    /// Rows and columns.
    pub(crate) matrices: [usize; 2],
    /// Shape and type of the product alone.
    pub(crate) product: (Vec<usize>, BurnType),
    pub(crate) biased: bool,
    /// Whether the last result is which elements a `relu` let through.
    pub(crate) keeps_bits: bool,
    /// Whether these were written in the last run: shared by the `relu` and its gradient.
    pub(crate) kept: Arc<AtomicBool>,
    pub(crate) beside: BesideProduct,
}

/// What is done beside a product, and the kernel that does it alone.
pub(crate) enum BesideProduct {
    /// A function of its elements; `at` is the product's place among the operands of the kernel.
    Map { function: ProductFunction, map: Arc<[MapCall]>, at: usize },
    /// The gradient of a `relu`.
    ReluGrad { map: Arc<[MapCall]>, at: usize },
    /// Sums of the right or the left factor.
    FactorSums { right: bool, fold: Arc<[FoldCall]> },
}

/// The operation when its turn has come.
struct ProductRun {
    call: Arc<ProductCall>,
    inputs: Vec<TensorIr>,
    outputs: Vec<TensorIr>,
    /// Where random values would be drawn, which there are none of.
    step: CubeTensor,
}

impl std::fmt::Debug for ProductRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "product of {:?}", self.call.matrices)
    }
}

/// Records it.
pub(super) fn product(
    call: &Arc<ProductCall>,
    step: CubeTensor,
    inputs: Vec<QueuedTensor>,
    outputs: &[TensorIr],
) -> Vec<QueuedTensor> {
    let client = burn_fusion::get_client::<CubeBackend>(&step.device);
    let call = call.clone();
    record("meshwright_product", &client, inputs, outputs, |inputs, outputs| ProductRun {
        call,
        inputs,
        outputs,
        step,
    })
}

impl Operation<FusionCubeRuntime> for ProductRun {
    fn execute(&self, handles: &mut HandleContainer<CubeFusionHandle>) -> Result<(), ExecutionError> {
        let inputs = tensors(handles, &self.inputs);
        let made = match self.fused(&inputs) {
            Some(made) => made,
            None => {
                self.apart(inputs).map_err(|e| ExecutionError::generic(format!("a matrix product: {e}")))?
            }
        };
        register(handles, &self.outputs, made);
        Ok(())
    }
}

impl ProductRun {
    fn empty(&self, ir: &TensorIr) -> CubeTensor {
        let (client, device) = (self.step.client.clone(), self.step.device.clone());
        empty_device_contiguous_dtype(client, device, Extents::from(ir.shape.to_vec()), ir.dtype)
    }

    /// All in one kernel; none where cuBLASLt has none.
    fn fused(&self, inputs: &[CubeTensor]) -> Option<Vec<CubeTensor>> {
        let CubeDevice::Cuda(gpu) = &self.step.device else { return None };
        let [left, right, rest @ ..] = inputs else { return None };
        let made: Vec<CubeTensor> = self.outputs.iter().map(|ir| self.empty(ir)).collect();
        let asked = |then, vector: Option<&CubeTensor>, bits: Option<&CubeTensor>| {
            let tensors = ProductTensors {
                left: left.clone(),
                right: right.clone(),
                out: made[0].clone(),
                vector: vector.cloned(),
                bits: bits.cloned(),
            };
            blas::fused(gpu.index, self.call.matrices, then, tensors)
        };
        let done = match &self.call.beside {
            BesideProduct::Map { function, .. } => {
                let bias = rest.first().filter(|_| self.call.biased);
                let kept = self.call.keeps_bits && asked(Then::ReluKeeping, bias, made.last());
                self.call.kept.store(kept, Ordering::Relaxed);
                let then = match function {
                    ProductFunction::Identity => Then::Nothing,
                    ProductFunction::Relu => Then::Relu,
                    ProductFunction::GeluTanh => Then::GeluTanh,
                };
                kept || asked(then, bias, None)
            }
            BesideProduct::ReluGrad { .. } => {
                self.call.kept.load(Ordering::Relaxed) && asked(Then::ReluGrad, None, rest.first())
            }
            BesideProduct::FactorSums { right, .. } => {
                asked(if *right { Then::RightSums } else { Then::LeftSums }, made.last(), None)
            }
        };
        done.then_some(made)
    }

    /// The product, then the rest.
    fn apart(&self, mut inputs: Vec<CubeTensor>) -> Result<Vec<CubeTensor>, String> {
        let reads_bits = matches!(self.call.beside, BesideProduct::ReluGrad { .. });
        let own = 2 + usize::from(self.call.biased) + usize::from(reads_bits);
        let mut reads = inputs.split_off(own);
        inputs.truncate(2);
        let (Some(right), Some(left)) = (inputs.pop(), inputs.pop()) else { return Err("no factors".into()) };
        let (shape, dtype) = &self.call.product;
        let product = reshape(compute(left, right, *dtype)?, Extents::from(shape.clone()));
        let mut irs = self.inputs[own..].to_vec();
        Ok(match &self.call.beside {
            BesideProduct::Map { map, at, .. } | BesideProduct::ReluGrad { map, at } => {
                let ended =
                    TensorIr { status: TensorStatus::ReadWrite, dtype: *dtype, ..self.outputs[0].clone() };
                irs.insert(*at, ended);
                reads.insert(*at, product);
                let outputs = vec![self.outputs[0].clone()];
                let mut made = MapRun::new(map.clone(), irs, outputs, self.step.clone()).run(reads);
                // Nobody reads them, since they are not kept.
                made.extend(self.outputs[1..].iter().map(|ir| self.empty(ir)));
                made
            }
            BesideProduct::FactorSums { fold, .. } => {
                let run = FoldRun::new(fold.clone(), irs, self.outputs[1..].to_vec());
                let sums = run.run(&reads).map_err(|e| format!("{e:?}"))?;
                std::iter::once(product).chain(sums).collect()
            }
        })
    }
}
