//! Matmuls that do more in the same kernel, where the device has a library for that: which they are, and how they are recorded.

use super::fp8_matmul::Fp8Operands;
use super::lower::Lower;
use crate::error::LoweringError;
use crate::kernels::fold::FoldCall;
use crate::kernels::map::MapCall;
use crate::kernels::matmul::{FactorDigits, MatmulCall, MatmulEpilogue, relu_bits};
use crate::lowering::contraction::{BatchedMatmul, Contraction, contraction};
use crate::lowering::graph::Val;
use crate::lowering::local::Local;
use crate::passes::epilogues::{Epilogue, EpilogueKind, SummedBeside};
use crate::slot::TensorSlot;
use crate::stored::{extents, stored_as};
use burn_backend::DType as BurnType;
use meshwright_plan::{DType, Dim};
use std::sync::Arc;

/// A matmul with its epilogue, on this device.
struct MatmulSteps {
    digits: FactorDigits,
    /// The factors, if they are stored as codes.
    codes: Option<Fp8Operands>,
    matrices: BatchedMatmul,
    factors: [Local; 2],
    /// Result of the matmul alone.
    product: Local,
    /// Results with the epilogue: the one of the fused step, and the sums of a factor.
    written: Vec<Local>,
    /// Other operands of the fused step.
    reads: Vec<Local>,
    bias: Option<Local>,
    beside: MatmulEpilogue,
}

/// Result, bias and epilogue of a matmul.
type BesideSteps = (Vec<Local>, Option<Local>, MatmulEpilogue);

impl Lower<'_> {
    /// See [`Lowering::has_epilogue`](crate::lowering::Lowering::has_epilogue).
    pub(crate) fn is_epilogue(&self, epilogue: &Epilogue) -> bool {
        self.graph.target.epilogues && matches!(self.product_steps(epilogue), Ok(Some(_)))
    }

    /// Records it.
    pub(crate) fn epilogue(&mut self, epilogue: &Epilogue) -> Result<(), LoweringError> {
        let Some(steps) = self.product_steps(epilogue)? else {
            return Err(LoweringError::Plan("a product has another epilogue than it had".into()));
        };
        let (m, [a, b]) = (&steps.matrices, &steps.factors);
        let (left, right) = if m.swapped { (b, a) } else { (a, b) };
        let mut inputs = match &steps.codes {
            Some(codes) => self.fp8_inputs(codes)?,
            None => [(left, &m.left), (right, &m.right)]
                .map(|(local, factor)| {
                    let val = self.read(local).val;
                    self.factor((val, local), factor)
                })
                .into(),
        };
        if let Some(bias) = &steps.bias {
            inputs.push(self.bias(bias, &steps.written[0]));
        }
        let mut outs: Vec<_> =
            steps.written.iter().map(|o| (extents(&o.shape), stored_as(o.dtype))).collect();
        let [.., rows, columns] = m.shape[..] else { return Err(LoweringError::Plan("no matrices".into())) };
        let bits = vec![relu_bits([rows, columns])];
        let (mut bits_of, mut keeps) = (None, None);
        if let EpilogueKind::ReluGrad { of, .. } = epilogue.does {
            let Some(slot) = self.bits.get(&of).copied() else {
                return Err(LoweringError::Plan("no step has kept which elements a relu let through".into()));
            };
            bits_of = Some(of);
            inputs.push(self.graph.read(slot, &bits, BurnType::U8));
        } else if self.decisions.epilogues.keep_bits.contains_key(&epilogue.other) {
            let slot = self.graph.fresh();
            self.bits.insert(epilogue.other, slot);
            bits_of = Some(epilogue.other);
            outs.push((bits, BurnType::U8));
            keeps = Some(slot);
        }
        inputs.extend(steps.reads.iter().map(|local| self.read(local).val).collect::<Vec<_>>());
        let call = MatmulCall {
            matrices: [rows, columns],
            product: (extents(&steps.product.shape), stored_as(steps.product.dtype)),
            digits: steps.digits,
            biased: steps.bias.is_some(),
            keeps_bits: keeps.is_some(),
            bits_of,
            beside: steps.beside,
        };
        let made = self.graph.kernel(call, inputs, outs);
        let slots = steps.written.iter().map(|o| TensorSlot::Buffer(o.buf)).chain(keeps);
        made.into_iter().zip(slots).for_each(|(val, slot)| self.graph.store(val, slot));
        Ok(())
    }

    /// The result of a step as a matrix, if the step is a matmul.
    fn matrix_shape(&self, product: usize) -> Result<Option<Vec<usize>>, LoweringError> {
        let ([a, b], [made]) = self.locals(&self.context.plan.steps[product])?;
        Ok(match contraction(&a, &b, &made)? {
            Contraction::Matmul(product) => Some(product.shape),
            Contraction::Zero => None,
        })
    }

    /// A bias as a vector of the dtype of the sum.
    fn bias(&mut self, bias: &Local, out: &Local) -> Val {
        let val = self.read(bias).val;
        let val = self.graph.reshape(val, &[bias.elements()]);
        self.convert(val, stored_as(out.dtype))
    }

    /// The matmul with its epilogue; none if the library has no such epilogue, or no kernel could replace it.
    fn product_steps(&self, epilogue: &Epilogue) -> Result<Option<MatmulSteps>, LoweringError> {
        let steps = &self.context.plan.steps;
        let (product, other) = (&steps[epilogue.product], &steps[epilogue.other]);
        let ([a, b], [made]) = self.locals(product)?;
        let mut reads = other.reads.iter().map(|o| self.local(o)).collect::<Result<Vec<_>, _>>()?;
        self.context.check_aligned(&[&a, &b, &made], &[])?;
        let Contraction::Matmul(matrices) = contraction(&a, &b, &made)? else { return Ok(None) };
        // A sum of products without matrices is a fold (ADR 43).
        let is_matrix = matrices.copy.is_none()
            && matrices.shape.len() == 2
            && matrices.shape != [1, 1]
            && a.dtype == b.dtype;
        let known = (&*matrices, matrix_dims([&a, &b], &made, matrices.swapped), &made);
        let Some((written, bias, beside)) = self.beside(epilogue, known, &reads)? else {
            return Ok(None);
        };
        if let Some(product) = epilogue.does.product() {
            reads.remove(product);
        }
        if let EpilogueKind::Adds { sums: Some(sums), .. } = epilogue.does {
            reads
                .extend(steps[sums.step].reads.iter().map(|o| self.local(o)).collect::<Result<Vec<_>, _>>()?);
        }
        let gives = |dtype: DType| dtype == a.dtype || a.dtype.is_half() && dtype == DType::F32;
        let codes = self.fp8_operands([&a, &b], &made)?;
        let known = codes.is_none() || beside.is_of_codes();
        let fits = is_matrix && known && gives(written[0].dtype) && gives(made.dtype);
        let whole = written.iter().chain(&reads).all(|l| l.elements() > 0);
        let steps = MatmulSteps {
            digits: codes.as_ref().map_or(self.decisions.digits([a.buf, b.buf]), |codes| codes.digits),
            codes,
            matrices: *matrices,
            factors: [a, b],
            product: made,
            written,
            reads,
            bias,
            beside,
        };
        Ok((fits && whole).then_some(steps))
    }

    /// Result, bias and epilogue of a matmul with known dims of rows and columns; `reads` are the operands of the other
    /// step.
    fn beside(
        &self,
        epilogue: &Epilogue,
        (matrices, [rows, columns], made): (&BatchedMatmul, [Vec<Dim>; 2], &Local),
        reads: &[Local],
    ) -> Result<Option<BesideSteps>, LoweringError> {
        let steps = &self.context.plan.steps;
        let other = &steps[epilogue.other];
        let [out] = &other.writes[..] else { return Ok(None) };
        let out = self.local(out)?;
        let by_columns = |l: &Local| dims(l) == columns;
        let alike = |l: &Local| l.dims == made.dims && l.shape == made.shape;
        let map = |at: usize| {
            let call = self.own_map_call(other).ok().flatten()?;
            alike(&out).then(|| (Arc::from([call]), at))
        };
        Ok(Some(match epilogue.does {
            EpilogueKind::Map { function, product, bias } => {
                let Some((map, at)) = map(product) else { return Ok(None) };
                let bias = bias.map(|k| reads[k].clone());
                if !bias.iter().all(by_columns) {
                    return Ok(None);
                }
                (vec![out], bias, MatmulEpilogue::Map { function, map, at })
            }
            EpilogueKind::GeluKeeping { product, bias, gelu } => {
                let (Some((map, at)), [result]) = (map(product), &steps[gelu].writes[..]) else {
                    return Ok(None);
                };
                let (result, bias) = (self.local(result)?, reads[bias].clone());
                let fits = alike(&result) && result.dtype == out.dtype && by_columns(&bias);
                let Some(gelu) = self.own_map_call(&steps[gelu])?.filter(|_| fits) else { return Ok(None) };
                (
                    vec![result, out],
                    Some(bias),
                    MatmulEpilogue::GeluKeeping { map, at, gelu: Arc::from([gelu]) },
                )
            }
            EpilogueKind::ReluGrad { product, forward, .. } => {
                let Some((map, at)) = map(product) else { return Ok(None) };
                // Bits lie as the rows and columns of the matmul that wrote them.
                if self.matrix_shape(forward)? != Some(matrices.shape.clone()) {
                    return Ok(None);
                }
                if !alike(&reads[1 - product]) {
                    return Ok(None);
                }
                (vec![out], None, MatmulEpilogue::ReluGrad { map, at })
            }
            EpilogueKind::GeluGrad { product, operand } => {
                let Some((map, at)) = map(product) else { return Ok(None) };
                let x = &reads[operand];
                if !alike(x) || x.dtype != out.dtype {
                    return Ok(None);
                }
                (vec![out], None, MatmulEpilogue::GeluGrad { map, at })
            }
            EpilogueKind::FactorSums { factor } => {
                let known = (matrices, [rows, columns], made.dtype);
                let Some((right, fold, out)) = self.factor_sums(epilogue.other, factor, known)? else {
                    return Ok(None);
                };
                (vec![made.clone(), out], None, MatmulEpilogue::FactorSums { right, fold })
            }
            EpilogueKind::Adds { product, sums } => {
                let (Some(map), value) = (map(product), &reads[1 - product]) else { return Ok(None) };
                if !alike(value) || value.dtype != out.dtype {
                    return Ok(None);
                }
                return self.sum(out, map, sums, (matrices, [rows, columns]));
            }
        }))
    }

    /// A sum of a matmul and a value, with sums of a factor beside if there are any.
    fn sum(
        &self,
        out: Local,
        (map, at): (Arc<[MapCall]>, usize),
        sums: Option<SummedBeside>,
        (matrices, dims): (&BatchedMatmul, [Vec<Dim>; 2]),
    ) -> Result<Option<BesideSteps>, LoweringError> {
        let (mut written, mut summed) = (vec![out], None);
        if let Some(sums) = sums {
            let known = (matrices, dims, written[0].dtype);
            let Some((right, fold, out)) = self.factor_sums(sums.step, sums.factor, known)? else {
                return Ok(None);
            };
            written.push(out);
            summed = Some((right, fold));
        }
        Ok(Some((written, None, MatmulEpilogue::Adds { map, at, sums: summed })))
    }

    /// Sums of a factor by a step: whether the factor is the right one of its matmul, whose result has that dtype, the kernel,
    /// and the result; none if the matmul cannot do it.
    fn factor_sums(
        &self,
        step: usize,
        factor: usize,
        (matrices, [rows, columns], dtype): (&BatchedMatmul, [Vec<Dim>; 2], DType),
    ) -> Result<Option<FactorSums>, LoweringError> {
        let step = &self.context.plan.steps[step];
        let (Ok(Some(fold)), [out]) = (self.own_fold_call(step), &step.writes[..]) else { return Ok(None) };
        let out = self.local(out)?;
        let right = (factor == 1) != matrices.swapped;
        let (view, kept) = if right { (&matrices.right, columns) } else { (&matrices.left, rows) };
        let fits = view.copy.is_none() && dims(&out) == kept && out.dtype == dtype;
        Ok(fits.then(|| (right, Arc::from([fold]), out)))
    }
}

/// Whether the right factor is summed, the kernel of the sums alone, and their result.
type FactorSums = (bool, Arc<[FoldCall]>, Local);

/// The dims of a tensor that have more than one element, in order.
fn dims(l: &Local) -> Vec<Dim> {
    l.dims.iter().zip(&l.shape).filter(|(_, size)| **size != 1).map(|(dim, _)| *dim).collect()
}

/// Dims of the rows and of the columns of a matmul.
fn matrix_dims([a, b]: [&Local; 2], out: &Local, swapped: bool) -> [Vec<Dim>; 2] {
    let of = |l: &Local, other: &Local| -> Vec<Dim> {
        let alone = |d: &Dim| l.dims.contains(d) && !other.dims.contains(d);
        dims(out).into_iter().filter(alone).collect()
    };
    let (left, right) = if swapped { (b, a) } else { (a, b) };
    [of(left, right), of(right, left)]
}
