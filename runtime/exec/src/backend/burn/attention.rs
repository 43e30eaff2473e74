//! Attention in plain operations: the equations, with all scores of a device at once.

use super::lower::{Lower, Named};
use crate::engine::context::Local;
use crate::engine::graph::Val;
use crate::engine::lowering::{LoweringError, extents, stored_as};
use crate::engine::ops::Reduce;
use crate::kernels::RandomKernel;
use burn_ir::FloatOperationIr as FloatOp;
use meshwright_plan::{AttentionOperands, AttentionPart, AttentionSpec, DType, Step};

/// An attention on one device.
struct Scores<'s> {
    spec: &'s AttentionSpec,
    reads: Vec<Local>,
    at: AttentionOperands,
    /// What the scores are like.
    space: Local,
    /// Where the keys are among their dims.
    key: usize,
    /// What expressions read behind the product: extra operands, and what is drawn.
    loads: Vec<Val>,
}

impl Lower<'_> {
    /// See [`meshwright_plan::Prim::Attention`].
    pub(super) fn attention(
        &mut self,
        step: &Step,
        spec: &AttentionSpec,
        parts: &[AttentionPart],
    ) -> Result<(), LoweringError> {
        let reads: Vec<Local> = step.reads.iter().map(|o| self.local(o)).collect::<Result<_, _>>()?;
        let writes: Vec<Local> = step.writes.iter().map(|o| self.local(o)).collect::<Result<_, _>>()?;
        self.context.check_aligned(&reads.iter().chain(&writes).collect::<Vec<_>>(), &[])?;
        let at = AttentionOperands::of(parts);
        if reads.len() != at.extras + spec.extras || writes.len() != parts.len() {
            return Err(LoweringError::Plan("an attention of other operands than it says".into()));
        }
        let range = |d| reads.iter().find_map(|l| l.range(d).ok().cloned());
        let ranges: Option<Vec<_>> = spec.space.iter().map(|d| range(*d)).collect();
        let Some(ranges) = ranges else { return Err(LoweringError::Plan("scores of unknown dims".into())) };
        let shape: Vec<usize> = ranges.iter().map(ExactSizeIterator::len).collect();
        let dtype = reads[0].dtype.wide();
        let space = Local { dtype, dims: spec.space.clone(), ranges, shape, ..reads[0].clone() };
        if space.elements() == 0 {
            for (part, out) in parts.iter().zip(&writes).filter(|(_, o)| o.elements() > 0) {
                let none = if *part == AttentionPart::Max { f64::NEG_INFINITY } else { 0.0 };
                self.write_number(none, out);
            }
            return Ok(());
        }
        let key = space.position(spec.key)?;
        let loads = self.attention_loads(spec, &reads[at.extras..], &space)?;
        let scores = Scores { spec, reads, at, space, key, loads };
        if at.scale.is_some() {
            self.attention_gradients(&scores, parts, &writes)
        } else {
            self.attention_forward(&scores, parts, &writes)
        }
    }

    fn attention_loads(
        &mut self,
        spec: &AttentionSpec,
        extras: &[Local],
        space: &Local,
    ) -> Result<Vec<Val>, LoweringError> {
        let mut loads = vec![];
        for extra in extras {
            let read = self.read(extra);
            let val = self.align(&read, &space.dims);
            let val = self.wide(val);
            loads.push(if extra.dtype == DType::Bool { self.truth(val) } else { val });
        }
        for drawn in &spec.draws {
            let sizes = self.context.plan.dims.shape(&drawn.dims);
            let ranges: Vec<_> =
                drawn.dims.iter().map(|d| space.range(*d).cloned()).collect::<Result<_, _>>()?;
            let shape: Vec<usize> = ranges.iter().map(ExactSizeIterator::len).collect();
            let whole = Local { dims: drawn.dims.clone(), ranges: ranges.clone(), shape, ..space.clone() };
            let random = RandomKernel::new(&drawn.stream, drawn.distribution, DType::Bool, &sizes, &ranges)?
                .of_examples(self.context.examples_of(&whole))
                .in_parts(self.context.parts_of(&whole));
            self.kernels.push(random);
            let shape = extents(&whole.shape);
            let val = self.graph.random(self.kernels.len() - 1, &shape, stored_as(DType::Bool));
            let val = self.align(&Named { val, dims: whole.dims }, &space.dims);
            loads.push(self.truth(val));
        }
        Ok(loads)
    }

    /// An operand in `f32` at least.
    fn attention_operand(&mut self, of: &Local) -> Val {
        let read = self.read(of).val;
        self.wide(read)
    }

    /// An operand with the dims of the scores, or 1 where it lacks one.
    fn beside_scores(&mut self, s: &Scores<'_>, operand: usize) -> Val {
        let read = self.read(&s.reads[operand]);
        let val = self.align(&read, &s.space.dims);
        self.wide(val)
    }

    /// A product of two tensors with the extents of `out`.
    fn attention_product(
        &mut self,
        a: (Val, &Local),
        b: (Val, &Local),
        out: &Local,
    ) -> Result<Val, LoweringError> {
        let wide = |l: &Local| Local { dtype: l.dtype.wide(), ..l.clone() };
        let (of_a, of_b, of_out) = (wide(a.1), wide(b.1), wide(out));
        match self.product((a.0, &of_a), (b.0, &of_b), &of_out)? {
            Some(val) => Ok(val),
            None => Ok(self.graph.full(&extents(&out.shape), stored_as(of_out.dtype), 0.0)),
        }
    }

    /// The product of queries and keys, and the scores.
    fn attention_scores(&mut self, s: &Scores<'_>) -> Result<(Val, Val), LoweringError> {
        let (q, k) = (self.attention_operand(&s.reads[0]), self.attention_operand(&s.reads[1]));
        let product = self.attention_product((q, &s.reads[0]), (k, &s.reads[1]), &s.space)?;
        let loads = [&[product], s.loads.as_slice()].concat();
        Ok((product, self.expression(&s.spec.score, &loads, &s.space)?))
    }

    /// Weights times their factors.
    fn weighed(&mut self, s: &Scores<'_>, x: Val) -> Result<Val, LoweringError> {
        let Some(weight) = &s.spec.weight else { return Ok(x) };
        let loads = [&[x], s.loads.as_slice()].concat();
        let factor = self.expression(weight, &loads, &s.space)?;
        Ok(self.graph.mul(x, factor))
    }

    fn attention_forward(
        &mut self,
        s: &Scores<'_>,
        parts: &[AttentionPart],
        writes: &[Local],
    ) -> Result<(), LoweringError> {
        let (_, score) = self.attention_scores(s)?;
        let max = match s.at.max {
            Some(max) => self.beside_scores(s, max),
            None => self.graph.reduce(Reduce::Max, score, s.key),
        };
        let shifted = self.graph.sub(score, max);
        let e = self.graph.float(FloatOp::Exp, shifted);
        for (part, out) in parts.iter().zip(writes) {
            match part {
                AttentionPart::Max => self.write_rows(s, max, out),
                AttentionPart::Sum => {
                    let sum = self.graph.reduce(Reduce::Sum, e, s.key);
                    self.write_rows(s, sum, out);
                }
                _ => {
                    let values = s.at.values.unwrap_or(0);
                    let weights = self.weighed(s, e)?;
                    let v = self.attention_operand(&s.reads[values]);
                    let val = self.attention_product((weights, &s.space), (v, &s.reads[values]), out)?;
                    self.write_val(val, out);
                }
            }
        }
        Ok(())
    }

    /// Writes what has one number for all keys.
    fn write_rows(&mut self, s: &Scores<'_>, val: Val, out: &Local) {
        let mut dims = s.space.dims.clone();
        dims.remove(s.key);
        let shape: Vec<usize> =
            dims.iter().filter_map(|d| s.space.at(*d)).map(|i| s.space.shape[i]).collect();
        let val = self.graph.reshape(val, &extents(&shape));
        self.write(&Named { val, dims }, out);
    }

    fn attention_gradients(
        &mut self,
        s: &Scores<'_>,
        parts: &[AttentionPart],
        writes: &[Local],
    ) -> Result<(), LoweringError> {
        let (Some(max), Some(scale), Some(cotangent)) = (s.at.max, s.at.scale, s.at.cotangent) else {
            return Err(LoweringError::Plan("a gradient of attention without its operands".into()));
        };
        let (product, score) = self.attention_scores(s)?;
        let max = self.beside_scores(s, max);
        let shifted = self.graph.sub(score, max);
        let e = self.graph.float(FloatOp::Exp, shifted);
        let scale = self.beside_scores(s, scale);
        let weights = self.graph.mul(e, scale);
        let mut back = None;
        if let (Some(values), Some(delta)) = (s.at.values, s.at.delta) {
            let (v, dy) = (&s.reads[values], &s.reads[cotangent]);
            let dy_val = self.attention_operand(dy);
            let v_val = self.attention_operand(v);
            let by_weight = self.attention_product((dy_val, dy), (v_val, v), &s.space)?;
            let by_softmax = self.weighed(s, by_weight)?;
            let delta = self.beside_scores(s, delta);
            let inner = self.graph.sub(by_softmax, delta);
            let loads = [&[product], s.loads.as_slice()].concat();
            let slope = self.expression(&s.spec.slope, &loads, &s.space)?;
            let through = self.graph.mul(weights, inner);
            back = Some(self.graph.mul(through, slope));
        }
        for (part, out) in parts.iter().zip(writes) {
            let (of_scores, other) = match (part, back) {
                (AttentionPart::Query, Some(back)) => (back, 1),
                (AttentionPart::Key, Some(back)) => (back, 0),
                _ => (self.weighed(s, weights)?, cotangent),
            };
            let other_val = self.attention_operand(&s.reads[other]);
            let val = self.attention_product((of_scores, &s.space), (other_val, &s.reads[other]), out)?;
            self.write_val(val, out);
        }
        Ok(())
    }
}
