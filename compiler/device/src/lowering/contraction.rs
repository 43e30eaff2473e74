//! A contraction of named dims as a (batched) matmul on views.
//!
//! Each dim is in one of four classes: *batch* (in both factors and the result), *rows* (first factor and result),
//! *columns* (second factor and result), *summed* (both factors). The classes are merged by reshaping where their dims lie
//! side by side in the buffer; views then bring the matrices into place without a copy, since the matmul takes any
//! strides. A factor whose classes are interleaved is copied first, and a result that is not `batch, rows, columns`
//! afterwards.

use crate::lowering::local::Local;
use meshwright_plan::Dim;
use serde::{Deserialize, Serialize};

/// A factor: `buffer -> (copy) -> reshape -> permute` gives `[batch.., left, right]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Factor {
    /// Order of dims into which it must be copied first.
    pub copy: Option<Vec<Dim>>,
    /// Merged extents in the order of the buffer (or of the copy).
    pub reshape: Vec<usize>,
    /// The extent at each position of the matrix; none if they are in order.
    pub permute: Option<Vec<usize>>,
}

/// A contraction that is one matmul.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchedMatmul {
    /// Whether the second operand is the left factor.
    pub swapped: bool,
    /// The left factor, `[batch.., rows, summed]`.
    pub left: Factor,
    /// The right factor, `[batch.., summed, columns]`.
    pub right: Factor,
    /// Shape of the matmul, `[batch.., rows, columns]`.
    pub shape: Vec<usize>,
    /// Over how many elements it sums.
    pub summed: usize,
    /// The matmul's order of dims, where it is not the result's.
    pub copy: Option<Vec<Dim>>,
}

/// Operations of a contraction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Contraction {
    /// The result is empty, or the sum is: all zeros.
    Zero,
    /// A matmul.
    Matmul(Box<BatchedMatmul>),
}

/// Finds the matmul that contracts `a` with `b` to `out`.
pub fn contraction(a: &Local, b: &Local, out: &Local) -> Result<Contraction, String> {
    let has = |l: &Local, d: &Dim| l.dims.contains(d);
    if a.dims.iter().any(|d| !has(b, d) && !has(out, d)) || b.dims.iter().any(|d| !has(a, d) && !has(out, d))
    {
        return Err("a summed dim is in one factor only".into());
    }
    if out.dims.iter().any(|d| !has(a, d) && !has(b, d)) {
        return Err("a dim of the result is in no factor".into());
    }
    if a.elements() == 0 || b.elements() == 0 || out.elements() == 0 {
        return Ok(Contraction::Zero);
    }
    // Extents of 1 make no difference to where elements lie.
    let [a, b, out] = [a, b, out].map(without_ones);
    let class = |of: &[(Dim, usize)], in_a: bool, in_b: bool, in_out: bool| -> Vec<(Dim, usize)> {
        let is =
            |d: &(Dim, usize)| a.contains(d) == in_a && b.contains(d) == in_b && out.contains(d) == in_out;
        of.iter().copied().filter(is).collect()
    };
    let batch = class(&out, true, true, true);
    let rows = class(&out, true, false, true);
    let columns = class(&out, false, true, true);
    let size = |dims: &[(Dim, usize)]| dims.iter().map(|d| d.1).product::<usize>();

    // The order in which the summed dims are counted is free: that which copies least.
    let orders = [class(&a, true, true, false), class(&b, true, true, false)];
    let cost = |sum: &Vec<(Dim, usize)>| {
        let copied = |of: &[(Dim, usize)], group: &[(Dim, usize)]| {
            if is_run(of, group) && is_run(of, sum) { 0 } else { size(of) }
        };
        copied(&a, &rows) + copied(&b, &columns)
    };
    let [first, second] = orders;
    let summed = if cost(&second) < cost(&first) { second } else { first };

    let order = |x: &[(Dim, usize)], y: &[(Dim, usize)]| [&batch, x, y].concat();
    let swapped = out != order(&rows, &columns) && out == order(&columns, &rows);
    let (left, right, above, beside) =
        if swapped { (&b, &a, &columns, &rows) } else { (&a, &b, &rows, &columns) };
    let produced = order(above, beside);
    let mut shape: Vec<usize> = batch.iter().map(|d| d.1).collect();
    shape.extend([size(above), size(beside)]);
    Ok(Contraction::Matmul(Box::new(BatchedMatmul {
        swapped,
        left: factor(left, &batch, above, &summed),
        right: factor(right, &batch, &summed, beside),
        shape,
        summed: size(&summed),
        copy: (produced != out).then(|| dims(&produced)),
    })))
}

fn dims(of: &[(Dim, usize)]) -> Vec<Dim> {
    of.iter().map(|d| d.0).collect()
}

fn without_ones(l: &Local) -> Vec<(Dim, usize)> {
    l.dims.iter().copied().zip(l.shape.iter().copied()).filter(|d| d.1 != 1).collect()
}

/// Whether `group` is a contiguous run of `of`, in order.
fn is_run(of: &[(Dim, usize)], group: &[(Dim, usize)]) -> bool {
    group.is_empty() || of.windows(group.len()).any(|w| w == group)
}

fn factor(
    of: &[(Dim, usize)],
    batch: &[(Dim, usize)],
    left: &[(Dim, usize)],
    right: &[(Dim, usize)],
) -> Factor {
    let copy = !(is_run(of, left) && is_run(of, right));
    let order = if copy { [batch, left, right].concat() } else { of.to_vec() };
    // Position of each extent of the matrix among the merged extents.
    let mut reshape = vec![];
    let mut place = vec![usize::MAX; batch.len() + 2];
    let mut i = 0;
    while i < order.len() {
        let (slot, group) = if let Some(b) = batch.iter().position(|d| *d == order[i]) {
            (b, &batch[b..=b])
        } else if left.first() == Some(&order[i]) {
            (batch.len(), left)
        } else {
            (batch.len() + 1, right)
        };
        place[slot] = reshape.len();
        reshape.push(group.iter().map(|d| d.1).product());
        i += group.len().max(1);
    }
    for slot in place.iter_mut().filter(|p| **p == usize::MAX) {
        *slot = reshape.len();
        reshape.push(1);
    }
    let in_order = place.iter().copied().eq(0..place.len());
    Factor { copy: copy.then(|| dims(&order)), reshape, permute: (!in_order).then_some(place) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use meshwright_plan::{BufId, DType};

    fn local(dims: &str) -> Local {
        let size = |c: char| if c == 'i' { 1 } else { c as usize - 'a' as usize + 2 };
        let shape: Vec<usize> = dims.chars().map(size).collect();
        let dims: Vec<Dim> = dims.chars().map(|c| Dim(c as u32)).collect();
        Local { buf: BufId(0), dtype: DType::F32, ranges: shape.iter().map(|n| 0..*n).collect(), shape, dims }
    }

    fn product(a: &str, b: &str, out: &str) -> BatchedMatmul {
        match contraction(&local(a), &local(b), &local(out)).unwrap() {
            Contraction::Matmul(p) => *p,
            Contraction::Zero => panic!("not empty"),
        }
    }

    #[test]
    fn the_three_products_of_a_layer_are_views() {
        // x[b, k] w[k, n] -> y[b, n];  x, dy -> dw[k, n];  dy, w -> dx[b, k]
        for (a, b, out) in [("bk", "kn", "bn"), ("bk", "bn", "kn"), ("bn", "kn", "bk"), ("kn", "bk", "bn")] {
            let p = product(a, b, out);
            assert_eq!((&p.copy, &p.left.copy, &p.right.copy), (&None, &None, &None), "{a},{b}->{out}");
        }
        assert!(product("kn", "bk", "bn").swapped);
        assert_eq!(product("bk", "bn", "kn").left.permute, Some(vec![1, 0]));
    }

    #[test]
    fn attention_heads_are_batches_without_copies() {
        // q[batch, seq, head, dim] with k[batch, time, head, dim]: batch and head stay apart, strided.
        let p = product("bshd", "bthd", "bhst");
        assert_eq!((&p.copy, &p.left.copy, &p.right.copy), (&None, &None, &None));
        assert_eq!(p.left.permute, Some(vec![0, 2, 1, 3]));
        assert_eq!(p.right.permute, Some(vec![0, 2, 3, 1]));
    }

    #[test]
    fn interleaved_classes_are_copied() {
        let p = product("kmlc", "lkn", "mcn");
        assert!(p.left.copy.is_some());
        assert!(product("ab", "cd", "acbd").copy.is_some());
        assert!(contraction(&local("ab"), &local("c"), &local("ac")).is_err());
    }
}
