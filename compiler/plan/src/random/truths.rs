//! How truth values are made of the random bits of a counter.

/// How truth values of a rate are made of random bits: where 16 bits each give the rate within a thousandth of it and of what is
/// left to 1, eight elements share a counter, else four with 32 bits each. Element `i` of a counter has the bits from `i` times
/// so many on, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truths {
    /// How many elements share a counter: 8 or 4.
    pub to_a_counter: u64,
    /// The least number of so many bits that is true. The greatest of all always is.
    pub least: u32,
}

impl Truths {
    /// Of a rate of false ones, at least 0 and less than 1.
    pub fn of(rate: f64) -> Truths {
        let short = Truths { to_a_counter: 8, least: least_true(rate, 16) };
        let off = (f64::from(short.least) / f64::from(1u32 << 16) - rate).abs();
        if off <= 1e-3 * rate.min(1.0 - rate) {
            return short;
        }
        Truths { to_a_counter: 4, least: least_true(rate, 32) }
    }

    /// Bits of an element.
    pub fn bits(self) -> u32 {
        128 / self.to_a_counter as u32
    }

    /// Whether the lowest bits of a word are.
    #[inline(always)]
    pub fn is_true(self, word: u32) -> bool {
        (if self.to_a_counter == 8 { word & 0xffff } else { word }) >= self.least
    }
}

/// The first of 2^`bits` equal cells of (0, 1) whose middle is at least `rate`, or the last.
fn least_true(rate: f64, bits: u32) -> u32 {
    let cells = (1u64 << bits) as f64;
    let (mut low, mut high) = (0u32, u32::MAX >> (32 - bits));
    while low < high {
        let mid = low + (high - low) / 2;
        if (f64::from(mid) + 0.5) / cells >= rate { high = mid } else { low = mid + 1 }
    }
    low
}
