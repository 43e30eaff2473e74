//! Beam search: the texts of a prompt that are most probable so far go on together (Wu et al. 2016, section 7).

use super::choice::{Logits, most_probable};
use super::sequence::{Limits, Sequence, TextEnd};
use std::cmp::Ordering;

/// A beam search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BeamSearch {
    /// Number of live texts.
    pub width: usize,
    /// The exponent of the length penalty; 0 compares the probabilities of whole texts.
    pub length_penalty: f64,
    /// Number of the best that are reported.
    pub results: usize,
}

impl BeamSearch {
    /// Score of finished texts: the logarithm of the probability of `length` tokens over the penalty
    /// `((5 + length) / 6) ** exponent`.
    pub(super) fn score(&self, log_probability: f64, length: usize) -> f64 {
        log_probability / ((5 + length) as f64 / 6.0).powf(self.length_penalty)
    }
}

/// A text that has ended.
pub(super) struct FinishedBeam {
    pub(super) score: f64,
    pub(super) text: Sequence,
}

/// The search for one prompt.
pub(super) struct PromptBeams {
    /// Live texts, the most probable first.
    live: Vec<Sequence>,
    /// For each of them the place of the one that it goes on from.
    parents: Vec<usize>,
    /// The best finished texts, the best first.
    finished: Vec<FinishedBeam>,
    /// Filler of rows without a text.
    filler: Sequence,
}

/// A text with one more token.
struct Candidate {
    /// Of the text with it.
    log_probability: f64,
    /// The place of the text.
    parent: usize,
    token: u32,
    /// Of the token alone.
    own: f64,
}

impl Candidate {
    /// The more probable first; of equal ones that of the more probable text, then the smaller token.
    fn order(&self, other: &Candidate) -> Ordering {
        let likely = other.log_probability.total_cmp(&self.log_probability);
        likely.then(self.parent.cmp(&other.parent)).then(self.token.cmp(&other.token))
    }
}

impl PromptBeams {
    pub(super) fn new(prompt: Sequence) -> PromptBeams {
        PromptBeams { live: vec![prompt.clone()], parents: vec![0], finished: Vec::new(), filler: prompt }
    }

    /// Whether nothing goes on.
    pub(super) fn is_done(&self) -> bool {
        self.live.is_empty()
    }

    /// Tokens that the next run computes for texts that go on.
    pub(super) fn pending(&self) -> usize {
        self.live.iter().map(|s| s.pending().len()).sum()
    }

    /// The text in a row of its own, before it branches: that of the prompt.
    pub(super) fn prompt(&self) -> &Sequence {
        &self.filler
    }

    /// The texts in `width` rows, and for each the row among them that it goes on from.
    pub(super) fn rows(&self, width: usize) -> impl Iterator<Item = (Sequence, usize)> {
        (0..width).map(|i| match (self.live.get(i), self.parents.get(i)) {
            (Some(text), Some(parent)) => (text.clone(), *parent),
            _ => (self.filler.clone(), i),
        })
    }

    /// Takes one token for each live text, whose rows are `logits`. `None` if a row has NaN.
    pub(super) fn advance(&mut self, logits: &[Logits], search: BeamSearch, limits: Limits) -> Option<()> {
        // A text has one way to end, so at least half of these go on.
        let wanted = 2 * search.width;
        let mut best: Vec<Candidate> = Vec::new();
        for (parent, (text, logits)) in self.live.iter().zip(logits).enumerate() {
            logits.are_numbers().then_some(())?;
            // No more than these can be among the best of all.
            best.extend(most_probable(&logits.of, wanted).into_iter().map(|token| {
                let own = logits.log_probability(token);
                Candidate { log_probability: text.log_probability() + own, parent, token: token as u32, own }
            }));
        }
        best.sort_by(Candidate::order);
        best.truncate(wanted);
        let mut live = Vec::new();
        let mut parents = Vec::new();
        for c in best {
            if live.len() == search.width {
                break;
            }
            let mut text = self.live[c.parent].clone();
            text.push(c.token, c.own, limits);
            match text.ended {
                Some(TextEnd::EndToken) => self.finish(text, search),
                _ => {
                    parents.push(c.parent);
                    live.push(text);
                }
            }
        }
        // All are of one length: where one has no room for more, none has.
        let (ended, live): (Vec<_>, Vec<_>) = live.into_iter().partition(|s| s.ended.is_some());
        ended.into_iter().for_each(|text| self.finish(text, search));
        (self.live, self.parents) = (live, parents);
        if !self.may_improve(search, limits) {
            self.live.clear();
        }
        Some(())
    }

    fn finish(&mut self, text: Sequence, search: BeamSearch) {
        let score = search.score(text.log_probability(), text.length());
        self.finished.push(FinishedBeam { score, text });
        // Of equal ones the one that ended first stays first.
        self.finished.sort_by(|a, b| b.score.total_cmp(&a.score));
        self.finished.truncate(search.width);
    }

    /// Whether a live text may yet be better than the worst finished one. More tokens only make it less probable, and
    /// the longest has the least penalty.
    fn may_improve(&self, search: BeamSearch, limits: Limits) -> bool {
        let Some(best) = self.live.first() else { return false };
        let longest = best.longest(limits);
        let bound = search.score(best.log_probability(), longest);
        self.finished.len() < search.width || self.finished.last().is_some_and(|worst| bound > worst.score)
    }

    /// The best that have ended.
    pub(super) fn results(self, count: usize) -> impl Iterator<Item = FinishedBeam> {
        self.finished.into_iter().take(count)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use meshwright_sorted::SortedSet;

    const VOCAB: usize = 4;
    const END: u32 = 3;

    /// The numbers of a model that depends on all of a text.
    fn logits(tokens: &[u32]) -> Logits {
        let hash = |t: u32| {
            let all = tokens.iter().chain([&t]);
            let h = all
                .fold(17u64, |h, t| (h ^ u64::from(*t)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31));
            (h >> 40) as f64 / f64::from(1 << 22)
        };
        let of: Vec<f64> = (0..VOCAB as u32).map(hash).collect();
        Logits { log_total: of.iter().map(|l| l.exp()).sum::<f64>().ln(), of }
    }

    /// All texts of at most `most` tokens with their scores, the best first.
    fn all_texts(search: BeamSearch, most: usize, prompt: &[u32]) -> Vec<(f64, Vec<u32>)> {
        let (mut out, mut open) = (Vec::new(), vec![(0.0, prompt.to_vec())]);
        while let Some((p, text)) = open.pop() {
            let all = logits(&text);
            for (token, own) in (0..VOCAB).map(|token| (token, all.log_probability(token))) {
                let length = text.len() - prompt.len() + 1;
                let ends = token as u32 == END;
                let next = if ends { text.clone() } else { [&text[..], &[token as u32]].concat() };
                match ends || length == most {
                    true => out.push((search.score(p + own, length), next[prompt.len()..].to_vec())),
                    false => open.push((p + own, next)),
                }
            }
        }
        out.sort_by(|a, b| b.0.total_cmp(&a.0));
        out
    }

    fn searched(search: BeamSearch, most: usize, prompt: &[u32]) -> (Vec<(f64, Vec<u32>)>, usize) {
        let limits = Limits { end: Some(END), most, context: 100 };
        let mut beams = PromptBeams::new(Sequence::new(prompt.to_vec()));
        let mut rounds = 0;
        while !beams.is_done() {
            rounds += 1;
            let rows: Vec<Logits> = beams.live.iter().map(|s| logits(&s.tokens)).collect();
            beams.advance(&rows, search, limits).unwrap();
        }
        let told = beams.results(search.results);
        (told.map(|f| (f.score, f.text.tokens[prompt.len()..].to_vec())).collect(), rounds)
    }

    #[test]
    fn enough_beams_find_what_trying_all_texts_finds() {
        for length_penalty in [0.0, 0.6, 1.0, 3.0] {
            for (start, most) in [(0, 1), (1, 2), (2, 3), (5, 4)] {
                let width = VOCAB.pow(most as u32);
                let search = BeamSearch { width, length_penalty, results: 5 };
                let all = all_texts(search, most, &[start, 1]);
                let (found, _) = searched(search, most, &[start, 1]);
                let equal = |a: &(f64, Vec<u32>), b: &(f64, Vec<u32>)| (a.0 - b.0).abs() < 1e-12;
                // Two texts of one score may come in either order.
                let known = |a: &(f64, Vec<u32>)| all.iter().any(|b| equal(a, b) && a.1 == b.1);
                let few = all.len().min(5);
                let texts: SortedSet<&[u32]> = found.iter().map(|(_, text)| text.as_slice()).collect();
                assert_eq!((found.len(), texts.len()), (few, few));
                let right = found.iter().zip(&all).all(|(a, b)| equal(a, b) && known(a));
                assert!(right, "{found:?}\n{:?}", &all[..few]);
            }
        }
    }

    #[test]
    fn one_beam_is_greedy_and_more_are_never_worse_than_what_they_contain() {
        let search = |width| BeamSearch { width, length_penalty: 0.0, results: 1 };
        let mut better = 0;
        for start in 0..40 {
            let prompt = [start];
            let (one, _) = searched(search(1), 6, &prompt);
            let mut greedy = prompt.to_vec();
            loop {
                let row = logits(&greedy).of;
                let best = (0..VOCAB).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as u32;
                if best == END || greedy.len() == 7 {
                    break;
                }
                greedy.push(best);
            }
            // A search of one beam goes on past an end that is not the most probable token only.
            if one[0].1.len() == greedy.len() - 1 {
                assert_eq!(one[0].1, greedy[1..]);
            }
            let (four, _) = searched(search(4), 6, &prompt);
            assert!(four[0].0 >= one[0].0 - 1e-12, "{start}");
            better += usize::from(four[0].0 > one[0].0 + 1e-9);
        }
        assert!(better > 0);
    }

    #[test]
    fn a_search_ends_where_nothing_can_become_better() {
        // Short texts that end beat whatever may follow, long before 50 tokens.
        let search = BeamSearch { width: 3, length_penalty: 0.0, results: 3 };
        let (found, rounds) = searched(search, 50, &[0]);
        assert!(found.len() == 3 && rounds < 30, "{rounds}");
        // A penalty that favors length runs to the end.
        let (_, longer) = searched(BeamSearch { length_penalty: 8.0, ..search }, 50, &[0]);
        assert!(longer > rounds, "{longer}");
    }
}
