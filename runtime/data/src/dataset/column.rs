//! The values of one input over all records: in memory, or in files that are read on demand.

use super::input_info::InputInfo;
use super::order::EpochSeed;
use crate::readers::encoded_records::Encoded;
use crate::readers::file_piece::{FilePiece, Location, read_span};
use crate::tokens::{Field, TokenExamples};
use meshwright_files::Checked;
use meshwright_plan::DType;
use std::ops::Range;
use std::sync::Arc;

/// One input of a set. A record is a contiguous piece of the elements of all files: the first starts at `first`, and the
/// next always `step` elements after the one before it.
#[derive(Debug)]
pub(crate) struct Column {
    pub(crate) described: InputInfo,
    /// Declared sizes of the dims after the first.
    pub(crate) shape: Vec<usize>,
    pub(crate) first: usize,
    pub(crate) step: usize,
    pub(crate) values: Values,
}

#[derive(Debug)]
pub(crate) enum Values {
    /// One piece for each file.
    Pieces(Vec<FilePiece>),
    /// One member of a file for each record.
    Encoded(Encoded),
    /// For each record the entry of a table of the program's elements, at the position that another column has.
    Chosen { by: Arc<Column>, table: Vec<u8> },
    /// A field of examples that are made of text.
    Tokens { examples: Arc<TokenExamples>, field: Field },
}

impl Values {
    /// What they are read from, for a message.
    pub(crate) fn named(&self) -> String {
        match self {
            Values::Pieces(pieces) => {
                let more = pieces.len().saturating_sub(1);
                let first =
                    pieces.first().map_or("files without elements".into(), |p| format!("`{}`", p.file));
                if more == 0 { first } else { format!("{first} and {more} more files") }
            }
            Values::Encoded(encoded) => encoded.named(),
            Values::Chosen { by, .. } => by.values.named(),
            Values::Tokens { examples, .. } => examples.named().to_string(),
        }
    }
}

/// Buffers for one reader, and on what the random parts of its records depend.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    raw: Vec<u8>,
    record: Vec<u8>,
    seed: EpochSeed,
}

impl Scratch {
    /// Empty buffers.
    pub(crate) fn new(seed: EpochSeed) -> Scratch {
        Scratch { seed, ..Scratch::default() }
    }
}

/// From this many bytes on each run is read by itself. Shorter ones are read with what lies between them: a call of the system
/// costs as much as copying some thousands of bytes.
const LONG_RUN: usize = 1 << 15;

impl Column {
    /// Elements of a record.
    pub(crate) fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes of a record, in the program's dtype.
    pub(crate) fn width(&self) -> usize {
        self.elements() * self.described.dtype.bytes()
    }

    pub(crate) fn dtype(&self) -> DType {
        self.described.dtype
    }

    /// Whether reading a record costs much more than copying it.
    pub(super) fn is_encoded(&self) -> bool {
        match &self.values {
            Values::Encoded(_) => true,
            Values::Chosen { by, .. } => by.is_encoded(),
            Values::Pieces(_) | Values::Tokens { .. } => false,
        }
    }

    /// The first record of each file.
    pub(crate) fn first_records(&self) -> Vec<usize> {
        match &self.values {
            Values::Pieces(pieces) if self.step == self.elements() && self.step > 0 => {
                pieces.iter().map(|p| p.start / self.step).collect()
            }
            Values::Encoded(encoded) => encoded.first_records(),
            Values::Chosen { by, .. } => by.first_records(),
            Values::Pieces(_) | Values::Tokens { .. } => vec![0],
        }
    }

    /// Fills `out` with the runs of a record, one after the other.
    pub(crate) fn read(
        &self,
        record: usize,
        runs: &Runs,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Checked<()> {
        match &self.values {
            Values::Pieces(pieces) => self.read_pieces(pieces, record, runs, out, scratch),
            Values::Encoded(encoded) => {
                let Scratch { raw, record: all, .. } = scratch;
                encoded.read(record, &self.described, &self.shape, (raw, all))?;
                runs.gather(all, 0, out);
                Ok(())
            }
            Values::Chosen { by, table } => {
                let whole = by.elements();
                let mut positions = vec![0; whole * by.dtype().bytes()];
                by.read(record, &Runs::whole(by.width()), &mut positions, scratch)?;
                let width = self.dtype().bytes();
                let mut all = Vec::with_capacity(whole * width);
                for at in positions.chunks_exact(by.dtype().bytes()) {
                    // Checked against the table's length when it was read.
                    let at = i32::from_le_bytes(meshwright_files::tensor::array(at)) as usize * width;
                    all.extend_from_slice(&table[at..at + width]);
                }
                runs.gather(&all, 0, out);
                Ok(())
            }
            Values::Tokens { examples, field } => {
                let all = examples.read((record, scratch.seed), *field, &self.described)?;
                runs.gather(&all, 0, out);
                Ok(())
            }
        }
    }

    /// Decodes a record, where it is encoded, to see whether it can be.
    pub(crate) fn decode(&self, record: usize, scratch: &mut Scratch) -> Checked<()> {
        match &self.values {
            Values::Encoded(encoded) => {
                let to = (&mut scratch.raw, &mut scratch.record);
                encoded.read(record, &self.described, &self.shape, to)
            }
            Values::Chosen { by, .. } => by.decode(record, scratch),
            Values::Pieces(_) | Values::Tokens { .. } => Ok(()),
        }
    }

    fn read_pieces(
        &self,
        pieces: &[FilePiece],
        record: usize,
        runs: &Runs,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Checked<()> {
        let width = self.dtype().bytes();
        let base = self.first + record * self.step;
        if let [FilePiece { held: Location::Memory(data), .. }] = pieces {
            runs.gather(&data[base * width..(base + self.elements()) * width], 0, out);
            return Ok(());
        }
        if runs.len >= LONG_RUN {
            for (start, to) in runs.starts.iter().zip(out.chunks_exact_mut(runs.len)) {
                read_span(pieces, &self.described, (record, base + start / width), to, &mut scratch.raw)?;
            }
            return Ok(());
        }
        let span = runs.span();
        if let [_] = runs.starts[..] {
            return read_span(
                pieces,
                &self.described,
                (record, base + span.start / width),
                out,
                &mut scratch.raw,
            );
        }
        scratch.record.resize(span.len(), 0);
        let at = (record, base + span.start / width);
        read_span(pieces, &self.described, at, &mut scratch.record, &mut scratch.raw)?;
        runs.gather(&scratch.record, span.start, out);
        Ok(())
    }
}

/// Where the contiguous runs of a block of a record start, in bytes, and how long each is.
pub(crate) struct Runs {
    pub(crate) starts: Vec<usize>,
    pub(crate) len: usize,
}

impl Runs {
    pub(crate) fn new(shape: &[usize], ranges: &[Range<usize>], width: usize) -> Runs {
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

    /// One run of all bytes.
    pub(crate) fn whole(len: usize) -> Runs {
        Runs { starts: vec![0], len }
    }

    /// From the start of the first to the end of the last.
    fn span(&self) -> Range<usize> {
        let (first, last) = (self.starts.iter().min(), self.starts.iter().max());
        first.copied().unwrap_or(0)..last.map_or(0, |l| l + self.len)
    }

    /// Copies the runs out of a record of which `from` holds the bytes from `at` on.
    pub(super) fn gather(&self, from: &[u8], at: usize, out: &mut [u8]) {
        for (start, to) in self.starts.iter().zip(out.chunks_exact_mut(self.len)) {
            to.copy_from_slice(&from[start - at..start - at + self.len]);
        }
    }
}
