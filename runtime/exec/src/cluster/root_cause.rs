//! The root cause among the errors of several devices.

use crate::error::ExecError;
use meshwright_comm::{CommError, Missing};
use meshwright_sorted::{SortedMap, SortedSet};

/// The cause among the errors of the devices, given in ascending rank.
///
/// An error that reports the end of another device is a consequence. So, as a rule, are timeouts, and devices that did
/// not answer, which the others miss: an error of another kind comes first. If all timed out, the cause is the rank
/// that most of the others miss and that did not time out itself; of several, the one whose last collective is furthest
/// behind. The result is the error that names it.
pub(crate) fn root_cause(errors: Vec<ExecError>) -> Option<ExecError> {
    let is_timeout = |e: &ExecError| timeout(e).is_some();
    let is_silent = |e: &ExecError| matches!(e, ExecError::Silent { .. });
    let own = errors.iter().position(|e| !e.is_consequence() && !is_timeout(e) && !is_silent(e));
    // A device that was aborted knows the cause elsewhere.
    let told = || errors.iter().position(|e| matches!(e, ExecError::Comm { .. }));
    let silent = || errors.iter().position(is_silent);
    let at = own.or_else(|| missed_most(&errors)).or_else(told).or_else(silent);
    let at = at.or((!errors.is_empty()).then_some(0))?;
    errors.into_iter().nth(at)
}

/// The rank that timed out, the ranks that it missed, and the ranks that are stuck.
fn timeout(error: &ExecError) -> Option<(usize, &[Missing], &[Missing])> {
    match error {
        ExecError::Comm { source: CommError::Timeout { rank, missing, stuck, .. }, .. } => {
            Some((*rank, missing, stuck))
        }
        _ => None,
    }
}

/// Position of the timeout to report.
fn missed_most(errors: &[ExecError]) -> Option<usize> {
    let timeouts: Vec<_> = errors.iter().enumerate().filter_map(|(i, e)| Some((i, timeout(e)?))).collect();
    // All members of a collective report the same timeout: it counts once, for the rank that timed out first.
    let gave_up: SortedSet<usize> = timeouts.iter().map(|(_, t)| t.0).collect();
    let mut missed: SortedMap<usize, (SortedSet<usize>, Option<u64>)> = SortedMap::new();
    for (_, (rank, _, stuck)) in &timeouts {
        for m in *stuck {
            let entry = missed.entry(m.rank).or_default();
            entry.0.insert(*rank);
            entry.1 = m.last_call.as_ref().map(|call| call.tag.sequence);
        }
    }
    let key = |rank: usize, by: usize, last: Option<u64>| (gave_up.contains(&rank), usize::MAX - by, last);
    let stuck = missed.iter().min_by_key(|(rank, (by, last))| key(**rank, by.len(), *last));
    let Some((stuck, _)) = stuck else { return timeouts.first().map(|(i, _)| *i) };
    let names = |all: &[Missing]| all.iter().any(|m| m.rank == *stuck);
    // An error of a rank that misses it directly is better than that of an aborted one.
    let direct = timeouts.iter().find(|(_, (_, missing, _))| names(missing));
    direct.or_else(|| timeouts.iter().find(|(_, (_, _, held))| names(held))).map(|(i, _)| *i)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Place;
    use meshwright_comm::{CallName, CollectiveKind, Tag};
    use std::time::Duration;

    fn call(sequence: u64) -> CallName {
        CallName::new(CollectiveKind::AllReduce, &Tag::new(sequence, "x", 1))
    }

    /// Rank `by` gave up for `missing`, whose last calls had these numbers.
    fn gave_up(by: usize, missing: &[(usize, u64)]) -> ExecError {
        let missing: Vec<Missing> = missing
            .iter()
            .map(|(rank, at)| Missing {
                rank: *rank,
                last_call: Some(call(*at)),
                unresponsive: false,
                process: None,
            })
            .collect();
        let source = CommError::Timeout {
            rank: by,
            call: call(9),
            waited: Duration::from_secs(1),
            stuck: missing.clone(),
            missing,
        };
        ExecError::Comm { place: Box::new(Place { rank: by, ..Place::default() }), source }
    }

    fn aborted(rank: usize) -> ExecError {
        let source = CommError::Aborted { rank: 0, reason: "waited".into(), call: None };
        ExecError::Comm { place: Box::new(Place { rank, ..Place::default() }), source }
    }

    fn named(errors: Vec<ExecError>) -> Option<Vec<usize>> {
        let cause = root_cause(errors)?;
        timeout(&cause).map(|(_, missing, _)| missing.iter().map(|m| m.rank).collect())
    }

    #[test]
    fn the_rank_that_gave_up_nothing_is_the_cause() {
        // 0 waits for 1, which waits for 3, as does 2.
        let errors = vec![gave_up(0, &[(1, 7)]), gave_up(1, &[(3, 6)]), gave_up(2, &[(3, 6)])];
        assert_eq!(named(errors), Some(vec![3]));
        // Also where fewer miss it than miss one that waits itself.
        let errors = vec![gave_up(0, &[(1, 7)]), gave_up(1, &[(3, 6)]), gave_up(2, &[(1, 7)])];
        assert_eq!(named(errors), Some(vec![3]));
        // Rank 0 alone timed out: the others were aborted.
        assert_eq!(named(vec![gave_up(0, &[(1, 7)]), aborted(1), aborted(3)]), Some(vec![1]));
    }

    #[test]
    fn who_is_furthest_behind_is_the_cause_where_all_wait() {
        let errors = vec![gave_up(0, &[(1, 5)]), gave_up(1, &[(2, 4)]), gave_up(2, &[(0, 6)])];
        assert_eq!(named(errors), Some(vec![2]));
    }

    #[test]
    fn an_error_of_its_own_comes_before_timeouts() {
        let own = ExecError::Provider { rank: 3, message: "no such file".into() };
        assert!(matches!(
            root_cause(vec![gave_up(0, &[(3, 1)]), aborted(1), own]),
            Some(ExecError::Provider { .. })
        ));
        assert!(matches!(root_cause(vec![aborted(1), aborted(2)]), Some(e) if e.is_consequence()));
        let silent = || ExecError::Silent { rank: 3, seconds: 1, step_number: None, gpu: None };
        assert_eq!(named(vec![silent(), gave_up(0, &[(3, 1)]), aborted(1)]), Some(vec![3]));
        assert!(matches!(root_cause(vec![silent(), aborted(1)]), Some(e) if e.is_consequence()));
        let gone = ExecError::Gone { rank: 1 };
        assert!(matches!(root_cause(vec![gone, silent()]), Some(ExecError::Silent { rank: 3, .. })));
        assert!(root_cause(vec![]).is_none());
    }
}
