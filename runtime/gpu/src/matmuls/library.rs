//! The library, and the description of a matmul for it.

use super::api::{
    self, Algorithm, Functions, LtHandle, LtStatus, Proposal, SUCCESS, compute, description, epilogue,
    layout, preference,
};
use super::choice::KernelChoices;
use super::matmul::{Epilogue, Follows, Matmul, MatmulError, MatmulKey, Sums, Workspace};
use super::matrix::{Matrix, MatrixElement, Order};
use crate::load::{FoundLibrary, Library, LibraryKind, LoadError, Paths, functions};
use meshwright_sorted::SortedMap;
use std::ffi::{CStr, c_int, c_void};

functions! {
    /// The function for listing.
    Version needs "cuBLAS 12" {
        version = "cublasLtGetVersion" () -> usize;
    }
}

/// The installed library; needs no GPU.
pub fn installed(paths: &Paths) -> Result<FoundLibrary, LoadError> {
    let library = Library::open(LibraryKind::CublasLt, paths)?;
    let f = Version::load(&library)?;
    #[expect(unsafe_code, reason = "a function of cuBLASLt")]
    // SAFETY: no arguments.
    let code = unsafe { (f.version)() };
    let (major, rest) = (code / 10_000, code % 10_000);
    let version = format!("{major}.{}.{}", rest / 100, rest % 100);
    Ok(FoundLibrary { version, path: library.path().to_owned() })
}

/// cuBLASLt for one GPU, whose context is current wherever this is used.
pub struct MatmulLibrary {
    f: Functions,
    handle: LtHandle,
    version: usize,
    prepared: SortedMap<MatmulKey, PreparedMatmul>,
}

#[expect(unsafe_code, reason = "handles that the library allows to be used from every thread")]
// SAFETY: as said; they are used by one thread at a time, since every function takes `&mut self`.
unsafe impl Send for MatmulLibrary {}

/// A product whose description is made.
struct PreparedMatmul {
    description: LtHandle,
    /// Layouts of right, left and out: A, B, and both C and D of the library.
    layouts: [LtHandle; 3],
    algorithm: Algorithm,
    workspace: usize,
}

#[expect(unsafe_code, reason = "functions of cuBLASLt, with handles that it gave")]
impl MatmulLibrary {
    /// Opens the library: the first of those installed that the driver lets have a handle.
    pub fn open(paths: &Paths) -> Result<MatmulLibrary, MatmulError> {
        Library::open_first(LibraryKind::CublasLt, paths, |library| MatmulLibrary::of(&library))
    }

    fn of(library: &Library) -> Result<MatmulLibrary, MatmulError> {
        let f = Functions::load(library)?;
        // SAFETY: no arguments.
        let version = unsafe { (f.version)() };
        let null = std::ptr::null_mut();
        let mut products = MatmulLibrary { f, handle: null, version, prepared: SortedMap::new() };
        let mut handle = null;
        // SAFETY: writes a handle.
        products.check("cublasLtCreate", unsafe { (f.create)(&raw mut handle) })?;
        products.handle = handle;
        Ok(products)
    }

    /// The library's version: of 12.9.1 it is 120901.
    pub fn version(&self) -> usize {
        self.version
    }

    fn check(&self, function: &'static str, status: LtStatus) -> Result<(), MatmulError> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: gives a text of the library's own that ends with 0, or nothing.
        let text = unsafe { (self.f.status_text)(status) };
        let text = match text.is_null() {
            true => format!("status {status}"),
            // SAFETY: as above.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        };
        Err(MatmulError::Call { function, text })
    }

    /// Puts a product on a stream, computed as `choices` says where the library accepts that, or else in the way that it proposes
    /// first.
    ///
    /// # Safety
    /// The matrices, the bias and the workspace must be memory of this GPU and valid until the stream has finished the
    /// matmul; until then nothing else may use `out` and the workspace. What is added may be `out`, and overlaps it nowhere else.
    pub unsafe fn multiply(
        &mut self,
        product: &Matmul,
        workspace: Workspace,
        stream: *mut c_void,
        choices: &KernelChoices,
    ) -> Result<(), MatmulError> {
        let key = MatmulKey::of(product, workspace.bytes)?;
        if !self.prepared.contains_key(&key) {
            let prepared = self.prepare(product, &key, workspace.bytes, choices.of(&key))?;
            self.prepared.insert(key.clone(), prepared);
        }
        let prepared = &self.prepared[&key];
        self.describe_places(prepared.description, product)?;
        // One, in the type of the sum, and the factor of what is added.
        let one = match product.left.element {
            MatrixElement::F64 => 1.0f64.to_bits(),
            _ => u64::from(1.0f32.to_bits()),
        };
        let kept = if product.adds.is_some() { one } else { 0 };
        let at = |address: u64| address as usize as *mut c_void;
        let [a, b, c] = prepared.layouts;
        let (left, right, out) =
            (at(product.left.address), at(product.right.address), at(product.out.address));
        let added = product.adds.map_or(out, at);
        // SAFETY: the caller's promise; the numbers are read before the function returns.
        let status = unsafe {
            (self.f.multiply)(
                self.handle,
                prepared.description,
                (&raw const one).cast(),
                right.cast_const(),
                a,
                left.cast_const(),
                b,
                (&raw const kept).cast(),
                added.cast_const(),
                c,
                out,
                c,
                &raw const prepared.algorithm,
                at(workspace.address),
                prepared.workspace,
                stream,
            )
        };
        self.check("cublasLtMatmul", status)
    }

    /// The ways in which the library proposes to compute a product, best first by its own estimate, at most `count`.
    pub fn proposals(
        &mut self,
        product: &Matmul,
        workspace: usize,
        count: usize,
    ) -> Result<Vec<Algorithm>, MatmulError> {
        let key = MatmulKey::of(product, workspace)?;
        let (description, layouts) = self.described(product)?;
        let found = self.propose(description, layouts, &key, workspace, count);
        self.free(description, &layouts);
        Ok(found?.into_iter().map(|p| p.algorithm).collect())
    }

    /// Whether the library accepts an algorithm for a matmul; a damaged file may name any.
    pub(super) fn accepts(
        &self,
        product: &Matmul,
        workspace: usize,
        algorithm: &Algorithm,
    ) -> Result<bool, MatmulError> {
        let (description, layouts) = self.described(product)?;
        let accepted = self.checked(description, layouts, workspace, algorithm);
        self.free(description, &layouts);
        Ok(accepted)
    }

    /// Family of the kernel that computed a matmul, in the library's own numbers; none before.
    pub(super) fn family(&self, key: &MatmulKey) -> Option<i32> {
        let prepared = self.prepared.get(key)?;
        let (mut family, mut written) = (0i32, 0);
        let at: *mut i32 = &raw mut family;
        // SAFETY: reads an algorithm, and writes a number of that many bytes.
        let status = unsafe {
            (self.f.algorithm_get)(
                &raw const prepared.algorithm,
                api::KERNEL_FAMILY,
                at.cast(),
                size_of::<i32>(),
                &raw mut written,
            )
        };
        (status == SUCCESS).then_some(family)
    }

    fn checked(
        &self,
        description: LtHandle,
        [a, b, c]: [LtHandle; 3],
        workspace: usize,
        algorithm: &Algorithm,
    ) -> bool {
        let mut found = Proposal::default();
        // SAFETY: reads an algorithm, and writes its description.
        let status = unsafe {
            (self.f.check)(self.handle, description, a, b, c, c, &raw const *algorithm, &raw mut found)
        };
        [status, found.state] == [SUCCESS; 2] && found.workspace <= workspace
    }

    /// The same of all products.
    pub(super) fn prepare_again(&mut self) {
        for prepared in std::mem::take(&mut self.prepared).into_values() {
            self.free(prepared.description, &prepared.layouts);
        }
    }

    /// The next time a product is asked for, its choice is made again.
    pub(super) fn drop_choice(&mut self, key: &MatmulKey) {
        if let Some(prepared) = self.prepared.remove(key) {
            self.free(prepared.description, &prepared.layouts);
        }
    }

    fn prepare(
        &self,
        product: &Matmul,
        key: &MatmulKey,
        workspace: usize,
        chosen: Option<Algorithm>,
    ) -> Result<PreparedMatmul, MatmulError> {
        let (description, layouts) = self.described(product)?;
        // Devices that agreed on it have the same library, so all reject it.
        if let Some(algorithm) = chosen.filter(|a| self.checked(description, layouts, workspace, a)) {
            return Ok(PreparedMatmul { description, layouts, algorithm, workspace });
        }
        let found = self.propose(description, layouts, key, workspace, 1);
        match found.and_then(|all| all.first().copied().ok_or_else(|| MatmulError::NoKernel(key.to_string())))
        {
            Ok(first) => Ok(PreparedMatmul {
                description,
                layouts,
                algorithm: first.algorithm,
                workspace: first.workspace,
            }),
            Err(e) => {
                self.free(description, &layouts);
                Err(e)
            }
        }
    }

    fn describe<T>(&self, handle: LtHandle, attribute: c_int, value: &T) -> Result<(), MatmulError> {
        let value: *const T = value;
        // SAFETY: reads a number of that many bytes.
        let status =
            unsafe { (self.f.description_set)(handle, attribute, value.cast(), std::mem::size_of::<T>()) };
        self.check("cublasLtMatmulDescSetAttribute", status)
    }

    /// The description of a product, and the layouts of A, B and both C and D.
    fn described(&self, product: &Matmul) -> Result<(LtHandle, [LtHandle; 3]), MatmulError> {
        let (sums, scale) = match (product.left.element, product.sums) {
            (MatrixElement::F64, _) => (compute::F64, api::data::F64),
            (MatrixElement::F32, Sums::Tf32) => (compute::F32_BY_TF32, api::data::F32),
            _ => (compute::F32, api::data::F32),
        };
        let mut made = std::ptr::null_mut();
        // SAFETY: writes a handle.
        let status = unsafe { (self.f.description_create)(&raw mut made, sums, scale) };
        self.check("cublasLtMatmulDescCreate", status)?;
        let mut layouts = [std::ptr::null_mut(); 3];
        let done = self.describe_all(product, made, &mut layouts);
        if let Err(e) = done {
            self.free(made, &layouts);
            return Err(e);
        }
        Ok((made, layouts))
    }

    fn describe_all(
        &self,
        product: &Matmul,
        made: LtHandle,
        layouts: &mut [LtHandle; 3],
    ) -> Result<(), MatmulError> {
        let transposed = |m: &Matrix| m.order == Order::Columns;
        if transposed(&product.right) {
            self.describe(made, description::TRANSPOSE_A, &api::TRANSPOSED)?;
        }
        if transposed(&product.left) {
            self.describe(made, description::TRANSPOSE_B, &api::TRANSPOSED)?;
        }
        let Epilogue { bias, then, apart } = product.epilogue;
        let follows = match then {
            Follows::Nothing if bias.is_some() => 0,
            Follows::Nothing => epilogue::DEFAULT,
            Follows::Relu => epilogue::RELU,
            Follows::ReluKeeping(_) => epilogue::RELU | epilogue::AUX,
            Follows::ReluGrad(_) => epilogue::RELU_GRAD,
            Follows::GeluTanh => epilogue::GELU,
            Follows::GeluTanhKeeping(_) => epilogue::GELU | epilogue::AUX,
            Follows::GeluTanhGrad(_) => epilogue::GELU_GRAD,
            Follows::RightSums(_) => epilogue::SUMS_OF_A,
            Follows::LeftSums(_) => epilogue::SUMS_OF_B,
        };
        let follows = follows | if bias.is_some() { epilogue::BIAS } else { 0 };
        self.describe(made, description::EPILOGUE, &follows)?;
        let leading = match then {
            Follows::ReluKeeping(bits) | Follows::ReluGrad(bits) => Some(bits.leading),
            Follows::GeluTanhKeeping(_) | Follows::GeluTanhGrad(_) => Some(product.out.leading),
            _ => None,
        };
        if let Some(leading) = leading {
            self.describe(made, description::AUX_LEADING, &(leading as i64))?;
        }
        if bias.is_some() || matches!(then, Follows::RightSums(_) | Follows::LeftSums(_)) {
            self.describe(made, description::BIAS_TYPE, &product.out.element.code())?;
        }
        if apart > 0 {
            self.describe(made, description::BIAS_STRIDE, &(apart as i64))?;
        }
        // The proposals depend on the alignment of these.
        self.describe_places(made, product)?;
        for (place, matrix) in layouts.iter_mut().zip([&product.right, &product.left, &product.out]) {
            *place = self.layout(matrix, product.batches)?;
        }
        Ok(())
    }

    /// Sets the operands of the epilogue, and the scales of factors.
    fn describe_places(&self, made: LtHandle, product: &Matmul) -> Result<(), MatmulError> {
        let Epilogue { bias, then, .. } = product.epilogue;
        let (vector, aux) = match then {
            Follows::RightSums(sums) | Follows::LeftSums(sums) => (Some(sums), None),
            Follows::ReluKeeping(bits) | Follows::ReluGrad(bits) => (bias, Some(bits.address)),
            Follows::GeluTanhKeeping(at) | Follows::GeluTanhGrad(at) => (bias, Some(at)),
            Follows::Nothing | Follows::Relu | Follows::GeluTanh => (bias, None),
        };
        let vector = vector.map(|at| (description::BIAS_POINTER, at));
        let aux = aux.map(|at| (description::AUX_POINTER, at));
        // The library's A is the right factor.
        let right = product.scales.map(|[_, right]| (description::A_SCALE_POINTER, right));
        let left = product.scales.map(|[left, _]| (description::B_SCALE_POINTER, left));
        let all = [vector, aux, right, left].into_iter().flatten();
        all.into_iter().try_for_each(|(what, at)| self.describe(made, what, &at))
    }

    fn layout(&self, matrix: &Matrix, batches: usize) -> Result<LtHandle, MatmulError> {
        // A matrix in row order is its transpose in column order.
        let (rows, columns) = match matrix.order {
            Order::Rows => (matrix.columns, matrix.rows),
            Order::Columns => (matrix.rows, matrix.columns),
        };
        let mut made = std::ptr::null_mut();
        let (code, leading) = (matrix.element.code(), matrix.leading as i64);
        // SAFETY: writes a handle.
        let status =
            unsafe { (self.f.layout_create)(&raw mut made, code, rows as u64, columns as u64, leading) };
        self.check("cublasLtMatrixLayoutCreate", status)?;
        let (count, stride) = (batches as c_int, matrix.batch_stride as i64);
        let (count_at, stride_at): (*const c_int, *const i64) = (&raw const count, &raw const stride);
        // SAFETY: read numbers of that many bytes.
        let status = unsafe {
            match (self.f.layout_set)(made, layout::BATCH_COUNT, count_at.cast(), 4) {
                SUCCESS => (self.f.layout_set)(made, layout::BATCH_STRIDE, stride_at.cast(), 8),
                failed => failed,
            }
        };
        if let Err(e) = self.check("cublasLtMatrixLayoutSetAttribute", status) {
            // SAFETY: made above.
            let _ = unsafe { (self.f.layout_destroy)(made) };
            return Err(e);
        }
        Ok(made)
    }

    fn propose(
        &self,
        description: LtHandle,
        [a, b, c]: [LtHandle; 3],
        key: &MatmulKey,
        workspace: usize,
        count: usize,
    ) -> Result<Vec<Proposal>, MatmulError> {
        let mut preference = std::ptr::null_mut();
        // SAFETY: writes a handle.
        let status = unsafe { (self.f.preference_create)(&raw mut preference) };
        self.check("cublasLtMatmulPreferenceCreate", status)?;
        let mut found = vec![Proposal::default(); count];
        let mut many = 0;
        let room: *const usize = &raw const workspace;
        let reductions: *const u32 = &preference::IN_COMPUTE_TYPE;
        // SAFETY: reads a number; the places of the results are as many as is said.
        let status = unsafe {
            let mut status = (self.f.preference_set)(
                preference,
                preference::MAX_WORKSPACE,
                room.cast(),
                size_of::<usize>(),
            );
            if status == SUCCESS {
                status = (self.f.preference_set)(preference, preference::REDUCTIONS, reductions.cast(), 4);
            }
            for (n, alignment) in key.alignments().into_iter().enumerate() {
                let at: *const u32 = &raw const alignment;
                if status == SUCCESS {
                    let attribute = preference::MIN_ALIGNMENT_A + n as c_int;
                    status = (self.f.preference_set)(preference, attribute, at.cast(), 4);
                }
            }
            if status == SUCCESS {
                status = (self.f.propose)(
                    self.handle,
                    description,
                    a,
                    b,
                    c,
                    c,
                    preference,
                    count as c_int,
                    found.as_mut_ptr(),
                    &raw mut many,
                );
            }
            let _ = (self.f.preference_destroy)(preference);
            status
        };
        match self.check("cublasLtMatmulAlgoGetHeuristic", status) {
            Err(_) if many == 0 => return Err(MatmulError::NoKernel(key.to_string())),
            other => other?,
        }
        found.truncate(usize::try_from(many).unwrap_or(0));
        found.retain(|p| p.state == SUCCESS && p.workspace <= workspace);
        Ok(found)
    }

    fn free(&self, description: LtHandle, layouts: &[LtHandle; 3]) {
        // SAFETY: made by the library, and used no more. Nothing can be done about a failure.
        unsafe {
            for layout in layouts.iter().filter(|l| !l.is_null()) {
                let _ = (self.f.layout_destroy)(*layout);
            }
            let _ = (self.f.description_destroy)(description);
        }
    }
}

impl Drop for MatmulLibrary {
    #[expect(unsafe_code, reason = "gives back what was made")]
    fn drop(&mut self) {
        self.prepare_again();
        if !self.handle.is_null() {
            // SAFETY: a handle of ours, used no more.
            let _ = unsafe { (self.f.destroy)(self.handle) };
        }
    }
}
