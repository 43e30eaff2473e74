//! A large matmul as several fast ones: the kernels of a Hopper GPU require starts, strides and extents that are
//! multiples of 16 bytes, and other kernels take twice as long and more (NVIDIA, *Matrix Multiplication Background*,
//! "Tensor Core Requirements"; an H200 showed it for a vocabulary of 50,257 words). So another extent is cut at such a
//! multiple, and the few rows, columns or terms that are left are a matmul of their own.

use super::matmul::{Bits, Epilogue, Follows, Matmul};
use super::matrix::{Matrix, Order};

/// Alignment of addresses, strides and extents for fast kernels, in bytes.
const ALIGNED: usize = 16;

/// Multiplications from which a matmul is cut. Such a matmul takes a GPU some 10 microseconds, and the rest, which is
/// one more launch, a few.
pub const LARGE_PRODUCT: f64 = 2e9;

/// Multiplications of each matrix element from which a copy pays: a copy reads and writes four bytes, in which time a
/// GPU does some 100 multiplications on tensor cores, and slow kernels take twice as long as fast ones.
const OFTEN: f64 = 512.0;

/// The extent of a matmul that is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CutAlong {
    Rows,
    Columns,
}

impl Matrix {
    /// Elements per alignment unit of fast kernels.
    fn unit(&self) -> usize {
        ALIGNED / self.element.bytes()
    }

    /// Whether each of its rows, or columns, begins at the alignment of fast kernels.
    fn begins_aligned(&self) -> bool {
        let steps = [self.leading, self.batch_stride];
        self.address.is_multiple_of(ALIGNED as u64) && steps.iter().all(|n| n.is_multiple_of(self.unit()))
    }

    /// Bytes from its first element to the end of its last row, or column, with the gaps after each.
    pub fn bytes_with_gaps(&self, batches: usize) -> u64 {
        let lines = if self.order == Order::Rows { self.rows } else { self.columns };
        let before = (batches - 1) * self.batch_stride;
        ((before + lines * self.leading) * self.element.bytes()) as u64
    }

    /// The matrix, with gaps between its rows, or columns, that nothing else uses.
    pub fn with_own_gaps(self) -> Matrix {
        let extent = if self.order == Order::Rows { self.columns } else { self.rows };
        Matrix { spare: self.leading.saturating_sub(extent), ..self }
    }

    /// Whether a matmul of this size is faster with an aligned copy of the matrix: its rows are not aligned, and each
    /// element is multiplied so often that the copy costs little.
    pub fn is_worth_a_copy(&self, batches: usize, multiplications: f64) -> bool {
        let elements = (self.rows * self.columns * batches) as f64;
        let lines = if self.order == Order::Rows { self.rows } else { self.columns };
        lines > 1
            && !self.begins_aligned()
            && multiplications >= LARGE_PRODUCT
            && multiplications >= OFTEN * elements
    }

    /// The same of a factor. Of wider types than half ones factors are multiplied by kernels that gain little.
    pub fn is_better_copied(&self, batches: usize, multiplications: f64) -> bool {
        self.element.is_half() && self.is_worth_a_copy(batches, multiplications)
    }

    fn bytes_to(&self, row: usize, column: usize) -> u64 {
        let elements = match self.order {
            Order::Rows => row * self.leading + column,
            Order::Columns => column * self.leading + row,
        };
        (elements * self.element.bytes()) as u64
    }

    /// Its first rows, and those after them.
    fn cut_rows(&self, at: usize) -> [Matrix; 2] {
        let after = Matrix { address: self.address + self.bytes_to(at, 0), rows: self.rows - at, ..*self };
        [Matrix { rows: at, spare: 0, ..*self }, after]
    }

    /// Its first columns, and those after them.
    fn cut_columns(&self, at: usize) -> [Matrix; 2] {
        let after =
            Matrix { address: self.address + self.bytes_to(0, at), columns: self.columns - at, ..*self };
        [Matrix { columns: at, spare: 0, ..*self }, after]
    }
}

impl Epilogue {
    /// The epilogue of the part of a matmul from some row or column on. Sums that the part before computes are not
    /// repeated.
    fn from(&self, extent: CutAlong, at: usize, out: &Matrix) -> Epilogue {
        let (row, column) = match extent {
            CutAlong::Rows => (at, 0),
            CutAlong::Columns => (0, at),
        };
        let beside = out.bytes_to(row, column);
        let vector = (at * out.element.bytes()) as u64;
        let moved = |bits: Bits| Bits {
            address: bits.address + ((row * bits.leading + column) / u8::BITS as usize) as u64,
            ..bits
        };
        let then = match (self.then, extent) {
            (Follows::ReluKeeping(bits), _) => Follows::ReluKeeping(moved(bits)),
            (Follows::ReluGrad(bits), _) => Follows::ReluGrad(moved(bits)),
            (Follows::GeluTanhKeeping(at), _) => Follows::GeluTanhKeeping(at + beside),
            (Follows::GeluTanhGrad(at), _) => Follows::GeluTanhGrad(at + beside),
            (Follows::RightSums(at), CutAlong::Columns) => Follows::RightSums(at + vector),
            (Follows::LeftSums(at), CutAlong::Rows) => Follows::LeftSums(at + vector),
            (Follows::RightSums(_) | Follows::LeftSums(_), _) => Follows::Nothing,
            (Follows::Nothing | Follows::Relu | Follows::GeluTanh, _) => self.then,
        };
        let of_columns = if extent == CutAlong::Columns { vector } else { 0 };
        Epilogue { bias: self.bias.map(|at| at + of_columns), then, ..*self }
    }

    fn sums(&self) -> bool {
        matches!(self.then, Follows::RightSums(_) | Follows::LeftSums(_))
    }
}

impl Matmul {
    /// Number of multiplied pairs of elements.
    pub fn multiplications(&self) -> f64 {
        [self.out.rows, self.out.columns, self.left.columns, self.batches].iter().map(|n| *n as f64).product()
    }

    /// Alignment units of its rows, columns and terms; 1 for a dim that is contiguous in no matrix.
    fn units(&self) -> [usize; 3] {
        let (left, right, out) = (&self.left, &self.right, &self.out);
        let [mut rows, mut columns, mut terms] = [1, out.unit(), 1];
        match left.order {
            Order::Rows => terms = left.unit(),
            Order::Columns => rows = left.unit(),
        }
        match right.order {
            Order::Rows => columns = columns.max(right.unit()),
            Order::Columns => terms = terms.max(right.unit()),
        }
        if let Follows::ReluKeeping(_) | Follows::ReluGrad(_) = self.epilogue.then {
            // Bits have an order of the library's own, in blocks that are cut nowhere.
            (rows, columns) = (rows.max(Bits::UNIT), columns.max(Bits::UNIT));
        }
        [rows, columns, terms]
    }

    fn begins_aligned(&self) -> bool {
        let added = Matrix { address: self.adds.unwrap_or(0), ..self.out };
        [&self.left, &self.right, &self.out, &added].iter().all(|m| m.begins_aligned())
    }

    /// Whether fast kernels take it without a cut.
    pub fn is_aligned(&self) -> bool {
        let extents = [self.out.rows, self.out.columns, self.left.columns];
        let (Follows::ReluKeeping(_) | Follows::ReluGrad(_)) = self.epilogue.then else {
            return self.begins_aligned()
                && extents.iter().zip(self.units()).all(|(n, unit)| n.is_multiple_of(unit));
        };
        let plain = Matmul { epilogue: Epilogue::default(), ..*self };
        plain.is_aligned()
    }

    /// Matmuls that together are this one, in their order: itself, if it is smaller than `large`, is aligned, or
    /// cutting makes no part fast. If terms of the sum are split, the first part stores its sum in `out`, and the last
    /// adds its own.
    pub fn parts(&self, large: f64) -> Vec<Matmul> {
        if self.multiplications() < large || self.is_aligned() || !self.begins_aligned() {
            return vec![*self];
        }
        let [rows, columns, terms] = self.units();
        let (mut main, mut parts) = (self.with_spare_columns(columns), vec![]);
        for (extent, unit) in [(CutAlong::Rows, rows), (CutAlong::Columns, columns)] {
            if let Some([first, rest]) = main.cut(extent, unit) {
                main = first;
                parts.push(rest);
            }
        }
        if let Some([first, rest]) = main.cut_sum(terms) {
            main = first;
            parts.push(rest);
        }
        parts.push(main);
        parts
    }

    /// The matmul with padding columns, if each row has room for them.
    fn with_spare_columns(&self, unit: usize) -> Matmul {
        let more = self.out.columns.next_multiple_of(unit) - self.out.columns;
        let has = |m: &Matrix| m.order == Order::Rows && m.spare >= more;
        let Epilogue { bias, then, .. } = self.epilogue;
        let is_by_elements =
            matches!(then, Follows::Nothing | Follows::Relu | Follows::GeluTanh | Follows::LeftSums(_));
        if !has(&self.right) || !has(&self.out) || bias.is_some() || !is_by_elements {
            return *self;
        }
        let wider = |m: &Matrix| Matrix { columns: m.columns + more, spare: m.spare - more, ..*m };
        Matmul { right: wider(&self.right), out: wider(&self.out), ..*self }
    }

    fn cut(&self, extent: CutAlong, unit: usize) -> Option<[Matmul; 2]> {
        let (factor, all) = match extent {
            CutAlong::Rows => (&self.left, self.out.rows),
            CutAlong::Columns => (&self.right, self.out.columns),
        };
        let at = all - all % unit;
        if at == 0 || at == all {
            return None;
        }
        let cut = |m: &Matrix| match extent {
            CutAlong::Rows => m.cut_rows(at),
            CutAlong::Columns => m.cut_columns(at),
        };
        let ([before, after], [out, rest]) = (cut(factor), cut(&self.out));
        let with = |factor, out: Matrix, epilogue| {
            let adds = self.adds.map(|address| address + (out.address - self.out.address));
            match extent {
                CutAlong::Rows => Matmul { left: factor, out, epilogue, adds, ..*self },
                CutAlong::Columns => Matmul { right: factor, out, epilogue, adds, ..*self },
            }
        };
        let epilogue = self.epilogue.from(extent, at, &self.out);
        Some([with(before, out, self.epilogue), with(after, rest, epilogue)])
    }

    /// The first terms, added to the few others: rounding those first is as one more rounding of a factor.
    fn cut_sum(&self, unit: usize) -> Option<[Matmul; 2]> {
        let at = self.left.columns - self.left.columns % unit;
        if at == 0 || at == self.left.columns || self.epilogue.sums() {
            return None;
        }
        let ([left, rest_left], [right, rest_right]) = (self.left.cut_columns(at), self.right.cut_rows(at));
        let rest = Matmul { left: rest_left, right: rest_right, epilogue: Epilogue::default(), ..*self };
        Some([Matmul { left, right, adds: Some(self.out.address), ..*self }, rest])
    }
}
