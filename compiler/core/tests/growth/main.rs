//! The benchmark of growth: what the compiler takes in time and memory for each construct, against the size of the text.
//!
//! Each construct is examined at two sizes. The exponent by which its time grows in between, and that of its memory, is at most
//! [`EXPONENT`]. No text takes more than [`MOST_SECONDS`], as far as this machine is as fast as usual, or [`MOST_BYTES`]. Time is
//! the CPU's, of this process, which does nothing else meanwhile. Others share the machine, and its speed doubles and halves
//! within a second: the large text is compared with the small one just before and just after it, never with one of another
//! moment. What seems too slow is measured again and the best comparison counts; what others' use of the caches adds to the time
//! of a linear program of as much memory, up to 0.3, is not a fault.
//!
//! `cargo test --release -p meshwright-core --test growth -- --nocapture NAME` prints the numbers.

#![allow(clippy::print_stdout, reason = "a runner of tests prints")]

mod constructs;
mod examine;

use constructs::{Construct, Text, constructs};
use meshwright_speed::{process_time, slowness};
use mimalloc::MiMalloc;
use peakmem_alloc::{PeakMemAlloc, PeakMemAllocTrait};
use std::alloc::{GlobalAlloc, Layout};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// The allocator of the command `meshwright`, and what it gives at most.
#[global_allocator]
static ALLOCATOR: CountedAllocator = CountedAllocator(PeakMemAlloc::new(MiMalloc));

/// Whether memory is counted now. Time is measured without: counters shared by all threads take a tenth of it, which the
/// command does not spend.
static COUNTS: AtomicBool = AtomicBool::new(false);

/// An allocator that counts while [`COUNTS`].
struct CountedAllocator(PeakMemAlloc<MiMalloc>);

#[allow(unsafe_code, reason = "an allocator is unsafe by its trait; both ways lead to the same one")]
unsafe impl GlobalAlloc for CountedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTS.load(Ordering::Relaxed) {
            unsafe { self.0.alloc(layout) }
        } else {
            unsafe { MiMalloc.alloc(layout) }
        }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        if COUNTS.load(Ordering::Relaxed) {
            unsafe { self.0.dealloc(place, layout) }
        } else {
            unsafe { MiMalloc.dealloc(place, layout) }
        }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if COUNTS.load(Ordering::Relaxed) {
            unsafe { self.0.realloc(place, layout, size) }
        } else {
            unsafe { MiMalloc.realloc(place, layout, size) }
        }
    }
}

/// Most that time and memory may grow by: the exponent of the size.
const EXPONENT: f64 = 1.2;
/// Most CPU time for one text, on a machine that is as fast as usual.
const MOST_SECONDS: f64 = 2.0;
/// Most memory for one text.
const MOST_BYTES: f64 = 500e6;
/// How often the texts are compared before the large one counts as too slow.
const TRIES: usize = 12;
/// Time below which growth does not differ from noise, and the memory that any text takes.
const FLOOR: [f64; 2] = [2e-3, 2e6];

fn cpu_seconds() -> f64 {
    process_time().as_secs_f64()
}

/// Seconds that a text takes.
fn seconds(text: &Text) -> f64 {
    let begin = cpu_seconds();
    let said = examine::examine(text);
    let took = cpu_seconds() - begin;
    drop(said);
    took
}

/// Most bytes at once that a text takes.
fn bytes(text: &Text) -> f64 {
    ALLOCATOR.0.reset_peak_memory();
    COUNTS.store(true, Ordering::Relaxed);
    let said = examine::examine(text);
    COUNTS.store(false, Ordering::Relaxed);
    drop(said);
    ALLOCATOR.0.get_peak_memory() as f64
}

/// Growth of the time of a linear program beyond a linear one, from a small to a large number of bytes: what caches and
/// programs that share them add at this moment.
fn added_by_memory([small, large]: [f64; 2]) -> f64 {
    let walk = |bytes: f64| {
        let begin = cpu_seconds();
        let mut nodes: Vec<Box<[u64; 8]>> = (0..bytes as u64 / 128).map(|i| Box::new([i; 8])).collect();
        for _ in 0..4 {
            nodes = nodes.iter().map(|n| Box::new(n.map(|x| x.wrapping_mul(3)))).collect();
        }
        assert!(nodes.iter().map(|n| n[0] & 1).sum::<u64>() <= nodes.len() as u64);
        cpu_seconds() - begin
    };
    if large < small * 1.5 {
        return 0.0;
    }
    let (quick, slow) = (walk(small), walk(large));
    ((slow / quick).ln() / (large / small).ln() - 1.0).max(0.0)
}

/// A construct at its two sizes, in the comparison in which it did best.
struct Measured {
    small: [f64; 2],
    /// Of the time the least of all comparisons: others who share the machine only add to it.
    large: [f64; 2],
    /// That time as a part of what is allowed on this machine, as slow as it was then.
    of_allowed: f64,
    /// Exponents of time and memory.
    exponents: [f64; 2],
    /// What memory alone added to the first, where it was too large.
    added: f64,
}

impl Measured {
    fn of(c: &Construct) -> Measured {
        let (small, large) = ((c.text)(c.size), (c.text)(c.size * c.times));
        bytes(&small); // what is allocated once
        let memory = [bytes(&small), bytes(&large)];
        let mut best = Measured::once(c, &small, &large, memory);
        for _ in 1..TRIES {
            if best.faults().is_empty() {
                break;
            }
            let added = added_by_memory([best.small[1], best.large[1]].map(|b| b.max(FLOOR[1])));
            let again = Measured::once(c, &small, &large, memory);
            let added = best.added.max(added).min(0.3);
            let least = best.large[0].min(again.large[0]);
            let of_allowed = best.of_allowed.min(again.of_allowed);
            if again.exponents[0] < best.exponents[0] {
                best = again;
            }
            best.added = added;
            (best.large[0], best.of_allowed) = (least, of_allowed);
        }
        best
    }

    /// The time of the large text between two measurements of that of the small one.
    fn once(c: &Construct, small: &Text, large: &Text, memory: [f64; 2]) -> Measured {
        let (before, long, slow, after) = (seconds(small), seconds(large), slowness(), seconds(small));
        let small = [(before + after) / 2.0, memory[0]];
        let large = [long, memory[1]];
        let exponents = [0, 1].map(|k| {
            let grown = large[k].max(FLOOR[k]) / small[k].max(FLOOR[k]);
            grown.ln() / (c.times as f64).ln()
        });
        Measured { small, large, of_allowed: long / (MOST_SECONDS * slow), exponents, added: 0.0 }
    }

    fn faults(&self) -> Vec<String> {
        let grows = |k: usize, what: &str| {
            let added = if k == 0 { self.added } else { 0.0 };
            (self.exponents[k] > EXPONENT + added)
                .then(|| format!("{what} grows with the size to the power of {:.2}", self.exponents[k]))
        };
        let slow = (self.of_allowed > 1.0)
            .then(|| format!("takes {:.2} s, {:.2} of what is allowed", self.large[0], self.of_allowed));
        let large = (self.large[1] > MOST_BYTES).then(|| format!("takes {:.0} MB", self.large[1] / 1e6));
        [grows(0, "time"), grows(1, "memory"), slow, large].into_iter().flatten().collect()
    }
}

#[allow(clippy::print_stdout, reason = "the report of a benchmark")]
fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let chosen = |c: &&Construct| args.is_empty() || args.iter().any(|a| c.name.contains(a.as_str()));
    let all = constructs();
    let (mut run, mut failed) = (0, 0);
    println!("{:40} {:>7} {:>18} {:>18} {:>13}", "construct", "size", "small", "large", "exponents");
    for c in all.iter().filter(chosen) {
        let m = Measured::of(c);
        let pair = |x: [f64; 2]| format!("{:.0} ms {:.1} MB", x[0] * 1e3, x[1] / 1e6);
        let exponents = format!("{:.2} {:.2}", m.exponents[0], m.exponents[1]);
        let (small, large) = (pair(m.small), pair(m.large));
        println!("{:40} {:>7} {small:>18} {large:>18} {exponents:>13}", c.name, c.size * c.times);
        run += 1;
        let faults = m.faults();
        failed += usize::from(!faults.is_empty());
        faults.iter().for_each(|f| println!("    FAILED: {f}"));
    }
    println!(
        "\ntest result: {}. {} passed; {failed} failed",
        if failed == 0 { "ok" } else { "FAILED" },
        run - failed
    );
    ExitCode::from(u8::from(failed > 0))
}
