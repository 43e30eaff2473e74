//! Which token is next, by the numbers that a model gives all of them.

use meshwright_plan::random::{Key, uniform01};

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sampling {
    /// What numbers are divided by before they become probabilities; 0 takes the most probable token always.
    pub temperature: f64,
    /// Only so many tokens, the most probable ones.
    pub top_k: Option<usize>,
    /// Only the most probable tokens that together have this probability.
    pub top_p: Option<f64>,
}

/// The logarithm of the probability of each token. `None` where the numbers are none.
pub(super) fn log_probabilities(logits: &[f64]) -> Option<Vec<f64>> {
    let greatest = greatest(logits)?;
    let log_total = log_total(logits, greatest);
    Some(logits.iter().map(|l| l - greatest - log_total).collect())
}

fn greatest(logits: &[f64]) -> Option<f64> {
    let greatest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (greatest.is_finite() && !logits.iter().any(|l| l.is_nan())).then_some(greatest)
}

fn log_total(logits: &[f64], greatest: f64) -> f64 {
    logits.iter().map(|l| (l - greatest).exp()).sum::<f64>().ln()
}

impl Sampling {
    /// A token and the logarithm of its probability, drawn by the seed, the number of the text and the position. `None` where
    /// the numbers are none.
    pub(super) fn choose(
        &self,
        logits: &[f64],
        (seed, text, position): (u64, usize, usize),
    ) -> Option<(u32, f64)> {
        let greatest = greatest(logits)?;
        let token = match self.temperature > 0.0 {
            false => logits.iter().position(|l| *l == greatest)?,
            true => {
                let key = Key::new(seed, "generated tokens").at(text as u32, 0);
                self.drawn(logits, greatest, uniform01(key, position as u64))
            }
        };
        Some((token as u32, logits[token] - greatest - log_total(logits, greatest)))
    }

    /// The token at `share` of the probability of those that may be chosen, in the order of their numbers: so it hardly
    /// depends on the rounding of `logits`.
    fn drawn(&self, logits: &[f64], greatest: f64, share: f64) -> usize {
        let weight = |token: &usize| ((logits[*token] - greatest) / self.temperature).exp();
        let mut may: Vec<usize> = (0..logits.len()).collect();
        if self.top_k.is_some() || self.top_p.is_some() {
            may.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
            may.truncate(self.top_k.unwrap_or(usize::MAX).max(1));
            if let Some(p) = self.top_p {
                let total: f64 = may.iter().map(weight).sum();
                let mut sum = 0.0;
                let enough = may.iter().position(|t| {
                    sum += weight(t);
                    sum >= p * total
                });
                may.truncate(enough.map_or(usize::MAX, |last| last + 1));
            }
            may.sort_unstable();
        }
        let total: f64 = may.iter().map(weight).sum();
        let mut sum = 0.0;
        let at = may.iter().position(|t| {
            sum += weight(t);
            sum > share * total
        });
        // Rounding may leave the last one out.
        may[at.unwrap_or(may.len() - 1)]
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const LOGITS: [f64; 5] = [0.0, 3.0, 1.0, 3.0, 2.0];

    /// How often each token is drawn, of 4000.
    fn counts(s: Sampling) -> [usize; 5] {
        let mut out = [0; 5];
        for at in 0..4000 {
            out[s.choose(&LOGITS, (7, at % 4, at / 4)).unwrap().0 as usize] += 1;
        }
        out
    }

    #[test]
    fn greedy_takes_the_first_of_the_greatest() {
        let (token, p) = Sampling::default().choose(&LOGITS, (0, 0, 0)).unwrap();
        let total: f64 = LOGITS.iter().map(|l| l.exp()).sum();
        assert_eq!(token, 1);
        assert!((p - (3.0f64.exp() / total).ln()).abs() < 1e-15);
        assert_eq!(Sampling::default().choose(&[1.0, f64::NAN], (0, 0, 0)), None);
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
            (0..40).map(|at| s.choose(&LOGITS, (seed, text, at)).unwrap().0).collect()
        };
        assert_eq!(drawn(1, 0), drawn(1, 0));
        assert_ne!(drawn(1, 0), drawn(2, 0));
        assert_ne!(drawn(1, 0), drawn(1, 1));
    }
}
