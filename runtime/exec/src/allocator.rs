//! The allocator of commands: memory that cannot be had ends the process with a diagnostic, where the standard library would abort it.
#![expect(unsafe_code, reason = "an allocator is unsafe by its trait")]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::collections::TryReserveError;
use std::io::Write as _;

/// An allocator around another one. Where that has no memory, the process ends with the error E0401 on standard error and exit code
/// 1, unless [`try_reserve`] asked for it.
pub struct DiagnosedAllocator<A>(pub A);

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

fn checked(memory: *mut u8, bytes: usize) -> *mut u8 {
    // A thread that ends may have no such variable any more.
    if memory.is_null() && !TRIES.try_with(Cell::get).unwrap_or(false) {
        end(bytes);
    }
    memory
}

/// Says what is wrong, without an allocation, and ends the process.
#[cold]
fn end(bytes: usize) -> ! {
    let mut text = [0; 512];
    let mut rest = &mut text[..];
    // Nobody is left to tell where this fails.
    let _ = write!(
        rest,
        "error[E0401]: the system has no more memory: {bytes} bytes more could not be had\n  \
         = help: give it less to do, such as smaller sizes or fewer files at once, or more memory: see `ulimit -v`, and the limit of the container\n"
    );
    let left = rest.len();
    let _ = std::io::stderr().write_all(&text[..text.len() - left]);
    std::process::exit(1)
}

// SAFETY: every call is one of the allocator within with the same arguments, and gives what that gives.
unsafe impl<A: GlobalAlloc> GlobalAlloc for DiagnosedAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as promised by the caller.
        checked(unsafe { self.0.alloc(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as promised by the caller.
        unsafe { self.0.dealloc(memory, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as promised by the caller.
        checked(unsafe { self.0.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as promised by the caller.
        checked(unsafe { self.0.realloc(memory, layout, size) }, size)
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
