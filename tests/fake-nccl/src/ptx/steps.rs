//! From operands to steps: what numbers of each lane become.

use super::machine::{LANES, Lanes, Step, Value, Word, put};
use super::parser::Operand;
use super::scope::Scope;

pub(super) type Decoded<T = Step> = Result<T, String>;

/// The operands of an instruction, and what their names mean.
pub(super) struct Operands<'a> {
    pub(super) scope: &'a mut Scope,
    pub(super) all: &'a [Operand],
}

impl<'a> Operands<'a> {
    pub(super) fn at(&self, index: usize) -> Decoded<&'a Operand> {
        self.all.get(index).ok_or_else(|| "an operand is missing".to_string())
    }

    pub(super) fn count(&self, expected: usize) -> Decoded<()> {
        let found = self.all.len();
        if found == expected { Ok(()) } else { Err(format!("{found} operands where {expected} are due")) }
    }

    /// The register of an operand that is read; constants have registers too.
    pub(super) fn read<T: Value>(&mut self, index: usize) -> Decoded<usize> {
        let operand = self.at(index)?;
        self.scope.read::<T>(operand)
    }

    /// The register of an operand that is written.
    pub(super) fn write<T: Value>(&mut self, index: usize) -> Decoded<usize> {
        let operand = self.at(index)?;
        self.scope.write::<T::Slot>(operand)
    }

    /// d = f(a).
    pub(super) fn one<A: Value, D: Value>(&mut self, f: impl Fn(A) -> D + Send + Sync + 'static) -> Decoded {
        self.count(2)?;
        let (d, a) = (self.write::<D>(0)?, self.read::<A>(1)?);
        Ok(Box::new(move |machine, mask| {
            let a = &A::Slot::registers(&machine.warp)[a];
            let mut out = Lanes([D::Slot::default(); LANES]);
            for lane in 0..LANES {
                out.0[lane] = f(A::of(a.0[lane])).slot();
            }
            put(&mut machine.warp, d, mask, &out);
            Ok(())
        }))
    }

    /// d = f(a, b).
    pub(super) fn two<A: Value, B: Value, D: Value>(
        &mut self,
        f: impl Fn(A, B) -> D + Send + Sync + 'static,
    ) -> Decoded {
        self.count(3)?;
        let (d, a, b) = (self.write::<D>(0)?, self.read::<A>(1)?, self.read::<B>(2)?);
        Ok(Box::new(move |machine, mask| {
            let (a, b) = (&A::Slot::registers(&machine.warp)[a], &B::Slot::registers(&machine.warp)[b]);
            let mut out = Lanes([D::Slot::default(); LANES]);
            for lane in 0..LANES {
                out.0[lane] = f(A::of(a.0[lane]), B::of(b.0[lane])).slot();
            }
            put(&mut machine.warp, d, mask, &out);
            Ok(())
        }))
    }

    /// d = f(a, b, c).
    pub(super) fn three<A: Value, B: Value, C: Value, D: Value>(
        &mut self,
        f: impl Fn(A, B, C) -> D + Send + Sync + 'static,
    ) -> Decoded {
        self.count(4)?;
        let (d, a) = (self.write::<D>(0)?, self.read::<A>(1)?);
        let (b, c) = (self.read::<B>(2)?, self.read::<C>(3)?);
        Ok(Box::new(move |machine, mask| {
            let warp = &machine.warp;
            let (a, b, c) =
                (&A::Slot::registers(warp)[a], &B::Slot::registers(warp)[b], &C::Slot::registers(warp)[c]);
            let mut out = Lanes([D::Slot::default(); LANES]);
            for lane in 0..LANES {
                out.0[lane] = f(A::of(a.0[lane]), B::of(b.0[lane]), C::of(c.0[lane])).slot();
            }
            put(&mut machine.warp, d, mask, &out);
            Ok(())
        }))
    }

    /// d = f(a, b, c, e).
    pub(super) fn four<A: Value, B: Value, C: Value, E: Value, D: Value>(
        &mut self,
        f: impl Fn(A, B, C, E) -> D + Send + Sync + 'static,
    ) -> Decoded {
        self.count(5)?;
        let (d, a, b) = (self.write::<D>(0)?, self.read::<A>(1)?, self.read::<B>(2)?);
        let (c, e) = (self.read::<C>(3)?, self.read::<E>(4)?);
        Ok(Box::new(move |machine, mask| {
            let warp = &machine.warp;
            let (a, b) = (&A::Slot::registers(warp)[a], &B::Slot::registers(warp)[b]);
            let (c, e) = (&C::Slot::registers(warp)[c], &E::Slot::registers(warp)[e]);
            let mut out = Lanes([D::Slot::default(); LANES]);
            for lane in 0..LANES {
                let (a, b) = (A::of(a.0[lane]), B::of(b.0[lane]));
                out.0[lane] = f(a, b, C::of(c.0[lane]), E::of(e.0[lane])).slot();
            }
            put(&mut machine.warp, d, mask, &out);
            Ok(())
        }))
    }
}

/// The mask of the lanes for which it holds.
#[inline(always)]
pub(super) fn test<A: Value>(a: &Lanes<A::Slot>, b: &Lanes<A::Slot>, holds: impl Fn(A, A) -> bool) -> u32 {
    let mut mask = 0;
    for lane in 0..LANES {
        mask |= u32::from(holds(A::of(a.0[lane]), A::of(b.0[lane]))) << lane;
    }
    mask
}

/// Expands to a match on an integer type, in which `$t` is Rust's.
macro_rules! integers {
    ($ty:expr, $t:ident => $body:expr) => {{
        use super::types::Type;
        match $ty {
            Type::U16 | Type::B16 => {
                type $t = u16;
                $body
            }
            Type::S16 => {
                type $t = i16;
                $body
            }
            Type::U32 | Type::B32 => {
                type $t = u32;
                $body
            }
            Type::S32 => {
                type $t = i32;
                $body
            }
            Type::U64 | Type::B64 => {
                type $t = u64;
                $body
            }
            Type::S64 => {
                type $t = i64;
                $body
            }
            other => return Err(format!("no such operation on {other:?}")),
        }
    }};
}
pub(super) use integers;
