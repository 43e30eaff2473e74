//! Values whose blocks lie on the devices of several processes, put together in one or in all of them.

use crate::cluster::processes::{About, Processes};
use crate::error::ExecError;
use crate::tensor::{HostData, HostTensor};
use meshwright_plan::DType;
use meshwright_sorted::{SortedMap, SortedSet};
use std::ops::Range;

/// A value in blocks: its shape and type, and the block of each device as a range of each dim.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: DType,
    pub(crate) ranges: Vec<Vec<Range<usize>>>,
    /// Dims that are stored in another order, each with the position at each place.
    pub(crate) orders: Vec<(usize, Vec<usize>)>,
}

impl Blocks {
    fn elements(&self, rank: usize) -> usize {
        self.ranges[rank].iter().map(ExactSizeIterator::len).product()
    }

    /// The lowest device that holds a shard, for each distinct shard of these devices.
    pub(crate) fn holders(&self, among: Range<usize>) -> Vec<usize> {
        let mut seen = SortedSet::new();
        among.filter(|rank| seen.insert(self.key(*rank))).collect()
    }

    /// The block of a device, to compare: first and last place along each dim.
    pub(crate) fn key(&self, rank: usize) -> Vec<(usize, usize)> {
        self.ranges[rank].iter().map(|r| (r.start, r.end)).collect()
    }

    /// Whether these devices hold the whole value.
    fn whole(&self, among: Range<usize>) -> bool {
        let held: usize = self.holders(among).into_iter().map(|rank| self.elements(rank)).sum();
        held == self.shape.iter().product::<usize>()
    }

    /// Whether each process has the whole value.
    pub(crate) fn whole_everywhere(&self, processes: &Processes) -> bool {
        processes.ranks().iter().all(|r| self.whole(r.clone()))
    }

    /// The whole, of the blocks of some devices by rank. None if they are not all of it, or one does not fit.
    pub(crate) fn assembled(&self, blocks: &SortedMap<usize, HostTensor>) -> Option<HostTensor> {
        let mut whole = HostTensor::zeros(self.dtype, self.shape.clone());
        let mut elements = 0;
        for rank in self.holders(0..self.ranges.len()) {
            // A copy of a block is as good as the block of its first holder.
            let same = |r: &usize| self.ranges[*r] == self.ranges[rank];
            let block = blocks.get(&rank).or_else(|| blocks.iter().find(|b| same(b.0)).map(|b| b.1))?;
            elements += block.data.len();
            if block.dtype() != self.dtype || !whole.paste(&self.ranges[rank], block) {
                return None;
            }
        }
        (elements == whole.data.len()).then_some(whole).and_then(|stored| self.declared(stored))
    }

    /// A value in the order in which devices store it.
    pub(crate) fn stored(&self, whole: &HostTensor) -> Option<HostTensor> {
        self.orders.iter().try_fold(whole.clone(), |whole, (dim, order)| whole.reordered(*dim, order))
    }

    /// The value, from the order in which devices store it.
    fn declared(&self, stored: HostTensor) -> Option<HostTensor> {
        self.orders.iter().try_fold(stored, |stored, (dim, order)| {
            let mut places = vec![0; order.len()];
            order.iter().enumerate().for_each(|(place, position)| places[*position] = place);
            stored.reordered(*dim, &places)
        })
    }

    /// The shards of all devices, exchanged between processes: on the first process alone if `first_only`. `mine` are
    /// the shards that [`Blocks::holders`] of all devices names and this process has.
    pub(crate) fn exchanged(
        &self,
        processes: &Processes,
        about: About,
        mine: &SortedMap<usize, HostTensor>,
        first_only: bool,
    ) -> Result<SortedMap<usize, HostTensor>, ExecError> {
        let holders = self.holders(0..self.ranges.len());
        let size = |rank: &usize| self.elements(*rank) * self.dtype.bytes();
        let of = |r: &Range<usize>| holders.iter().filter(|h| r.contains(h)).map(size).sum();
        let lengths: Vec<usize> = processes.ranks().iter().map(of).collect();
        let mut bytes = vec![];
        for rank in holders.iter().filter(|h| processes.ranks()[processes.position()].contains(h)) {
            let block = mine.get(rank).filter(|b| b.data.len() == self.elements(*rank));
            let block = block.and_then(|b| bytes_of(&b.data));
            let Some(block) = block else {
                let problem = "this process lacks its own block".to_string();
                let error = ExecError::State { rank: *rank, name: about.what.into(), problem };
                processes.abort(&error.to_string());
                return Err(error);
            };
            bytes.extend_from_slice(block);
        }
        let all = match first_only {
            true => processes.collect_bytes(about, &bytes, &lengths)?,
            false => processes.gather_bytes(about, &bytes, &lengths)?,
        };
        let mut blocks = SortedMap::new();
        let mut rest = all.as_slice();
        for rank in holders {
            let Some((piece, tail)) = rest.split_at_checked(size(&rank)) else { break };
            rest = tail;
            let shape = self.ranges[rank].iter().map(ExactSizeIterator::len).collect();
            if let Some(block) = from_bytes(self.dtype, shape, piece) {
                blocks.insert(rank, block);
            }
        }
        Ok(blocks)
    }
}

/// Elements as this machine has them in memory; none for pairs, which no process sends.
pub(crate) fn bytes_of(data: &HostData) -> Option<&[u8]> {
    (!data.dtype().is_pair()).then(|| data.view().bytes())
}

/// The inverse of [`bytes_of`]; none where the number of bytes does not fit.
pub(crate) fn from_bytes(dtype: DType, shape: Vec<usize>, bytes: &[u8]) -> Option<HostTensor> {
    (!dtype.is_pair()).then(|| HostTensor::new(shape, HostData::from_bytes(dtype, bytes)))?
}
