//! Products that share a factor: one batched matmul of cuBLASLt, whose batches all read the shared factor. If the library has no
//! kernel with the epilogue, each product is computed alone, and the epilogues by a kernel of our own.

use super::blas::{self, MatmulTensors};
use crate::folds::fold;
use crate::kernel::operands::{GpuLaunch, OwnInputs, ResultSlot};
use crate::maps::MapRun;
use crate::matmul::compute;
use burn_cubecl::CubeDevice;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::reshape;
use burn_cubecl::tensor::CubeTensor;
use burn_std::{Metadata, Shape, Strides};
use meshwright_burn::blas::Then;
use meshwright_device::KernelError;
use meshwright_device::kernels::call::Computes;
use meshwright_device::kernels::matmul_group::{GroupEpilogue, MatmulGroupCall};

impl Computes<MatmulGroupCall> for GpuLaunch<'_> {
    fn compute(self, call: &MatmulGroupCall) -> Result<Vec<CubeTensor>, KernelError> {
        let GpuLaunch { step, inputs: OwnInputs { mut tensors, .. }, outputs, .. } = self;
        if tensors.len() < call.vectors().end {
            return Err(KernelError::Unsupported("products lack operands".into()));
        }
        // The shared factor may have any strides; a batched matmul needs contiguous rows.
        tensors[0] = into_contiguous(tensors[0].clone());
        let run = MatmulGroupRun { call, outputs: &outputs, tensors: &tensors, step };
        match run.joined() {
            Some(made) => Ok(made),
            None => run.apart().map_err(|e| KernelError::Unsupported(format!("matrix products: {e}"))),
        }
    }
}

/// Products with their bound operands.
struct MatmulGroupRun<'a> {
    call: &'a MatmulGroupCall,
    outputs: &'a [ResultSlot<'a>],
    tensors: &'a [CubeTensor],
    /// Step number for random draws; products have none.
    step: &'a CubeTensor,
}

impl MatmulGroupRun<'_> {
    /// One batched matmul; `None` if cuBLASLt has no kernel for it.
    fn joined(&self) -> Option<Vec<CubeTensor>> {
        let CubeDevice::Cuda(gpu) = &self.step.device else { return None };
        let call = self.call;
        let made: Vec<CubeTensor> = self.outputs.iter().map(ResultSlot::memory).collect();
        let (products, sums) = made.split_at(call.count);
        let [shared, own] = if call.shares_left { [0, 1] } else { [1, 0] };
        let shared = self.factor(shared, &self.tensors[..1], 0);
        let others = &self.tensors[call.own()];
        let own = self.factor(own, others, distance(others)?);
        let (left, right) = if call.shares_left { (shared, own) } else { (own, shared) };
        let [rows, columns, _] = call.sizes;
        let out = batches(products, [rows, columns], ([columns, 1], distance(products)?));
        let (then, vectors) = match call.beside {
            GroupEpilogue::Nothing => (Then::Nothing, &[][..]),
            GroupEpilogue::Bias { .. } => (Then::Nothing, &self.tensors[call.vectors()]),
            GroupEpilogue::Sums { .. } => {
                (if call.shares_left { Then::RightSums } else { Then::LeftSums }, sums)
            }
        };
        let (vector, apart) = match vectors {
            [] => (None, 0),
            all => {
                let apart = distance(all)?;
                let length = all[0].meta.num_elements();
                (Some(batches(all, [1, length], ([length, 1], apart))), apart)
            }
        };
        let tensors = MatmulTensors { left, right, out, vector, aux: None, added: None, scales: None };
        blas::batched(gpu.index, call.digits, (then, apart), tensors).then_some(made)
    }

    /// Factors of one side as matrices, at a distance.
    fn factor(&self, side: usize, tensors: &[CubeTensor], distance: usize) -> CubeTensor {
        let [rows, columns] = self.call.factors()[side];
        let strides = if self.call.by_columns[side] { [1, rows] } else { [columns, 1] };
        batched(tensors, self.call.count, [rows, columns], (strides, distance))
    }

    /// One product after the other, then the rest.
    fn apart(&self) -> Result<Vec<CubeTensor>, String> {
        let call = self.call;
        let matrix = |side: usize, tensor: &CubeTensor| {
            let [rows, columns] = call.factors()[side];
            let strides = if call.by_columns[side] { [1, rows] } else { [columns, 1] };
            view(tensor, &[rows, columns], &strides)
        };
        let biased = matches!(call.beside, GroupEpilogue::Bias { .. });
        let [rows, columns, _] = call.sizes;
        let mut made = vec![];
        for (tensor, slot) in self.tensors[call.own()].iter().zip(self.outputs) {
            let [left, right] = match call.shares_left {
                true => [matrix(0, &self.tensors[0]), matrix(1, tensor)],
                false => [matrix(0, tensor), matrix(1, &self.tensors[0])],
            };
            let place = (!biased).then(|| view(&slot.memory(), &[rows, columns], &[columns, 1]));
            let product = compute(left, right, (slot.ir.dtype, call.digits), place)?;
            made.push(reshape(product, Shape::from(slot.ir.shape.to_vec())));
        }
        match &call.beside {
            GroupEpilogue::Nothing => {}
            GroupEpilogue::Bias { map, at } => {
                let biases = &self.tensors[call.vectors().end..];
                let (mut tensors, mut ended) = (vec![], vec![]);
                for (product, bias) in made.into_iter().zip(biases) {
                    let both = if *at == 0 { [product, bias.clone()] } else { [bias.clone(), product] };
                    tensors.extend(both);
                    ended.extend([*at == 0, *at == 1]);
                }
                let run = MapRun::new(map, &self.outputs[..call.count], self.step);
                return run.run(OwnInputs { tensors, ended }).map_err(|e| e.to_string());
            }
            GroupEpilogue::Sums { fold: of } => {
                made.extend(fold(of, &self.tensors[call.own()], &self.outputs[call.count..]));
            }
        }
        Ok(made)
    }
}

/// Elements from one tensor to the next, where they lie one after the other in one allocation at equal distances.
fn distance(tensors: &[CubeTensor]) -> Option<usize> {
    let [first, ..] = tensors else { return None };
    let memory = |t: &CubeTensor| t.handle.memory.descriptor() == first.handle.memory.descriptor();
    if !tensors.iter().all(|t| memory(t) && t.is_contiguous()) {
        return None;
    }
    let start = |t: &CubeTensor| t.handle.offset_start.unwrap_or(0);
    let mut steps = tensors.windows(2).map(|pair| start(&pair[1]).checked_sub(start(&pair[0])));
    let step = steps.next()??;
    let element = first.dtype.size() as u64;
    let even = steps.all(|other| other == Some(step)) && step > 0 && step.is_multiple_of(element);
    even.then_some((step / element) as usize)
}

/// A tensor of the same memory.
fn view(tensor: &CubeTensor, shape: &[usize], strides: &[usize]) -> CubeTensor {
    let meta = Metadata::new(Shape::from(shape.to_vec()), Strides::from(strides.to_vec()));
    let (client, handle) = (tensor.client.clone(), tensor.handle.clone());
    CubeTensor::new(client, handle, meta, tensor.device.clone(), tensor.dtype)
}

/// Tensors of one allocation as the matrices of one, each with these strides, and at a distance.
fn batches(tensors: &[CubeTensor], matrix: [usize; 2], strides: ([usize; 2], usize)) -> CubeTensor {
    batched(tensors, tensors.len(), matrix, strides)
}

fn batched(
    tensors: &[CubeTensor],
    count: usize,
    [rows, columns]: [usize; 2],
    ([down, across], distance): ([usize; 2], usize),
) -> CubeTensor {
    let mut all = view(&tensors[0], &[count, rows, columns], &[distance, down, across]);
    if let Some(last) = tensors.last() {
        all.handle.offset_end = last.handle.offset_end;
    }
    all
}
