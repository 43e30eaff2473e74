//! Calls into a library that may panic on a stranger's file.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static AWAITED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread is awaited, so that it is not to be reported as a bug.
pub fn panics_are_awaited() -> bool {
    AWAITED.get()
}

/// Calls `f`, which does not go to other threads. An error is what it panicked with.
pub(crate) fn catch<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    let before = AWAITED.replace(true);
    let done = catch_unwind(AssertUnwindSafe(f));
    AWAITED.set(before);
    done.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_string()
    })
}
