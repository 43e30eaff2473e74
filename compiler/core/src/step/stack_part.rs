//! Parts of stacked parameters: a parameter of a loop is one for each iteration, and some of these may be treated in their own
//! way.

use meshwright_ops::{Graph, Id};
use meshwright_plan::{DType, Dim};
use std::ops::Range;

/// Iterations of loops: those that are in the range of each of these dims. Without any it is the whole parameter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StackPart(pub Vec<(Dim, Range<usize>)>);

impl StackPart {
    /// Whether it is the whole parameter.
    pub fn is_whole(&self) -> bool {
        self.0.is_empty()
    }

    /// What is in both; `None` where nothing is.
    pub fn and(&self, other: &StackPart) -> Option<StackPart> {
        let mut out = self.clone();
        for (dim, range) in &other.0 {
            match out.0.iter_mut().find(|(d, _)| d == dim) {
                Some((_, mine)) => *mine = mine.start.max(range.start)..mine.end.min(range.end),
                None => out.0.push((*dim, range.clone())),
            }
        }
        out.0.iter().all(|(_, range)| !range.is_empty()).then_some(out)
    }

    /// What of it is not in another, in parts that have nothing in common.
    fn without(self, other: &StackPart) -> Vec<StackPart> {
        if self.and(other).is_none() {
            return vec![self];
        }
        let mut rest = self;
        let mut out = Vec::new();
        for (dim, range) in &other.0 {
            // A dim that is not named is whole: its size is no matter, since parts are within it.
            let mine = rest.0.iter().find(|(d, _)| d == dim).map_or(0..usize::MAX, |(_, r)| r.clone());
            for left in [mine.start..range.start.max(mine.start), range.end.min(mine.end)..mine.end] {
                out.extend(rest.and(&StackPart(vec![(*dim, left)])));
            }
            match rest.and(&StackPart(vec![(*dim, range.clone())])) {
                Some(inner) => rest = inner,
                None => break,
            }
        }
        out
    }

    /// Whether some parts together are all of another one.
    pub fn cover(parts: &[StackPart], whole: StackPart) -> bool {
        let left = parts
            .iter()
            .fold(vec![whole], |left, part| left.into_iter().flat_map(|piece| piece.without(part)).collect());
        left.is_empty()
    }

    /// The truth value, along these loops, of being in one of some parts.
    pub(crate) fn holds(parts: &[StackPart], g: &mut Graph) -> Option<Id> {
        let mut any = None;
        for part in parts {
            let mut all = None;
            for (dim, range) in &part.0 {
                let at = g.index(*dim);
                let [from, to] = [range.start, range.end].map(|n| g.constant(n as f64, DType::I32));
                let (above, below) = (g.binary(">=", at, from), g.binary("<", at, to));
                let within = g.binary("and", above, below);
                all = Some(all.map_or(within, |all| g.binary("and", all, within)));
            }
            any = match (any, all) {
                (Some(any), Some(all)) => Some(g.binary("or", any, all)),
                (any, all) => any.or(all),
            };
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::StackPart;
    use meshwright_plan::Dims;

    #[test]
    fn parts_are_compared_by_the_iterations_that_they_have() {
        let mut dims = Dims::default();
        let (a, b) = (dims.add("a", 4), dims.add("b", 3));
        let part = |ranges: &[(meshwright_plan::Dim, std::ops::Range<usize>)]| StackPart(ranges.to_vec());
        assert_eq!(part(&[(a, 0..2)]).and(&part(&[(a, 2..4)])), None);
        assert_eq!(part(&[(a, 0..3)]).and(&part(&[(b, 1..2)])), Some(part(&[(a, 0..3), (b, 1..2)])));
        let cover = |parts: &[StackPart]| StackPart::cover(parts, part(&[(a, 0..4), (b, 0..3)]));
        assert!(cover(&[StackPart::default()]) && cover(&[part(&[(a, 0..2)]), part(&[(a, 1..4)])]));
        assert!(!cover(&[]) && !cover(&[part(&[(a, 0..2)]), part(&[(a, 3..4)])]));
        let corner = [part(&[(a, 0..2)]), part(&[(a, 2..4), (b, 0..2)])];
        assert!(!cover(&corner) && cover(&[corner.to_vec(), vec![part(&[(b, 2..3)])]].concat()));
    }
}
