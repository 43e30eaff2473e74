//! Numbers in single and double precision.

use super::rounding::{F32, Rounding, odd, two_sum};
use super::steps::{Decoded, Operands};
use super::types::{Mnemonic, Type};

/// How a result in single precision is made.
#[derive(Clone, Copy)]
struct Finish {
    rounding: Rounding,
    /// Subnormal numbers are zero, before and after.
    flushes: bool,
    /// Between 0 and 1.
    saturates: bool,
}

impl Finish {
    fn is_plain(self) -> bool {
        self.rounding == Rounding::NearestEven && !self.flushes && !self.saturates
    }

    #[inline(always)]
    fn input(self, x: f32) -> f32 {
        if self.flushes { flushed(x) } else { x }
    }

    /// Of an exact result in two parts.
    fn exact(self, parts: (f64, f64)) -> f32 {
        self.output(f32::from_bits(F32.narrow(odd(parts), self.rounding)))
    }

    #[inline(always)]
    fn output(self, x: f32) -> f32 {
        let x = if self.flushes { flushed(x) } else { x };
        if self.saturates { saturated(x) } else { x }
    }
}

/// A subnormal number as zero.
#[inline(always)]
pub(super) fn flushed(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { 0f32.copysign(x) } else { x }
}

/// Between 0 and 1; what is no number is 0.
#[inline(always)]
pub(super) fn saturated(x: f32) -> f32 {
    if x > 0.0 { x.min(1.0) } else { 0.0 }
}

/// The smaller one; a number where one is none; -0 is less than 0.
macro_rules! least {
    ($a:ident, $b:ident) => {
        if $a.is_nan() {
            $b
        } else if $b.is_nan() {
            $a
        } else if $a < $b || ($a == $b && $a.is_sign_negative()) {
            $a
        } else {
            $b
        }
    };
}

macro_rules! greatest {
    ($a:ident, $b:ident) => {
        if $a.is_nan() {
            $b
        } else if $b.is_nan() {
            $a
        } else if $a > $b || ($a == $b && $a.is_sign_positive()) {
            $a
        } else {
            $b
        }
    };
}

pub(super) fn decode(mnemonic: &mut Mnemonic, operands: &mut Operands) -> Decoded {
    let rounding = mnemonic.one_of(&["rn", "rz", "rm", "rp"]).map(Rounding::named);
    let flushes = mnemonic.flag("ftz");
    let is_approximate = mnemonic.flag("approx") | mnemonic.flag("full");
    let saturates = mnemonic.flag("sat");
    let keeps_nan = mnemonic.flag("NaN");
    let ty = mnemonic.ty()?;
    let finish = Finish { rounding: rounding.unwrap_or(Rounding::NearestEven), flushes, saturates };
    match (ty, mnemonic.head) {
        (Type::F32, "min" | "max") => extremes(mnemonic.head == "max", keeps_nan, finish, operands),
        (Type::F32, "add" | "sub" | "mul" | "fma" | "mad") if finish.is_plain() => {
            plain(mnemonic.head, operands)
        }
        (Type::F32, "add" | "sub" | "mul" | "fma" | "mad") => finished(mnemonic.head, finish, operands),
        (Type::F32, head) => functions(head, is_approximate, finish, operands),
        // That of a double without its lower half, with subnormal numbers as zero, is as good as the whole.
        (Type::F64, "rcp" | "rsqrt") if is_approximate && rounding.is_none() => {
            double(mnemonic.head, operands)
        }
        (Type::F64, head) if finish.is_plain() => double(head, operands),
        _ => Err(format!("no such operation on {ty:?}")),
    }
}

fn plain(head: &str, operands: &mut Operands) -> Decoded {
    match head {
        "add" => operands.two(|a: f32, b: f32| a + b),
        "sub" => operands.two(|a: f32, b: f32| a - b),
        "mul" => operands.two(|a: f32, b: f32| a * b),
        _ => operands.three(|a: f32, b: f32, c: f32| a.mul_add(b, c)),
    }
}

fn finished(head: &str, finish: Finish, operands: &mut Operands) -> Decoded {
    let input = move |x: f32| f64::from(finish.input(x));
    match head {
        "add" => operands.two(move |a: f32, b: f32| finish.exact(two_sum(input(a), input(b)))),
        "sub" => operands.two(move |a: f32, b: f32| finish.exact(two_sum(input(a), -input(b)))),
        "mul" => operands.two(move |a: f32, b: f32| finish.exact((input(a) * input(b), 0.0))),
        _ => {
            operands.three(move |a: f32, b: f32, c: f32| finish.exact(two_sum(input(a) * input(b), input(c))))
        }
    }
}

fn extremes(is_max: bool, keeps_nan: bool, finish: Finish, operands: &mut Operands) -> Decoded {
    let nan = move |a: f32, b: f32| keeps_nan && (a.is_nan() || b.is_nan());
    if is_max {
        return operands.two(move |a: f32, b: f32| {
            let (a, b) = (finish.input(a), finish.input(b));
            if nan(a, b) { f32::from_bits(F32.nan()) } else { greatest!(a, b) }
        });
    }
    operands.two(move |a: f32, b: f32| {
        let (a, b) = (finish.input(a), finish.input(b));
        if nan(a, b) { f32::from_bits(F32.nan()) } else { least!(a, b) }
    })
}

/// What GPUs approximate is as exact here as the library has it.
fn functions(head: &str, is_approximate: bool, finish: Finish, operands: &mut Operands) -> Decoded {
    if finish.rounding != Rounding::NearestEven {
        return Err("rounds in a way that is not known of it".into());
    }
    let one = |operands: &mut Operands, f: fn(f32) -> f32| {
        operands.one(move |a: f32| finish.output(f(finish.input(a))))
    };
    match head {
        "div" => operands.two(move |a: f32, b: f32| finish.output(finish.input(a) / finish.input(b))),
        "neg" => operands.one(move |a: f32| -finish.input(a)),
        "abs" => operands.one(move |a: f32| finish.input(a).abs()),
        "copysign" => operands.two(|sign: f32, size: f32| size.copysign(sign)),
        "rcp" => operands.one(move |a: f32| finish.output(1.0 / finish.input(a))),
        "sqrt" => operands.one(move |a: f32| finish.output(finish.input(a).sqrt())),
        "rsqrt" if is_approximate => one(operands, |a| (1.0 / f64::from(a).sqrt()) as f32),
        "sin" if is_approximate => one(operands, |a| f64::from(a).sin() as f32),
        "cos" if is_approximate => one(operands, |a| f64::from(a).cos() as f32),
        "ex2" if is_approximate => one(operands, f32::exp2),
        "lg2" if is_approximate => one(operands, f32::log2),
        "tanh" if is_approximate => one(operands, f32::tanh),
        _ => Err("unknown instruction".into()),
    }
}

fn double(head: &str, operands: &mut Operands) -> Decoded {
    match head {
        "add" => operands.two(|a: f64, b: f64| a + b),
        "sub" => operands.two(|a: f64, b: f64| a - b),
        "mul" => operands.two(|a: f64, b: f64| a * b),
        "div" => operands.two(|a: f64, b: f64| a / b),
        "fma" | "mad" => operands.three(|a: f64, b: f64, c: f64| a.mul_add(b, c)),
        "min" => operands.two(|a: f64, b: f64| least!(a, b)),
        "max" => operands.two(|a: f64, b: f64| greatest!(a, b)),
        "neg" => operands.one(|a: f64| -a),
        "abs" => operands.one(|a: f64| a.abs()),
        "copysign" => operands.two(|sign: f64, size: f64| size.copysign(sign)),
        "rcp" => operands.one(|a: f64| 1.0 / a),
        "sqrt" => operands.one(|a: f64| a.sqrt()),
        "rsqrt" => operands.one(|a: f64| 1.0 / a.sqrt()),
        _ => Err("unknown instruction".into()),
    }
}
