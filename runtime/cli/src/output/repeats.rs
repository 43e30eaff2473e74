//! A model of many equal blocks has many equal rows. Rows repeat where they differ in numbers of paths alone, and all of those
//! count up, or all count down, by one: `b1.up`, `b1.down`, `b2.up`, `b2.down`, … are two rows of `b1 … b12, each`. Whatever else
//! differs, be it a byte, ends the repetition.

/// A row, as far as it is compared.
pub(crate) struct RowKey {
    /// All of its text without the numbers that may count.
    pattern: String,
    /// Those numbers: first of its path, then of its reason.
    numbers: Vec<u64>,
    /// How many of them are of its path.
    of_path: usize,
}

impl RowKey {
    /// Of a path, the cells that must be equal, and the reason, in which paths occur.
    pub(crate) fn new(path: &str, cells: &[String], reason: &str) -> Self {
        let mut key = RowKey { pattern: String::new(), numbers: Vec::new(), of_path: 0 };
        key.take(path);
        key.of_path = key.numbers.len();
        for cell in cells {
            key.pattern.push('\0');
            key.pattern += cell;
        }
        key.pattern.push('\0');
        key.take(reason);
        key
    }

    fn take(&mut self, text: &str) {
        let mut rest = text;
        while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
            let end = rest[start..].find(|c: char| !c.is_ascii_digit()).map_or(rest.len(), |n| start + n);
            self.pattern += &rest[..start];
            match rest[start..end].parse() {
                Ok(number) => {
                    self.pattern.push('\u{1}');
                    self.numbers.push(number);
                }
                Err(_) => self.pattern += &rest[start..end],
            }
            rest = &rest[end..];
        }
        self.pattern += rest;
    }

    /// Which of its numbers another row has counted on by `step`; none where they differ in anything else, or in no number
    /// of the path.
    fn counted(&self, next: &RowKey, step: i64) -> Option<Vec<bool>> {
        if self.pattern != next.pattern {
            return None;
        }
        let mut counts = Vec::with_capacity(self.numbers.len());
        for (a, b) in self.numbers.iter().zip(&next.numbers) {
            counts.push(a != b);
            if a != b && a.checked_add_signed(step) != Some(*b) {
                return None;
            }
        }
        counts[..self.of_path].contains(&true).then_some(counts)
    }
}

/// Neighboring rows: `period` of them, and the same again until there are `times` as many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Repetition {
    /// Its first row.
    pub(crate) start: usize,
    /// Rows that are shown.
    pub(crate) period: usize,
    /// How often they come; 1 for a row that is not repeated.
    pub(crate) times: usize,
}

/// The most rows of a block.
const MOST_ROWS: usize = 64;
/// The least equal blocks in a row, and the least rows saved, that are worth it: short tables stay as they are.
const BLOCKS: usize = 3;
const SAVED: usize = 4;

/// All rows, those that repeat in one run.
pub(crate) fn runs(keys: &[RowKey]) -> Vec<Repetition> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < keys.len() {
        let longest = MOST_ROWS.min((keys.len() - at) / BLOCKS);
        let mut best = Repetition { start: at, period: 1, times: 1 };
        for period in 1..=longest {
            let times =
                [1, -1].map(|step| repeated(&keys[at..], period, step)).into_iter().max().unwrap_or(1);
            let saved = |times: usize, period: usize| (times - 1) * period;
            if times >= BLOCKS && saved(times, period) >= SAVED.max(saved(best.times, best.period) + 1) {
                best = Repetition { start: at, period, times };
            }
        }
        at += best.period * best.times;
        out.push(best);
    }
    out
}

/// How often the first `period` rows come, each time with their numbers counted on by `step`.
fn repeated(keys: &[RowKey], period: usize, step: i64) -> usize {
    let counted = |from: usize| -> Option<Vec<Vec<bool>>> {
        let (block, next) = (keys.get(from..from + period)?, keys.get(from + period..from + 2 * period)?);
        block.iter().zip(next).map(|(a, b)| a.counted(b, step)).collect()
    };
    let Some(first) = counted(0) else { return 1 };
    // A number that counts from the first block to the second does so to the last.
    2 + (1..).take_while(|k| counted(k * period).is_some_and(|c| c == first)).count()
}

/// `b1 … b12` of the paths of one row in the first and the last block: the path up to the element that differs.
pub(crate) fn named(first: &str, last: &str) -> Option<String> {
    let element = |path: &str, at: usize| {
        let start = path[..at].rfind(['(', ' ']).map_or(0, |i| i + 1);
        let end = path[at..].find(['.', ')', '/', ' ']).map_or(path.len(), |i| at + i);
        path[start..end].to_string()
    };
    let at = first.char_indices().zip(last.chars()).find(|((_, a), b)| a != b).map(|((i, _), _)| i);
    // `b1` and `b12` differ behind the digits that they share.
    let at = at.unwrap_or(first.len().min(last.len()));
    let at = first[..at].rfind(|c: char| !c.is_ascii_digit()).map_or(0, |i| i + 1);
    (first.is_char_boundary(at) && last.is_char_boundary(at))
        .then(|| format!("{} … {}", element(first, at), element(last, at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(path: &str, bytes: &str, reason: &str) -> RowKey {
        RowKey::new(path, &[bytes.to_string()], reason)
    }

    fn blocks(bytes: [&str; 4]) -> Vec<RowKey> {
        let block = |(k, bytes): (usize, &str)| {
            let reason = format!("`seq` is used whole by b{}.up[seq]", k + 1);
            ["q", "k", "v", "out"].map(|n| key(&format!("d(b{}.{n})", k + 1), bytes, &reason))
        };
        bytes.into_iter().enumerate().flat_map(block).collect()
    }

    /// Rows that are shown, and how often each comes.
    fn shown(keys: Vec<RowKey>) -> Vec<(usize, usize)> {
        runs(&keys).into_iter().flat_map(|r| vec![(r.start, r.times); r.period]).collect()
    }

    #[test]
    fn equal_blocks_are_said_once() {
        let mut all = blocks(["8"; 4]);
        all.insert(0, key("x", "8", ""));
        assert_eq!(shown(all), [(0, 1), (1, 4), (1, 4), (1, 4), (1, 4)]);
    }

    #[test]
    fn blocks_may_have_several_names_and_count_down() {
        let names = |k: usize| [format!("attn{k}.out"), format!("norm1_{k}"), format!("ff{k}.down")];
        let forth: Vec<RowKey> =
            (1..=5).flat_map(names).map(|p| key(&p, "8", &format!("used by {p}"))).collect();
        assert_eq!(shown(forth), [(0, 5); 3]);
        let back: Vec<RowKey> = (1..=5).rev().flat_map(names).map(|p| key(&p, "8", "")).collect();
        assert_eq!(shown(back), [(0, 5); 3]);
        // A row a block: also worth it where there are many.
        let one = |n: usize| shown((1..=n).map(|k| key(&format!("h{k}"), "8", "")).collect());
        assert_eq!((one(4).len(), one(5)), (4, vec![(0, 5)]));
    }

    #[test]
    fn a_difference_is_shown() {
        // A block of other bytes, a reason that names another block, another order, a gap: all rows.
        assert_eq!(shown(blocks(["8", "8", "9", "8"])).len(), 16);
        let mut other = blocks(["8"; 4]);
        other[5] = key("d(b2.k)", "8", "`seq` is used whole by b1.up[seq]");
        assert_eq!(shown(other).len(), 16);
        let mut swapped = blocks(["8"; 4]);
        swapped.swap(4, 5);
        assert_eq!(shown(swapped).len(), 16);
        let gap = [1, 2, 4, 5, 7].map(|k| key(&format!("h{k}"), "8", ""));
        assert_eq!(shown(gap.into()).len(), 5);
        // The same value twice, as an input that is read in two placements.
        assert_eq!(shown((0..6).map(|_| key("x1", "8", "")).collect()).len(), 6);
    }

    #[test]
    fn blocks_are_named_by_the_element_that_counts() {
        for (first, last, name) in [
            ("b1.up", "b12.up", "b1 … b12"),
            ("d(norm2_24.c)", "d(norm2_2.c)", "norm2_24 … norm2_2"),
            ("new enc.b1.w", "new enc.b3.w", "enc.b1 … enc.b3"),
            ("x9", "x10", "x9 … x10"),
            ("h1.w/m", "h5.w/m", "h1 … h5"),
        ] {
            assert_eq!(named(first, last).as_deref(), Some(name));
        }
    }
}
