//! Products with batches that share a factor, each with its own bias or sums, against loops.

use super::*;

/// Small integers, whose sums of products are exact.
fn numbers(seed: usize, n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7 + seed * 5) % 11) as f32 - 5.0).collect()
}

const BATCHES: usize = 3;
/// Rows, summed elements, columns.
const SIZES: [usize; 3] = [4, 6, 5];
/// Elements from one bias, or one vector of sums, to the next.
const APART: usize = 8;

/// The products of one left factor and three right ones, and what lies at the bias or the sums.
fn computed(sums: bool, apart: usize) -> Result<[Vec<f32>; 2], MatmulError> {
    let [rows, summed, columns] = SIZES;
    let (left, right) = (numbers(1, rows * summed), numbers(2, BATCHES * summed * columns));
    let mut vectors = numbers(3, BATCHES * APART);
    let mut out = vec![9.0f32; BATCHES * rows * columns];
    let matrix = |address: u64, shape: [usize; 3], strides: [usize; 3]| {
        matrix_of(address, MatrixElement::F32, &shape, &strides).unwrap().0
    };
    let vector = vectors.as_mut_ptr() as u64;
    let (bias, then) =
        if sums { (None, Follows::RightSums(vector)) } else { (Some(vector), Follows::Nothing) };
    let product = Matmul {
        left: matrix(left.as_ptr() as u64, [BATCHES, rows, summed], [0, summed, 1]),
        right: matrix(right.as_ptr() as u64, [BATCHES, summed, columns], [summed * columns, columns, 1]),
        out: matrix(out.as_mut_ptr() as u64, [BATCHES, rows, columns], [rows * columns, columns, 1]),
        batches: BATCHES,
        sums: Sums::Exact,
        epilogue: Epilogue { bias, then, apart },
        adds: None,
        scales: None,
    };
    let workspace = Workspace { address: 0, bytes: 0 };
    #[expect(unsafe_code, reason = "memory of this function: without a stream the stand-in computes at once")]
    // SAFETY: as said.
    let done =
        unsafe { products().multiply(&product, workspace, std::ptr::null_mut(), &KernelChoices::default()) };
    done.map(|()| [out, vectors])
}

#[test]
fn each_batch_has_its_own_bias_and_its_own_sums() {
    let [rows, summed, columns] = SIZES;
    let (left, right) = (numbers(1, rows * summed), numbers(2, BATCHES * summed * columns));
    let bias = numbers(3, BATCHES * APART);
    for sums in [false, true] {
        let [out, vectors] = computed(sums, APART).unwrap();
        for n in 0..BATCHES {
            let y = |k: usize, j: usize| right[(n * summed + k) * columns + j];
            for j in 0..columns {
                let added = if sums { 0.0 } else { bias[n * APART + j] };
                for i in 0..rows {
                    let sum: f32 = (0..summed).map(|k| left[i * summed + k] * y(k, j)).sum();
                    assert_eq!(out[(n * rows + i) * columns + j], sum + added, "{sums} {n} {i} {j}");
                }
                let own = if sums { (0..summed).map(|k| y(k, j)).sum() } else { bias[n * APART + j] };
                assert_eq!(vectors[n * APART + j], own, "{sums} {n} {j}");
            }
        }
    }
    // Sums of all batches in one place are none.
    let e = computed(true, 0).unwrap_err();
    assert!(e.to_string().contains("3 batches") && e.to_string().contains("sums of right"), "{e}");
}
