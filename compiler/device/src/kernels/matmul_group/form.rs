//! The form of matmuls that are one launch, and their call on a device.

use super::super::fold::FoldCall;
use super::super::map::{MapCall, MapCalls, MapOperand};
use super::super::matmul::{EpilogueFunction, FactorDigits};
use super::call::{GroupEpilogue, MatmulGroupCall};
use crate::arena::row_pitch;
use crate::decisions::fused::FusedCall;
use crate::error::LoweringError;
use crate::kernels::Kernel;
use crate::lowering::Lowering;
use crate::lowering::contraction::{Contraction, Factor, contraction};
use crate::lowering::local::Local;
use crate::passes::epilogues::{Epilogue, EpilogueKind};
use crate::slot::TensorSlot;
use crate::stored::{extents, stored_as};
use meshwright_plan::expr::Expr;
use meshwright_plan::{DType, Operand};
use std::sync::Arc;

/// Rows of matrices are multiples of this many bytes, as the fast kernels of libraries require.
const ROW_BYTES: usize = 16;

/// The form of a matmul: matmuls of equal forms can be one launch if they share a factor.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MatmulForm {
    /// Rows, columns, and summed elements.
    sizes: [usize; 3],
    /// Whether the left and the right factor lie by columns.
    by_columns: [bool; 2],
    /// Dtypes of the factors and of the result.
    dtypes: [DType; 2],
    digits: FactorDigits,
    beside: BesideForm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BesideForm {
    Nothing,
    /// The dtype of the bias, and the index of the matmul among the two operands of the sum.
    Bias(DType, usize),
    /// Whether it sums the right factor.
    Sums(bool),
}

/// A matmul with its epilogue, if it has one.
#[derive(Clone, Debug)]
pub(crate) struct FormedMatmul {
    /// The step of the Plan.
    pub product: usize,
    /// Its epilogue.
    pub epilogue: Option<Epilogue>,
    /// The left and the right factor.
    pub factors: [Operand; 2],
    pub form: MatmulForm,
}

impl FormedMatmul {
    /// Its steps, in the order of the Plan.
    pub(crate) fn steps(&self) -> Vec<usize> {
        let mut steps: Vec<usize> = self.epilogue.iter().map(|e| e.other).chain([self.product]).collect();
        steps.sort_unstable();
        steps
    }

    /// Whether it can share its left factor, or its right one: sums of a shared factor would be computed for each.
    pub(crate) fn can_share(&self, left: bool) -> bool {
        self.form.beside != BesideForm::Sums(!left)
    }
}

/// True if a factor lies by columns; none unless it is a matrix without gaps whose rows fast kernels read.
fn lies_by_columns(local: &Local, factor: &Factor) -> Option<bool> {
    let (element, shape) = (local.dtype.bytes(), extents(&local.shape));
    let [_, row] = factor.reshape[..] else { return None };
    let dense = row_pitch(&shape, element) == *shape.last()?;
    let fast = dense && factor.copy.is_none() && (row * element).is_multiple_of(ROW_BYTES);
    fast.then_some(factor.permute.is_some())
}

impl Lowering<'_> {
    /// The form of a matmul with its epilogue, if it could be one of several in a launch.
    pub(crate) fn formed_product(&self, product: usize, epilogue: Option<&Epilogue>) -> Option<FormedMatmul> {
        let step = &self.context.plan.steps[product];
        let ([a, b], [made]) = (&step.reads[..], &step.writes[..]) else { return None };
        let [x, y, out] = [self.local(a).ok()?, self.local(b).ok()?, self.local(made).ok()?];
        self.context.check_aligned(&[&x, &y, &out], &[]).ok()?;
        // Codes of FP8 have scales, of which a library takes one for all batches.
        if self.decisions.fp8.factors.contains_key(&a.buf) {
            return None;
        }
        let Contraction::Matmul(m) = contraction(&x, &y, &out).ok()? else { return None };
        let [rows, columns] = m.shape[..] else { return None };
        let sizes = [rows, columns, m.summed];
        let ([left, right], factors) = match m.swapped {
            true => ([&y, &x], [b.clone(), a.clone()]),
            false => ([&x, &y], [a.clone(), b.clone()]),
        };
        let by_columns = [lies_by_columns(left, &m.left)?, lies_by_columns(right, &m.right)?];
        let result = Factor { copy: m.copy.clone(), reshape: m.shape.clone(), permute: None };
        let known = |dtype: DType| dtype == DType::F32 || dtype.is_half();
        let gives = out.dtype == x.dtype || out.dtype == DType::F32;
        let fits = x.dtype == y.dtype && known(x.dtype) && gives && sizes.iter().all(|n| *n > 1);
        if !fits || lies_by_columns(&out, &result) != Some(false) || a.buf == b.buf {
            return None;
        }
        let beside = match epilogue {
            None => BesideForm::Nothing,
            Some(e) => self.beside_form(e, (&out, m.swapped))?,
        };
        let digits = self.decisions.digits([x.buf, y.buf]);
        let form = MatmulForm { sizes, by_columns, dtypes: [x.dtype, out.dtype], digits, beside };
        Some(FormedMatmul { product, epilogue: epilogue.cloned(), factors, form })
    }

    fn beside_form(&self, epilogue: &Epilogue, (made, swapped): (&Local, bool)) -> Option<BesideForm> {
        let other = &self.context.plan.steps[epilogue.other];
        match epilogue.does {
            EpilogueKind::Map { function: EpilogueFunction::Identity, bias: Some(bias), product } => {
                let (bias, out) =
                    (self.local(&other.reads[bias]).ok()?, self.local(other.writes.first()?).ok()?);
                let same = out.dtype == made.dtype && epilogue.before.is_empty();
                same.then_some(BesideForm::Bias(bias.dtype, product))
            }
            EpilogueKind::FactorSums { factor } => Some(BesideForm::Sums((factor == 1) != swapped)),
            _ => None,
        }
    }

    /// The call of matmuls of one form that share a factor.
    pub(crate) fn products_call(
        &self,
        all: &[FormedMatmul],
        shares_left: bool,
    ) -> Result<Option<FusedCall>, LoweringError> {
        let Some(FormedMatmul { form, factors, .. }) = all.first() else { return Ok(None) };
        let [shared, own] = if shares_left { [0, 1] } else { [1, 0] };
        let plan = self.context.plan;
        let mut reads = vec![self.local(&factors[shared])?];
        for of in all {
            reads.push(self.local(&of.factors[own])?);
        }
        let (mut writes, mut sums, mut maps, mut folds) = (vec![], vec![], vec![], vec![]);
        for of in all {
            let made = self.local(&plan.steps[of.product].writes[0])?;
            let Some(Epilogue { other, does, .. }) = &of.epilogue else {
                writes.push(made);
                continue;
            };
            let step = &plan.steps[*other];
            let out = self.local(&step.writes[0])?;
            if let EpilogueKind::Map { bias: Some(bias), .. } = does {
                reads.push(self.local(&step.reads[*bias])?);
                writes.push(out);
                maps.extend(self.own_map_call(step)?);
            } else {
                writes.push(made);
                sums.push(out);
                folds.extend(self.own_fold_call(step)?);
            }
        }
        writes.extend(sums);
        let Some(beside) = beside(form, maps, folds, all.len()) else { return Ok(None) };
        let call = MatmulGroupCall {
            count: all.len(),
            sizes: form.sizes,
            shares_left,
            by_columns: form.by_columns,
            digits: form.digits,
            beside,
        };
        Ok(Some(FusedCall { kernel: call.into(), reads, writes }))
    }

    /// Records a call, after a launch that makes vectors of its biases.
    pub(crate) fn products(&mut self, call: &Arc<MatmulGroupCall>, reads: &[Local], writes: &[Local]) {
        let vals: Vec<_> = reads.iter().map(|local| self.read(local).val).collect();
        let (factors, biases) = vals.split_at(1 + call.count);
        let mut inputs = factors.to_vec();
        if !biases.is_empty() {
            let (of, to) = (&reads[1 + call.count..], writes[0].dtype);
            let casts = of.iter().filter_map(|bias| cast(bias, to)).collect();
            let outs = of.iter().map(|bias| (extents(&bias.shape), stored_as(to)));
            inputs.extend(self.graph.kernel(MapCalls(casts), biases.to_vec(), outs));
            inputs.extend(biases);
        }
        let outs = writes.iter().map(|out| (extents(&out.shape), stored_as(out.dtype)));
        let made = self.graph.kernel(Kernel::MatmulGroup(call.clone()), inputs, outs);
        for (out, val) in writes.iter().zip(made) {
            self.graph.store(val, TensorSlot::Buffer(out.buf));
        }
    }
}

/// A copy of a bias as elements of a matmul.
fn cast(bias: &Local, to: DType) -> Option<MapCall> {
    let (mut expr, regs) = Expr::of_operands([bias.dtype]);
    let reg = expr.cast(regs[0], to);
    let operand = MapOperand::Tensor { dtype: bias.dtype, dims: (0..bias.shape.len()).map(Some).collect() };
    MapCall::new((&expr, &[reg]), &bias.ranges, vec![operand], vec![to])
}

/// Epilogues of all; none where no kernel could do it alone.
fn beside(
    form: &MatmulForm,
    maps: Vec<MapCall>,
    folds: Vec<FoldCall>,
    count: usize,
) -> Option<GroupEpilogue> {
    match form.beside {
        BesideForm::Nothing => Some(GroupEpilogue::Nothing),
        BesideForm::Bias(_, at) => {
            (maps.len() == count).then(|| GroupEpilogue::Bias { map: maps.into(), at })
        }
        BesideForm::Sums(_) => (folds.len() == count).then(|| GroupEpilogue::Sums { fold: folds.into() }),
    }
}
