//! Elements of matrices, by `cudaDataType_t`.

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    F64,
    F32,
    F16,
    BF16,
    E4M3,
    E5M2,
}

pub(crate) fn kind(code: i32) -> Option<Kind> {
    match code {
        0 => Some(Kind::F32),
        1 => Some(Kind::F64),
        2 => Some(Kind::F16),
        14 => Some(Kind::BF16),
        28 => Some(Kind::E4M3),
        29 => Some(Kind::E5M2),
        _ => None,
    }
}

impl Kind {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Kind::F64 => 8,
            Kind::F32 => 4,
            Kind::F16 | Kind::BF16 => 2,
            Kind::E4M3 | Kind::E5M2 => 1,
        }
    }

    /// Whether it has 8 bits.
    pub(crate) fn is_fp8(self) -> bool {
        self.bytes() == 1
    }

    fn place(self, base: usize, index: i64) -> usize {
        base.wrapping_add_signed(index as isize * self.bytes() as isize)
    }

    pub(crate) unsafe fn read(self, base: usize, index: i64) -> f64 {
        let at = self.place(base, index);
        unsafe {
            match self {
                Kind::F64 => (at as *const f64).read_unaligned(),
                Kind::F32 => (at as *const f32).read_unaligned().into(),
                Kind::BF16 => f32::from_bits(u32::from((at as *const u16).read_unaligned()) << 16).into(),
                Kind::F16 => from_f16((at as *const u16).read_unaligned()),
                Kind::E4M3 => from_fp8((at as *const u8).read(), 3),
                Kind::E5M2 => from_fp8((at as *const u8).read(), 2),
            }
        }
    }

    pub(crate) unsafe fn write(self, base: usize, index: i64, x: f64) {
        let at = self.place(base, index);
        unsafe {
            match self {
                Kind::F64 => (at as *mut f64).write_unaligned(x),
                Kind::F32 => (at as *mut f32).write_unaligned(x as f32),
                Kind::BF16 => (at as *mut u16).write_unaligned(to_bf16(x as f32)),
                Kind::F16 => (at as *mut u16).write_unaligned(to_f16(x as f32)),
                // Layouts of results have no such type.
                Kind::E4M3 | Kind::E5M2 => {}
            }
        }
    }
}

/// To the nearest, ties to even.
fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

fn from_f16(bits: u16) -> f64 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, rest) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    match (exponent, rest) {
        (31, r) if r > 0.0 => f64::NAN,
        (31, _) => sign * f64::INFINITY,
        (0, r) => sign * r * 2f64.powi(-24),
        (e, r) => sign * (1024.0 + r) * 2f64.powi(e - 25),
    }
}

/// A float of 8 bits with that many after the point: three with one code for no number, or two as in IEEE 754.
fn from_fp8(code: u8, digits: u32) -> f64 {
    let (sign, bits) = (if code & 0x80 == 0 { 1.0 } else { -1.0 }, u32::from(code & 0x7f));
    let (exponent, rest) = ((bits >> digits) as i32, f64::from(bits & ((1 << digits) - 1)));
    let one = f64::from(1u32 << digits);
    let bias = if digits == 3 { 7 } else { 15 };
    match (digits, exponent, bits) {
        (3, _, 0x7f) => f64::NAN,
        (2, 31, _) => {
            if rest > 0.0 {
                f64::NAN
            } else {
                sign * f64::INFINITY
            }
        }
        (_, 0, _) => sign * rest / one * 2f64.powi(1 - bias),
        _ => sign * (1.0 + rest / one) * 2f64.powi(exponent - bias),
    }
}

/// To the nearest, ties to even.
fn to_f16(x: f32) -> u16 {
    let sign = (x.to_bits() >> 16 & 0x8000) as u16;
    let x = f64::from(x.abs());
    if x.is_nan() {
        return sign | 0x7e00;
    }
    // The step between neighbors at this size.
    let exponent = (x.log2().floor() as i32).clamp(-14, 16);
    let steps = (x / 2f64.powi(exponent - 10)).round_ties_even() as i64;
    let bits = (i64::from(exponent + 14) << 10) + steps;
    sign | bits.min(0x7c00) as u16
}
