//! Products of factors in FP8 against loops, and those that the library refuses.

use super::*;

/// The number of a code; infinities and NaN of the formats are numbers beyond theirs here, which no test has.
pub(super) fn number(element: MatrixElement, code: u8) -> f64 {
    let (digits, bias) = if element == E4M3 { (3, 7) } else { (2, 15) };
    let (exponent, rest) = (i32::from(code & 0x7f) >> digits, f64::from(code & ((1 << digits) - 1)));
    let unit = f64::from(1 << digits);
    let size = match exponent {
        0 => rest / unit * 2f64.powi(1 - bias),
        _ => (1.0 + rest / unit) * 2f64.powi(exponent - bias),
    };
    if code < 0x80 { size } else { -size }
}

/// Rows, summed elements and columns.
const SIZES: [usize; 3] = [16, 32, 48];

/// What a product has besides its factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Nothing,
    Bias,
    Gelu,
    Added,
}

/// Memory of a product, at multiples of 16 bytes.
struct Memory(Vec<u128>);

impl Memory {
    fn of(bytes: &[u8]) -> Memory {
        let word =
            |part: &[u8]| u128::from_le_bytes(std::array::from_fn(|i| part.get(i).copied().unwrap_or(0)));
        Memory(bytes.chunks(16).map(word).collect())
    }

    fn address(&mut self) -> u64 {
        self.0.as_mut_ptr() as u64
    }

    fn bytes(&self, count: usize) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_le_bytes()).take(count).collect()
    }
}

/// A product of codes of these formats with scales 1/8 and 4: the error of the library, or what it gives and what loops give.
fn product(
    [left, right, out]: [MatrixElement; 3],
    beside: Beside,
    change: impl Fn(&mut Matmul),
) -> Result<[Vec<f64>; 2], MatmulError> {
    let [rows, summed, columns] = SIZES;
    let (x, y, bias) = (noise(3, rows * summed), noise(5, summed * columns), noise(7, rows * columns));
    let mut places =
        [stored(left, &x), stored(right, &y), stored(out, &bias)].map(|bytes| Memory::of(&bytes));
    let mut made = Memory::of(&stored(out, &vec![3.0; rows * columns]));
    let mut scales = Memory::of(&stored(MatrixElement::F32, &[0.125, 4.0]));
    let [at_left, at_right, at_bias] = [0, 1, 2].map(|k: usize| places[k].address());
    let matrix = |address, element, shape: [usize; 2], strides: [usize; 2]| {
        matrix_of(address, element, &shape, &strides).unwrap().0
    };
    let at_scales = scales.address();
    let (bias_at, then) = match beside {
        Beside::Bias => (Some(at_bias), Follows::Relu),
        Beside::Gelu => (None, Follows::GeluTanh),
        _ => (None, Follows::Nothing),
    };
    let mut product = Matmul {
        left: matrix(at_left, left, [rows, summed], [summed, 1]),
        right: matrix(at_right, right, [summed, columns], [1, summed]),
        out: matrix(made.address(), out, [rows, columns], [columns, 1]),
        batches: 1,
        sums: Sums::Exact,
        epilogue: Epilogue { bias: bias_at, then, apart: 0 },
        adds: (beside == Beside::Added).then_some(at_bias),
        scales: Some([at_scales, at_scales + 4]),
    };
    change(&mut product);
    let mut room = Memory(vec![0; 512]);
    let workspace = Workspace { address: room.address(), bytes: 8192 };
    #[expect(
        unsafe_code,
        reason = "memory of this function: without a stream the stand-in computes at once"
    )]
    // SAFETY: as said.
    unsafe { products().multiply(&product, workspace, std::ptr::null_mut(), &KernelChoices::default()) }?;
    let gelu =
        |x: f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh());
    let expected = (0..rows * columns).map(|at| {
        let (i, j) = (at / columns, at % columns);
        let sum: f64 = (0..summed).map(|k| x[i * summed + k] * y[j * summed + k]).sum::<f64>() * 0.5;
        match beside {
            Beside::Nothing => sum,
            Beside::Bias => (sum + bias[j]).max(0.0),
            Beside::Gelu => gelu(sum),
            Beside::Added => sum + bias[at],
        }
    });
    Ok([loaded(out, &made.bytes(rows * columns * out.bytes())), expected.collect()])
}

const E4M3: MatrixElement = MatrixElement::E4M3;
const E5M2: MatrixElement = MatrixElement::E5M2;
const BF16: MatrixElement = MatrixElement::BF16;
const F32: MatrixElement = MatrixElement::F32;

/// Each pair of formats, both types of results, a bias of the half type, a function, a value that is added; each factor has its
/// own scale.
#[test]
fn products_of_codes_equal_loops() {
    let cases = [
        ([E4M3, E4M3, BF16], Beside::Nothing),
        ([E4M3, E5M2, BF16], Beside::Nothing),
        ([E5M2, E4M3, F32], Beside::Nothing),
        ([E4M3, E4M3, BF16], Beside::Bias),
        ([E4M3, E4M3, BF16], Beside::Gelu),
        ([E4M3, E5M2, F32], Beside::Added),
    ];
    for (types, beside) in cases {
        let [made, expected] = product(types, beside, |_| {}).unwrap();
        for (a, b) in made.iter().zip(&expected) {
            // Results of bf16 are rounded.
            let bound = if types[2] == BF16 { 1.0 / 128.0 } else { 1e-6 };
            assert!((a - b).abs() <= bound * b.abs().max(1e-3), "{types:?} {beside:?}: {a} {b}");
        }
    }
}

/// What no product of codes is: this crate says so before the library is asked.
#[test]
fn a_product_of_codes_has_scales_and_an_order() {
    let is_none = |types, change: &dyn Fn(&mut Matmul)| {
        let done = product(types, Beside::Nothing, change);
        assert!(matches!(done, Err(MatmulError::Shapes(_))), "{types:?}: {done:?}");
    };
    is_none([E5M2, E5M2, BF16], &|_| {});
    is_none([E4M3, BF16, BF16], &|_| {});
    is_none([E4M3, E4M3, E4M3], &|_| {});
    is_none([E4M3, E4M3, BF16], &|p| p.scales = None);
    is_none([E4M3, E4M3, BF16], &|p| (p.right.order, p.right.leading) = (Order::Rows, SIZES[2]));
    is_none([E4M3, E4M3, BF16], &|p| (p.left.order, p.left.leading) = (Order::Columns, SIZES[0]));
}

/// The library refuses extents, strides and addresses that are no multiples of 16 bytes, a bias of `f32`, and sums of factors.
#[test]
fn the_library_refuses_what_its_kernels_do_not_read() {
    let refused = |types, beside, change: &dyn Fn(&mut Matmul)| {
        let done = product(types, beside, change);
        assert!(
            matches!(done, Err(MatmulError::NoKernel(_) | MatmulError::Call { .. })),
            "{types:?}: {done:?}"
        );
    };
    let types = [E4M3, E4M3, BF16];
    refused(types, Beside::Nothing, &|p| (p.left.columns, p.right.rows) = (24, 24));
    refused(types, Beside::Nothing, &|p| (p.right.columns, p.out.columns) = (44, 44));
    refused(types, Beside::Nothing, &|p| (p.left.leading, p.left.rows, p.out.rows) = (40, 8, 8));
    refused(types, Beside::Nothing, &|p| p.left.address += 8);
    refused([E4M3, E4M3, F32], Beside::Bias, &|_| {});
    refused(types, Beside::Nothing, &|p| p.epilogue.then = Follows::RightSums(p.out.address));
}
