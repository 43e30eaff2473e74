//! What a step of decoding gives: of many new positions one, so that all that only it needs is computed for this one alone.

use super::rebuild::{Rebuild, same_dims};
use crate::step::step_graph::{OutputKind, StepOutput};
use meshwright_ops::{Contract, Expand, Graph, Id, Kind, LogSumExp, Op, OpError, arg_extreme};
use meshwright_plan::{DType, Dim, IdVec, Monoid};
use meshwright_sorted::SortedMap;
use std::sync::Arc;

/// What a step gives of one position of each sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodedOutput {
    /// The value, without `seq`.
    Value,
    /// The value, whose elements along its only other dim are logits of tokens; and the logarithm of the sum of the exponentials
    /// of the first ones, by their number.
    Logits(usize),
    /// The most probable of the first tokens, by their number; of equal ones the first, and the logarithm of its probability.
    MostProbable(usize),
}

impl Rebuild<'_> {
    /// A value at one new position of each sequence. What it is made of behind the last loop is computed there alone: with a
    /// prompt, most of all the product with the vocabulary.
    pub(super) fn at_last(&mut self, value: Id, position: Id) -> Result<Id, OpError> {
        let needed = self.needed();
        self.alone(value, position, &needed, &mut SortedMap::new())
    }

    /// What loops and caches need at all new positions.
    fn needed(&self) -> IdVec<Id, bool> {
        let g = &self.new;
        let mut needed = g.nodes.table(false);
        let mut todo: Vec<Id> = self.next.iter().map(|n| n.id).collect();
        todo.extend(g.ids().filter(|id| g.node(*id).scope.is_some()));
        while let Some(id) = todo.pop() {
            if !std::mem::replace(&mut needed[id], true) {
                todo.extend(g.depends_on(id));
            }
        }
        needed
    }

    fn alone(
        &mut self,
        id: Id,
        position: Id,
        needed: &IdVec<Id, bool>,
        known: &mut SortedMap<Id, Id>,
    ) -> Result<Id, OpError> {
        if let Some(known) = known.get(&id) {
            return Ok(*known);
        }
        let node = self.new.node(id).clone();
        if !node.ty.has(self.seq) {
            return Ok(id);
        }
        let computes = matches!(node.op.kind(), Kind::Compute(_) | Kind::Add);
        // Whatever has to do with earlier positions too stays as patterns know it.
        let all = node.inputs.iter().map(|x| self.new.ty(*x)).chain([&node.ty]);
        let past = all.flat_map(|t| &t.dims).any(|d| self.keys.contains(d));
        let mut made = None;
        if computes && !past && !needed[id] {
            let mut inputs = Vec::with_capacity(node.inputs.len());
            for x in &node.inputs {
                inputs.push(self.alone(*x, position, needed, known)?);
            }
            self.new.cursor = node.origin.clone();
            let wanted: Vec<Dim> = node.ty.dims.iter().copied().filter(|d| *d != self.seq).collect();
            let candidate = self.new.add_op(without(&node.op, self.seq), &inputs);
            // An op that knows its dims in another way gives other ones: then the position is taken of its result.
            made = candidate.ok().filter(|c| same_dims(&self.new.ty(*c).dims, &wanted));
        }
        let made = match made {
            Some(made) => made,
            None => {
                self.new.cursor = node.origin.clone();
                self.new.at(id, self.seq, position)?
            }
        };
        known.insert(id, made);
        Ok(made)
    }
}

/// An op that says which dims its result has, without one of them.
fn without(op: &Arc<dyn Op>, dim: Dim) -> Arc<dyn Op> {
    let kept = |dims: &[Dim]| dims.iter().copied().filter(|d| *d != dim).collect();
    let any = op.as_any();
    if let Some(Contract { out }) = any.downcast_ref() {
        return Arc::new(Contract { out: kept(out) });
    }
    if let Some(Expand { dims }) = any.downcast_ref() {
        return Arc::new(Expand { dims: kept(dims) });
    }
    op.clone()
}

/// The outputs that are wanted of a value of one position. A value that is not a row of logits is given as it is.
pub(super) fn outputs(
    g: &mut Graph,
    of: &StepOutput,
    id: Id,
    (row, output): (Option<Dim>, DecodedOutput),
) -> Vec<StepOutput> {
    let named = |name: String, id: Id| StepOutput { name, id, kind: OutputKind::Output };
    let value = named(of.name.clone(), id);
    let others: Vec<Dim> = g.ty(id).dims.iter().copied().filter(|d| Some(*d) != row).collect();
    let (known, most_probable) = match output {
        DecodedOutput::Value => return vec![value],
        DecodedOutput::Logits(known) => (known, false),
        DecodedOutput::MostProbable(known) => (known, true),
    };
    let [tokens] = others[..] else { return vec![value] };
    if g.dims.size(tokens) < known {
        return vec![value];
    }
    let logits = g.cast(id, g.ty(id).dtype.wide());
    let dtype = g.ty(logits).dtype;
    // A probability is the model's, which knows nothing of the tokenizer.
    let total = g.op(LogSumExp { dim: tokens }, &[logits]);
    let logits = if g.dims.size(tokens) == known {
        logits
    } else {
        // An index beyond the tokenizer is not a token.
        let (index, end) = (g.index(tokens), g.constant(known as f64, DType::I32));
        let (is_token, never) = (g.binary("<", index, end), g.constant(f64::from(f32::MIN), dtype));
        g.choose(is_token, logits, never)
    };
    if !most_probable {
        return vec![value, named(format!("{}*total", of.name), total)];
    }
    let best = arg_extreme(g, Monoid::ArgMax, logits, tokens);
    let greatest = g.reduce(Monoid::Max, logits, &[tokens]);
    let negative = g.scaled(total, -1.0);
    let probability = g.sum_of(&[greatest, negative]);
    vec![named(format!("{}*token", of.name), best), named(format!("{}*probability", of.name), probability)]
}
