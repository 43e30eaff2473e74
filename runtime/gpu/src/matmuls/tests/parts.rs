//! Products of any extents, in parts, added to something or not.

use super::super::*;
use super::{loaded, noise, products, stored};
use crate::built;
use crate::load::Paths;

/// How many multiplications the stand-in has done that Hopper's kernels refuse, and how many in all.
fn multiplications() -> [u64; 2] {
    #[expect(unsafe_code, reason = "our own library; the function has that type")]
    // SAFETY: as said.
    unsafe {
        let opened = std::mem::ManuallyDrop::new(libloading::Library::new(built::library()).unwrap());
        let count = opened.get::<extern "C" fn(bool) -> u64>(b"fakeMultiplications").unwrap();
        [count(true), count(false)]
    }
}

/// A matrix whose rows, or columns, are so many bytes apart that fast kernels take them: its elements, and NaN in between and
/// after them.
struct Spaced {
    matrix: Matrix,
    bytes: Vec<u128>,
    values: Vec<f64>,
}

impl Spaced {
    fn new(element: MatrixElement, [rows, columns]: [usize; 2], order: Order, seed: u64) -> Spaced {
        let values = noise(seed, rows * columns);
        let (many, extent) = if order == Order::Rows { (rows, columns) } else { (columns, rows) };
        let leading = extent.next_multiple_of(16 / element.bytes());
        let at = |line: usize, i: usize| match order {
            Order::Rows => values[line * columns + i],
            Order::Columns => values[i * columns + line],
        };
        let padded = (0..many * leading).map(|n| match (n / leading, n % leading) {
            (line, i) if i < extent => at(line, i),
            _ => f64::NAN,
        });
        let stored = stored(element, &padded.collect::<Vec<_>>());
        let mut bytes = vec![0u128; stored.len().div_ceil(16)];
        bytemuck_copy(&mut bytes, &stored);
        let address = bytes.as_ptr() as u64;
        let (batch_stride, spare) = (0, leading - extent);
        let matrix = Matrix { address, element, rows, columns, order, leading, batch_stride, spare };
        Spaced { matrix, bytes, values }
    }

    fn loaded(&self) -> Vec<f64> {
        let bytes: Vec<u8> = self.bytes.iter().flat_map(|word| word.to_le_bytes()).collect();
        let all = loaded(self.matrix.element, &bytes);
        let rows = all.chunks(self.matrix.leading).take(self.matrix.rows);
        rows.flat_map(|row| row[..self.matrix.columns].to_vec()).collect()
    }
}

fn bytemuck_copy(to: &mut [u128], from: &[u8]) {
    for (word, bytes) in to.iter_mut().zip(from.chunks(16)) {
        let mut whole = [0; 16];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u128::from_le_bytes(whole);
    }
}

/// Products of any extents, added to something or not, cut where fast kernels want it, are as loops make them, whatever lies
/// between the rows; where nothing is too narrow for a cut, nearly all multiplications are those of fast kernels.
#[test]
fn products_of_any_extents_are_cut_for_fast_kernels() {
    products();
    let mut tuned = TunedMatmuls::open(&Paths::all(built::library()), "another GPU").unwrap();
    tuned.cut_from(0.0);
    let extents: Vec<usize> = (1..=17).chain([23, 25]).collect();
    let types = [
        (MatrixElement::BF16, MatrixElement::F32),
        (MatrixElement::F32, MatrixElement::F32),
        (MatrixElement::F16, MatrixElement::F16),
        (MatrixElement::F64, MatrixElement::F64),
        (MatrixElement::BF16, MatrixElement::BF16),
    ];
    let orders = [Order::Rows, Order::Columns];
    let mut seen = 0;
    for rows in &extents {
        for columns in &extents {
            for terms in [1, 7, 8, 9, 16, 17, 31] {
                seen += 1;
                let (element, out) = types[seen % types.len()];
                let orders = [orders[seen / 2 % 2], orders[seen / 4 % 2]];
                tuned.measure(seen % 64 == 0);
                let more = (seen % 9, [Adds::Nothing, Adds::Itself, Adds::Beside][seen / 9 % 3]);
                product_in_parts(&mut tuned, [*rows, terms, *columns], orders, (element, out), more);
            }
        }
    }
    assert_eq!(seen, 19 * 19 * 7);
    let [refused, all] = multiplications();
    for sizes in [[63, 33, 49], [32, 32, 57], [57, 32, 32], [32, 57, 32]] {
        for (of, epilogue) in types.iter().zip([0, 1, 2, 4, 5]) {
            product_in_parts(&mut tuned, sizes, [Order::Columns, Order::Rows], *of, (epilogue, Adds::Itself));
            product_in_parts(
                &mut tuned,
                sizes,
                [Order::Rows, Order::Columns],
                *of,
                (epilogue, Adds::Nothing),
            );
        }
    }
    let [refused_after, all_after] = multiplications();
    let (refused, all) = (refused_after - refused, all_after - all);
    assert!(refused * 5 < all, "{refused} of {all} multiplications are not those of fast kernels");
}

/// What a product is added to: nothing, what was in its place, or what is elsewhere.
#[derive(Clone, Copy, Debug)]
enum Adds {
    Nothing,
    Itself,
    Beside,
}

/// One such product, with the epilogue of that number.
fn product_in_parts(
    tuned: &mut TunedMatmuls,
    [rows, terms, columns]: [usize; 3],
    orders: [Order; 2],
    (element, made): (MatrixElement, MatrixElement),
    (epilogue, adds): (usize, Adds),
) {
    let left = Spaced::new(element, [rows, terms], orders[0], 3);
    let right = Spaced::new(element, [terms, columns], orders[1], 5);
    let bias = Spaced::new(made, [1, columns.max(rows)], Order::Rows, 13);
    let [out, beside, beyond, measured] =
        [7, 11, 17, 19].map(|seed| Spaced::new(made, [rows, columns], Order::Rows, seed));
    let (added, value) = match adds {
        Adds::Nothing => (None, vec![0.0; rows * columns]),
        Adds::Itself => (Some(out.matrix.address), out.values.clone()),
        Adds::Beside => (Some(beyond.matrix.address), beyond.values.clone()),
    };
    let bits = vec![0u128; rows * columns.div_ceil(128)];
    let bits = Bits::of(bits.as_ptr() as u64, columns);
    let gelu_fits = out.matrix.leading.is_multiple_of(8);
    let (biased, then) = match epilogue {
        1 => (true, Follows::Nothing),
        2 => (true, Follows::Relu),
        3 => (true, Follows::ReluKeeping(bits)),
        4 => (false, Follows::RightSums(bias.matrix.address)),
        5 => (false, Follows::LeftSums(bias.matrix.address)),
        6 if gelu_fits => (true, Follows::GeluTanhKeeping(beside.matrix.address)),
        7 if gelu_fits => (false, Follows::GeluTanhGrad(beside.matrix.address)),
        8 => (false, Follows::Relu),
        _ => (false, Follows::Nothing),
    };
    let product = Matmul {
        left: left.matrix,
        right: right.matrix,
        out: out.matrix,
        batches: 1,
        sums: Sums::Exact,
        epilogue: Epilogue { bias: biased.then_some(bias.matrix.address), then, apart: 0 },
        adds: added,
        scales: None,
    };
    let case = format!("{rows} x {terms} x {columns} {orders:?} {element} {made} {then:?} {adds:?}");
    let mut room = vec![0u64; 1024];
    let workspace = Workspace { address: room.as_mut_ptr() as u64, bytes: 8192 };
    #[expect(unsafe_code, reason = "memory of this function")]
    // SAFETY: as said.
    unsafe {
        tuned.multiply(&product, (workspace, Some(measured.matrix.address)), std::ptr::null_mut(), || Ok(()))
    }
    .expect(&case);
    let bound = match made {
        MatrixElement::BF16 => 1.0 / 128.0,
        MatrixElement::F16 => 1.0 / 1024.0,
        _ => 1e-6,
    };
    let close = |x: f64, y: f64, of: f64| (x - y).abs() <= bound * of.max(1.0);
    let gelu = |x: f64| 0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044_715 * x * x * x)).tanh());
    let results = out.loaded();
    for i in 0..rows {
        for j in 0..columns {
            let term = |k: usize| left.values[i * terms + k] * right.values[k * columns + j];
            let added = value[i * columns + j];
            let largest = (0..terms).map(|k| term(k).abs()).sum::<f64>() + added.abs();
            let sum = (0..terms).map(term).sum::<f64>() + added + if biased { bias.values[j] } else { 0.0 };
            let slope = |x: f64| (gelu(x + 1e-4) - gelu(x - 1e-4)) / 2e-4;
            let expected = match then {
                Follows::Relu | Follows::ReluKeeping(_) => sum.max(0.0),
                Follows::GeluTanhKeeping(_) => gelu(sum),
                Follows::GeluTanhGrad(_) => sum * slope(beside.values[i * columns + j]),
                _ => sum,
            };
            let found = results[i * columns + j];
            assert!(close(found, expected, largest), "{case}: {found} at {i} {j}, not {expected}");
        }
    }
    let sums = sums_of_factor(then, [&left, &right], [terms, columns]);
    for (found, expected) in bias.loaded().iter().zip(sums) {
        assert!(close(*found, expected, expected.abs() * terms as f64), "{case}: {found} {expected}");
    }
}

/// The sums that an epilogue gives of a factor; none if it gives none.
fn sums_of_factor(then: Follows, [left, right]: [&Spaced; 2], [terms, columns]: [usize; 2]) -> Vec<f64> {
    match then {
        Follows::RightSums(_) => {
            (0..columns).map(|j| (0..terms).map(|k| right.values[k * columns + j]).sum()).collect()
        }
        Follows::LeftSums(_) => left.values.chunks(terms).map(|row| row.iter().sum()).collect(),
        _ => vec![],
    }
}
