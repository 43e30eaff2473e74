//! Which token is next, by the numbers that a model gives all of them.

use meshwright_plan::random::{Key, uniform01};
use std::cmp::Ordering;

/// Choice of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sampling {
    /// Divisor of the logits; 0 always takes the most probable token.
    pub temperature: f64,
    /// Number of the most probable tokens to choose from.
    pub top_k: Option<usize>,
    /// Only the most probable tokens that together have this probability.
    pub top_p: Option<f64>,
}

/// The logits of the tokens that may be next in a text.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Logits {
    /// For each token.
    pub(super) of: Vec<f64>,
    /// The logarithm of the sum of their exponentials.
    pub(super) log_total: f64,
}

impl Logits {
    /// The logarithm of the probability of a token.
    pub(super) fn log_probability(&self, token: usize) -> f64 {
        self.of[token] - self.log_total
    }

    /// Whether they are numbers.
    pub(super) fn are_numbers(&self) -> bool {
        self.log_total.is_finite()
    }
}

impl Sampling {
    /// Whether the most probable token is always taken.
    pub(super) fn is_greedy(&self) -> bool {
        self.temperature <= 0.0
    }

    /// A token and the logarithm of its probability, drawn by the seed, the number of the text and the position. `None` where
    /// the logits are no numbers.
    pub(super) fn choose(
        &self,
        logits: &Logits,
        (seed, text, position): (u64, usize, usize),
    ) -> Option<(u32, f64)> {
        logits.are_numbers().then_some(())?;
        let greatest = logits.of.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let key = Key::new(seed, "generated tokens").at(text as u32, 0);
        let token = self.drawn(&logits.of, greatest, uniform01(key, position as u64));
        Some((token as u32, logits.log_probability(token)))
    }

    /// The token at `share` of the probability of the candidates, in the order of their numbers: so it hardly depends
    /// on the rounding of `logits`.
    fn drawn(&self, logits: &[f64], greatest: f64, share: f64) -> usize {
        let weight = |token: usize| ((logits[token] - greatest) / self.temperature).exp();
        let mut may: Vec<(usize, f64)> = match self.top_k {
            // Only these have to be in order, and weighed.
            Some(k) => most_probable(logits, k.max(1)).into_iter().map(|t| (t, weight(t))).collect(),
            None => (0..logits.len()).map(|t| (t, weight(t))).collect(),
        };
        if let Some(p) = self.top_p {
            may.sort_by(|(a, _), (b, _)| order(logits, *a, *b));
            let total: f64 = may.iter().map(|m| m.1).sum();
            let mut sum = 0.0;
            let enough = may.iter().position(|(_, weight)| {
                sum += weight;
                sum >= p * total
            });
            may.truncate(enough.map_or(usize::MAX, |last| last + 1));
        }
        may.sort_unstable_by_key(|m| m.0);
        let total: f64 = may.iter().map(|m| m.1).sum();
        let mut sum = 0.0;
        let at = may.iter().position(|(_, weight)| {
            sum += weight;
            sum > share * total
        });
        // Rounding may leave the last one out.
        may[at.unwrap_or(may.len() - 1)].0
    }
}

/// The more probable first; of equal ones the smaller.
fn order(logits: &[f64], a: usize, b: usize) -> Ordering {
    logits[b].total_cmp(&logits[a]).then(a.cmp(&b))
}

/// The `count` most probable tokens, in no order.
pub(super) fn most_probable(logits: &[f64], count: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (0..logits.len()).collect();
    if count < all.len() {
        all.select_nth_unstable_by(count, |a, b| order(logits, *a, *b));
        all.truncate(count);
    }
    all
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn logits(of: &[f64]) -> Logits {
        Logits { of: of.to_vec(), log_total: of.iter().map(|l| l.exp()).sum::<f64>().ln() }
    }

    const LOGITS: [f64; 5] = [0.0, 3.0, 1.0, 3.0, 2.0];

    /// Draws of each token, of 4000.
    fn counts(s: Sampling) -> [usize; 5] {
        let mut out = [0; 5];
        for at in 0..4000 {
            out[s.choose(&logits(&LOGITS), (7, at % 4, at / 4)).unwrap().0 as usize] += 1;
        }
        out
    }

    #[test]
    fn what_is_drawn_has_the_probability_that_its_logits_give() {
        let (token, p) = Sampling { temperature: 1.0, top_k: Some(1), top_p: None }
            .choose(&logits(&LOGITS), (0, 0, 0))
            .unwrap();
        let total: f64 = LOGITS.iter().map(|l| l.exp()).sum();
        assert_eq!(token, 1);
        assert!((p - (3.0f64.exp() / total).ln()).abs() < 1e-15);
        for odd in [f64::NAN, f64::INFINITY] {
            assert_eq!(Sampling::default().choose(&logits(&[1.0, odd]), (0, 0, 0)), None);
        }
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let all = counts(Sampling { temperature: 1.0, ..Sampling::default() });
        let total: f64 = LOGITS.iter().map(|l| l.exp()).sum();
        for (n, l) in all.iter().zip(LOGITS) {
            let expected = 4000.0 * l.exp() / total;
            assert!((*n as f64 - expected).abs() < 4.0 * expected.sqrt() + 4.0, "{all:?}");
        }
        // The colder, the more of the greatest.
        let cold = counts(Sampling { temperature: 0.1, ..Sampling::default() });
        assert!(cold[1] + cold[3] > 3990, "{cold:?}");
        let zero = |t: [usize; 5]| t.map(|n| n == 0);
        let of = |top_k, top_p| zero(counts(Sampling { temperature: 1.0, top_k, top_p }));
        assert_eq!(of(Some(3), None), [true, false, true, false, false]);
        assert_eq!(of(Some(1), None), [true, false, true, true, true]);
        // Both of the greatest have 0.79 of the probability.
        assert_eq!(of(None, Some(0.75)), [true, false, true, false, true]);
        assert_eq!(of(None, Some(0.85)), [true, false, true, false, false]);
        assert_eq!(of(Some(1), Some(0.99)), [true, false, true, true, true]);
    }

    #[test]
    fn draws_depend_on_seed_text_and_position() {
        let s = Sampling { temperature: 1.0, ..Sampling::default() };
        let drawn = |seed, text| -> Vec<u32> {
            (0..40).map(|at| s.choose(&logits(&LOGITS), (seed, text, at)).unwrap().0).collect()
        };
        assert_eq!(drawn(1, 0), drawn(1, 0));
        assert_ne!(drawn(1, 0), drawn(2, 0));
        assert_ne!(drawn(1, 0), drawn(1, 1));
    }
}
