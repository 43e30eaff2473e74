//! Attention, one score at a time.

use super::scalar::{computed, drawn, joined, rounded};
use super::values::{RefTensor, positions, row_major};
use super::{Reference, other_operands};
use meshwright_device::KernelError;
use meshwright_device::kernels::attention::{AttentionCall, AttentionDraws, DECIDED};
use meshwright_device::kernels::call::Computes;
use meshwright_exec::backend::RngState;
use meshwright_plan::{AttentionOperands, AttentionPart, Monoid, tf32};

/// Truth values of a draw by the dims of the scores.
struct Draw {
    numbers: Vec<f64>,
    sizes: Vec<usize>,
    places: Vec<usize>,
}

fn all_draws(call: &AttentionCall, rng: RngState) -> Result<Vec<Draw>, KernelError> {
    let one = |(block, places): &(_, Vec<usize>)| {
        let block: &meshwright_device::kernels::random::RandomBlock = block;
        Ok(Draw { numbers: drawn(block, rng)?, sizes: block.shape(), places: places.clone() })
    };
    call.draws.iter().map(one).collect()
}

impl Draw {
    fn at(&self, position: &[usize]) -> f64 {
        let own: Vec<usize> = self.places.iter().map(|dim| position[*dim]).collect();
        self.numbers[row_major(&self.sizes, &own)]
    }
}

impl Computes<AttentionDraws> for Reference<'_> {
    /// A bit for each score, in the order of the scores, draw after draw.
    fn compute(self, draws: &AttentionDraws) -> Result<(), KernelError> {
        let Reference { rng, outputs: [out], .. } = self else { return Err(other_operands()) };
        let call = &draws.0;
        let draws = all_draws(call, rng)?;
        let scores: usize = call.sizes.iter().product();
        for (which, draw) in draws.iter().enumerate() {
            for (number, position) in positions(&call.sizes).enumerate() {
                let bit = which * scores + number;
                if draw.at(&position) != 0.0 {
                    out.numbers[bit / 32] += f64::from(1_u32 << (bit % 32));
                }
            }
        }
        Ok(())
    }
}

/// An attention whose operands are there.
struct Attention<'a> {
    call: &'a AttentionCall,
    inputs: &'a [RefTensor],
    at: InputPlaces,
    draws: Vec<Draw>,
    ahead: Option<&'a RefTensor>,
    table: &'a RefTensor,
}

/// The places of operands among the inputs.
struct InputPlaces {
    values: Option<usize>,
    cotangent: Option<usize>,
    extras: usize,
    max: Option<usize>,
    scale: Option<usize>,
    delta: Option<usize>,
    /// The maximum, the sum and the values of other keys.
    before: Option<[usize; 3]>,
}

impl InputPlaces {
    /// Queries, keys, values and the cotangent if they are read, operands of the score, then the maximum, the scale and
    /// delta, or what other keys have given.
    fn of(call: &AttentionCall) -> InputPlaces {
        let asked = AttentionOperands::of(&call.parts);
        let mut next = 2;
        let mut take = |there: bool| {
            let at = next;
            next += usize::from(there);
            there.then_some(at)
        };
        let (values, cotangent) = (take(asked.values.is_some()), take(asked.cotangent.is_some()));
        let extras = next;
        next += call.extras;
        let mut take = |there: bool| {
            let at = next;
            next += usize::from(there);
            there.then_some(at)
        };
        let (max, scale, delta) =
            (take(asked.max.is_some()), take(asked.scale.is_some()), take(asked.delta.is_some()));
        let before = call.continues.then_some([next, next + 1, next + 2]);
        InputPlaces { values, cotangent, extras, max, scale, delta, before }
    }
}

impl Computes<AttentionCall> for Reference<'_> {
    fn compute(self, call: &AttentionCall) -> Result<(), KernelError> {
        let Reference { rng, inputs, outputs } = self;
        let lacking = || KernelError::Count { expected: 3, found: inputs.len() };
        let (table, inputs) = inputs.split_last().ok_or_else(lacking)?;
        let is_ahead = call.words_ahead() > 0;
        let ahead = inputs.last().filter(|_| is_ahead);
        let draws = if is_ahead { vec![] } else { all_draws(call, rng)? };
        let run = Attention { call, inputs, at: InputPlaces::of(call), draws, ahead, table };
        let (queries, keys) = call.sizes.split_at(call.sizes.len() - 1);
        let keys = keys[0];
        for query in positions(queries) {
            let position = |key| [query.clone(), vec![key]].concat();
            let positions: Vec<Vec<usize>> = (0..keys).map(position).collect();
            let scores: Vec<Score> = positions.iter().map(|p| run.score(p)).collect();
            let [before, sum_before] = match run.at.before {
                Some([max, sum, _]) => [max, sum].map(|i| run.of_query(i, &position(0))),
                None => [f64::NEG_INFINITY, 0.0],
            };
            let greatest = || scores.iter().fold(before, |m, s| joined(Monoid::Max, m, s.score));
            let max = run.at.max.map_or_else(greatest, |i| run.of_query(i, &position(0)));
            // Relative to which weights are: a row without scores has none, and `-inf` is no number to be relative to.
            let shift = if max == f64::NEG_INFINITY { 0.0 } else { max };
            let kept = (before - shift).exp();
            let sum = scores.iter().map(|s| (s.score - shift).exp()).sum::<f64>() + sum_before * kept;
            // Without keys there is no maximum, and the result is NaN.
            for ((part, of), out) in call.parts.iter().zip(&call.outputs).zip(outputs.iter_mut()) {
                let place = run.place(&of.dims, &position(0), out);
                match part {
                    AttentionPart::Max => out.numbers[place] = max,
                    AttentionPart::Sum => out.numbers[place] = sum,
                    AttentionPart::Result if keys == 0 => out.numbers[place..][..call.values].fill(f64::NAN),
                    AttentionPart::Values | AttentionPart::Result => {
                        let Some([.., values]) = run.at.before else { continue };
                        let scale = if *part == AttentionPart::Result { kept / sum } else { kept };
                        let own = run.own(values, &position(0));
                        out.numbers[place..].iter_mut().zip(own).for_each(|(sum, x)| *sum += scale * x);
                    }
                    _ => {}
                }
            }
            for (position, score) in positions.iter().zip(&scores) {
                let weight = (score.score - shift).exp();
                for ((part, of), out) in call.parts.iter().zip(&call.outputs).zip(outputs.iter_mut()) {
                    let place = run.place(&of.dims, position, out);
                    let own = out.shape.last().copied().unwrap_or(1);
                    run.add(*part, (position, score), [sum, weight], &mut out.numbers[place..place + own]);
                }
            }
        }
        Ok(())
    }
}

/// A score, with its derivatives by the product of query and key and by the bias, and the factor of its weight.
struct Score {
    score: f64,
    slope: f64,
    by_bias: f64,
    factor: f64,
}

impl Attention<'_> {
    /// The first element of a tensor's own dim, which is its last.
    fn place(&self, dims: &[Option<usize>], position: &[usize], tensor: &RefTensor) -> usize {
        tensor.place(dims, position)
    }

    /// An operand's own elements at a position of the scores.
    fn own(&self, input: usize, position: &[usize]) -> &[f64] {
        let tensor = &self.inputs[input];
        let place = self.place(&self.call.inputs[input].0, position, tensor);
        &tensor.numbers[place..place + tensor.shape.last().copied().unwrap_or(1)]
    }

    /// A number for each query.
    fn of_query(&self, input: usize, position: &[usize]) -> f64 {
        self.own(input, position)[0]
    }

    fn drawn(&self, which: usize, position: &[usize]) -> f64 {
        let Some(words) = self.ahead else { return self.draws[which].at(position) };
        let scores: usize = self.call.sizes.iter().product();
        let bit = which * scores + row_major(&self.call.sizes, position);
        f64::from(words.numbers[bit / 32] as u32 >> (bit % 32) & 1)
    }

    /// Whether positions alone decide a score.
    fn is_decided(&self, position: &[usize]) -> bool {
        let (rows, keys) = (&self.call.sizes[self.call.outer..], *self.call.sizes.last().unwrap_or(&1));
        let row = row_major(&rows[..rows.len() - 1], &position[self.call.outer..position.len() - 1]);
        let tile = row / DECIDED * keys.div_ceil(DECIDED) + position[position.len() - 1] / DECIDED;
        self.table.numbers[tile] != 0.0
    }

    fn score(&self, position: &[usize]) -> Score {
        let [query, key] = [0, 1].map(|input| self.own(input, position));
        let dot = rounded(query.iter().zip(key).map(|(a, b)| a * b).sum());
        let load = |n: usize| match n {
            0 => dot,
            n if n <= self.call.extras => self.of_query(self.at.extras + n - 1, position),
            n => self.drawn(n - 1 - self.call.extras, position),
        };
        let value = |program| computed(program, load, |dim| self.call.starts[dim] + position[dim])[0];
        let score = match self.call.decided {
            Some(number) if self.is_decided(position) => f64::from(number),
            _ => value(&self.call.score),
        };
        let [slope, by_bias] = [&self.call.slope, &self.call.bias].map(|of| of.as_ref().map_or(0.0, value));
        let factor = self.call.weight.as_ref().map_or(1.0, value);
        Score { score, slope, by_bias, factor }
    }

    /// Adds the contribution of a score to a part.
    fn add(
        &self,
        part: AttentionPart,
        (position, score): (&[usize], &Score),
        [sum, weight]: [f64; 2],
        out: &mut [f64],
    ) {
        let times = |out: &mut [f64], of: &[f64], factor: f64| {
            out.iter_mut().zip(of).for_each(|(sum, x)| *sum += factor * x);
        };
        let [values, cotangent] =
            [self.at.values, self.at.cotangent].map(|i| i.map_or(&[][..], |i| self.own(i, position)));
        let scale = self.at.scale.map_or(0.0, |i| self.of_query(i, position));
        // A factor of a product that the kernels make.
        let factor = |x: f64| if self.call.rounds { f64::from(tf32(x as f32)) } else { x };
        let of_score = |slope: f64| {
            let product: f64 = values.iter().zip(cotangent).map(|(a, b)| a * b).sum();
            let delta = self.at.delta.map_or(0.0, |i| self.of_query(i, position));
            weight * scale * (product * score.factor - delta) * slope
        };
        match part {
            AttentionPart::Max | AttentionPart::Sum => {}
            AttentionPart::Values => times(out, values, factor(weight * score.factor)),
            AttentionPart::Result => times(out, values, factor(weight * score.factor) / sum),
            AttentionPart::Query => times(out, self.own(1, position), factor(of_score(score.slope))),
            AttentionPart::Key => times(out, self.own(0, position), factor(of_score(score.slope))),
            AttentionPart::Bias => times(out, &[1.0], of_score(score.by_bias)),
            AttentionPart::Value => times(out, cotangent, factor(weight * scale * score.factor)),
        }
    }
}
