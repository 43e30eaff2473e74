//! Products by cuBLASLt, in the order of CubeCL's own stream.
//!
//! A device of CubeCL runs its work on a thread of its own, which holds the streams. A matmul is a task of that thread
//! like the launch of a kernel: there the addresses of its tensors are known, and the stream of all earlier launches.
//! So neither the host nor another stream waits for a matmul, and a recorded one is in the CUDA graph.

use crate::device::watch;
use crate::kernel::arguments::moves;
use crate::kernel::operands::is_same;
use burn_backend::cubecl::dtype_to_storage_type;
use burn_backend::{DType as BurnType, Device as _};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::kernel::matmul::init_matmul_output;
use burn_cubecl::tensor::CubeTensor;
use burn_std::backtrace::BackTrace;
use burn_std::id::StreamId;
use burn_std::{Metadata, Shape, Strides};
use cubecl::cuda::{CudaDevice, CudaRuntime};
use cubecl::device::DeviceId;
use cubecl::device_handle::DeviceHandle;
use cubecl::server::{BufferBinding, Handle, ServerError, ServerStorage};
use cubecl::std::tensor::copy_into;
use cubecl_runtime::runtime::Runtime;
use cubecl_server::stream::{ExecuteScope, WriteScoped, failed_writing};
use meshwright_burn::blas::{self, MatmulAddresses, Then};
use meshwright_device::arena::aligned_pitch;
use meshwright_device::kernels::matmul::FactorDigits;
use meshwright_exec::watch::watched;
use meshwright_gpu::driver::Driver;
use meshwright_gpu::load::Paths;
use meshwright_gpu::matmuls::{
    Matmul, MatmulError, MatmulKey, Matrix, TunedMatmuls, WORKSPACE_BYTES, Workspace,
};
use meshwright_plan::Fp8;
use meshwright_sorted::SortedMap;
use std::sync::{Arc, Mutex, PoisonError};

type Server = <CudaRuntime as Runtime>::Server;

/// cuBLASLt of one GPU.
struct DeviceMatmuls {
    products: Mutex<TunedMatmuls>,
    /// Whether the library has a kernel, by key.
    asked: Mutex<SortedMap<MatmulKey, bool>>,
    driver: Driver,
    /// Compute capability of the GPU: major, minor.
    capability: (u32, u32),
    /// The memory that kernels may use while they run, of each stream by number: on a stream they run one after the other.
    workspaces: Mutex<SortedMap<u64, Handle>>,
    device: DeviceId,
}

/// The library by number of the GPU, or the reason why there is none.
static OPENED: Mutex<SortedMap<usize, Result<Arc<DeviceMatmuls>, String>>> = Mutex::new(SortedMap::new());

/// Opens cuBLASLt for a GPU. If it cannot be opened, Burn's kernels compute the matmuls, and the result says why.
pub(crate) fn open(device: &CudaDevice, libraries: &Paths) -> Option<String> {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let made = opened.entry(device.index).or_insert_with(|| {
        let (id, ordinal, libraries) = (device.to_id(), device.index as u32, libraries.clone());
        // On the thread of the device, where its context is current.
        let on_device = DeviceHandle::<Server>::new(id).submit_blocking(move |_| {
            let driver = Driver::open(&libraries)?;
            let gpu = driver.properties(ordinal)?;
            let products = TunedMatmuls::open(&libraries, &gpu.name)?;
            Ok::<_, MatmulError>((driver, gpu.capability, products))
        });
        let (driver, capability, products) =
            on_device.map_err(|e| format!("{e:?}"))?.map_err(|e| e.to_string())?;
        let (products, asked, workspaces) = (Mutex::new(products), Mutex::default(), Mutex::default());
        Ok(Arc::new(DeviceMatmuls { products, asked, driver, capability, workspaces, device: id }))
    });
    made.as_ref().err().map(|why| format!("Burn's kernels compute products of matrices: {why}"))
}

/// Calls `f` with the kernel choice of a GPU's matmuls.
pub(crate) fn tuned<R>(index: usize, f: impl FnOnce(&mut TunedMatmuls) -> R) -> Option<R> {
    of(index).map(|opened| f(&mut opened.products.lock().unwrap_or_else(PoisonError::into_inner)))
}

fn of(index: usize) -> Option<Arc<DeviceMatmuls>> {
    let opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    opened.get(&index).and_then(|made| made.as_ref().ok()).cloned()
}

/// The compute capability of a GPU that computes its matmuls by cuBLASLt; none if it does not.
pub(crate) fn capability(index: usize) -> Option<(u32, u32)> {
    of(index).map(|opened| opened.capability)
}

/// The matrices of a tensor.
fn matrices(tensor: &CubeTensor) -> Option<(Matrix, usize)> {
    let (matrix, batches) = blas::matrices(tensor.dtype, &tensor.meta.shape, &tensor.meta.strides)?;
    // A part of longer rows ends with its last element; a tensor of whole rows has their gaps too.
    let is_whole = tensor.handle.size_in_used() == matrix.bytes_with_gaps(batches);
    Some((if is_whole { matrix.with_own_gaps() } else { matrix }, batches))
}

/// A factor of a matmul of matrices with this number of multiplications: itself, or a copy.
fn factor(tensor: CubeTensor, multiplications: f64) -> CubeTensor {
    match matrices(&tensor) {
        Some((matrix, batches)) if !matrix.is_better_copied(batches, multiplications) => tensor,
        Some(_) => copied(&tensor),
        None => factor(into_contiguous(tensor), multiplications),
    }
}

/// The multiplications of a product of two tensors.
fn multiplications(left: &CubeTensor, right: &CubeTensor) -> f64 {
    let columns = right.meta.shape.last().copied().unwrap_or(1);
    left.meta.num_elements() as f64 * columns as f64
}

/// Memory like that of a tensor, with rows that begin where fast kernels want them to.
fn with_aligned_rows(tensor: &CubeTensor) -> CubeTensor {
    let (shape, element) = (tensor.meta.shape.to_vec(), tensor.dtype.size());
    let pitch = aligned_pitch(shape.last().copied().unwrap_or(1), element);
    let mut strides = vec![1; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim] * if dim + 1 == shape.len() { pitch } else { shape[dim] };
    }
    let rows: usize = shape[..shape.len().saturating_sub(1)].iter().product();
    let handle = tensor.client.empty(rows * pitch * element);
    let meta = Metadata::new(Shape::from(shape), Strides::from(strides));
    CubeTensor::new(tensor.client.clone(), handle, meta, tensor.device.clone(), tensor.dtype)
}

/// A copy with such rows.
fn copied(tensor: &CubeTensor) -> CubeTensor {
    let copy = with_aligned_rows(tensor);
    copy_to(tensor, &copy);
    copy
}

fn copy_to(from: &CubeTensor, to: &CubeTensor) {
    copy_into(&from.client, from.clone().binding(), to.clone().binding(), dtype_to_storage_type(from.dtype));
}

/// The product of two tensors with elements of `dtype`; none where cuBLASLt is not open, or has nothing of their kind.
pub(crate) fn product(
    index: usize,
    left: &CubeTensor,
    right: &CubeTensor,
    (dtype, digits): (BurnType, FactorDigits),
    out: &Option<CubeTensor>,
) -> Option<CubeTensor> {
    let opened = of(index)?;
    let many = multiplications(left, right);
    let (left, right) = (factor(left.clone(), many), factor(right.clone(), many));
    let out = out.clone().unwrap_or_else(|| init_matmul_output(&left, &right, dtype));
    let (found, batches) = matrices(&out)?;
    let is_half = matrices(&left)?.0.element.is_half();
    let made =
        if is_half && found.is_worth_a_copy(batches, many) { with_aligned_rows(&out) } else { out.clone() };
    let product = blas::product(matrices(&left)?, matrices(&right)?, matrices(&made)?, digits)?;
    let (vector, aux, added, scales) = (None, None, None, None);
    let tensors = MatmulTensors { left, right, out: made.clone(), vector, aux, added, scales };
    opened.submit(product, Then::Nothing, &tensors);
    if !is_same(&made.handle, &out.handle) {
        copy_to(&made, &out);
    }
    Some(out)
}

/// Puts a product with an epilogue, whose result is that many rows and columns, on its stream; false where cuBLASLt has no kernel
/// for it.
pub(crate) fn fused(
    index: usize,
    (matrices_of_out, digits): ([usize; 2], FactorDigits),
    then: Then,
    tensors: MatmulTensors,
) -> bool {
    let Some(opened) = of(index) else { return false };
    let many = multiplications(&tensors.left, &tensors.right);
    let (left, right) = (factor(tensors.left, many), factor(tensors.right, many));
    let added = tensors.added.map(|added| beside(added, &tensors.out));
    let tensors = MatmulTensors { left, right, added, ..tensors };
    let out = rows_of(&tensors.out, matrices_of_out);
    let product = || blas::product(matrices(&tensors.left)?, matrices(&tensors.right)?, out?, digits);
    let Some(product) = product() else { return false };
    let computes = opened.computes(blas::at(product, then, &tensors.assumed()));
    if computes {
        opened.submit(product, then, &tensors);
    }
    computes
}

/// Puts a product of factors in FP8 with an epilogue on its stream; false where cuBLASLt has no kernel for it. `sizes` are
/// rows, columns and summed elements. Factors are contiguous, as [`blas::fp8_product`] takes them.
pub(crate) fn fused_fp8(
    index: usize,
    (sizes, formats): ([usize; 3], [Fp8; 2]),
    then: Then,
    tensors: MatmulTensors,
) -> bool {
    let Some(opened) = of(index) else { return false };
    let added = tensors.added.map(|added| beside(added, &tensors.out));
    let [left, right] = [tensors.left, tensors.right].map(into_contiguous);
    let tensors = MatmulTensors { left, right, added, ..tensors };
    let out = rows_of(&tensors.out, [sizes[0], sizes[1]]);
    let Some(product) = out.and_then(|out| blas::fp8_product(sizes, formats, out)) else { return false };
    let computes = opened.computes(blas::at(product, then, &tensors.assumed()));
    if computes {
        opened.submit(product, then, &tensors);
    }
    computes
}

/// A result as a matrix: its rows have gaps between them only where they are one dim.
fn rows_of(out: &CubeTensor, [rows, columns]: [usize; 2]) -> Option<(Matrix, usize)> {
    let strides = &out.meta.strides;
    let leading = match out.meta.shape.last() {
        Some(last) if *last == columns && strides.rank() > 1 => strides[strides.rank() - 2],
        _ => columns,
    };
    blas::matrices(out.dtype, &[rows, columns], &[leading, 1])
}

/// The value that a product is added to, in the layout of the result: the value itself, or a copy in the memory of the result.
fn beside(added: CubeTensor, out: &CubeTensor) -> CubeTensor {
    let lies = |t: &CubeTensor| -> Vec<(usize, usize)> {
        let dims = t.meta.shape.iter().copied().zip(t.meta.strides.iter().copied());
        dims.filter(|(size, _)| *size != 1).collect()
    };
    if lies(&added) == lies(out) {
        return added;
    }
    copy_to(&added, out);
    out.clone()
}

/// Puts a product with batches on its stream, with an epilogue whose vectors lie that many elements apart; false where cuBLASLt
/// has no kernel for it.
pub(crate) fn batched(
    index: usize,
    digits: FactorDigits,
    (then, apart): (Then, usize),
    tensors: MatmulTensors,
) -> bool {
    let Some(opened) = of(index) else { return false };
    let MatmulTensors { left, right, out, .. } = &tensors;
    let product = || blas::product(matrices(left)?, matrices(right)?, matrices(out)?, digits);
    let Some(mut product) = product() else { return false };
    product.epilogue.apart = apart;
    let computes = opened.computes(blas::at(product, then, &tensors.assumed()));
    if computes {
        opened.submit(product, then, &tensors);
    }
    computes
}

/// The tensors of a matmul.
pub(crate) struct MatmulTensors {
    pub(crate) left: CubeTensor,
    pub(crate) right: CubeTensor,
    pub(crate) out: CubeTensor,
    /// A bias, or the sums of a factor.
    pub(crate) vector: Option<CubeTensor>,
    /// Bits of the elements that a `relu` let through, or the operand of a `gelu`.
    pub(crate) aux: Option<CubeTensor>,
    /// The value that the product is added to.
    pub(crate) added: Option<CubeTensor>,
    /// The scales of factors in FP8, of one element each.
    pub(crate) scales: Option<[CubeTensor; 2]>,
}

impl MatmulTensors {
    /// Addresses that are aligned as these are: CubeCL gives out memory at multiples of 512 bytes at least.
    fn assumed(&self) -> MatmulAddresses {
        let at = |t: &CubeTensor| (1 << 20) + t.handle.offset_start.unwrap_or(0);
        MatmulAddresses {
            factors: [at(&self.left), at(&self.right)],
            out: at(&self.out),
            vector: self.vector.as_ref().map(at),
            aux: self.aux.as_ref().map(at),
            added: self.added.as_ref().map(at),
            scales: self.scales.as_ref().map(|scales| scales.each_ref().map(at)),
        }
    }
}

impl DeviceMatmuls {
    /// The workspace of a stream; `beside` is a tensor of the device.
    fn workspace(&self, stream: StreamId, beside: &CubeTensor) -> Handle {
        let mut all = self.workspaces.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(stream.value).or_insert_with(|| beside.client.empty(WORKSPACE_BYTES)).clone()
    }

    /// The name of the library and its kernel, for a watch.
    fn name(&self, product: &Matmul) -> &'static str {
        let products = self.products.lock().unwrap_or_else(PoisonError::into_inner);
        let told = products.told(product, WORKSPACE_BYTES);
        told.map_or("cuBLASLt", |told| watch::name_of("cuBLASLt", &told))
    }

    /// Whether the library has a kernel for a matmul. It is queried once, on the thread of the device.
    fn computes(self: &Arc<Self>, product: Matmul) -> bool {
        let Ok(key) = MatmulKey::of(&product, WORKSPACE_BYTES) else { return false };
        let known = |asked: &SortedMap<MatmulKey, bool>| asked.get(&key).copied();
        if let Some(known) = known(&self.asked.lock().unwrap_or_else(PoisonError::into_inner)) {
            return known;
        }
        let task = self.clone();
        let found = DeviceHandle::<Server>::new(self.device).submit_blocking(move |_| {
            let mut products = task.products.lock().unwrap_or_else(PoisonError::into_inner);
            products.computes(&product, WORKSPACE_BYTES)
        });
        let found = matches!(found, Ok(Ok(true)));
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).insert(key, found);
        found
    }

    /// Has the thread of the device put a product on the stream.
    fn submit(self: &Arc<Self>, product: Matmul, then: Then, tensors: &MatmulTensors) {
        let (stream, out) = (StreamId::current(), &tensors.out);
        let workspace = self.workspace(stream, out);
        let measured = self.measured(&blas::at(product, then, &tensors.assumed()), out);
        let beside = [&tensors.vector, &tensors.aux, &tensors.added].map(|t| t.as_ref().map(|t| &t.handle));
        let scales = tensors.scales.as_ref().map(|scales| scales.each_ref().map(|t| &t.handle));
        let [of_left, of_right] = [0, 1].map(|side| scales.map(|both: [&Handle; 2]| both[side]));
        let beside = [beside[0], beside[1], beside[2], measured.as_ref(), of_left, of_right];
        let all = [&tensors.left.handle, &tensors.right.handle, &out.handle, &workspace];
        let all = all.into_iter().chain(beside.into_iter().flatten());
        let bindings = all.map(|h| h.clone().binding()).collect();
        let has = beside.map(|handle| handle.is_some());
        let (task, device) = (self.clone(), DeviceHandle::<Server>::new(self.device));
        let run = move |server: &mut Server| task.run(server, stream, (product, then, has), bindings);
        if watched().is_some() {
            let name = self.name(&blas::at(product, then, &tensors.assumed()));
            let factors = [&tensors.left, &tensors.right, out];
            let beside = tensors.vector.iter().chain(&tensors.aux).chain(&tensors.added);
            moves(name, factors.into_iter().chain(beside));
            watch::call(&out.client, name, || drop(device.submit_blocking(run)));
        } else {
            device.submit(run);
        }
    }

    /// Memory for the measurement of a product that is added to something, if one is due: it repeats the product.
    fn measured(&self, product: &Matmul, out: &CubeTensor) -> Option<Handle> {
        let wants = {
            let products = self.products.lock().unwrap_or_else(PoisonError::into_inner);
            products.wants_beside(product, WORKSPACE_BYTES)
        };
        // Memory comes from the thread of the device, which may wait for the products.
        let bytes = product.out.bytes_with_gaps(product.batches) as usize;
        wants.then(|| out.client.empty(bytes))
    }

    /// Puts a matmul on its stream: with left, right, out, the workspace, and a vector, a second operand, what it is added to,
    /// memory for a measurement, and the scales of factors if there are any. An error becomes the error of the results, for
    /// their consumers.
    fn run(
        &self,
        server: &mut Server,
        stream: StreamId,
        (product, then, has): (Matmul, Then, [bool; 6]),
        bindings: Vec<BufferBinding>,
    ) {
        let sums = matches!(then, Then::RightSums | Then::LeftSums);
        let writes_beside = sums || matches!(then, Then::ReluKeeping | Then::GeluTanhKeeping);
        // If there are a vector and a second operand, the second operand is written.
        let last = 3 + has[..2].iter().filter(|has| **has).count();
        let beside = bindings.get(last).filter(|_| writes_beside);
        let written: Vec<BufferBinding> = [&bindings[2]].into_iter().chain(beside).cloned().collect();
        // Before the result is claimed: after that CubeCL does not resolve its address.
        let resolve = |binding: &BufferBinding| server.get_resource(binding.clone(), stream);
        // Each is held until the product is on the stream.
        let held = match bindings.iter().map(resolve).collect::<Result<Vec<_>, _>>() {
            Ok(held) => held,
            Err(e) => return failed_writing(server, stream, written, e),
        };
        let addresses: Vec<u64> = held.iter().map(|h| h.resource().ptr).collect();
        let _ = ExecuteScope::over(server, stream, written).execute(|server| {
            // Tensors of other streams stay theirs until this is dropped.
            let mut streams = server.write_streams().resolve(stream, bindings.iter())?;
            let queue = streams.current().sys;
            let [left, right, out, room] = [0, 1, 2, 3].map(|n| addresses[n]);
            let mut beside = addresses[4..].iter().copied();
            let [vector, aux, added, measured, of_left, of_right] =
                has.map(|has| if has { beside.next() } else { None });
            let scales = of_left.zip(of_right).map(|(left, right)| [left, right]);
            let places = MatmulAddresses { factors: [left, right], out, vector, aux, added, scales };
            let product = blas::at(product, then, &places);
            let workspace = Workspace { address: room, bytes: WORKSPACE_BYTES };
            let mut products = self.products.lock().unwrap_or_else(PoisonError::into_inner);
            #[expect(unsafe_code, reason = "memory of a GPU is known by its address")]
            // SAFETY: the addresses are those of the tensors and of the workspace, whose memory is not reused before
            // the stream has passed their last use; the result's storage has no other readers.
            let done = unsafe {
                let wait = || Ok(self.driver.wait(queue.cast())?);
                products.multiply(&product, (workspace, measured), queue.cast(), wait)
            };
            done.map_err(|e: MatmulError| ServerError::Generic {
                reason: e.to_string(),
                backtrace: BackTrace::capture(),
            })
        });
    }
}
