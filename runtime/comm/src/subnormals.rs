//! Subnormal numbers count as zero.
//!
//! Training makes them in masses: the square of a small gradient in the state of an optimizer lies below 1e-38 soon. Processors
//! of x86-64 take some 150 cycles for each of them, so a step became 3.5 times slower the better a model fit its data (ADR 35).

/// From now on the calling thread, and threads that it starts, take subnormal numbers as zero and give zero in place of them, in
/// `f32` and `f64`. Where arithmetic on values goes on in several threads, all do this, or a result depends on who computed it.
///
/// On processors other than x86-64, which compute with them at full speed, this does nothing.
pub fn flush_subnormals() {
    #[cfg(target_arch = "x86_64")]
    set(FLUSH_TO_ZERO | DENORMALS_ARE_ZERO);
}

/// Results (Intel 64 and IA-32 manual, volume 1, 10.2.3).
#[cfg(target_arch = "x86_64")]
const FLUSH_TO_ZERO: u32 = 1 << 15;

/// Operands.
#[cfg(target_arch = "x86_64")]
const DENORMALS_ARE_ZERO: u32 = 1 << 6;

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "the control register of floats has no safe access")]
fn set(bits: u32) {
    let mut control = 0_u32;
    // SAFETY: both instructions access those four bytes and MXCSR. Compilers may assume that arithmetic is that of its default
    // state, so whether a constant was folded decides about a subnormal result of it; no code here depends on one.
    unsafe {
        std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut control, options(nostack, preserves_flags));
        control |= bits;
        std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const control, options(nostack));
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use std::hint::black_box;

    /// What a thread that does this, and one that it starts, make of a product below the least normal number.
    #[test]
    fn subnormal_results_are_zero_in_threads_that_ask_for_it_and_in_theirs() {
        let products = || (black_box(1e-30_f32) * black_box(1e-10), black_box(1e-300_f64) * black_box(1e-10));
        let sum = || black_box(1e-40_f32) + black_box(f32::MIN_POSITIVE);
        std::thread::spawn(move || {
            assert!(products().0 > 0.0 && products().1 > 0.0 && sum() > f32::MIN_POSITIVE);
            flush_subnormals();
            assert_eq!(products(), (0.0, 0.0));
            assert_eq!(sum(), f32::MIN_POSITIVE);
            assert_eq!(std::thread::spawn(products).join().ok(), Some((0.0, 0.0)));
        })
        .join()
        .expect("the thread's own assertions hold");
        assert!(products().0 > 0.0, "other threads go on as they were");
    }
}
