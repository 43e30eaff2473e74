//! The allocator of commands: memory that cannot be had ends the process as the command says, where the standard library would
//! abort it.
#![expect(unsafe_code, reason = "an allocator is unsafe by its trait")]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::collections::TryReserveError;

/// An allocator around another one.
pub struct DiagnosedAllocator<A> {
    /// The other one.
    pub within: A,
    /// Ends the process where that has no memory for so many bytes, unless [`try_reserve`] asked for them. It must allocate
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

impl<A> DiagnosedAllocator<A> {
    fn checked(&self, memory: *mut u8, bytes: usize) -> *mut u8 {
        // A thread that ends may have no such variable any more.
        if memory.is_null() && !TRIES.try_with(Cell::get).unwrap_or(false) {
            (self.end)(bytes);
        }
        memory
    }
}

// SAFETY: every call is one of the allocator within with the same arguments, and gives what that gives.
unsafe impl<A: GlobalAlloc> GlobalAlloc for DiagnosedAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as promised by the caller.
        self.checked(unsafe { self.within.alloc(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as promised by the caller.
        unsafe { self.within.dealloc(memory, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as promised by the caller.
        self.checked(unsafe { self.within.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as promised by the caller.
        self.checked(unsafe { self.within.realloc(memory, layout, size) }, size)
    }
}

#[cfg(test)]
mod tests {
    use super::try_reserve;

    #[test]
    fn what_can_do_without_is_told_so() {
        let mut list: Vec<u64> = Vec::new();
        assert!(try_reserve(&mut list, 1 << 59).is_err());
        assert!(try_reserve(&mut list, 10).is_ok() && list.capacity() >= 10);
    }
}
