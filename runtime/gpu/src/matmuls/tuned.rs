//! Products whose kernels are measured once, and taken when all devices have agreed on them.
//!
//! **Invariant:** the choice is equal on all devices with the same kind of GPU and library, at the same position of the
//! program: so their copies of a parameter stay equal, bit by bit. A device proposes its measurements and the contents
//! of its file; it uses the argument of [`TunedMatmuls::choose`], which is the same on all.

use super::choice::KernelChoices;
use super::library::MatmulLibrary;
use super::matmul::{Matmul, MatmulError, MatmulKey, Workspace};
use super::parts::LARGE_PRODUCT;
use crate::load::Paths;
use std::ffi::c_void;
use std::path::PathBuf;

/// A device's proposal: the validity of its choices, and the text of [`KernelChoices`].
pub type KernelProposal = (String, String);

/// cuBLASLt of one GPU, with the kernels that were chosen.
pub struct TunedMatmuls {
    products: MatmulLibrary,
    /// From how many multiplications on a product is cut where that makes it fast.
    large: f64,
    /// The GPU and the version of the library, which choices hold for.
    of: String,
    chosen: KernelChoices,
    /// The next proposal.
    proposed: KernelChoices,
    measuring: bool,
    file: Option<PathBuf>,
}

impl TunedMatmuls {
    /// Opens the library for a GPU of that name, with earlier measurements; unreadable ones are measured again.
    ///
    /// # Errors
    /// If the library cannot be opened.
    pub fn open(paths: &Paths, gpu: &str) -> Result<TunedMatmuls, MatmulError> {
        let products = MatmulLibrary::open(paths)?;
        let of = format!("{gpu}, cuBLASLt {}", products.version());
        let name = of.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        let file = paths.cache.as_ref().map(|folder| folder.join("cublaslt").join(name + ".txt"));
        let kept = file.as_deref().and_then(|file| KernelChoices::load(file).ok());
        let (chosen, proposed) = (KernelChoices::default(), kept.unwrap_or_default());
        let large = LARGE_PRODUCT;
        Ok(TunedMatmuls { products, large, of, chosen, proposed, measuring: false, file })
    }

    /// Cuts matmuls from this number of multiplications on, instead of [`LARGE_PRODUCT`].
    pub fn cut_from(&mut self, multiplications: f64) {
        self.large = multiplications;
    }

    /// Report on a matmul, or the largest of its parts: its key, the family of its kernel in the library's own numbers,
    /// and whether it is aligned for fast kernels. None before it was computed.
    pub fn told(&self, product: &Matmul, workspace: usize) -> Option<String> {
        let parts = product.parts(self.large);
        let main = parts.last()?;
        let key = MatmulKey::of(main, workspace).ok()?;
        let family = self.products.family(&key)?;
        let aligned = if main.is_aligned() { "" } else { ", not aligned" };
        let more =
            if parts.len() > 1 { format!(", and {} small parts", parts.len() - 1) } else { String::new() };
        Some(format!("{}, kernels {family}{aligned}{more}", key.shapes()))
    }

    /// Whether matmuls without a known time are measured in later runs.
    pub fn measure(&mut self, measuring: bool) {
        self.measuring = measuring;
    }

    /// Whether the next [`Self::multiply`] of a product that is added to something measures kernels, for which it wants memory
    /// beside.
    pub fn wants_beside(&self, product: &Matmul, workspace: usize) -> bool {
        let unknown = |part: &Matmul| {
            MatmulKey::of(part, workspace)
                .is_ok_and(|key| self.chosen.of(&key).or(self.proposed.of(&key)).is_none())
        };
        self.measuring && product.adds.is_some() && product.parts(self.large).iter().any(unknown)
    }

    /// Puts a product on a stream, in parts where these are faster; `wait` waits for the stream. A product that is added to
    /// something is measured in the memory `beside`, which is as large as the result, and not without.
    ///
    /// # Safety
    /// As for [`MatmulLibrary::multiply`].
    #[expect(unsafe_code, reason = "products in memory that the caller answers for")]
    pub unsafe fn multiply(
        &mut self,
        product: &Matmul,
        (workspace, beside): (Workspace, Option<u64>),
        stream: *mut c_void,
        wait: impl Fn() -> Result<(), MatmulError>,
    ) -> Result<(), MatmulError> {
        let parts = product.parts(self.large);
        // A measurement repeats the matmul, and would add it several times.
        let measured = if product.adds.is_some() { beside.map(|at| product.at(at)) } else { Some(*product) };
        if let Some(measured) = measured.filter(|_| self.measuring) {
            // All before the first, since one part adds to the result of another.
            for part in &measured.parts(self.large) {
                // SAFETY: the caller's promise.
                unsafe { self.tune(part, workspace, stream, &wait) }?;
            }
        }
        for part in &parts {
            // SAFETY: the caller's promise.
            unsafe { self.products.multiply(part, workspace, stream, &self.chosen) }?;
        }
        Ok(())
    }

    /// Finds the fastest kernel for a product that nothing is known of.
    #[expect(unsafe_code, reason = "products in memory that the caller answers for")]
    unsafe fn tune(
        &mut self,
        product: &Matmul,
        workspace: Workspace,
        stream: *mut c_void,
        wait: impl Fn() -> Result<(), MatmulError>,
    ) -> Result<(), MatmulError> {
        let key = MatmulKey::of(product, workspace.bytes)?;
        let known = self.chosen.of(&key).or(self.proposed.of(&key));
        let known = known.map(|algorithm| self.products.accepts(product, workspace.bytes, &algorithm));
        if !known.transpose()?.unwrap_or(false) {
            self.chosen.remove(&key);
            // SAFETY: the caller's promise.
            let (fastest, _) = unsafe { self.products.fastest(product, workspace, stream, wait) }?;
            self.proposed.set(&key, fastest);
        }
        Ok(())
    }

    /// Whether the library has kernels for a matmul with its epilogue; only the alignment of addresses matters.
    ///
    /// # Errors
    /// If the product is none, or a function of the library fails.
    pub fn computes(&mut self, product: &Matmul, workspace: usize) -> Result<bool, MatmulError> {
        for part in product.parts(self.large) {
            if !self.computes_part(&part, workspace)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn computes_part(&mut self, product: &Matmul, workspace: usize) -> Result<bool, MatmulError> {
        match self.products.proposals(product, workspace, 1) {
            Ok(found) => found.first().map_or(Ok(false), |a| self.products.accepts(product, workspace, a)),
            Err(MatmulError::NoKernel(_)) => Ok(false),
            Err(other) => Err(other),
        }
    }

    /// This device's proposal, with earlier agreed choices, which may differ from the current ones.
    pub fn proposed(&self) -> KernelProposal {
        let mut all = self.proposed.clone();
        all.take_over(self.chosen.clone());
        (self.of.clone(), all.to_text())
    }

    /// Takes the proposals of all devices, in the order of their ranks: of several for one matmul the lowest rank's.
    /// Keeps it in the file; if that fails, later starts measure again.
    pub fn choose(&mut self, all: &[KernelProposal]) {
        let before = std::mem::take(&mut self.chosen);
        for (_, text) in all.iter().rev().filter(|(of, _)| *of == self.of) {
            self.chosen.take_over(KernelChoices::from_text(text));
        }
        self.proposed = KernelChoices::default();
        self.products.prepare_again();
        if let Some(file) = self.file.as_ref().filter(|_| self.chosen != before) {
            let mut kept = KernelChoices::load(file).unwrap_or_default();
            kept.take_over(self.chosen.clone());
            if kept.save(file).is_err() {
                self.file = None;
            }
        }
    }
}
