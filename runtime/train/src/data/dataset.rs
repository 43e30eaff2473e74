//! Records in memory, and the gather that fills one device's block of a batch.

use crate::RawTensor;
use meshwright_exec::HostTensor;
use meshwright_plan::DType;
use sha2::Digest;
use std::ops::Range;

/// All records of one split, checked, in the dtypes of the program.
#[derive(Debug)]
pub struct Dataset {
    pub(super) records: usize,
    pub(super) columns: Vec<Column>,
}

#[derive(Debug)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) dtype: DType,
    /// Declared sizes of the dims after the first.
    pub(super) shape: Vec<usize>,
    /// `records` times the product of `shape` elements, in declared order.
    pub(super) data: Vec<u8>,
}

impl Dataset {
    /// Number of records.
    pub fn records(&self) -> usize {
        self.records
    }

    /// The inputs, by position: name, dtype and the sizes of the dims after the first.
    pub fn inputs(&self) -> impl Iterator<Item = (&str, DType, &[usize])> {
        self.columns.iter().map(|c| (c.name.as_str(), c.dtype, c.shape.as_slice()))
    }

    /// Position of an input.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|c| c.name == name)
    }

    /// Tells data sets apart that differ in inputs, sizes, number of records, or in one of up to 256 records spread over
    /// them evenly: 16 hexadecimal digits of a SHA-256.
    pub fn fingerprint(&self) -> String {
        const LOOKED_AT: usize = 256;
        let mut hash = sha2::Sha256::new();
        let mut take = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        take(&(self.records as u64).to_le_bytes());
        for c in &self.columns {
            take(c.name.as_bytes());
            c.shape.iter().for_each(|n| take(&(*n as u64).to_le_bytes()));
            let width = c.shape.iter().product::<usize>() * c.dtype.bytes();
            let n = LOOKED_AT.min(self.records);
            for k in 0..n {
                let at = k * self.records / n * width;
                take(&c.data[at..at + width]);
            }
        }
        hash.finalize()[..8].iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.columns.iter().map(|c| c.data.len()).sum()
    }

    /// A block as a tensor for the engine; see [`Dataset::read`] for what it holds and when it panics.
    pub fn block(&self, input: usize, records: &[usize], ranges: &[Range<usize>]) -> HostTensor {
        let dtype = self.columns[input].dtype;
        let shape: Vec<usize> =
            std::iter::once(records.len()).chain(ranges.iter().map(ExactSizeIterator::len)).collect();
        let mut data = vec![0; shape.iter().product::<usize>() * dtype.bytes()];
        self.read(input, records, ranges, &mut data);
        RawTensor { dtype, shape, data }
            .into_host()
            .expect("loading refuses the dtypes that no tensor of a file has")
    }

    /// Fills `out` with a block of input number `input`: the given records, one a row, and of each the `ranges` of the
    /// dims after the first, row-major in declared order. Only these bytes are touched.
    ///
    /// # Panics
    ///
    /// Where a record or range is outside the data, or `out` is not of the block's size: the caller's mistake, never the
    /// data's.
    pub fn read(&self, input: usize, records: &[usize], ranges: &[Range<usize>], out: &mut [u8]) {
        let column = &self.columns[input];
        let width = column.dtype.bytes();
        assert_eq!(ranges.len(), column.shape.len(), "a range for every dim after the first");
        assert!(
            ranges.iter().zip(&column.shape).all(|(r, n)| r.start <= r.end && r.end <= *n),
            "ranges within"
        );
        let row: usize = ranges.iter().map(ExactSizeIterator::len).product::<usize>() * width;
        assert_eq!(out.len(), row * records.len(), "size of the block");
        if out.is_empty() {
            return;
        }
        let whole: usize = column.shape.iter().product::<usize>() * width;
        let runs = Runs::new(&column.shape, ranges, width);
        for (record, to) in records.iter().zip(out.chunks_exact_mut(row)) {
            let from = &column.data[record * whole..(record + 1) * whole];
            for (start, to) in runs.starts.iter().zip(to.chunks_exact_mut(runs.len)) {
                to.copy_from_slice(&from[*start..start + runs.len]);
            }
        }
    }
}

/// Where the contiguous runs of a block of a record start, in bytes, and how long each is.
struct Runs {
    starts: Vec<usize>,
    len: usize,
}

impl Runs {
    fn new(shape: &[usize], ranges: &[Range<usize>], width: usize) -> Runs {
        let mut starts = vec![0];
        let mut len = width;
        let mut stride = width;
        // Innermost first: as long as a run is all of what lies within, it just grows.
        for (n, range) in shape.iter().zip(ranges).rev() {
            if len == stride {
                len = range.len() * stride;
                starts[0] = range.start * stride;
            } else {
                starts = range.clone().flat_map(|i| starts.iter().map(move |s| i * stride + s)).collect();
            }
            stride *= n;
        }
        Runs { starts, len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let column = Column { name: "x".into(), dtype: DType::I32, shape: shape.to_vec(), data };
        let dataset = Dataset { records: 6, columns: vec![column] };
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
                    dataset.read(0, &records, &[i.clone(), j.clone(), k.clone()], &mut out);
                    assert_eq!(out, expected, "{i:?} {j:?} {k:?}");
                    let block = dataset.block(0, &records, &[i.clone(), j.clone(), k.clone()]);
                    assert_eq!(block.shape, [4, i.len(), j.len(), k.len()]);
                    assert_eq!(RawTensor::from_host(&block).map(|b| b.data), Some(expected));
                }
            }
        }
    }
}
