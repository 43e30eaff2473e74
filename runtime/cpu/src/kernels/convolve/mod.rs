//! Convolution: the result, the input's gradient and the kernel's gradient, each from the two others.
//!
//! Each image is copied into a padded scratch buffer `[rows.., columns, channels]` in which every window of a row is one
//! contiguous stretch, and the kernel into one with whole vectors of output channels. What is left are sums of products that
//! stay in registers ([`tile`]). Result and input gradient are the same walk: the latter reads the positions and writes the
//! elements, one remainder by the stride at a time.

mod kernel;
mod pack;
mod shape;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
mod tile;
mod windows;

pub(super) use shape::{ConvolveRow, rows};
pub use shape::{ConvolveShape, Shared, Sliding};
use shape::{INPUT, RESULT};

use super::instruction_set::Level;
use super::{KernelError, Slice, SliceMut};
use kernel::ToKernel;
use meshwright_plan::{DType, Part};
use tile::Tiled;
use windows::ToImage;

/// A prepared convolution.
#[derive(Clone, Debug)]
pub struct ConvolveKernel {
    dtype: DType,
    gives: Part,
    /// Elements of input, kernel and result.
    elements: [usize; 3],
    work: ConvolveWork,
}

#[derive(Clone, Debug)]
enum ConvolveWork {
    Image(ToImage),
    Kernel(ToKernel),
}

impl ConvolveKernel {
    /// Prepares to make `gives` from the two others. `elements` are the lengths of input, kernel and result.
    ///
    /// # Errors
    /// If the dtype is no float.
    pub fn new(
        dtype: DType,
        gives: Part,
        shape: &ConvolveShape,
        elements: [usize; 3],
    ) -> Result<ConvolveKernel, KernelError> {
        let lanes = match dtype {
            DType::F32 => f32::LANES,
            DType::F64 => f64::LANES,
            _ => return Err(KernelError::Unsupported(format!("a convolution of {dtype}"))),
        };
        let work = match gives {
            Part::Result => ConvolveWork::Image(ToImage::new(shape, INPUT, RESULT, elements[RESULT], lanes)),
            Part::Input => ConvolveWork::Image(ToImage::new(shape, RESULT, INPUT, elements[INPUT], lanes)),
            Part::Kernel => ConvolveWork::Kernel(ToKernel::new(shape, lanes)),
        };
        Ok(ConvolveKernel { dtype, gives, elements, work })
    }

    /// Runs it on the two of input, kernel and result that are given, in that order.
    ///
    /// # Errors
    /// If dtypes or lengths of the operands are not what was prepared for.
    pub fn run(&self, a: Slice<'_>, b: Slice<'_>, out: SliceMut<'_>) -> Result<(), KernelError> {
        let [x, w, y] = self.elements;
        let [first, second, written] = match self.gives {
            Part::Result => [x, w, y],
            Part::Input => [w, y, x],
            Part::Kernel => [x, y, w],
        };
        super::check_in(&a, self.dtype, first)?;
        super::check_in(&b, self.dtype, second)?;
        super::check_out(&out, self.dtype, written)?;
        match (a, b, out) {
            (Slice::F32(a), Slice::F32(b), SliceMut::F32(out)) => self.compute(Level::best(), a, b, out),
            (Slice::F64(a), Slice::F64(b), SliceMut::F64(out)) => self.compute(Level::best(), a, b, out),
            _ => {}
        }
        Ok(())
    }

    fn compute<T: Tiled>(&self, level: Level, a: &[T], b: &[T], out: &mut [T]) {
        match &self.work {
            ConvolveWork::Image(i) if self.gives == Part::Result => i.run(level, a, b, out),
            ConvolveWork::Image(i) => i.run(level, b, a, out),
            ConvolveWork::Kernel(k) => k.run(level, a, b, out),
        }
    }
}
