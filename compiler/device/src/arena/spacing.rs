//! Results that lie at equal distances: the matrices of matmuls that are one launch.

use meshwright_sorted::{SortedMap, SortedSet};

/// Results of one size that lie one after the other.
#[derive(Default)]
pub(super) struct ResultRows {
    /// The results of each row, by number.
    pub rows: Vec<Vec<usize>>,
    /// Its row, and its place in the row, by number of a result.
    of: SortedMap<usize, (usize, usize)>,
}

impl ResultRows {
    /// Puts results into a row, in their order; false where they cannot lie at equal distances, since they lie in another way
    /// already.
    pub(super) fn add(&mut self, results: &[usize]) -> bool {
        let known: Vec<Option<&(usize, usize)>> = results.iter().map(|r| self.of.get(r)).collect();
        if let Some(known) = known.iter().copied().collect::<Option<Vec<_>>>() {
            let apart =
                |pair: &[&(usize, usize)]| (pair[0].0 == pair[1].0).then(|| pair[1].1.checked_sub(pair[0].1));
            let mut steps = known.windows(2).map(|pair| apart(pair).flatten().filter(|step| *step > 0));
            let first = steps.next().flatten();
            return first.is_some() && steps.all(|step| step == first);
        }
        let distinct: SortedSet<usize> = results.iter().copied().collect();
        if known.iter().any(Option::is_some) || distinct.len() != results.len() {
            return false;
        }
        let row = self.rows.len();
        self.of.extend(results.iter().enumerate().map(|(place, result)| (*result, (row, place))));
        self.rows.push(results.to_vec());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_lies_in_one_row() {
        let mut rows = ResultRows::default();
        assert!(rows.add(&[4, 2, 7]));
        // Again, and a part of it at equal distances.
        assert!(rows.add(&[4, 2, 7]) && rows.add(&[2, 7]) && rows.add(&[4, 7]));
        // In another order, beside others, and twice.
        assert!(!rows.add(&[7, 2, 4]) && !rows.add(&[4, 2, 8]) && !rows.add(&[9, 9]));
        assert!(rows.add(&[8, 9]) && !rows.add(&[4, 8]));
        assert_eq!(rows.rows, [vec![4, 2, 7], vec![8, 9]]);
    }
}
