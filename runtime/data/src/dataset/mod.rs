//! A set of records, and the gather that fills one device's block of a batch.

pub(super) mod batch_sampler;
pub(super) mod bind;
pub(super) mod binding;
pub(super) mod column;
pub(super) mod convert;
pub(super) mod damaged_records;
pub(super) mod input_files;
pub(super) mod input_info;
pub(super) mod order;
pub(super) mod prefetch;

use column::{Column, Runs, Scratch};
use meshwright_files::{Checked, RawTensor};
use meshwright_plan::DType;
use meshwright_sorted::SortedMap;
use order::{EpochSeed, Order, OrderRule};
use sha2::Digest;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The records of one split, in the dtypes of the program. Those of small files are in memory and known to be good; those of
/// large ones are read and checked when they are asked for.
#[derive(Clone, Debug)]
pub struct Dataset {
    pub(super) records: usize,
    pub(super) columns: Arc<Vec<Column>>,
    /// The records that are not damaged, where others are left out.
    pub(super) kept: Option<Arc<[u32]>>,
    pub(super) damaged: Arc<[String]>,
    /// Of a share of a set, which of its records it has.
    pub(super) chosen: Option<Subset>,
    pub(super) rule: OrderRule,
    pub(super) fingerprint: String,
    /// The folder with the `data.toml` that describes it, if one does.
    pub(super) folder: Option<PathBuf>,
    /// Names of the positions along dims.
    pub(super) class_names: SortedMap<String, Vec<String>>,
}

/// The records at some positions of an order.
#[derive(Clone, Debug)]
pub(super) struct Subset {
    order: Order,
    first: usize,
}

impl Dataset {
    /// Of the records that are `kept`; all where nothing says which. `damaged` says what is wrong with the others.
    pub(super) fn new(
        records: usize,
        columns: Vec<Column>,
        (kept, damaged): (Option<Vec<u32>>, Vec<String>),
        rule: OrderRule,
    ) -> Checked<Dataset> {
        let mut set = Dataset {
            records,
            columns: Arc::new(columns),
            kept: kept.map(Arc::from),
            damaged: damaged.into(),
            chosen: None,
            rule,
            fingerprint: String::new(),
            folder: None,
            class_names: SortedMap::new(),
        };
        set.fingerprint = set.hash()?;
        Ok(set)
    }

    /// Number of records.
    pub fn records(&self) -> usize {
        self.records
    }

    /// The folder with the `data.toml` that describes it, as it was found.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Names of the positions along dims.
    pub fn class_names(&self) -> &SortedMap<String, Vec<String>> {
        &self.class_names
    }

    /// The same with these names of positions.
    pub fn with_class_names(self, class_names: SortedMap<String, Vec<String>>) -> Dataset {
        Dataset { class_names, ..self }
    }

    pub(super) fn rule(&self) -> &OrderRule {
        &self.rule
    }

    /// The inputs, by position: name, dtype and the sizes of the dims after the first.
    pub fn inputs(&self) -> impl Iterator<Item = (&str, DType, &[usize])> {
        self.columns.iter().map(|c| (c.described.name.as_str(), c.dtype(), c.shape.as_slice()))
    }

    /// Position of an input.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|c| c.described.name == name)
    }

    /// Tells data sets apart that differ in inputs, sizes, number of records, in one of up to 256 records spread over them
    /// evenly, or in what `data.toml` says of their order: 16 hexadecimal digits of a SHA-256. Floats count as they are in `f32`,
    /// whatever the program reads them as: the same files have the same fingerprint in every precision.
    pub fn fingerprint(&self) -> String {
        self.fingerprint.clone()
    }

    fn hash(&self) -> Checked<String> {
        const LOOKED_AT: usize = 256;
        let mut hash = sha2::Sha256::new();
        let mut scratch = Scratch::default();
        take(&mut hash, &(self.records as u64).to_le_bytes());
        for c in self.columns.iter() {
            take(&mut hash, c.described.name.as_bytes());
            c.shape.iter().for_each(|n| take(&mut hash, &(*n as u64).to_le_bytes()));
            let n = LOOKED_AT.min(self.records);
            let mut record = vec![0; c.width()];
            for k in 0..n {
                if !record.is_empty() {
                    let at = self.record_of_files(k * self.records / n);
                    c.read(at, &Runs::whole(record.len()), &mut record, &mut scratch)?;
                }
                match c.dtype() {
                    DType::F64 => take(&mut hash, &in_f32(&record)),
                    _ => take(&mut hash, &record),
                }
            }
        }
        // A set in the usual order has the fingerprint that it had before there were others.
        if let Some(rule) = self.rule.described() {
            take(&mut hash, &rule);
        }
        Ok(hex(hash))
    }

    /// Parts a set in two: the rest for training, and a share for validation. Which records these are depends on the seed and
    /// the number of records alone. `None` where one of them would be empty.
    pub fn split(&self, share: f64, seed: u64) -> Option<(Dataset, Dataset)> {
        let n = (self.records as f64 * share).round() as usize;
        if !(share > 0.0 && share < 1.0) || n == 0 || n >= self.records || self.chosen.is_some() {
            return None;
        }
        let order = Order::of_share(seed, self.records);
        let part = |first: usize, records: usize, rule: OrderRule| {
            let mut hash = sha2::Sha256::new();
            let numbers = [seed, self.records as u64, first as u64, records as u64];
            take(&mut hash, self.fingerprint.as_bytes());
            numbers.iter().for_each(|n| take(&mut hash, &n.to_le_bytes()));
            let chosen = Some(Subset { order: order.clone(), first });
            Dataset { records, chosen, rule, fingerprint: hex(hash), ..self.clone() }
        };
        let rest = self.records - n;
        let rule = self.rule.of_part(|i| order.record(n + i), rest)?;
        Some((part(n, rest, rule), part(0, n, OrderRule::default())))
    }

    /// A share by which [`Dataset::split`] parts this set: a tenth where that does, and else one record, in as few digits as
    /// do. `None` where no share does, as of a single record.
    pub fn share_to_hold_out(&self, seed: u64) -> Option<f64> {
        let digits = self.records.to_string().len();
        let one: f64 = format!("{:.digits$}", 1.0 / self.records as f64).parse().ok()?;
        [0.1, one].into_iter().find(|share| self.split(*share, seed).is_some())
    }

    fn record_of_files(&self, record: usize) -> usize {
        let record = self.chosen.as_ref().map_or(record, |c| c.order.record(c.first + record));
        self.kept.as_ref().map_or(record, |kept| kept[record] as usize)
    }

    /// What there is to say of examples that were left out.
    pub fn notes(&self) -> Vec<String> {
        let Some(first) = self.damaged.first() else { return Vec::new() };
        let n = self.damaged.len();
        vec![format!("{n} damaged {} left out: {first}", if n == 1 { "example is" } else { "examples are" })]
    }

    /// How many threads should prepare batches: several where records are decoded, else one.
    pub fn readers(&self) -> usize {
        const MOST: usize = 8;
        match self.columns.iter().any(Column::is_encoded) {
            true => std::thread::available_parallelism().map_or(1, usize::from).min(MOST),
            false => 1,
        }
    }

    /// Bytes of all records in the program's dtypes.
    pub fn bytes(&self) -> usize {
        self.columns.iter().map(|c| c.width() * self.records).sum()
    }

    /// A block as a tensor; see [`Dataset::read`] for what it holds, its errors, and when it panics.
    ///
    /// # Errors
    ///
    /// As [`Dataset::read`].
    pub fn block(
        &self,
        input: usize,
        (records, seed): (&[usize], EpochSeed),
        ranges: &[Range<usize>],
    ) -> Checked<RawTensor> {
        let dtype = self.columns[input].dtype();
        let shape: Vec<usize> =
            std::iter::once(records.len()).chain(ranges.iter().map(ExactSizeIterator::len)).collect();
        let mut data = vec![0; shape.iter().product::<usize>() * dtype.bytes()];
        self.read(input, (records, seed), ranges, &mut data)?;
        Ok(RawTensor { dtype, shape, data })
    }

    /// Fills `out` with a block of input number `input`: the given records, one a row, as they are in the epoch of `seed`, and of
    /// each the `ranges` of the dims after the first, row-major in declared order. Of files that are not in memory little else is
    /// read.
    ///
    /// # Errors
    ///
    /// E0502 where a file cannot be read any more, E0506 for values that the input cannot have.
    ///
    /// # Panics
    ///
    /// Where a record or range is outside the data, or `out` is not of the block's size: the caller's mistake, never the
    /// data's.
    pub fn read(
        &self,
        input: usize,
        (records, seed): (&[usize], EpochSeed),
        ranges: &[Range<usize>],
        out: &mut [u8],
    ) -> Checked<()> {
        let column = &self.columns[input];
        let width = column.dtype().bytes();
        assert_eq!(ranges.len(), column.shape.len(), "a range for every dim after the first");
        assert!(
            ranges.iter().zip(&column.shape).all(|(r, n)| r.start <= r.end && r.end <= *n),
            "ranges within"
        );
        let row: usize = ranges.iter().map(ExactSizeIterator::len).product::<usize>() * width;
        assert_eq!(out.len(), row * records.len(), "size of the block");
        if out.is_empty() {
            return Ok(());
        }
        let runs = Runs::new(&column.shape, ranges, width);
        let mut scratch = Scratch::new(seed);
        for (record, to) in records.iter().zip(out.chunks_exact_mut(row)) {
            assert!(*record < self.records, "record {record} of {}", self.records);
            column.read(self.record_of_files(*record), &runs, to, &mut scratch)?;
        }
        Ok(())
    }
}

/// Numbers of `f64` as a program of `f32` reads them.
fn in_f32(record: &[u8]) -> Vec<u8> {
    let narrow = |x: &[u8; 8]| (f64::from_le_bytes(*x) as f32).to_le_bytes();
    record.as_chunks().0.iter().flat_map(narrow).collect()
}

fn take(hash: &mut sha2::Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}

fn hex(hash: sha2::Sha256) -> String {
    hash.finalize()[..8].iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::source::FileRef;
    use super::column::Values;
    use super::input_info::InputInfo;
    use super::*;
    use crate::readers::file_piece::{FilePiece, Location};

    fn of_records(records: usize, rule: OrderRule) -> Dataset {
        let file = FileRef { path: "x".into(), parts: Vec::new(), classes: Vec::new() };
        let piece = FilePiece { file, start: 0, len: records, held: Location::Memory(vec![0; records]) };
        let described = InputInfo { name: "x".into(), dtype: DType::U8, range: None, ignored: None };
        let values = Values::Pieces(vec![piece]);
        let column = Column { described, shape: Vec::new(), first: 0, step: 1, values };
        Dataset::new(records, vec![column], (None, Vec::new()), rule).unwrap()
    }

    #[test]
    fn the_share_that_is_suggested_leaves_records_on_both_sides() {
        for records in [2, 3, 4, 5, 6, 9, 10, 11, 99, 1000] {
            let set = of_records(records, OrderRule::default());
            let share = set.share_to_hold_out(0).unwrap();
            let (rest, held) = set.split(share, 0).unwrap();
            assert!(rest.records() > 0 && held.records() > 0, "{share} of {records}");
            assert_eq!(rest.records() + held.records(), records);
        }
        let of = |records: usize| of_records(records, OrderRule::default()).share_to_hold_out(0);
        assert_eq!([4, 3, 2, 1].map(of), [Some(0.2), Some(0.3), Some(0.5), None]);
        assert_eq!(of(1000), Some(0.1));
    }

    #[test]
    fn any_block_is_that_part_of_the_records() {
        let shape = [3, 4, 5];
        let value = |r: usize, i: usize, j: usize, k: usize| (r * 1000 + i * 100 + j * 10 + k) as i32;
        let mut data = Vec::new();
        for (r, i) in (0..6).flat_map(|r| (0..3).map(move |i| (r, i))) {
            for (j, k) in (0..4).flat_map(|j| (0..5).map(move |k| (j, k))) {
                data.extend(value(r, i, j, k).to_le_bytes());
            }
        }
        let file = FileRef { path: "x".into(), parts: Vec::new(), classes: Vec::new() };
        let piece = FilePiece { file, start: 0, len: 360, held: Location::Memory(data) };
        let described = InputInfo { name: "x".into(), dtype: DType::I32, range: None, ignored: None };
        let values = Values::Pieces(vec![piece]);
        let column = Column { described, shape: shape.to_vec(), first: 0, step: 60, values };
        let dataset = Dataset::new(6, vec![column], (None, Vec::new()), OrderRule::default()).unwrap();
        let spans = |n: usize| (0..=n).flat_map(move |a| (a..=n).map(move |b| a..b));
        for i in spans(3) {
            for j in spans(4) {
                for k in spans(5) {
                    let records = [5, 0, 0, 3];
                    let expected: Vec<u8> = records
                        .iter()
                        .flat_map(|r| i.clone().map(move |i| (*r, i)))
                        .flat_map(|(r, i)| j.clone().map(move |j| (r, i, j)))
                        .flat_map(|(r, i, j)| k.clone().map(move |k| value(r, i, j, k)))
                        .flat_map(i32::to_le_bytes)
                        .collect();
                    let mut out = vec![0xff; expected.len()];
                    dataset
                        .read(
                            0,
                            (&records, EpochSeed::default()),
                            &[i.clone(), j.clone(), k.clone()],
                            &mut out,
                        )
                        .unwrap();
                    assert_eq!(out, expected, "{i:?} {j:?} {k:?}");
                    let block = dataset
                        .block(0, (&records, EpochSeed::default()), &[i.clone(), j.clone(), k.clone()])
                        .unwrap();
                    assert_eq!(block.shape, [4, i.len(), j.len(), k.len()]);
                    assert_eq!(block.data, expected);
                }
            }
        }
    }
}
