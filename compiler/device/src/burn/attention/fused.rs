//! Attention by kernels of the target, if it has them.

use super::super::lower::{Lower, Named};
use crate::error::{LoweringError, NoAttentionKernel};
use crate::kernels::Kernel;
use crate::kernels::attention::space::AttentionSpace;
use crate::kernels::attention::{
    AttentionBitsKey, AttentionCall, AttentionFactors, AttentionInput, AttentionOutput, decided,
};
use crate::lowering::graph::Val;
use crate::lowering::local::Local;
use crate::passes::attention_bits::KeptBits;
use crate::slot::{Residual, StoredPositions, TensorSlot};
use crate::stored::{extents, stored_as};
use burn_backend::DType as BurnType;
use meshwright_plan::{AttentionOperands, AttentionPart, AttentionSpec, DType, Dim, Operand, Prim, Step};

/// Dims of a tensor that are not its own, and its own.
fn apart(local: &Local, own: &[Dim]) -> Vec<Dim> {
    local.dims.iter().copied().filter(|d| !own.contains(d)).collect()
}

/// The reason why these dtypes of operands have no kernel.
fn no_kernel_for_dtypes(at: AttentionOperands, reads: &[Local]) -> Option<NoAttentionKernel> {
    let own = reads[0].dtype;
    if !own.is_half() && own != DType::F32 {
        return Some(NoAttentionKernel::Wide(own));
    }
    let mut factors = [Some(1), at.values].into_iter().flatten().map(|i| reads[i].dtype);
    if let Some(other) = factors.find(|other| *other != own) {
        return Some(NoAttentionKernel::Mixed(own, other));
    }
    let mut beside = reads[at.extras..].iter().map(|l| l.dtype);
    let unknown = beside.find(|dtype| *dtype == DType::U8 || dtype.is_pair() || *dtype == DType::F64);
    unknown.map(NoAttentionKernel::Beside)
}

/// The tensor's dim for each dim of the scores.
fn places(space: &AttentionSpace, dims: &[Dim]) -> Vec<Option<usize>> {
    space.dims.iter().map(|d| dims.iter().position(|o| o == d)).collect()
}

impl Lower<'_> {
    /// Records its kernel; gives the reason where there is none, and then records nothing.
    pub(crate) fn fused_attention(
        &mut self,
        (spec, parts): (&AttentionSpec, &[AttentionPart]),
        reads: &[Local],
        writes: &[Local],
    ) -> Result<Option<NoAttentionKernel>, LoweringError> {
        let (space, mut call) = match self.attention_call((spec, parts), reads)? {
            Ok(found) => found,
            Err(because) => return Ok(Some(because)),
        };
        let at = AttentionOperands::of(parts);
        let dtype = reads[0].dtype;
        let own = |i: usize| if i < 2 { &spec.width } else { &spec.values };
        let mut inputs: Vec<Val> = vec![];
        for i in at.multiplied() {
            // If only the cotangent is wider, it is rounded as the factors of matmuls are.
            let val = self.own_last(&reads[i], own(i));
            inputs.push(self.graph.cast(val, stored_as(dtype)));
            call.inputs.push(AttentionInput(places(&space, &apart(&reads[i], own(i)))));
        }
        let given = [at.max, at.scale, at.delta].into_iter().flatten();
        let state = spec.state(parts);
        let of_scores = at.extras..state.map_or(reads.len(), |[first, ..]| first);
        for i in of_scores.chain(given).chain(state.iter().flat_map(|[max, sum, _]| [*max, *sum])) {
            inputs.push(self.beside_products(&reads[i]));
            call.inputs.push(AttentionInput(places(&space, &reads[i].dims)));
        }
        if let Some([_, _, values]) = state {
            let val = self.own_last(&reads[values], &spec.values);
            inputs.push(self.graph.cast(val, BurnType::F32));
            call.inputs.push(AttentionInput(places(&space, &apart(&reads[values], &spec.values))));
        }
        let table = match decided(spec, &space) {
            Some((table, number)) => {
                call.decide(number);
                // In one dim: rows of a tensor may have gaps between them.
                let table: Vec<i32> = table.concat().into_iter().map(i32::from).collect();
                self.graph.table(&[table.len()], table)
            }
            None => self.graph.table(&[1], vec![0]),
        };
        if call.words_ahead() > 0 {
            inputs.push(self.bits_ahead(&call, table)?);
        }
        inputs.push(table);
        self.record_attention((spec, parts), call, inputs, &space, writes);
        Ok(None)
    }

    /// The kernel of an attention, and the order of its dims; or why there is none.
    fn attention_call(
        &self,
        (spec, parts): (&AttentionSpec, &[AttentionPart]),
        reads: &[Local],
    ) -> Result<Result<(AttentionSpace, AttentionCall), NoAttentionKernel>, LoweringError> {
        if !self.graph.target.tensor_cores {
            return Ok(Err(NoAttentionKernel::TensorCores));
        }
        let at = AttentionOperands::of(parts);
        if let Some(because) = no_kernel_for_dtypes(at, reads) {
            return Ok(Err(because));
        }
        let values = at.values.map(|i| &reads[i]);
        let space = AttentionSpace::of(spec, &reads[1], values, reads)?;
        let everywhere = |d: &Dim| at.multiplied().all(|i| reads[i].at(*d).is_some());
        if let Some(dim) = space.outer().iter().find(|d| !everywhere(d)) {
            return Ok(Err(NoAttentionKernel::Outer(self.context.plan.dims.name(*dim).into())));
        }
        if let Some(bias) = spec.bias.as_ref().filter(|_| parts.contains(&AttentionPart::Bias)) {
            let bias = &reads[at.extras + bias.extra];
            let mut summed = space.rows().iter().chain([&spec.key]).filter(|d| bias.at(**d).is_none());
            if let Some(dim) = summed.next() {
                return Ok(Err(NoAttentionKernel::Bias(self.context.plan.dims.name(*dim).into())));
            }
        }
        let elements = |dims: &[Dim]| Self::sizes(dims, &reads.iter().collect::<Vec<_>>()).iter().product();
        let values = values.map_or(0, |_| elements(&spec.values));
        let (dtype, shared) = (reads[0].dtype, self.graph.target.shared_memory);
        let sizes = AttentionFactors { dtype, width: elements(&spec.width), values, shared };
        let draws = spec.draws.iter().map(|drawn| space.draw(&self.context, drawn, &reads[0]));
        let draws = draws.collect::<Result<_, _>>()?;
        Ok(AttentionCall::new(spec, parts, &space, &sizes, draws).map(|call| (space, call)))
    }

    /// The key of the bits that a step draws ahead; none if it draws none.
    pub(crate) fn attention_bits_of<'s>(&self, step: &'s Step) -> Option<AttentionBitsKey<'s>> {
        let Prim::Attention { spec, parts } = &step.prim else { return None };
        if spec.draws.is_empty() {
            return None;
        }
        let locals = |of: &[Operand]| of.iter().map(|o| self.local(o)).collect::<Result<Vec<_>, _>>().ok();
        let (reads, writes) = (locals(&step.reads)?, locals(&step.writes)?);
        if writes.iter().all(|out| out.elements() == 0) {
            return None;
        }
        let (space, call) = self.attention_call((spec, parts), &reads).ok()?.ok()?;
        let (words, draws) = (call.words_ahead(), call.draws);
        let of_gradient = call.slope.is_some();
        (words > 0).then_some(AttentionBitsKey { spec, space, draws, words, of_gradient })
    }

    /// Bits that are drawn ahead: those of another step if they are stored, otherwise a new launch draws them.
    fn bits_ahead(&mut self, call: &AttentionCall, table: Val) -> Result<Val, LoweringError> {
        let (step, shape) = (self.graph.step, vec![call.words_ahead()]);
        let out = (shape.clone(), BurnType::U32);
        if let Some(kept) = self.decisions.attention_bits.loaded.get(&step).copied() {
            let residual = self.kept_bits(kept);
            return Ok(self.graph.kernel(Kernel::Load { residual, last: true }, vec![], [out])[0]);
        }
        if let Some(by) = self.decisions.attention_bits.shared.get(&step) {
            let Some(slot) = self.drawn_bits.get(by).copied() else {
                return Err(LoweringError::Plan("no step has kept what an attention draws".into()));
            };
            return Ok(self.graph.read(slot, &shape, BurnType::U32));
        }
        let drawn = self.graph.kernel(call.draws_ahead(), vec![table], [out])[0];
        if let Some(kept) = self.decisions.attention_bits.stored.get(&step).copied() {
            let residual = self.kept_bits(kept);
            self.graph.kernel(Kernel::Store(residual), vec![drawn], []);
        }
        if self.decisions.attention_bits.shared.values().any(|by| *by == step) {
            let slot = self.graph.fresh();
            self.graph.store(drawn, slot);
            self.drawn_bits.insert(step, slot);
        }
        Ok(drawn)
    }

    fn kept_bits(&mut self, KeptBits { by, dim, from }: KeptBits) -> Residual {
        let count = self.context.plan.dims.size(dim).saturating_sub(from);
        self.graph.residual(vec![StoredPositions { dim, from, count }], |at| TensorSlot::DrawnBits(by, at))
    }

    fn record_attention(
        &mut self,
        (spec, parts): (&AttentionSpec, &[AttentionPart]),
        mut call: AttentionCall,
        inputs: Vec<Val>,
        space: &AttentionSpace,
        writes: &[Local],
    ) {
        let own = |part: &AttentionPart| match part {
            AttentionPart::Max | AttentionPart::Sum | AttentionPart::Bias => vec![],
            AttentionPart::Query | AttentionPart::Key => spec.width.clone(),
            AttentionPart::Values | AttentionPart::Result | AttentionPart::Value => spec.values.clone(),
        };
        // The kernel writes one dtype; results of other dtypes are rounded from it.
        let mut types =
            parts.iter().zip(writes).filter(|(part, _)| part.has_own_dims()).map(|(_, out)| out.dtype);
        let one = types.next().filter(|first| types.all(|other| other == *first)).unwrap_or(DType::F32);
        let mut outs = vec![];
        for (part, out) in parts.iter().zip(writes) {
            let dims = apart(out, &own(part));
            let mut shape = Self::sizes(&dims, &[out]);
            // A tensor without a dim of its own has an extent of 1 there.
            shape.push(Self::sizes(&own(part), &[out]).iter().product());
            let dtype = if part.has_own_dims() { stored_as(one) } else { BurnType::F32 };
            outs.push((shape.clone(), dtype));
            call.outputs.push(AttentionOutput { dims: places(space, &dims), shape });
        }
        let made = self.graph.kernel(call, inputs, outs);
        for ((part, out), val) in parts.iter().zip(writes).zip(made) {
            let dims = [apart(out, &own(part)), own(part)].concat();
            let val = self.graph.reshape(val, &extents(&Self::sizes(&dims, &[out])));
            let val = self.graph.cast(val, stored_as(out.dtype));
            self.write(&Named { val, dims }, out);
        }
    }

    /// An operand whose own dims come last, as one.
    fn own_last(&mut self, local: &Local, own: &[Dim]) -> Val {
        let others = apart(local, own);
        let read = self.read(local);
        let dims = [others.clone(), own.to_vec()].concat();
        let val = self.align(&read, &dims);
        let mut shape = Self::sizes(&others, &[local]);
        shape.push(Self::sizes(own, &[local]).iter().product());
        self.graph.reshape(val, &shape)
    }

    /// An operand of the scores besides queries and keys, with a last extent of 1: floats and truth values as `f32`,
    /// integers without conversion.
    fn beside_products(&mut self, local: &Local) -> Val {
        let val = self.read(local).val;
        let val = if local.dtype == DType::I32 { val } else { self.graph.cast(val, BurnType::F32) };
        let mut shape = local.shape.clone();
        shape.push(1);
        self.graph.reshape(val, &shape)
    }
}
