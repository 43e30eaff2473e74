//! Memory as lanes address it, each access checked.

use super::machine::{
    ILLEGAL_ADDRESS, LANES, LAUNCH_FAILED, MISALIGNED_ADDRESS, Machine, Outcome, lanes_of, trouble,
};
use super::parser::Space;

/// Which of the host's memory is that of a GPU.
pub(crate) trait Memory: Sync {
    /// The memory that was allocated in one piece and has this address in it, as where it starts and ends.
    fn piece(&self, address: usize) -> Option<(usize, usize)>;
}

/// What an access does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
    Atomic,
}

/// Generic addresses of shared, local and parameter memory: where no address of the host lies.
pub(super) const SHARED: u64 = 1 << 60;
pub(super) const LOCAL: u64 = 2 << 60;
pub(super) const PARAM: u64 = 3 << 60;
const WINDOW: u64 = 7 << 60;

/// Pieces of memory that were asked for lately, the last one first.
#[derive(Default)]
pub(super) struct Known(Vec<(usize, usize)>);

impl Known {
    const MANY: usize = 16;

    /// Whether all bytes from `low` to `high` are in one piece.
    fn holds(&mut self, memory: &dyn Memory, low: usize, high: usize) -> bool {
        let inside = |(start, end): &(usize, usize)| low >= *start && high <= *end;
        match self.0.iter().position(inside) {
            Some(0) => return true,
            Some(i) => self.0.swap(0, i),
            None => match memory.piece(low).filter(inside) {
                Some(piece) => {
                    self.0.truncate(Known::MANY - 1);
                    self.0.insert(0, piece);
                }
                None => return false,
            },
        }
        true
    }
}

/// Who used each byte of shared memory since the last barrier, to find warps that do not wait for each other.
#[derive(Default)]
pub(super) struct Shadow {
    /// Barriers so far.
    pub(super) epoch: u32,
    bytes: Vec<Used>,
    /// Writes so far.
    writes: u64,
    /// How often each warp has made its writes visible to the units that multiply.
    shown: Vec<u32>,
}

#[derive(Clone, Copy, Default)]
struct Used {
    written: Option<(u32, u32)>,
    read: Option<(u32, u32)>,
    is_atomic: bool,
    /// The number of the last write, and how often its warp had shown what it wrote.
    number: u64,
    shown: u32,
}

impl Shadow {
    /// Nobody has used it.
    pub(super) fn clear(&mut self, bytes: usize) {
        self.bytes.clear();
        self.bytes.resize(bytes, Used::default());
        self.shown.clear();
    }

    fn times_shown(&self, warp: u32) -> u32 {
        self.shown.get(warp as usize).copied().unwrap_or(0)
    }

    /// A warp makes what it wrote visible to the units that multiply (`fence.proxy.async`).
    pub(super) fn show(&mut self, warp: u32) {
        let many = self.shown.len().max(warp as usize + 1);
        self.shown.resize(many, 0);
        self.shown[warp as usize] += 1;
    }

    /// What is wrong with a product's read, if anything; and the writes so far.
    pub(super) fn product_reads(&mut self, at: usize, bytes: usize, warp: u32) -> Result<u64, &'static str> {
        for used in &self.bytes[at..at + bytes] {
            if used.written.is_some_and(|(_, writer)| self.times_shown(writer) <= used.shown) {
                return Err("it was not made visible to products since it was written");
            }
        }
        self.access(at, bytes, warp, Access::Read).map_or(Ok(self.writes), Err)
    }

    /// Whether something was written since there were so many writes.
    pub(super) fn is_overwritten(&self, at: usize, bytes: usize, writes: u64) -> bool {
        self.bytes[at..at + bytes].iter().any(|used| used.number > writes)
    }

    /// What is wrong with an access of a warp, if anything.
    fn access(&mut self, at: usize, bytes: usize, warp: u32, access: Access) -> Option<&'static str> {
        let (epoch, shown) = (self.epoch, self.times_shown(warp));
        self.writes += u64::from(access != Access::Read);
        for used in &mut self.bytes[at..at + bytes] {
            let by_other = |last: Option<(u32, u32)>| last.is_some_and(|(e, w)| e == epoch && w != warp);
            let both_atomic = access == Access::Atomic && used.is_atomic;
            if by_other(used.written) && !both_atomic {
                return Some("another warp wrote it, with no barrier between");
            }
            match access {
                Access::Read if used.written.is_none() => return Some("nobody wrote it"),
                Access::Read => used.read = Some((epoch, warp)),
                _ if by_other(used.read) => return Some("another warp reads it, with no barrier between"),
                _ => {
                    used.written = Some((epoch, warp));
                    used.is_atomic = access == Access::Atomic;
                    (used.number, used.shown) = (self.writes, shown);
                }
            }
        }
        None
    }
}

/// Where lanes access memory on the host. Those of lanes outside the mask are another lane's.
pub(super) type Pointers = [usize; LANES];

/// An access of `bytes` at addresses in a space, aligned to `align`.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) space: Space,
    /// The register with the address, and whether it is of 32 bits.
    pub(super) base: usize,
    pub(super) is_narrow: bool,
    pub(super) offset: i64,
    pub(super) bytes: usize,
    pub(super) access: Access,
}

impl Machine<'_> {
    /// Where the lanes of a mask that isn't empty access memory, if they may.
    pub(super) fn resolve(&mut self, target: &Target, mask: u32) -> Outcome<Pointers> {
        let addresses = self.addresses(target);
        self.resolve_at(target, addresses, mask)
    }

    /// The addresses as they are, in the space.
    pub(super) fn addresses(&self, target: &Target) -> Pointers {
        let base = if target.is_narrow {
            self.warp.narrow[target.base].0.map(u64::from)
        } else {
            self.warp.wide[target.base].0
        };
        base.map(|address| address.wrapping_add_signed(target.offset) as usize)
    }

    /// The same for addresses that were computed.
    pub(super) fn resolve_at(
        &mut self,
        target: &Target,
        mut addresses: Pointers,
        mask: u32,
    ) -> Outcome<Pointers> {
        let first = addresses[mask.trailing_zeros() as usize];
        for (lane, address) in addresses.iter_mut().enumerate() {
            *address = if mask >> lane & 1 != 0 { *address } else { first };
        }
        self.check(target, &mut addresses, mask)?;
        Ok(addresses)
    }

    fn check(&mut self, target: &Target, addresses: &mut Pointers, mask: u32) -> Outcome {
        let (mut low, mut high, mut bits) = (usize::MAX, 0, 0);
        for address in addresses.iter() {
            low = low.min(*address);
            high = high.max(*address);
            bits |= *address;
        }
        // Bytes of an access are a power of two.
        if bits & (target.bytes - 1) != 0 {
            let is_odd = |lane: &usize| addresses[*lane] & (target.bytes - 1) != 0;
            let lane = lanes_of(mask).find(is_odd).unwrap_or(0);
            let text = format!("{:#x} is not aligned to {} bytes", addresses[lane], target.bytes);
            return trouble(MISALIGNED_ADDRESS, lane, text);
        }
        match target.space {
            Space::Global | Space::Const => self.check_global(target, addresses, (low, high), mask),
            Space::Shared => self.check_shared(target, addresses, high, mask),
            Space::Generic if high & WINDOW as usize == 0 => {
                self.check_global(target, addresses, (low, high), mask)
            }
            space => {
                for lane in lanes_of(mask) {
                    addresses[lane] = self.one(target, space, addresses[lane], lane)?;
                }
                let first = addresses[mask.trailing_zeros() as usize];
                for lane in lanes_of(!mask) {
                    addresses[lane] = first;
                }
                Ok(())
            }
        }
    }

    fn check_global(
        &mut self,
        target: &Target,
        addresses: &Pointers,
        (low, high): (usize, usize),
        mask: u32,
    ) -> Outcome {
        if high.checked_add(target.bytes).is_some_and(|end| self.known.holds(self.memory, low, end)) {
            return Ok(());
        }
        // Lanes may access several pieces.
        for lane in lanes_of(mask) {
            let at = addresses[lane];
            if !at.checked_add(target.bytes).is_some_and(|end| self.known.holds(self.memory, at, end)) {
                let text = format!("{} bytes at {at:#x} are not in global memory", target.bytes);
                return trouble(ILLEGAL_ADDRESS, lane, text);
            }
        }
        Ok(())
    }

    fn check_shared(&mut self, target: &Target, addresses: &mut Pointers, high: usize, mask: u32) -> Outcome {
        if high.checked_add(target.bytes).is_none_or(|end| end > self.shared_bytes) {
            let is_outside = |lane: &usize| addresses[*lane].saturating_add(target.bytes) > self.shared_bytes;
            let lane = lanes_of(mask).find(is_outside).unwrap_or(0);
            let (at, size) = (addresses[lane], self.shared_bytes);
            let text = format!("{} bytes at {at:#x} of {size:#x} of shared memory", target.bytes);
            return trouble(ILLEGAL_ADDRESS, lane, text);
        }
        if let Some(shadow) = &mut self.shadow {
            for lane in lanes_of(mask) {
                let wrong = shadow.access(addresses[lane], target.bytes, self.warp.index, target.access);
                if let Some(wrong) = wrong {
                    let text = format!("shared memory at {:#x}: {wrong}", addresses[lane]);
                    return trouble(LAUNCH_FAILED, lane, text);
                }
            }
        }
        let base = self.shared.as_mut_ptr() as usize;
        addresses.iter_mut().for_each(|address| *address += base);
        Ok(())
    }

    /// A lane's access where each one has memory of its own, or spaces differ.
    fn one(&mut self, target: &Target, space: Space, address: usize, lane: usize) -> Outcome<usize> {
        let (space, address) = match (space, address as u64 & WINDOW) {
            (Space::Generic, SHARED) => (Space::Shared, address - SHARED as usize),
            (Space::Generic, LOCAL) => (Space::Local, address - LOCAL as usize),
            (Space::Generic, PARAM) => (Space::Param, address - PARAM as usize),
            (Space::Generic, _) => (Space::Global, address),
            _ => (space, address),
        };
        let mut alone = [address; LANES];
        let (base, size) = match space {
            Space::Shared => {
                self.check_shared(target, &mut alone, address, 1 << lane)?;
                return Ok(alone[0]);
            }
            Space::Local => {
                (self.warp.local.as_mut_ptr() as usize + lane * self.local_bytes, self.local_bytes)
            }
            Space::Param if target.access == Access::Read => {
                (self.arguments.as_ptr() as usize, self.arguments.len())
            }
            Space::Param => (0, 0),
            _ => {
                self.check_global(target, &alone, (address, address), 1 << lane)?;
                return Ok(address);
            }
        };
        if address.checked_add(target.bytes).is_none_or(|end| end > size) {
            let text = format!("{} bytes at {address:#x} of {size:#x} of {space:?} memory", target.bytes);
            return trouble(ILLEGAL_ADDRESS, lane, text);
        }
        Ok(base + address)
    }
}
