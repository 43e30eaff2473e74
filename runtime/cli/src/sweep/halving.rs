//! Successive halving (Jamieson and Talwalkar 2016): all trials begin with a short run, and after each rung the best of them go
//! on to a longer one.

use super::combination::Combination;
use meshwright_runs::{RunLength, RunSummary};

/// A part of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rung {
    /// How far runs go in it.
    pub(crate) length: RunLength,
    /// How many trials take part.
    pub(crate) trials: usize,
}

/// The rungs for this number of trials. The last one has the full length.
pub(crate) fn rungs(full: RunLength, trials: usize, reduction: u32) -> Vec<Rung> {
    let total = match full {
        RunLength::Epochs(n) => u64::from(n),
        RunLength::Steps(n) => n,
    };
    let r = u64::from(reduction.max(2));
    // As many as leave one trial and one unit of length at least.
    let most = (1..)
        .take_while(|k| r.checked_pow(*k).is_some_and(|p| p <= total && p <= trials as u64))
        .last()
        .unwrap_or(0);
    let rung = |k: u32| {
        let length = total.div_ceil(r.pow(most - k));
        Rung {
            length: match full {
                RunLength::Epochs(_) => RunLength::Epochs(u32::try_from(length).unwrap_or(u32::MAX)),
                RunLength::Steps(_) => RunLength::Steps(length),
            },
            trials: (trials as u64).div_ceil(r.pow(k)) as usize,
        }
    };
    (0..=most).map(rung).collect()
}

/// The trials of a sweep: combinations that differ in their seeds alone.
pub(crate) fn trials(all: &[Combination]) -> Vec<Vec<usize>> {
    let mut out: Vec<Vec<usize>> = Vec::new();
    let mut known = meshwright_sorted::SortedMap::new();
    for (i, c) in all.iter().enumerate() {
        let name = Combination { seed: 0, ..c.clone() }.name();
        let at = *known.entry(name).or_insert_with(|| {
            out.push(Vec::new());
            out.len() - 1
        });
        out[at].push(i);
    }
    out
}

/// What a run had reached at the end of a rung, however far it is by now, by its last evaluation until then; none where it did
/// not get there.
pub(crate) fn reached(run: &RunSummary, length: RunLength, metric: &str) -> Option<f64> {
    let step = match length {
        RunLength::Epochs(n) => run.epochs.iter().find(|e| e.epoch == n)?.step,
        RunLength::Steps(n) => Some(n).filter(|n| run.steps >= *n)?,
    };
    run.evaluated_at(step)?.evaluation.value(metric).filter(|v| !v.is_nan())
}

/// The best of some trials by their values, those of runs with several seeds by the mean. A trial with a run that has no value is
/// out.
pub(crate) fn best(values: &[Vec<Option<f64>>], how_many: usize, greater: bool) -> Vec<usize> {
    let mean = |v: &Vec<Option<f64>>| -> Option<f64> {
        let all: Option<Vec<f64>> = v.iter().copied().collect();
        all.filter(|a| !a.is_empty()).map(|a| a.iter().sum::<f64>() / a.len() as f64)
    };
    let mut ranked: Vec<(usize, f64)> =
        values.iter().enumerate().filter_map(|(i, v)| Some((i, mean(v)?))).collect();
    // Equal ones stay in order.
    ranked.sort_by(|a, b| if greater { b.1.total_cmp(&a.1) } else { a.1.total_cmp(&b.1) });
    let mut chosen: Vec<usize> = ranked.into_iter().take(how_many).map(|r| r.0).collect();
    chosen.sort_unstable();
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rungs_grow_in_length_as_trials_get_fewer() {
        let of = |full, trials, r| -> Vec<(RunLength, usize)> {
            rungs(full, trials, r).into_iter().map(|r| (r.length, r.trials)).collect()
        };
        let epochs = RunLength::Epochs;
        assert_eq!(of(epochs(9), 27, 3), [(epochs(1), 27), (epochs(3), 9), (epochs(9), 3)]);
        assert_eq!(
            of(RunLength::Steps(100), 4, 2),
            [(RunLength::Steps(25), 4), (RunLength::Steps(50), 2), (RunLength::Steps(100), 1)]
        );
        // Too few trials, or too short: nothing to halve.
        assert_eq!(of(epochs(9), 2, 3), [(epochs(9), 2)]);
        assert_eq!(of(epochs(1), 27, 3), [(epochs(1), 27)]);
    }

    #[test]
    fn the_best_go_on() {
        let values = [
            vec![Some(0.3), Some(0.5)],
            vec![Some(0.1), None],
            vec![Some(0.2), Some(0.2)],
            vec![Some(0.9), Some(0.9)],
        ];
        assert_eq!(best(&values, 2, false), [0, 2]);
        assert_eq!(best(&values, 1, true), [3]);
        assert_eq!(best(&values, 9, false), [0, 2, 3]);
        let seed = |seed, lr| Combination { sets: vec![("lr".into(), lr)], seed, ..Combination::default() };
        assert_eq!(trials(&[seed(0, 0.1), seed(0, 0.2), seed(1, 0.1)]), [vec![0, 2], vec![1]]);
    }
}
