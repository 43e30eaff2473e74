//! Instruction sets, chosen when the program runs.

use std::sync::OnceLock;

/// An instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Isa {
    /// The instructions that the program was compiled for.
    Portable,
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// An instruction set that this machine has: values come from [`Level::best`] and [`Level::available`] alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Level(Isa);

impl Level {
    /// The widest.
    pub(super) fn best() -> Level {
        static BEST: OnceLock<Level> = OnceLock::new();
        *BEST.get_or_init(|| Level::available().last().copied().unwrap_or(Level(Isa::Portable)))
    }

    /// All, narrowest first.
    pub(super) fn available() -> Vec<Level> {
        #[cfg(target_arch = "x86_64")]
        {
            let fma = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let wide = fma
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl");
            let all = [(true, Isa::Portable), (fma, Isa::Avx2), (wide, Isa::Avx512)];
            all.into_iter().filter(|(has, _)| *has).map(|(_, isa)| Level(isa)).collect()
        }
        #[cfg(not(target_arch = "x86_64"))]
        vec![Level(Isa::Portable)]
    }

    /// The instruction set of this level.
    pub(super) fn isa(self) -> Isa {
        self.0
    }
}

/// Defines a function that is compiled once for each instruction set; its first argument is the [`Level`]. Generic
/// parameters stand in `[]`. The body may use the constant `FMA`: whether fused multiply-add is an instruction.
macro_rules! multiversion {
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident[$($g:ident: $bound:path),*]($($a:ident: $t:ty),* $(,)?) $(-> $ret:ty)?
        { $($body:tt)* }
    ) => {
        $(#[$meta])*
        #[cfg_attr(
            target_arch = "x86_64",
            expect(unsafe_code, reason = "calls of functions compiled for more than the base instruction set")
        )]
        $vis fn $name<$($g: $bound),*>(level: $crate::kernels::instruction_set::Level, $($a: $t),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::extra_unused_type_parameters, reason = "not every body asks for FMA")]
            fn body<const FMA: bool, $($g: $bound),*>($($a: $t),*) $(-> $ret)? {
                $($body)*
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
            fn avx512<$($g: $bound),*>($($a: $t),*) $(-> $ret)? {
                body::<true, $($g),*>($($a),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2<$($g: $bound),*>($($a: $t),*) $(-> $ret)? {
                body::<true, $($g),*>($($a),*)
            }
            match level.isa() {
                // SAFETY: a `Level` exists only where the machine was found to have these features.
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::instruction_set::Isa::Avx512 => unsafe { avx512::<$($g),*>($($a),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::instruction_set::Isa::Avx2 => unsafe { avx2::<$($g),*>($($a),*) },
                $crate::kernels::instruction_set::Isa::Portable => body::<false, $($g),*>($($a),*),
            }
        }
    };
}
pub(super) use multiversion;
