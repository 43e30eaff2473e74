//! Faults on purpose.

use crate::lock;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int};
use std::sync::Mutex;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FakeFault {
    Stall,
    Error,
    Refuse,
    Slow,
}

#[derive(Default)]
struct Faults {
    /// By GPU and call.
    known: BTreeMap<(c_int, u64), FakeFault>,
    calls: BTreeMap<c_int, u64>,
    environment_read: bool,
}

static FAULTS: Mutex<Faults> =
    Mutex::new(Faults { known: BTreeMap::new(), calls: BTreeMap::new(), environment_read: false });

fn parse(text: &str) -> Option<((c_int, u64), FakeFault)> {
    let mut parts = text.trim().split(':');
    let fault = match parts.next()? {
        "stall" => FakeFault::Stall,
        "error" => FakeFault::Error,
        "refuse" => FakeFault::Refuse,
        "slow" => FakeFault::Slow,
        _ => return None,
    };
    let gpu = parts.next()?.strip_prefix("gpu")?.parse().ok()?;
    let call = parts.next()?.strip_prefix("call")?.parse().ok()?;
    Some(((gpu, call), fault))
}

/// Adds a fault; 1 where the text is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakeFault(text: *const c_char) -> c_int {
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    match parse(&text) {
        Some((at, fault)) => {
            lock(&FAULTS).known.insert(at, fault);
            0
        }
        None => 1,
    }
}

/// Counts a call of a GPU, and says what goes wrong with it.
pub(crate) fn next(gpu: c_int) -> Option<FakeFault> {
    let mut faults = lock(&FAULTS);
    if !faults.environment_read {
        faults.environment_read = true;
        let text = std::env::var("FAKE_NCCL_FAULT").unwrap_or_default();
        for fault in text.split(';').filter(|t| !t.is_empty()) {
            match parse(fault) {
                Some((at, fault)) => {
                    faults.known.insert(at, fault);
                }
                None => panic!("FAKE_NCCL_FAULT: no fault: {fault}"),
            }
        }
    }
    let calls = faults.calls.entry(gpu).or_default();
    let call = *calls;
    *calls += 1;
    faults.known.get(&(gpu, call)).copied()
}
