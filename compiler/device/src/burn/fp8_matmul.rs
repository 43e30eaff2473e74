//! Matmuls of factors in FP8: the kernel that rounds a factor to bytes, and the operands of the matmul.

use super::lower::Lower;
use crate::error::LoweringError;
use crate::kernels::fp8_factor::{Fp8FactorCall, Fp8FactorCalls};
use crate::kernels::matmul::{FactorDigits, MatmulCall, MatmulEpilogue};
use crate::lowering::graph::Val;
use crate::lowering::local::Local;
use crate::passes::fp8_matmuls::{Fp8Contraction, Fp8Factor};
use crate::slot::TensorSlot;
use crate::stored::{extents, stored_as};
use burn_backend::DType as BurnType;
use meshwright_plan::{BufId, DType, Step};

/// A matmul of two values that are stored as codes.
#[derive(Clone, Debug)]
pub(super) struct Fp8Operands {
    /// The left and the right factor.
    factors: [BufId; 2],
    /// Whether each is the transposed matrix of its value.
    turned: [bool; 2],
    /// Rows, columns and summed elements.
    sizes: [usize; 3],
    /// The formats of the factors.
    pub(super) digits: FactorDigits,
}

impl Lower<'_> {
    /// The factor that a step rounds to bytes.
    pub(crate) fn rounded_to_bytes(&self, step: &Step) -> Option<&Fp8Factor> {
        let [out] = &step.writes[..] else { return None };
        self.decisions.fp8.factors.get(&out.buf)
    }

    /// Records independent steps that round factors as one launch.
    pub(crate) fn fp8_factors(&mut self, steps: &[&Step]) -> Result<(), LoweringError> {
        let (mut calls, mut reads, mut slots, mut outs) = (vec![], vec![], vec![], vec![]);
        for step in steps {
            let Some(factor) = self.rounded_to_bytes(step).cloned() else { continue };
            let out = self.local(&step.writes[0])?;
            let inputs = factor.reads.iter().map(|o| self.local(o)).collect::<Result<Vec<_>, _>>()?;
            let wide = [(factor.value.reg, Local { dtype: DType::F32, ..out.clone() })];
            let Some(map) = self.map_call(&factor.value.expr, &inputs, &wide, |_| None)? else {
                return Err(LoweringError::Plan("no kernel computes a value that is rounded to FP8".into()));
            };
            let Fp8Factor { format, matrix, plain, turned, .. } = factor;
            calls.push(Fp8FactorCall { map, format, matrix, plain, turned });
            reads.extend(inputs.iter().map(|local| self.read(local).val));
            let [rows, columns] = matrix;
            let forms = [
                (plain, TensorSlot::Buffer(out.buf), extents(&out.shape)),
                (turned, TensorSlot::Turned(out.buf), vec![columns, rows]),
            ];
            for (_, slot, shape) in forms.into_iter().filter(|form| form.0) {
                slots.push(slot);
                outs.push((shape, BurnType::U8));
            }
        }
        let made = self.graph.kernel(Fp8FactorCalls(calls), reads, outs);
        slots.into_iter().zip(made).for_each(|(slot, val)| self.graph.store(val, slot));
        Ok(())
    }

    /// The operands of a matmul, if its factors are stored as codes.
    pub(super) fn fp8_operands(
        &self,
        [a, b]: [&Local; 2],
        out: &Local,
    ) -> Result<Option<Fp8Operands>, LoweringError> {
        let factors = &self.decisions.fp8.factors;
        let (Some(x), Some(y)) = (factors.get(&a.buf), factors.get(&b.buf)) else { return Ok(None) };
        let Some(Ok(of)) = Fp8Contraction::of([a, b], out)? else {
            return Err(LoweringError::Plan(
                "factors of a matmul are stored as codes that it cannot read".into(),
            ));
        };
        let (bufs, formats) = ([a.buf, b.buf], [x.format, y.format]);
        let order = if of.swapped { [1, 0] } else { [0, 1] };
        Ok(Some(Fp8Operands {
            factors: order.map(|k| bufs[k]),
            turned: of.turned,
            sizes: of.sizes,
            digits: FactorDigits::Fp8(order.map(|k| formats[k])),
        }))
    }

    /// The values of the operands: the codes of both factors, then both scales.
    pub(super) fn fp8_inputs(&mut self, of: &Fp8Operands) -> Result<Vec<Val>, LoweringError> {
        let (mut inputs, mut scales) = (vec![], vec![]);
        for (buf, turned) in of.factors.into_iter().zip(of.turned) {
            let Some(factor) = self.decisions.fp8.factors.get(&buf).cloned() else { continue };
            let [rows, columns] = factor.matrix;
            inputs.push(match turned {
                true => self.graph.read(TensorSlot::Turned(buf), &[columns, rows], BurnType::U8),
                false => {
                    let stored = self.context.plan.buffer(buf);
                    let shape = stored.shape(&self.context.plan.mesh, &self.context.coords);
                    self.graph.read(TensorSlot::Buffer(buf), &extents(&shape), BurnType::U8)
                }
            });
            let inverse = self.local(&factor.inverse)?;
            scales.push(self.read(&inverse).val);
        }
        inputs.extend(scales);
        Ok(inputs)
    }

    /// Records a matmul without an epilogue.
    pub(super) fn fp8_matmul(&mut self, of: &Fp8Operands, out: &Local) -> Result<(), LoweringError> {
        let inputs = self.fp8_inputs(of)?;
        let [rows, columns, _] = of.sizes;
        let product = (extents(&out.shape), stored_as(out.dtype));
        let call = MatmulCall {
            matrices: [rows, columns],
            product: product.clone(),
            digits: of.digits,
            biased: false,
            keeps_bits: false,
            bits_of: None,
            beside: MatmulEpilogue::Nothing,
        };
        let made = self.graph.kernel(call, inputs, [product])[0];
        self.graph.store(made, TensorSlot::Buffer(out.buf));
        Ok(())
    }
}
