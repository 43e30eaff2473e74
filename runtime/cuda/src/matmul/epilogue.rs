//! A product that does more in the same kernel of cuBLASLt. Where the library turns out to have no kernel for that, the product
//! is computed alone, and the rest by a kernel of our own.

use super::blas::{self, MatmulTensors};
use crate::folds::fold;
use crate::kernel::operands::{GpuLaunch, OwnInputs, ResultSlot};
use crate::maps::MapRun;
use crate::matmul::compute;
use burn_cubecl::CubeDevice;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::ops::reshape;
use burn_cubecl::tensor::CubeTensor;
use burn_std::Shape as Extents;
use meshwright_burn::blas::Then;
use meshwright_device::KernelError;
use meshwright_device::kernels::call::Computes;
use meshwright_device::kernels::matmul::{EpilogueFunction, FactorDigits, MatmulCall, MatmulEpilogue};
use meshwright_sorted::SortedSet;

/// A matmul with its bound operands.
struct EpilogueRun<'a> {
    call: &'a MatmulCall,
    outputs: &'a [ResultSlot<'a>],
    /// Step number for random draws; a matmul has none.
    step: &'a CubeTensor,
}

impl Computes<MatmulCall> for GpuLaunch<'_> {
    fn compute(self, call: &MatmulCall) -> Result<Vec<CubeTensor>, KernelError> {
        let GpuLaunch { step, inputs, outputs, relu_bits, .. } = self;
        let run = EpilogueRun { call, outputs: &outputs, step };
        match run.fused(relu_bits, &inputs.tensors) {
            Some(made) => Ok(made),
            None => run.apart(inputs).map_err(|e| KernelError::Unsupported(format!("a matrix product: {e}"))),
        }
    }
}

impl EpilogueRun<'_> {
    /// All in one kernel; none if cuBLASLt has none.
    fn fused(&self, relu_bits: &mut SortedSet<usize>, inputs: &[CubeTensor]) -> Option<Vec<CubeTensor>> {
        let ([left, right], rest) = inputs.split_first_chunk()?;
        let rest = rest.get(self.call.digits.scales()..)?;
        let scales = self.scales(inputs);
        let made: Vec<CubeTensor> = self.outputs.iter().map(ResultSlot::memory).collect();
        let asked = |then, vector: Option<&CubeTensor>, aux: Option<&CubeTensor>| {
            let tensors =
                MatmulTensors { aux: aux.cloned(), ..self.tensors([left, right], &made[0], vector) };
            self.submitted(then, MatmulTensors { scales: scales.clone(), ..tensors })
        };
        let done = match &self.call.beside {
            MatmulEpilogue::Nothing => asked(Then::Nothing, None, None),
            MatmulEpilogue::Map { function, .. } => {
                let bias = self.bias(rest);
                let bias = bias.as_ref();
                let kept = self.call.keeps_bits && asked(Then::ReluKeeping, bias, made.last());
                match self.call.bits_of {
                    Some(step) if kept => drop(relu_bits.insert(step)),
                    Some(step) => drop(relu_bits.remove(&step)),
                    None => {}
                }
                let then = match function {
                    EpilogueFunction::Identity => Then::Nothing,
                    EpilogueFunction::Relu => Then::Relu,
                    EpilogueFunction::GeluTanh => Then::GeluTanh,
                };
                kept || asked(then, bias, None)
            }
            MatmulEpilogue::GeluKeeping { gelu, .. } => {
                let bias = self.bias(rest);
                let kept = made.last().filter(|kept| kept.meta == made[0].meta);
                if kept.is_some() && asked(Then::GeluTanhKeeping, bias.as_ref(), kept) {
                    return Some(made);
                }
                // With the bias alone; a kernel of our own then applies the function.
                let kept = made.last()?.clone();
                let tensors = self.tensors([left, right], &kept, bias.as_ref());
                if !self.submitted(Then::Nothing, MatmulTensors { scales, ..tensors }) {
                    return None;
                }
                let inputs = OwnInputs { tensors: vec![kept.clone()], ended: vec![false] };
                let result = MapRun::new(gelu, &self.outputs[..1], self.step).run(inputs).ok()?;
                return Some(result.into_iter().chain([kept]).collect());
            }
            MatmulEpilogue::ReluGrad { .. } => {
                self.call.bits_of.is_some_and(|step| relu_bits.contains(&step))
                    && asked(Then::ReluGrad, None, rest.first())
            }
            MatmulEpilogue::GeluGrad { .. } => {
                let operand = rest.first().filter(|x| x.meta == made[0].meta);
                operand.is_some() && asked(Then::GeluTanhGrad, None, operand)
            }
            MatmulEpilogue::FactorSums { right, .. } => {
                asked(if *right { Then::RightSums } else { Then::LeftSums }, made.last(), None)
            }
            MatmulEpilogue::Adds { .. } => {
                let (then, vector) = match self.call.beside.summed() {
                    Some(true) => (Then::RightSums, made.last()),
                    Some(false) => (Then::LeftSums, made.last()),
                    None => (Then::Nothing, None),
                };
                let added = rest.first().cloned();
                let tensors = MatmulTensors { added, ..self.tensors([left, right], &made[0], vector) };
                self.submitted(then, MatmulTensors { scales, ..tensors })
            }
        };
        done.then_some(made)
    }

    fn tensors(
        &self,
        [left, right]: [&CubeTensor; 2],
        out: &CubeTensor,
        vector: Option<&CubeTensor>,
    ) -> MatmulTensors {
        MatmulTensors {
            left: left.clone(),
            right: right.clone(),
            out: out.clone(),
            vector: vector.cloned(),
            aux: None,
            added: None,
            scales: None,
        }
    }

    /// The scales of factors in FP8.
    fn scales(&self, inputs: &[CubeTensor]) -> Option<[CubeTensor; 2]> {
        match (self.call.digits, inputs) {
            (FactorDigits::Fp8(_), [_, _, left, right, ..]) => Some([left.clone(), right.clone()]),
            _ => None,
        }
    }

    /// Puts the product on its stream; false where cuBLASLt is not open or has no kernel for it.
    fn submitted(&self, then: Then, tensors: MatmulTensors) -> bool {
        let CubeDevice::Cuda(gpu) = &self.step.device else { return false };
        match self.call.digits {
            FactorDigits::Fp8(formats) => {
                let [rows, columns] = self.call.matrices;
                let summed = tensors.left.meta.num_elements() / rows.max(1);
                blas::fused_fp8(gpu.index, ([rows, columns, summed], formats), then, tensors)
            }
            digits => blas::fused(gpu.index, (self.call.matrices, digits), then, tensors),
        }
    }

    /// The product alone.
    fn product(&self, inputs: &[CubeTensor]) -> Result<CubeTensor, String> {
        let ([left, right], _) = inputs.split_first_chunk().ok_or("no factors")?;
        let (shape, dtype) = &self.call.product;
        let made = match self.scales(inputs) {
            None => compute(left.clone(), right.clone(), (*dtype, self.call.digits), None)?,
            scales => {
                let (client, device) = (self.step.client.clone(), self.step.device.clone());
                let memory = Extents::from(self.call.matrices);
                let out = empty_device_contiguous_dtype(client, device, memory, *dtype);
                let tensors = MatmulTensors { scales, ..self.tensors([left, right], &out, None) };
                if !self.submitted(Then::Nothing, tensors) {
                    return Err("cuBLASLt has no kernel for its factors in FP8".into());
                }
                out
            }
        };
        Ok(reshape(made, Extents::from(shape.clone())))
    }

    /// The library takes its elements one after the other.
    fn bias(&self, rest: &[CubeTensor]) -> Option<CubeTensor> {
        rest.first().filter(|_| self.call.biased).cloned().map(into_contiguous)
    }

    /// The product, then the rest.
    fn apart(&self, inputs: OwnInputs) -> Result<Vec<CubeTensor>, String> {
        let OwnInputs { mut tensors, mut ended } = inputs;
        let reads_bits = matches!(self.call.beside, MatmulEpilogue::ReluGrad { .. });
        let factors = 2 + self.call.digits.scales();
        let own = factors + usize::from(self.call.biased) + usize::from(reads_bits);
        let mut rest = OwnInputs { tensors: tensors.split_off(own), ended: ended.split_off(own) };
        tensors.truncate(factors);
        let product = self.product(&tensors)?;
        Ok(match &self.call.beside {
            MatmulEpilogue::Nothing => vec![product],
            MatmulEpilogue::Map { map, at, .. }
            | MatmulEpilogue::ReluGrad { map, at }
            | MatmulEpilogue::GeluGrad { map, at } => {
                rest.tensors.insert(*at, product);
                rest.ended.insert(*at, true);
                let mut made =
                    MapRun::new(map, &self.outputs[..1], self.step).run(rest).map_err(|e| e.to_string())?;
                // Nobody reads them, since they are not kept.
                made.extend(self.outputs[1..].iter().map(ResultSlot::memory));
                made
            }
            MatmulEpilogue::GeluKeeping { map, at, gelu } => {
                rest.tensors.insert(*at, product);
                rest.ended.insert(*at, true);
                let [result, kept] = self.outputs else { return Err("one result is kept".into()) };
                let of =
                    |map, slot, inputs| MapRun::new(map, std::slice::from_ref(slot), self.step).run(inputs);
                let kept = of(map, kept, rest).map_err(|e| e.to_string())?;
                let inputs = OwnInputs { tensors: kept.clone(), ended: vec![false] };
                let made = of(gelu, result, inputs).map_err(|e| e.to_string())?;
                made.into_iter().chain(kept).collect()
            }
            MatmulEpilogue::FactorSums { fold: of, .. } => {
                let sums = fold(of, &rest.tensors, &self.outputs[1..]);
                std::iter::once(product).chain(sums).collect()
            }
            MatmulEpilogue::Adds { map, at, sums } => {
                let factor = rest.tensors.split_off(1);
                rest.ended.truncate(1);
                rest.tensors.insert(*at, product);
                rest.ended.insert(*at, true);
                let mut made =
                    MapRun::new(map, &self.outputs[..1], self.step).run(rest).map_err(|e| e.to_string())?;
                made.extend(sums.iter().flat_map(|(_, of)| fold(of, &factor, &self.outputs[1..])));
                made
            }
        })
    }
}
