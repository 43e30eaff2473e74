//! Curves of fewer points that look the same.

use meshwright_runs::RunCurves;

/// The loss of a run by step, in few points. A loss that is not a number is a gap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ThinCurve {
    /// The steps that are kept, in order.
    pub steps: Vec<u64>,
    /// Their losses.
    pub losses: Vec<f64>,
    /// How many steps there are.
    pub of: usize,
}

/// How many points a page holds of the losses of all its runs.
const BUDGET: usize = 30_000;
/// The least and the most for one run.
const EACH: (usize, usize) = (40, 2000);

/// Most points of a run, for a number of runs.
pub fn points_each(runs: usize) -> usize {
    (BUDGET / runs.max(1)).clamp(EACH.0, EACH.1)
}

impl ThinCurve {
    /// At most `most` points: of each stretch of steps the least and the greatest loss, and the first and the last step of all.
    /// What sticks out stays, which a mean would hide.
    pub fn of(curves: &RunCurves, most: usize) -> ThinCurve {
        let steps = &curves.steps;
        let mut thin = ThinCurve { of: steps.len(), ..ThinCurve::default() };
        let mut add = |at: usize| {
            thin.steps.push(steps[at].step);
            thin.losses.push(steps[at].loss);
        };
        if steps.len() <= most.max(4) {
            (0..steps.len()).for_each(add);
            return thin;
        }
        let (inner, stretches) = (steps.len() - 2, (most.max(4) - 2) / 2);
        add(0);
        for n in 0..stretches {
            let (from, to) = (1 + inner * n / stretches, 1 + inner * (n + 1) / stretches);
            let (a, b) = extremes(from..to, |at| steps[at].loss);
            add(a.min(b));
            if a != b {
                add(a.max(b));
            }
        }
        add(steps.len() - 1);
        thin
    }
}

/// Positions of the least and the greatest. A value that is not a number counts only without others.
fn extremes(range: std::ops::Range<usize>, value: impl Fn(usize) -> f64) -> (usize, usize) {
    let (mut least, mut greatest) = (range.start, range.start);
    for at in range {
        if value(at) < value(least) || value(least).is_nan() {
            least = at;
        }
        if value(at) > value(greatest) || value(greatest).is_nan() {
            greatest = at;
        }
    }
    (least, greatest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshwright_runs::StepPoint;

    fn curves(losses: impl Iterator<Item = f64>) -> RunCurves {
        let steps = (1..).zip(losses).map(|(step, loss)| StepPoint { step, loss, seconds: 0.1 }).collect();
        RunCurves { steps, ..RunCurves::default() }
    }

    #[test]
    fn what_sticks_out_stays() {
        let noisy = |n: u64| if n == 5_432 { 99.0 } else { 1.0 / (1.0 + n as f64) };
        let all = curves((0..10_000).map(noisy));
        let thin = ThinCurve::of(&all, 120);
        assert!(thin.steps.len() <= 120 && thin.steps.len() > 60, "{}", thin.steps.len());
        assert_eq!((thin.steps[0], thin.steps.last().copied(), thin.of), (1, Some(10_000), 10_000));
        assert!(thin.steps.is_sorted_by(|a, b| a < b));
        let spike = thin.steps.iter().position(|s| *s == 5_433);
        assert_eq!(spike.map(|at| thin.losses[at]), Some(99.0));
    }

    #[test]
    fn short_curves_stay_whole_and_gaps_stay_gaps() {
        let all = curves((0..50).map(f64::from));
        assert_eq!(ThinCurve::of(&all, 50).losses, (0..50).map(f64::from).collect::<Vec<_>>());
        assert_eq!(ThinCurve::of(&curves(std::iter::empty()), 50), ThinCurve::default());
        // A run that diverges: its losses end where they end.
        let diverged =
            ThinCurve::of(&curves((0..1000).map(|n| if n < 500 { f64::from(n) } else { f64::NAN })), 40);
        let numbers = diverged.losses.iter().filter(|l| !l.is_nan()).count();
        assert!(numbers > 10 && numbers < diverged.losses.len(), "{diverged:?}");
        assert_eq!(diverged.losses.iter().position(|l| l.is_nan()), Some(numbers));
        assert!((points_each(500), points_each(1), points_each(100_000)) == (60, 2000, 40));
    }
}
