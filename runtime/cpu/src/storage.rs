//! Memory of large tensors, in regions straight from the system. A region is cut into pieces, and is whole again when
//! all pieces are free. So memory that one part of a step has freed serves the next, for any sizes; and fragments that
//! serve no request go back to the system, which no allocator promises.

use burn_std::{AccessError, AccessPolicy, AllocationController, AllocationProperty, Bytes};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::ptr::{null_mut, slice_from_raw_parts_mut, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes from which a tensor has such memory.
pub(super) const LARGE: usize = 1 << 18;

/// Pieces are multiples of this number of bytes.
const GRAIN: usize = 1 << 12;

/// Bytes from which the system may take its largest pages: it then maps a gigabyte in a tenth of the time.
const HUGE: usize = 1 << 23;

/// Slack above the peak in use, as a part of it and in bytes: steps whose sizes differ little then need no system call.
const SLACK: (usize, usize) = (50, 4 << 20);

/// Bytes of this process's memory, now and at the peak.
static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// The most bytes that the values of all devices that are threads of this process ever took at once, those apart that are too
/// small to count.
pub fn peak_value_bytes() -> u64 {
    MOST.load(Ordering::Relaxed) as u64
}

/// The regions of a device.
#[derive(Default)]
pub(super) struct Regions {
    /// Regions by address.
    all: BTreeMap<usize, Region>,
    /// Bytes held, and bytes in use.
    held: usize,
    used: usize,
    /// Most bytes that were in use at once.
    most: usize,
}

/// Addresses of the system, for which there is memory or not.
struct Region {
    at: usize,
    len: usize,
    /// Free pieces, by offset. Pieces of one kind never touch.
    idle: BTreeMap<usize, Idle>,
}

/// A free piece.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Idle {
    len: usize,
    /// Whether it is mapped: otherwise the system has its memory back, and maps zeros on the next write.
    there: bool,
}

impl Regions {
    /// Memory for a tensor of `len` bytes, uninitialized. None if the system has none.
    pub(super) fn take(shared: &Arc<Mutex<Regions>>, len: usize) -> Option<Bytes> {
        let reserved = len.next_multiple_of(GRAIN);
        let mut regions = shared.lock().unwrap_or_else(PoisonError::into_inner);
        let at = match regions.cut(reserved, true) {
            Some(at) => at,
            None => regions.fresh(reserved)?,
        };
        regions.used += reserved;
        regions.most = regions.most.max(regions.used);
        let part = RegionPart { at, len, regions: Arc::clone(shared) };
        // SAFETY: all of it is initialized: the system gives zeros.
        #[expect(unsafe_code, reason = "memory that is asked from the system")]
        Some(unsafe { Bytes::from_controller(Box::new(part), len) })
    }

    /// The smallest free piece of a kind that is large enough; its rest stays free.
    fn cut(&mut self, len: usize, there: bool) -> Option<usize> {
        let pieces = self.all.values().flat_map(|r| r.idle.iter().map(|(from, i)| (*i, r.at, *from)));
        let fits = pieces.filter(|(i, ..)| i.len >= len && i.there == there);
        let (piece, region, from) = fits.min_by_key(|(i, at, from)| (i.len, *at, *from))?;
        let idle = &mut self.all.get_mut(&region)?.idle;
        idle.remove(&from);
        if piece.len > len {
            idle.insert(from + len, Idle { len: piece.len - len, ..piece });
        }
        Some(region + from)
    }

    /// New memory. Other free memory is released first if more than the peak would be held.
    fn fresh(&mut self, len: usize) -> Option<usize> {
        let most = self.most.max(self.used + len);
        let limit = most + most / SLACK.0 + SLACK.1;
        while self.held + len > limit && self.release(self.held + len - limit) {}
        let at = match self.cut(len, false) {
            Some(at) => at,
            None => {
                let region = Region::map(len)?;
                let at = region.at;
                self.all.insert(at, region);
                at
            }
        };
        self.held += len;
        MOST.fetch_max(HELD.fetch_add(len, Ordering::Relaxed) + len, Ordering::Relaxed);
        Some(at)
    }

    /// Releases up to `bytes` of the largest free piece to the system. False if there is no free piece.
    fn release(&mut self, bytes: usize) -> bool {
        let pieces =
            self.all.values().flat_map(|r| r.idle.iter().map(|(from, i)| (i.len, r.at, *from, i.there)));
        let Some((n, at, from, _)) = pieces.filter(|p| p.3).max() else { return false };
        let Some(region) = self.all.get_mut(&at) else { return false };
        let gone = n.min(bytes.next_multiple_of(HUGE));
        let first = from + n - gone;
        // SAFETY: free pieces have no references.
        #[expect(unsafe_code, reason = "memory that goes back to the system")]
        let done = unsafe { madvise(with_exposed_provenance_mut(at + first), gone, Advice::LinuxDontNeed) };
        if done.is_err() {
            return false;
        }
        region.idle.remove(&from);
        if gone < n {
            region.idle.insert(from, Idle { len: n - gone, there: true });
        }
        region.join(first, Idle { len: gone, there: false });
        if region.idle.get(&0) == Some(&Idle { len: region.len, there: false }) {
            self.all.remove(&at);
        }
        self.held -= gone;
        HELD.fetch_sub(gone, Ordering::Relaxed);
        true
    }

    /// Frees memory in use.
    fn give(&mut self, at: usize, len: usize) {
        let Some((_, region)) = self.all.range_mut(..=at).next_back() else { return };
        self.used -= len;
        region.join(at - region.at, Idle { len, there: true });
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.used, self.held)
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        HELD.fetch_sub(self.held, Ordering::Relaxed);
    }
}

impl Region {
    fn map(len: usize) -> Option<Region> {
        let (access, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: the system chooses the address, so no existing mapping is replaced.
        #[expect(unsafe_code, reason = "memory that is asked from the system")]
        let at = unsafe { mmap_anonymous(null_mut(), len, access, kind) }.ok()?;
        if len >= HUGE {
            // SAFETY: the pages are ours, and the advice keeps their contents.
            #[expect(unsafe_code, reason = "memory that is asked from the system")]
            // Without such pages only the time differs.
            let _advised = unsafe { madvise(at, len, Advice::LinuxHugepage) };
        }
        Some(Region { at: at.expose_provenance(), len, idle: BTreeMap::new() })
    }

    /// Adds a free piece, merged with its neighbors of the same kind.
    fn join(&mut self, mut from: usize, mut piece: Idle) {
        let before = self.idle.range(..from).next_back().map(|(at, i)| (*at, *i));
        if let Some((at, i)) = before.filter(|(at, i)| at + i.len == from && i.there == piece.there) {
            self.idle.remove(&at);
            (from, piece.len) = (at, i.len + piece.len);
        }
        let after = from + piece.len;
        if let Some(i) = self.idle.get(&after).copied().filter(|i| i.there == piece.there) {
            self.idle.remove(&after);
            piece.len += i.len;
        }
        self.idle.insert(from, piece);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: a region is dropped when all of it is idle, or with all regions, which every part of one keeps.
        #[expect(unsafe_code, reason = "memory that goes back to the system")]
        // Memory that the system does not take back stays until the process ends.
        let _kept = unsafe { munmap(with_exposed_provenance_mut(self.at), self.len) };
    }
}

/// A part of a region that a tensor has.
struct RegionPart {
    at: usize,
    len: usize,
    regions: Arc<Mutex<Regions>>,
}

impl RegionPart {
    fn all(&self) -> *mut [MaybeUninit<u8>] {
        slice_from_raw_parts_mut(with_exposed_provenance_mut(self.at), self.len)
    }
}

impl Drop for RegionPart {
    fn drop(&mut self) {
        let mut regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        regions.give(self.at, self.len.next_multiple_of(GRAIN));
    }
}

impl AllocationController for RegionPart {
    fn alloc_align(&self) -> usize {
        // Pages are larger than any alignment of elements.
        64
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Other
    }

    #[expect(unsafe_code, reason = "memory that is asked from the system")]
    unsafe fn memory_mut(&mut self, _: AccessPolicy) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        // SAFETY: the pages live as long as the part, which is their only user, and is borrowed as this is.
        Ok(unsafe { &mut *self.all() })
    }

    #[expect(unsafe_code, reason = "memory that is asked from the system")]
    fn memory(&self, _: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        // SAFETY: as above.
        Ok(unsafe { &*self.all() })
    }

    fn capacity(&self) -> usize {
        self.len
    }
}
