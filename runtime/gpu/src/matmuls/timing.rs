//! Measures the ways in which the library can compute a product.

use super::api::Algorithm;
use super::choice::KernelChoices;
use super::library::MatmulLibrary;
use super::matmul::{Matmul, MatmulError, MatmulKey, Workspace};
use std::ffi::c_void;
use std::time::{Duration, Instant};

/// Number of the library's proposals that are measured, and the least time of each.
const MEASURED: usize = 8;
const LONG_ENOUGH: Duration = Duration::from_millis(2);

impl MatmulLibrary {
    /// Measures the first few ways that the library proposes for a product, and gives the fastest with its time. The result
    /// is computed again and again, with all that follows it. `wait` waits for the stream.
    ///
    /// # Safety
    /// As for [`MatmulLibrary::multiply`].
    #[expect(unsafe_code, reason = "products in memory that the caller answers for")]
    pub unsafe fn fastest(
        &mut self,
        product: &Matmul,
        workspace: Workspace,
        stream: *mut c_void,
        wait: impl Fn() -> Result<(), MatmulError>,
    ) -> Result<(Algorithm, Duration), MatmulError> {
        let key = MatmulKey::of(product, workspace.bytes)?;
        let mut best: Option<(Algorithm, Duration)> = None;
        for algorithm in self.proposals(product, workspace.bytes, MEASURED)? {
            let mut choice = KernelChoices::default();
            choice.set(&key, algorithm);
            self.drop_choice(&key);
            // SAFETY: the caller's promise.
            let mut run = || unsafe { self.multiply(product, workspace, stream, &choice) };
            // The first one loads the kernel.
            if run().and_then(|()| wait()).is_err() {
                continue;
            }
            let (mut times, begin) = (0, Instant::now());
            while times < 3 || begin.elapsed() < LONG_ENOUGH {
                for _ in 0..4 {
                    run()?;
                }
                wait()?;
                times += 4;
            }
            let time = begin.elapsed() / times;
            if best.is_none_or(|(_, least)| time < least) {
                best = Some((algorithm, time));
            }
        }
        self.drop_choice(&key);
        best.ok_or(MatmulError::NoKernel(key.to_string()))
    }
}
