//! Whether all members hold the same bytes.

use crate::{Buf, BufMut, Collectives, CommError, Group, Tag};
use std::collections::BTreeMap;

/// Lengths are exchanged first, so that bytes of different lengths are a finding too, and not a mismatch of counts.
pub(crate) fn agree<T: Collectives + ?Sized>(
    transport: &mut T,
    group: &Group,
    tag: &Tag,
    bytes: &[u8],
) -> Result<(), CommError> {
    let n = group.size();
    let length = (bytes.len() as u64).to_le_bytes();
    let mut lengths = vec![0u8; n * length.len()];
    transport.all_gather_v(
        group,
        tag,
        Buf::new(&length),
        vec![length.len(); n],
        BufMut::new(&mut lengths),
    )?;
    let counts: Vec<usize> = lengths
        .chunks_exact(length.len())
        .map(|c| c.iter().rev().fold(0, |n, byte| (n << 8) | usize::from(*byte)))
        .collect();
    let mut all = vec![0u8; counts.iter().sum()];
    transport.all_gather_v(group, tag, Buf::new(bytes), counts.as_slice(), BufMut::new(&mut all))?;

    let mut holders: BTreeMap<&[u8], Vec<usize>> = BTreeMap::new();
    let mut rest = all.as_slice();
    for (rank, count) in group.ranks().iter().zip(counts) {
        let (piece, tail) = rest.split_at(count);
        holders.entry(piece).or_default().push(*rank);
        rest = tail;
    }
    if holders.len() <= 1 {
        return Ok(());
    }
    for ranks in holders.values_mut() {
        ranks.sort_unstable();
    }
    // Where no contents prevail, those of the lowest rank count as right.
    let usual = holders.values().max_by_key(|ranks| (ranks.len(), std::cmp::Reverse(ranks[0])));
    let usual = usual.cloned().unwrap_or_default();
    let mut ranks: Vec<usize> = group.ranks().iter().copied().filter(|r| !usual.contains(r)).collect();
    ranks.sort_unstable();
    Err(CommError::Disagree { what: tag.what.to_string(), ranks, like: usual[0] })
}
