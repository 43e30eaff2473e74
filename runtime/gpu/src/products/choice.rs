//! Which of the ways to compute a product is taken: what was measured to be fastest, kept in a file.

use super::api::Algorithm;
use super::{Epilogue, Matrix, Order, Product, ProductError, Products, Sums, Workspace};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fmt;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// All that the choice of a kernel depends on, but for the GPU and the library.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProductKey {
    /// Of left, right and out.
    matrices: [Place; 3],
    batches: usize,
    sums: Sums,
    bias: bool,
    relu: bool,
    workspace: usize,
}

/// How a matrix lies, wherever that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    matrix: (super::Element, usize, usize, Order, usize, usize),
    alignment: u32,
}

impl Place {
    fn of(m: &Matrix) -> Place {
        Place {
            matrix: (m.element, m.rows, m.columns, m.order, m.leading, m.batch_stride),
            alignment: alignment(m.address),
        }
    }
}

/// Of which power of two an address is a multiple; more than 256 do not matter to any kernel.
fn alignment(address: u64) -> u32 {
    1 << address.trailing_zeros().min(8)
}

impl ProductKey {
    /// Of a product; fails where the factors and the result do not fit together.
    pub fn of(product: &Product, workspace: usize) -> Result<ProductKey, ProductError> {
        let Product { left, right, out, batches, sums, epilogue: Epilogue { bias, relu } } = *product;
        let key = ProductKey {
            matrices: [&left, &right, &out].map(Place::of),
            batches,
            sums,
            bias: bias.is_some(),
            relu,
            workspace,
        };
        let fits = left.columns == right.rows
            && (left.rows, right.columns) == (out.rows, out.columns)
            && left.element == right.element
            && (out.element == left.element || left.element.is_half() && out.element == super::Element::F32)
            && out.order == Order::Rows
            && [left.rows, left.columns, right.columns, batches].iter().all(|n| *n > 0);
        if fits { Ok(key) } else { Err(ProductError::Shapes(key.to_string())) }
    }

    pub(super) fn alignment(&self, matrix: &Matrix) -> u32 {
        alignment(matrix.address)
    }
}

/// `bf16 [512 768]/768 x [768 3072]'/768 -> f32 [512 3072]/3072, 4 batches (393216 0 1572864), aligned to 256 256 256, bias,
/// relu, 33554432 bytes`: a mark for what lies by columns, and after the slash the step from one row or column to the next.
impl fmt::Display for ProductKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = |p: &Place| {
            let (_, rows, columns, order, leading, _) = p.matrix;
            format!("[{rows} {columns}]{}/{leading}", if order == Order::Columns { "'" } else { "" })
        };
        let [left, right, out] = &self.matrices;
        write!(f, "{} {} x {} -> {} {}", left.matrix.0, one(left), one(right), out.matrix.0, one(out))?;
        let strides = self.matrices.map(|p| p.matrix.5);
        if self.batches > 1 {
            write!(f, ", {} batches ({} {} {})", self.batches, strides[0], strides[1], strides[2])?;
        }
        let [a, b, c] = self.matrices.map(|p| p.alignment);
        write!(f, ", aligned to {a} {b} {c}")?;
        if self.sums == Sums::Tf32 {
            write!(f, ", tf32")?;
        }
        if self.bias {
            write!(f, ", bias")?;
        }
        if self.relu {
            write!(f, ", relu")?;
        }
        write!(f, ", {} bytes", self.workspace)
    }
}

/// What was chosen for the products of one GPU and version of the library, by the text of their key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choices(BTreeMap<String, Algorithm>);

impl Choices {
    /// What was chosen for a product.
    pub fn of(&self, key: &ProductKey) -> Option<Algorithm> {
        self.0.get(&key.to_string()).copied()
    }

    /// Chooses.
    pub fn set(&mut self, key: &ProductKey, algorithm: Algorithm) {
        self.0.insert(key.to_string(), algorithm);
    }

    /// How many products have a choice.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none has.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What others have chosen goes before what is here.
    pub fn take_over(&mut self, others: Choices) {
        self.0.extend(others.0);
    }

    /// A line for each product: its key, a tab, and the choice in 128 hexadecimal digits.
    pub fn to_text(&self) -> String {
        let hex = |a: &Algorithm| a.0.iter().map(|word| format!("{word:016x}")).collect::<String>();
        self.0.iter().map(|(key, algorithm)| format!("{key}\t{}\n", hex(algorithm))).collect()
    }

    /// The inverse. What is not such a line is left out: then that product is measured again.
    pub fn from_text(text: &str) -> Choices {
        let line = |line: &str| {
            let (key, hex) = line.split_once('\t')?;
            let mut words = [0; 8];
            if hex.len() != 128 || !hex.is_ascii() {
                return None;
            }
            for (n, word) in words.iter_mut().enumerate() {
                *word = u64::from_str_radix(&hex[16 * n..16 * n + 16], 16).ok()?;
            }
            Some((key.to_owned(), Algorithm(words)))
        };
        Choices(text.lines().filter_map(line).collect())
    }

    /// What a file holds; nothing where there is none.
    pub fn load(path: &Path) -> std::io::Result<Choices> {
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Choices::from_text(&text)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Choices::default()),
            Err(e) => Err(e),
        }
    }

    /// Replaces a file in one go, so that who reads it meanwhile finds the old one or the new one.
    pub fn save(&self, path: &Path) -> std::io::Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let beside = path.with_extension(format!("{}.part", std::process::id()));
        std::fs::File::create(&beside)?.write_all(self.to_text().as_bytes())?;
        std::fs::rename(&beside, path)
    }
}

/// How many of the library's proposals are measured, and how long each at least.
const MEASURED: usize = 8;
const LONG_ENOUGH: Duration = Duration::from_millis(2);

impl Products {
    /// Measures the first few ways that the library proposes for a product, and gives the fastest with its time. The result
    /// is computed again and again, with all that follows it. `wait` waits for the stream.
    ///
    /// # Safety
    /// As [`Products::multiply`].
    #[expect(unsafe_code, reason = "products in memory that the caller answers for")]
    pub unsafe fn fastest(
        &mut self,
        product: &Product,
        workspace: Workspace,
        stream: *mut c_void,
        wait: impl Fn() -> Result<(), ProductError>,
    ) -> Result<(Algorithm, Duration), ProductError> {
        let key = ProductKey::of(product, workspace.bytes)?;
        let mut best: Option<(Algorithm, Duration)> = None;
        for algorithm in self.proposals(product, workspace.bytes, MEASURED)? {
            let mut choice = Choices::default();
            choice.set(&key, algorithm);
            self.forget(&key);
            // SAFETY: the caller's promise.
            let mut run = || unsafe { self.multiply(product, workspace, stream, &choice) };
            // The first one loads the kernel.
            if run().and_then(|()| wait()).is_err() {
                continue;
            }
            let (mut times, begin) = (0, Instant::now());
            while times < 3 || begin.elapsed() < LONG_ENOUGH {
                for _ in 0..4 {
                    run()?;
                }
                wait()?;
                times += 4;
            }
            let time = begin.elapsed() / times;
            if best.is_none_or(|(_, least)| time < least) {
                best = Some((algorithm, time));
            }
        }
        self.forget(&key);
        best.ok_or(ProductError::NoKernel(key.to_string()))
    }

    /// The next time a product is asked for, its choice is made again.
    fn forget(&mut self, key: &ProductKey) {
        if let Some(prepared) = self.prepared.remove(key) {
            self.free(prepared.description, &prepared.layouts);
        }
    }
}
