//! Products against loops, through the stand-in for cuBLASLt.

mod batches;
mod fp8;
mod parts;

use super::*;
use crate::built;
use crate::load::Paths;
use std::cell::Cell;

fn products() -> MatmulLibrary {
    let paths = Paths::all(built::library());
    let cuda = libloading::Library::new;
    #[expect(unsafe_code, reason = "our own library, without initializers; the function has that type")]
    // SAFETY: as said.
    unsafe {
        let opened = std::mem::ManuallyDrop::new(cuda(built::library()).unwrap());
        opened.get::<extern "C" fn()>(b"fakeTakesHostMemory").unwrap()();
    }
    MatmulLibrary::open(&paths).unwrap()
}

/// Numbers that each type holds exactly, and whose sums of products `f32` does.
fn noise(seed: u64, n: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % 17) as f64 - 8.0
    };
    (0..n).map(|_| next() / 4.0).collect()
}

/// Elements in the bytes of a type.
fn stored(element: MatrixElement, values: &[f64]) -> Vec<u8> {
    let one = |x: &f64| match element {
        MatrixElement::F64 => x.to_le_bytes().to_vec(),
        MatrixElement::F32 => (*x as f32).to_le_bytes().to_vec(),
        MatrixElement::BF16 => ((*x as f32).to_bits() >> 16).to_le_bytes()[..2].to_vec(),
        // Quarters below 1024 have their bits in the first eleven.
        MatrixElement::F16 => {
            let bits = (*x as f32).to_bits();
            let exponent = ((bits >> 23 & 255) as i32 - 112).max(0) as u32;
            let half = if *x == 0.0 { 0 } else { bits >> 16 & 0x8000 | exponent << 10 | bits >> 13 & 1023 };
            half.to_le_bytes()[..2].to_vec()
        }
        MatrixElement::E4M3 | MatrixElement::E5M2 => {
            vec![(0..=u8::MAX).find(|code| fp8::number(element, *code) == *x).unwrap()]
        }
    };
    values.iter().flat_map(one).collect()
}

fn loaded(element: MatrixElement, bytes: &[u8]) -> Vec<f64> {
    let wide = |c: &[u8]| u32::from(c[0]) << 16 | u32::from(c[1]) << 24;
    match element {
        MatrixElement::F64 => bytes.chunks(8).map(|c| f64::from_le_bytes(c.try_into().unwrap())).collect(),
        MatrixElement::F32 => {
            bytes.chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap()).into()).collect()
        }
        MatrixElement::BF16 => bytes.chunks(2).map(|c| f32::from_bits(wide(c)).into()).collect(),
        MatrixElement::F16 => {
            let one = |c: &[u8]| {
                let half = u32::from(u16::from_le_bytes([c[0], c[1]]));
                let exponent = if half & 0x7c00 == 0 { 0 } else { (half >> 10 & 31) + 112 };
                f32::from_bits((half & 0x8000) << 16 | exponent << 23 | (half & 1023) << 13).into()
            };
            bytes.chunks(2).map(one).collect()
        }
        MatrixElement::E4M3 | MatrixElement::E5M2 => {
            bytes.iter().map(|code| fp8::number(element, *code)).collect()
        }
    }
}

/// The strides of a tensor whose dims lie in memory in the order `order`, the last one densest, with a gap of `gap` elements
/// after the densest, and the room that it takes.
fn strides(shape: &[usize], order: &[usize], gap: usize) -> (Vec<usize>, usize) {
    let mut strides = vec![0; shape.len()];
    let mut step = 1;
    for (n, dim) in order.iter().rev().enumerate() {
        strides[*dim] = step;
        step *= shape[*dim];
        if n == 0 {
            step += gap;
        }
    }
    (strides, step)
}

fn offset(index: &[usize], strides: &[usize]) -> usize {
    index.iter().zip(strides).map(|(i, s)| i * s).sum()
}

/// One case: shapes, how the factors lie, types, and what follows.
#[derive(Clone, Copy, Debug)]
struct Case {
    batches: usize,
    sizes: [usize; 3],
    /// Whether left and right lie by columns.
    columns: [bool; 2],
    gap: usize,
    element: MatrixElement,
    out: MatrixElement,
    bias: bool,
    relu: bool,
    shared: bool,
}

fn run(products: &mut MatmulLibrary, case: Case, choices: &KernelChoices) -> (Matmul, Vec<f64>, Vec<f64>) {
    let [rows, summed, columns] = case.sizes;
    let order = |by_columns: bool| if by_columns { [0, 2, 1] } else { [0, 1, 2] };
    let (left_shape, right_shape) = ([case.batches, rows, summed], [case.batches, summed, columns]);
    let (left_strides, left_room) = strides(&left_shape, &order(case.columns[0]), case.gap);
    let (mut right_strides, right_room) = strides(&right_shape, &order(case.columns[1]), case.gap);
    if case.shared {
        right_strides[0] = 0;
    }
    let (x, y) = (noise(3, left_room), noise(5, right_room));
    let bias = noise(7, columns);
    let mut expected = vec![0.0; case.batches * rows * columns];
    for b in 0..case.batches {
        for i in 0..rows {
            for j in 0..columns {
                let term = |k| x[offset(&[b, i, k], &left_strides)] * y[offset(&[b, k, j], &right_strides)];
                let mut sum: f64 = (0..summed).map(term).sum();
                if case.bias {
                    sum += bias[j];
                }
                expected[(b * rows + i) * columns + j] = if case.relu { sum.max(0.0) } else { sum };
            }
        }
    }
    let [left, right] = [&x, &y].map(|v| stored(case.element, v));
    let bias = stored(case.out, &bias);
    let mut out = stored(case.out, &vec![f64::MAX.min(3.0); expected.len()]);
    let (left_matrix, batches) =
        matrix_of(left.as_ptr() as u64, case.element, &left_shape, &left_strides).unwrap();
    let (right_matrix, _) =
        matrix_of(right.as_ptr() as u64, case.element, &right_shape, &right_strides).unwrap();
    let out_shape = [case.batches, rows, columns];
    let (out_strides, _) = strides(&out_shape, &[0, 1, 2], 0);
    let (out_matrix, _) = matrix_of(out.as_mut_ptr() as u64, case.out, &out_shape, &out_strides).unwrap();
    let product = Matmul {
        left: left_matrix,
        right: right_matrix,
        out: out_matrix,
        batches,
        sums: Sums::Exact,
        adds: None,
        scales: None,
        epilogue: Epilogue {
            bias: case.bias.then_some(bias.as_ptr() as u64),
            then: if case.relu { Follows::Relu } else { Follows::Nothing },
            apart: 0,
        },
    };
    let mut room = vec![0u64; 1024];
    let workspace = Workspace { address: room.as_mut_ptr() as u64, bytes: 8192 };
    #[expect(
        unsafe_code,
        reason = "memory of this function, which waits: without a stream the stand-in does so at once"
    )]
    // SAFETY: as said.
    unsafe { products.multiply(&product, workspace, std::ptr::null_mut(), choices) }.unwrap();
    (product, expected, loaded(case.out, &out))
}

/// Both orders of each factor, gaps, one row or column, batches, a factor that all batches share, each type, and what follows.
#[test]
fn products_equal_loops() {
    let mut products = products();
    let mut seen = 0;
    let types = [
        (MatrixElement::F64, MatrixElement::F64),
        (MatrixElement::F32, MatrixElement::F32),
        (MatrixElement::BF16, MatrixElement::F32),
        (MatrixElement::BF16, MatrixElement::BF16),
        (MatrixElement::F16, MatrixElement::F32),
        (MatrixElement::F16, MatrixElement::F16),
    ];
    for (element, out) in types {
        for sizes in [[3, 4, 5], [1, 6, 3], [4, 1, 2], [2, 5, 1], [1, 1, 1]] {
            for n in 0..32 {
                let bit = |b: usize| n >> b & 1 == 1;
                let case = Case {
                    batches: if bit(0) { 3 } else { 1 },
                    sizes,
                    columns: [bit(1), bit(2)],
                    gap: if bit(3) { 2 } else { 0 },
                    element,
                    out,
                    bias: bit(4),
                    relu: bit(3) != bit(4),
                    shared: bit(2) && bit(0),
                };
                let (_, expected, made) = run(&mut products, case, &KernelChoices::default());
                // Of bf16 with eight bits the sums are rounded; all else is exact.
                let bound = if out == MatrixElement::BF16 { 1.0 / 256.0 } else { 0.0 };
                for (a, b) in expected.iter().zip(&made) {
                    assert!((a - b).abs() <= bound * a.abs(), "{case:?}: {expected:?} {made:?}");
                }
                seen += 1;
            }
        }
    }
    assert_eq!(seen, 6 * 5 * 32);
}

/// What no matrix says is not taken for one: rows that repeat, steps in both directions, batches that do not go on.
#[test]
fn what_has_to_be_copied_is_told() {
    let matrix = |shape: &[usize], strides: &[usize]| matrix_of(256, MatrixElement::F32, shape, strides);
    assert_eq!(matrix(&[4, 5], &[0, 1]), None);
    assert_eq!(matrix(&[4, 5], &[1, 0]), None);
    assert_eq!(matrix(&[4, 5], &[10, 2]), None);
    assert_eq!(matrix(&[4, 5], &[4, 1]), None, "rows that overlap");
    assert_eq!(matrix(&[2, 3, 4, 5], &[20, 40, 5, 1]), None, "batches in another order");
    assert_eq!(matrix(&[5], &[1]), None);
    let (found, batches) = matrix(&[2, 3, 4, 5], &[90, 30, 6, 1]).unwrap();
    assert_eq!((batches, found.batch_stride, found.leading, found.order), (6, 30, 6, Order::Rows));
    let (found, batches) = matrix(&[2, 1, 3, 4, 5], &[0, 7, 0, 1, 9]).unwrap();
    assert_eq!((batches, found.batch_stride, found.leading, found.order), (6, 0, 9, Order::Columns));
}

const CASE: Case = Case {
    batches: 2,
    sizes: [3, 4, 5],
    columns: [false, true],
    gap: 0,
    element: MatrixElement::F32,
    out: MatrixElement::F32,
    bias: true,
    relu: true,
    shared: false,
};

/// The fastest of the proposals is found, kept in a file, and used by who reads it.
#[test]
fn choices_are_measured_and_kept() {
    let mut products = products();
    let (product, _, _) = run(&mut products, CASE, &KernelChoices::default());
    let mut room = vec![0u64; 1024];
    let workspace = Workspace { address: room.as_mut_ptr() as u64, bytes: 8192 };
    let all = products.proposals(&product, workspace.bytes, 8).unwrap();
    assert_eq!(all.len(), 3);
    // The matrices of `run` are gone: of others of the same shape.
    let (left, right) = (vec![1.0f32; 24], vec![1.0f32; 40]);
    let (bias, mut out) = (vec![0.0f32; 5], vec![0.0f32; 30]);
    let at = |m: Matrix, address: u64| Matrix { address, ..m };
    let product = Matmul {
        left: at(product.left, left.as_ptr() as u64),
        right: at(product.right, right.as_ptr() as u64),
        out: at(product.out, out.as_mut_ptr() as u64),
        epilogue: Epilogue { bias: Some(bias.as_ptr() as u64), then: Follows::Relu, apart: 0 },
        ..product
    };
    let waits = Cell::new(0);
    let wait = || {
        waits.set(waits.get() + 1);
        Ok(())
    };
    #[expect(unsafe_code, reason = "memory of this function")]
    // SAFETY: as said.
    let (best, time) = unsafe { products.fastest(&product, workspace, std::ptr::null_mut(), wait) }.unwrap();
    assert!(all.contains(&best) && time.as_nanos() > 0 && waits.get() >= 6, "{best:?} {time:?} {waits:?}");
    assert!(out.iter().all(|x| *x == 4.0), "{out:?}");

    let key = MatmulKey::of(&product, workspace.bytes).unwrap();
    let mut choices = KernelChoices::default();
    choices.set(&key, all[2]);
    let folder = std::env::temp_dir().join(format!("meshwright-choices-{}", std::process::id()));
    let file = folder.join("deeper").join("products.txt");
    assert!(KernelChoices::load(&file).unwrap().is_empty());
    choices.save(&file).unwrap();
    std::fs::write(&file, format!("{}no such line\nkey\tnot hex\n", choices.to_text())).unwrap();
    let kept = KernelChoices::load(&file).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!((kept.of(&key), kept.len()), (Some(all[2]), 1));
    // What was kept of another product is refused, and measured again.
    let of = |algorithm| {
        let mut choices = KernelChoices::default();
        choices.set(&key, algorithm);
        choices.to_text()
    };
    let mut tuned = TunedMatmuls::open(&Paths::all(built::library()), "a GPU").unwrap();
    let name = tuned.proposed().0;
    tuned.choose(&[(name.clone(), of(Algorithm::default()))]);
    let mut multiply = |tuned: &mut TunedMatmuls| {
        out.fill(0.0);
        #[expect(unsafe_code, reason = "memory of this function")]
        // SAFETY: as said.
        unsafe { tuned.multiply(&product, (workspace, None), std::ptr::null_mut(), || Ok(())) }.unwrap();
        assert!(out.iter().all(|x| *x == 4.0), "{out:?}");
    };
    multiply(&mut tuned);
    assert_eq!(tuned.proposed().1, of(Algorithm::default()));
    tuned.measure(true);
    multiply(&mut tuned);
    let (_, text) = tuned.proposed();
    assert!(all.iter().any(|a| of(*a) == text), "{text}");
    let sure = of(all[1]);
    tuned.choose(&[(name, sure.clone())]);
    multiply(&mut tuned);
    assert_eq!(tuned.proposed().1, sure, "what was agreed on is measured again");
}

/// Shapes that do not fit, and a library that is not there, are errors that say what.
#[test]
fn what_cannot_be_is_an_error() {
    let mut products = products();
    let (product, _, _) = run(&mut products, CASE, &KernelChoices::default());
    let wrong = Matmul { left: Matrix { columns: 3, ..product.left }, ..product };
    let e = products.proposals(&wrong, 0, 1).unwrap_err();
    assert!(
        e.to_string().starts_with("a product of f32 [3 3]/4 x [4 5]'/4 -> f32 [3 5]/5, 2 batches (12 20 15)"),
        "{e}"
    );
    let narrow = Matmul { left: Matrix { leading: 2, ..product.left }, ..product };
    let e = products.proposals(&narrow, 0, 1).unwrap_err();
    assert!(e.to_string().starts_with("cuBLASLt has no kernel for a product of f32 [3 4]/2 x"), "{e}");
    let paths = Paths { cublas_lt: Some("/nowhere/libcublasLt.so".into()), ..Paths::default() };
    let Err(e) = MatmulLibrary::open(&paths) else { panic!("nothing is there") };
    assert!(e.to_string().contains("cuBLASLt was not found: tried /nowhere/libcublasLt.so"), "{e}");
    assert!(e.to_string().contains("MESHWRIGHT_CUBLASLT"), "{e}");
}

/// A product of `[5, 3]` and `[3, 4]`, of which the left lies by columns, with an epilogue.
fn with(products: &mut MatmulLibrary, then: Follows, biased: bool) -> Vec<f64> {
    with_columns(4, products, then, biased)
}

fn with_columns(columns: usize, products: &mut MatmulLibrary, then: Follows, biased: bool) -> Vec<f64> {
    let (x, y, bias) = (noise(3, 15), noise(5, 3 * columns), noise(7, columns));
    let [left, right, bias] = [&x, &y, &bias].map(|v| stored(MatrixElement::F32, v));
    let mut out = stored(MatrixElement::F32, &vec![9.0; 5 * columns]);
    let matrix = |address, shape: &[usize], strides: &[usize]| {
        matrix_of(address, MatrixElement::F32, shape, strides).unwrap().0
    };
    let product = Matmul {
        left: matrix(left.as_ptr() as u64, &[5, 3], &[1, 5]),
        right: matrix(right.as_ptr() as u64, &[3, columns], &[columns, 1]),
        out: matrix(out.as_mut_ptr() as u64, &[5, columns], &[columns, 1]),
        batches: 1,
        sums: Sums::Exact,
        adds: None,
        scales: None,
        epilogue: Epilogue { bias: biased.then_some(bias.as_ptr() as u64), then, apart: 0 },
    };
    let mut room = vec![0u64; 1024];
    let workspace = Workspace { address: room.as_mut_ptr() as u64, bytes: 8192 };
    let choices = KernelChoices::default();
    #[expect(unsafe_code, reason = "memory of this function and its caller, as in `run`")]
    // SAFETY: as said.
    unsafe { products.multiply(&product, workspace, std::ptr::null_mut(), &choices) }.unwrap();
    loaded(MatrixElement::F32, &out)
}

/// `relu` with bits and what they let through in its gradient, `gelu`, and the sums of factors.
#[test]
fn epilogues_equal_loops() {
    let mut products = products();
    let [plain, biased] = [false, true].map(|biased| with(&mut products, Follows::Nothing, biased));
    let mut room = [u128::MAX; 5];
    let bits = Bits::of(room.as_mut_ptr() as u64, 4);
    assert_eq!((bits.leading, bits.bytes(5)), (128, 80));
    let kept = with(&mut products, Follows::ReluKeeping(bits), true);
    assert_eq!(kept, biased.iter().map(|x| x.max(0.0)).collect::<Vec<_>>());
    assert!(kept.contains(&0.0) && kept.iter().any(|x| *x > 0.0), "{kept:?}");
    let through = with(&mut products, Follows::ReluGrad(bits), false);
    let expected = plain.iter().zip(&biased).map(|(x, y)| if *y > 0.0 { *x } else { 0.0 });
    assert_eq!(through, expected.collect::<Vec<_>>());
    let gelu =
        |x: &f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh());
    for (made, expected) in with(&mut products, Follows::GeluTanh, true).iter().zip(biased.iter().map(gelu)) {
        assert!((made - expected).abs() < 1e-6, "{made} {expected}");
    }
    let mut kept = stored(MatrixElement::F32, &[0.0; 40]);
    let keeping = Follows::GeluTanhKeeping(kept.as_mut_ptr() as u64);
    let made = with_columns(8, &mut products, keeping, true);
    assert_eq!(loaded(MatrixElement::F32, &kept), with_columns(8, &mut products, Follows::Nothing, true));
    assert_eq!(made, with_columns(8, &mut products, Follows::GeluTanh, true));
    let (plain_rows, operand) = (with_columns(8, &mut products, Follows::Nothing, false), noise(11, 40));
    let beside = stored(MatrixElement::F32, &operand);
    let made = with_columns(8, &mut products, Follows::GeluTanhGrad(beside.as_ptr() as u64), false);
    for ((made, product), x) in made.iter().zip(&plain_rows).zip(&operand) {
        // By a difference of the function itself.
        let slope = (gelu(&(x + 1e-4)) - gelu(&(x - 1e-4))) / 2e-4;
        assert!((made - product * slope).abs() < 1e-5, "{made} {product} {slope}");
    }
    let mut sums = [0f32; 5];
    let at = sums.as_mut_ptr() as u64;
    assert_eq!(with(&mut products, Follows::RightSums(at), false), plain);
    let y = noise(5, 12);
    let column = |j: usize| (0..3).map(|k| y[k * 4 + j] as f32).sum();
    assert_eq!(sums, [column(0), column(1), column(2), column(3), 0.0]);
    assert_eq!(with(&mut products, Follows::LeftSums(at), false), plain);
    let x = noise(3, 15);
    assert_eq!(sums, [0, 1, 2, 3, 4].map(|i| (0..3).map(|k| x[k * 5 + i] as f32).sum::<f32>()));
}

/// A gradient has no bias, and bits have room for whole rows.
#[test]
fn an_epilogue_that_is_none_is_an_error() {
    let mut products = products();
    let (product, _, _) = run(&mut products, Case { batches: 1, ..CASE }, &KernelChoices::default());
    let asked = |bias, then| Matmul { epilogue: Epilogue { bias, then, apart: 0 }, ..product };
    let bits = Bits::of(1024, 5);
    for wrong in [
        asked(Some(1024), Follows::ReluGrad(bits)),
        asked(Some(1024), Follows::RightSums(1024)),
        asked(None, Follows::GeluTanhGrad(1024)),
        asked(None, Follows::GeluTanhKeeping(1024)),
        asked(None, Follows::ReluKeeping(Bits { leading: 5, ..bits })),
        Matmul { batches: 2, ..asked(None, Follows::ReluGrad(bits)) },
    ] {
        assert!(matches!(products.proposals(&wrong, 0, 1), Err(MatmulError::Shapes(_))), "{wrong:?}");
    }
    assert_eq!(products.proposals(&asked(None, Follows::ReluGrad(bits)), 0, 1).unwrap().len(), 1);
}
