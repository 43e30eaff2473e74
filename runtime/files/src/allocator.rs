//! The allocator of commands: memory that cannot be had ends the process as the command says, where the standard library would
//! abort it.
#![expect(unsafe_code, reason = "an allocator is unsafe by its trait")]

use libmimalloc_sys::{
    mi_free, mi_malloc, mi_malloc_aligned, mi_realloc, mi_realloc_aligned, mi_zalloc, mi_zalloc_aligned,
};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::collections::TryReserveError;

/// The allocator mimalloc, with an end for commands that run out of memory.
pub struct DiagnosedAllocator {
    /// Ends the process where there is no memory for the bytes, unless [`try_reserve`] asked for them. It must allocate
    /// nothing.
    pub end: fn(usize) -> !,
}

thread_local! {
    /// Whether who asks for memory can do without.
    static TRIES: Cell<bool> = const { Cell::new(false) };
}

/// Makes room for exactly so many more elements.
///
/// # Errors
///
/// Where memory lacks it.
pub fn try_reserve<T>(list: &mut Vec<T>, more: usize) -> Result<(), TryReserveError> {
    TRIES.set(true);
    let reserved = list.try_reserve_exact(more);
    TRIES.set(false);
    reserved
}

/// The alignment that mimalloc gives every block of that many bytes or more. Its functions for other alignments take
/// three times the instructions.
const ALIGNED: usize = 16;

/// Whether a block is aligned as it should be without being asked for.
fn is_aligned(layout: Layout, bytes: usize) -> bool {
    layout.align() <= ALIGNED && layout.align() <= bytes
}

impl DiagnosedAllocator {
    fn checked(&self, memory: *mut u8, bytes: usize) -> *mut u8 {
        // A thread that ends may have no such variable any more.
        if memory.is_null() && !TRIES.try_with(Cell::get).unwrap_or(false) {
            (self.end)(bytes);
        }
        memory
    }
}

// SAFETY: blocks are those of mimalloc, which its other functions take too, whatever their alignment.
unsafe impl GlobalAlloc for DiagnosedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let bytes = layout.size();
        // SAFETY: as promised by the caller.
        let memory = unsafe {
            match is_aligned(layout, bytes) {
                true => mi_malloc(bytes),
                false => mi_malloc_aligned(bytes, layout.align()),
            }
        };
        self.checked(memory.cast(), bytes)
    }

    unsafe fn dealloc(&self, memory: *mut u8, _: Layout) {
        // SAFETY: as promised by the caller.
        unsafe { mi_free(memory.cast()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let bytes = layout.size();
        // SAFETY: as promised by the caller.
        let memory = unsafe {
            match is_aligned(layout, bytes) {
                true => mi_zalloc(bytes),
                false => mi_zalloc_aligned(bytes, layout.align()),
            }
        };
        self.checked(memory.cast(), bytes)
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: as promised by the caller.
        let memory = unsafe {
            match is_aligned(layout, bytes) {
                true => mi_realloc(memory.cast(), bytes),
                false => mi_realloc_aligned(memory.cast(), bytes, layout.align()),
            }
        };
        self.checked(memory.cast(), bytes)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::{DiagnosedAllocator, try_reserve};
    use std::alloc::{GlobalAlloc, Layout};

    /// Blocks of every size and alignment are aligned, keep their contents when they grow and shrink, and are zeroed where
    /// asked for.
    #[test]
    fn blocks_are_aligned_and_keep_their_contents() {
        let allocator = DiagnosedAllocator { end: |bytes| panic!("no {bytes} bytes") };
        let byte = |i: usize| (i * 7 + 1) as u8;
        for align in [1, 2, 4, 8, 16, 32, 64, 4096] {
            for bytes in [1, 3, 8, 15, 16, 24, 100, 5000, 300_000] {
                let of = |bytes| Layout::from_size_align(bytes, align).unwrap();
                // SAFETY: layouts have sizes, and blocks are used within them.
                unsafe {
                    let mut block = allocator.alloc_zeroed(of(bytes));
                    assert!((0..bytes).all(|i| block.add(i).read() == 0), "{bytes} bytes at {align}");
                    (0..bytes).for_each(|i| block.add(i).write(byte(i)));
                    let mut size = bytes;
                    for next in [2 * bytes, 9 * bytes, bytes.div_ceil(2)] {
                        block = allocator.realloc(block, of(size), next);
                        size = next;
                        assert!(block.addr().is_multiple_of(align), "{size} bytes at {align}");
                        let kept = (0..bytes.min(next)).all(|i| block.add(i).read() == byte(i));
                        assert!(kept, "{size} bytes at {align}");
                    }
                    allocator.dealloc(block, of(size));
                    let block = allocator.alloc(of(bytes));
                    assert!(block.addr().is_multiple_of(align), "{bytes} bytes at {align}");
                    allocator.dealloc(block, of(bytes));
                }
            }
        }
    }

    #[test]
    fn what_can_do_without_is_told_so() {
        let mut list: Vec<u64> = Vec::new();
        assert!(try_reserve(&mut list, 1 << 59).is_err());
        assert!(try_reserve(&mut list, 10).is_ok() && list.capacity() >= 10);
    }
}
