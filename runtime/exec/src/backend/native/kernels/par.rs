//! Sharing work with the pool that the calling thread is in. Cuts depend on sizes alone.

/// Below this many elements, work stays on the calling thread.
const LARGE: usize = 1 << 16;

/// Parts that are not cut further.
const PART: usize = 1 << 14;

/// Whether there is a pool to share so many elements with.
pub(super) fn worth(elements: usize) -> bool {
    elements > LARGE && rayon::current_thread_index().is_some() && rayon::current_num_threads() > 1
}

/// Where to cut `len` elements in two, at a multiple of `unit`; `None` where they are few.
pub(super) fn middle(len: usize, unit: usize) -> Option<usize> {
    cut(len, unit, 1)
}

fn cut(len: usize, unit: usize, weight: usize) -> Option<usize> {
    let mid = (len / 2).next_multiple_of(unit.max(1));
    (len.saturating_mul(weight) > PART && 0 < mid && mid < len).then_some(mid)
}

/// Calls `f(base, part)` for parts of an array, cut at multiples of `unit`; `base` is the position of a part's first
/// element. An element counts as `weight` when it is decided whether and how far to cut.
pub(super) fn parts<T: Send>(
    out: &mut [T],
    unit: usize,
    weight: usize,
    f: &(impl Fn(usize, &mut [T]) + Sync),
) {
    fn go<T: Send>(
        out: &mut [T],
        unit: usize,
        weight: usize,
        base: usize,
        f: &(impl Fn(usize, &mut [T]) + Sync),
    ) {
        match cut(out.len(), unit, weight) {
            None => f(base, out),
            Some(mid) => {
                let (a, b) = out.split_at_mut(mid);
                rayon::join(|| go(a, unit, weight, base, f), || go(b, unit, weight, base + mid, f));
            }
        }
    }
    if worth(out.len().saturating_mul(weight)) { go(out, unit, weight, 0, f) } else { f(0, out) }
}
