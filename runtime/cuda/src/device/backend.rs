//! What the engine asks of a device.

use super::arena::{ArenaMemory, ReceiveSpot};
use super::tensors::{Pinned, inner, kind_of, pinned};
use super::tuned::keep_tuned;
use super::{captures, download, faults, input_upload};
use crate::kernel::operands::{GpuLaunch, OwnInputs, ResultSlot};
use crate::kernel::{random, views};
use crate::matmul::{self, blas};
use burn_backend::tensor::FloatTensor;
use burn_backend::{Backend as _, DType as BurnType, TensorMetadata as _};
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{Cube, CubeDevice};
use burn_ir::{BackendIr, BaseOperationIr, HandleKind, TensorHandle};
use meshwright_burn::dtypes;
use meshwright_burn::iteration::{slice_at, update_at};
use meshwright_burn::memory::{BurnMemory, uploaded};
use meshwright_burn::transfer::{download, typed, uninitialized, upload, upload_parts};
use meshwright_cpu::kernels::DrawBlock;
use meshwright_cpu::{HostMemory, Pool};
use meshwright_device::collective::calls::CallPiece;
use meshwright_device::kernels::Kernel;
use meshwright_device::kernels::matmul::FactorDigits;
use meshwright_device::kernels::random::RandomBlock;
use meshwright_device::launch::Launch;
use meshwright_device::lowering::local::DeviceContext;
use meshwright_device::stored::{stored_as, stored_shape};
use meshwright_device::target::Target;
use meshwright_device::{KernelError, LoweringError};
use meshwright_exec::backend::{
    self, Backend, CallBuffers, DeviceError, DeviceFault, Download, Graphs, Handle, Handles, Memory,
    RngState, RunEvent, SentAndReceived, Upload,
};
use meshwright_exec::{DeviceKind, ExecError, HostTensor, opaque};
use meshwright_gpu::load::Paths;
use meshwright_gpu::matmuls::TunedMatmuls;
use meshwright_plan::{DType, Plan};
use meshwright_sorted::SortedSet;
use std::fmt;

/// The launches that a device takes.
pub(crate) fn target_of(device: &CubeDevice) -> Target {
    match device {
        CubeDevice::Cuda(gpu) => {
            let opened = blas::capability(gpu.index);
            Target {
                tensor_cores: crate::attention::is_there(&device.client()),
                shared_memory: device.client().properties().hardware.max_shared_memory_size,
                ..Target::cuda(opened.unwrap_or_default(), opened.is_some())
            }
        }
        _ => Target::compiled_on_host(),
    }
}

/// A device that kernels are compiled for.
pub(crate) struct GpuBackend {
    pub(super) device: CubeDevice,
    /// Whether runs are recorded.
    records: bool,
    /// The number of the step, in the device's memory too.
    clock: Option<(u64, CubeTensor)>,
    pub(super) arena: ArenaMemory,
    /// The steps with a `relu` whose bits the run has written.
    relu_bits: SortedSet<usize>,
    /// Storage on the host for a collective's results.
    pool: Pool,
    note: Option<String>,
}

impl GpuBackend {
    /// The GPU of that number, or the host. Errors name it as `kind`.
    pub(crate) fn open(
        gpu: Option<usize>,
        (rank, kind): (usize, &DeviceKind),
        libraries: &Paths,
    ) -> Result<GpuBackend, ExecError> {
        let (libraries, not_kept) = libraries.with_writable_cache();
        keep_tuned(&libraries);
        let found = match gpu {
            Some(index) => CubeDevice::cuda(index),
            None => CubeDevice::cpu(),
        };
        let message =
            |e: &dyn fmt::Display| format!("cannot use {kind}: {e}; `meshwright devices` says what is there");
        let device = found.map_err(|e| ExecError::Start { rank, message: message(&e) })?;
        let note = match &device {
            CubeDevice::Cuda(gpu) => {
                faults::watch(gpu, &libraries);
                captures::allow_others(gpu, &libraries);
                blas::open(gpu, &libraries)
            }
            _ => None,
        };
        let notes: Vec<String> = [note, not_kept].into_iter().flatten().collect();
        Ok(GpuBackend {
            records: gpu.is_some() && !libraries.launches_each,
            clock: None,
            arena: ArenaMemory::of(device.clone()),
            device,
            relu_bits: SortedSet::new(),
            pool: Pool::default(),
            note: (!notes.is_empty()).then(|| notes.join("; ")),
        })
    }

    /// The matrix product of two tensors of one dtype, with elements of `dtype`, in which it is summed at least; `out` is memory
    /// for it.
    fn matmul(
        left: CubeTensor,
        right: CubeTensor,
        result: (BurnType, FactorDigits),
        out: Option<CubeTensor>,
    ) -> Result<CubeTensor, KernelError> {
        matmul::compute(left, right, result, out)
            .map_err(|e| KernelError::Unsupported(format!("a matrix product: {e}")))
    }

    /// The memory of the next result, where that is in the arena.
    fn place(&mut self, ir: &burn_ir::TensorIr) -> Result<Option<CubeTensor>, KernelError> {
        let slots = self.arena.results(std::slice::from_ref(ir))?;
        Ok(slots.first().and_then(ResultSlot::placed))
    }

    /// Random values with elements of `dtype`, drawn on the device once a run has begun, before on the host.
    fn drawn(
        &self,
        block: &RandomBlock,
        rng: RngState,
        dtype: BurnType,
    ) -> Result<HandleKind<Cube>, KernelError> {
        if let Some((_, step)) = &self.clock {
            return Ok(kind_of(random::draw(block, (rng, step), dtype, &self.device)));
        }
        let mut host = HostTensor::zeros(block.dtype(), block.shape());
        block.run(rng.seed, rng.moment(), rng.first_example, host.data.view_mut())?;
        Ok(upload::<Cube>(host, &self.device))
    }

    /// The results of a kernel of this crate.
    fn launched(
        &mut self,
        (kernel, rng): (&Kernel, RngState),
        inputs: Vec<CubeTensor>,
        launch: &Launch,
    ) -> Result<Vec<CubeTensor>, KernelError> {
        let GpuBackend { clock, arena, relu_bits, .. } = self;
        let Some((_, step)) = clock else {
            return Err(KernelError::Unsupported("no run has begun".into()));
        };
        let inputs = OwnInputs::new(inputs, &launch.reads);
        let outputs = arena.results(&launch.writes)?;
        kernel.compute(GpuLaunch { rng, step, inputs, outputs, relu_bits })
    }

    /// The GPU's number if a transport works on the memory of this device.
    fn pins(&self, gpu: Option<u32>) -> Option<u32> {
        gpu.filter(|gpu| match &self.device {
            CubeDevice::Cuda(d) => u32::try_from(d.index) == Ok(*gpu),
            _ => false,
        })
    }
}

impl Backend for GpuBackend {
    type Burn = Cube;
    type Kernel = Kernel;
    type CallMemory = BurnMemory<Pinned>;

    fn device(&self) -> &CubeDevice {
        &self.device
    }

    fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    fn tunes(&self) -> bool {
        !matches!(self.device, CubeDevice::Cpu(_))
    }

    fn tuned<R>(&mut self, f: impl FnOnce(&mut TunedMatmuls) -> R) -> Result<Option<R>, DeviceError> {
        Cube::sync(&self.device).map_err(|e| DeviceError(e.to_string()))?;
        Ok(match &self.device {
            CubeDevice::Cuda(gpu) => blas::tuned(gpu.index, f),
            _ => None,
        })
    }

    fn product(
        &mut self,
        left: FloatTensor<Cube>,
        right: FloatTensor<Cube>,
        digits: FactorDigits,
    ) -> Result<FloatTensor<Cube>, KernelError> {
        let dtype = left.dtype();
        match self.target().own_matmul {
            true => GpuBackend::matmul(left, right, (dtype, digits), None),
            false => Ok(<Cube as burn_backend::ops::FloatTensorOps<Cube>>::float_matmul(left, right)),
        }
    }

    fn target(&self) -> Target {
        target_of(&self.device)
    }

    fn check(&self, plan: &Plan, rank: usize) -> Result<(), ExecError> {
        dtypes::check(plan, rank, |dtype| Cube::supports_dtype(&self.device, dtype))
    }

    fn prepare(&self, _: &DeviceContext<'_>, kernel: &Kernel) -> Result<Kernel, LoweringError> {
        Ok(kernel.clone())
    }

    fn view(tensor: &Handle<Self>, operation: &BaseOperationIr) -> Option<Handle<Self>> {
        views::view(tensor, operation)
    }

    fn arena(&mut self) -> Option<&mut dyn backend::ArenaMemory> {
        Some(&mut self.arena)
    }

    fn run_kernel(
        &mut self,
        kernel: &Kernel,
        launch: &Launch,
        handles: &mut Handles<Self>,
        rng: RngState,
    ) -> Result<(), KernelError> {
        let made = match (kernel, &launch.reads[..]) {
            (Kernel::Matmul(digits), [left, right]) => {
                let [left, right] = [left, right].map(|t| handles.get_float_tensor::<Cube>(t));
                let ir = &launch.writes[0];
                let out = self.place(ir)?;
                let out =
                    out.map(|handle| Cube::float_tensor(TensorHandle { handle, shape: ir.shape.clone() }));
                HandleKind::Float(GpuBackend::matmul(left, right, (ir.dtype, *digits), out)?)
            }
            (Kernel::Random(block), _) => self.drawn(block, rng, launch.writes[0].dtype)?,
            (Kernel::Blank, []) => {
                let ir = &launch.writes[0];
                let made = match self.place(ir)? {
                    Some(placed) => placed,
                    None => opaque::<Cube>(uninitialized::<Cube>(ir.shape.clone(), ir.dtype, &self.device)),
                };
                handles.register_handle(ir.id, made);
                return Ok(());
            }
            (Kernel::IterationSlice(dim), [all]) => {
                slice_at(handles, all, &launch.writes[0], rng.iteration.position(*dim)?)
            }
            (Kernel::IterationUpdate(dim), [all, value]) => {
                let at = rng.iteration.position(*dim)?;
                let operands = [all, value].map(|t| handles.get_handle_ref(&t.id));
                if let [Some(stack), Some(part)] = operands
                    && let Some(made) = self.arena.updated(stack, part, at)?
                {
                    [all, value].iter().for_each(|t| drop(handles.get_handle(&t.id, &t.status)));
                    handles.register_handle(launch.writes[0].id, made);
                    return Ok(());
                }
                update_at(handles, all, value, at)
            }
            (kernel, inputs) => {
                let inputs = inputs.iter().map(|t| handles.get_handle(&t.id, &t.status)).collect();
                let made = self.launched((kernel, rng), inputs, launch)?;
                let outs = launch.writes.iter().zip(made);
                outs.for_each(|(out, made)| handles.register_handle(out.id, made));
                return Ok(());
            }
        };
        handles.register_handle(launch.writes[0].id, opaque::<Cube>(made));
        Ok(())
    }

    fn upload(&mut self, host: HostTensor, lifetime: Upload) -> Vec<Handle<Self>> {
        let plain = !host.data.is_empty() && !host.dtype().is_pair();
        match lifetime {
            Upload::Input if plain => vec![input_upload::sent(host, &self.device)],
            Upload::Kept if plain => {
                let device = self.device.clone();
                let kept = move |()| upload::<Cube>(host, &device);
                vec![opaque::<Cube>(self.device.client().memory_persistent_allocation((), kept))]
            }
            _ => upload_parts::<Cube>(host, lifetime.values(), &self.device),
        }
    }

    fn download(
        &self,
        tensors: Vec<Handle<Self>>,
        dtype: DType,
        values: Option<DType>,
        shape: &[usize],
    ) -> Download {
        if let ([tensor], false) = (&tensors[..], dtype.is_pair())
            && let tensor = typed::<Cube>(tensor.clone(), stored_as(dtype), &stored_shape(dtype, shape))
            && let Some(started) =
                inner(tensor).ok().and_then(|t| download::started(&self.device, t, dtype, shape))
        {
            return started;
        }
        let done = download::<Cube>(tensors, dtype, values, shape);
        Box::new(move || done)
    }

    fn call_memory(
        &mut self,
        tensor: Option<Handle<Self>>,
        (sent, received): SentAndReceived<'_>,
        _: bool,
        gpu: Option<u32>,
    ) -> Result<CallBuffers<BurnMemory<Pinned>>, DeviceError> {
        let gpu = self.pins(gpu);
        let on_gpu = |tensor: Option<HandleKind<Cube>>, gpu| {
            Ok::<_, DeviceError>(BurnMemory::Device { pinned: tensor.map(pinned).transpose()?, gpu })
        };
        let send = match gpu {
            Some(gpu) => on_gpu(tensor.map(|t| typed::<Cube>(t, stored_as(sent.dtype), &sent.shape)), gpu)?,
            None => BurnMemory::of_host::<Cube>(tensor, sent)?,
        };
        let ir = received.result();
        let spot = ir.as_ref().map(|ir| self.arena.received(ir)).transpose();
        let spot = match spot.map_err(|e| DeviceError(e.to_string()))? {
            Some(ReceiveSpot::Sent) => return Ok((None, send)),
            Some(ReceiveSpot::At(tensor)) => {
                Some(typed::<Cube>(tensor, stored_as(received.dtype), &received.shape))
            }
            Some(ReceiveSpot::Own) | None => None,
        };
        let Some(gpu) = gpu else {
            let receive = HostMemory(self.pool.take(received.dtype, &received.shape)?);
            return Ok((Some(send), BurnMemory::Host(receive)));
        };
        let new = || ir.map(|ir| uninitialized::<Cube>(ir.shape, ir.dtype, &self.device));
        Ok((Some(send), on_gpu(spot.or_else(new), gpu)?))
    }

    fn received(
        &mut self,
        memory: BurnMemory<Pinned>,
        piece: &CallPiece,
        _: Option<BurnMemory<Pinned>>,
    ) -> Option<Handle<Self>> {
        match memory {
            BurnMemory::Device { pinned, .. } => pinned.map(|pinned| pinned.tensor),
            BurnMemory::Host(memory) => uploaded::<Cube>(memory, &mut self.pool, piece, &self.device),
        }
    }

    fn reached(&mut self, event: RunEvent) {
        match event {
            RunEvent::Begun(step) => random::set_step(&self.device, &mut self.clock, step),
            RunEvent::Step(at) => {
                if let CubeDevice::Cuda(gpu) = &self.device {
                    faults::reached(gpu, at);
                }
            }
            // Kernels were tuned, and tensors that are not updated in place have left their upload's memory. What cannot be
            // freed now stays reserved.
            RunEvent::RanFirst => {
                if Cube::sync(&self.device).is_ok() {
                    let _ = self.device.client().memory_cleanup();
                }
            }
        }
    }

    fn fault(&mut self, problem: &str) -> Option<DeviceFault> {
        faults::fault(&self.device, problem)
    }

    fn stream(&mut self) -> Result<Option<u64>, DeviceError> {
        match self.device {
            CubeDevice::Cuda(_) => Graphs::stream(self).map(Some),
            _ => Ok(None),
        }
    }

    fn graphs(&mut self) -> Option<&mut dyn Graphs<Handle<Self>>> {
        if self.records { Some(self) } else { None }
    }

    fn memory(&self) -> Result<Option<Memory>, DeviceError> {
        Cube::sync(&self.device).map_err(|e| DeviceError(e.to_string()))?;
        let usage = Cube::memory_pool_usage(&self.device);
        Ok(usage.map(|u| Memory { peak: 0, planned: 0, in_use: u.bytes_in_use, reserved: u.bytes_reserved }))
    }
}
