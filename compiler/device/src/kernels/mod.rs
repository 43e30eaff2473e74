//! Kernels as data: the description of each, which is made when a Plan is compiled for a device.

pub mod attention;
pub mod call;
pub mod dims;
pub mod fold;
pub mod fold_blocks;
pub mod fp8_factor;
pub mod host;
pub mod index;
pub mod join;
pub mod map;
pub mod matmul;
pub mod matmul_group;
pub mod merged_dims;
pub mod random;
pub mod result;
pub mod rows;
pub mod scalar;
pub(crate) mod table;
pub mod windows;

use crate::error::KernelError;
use crate::slot::Residual;
use burn_ir::TensorIr;
use call::{CallWork, Computes, KernelCall, Launcher, SpacedTensors};
use host::{HostKernel, HostWork};
use matmul::FactorDigits;
use meshwright_plan::Dim;
use random::RandomBlock;
use result::ResultMemory;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use table::kernels;

macro_rules! kernel {
    ($($(#[$doc:meta])* $name:ident($call:ty) $(fuses $folder:ident::$pass:ident)?;)*) => {
        /// A kernel of a program.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub enum Kernel {
            /// A kernel on the host's memory.
            Host(Arc<HostKernel>),
            /// Random values.
            Random(RandomBlock),
            /// A matmul that Burn's own call does not compute: its result has another dtype than the factors, it has one row, or
            /// the target requires it.
            Matmul(FactorDigits),
            /// `() -> out`: memory with unspecified contents.
            Blank,
            /// `(all) -> out`: the slice of an operand at the position of an iteration; the dim of the loop is its first.
            IterationSlice(Dim),
            /// `(all, value) -> out`: the operand with that slice replaced.
            IterationUpdate(Dim),
            /// `(value) -> ()`: stores a residual for the position of an iteration.
            Store(Residual),
            /// `() -> out`: the residual of a position.
            Load {
                /// The values.
                residual: Residual,
                /// Whether this is the last consumer of the value, which ends its lifetime.
                last: bool,
            },
            $($(#[$doc])* $name(Arc<$call>),)*
        }

        impl Kernel {
            /// Its name in texts.
            pub fn name(&self) -> &str {
                match self {
                    Kernel::Host(kernel) => kernel.work.name(),
                    Kernel::Random(_) => "random",
                    Kernel::Matmul(digits) => digits.name(["matmul", "matmul_tf32", "matmul_fp8"]),
                    Kernel::Blank => "blank",
                    Kernel::IterationSlice(_) => "iteration_slice",
                    Kernel::IterationUpdate(_) => "iteration_update",
                    Kernel::Store(_) => "store_residual",
                    Kernel::Load { .. } => "load_residual",
                    $(Kernel::$name(call) => call.name(),)*
                }
            }

            /// Kernels that a device starts for it.
            pub fn starts(&self) -> u64 {
                match self {
                    Kernel::IterationSlice(_) | Kernel::Store(_) | Kernel::Load { .. } | Kernel::Blank => 0,
                    Kernel::Host(kernel) => u64::from(!matches!(kernel.work, HostWork::Show(_))),
                    Kernel::Random(_) | Kernel::Matmul(_) | Kernel::IterationUpdate(_) => 1,
                    $(Kernel::$name(call) => call.starts(),)*
                }
            }

            /// Whether it is a view or names memory: no device launches a kernel for it.
            pub fn moves_nothing(&self) -> bool {
                self.starts() == 0
            }

            /// Source of the memory of its results.
            pub fn result_memory(&self, results: &[TensorIr]) -> ResultMemory {
                match self {
                    Kernel::Random(_) => ResultMemory::Own,
                    Kernel::IterationUpdate(dim) => ResultMemory::Update(*dim),
                    Kernel::Matmul(_) => ResultMemory::given(results, true),
                    Kernel::Blank => ResultMemory::given(results, false),
                    Kernel::Host(_) | Kernel::IterationSlice(_) | Kernel::Store(_) | Kernel::Load { .. } => {
                        ResultMemory::Unknown
                    }
                    $(Kernel::$name(call) => call.result_memory(results),)*
                }
            }

            /// Its tensors that lie at equal distances in the arena, one after the other.
            pub fn spaced(&self) -> Vec<SpacedTensors> {
                match self {
                    $(Kernel::$name(call) => call.spaced(),)*
                    _ => vec![],
                }
            }

            /// Its work beside its steps.
            pub fn work(&self) -> CallWork {
                match self {
                    $(Kernel::$name(call) => call.work(),)*
                    _ => CallWork::default(),
                }
            }

            /// Its results, if a call describes it.
            ///
            /// # Errors
            /// Of the kernel, or that there is no call.
            pub fn compute<L>(&self, launch: L) -> Result<L::Results, KernelError>
            where
                L: Launcher,
                $(L: Computes<$call>,)*
            {
                match self {
                    $(Kernel::$name(call) => <L as Computes<$call>>::compute(launch, call),)*
                    _ => Err(KernelError::Unsupported(format!("there is no kernel `{}`", self.name()))),
                }
            }
        }

        $(impl From<$call> for Kernel {
            fn from(call: $call) -> Kernel {
                Kernel::$name(Arc::new(call))
            }
        })*
    };
}

kernels!(kernel);
