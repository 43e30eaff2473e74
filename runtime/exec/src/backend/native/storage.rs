//! Memory of large tensors, in regions straight from the system. A region is cut into what is asked for, and is whole again when all of it
//! has come back. So what one part of a step has freed serves the next, whatever the sizes; and what cannot serve goes back to
//! the system, which no allocator promises.

use burn_std::{AccessError, AccessPolicy, AllocationController, AllocationProperty, Bytes};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::ptr::{null_mut, slice_from_raw_parts_mut, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// From so many bytes on a tensor has such memory.
pub(super) const LARGE: usize = 1 << 18;

/// What is cut off is a multiple of so many bytes.
const GRAIN: usize = 1 << 12;

/// From so many bytes on the system may take its largest pages: a gigabyte is then there in a tenth of the time.
const HUGE: usize = 1 << 23;

/// More than was ever in use at once may be held by a part of that, and by so many bytes: then steps whose sizes differ little do without
/// the system.
const SLACK: (usize, usize) = (50, 4 << 20);

/// Bytes of all regions of this process, and the most that there ever were.
static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// The most bytes that the values of all devices that are threads of this process ever took at once, those apart that are too small to count.
pub fn peak_value_bytes() -> u64 {
    MOST.load(Ordering::Relaxed) as u64
}

/// The regions of a device.
#[derive(Default)]
pub(super) struct Regions {
    /// By address.
    regions: BTreeMap<usize, Region>,
    /// Bytes of all regions, and those that are in use.
    held: usize,
    used: usize,
    /// Most bytes that were in use at once.
    most: usize,
}

/// Pages of the system.
struct Region {
    at: usize,
    len: usize,
    /// What nobody uses: by offset, how many bytes. No two of them touch.
    idle: BTreeMap<usize, usize>,
}

impl Regions {
    /// Memory for so many bytes of a tensor, with anything in it. None where the system has none.
    pub(super) fn take(shared: &Arc<Mutex<Regions>>, len: usize) -> Option<Bytes> {
        let reserved = len.next_multiple_of(GRAIN);
        let mut regions = shared.lock().unwrap_or_else(PoisonError::into_inner);
        let at = regions.cut(reserved).or_else(|| regions.fresh(reserved))?;
        regions.used += reserved;
        regions.most = regions.most.max(regions.used);
        let part = RegionPart { at, len, regions: Arc::clone(shared) };
        // SAFETY: all of it is initialized: the system gives zeros.
        #[expect(unsafe_code, reason = "memory that is asked from the system")]
        Some(unsafe { Bytes::from_controller(Box::new(part), len) })
    }

    /// The smallest idle piece that is large enough, of which the rest stays.
    fn cut(&mut self, len: usize) -> Option<usize> {
        let pieces = self.regions.values().flat_map(|r| r.idle.iter().map(|(from, n)| (*n, r.at, *from)));
        let (n, region, from) = pieces.filter(|(n, ..)| *n >= len).min()?;
        let idle = &mut self.regions.get_mut(&region)?.idle;
        idle.remove(&from);
        if n > len {
            idle.insert(from + len, n - len);
        }
        Some(region + from)
    }

    /// A new region, all of which is in use. Regions that are idle go back first where more would be held than was in use at once.
    fn fresh(&mut self, len: usize) -> Option<usize> {
        let most = self.most.max(self.used + len);
        let limit = most + most / SLACK.0 + SLACK.1;
        while self.held + len > limit {
            let idle = self.regions.values().filter(|r| r.idle.get(&0) == Some(&r.len));
            let Some(region) = idle.max_by_key(|r| r.len).map(|r| r.at) else { break };
            self.held -= self.regions.remove(&region).map_or(0, |r| r.len);
        }
        let region = Region::map(len)?;
        let at = region.at;
        self.held += len;
        self.regions.insert(at, region);
        Some(at)
    }

    /// Takes back what was in use.
    fn give(&mut self, at: usize, len: usize) {
        let Some((_, region)) = self.regions.range_mut(..=at).next_back() else { return };
        self.used -= len;
        let (mut from, mut to) = (at - region.at, at - region.at + len);
        if let Some((before, n)) = region.idle.range(..from).next_back().map(|(b, n)| (*b, *n))
            && before + n == from
        {
            region.idle.remove(&before);
            from = before;
        }
        if let Some(n) = region.idle.remove(&to) {
            to += n;
        }
        region.idle.insert(from, to - from);
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.used, self.held)
    }
}

impl Region {
    fn map(len: usize) -> Option<Region> {
        let (access, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: the system chooses where, so nothing that is there is replaced.
        #[expect(unsafe_code, reason = "memory that is asked from the system")]
        let at = unsafe { mmap_anonymous(null_mut(), len, access, kind) }.ok()?;
        if len >= HUGE {
            // SAFETY: the pages are ours, and the advice leaves what is in them.
            #[expect(unsafe_code, reason = "memory that is asked from the system")]
            // That a system has no such pages changes nothing but the time.
            let _advised = unsafe { madvise(at, len, Advice::LinuxHugepage) };
        }
        MOST.fetch_max(HELD.fetch_add(len, Ordering::Relaxed) + len, Ordering::Relaxed);
        Some(Region { at: at.expose_provenance(), len, idle: BTreeMap::new() })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: a region is dropped when all of it is idle, or with all regions, which every part of one keeps.
        #[expect(unsafe_code, reason = "memory that goes back to the system")]
        let done = unsafe { munmap(with_exposed_provenance_mut(self.at), self.len) };
        if done.is_ok() {
            HELD.fetch_sub(self.len, Ordering::Relaxed);
        }
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
        // SAFETY: the pages are there as long as the part, nobody else has it, and it is borrowed as this is.
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
