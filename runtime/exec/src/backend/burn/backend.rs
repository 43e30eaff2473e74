//! What a backend of Burn has to tell, and steps as its operations.

use super::dtypes;
#[cfg(any(feature = "cuda", feature = "cubecl-cpu"))]
use super::emit::OWN;
use super::emit::{MATMUL, RANDOM};
use super::iteration::{slice_at, update_at};
use super::lower::{BLANK, BurnKernel, ITERATION_SLICE, ITERATION_UPDATE, Lower};
use super::memory::{BurnMemory, Pinning};
use super::transfer::{download, typed, uninitialized, upload};
#[cfg(any(feature = "cuda", feature = "cubecl-cpu"))]
use crate::backend::GroupKind;
use crate::backend::native::{Pool, from_host, to_host};
use crate::backend::{
    Backend, DeviceError, DeviceFault, Download, Graphs, Handle, Handles, Memory, RngState, RunPoint,
};
use crate::collective::calls::CallPiece;
use crate::collective::halo::Halo;
use crate::collective::pack::{Blocked, PackedBlock};
use crate::engine::arena::{Arena, ResultMemory};
use crate::engine::context::Local;
#[cfg(feature = "cuda")]
use crate::engine::epilogues::Epilogue;
use crate::engine::graph::{Capabilities, Val};
#[cfg(feature = "cuda")]
use crate::engine::inlined::Inlined;
use crate::engine::interpreter::opaque;
use crate::engine::lowering::{LoweringError, stored_as, stored_shape};
use crate::error::ExecError;
use crate::kernels::{KernelError, RandomKernel, ValueIndexF32, ValueIndexF64};
use crate::tensor::{HostData, HostTensor};
use burn_backend::tensor::FloatTensor;
use burn_backend::{DType as BurnType, DeviceOps, TensorMetadata};
use burn_ir::{BackendIr, CustomOpIr, HandleKind, TensorHandle, TensorIr, TensorStatus};
use meshwright_gpu::products::TunedProducts;
#[cfg(any(feature = "cuda", feature = "cubecl-cpu"))]
use meshwright_plan::BufId;
use meshwright_plan::{DType, Dim, Plan, Step};
use std::sync::Arc;

/// A backend of Burn that steps run on.
pub(crate) trait BurnBackend: BackendIr + 'static {
    /// A dense tensor whose memory stays where it is.
    type Pinned: Pinning;

    /// A library for products that belongs to one device.
    type Library: Send + 'static;

    /// Whether the device stores elements of that dtype and computes with them.
    fn computes(device: &Self::Device, dtype: BurnType) -> bool {
        Self::supports_dtype(device, dtype)
    }

    /// Whether [`BurnBackend::matmul`] is to compute also the products whose result has the dtype of the factors, in place
    /// of Burn's own call.
    fn own_matmul(device: &Self::Device, library: &Self::Library) -> bool;

    /// Whether devices of this kind choose kernels by measuring them: see [`Backend::tunes`].
    fn tunes(device: &Self::Device, library: &Self::Library) -> bool;

    /// See [`Backend::tuned`].
    fn tuned<R>(
        device: &Self::Device,
        library: &mut Self::Library,
        f: impl FnOnce(&mut TunedProducts) -> R,
    ) -> Option<R>;

    /// How many scores of an attention there are at a time, about: 128 MiB of `f32`, and a few times as much while they are computed.
    const SCORES_AT_ONCE: usize = 1 << 25;

    /// The matrix product of two tensors of one dtype, with elements of `dtype`, in which it is summed at least; `out` is memory for it.
    fn matmul(
        library: &mut Self::Library,
        factors: (FloatTensor<Self>, FloatTensor<Self>),
        dtype: BurnType,
        out: Option<FloatTensor<Self>>,
    ) -> Result<FloatTensor<Self>, KernelError>;

    /// What a device has from run to run for kernels of our own.
    type State: Default + Send;

    /// Sets the number of the step for what is drawn on the device.
    fn set_clock(device: &Self::Device, state: &mut Self::State, step: u64) {
        let _ = (device, state, step);
    }

    /// See [`Backend::reshaped`].
    fn reshaped(tensor: &Self::Handle, shape: &[usize]) -> Option<Self::Handle> {
        let _ = (tensor, shape);
        None
    }

    /// See [`Backend::has_arena`].
    const HAS_ARENA: bool = false;

    /// See [`Backend::load_arena`].
    fn load_arena(state: &mut Self::State, arena: &Arena) {
        let _ = (state, arena);
    }

    /// See [`Backend::lacks_arena`].
    fn lacks_arena(state: &Self::State) -> bool {
        let _ = state;
        false
    }

    /// How many results a run has asked for, and how many were foreseen.
    fn leave_arena(state: &Self::State) -> [usize; 2] {
        let _ = state;
        [0, 0]
    }

    /// See [`Backend::renew_arena`].
    fn renew_arena(state: &mut Self::State) {
        let _ = state;
    }

    /// See [`Backend::enter_arena`].
    fn enter_arena(device: &Self::Device, state: &mut Self::State, arena: &Arc<Arena>) {
        let _ = (device, state, arena);
    }

    /// The memory of the next result, where that is in the arena.
    fn place(
        device: &Self::Device,
        state: &mut Self::State,
        ir: &TensorIr,
    ) -> Result<Option<Self::Handle>, KernelError> {
        let _ = (device, state, ir);
        Ok(None)
    }

    /// Where the next result of a collective is.
    fn receive(
        device: &Self::Device,
        state: &mut Self::State,
        ir: &TensorIr,
    ) -> Result<ReceiveSpot<Self::Handle>, KernelError> {
        let _ = (device, state, ir);
        Ok(ReceiveSpot::Own)
    }

    /// The first operand with the second put at a position of its first dim, where that is in the arena.
    fn updated(
        state: &mut Self::State,
        operands: [&Self::Handle; 2],
        position: usize,
    ) -> Result<Option<Self::Handle>, KernelError> {
        let _ = (state, operands, position);
        Ok(None)
    }

    /// See [`Backend::upload_input`]; of no pairs, and of at least one element.
    fn upload_input(host: HostTensor, device: &Self::Device) -> HandleKind<Self> {
        upload::<Self>(host, device)
    }

    /// See [`Backend::start_download`]; none where it is done at once.
    fn start_download(
        device: &Self::Device,
        tensor: &Self::Handle,
        dtype: DType,
        shape: &[usize],
    ) -> Option<Download> {
        let _ = (device, tensor, dtype, shape);
        None
    }

    /// Does something whose results are kept from run to run.
    fn keeping<R: Send>(device: &Self::Device, f: impl FnOnce() -> R + Send) -> R {
        let _ = device;
        f()
    }

    /// See [`Backend::ran_first`].
    fn ran_first(device: &Self::Device) {
        let _ = device;
    }

    /// See [`Backend::reached`].
    fn reached(device: &Self::Device, at: Option<RunPoint>) {
        let _ = (device, at);
    }

    /// See [`Backend::fault`].
    fn fault(device: &Self::Device, problem: &str) -> Option<DeviceFault> {
        let _ = (device, problem);
        None
    }

    /// See [`Backend::graphs`].
    fn graphs(backend: &mut OnBurn<Self>) -> Option<&mut dyn Graphs<Self::Handle>> {
        let _ = backend;
        None
    }

    /// Random values with elements of `dtype`, drawn on the device; none where the host is to draw them.
    fn drawn(
        (device, state): (&Self::Device, &Self::State),
        kernel: &RandomKernel,
        rng: RngState,
        dtype: BurnType,
    ) -> Option<HandleKind<Self>> {
        let _ = (device, state, kernel, rng, dtype);
        None
    }

    /// Whether the device has kernels for attentions of half types.
    #[cfg(feature = "cuda")]
    fn has_attention(device: &Self::Device) -> bool {
        let _ = device;
        false
    }

    /// Whether the device's products do more in the same kernel.
    #[cfg(feature = "cuda")]
    fn has_epilogues(device: &Self::Device) -> bool {
        let _ = device;
        false
    }

    /// Whether the device has kernels for folds.
    #[cfg(feature = "cuda")]
    fn has_folds(device: &Self::Device) -> bool {
        let _ = device;
        false
    }

    /// Whether the device has kernels for element-wise steps.
    #[cfg(any(feature = "cuda", feature = "cubecl-cpu"))]
    const OWN_MAPS: bool = false;

    /// The results of a kernel of our own of these operands.
    #[cfg(any(feature = "cuda", feature = "cubecl-cpu"))]
    fn run_own(
        (device, state): (&Self::Device, &mut Self::State),
        (kernel, rng): (&super::cube::own::OwnKernel, RngState),
        inputs: Vec<Self::Handle>,
        operation: &CustomOpIr,
    ) -> Result<Vec<Self::Handle>, KernelError> {
        let _ = (device, state, kernel, rng, inputs);
        Err(KernelError::Unsupported(format!("there is no kernel `{}`", operation.id)))
    }

    /// Whether a transport that works on the memory of that GPU can read and write the device's.
    fn is_gpu(device: &Self::Device, gpu: u32) -> bool;

    /// Brings a tensor into place, in the order of what the device was told before.
    fn pin(tensor: HandleKind<Self>) -> Result<Self::Pinned, DeviceError>;

    /// The tensor again.
    fn unpin(pinned: Self::Pinned) -> HandleKind<Self>;
}

/// The memory of what a collective gives.
pub(crate) enum ReceiveSpot<H> {
    /// That of what is sent.
    Sent,
    /// A place in the arena.
    At(H),
    /// Its own.
    Own,
}

/// A device that runs the operations of a backend of Burn.
pub(crate) struct OnBurn<B: BurnBackend> {
    pub(super) device: B::Device,
    /// Whether runs are recorded.
    #[cfg(feature = "cuda")]
    pub(super) records: bool,
    pub(super) state: B::State,
    products: B::Library,
    /// Storage on the host for what collectives receive.
    pool: Pool,
    note: Option<String>,
}

impl<B: BurnBackend> OnBurn<B> {
    pub(crate) fn new(device: B::Device, library: B::Library) -> OnBurn<B> {
        let (state, pool) = (B::State::default(), Pool::default());
        OnBurn {
            device,
            #[cfg(feature = "cuda")]
            records: false,
            state,
            products: library,
            pool,
            note: None,
        }
    }

    /// The same, with something that the user should know of it.
    #[cfg(any(feature = "cuda", feature = "cubecl-cpu"))]
    pub(crate) fn with_note(self, note: Option<String>) -> OnBurn<B> {
        OnBurn { note, ..self }
    }

    /// The same, which records runs or does not.
    #[cfg(feature = "cuda")]
    pub(crate) fn with_records(self, records: bool) -> OnBurn<B> {
        OnBurn { records, ..self }
    }

    /// Whether a transport works on the memory of this device: then the GPU's number.
    fn pins(&self, gpu: Option<u32>) -> Option<u32> {
        gpu.filter(|gpu| B::is_gpu(&self.device, *gpu))
    }

    fn drawn(
        &self,
        kernel: &RandomKernel,
        rng: RngState,
        dtype: BurnType,
    ) -> Result<HandleKind<B>, KernelError> {
        if let Some(drawn) = B::drawn((&self.device, &self.state), kernel, rng, dtype) {
            return Ok(drawn);
        }
        let mut host = HostTensor::zeros(kernel.dtype(), kernel.shape());
        kernel.run(rng.seed, rng.moment(), rng.first_example, host.data.view_mut())?;
        Ok(upload::<B>(host, &self.device))
    }
}

impl<B: BurnBackend> Backend for OnBurn<B> {
    type Burn = B;
    type Kernel = BurnKernel;
    type CallMemory = BurnMemory<B::Pinned>;

    fn device(&self) -> &B::Device {
        &self.device
    }

    fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    fn tunes(&self) -> bool {
        B::tunes(&self.device, &self.products)
    }

    fn tuned<R>(&mut self, f: impl FnOnce(&mut TunedProducts) -> R) -> Result<Option<R>, DeviceError> {
        B::sync(&self.device).map_err(|e| DeviceError(e.to_string()))?;
        Ok(B::tuned(&self.device, &mut self.products, f))
    }

    fn product(
        &mut self,
        left: FloatTensor<B>,
        right: FloatTensor<B>,
    ) -> Result<FloatTensor<B>, KernelError> {
        let dtype = left.dtype();
        match B::own_matmul(&self.device, &self.products) {
            true => B::matmul(&mut self.products, (left, right), dtype, None),
            false => Ok(B::float_matmul(left, right)),
        }
    }

    fn capabilities(&self) -> Capabilities {
        let boolean = self.device.defaults().bool_dtype.into();
        Capabilities {
            boolean,
            own_matmul: B::own_matmul(&self.device, &self.products),
            #[cfg(feature = "cuda")]
            attention: B::has_attention(&self.device),
            #[cfg(feature = "cuda")]
            epilogues: B::has_epilogues(&self.device),
            #[cfg(feature = "cuda")]
            own_folds: B::has_folds(&self.device),
            #[cfg(any(feature = "cuda", feature = "cubecl-cpu"))]
            own_maps: B::OWN_MAPS,
            host_kernels: false,
            scores_at_once: B::SCORES_AT_ONCE,
        }
    }

    fn check(&self, plan: &Plan, rank: usize) -> Result<(), ExecError> {
        dtypes::check(plan, rank, |dtype| B::computes(&self.device, dtype))
    }

    fn lower(lowering: &mut Lower<'_>, step: &Step) -> Result<(), LoweringError> {
        lowering.step(step)
    }

    #[cfg(any(feature = "cuda", feature = "cubecl-cpu"))]
    fn draws(lowering: &Lower<'_>, step: usize, buf: BufId, by: usize) -> bool {
        lowering.draws_within(step, buf, by)
    }

    #[cfg(feature = "cuda")]
    fn folds(lowering: &Lower<'_>, inlined: &Inlined, value: BufId) -> bool {
        lowering.can_fold(inlined, value)
    }

    #[cfg(feature = "cuda")]
    fn finishes(lowering: &Lower<'_>, step: usize, map: usize) -> bool {
        lowering.is_finished(step, map)
    }

    #[cfg(feature = "cuda")]
    fn lower_finished(lowering: &mut Lower<'_>, step: usize, map: usize) -> Result<(), LoweringError> {
        lowering.finished_cross_entropy_grad(step, map)
    }

    #[cfg(feature = "cuda")]
    fn computes(lowering: &Lower<'_>, epilogue: &Epilogue) -> bool {
        lowering.is_epilogue(epilogue)
    }

    #[cfg(feature = "cuda")]
    fn lower_epilogue(lowering: &mut Lower<'_>, epilogue: &Epilogue) -> Result<(), LoweringError> {
        lowering.epilogue(epilogue)
    }

    #[cfg(any(feature = "cuda", feature = "cubecl-cpu"))]
    fn groups(lowering: &Lower<'_>, step: &Step) -> Option<GroupKind> {
        #[cfg(feature = "cuda")]
        if lowering.is_own_fold(step) {
            return Some(GroupKind::Fold);
        }
        lowering.is_own_map(step).then_some(GroupKind::Map)
    }

    #[cfg(any(feature = "cuda", feature = "cubecl-cpu"))]
    fn lower_group(lowering: &mut Lower<'_>, kind: GroupKind, steps: &[&Step]) -> Result<(), LoweringError> {
        match kind {
            GroupKind::Map => lowering.own_maps(steps),
            #[cfg(feature = "cuda")]
            GroupKind::Fold => lowering.own_folds(steps),
        }
    }

    fn pack(lowering: &mut Lower<'_>, arrays: &[Blocked<'_>]) -> Val {
        lowering.graph.pack_blocks(arrays)
    }

    fn unpack(
        lowering: &mut Lower<'_>,
        packed: Val,
        local: &Local,
        axis: usize,
        blocks: &[PackedBlock],
    ) -> Val {
        let parts = lowering.graph.unpack_blocks(packed, local, axis, blocks);
        lowering.graph.cat(parts, axis)
    }

    fn join_halo(
        lowering: &mut Lower<'_>,
        halo: &Halo,
        received: Option<Val>,
        own: Option<(Val, &Local)>,
        local: &Local,
        axis: usize,
    ) -> Val {
        let graph = &mut lowering.graph;
        let blocks = &halo.receive.blocks;
        let parts = received.map_or(vec![], |r| graph.unpack_blocks(r, local, axis, blocks));
        let starts = blocks.iter().filter(|b| !b.range.is_empty()).map(|b| b.range.start);
        let mut placed: Vec<(usize, Val)> = starts.zip(parts).collect();
        if let (Some((x, _)), Some([from, to])) = (own, &halo.own) {
            placed.push((to.start, graph.slice(x, axis, from.clone())));
        }
        placed.sort_by_key(|p| p.0);
        graph.cat(placed.into_iter().map(|p| p.1).collect(), axis)
    }

    fn reshaped(tensor: &Handle<Self>, shape: &[usize]) -> Option<Handle<Self>> {
        B::reshaped(tensor, shape)
    }

    fn has_arena(&self) -> bool {
        B::HAS_ARENA
    }

    fn result_memory(&self, kernels: &[BurnKernel], operation: &CustomOpIr) -> ResultMemory {
        let _ = kernels;
        let own = |results: usize| vec![vec![]; results];
        match operation.id.as_str() {
            MATMUL => ResultMemory::Given { over: own(1), gaps: true },
            BLANK => ResultMemory::Given { over: own(1), gaps: false },
            RANDOM => ResultMemory::Own,
            ITERATION_UPDATE => ResultMemory::Update(Dim(kernel_number(operation) as u32)),
            #[cfg(any(feature = "cuda", feature = "cubecl-cpu"))]
            name if OWN.contains(&name) => match kernels.get(kernel_number(operation)) {
                Some(BurnKernel::Own(kernel)) => kernel.result_memory(&operation.outputs),
                _ => ResultMemory::Given { over: own(operation.outputs.len()), gaps: false },
            },
            _ => ResultMemory::Unknown,
        }
    }

    fn load_arena(&mut self, arena: &Arena) {
        B::load_arena(&mut self.state, arena);
    }

    fn lacks_arena(&self) -> bool {
        B::lacks_arena(&self.state)
    }

    fn leave_arena(&mut self) -> Result<(), DeviceError> {
        let [asked, foreseen] = B::leave_arena(&self.state);
        let message =
            || DeviceError(format!("a run has asked for {asked} results, and {foreseen} were foreseen"));
        if asked == foreseen { Ok(()) } else { Err(message()) }
    }

    fn renew_arena(&mut self) {
        B::renew_arena(&mut self.state);
    }

    fn enter_arena(&mut self, arena: &Arc<Arena>) {
        B::enter_arena(&self.device, &mut self.state, arena);
    }

    fn run_kernel(
        &mut self,
        kernels: &[BurnKernel],
        operation: &CustomOpIr,
        handles: &mut Handles<Self>,
        rng: RngState,
    ) -> Result<(), KernelError> {
        let number = kernel_number(operation);
        let unknown = || Err(KernelError::Unsupported(format!("there is no kernel {number}")));
        let made = match (operation.id.as_str(), &operation.inputs[..]) {
            (MATMUL, [left, right]) => {
                let [left, right] = [left, right].map(|t| handles.get_float_tensor::<B>(t));
                let ir = &operation.outputs[0];
                let out = B::place(&self.device, &mut self.state, ir)?;
                let out = out.map(|handle| B::float_tensor(TensorHandle { handle, shape: ir.shape.clone() }));
                HandleKind::Float(B::matmul(&mut self.products, (left, right), ir.dtype, out)?)
            }
            (RANDOM, _) => {
                let Some(BurnKernel::Random(kernel)) = kernels.get(number) else { return unknown() };
                self.drawn(kernel, rng, operation.outputs[0].dtype)?
            }
            #[cfg(any(feature = "cuda", feature = "cubecl-cpu"))]
            (name, inputs) if OWN.contains(&name) => {
                let Some(BurnKernel::Own(kernel)) = kernels.get(number) else { return unknown() };
                let inputs = inputs.iter().map(|t| handles.get_handle(&t.id, &t.status)).collect();
                let made = B::run_own((&self.device, &mut self.state), (kernel, rng), inputs, operation)?;
                operation
                    .outputs
                    .iter()
                    .zip(made)
                    .for_each(|(out, made)| handles.register_handle(out.id, made));
                return Ok(());
            }
            (BLANK, []) => {
                let ir = &operation.outputs[0];
                let placed = B::place(&self.device, &mut self.state, ir)?;
                let made = placed.unwrap_or_else(|| {
                    opaque::<B>(uninitialized::<B>(ir.shape.clone(), ir.dtype, &self.device))
                });
                handles.register_handle(ir.id, made);
                return Ok(());
            }
            (ITERATION_SLICE | ITERATION_UPDATE, [all, rest @ ..]) => {
                let dim = Dim(operation.scalars.first().map_or(u32::MAX, |s| s.elem()));
                let at = rng.iteration.position(dim)?;
                match rest {
                    [value] => {
                        let operands = [all, value].map(|t| handles.get_handle_ref(&t.id));
                        if let [Some(stack), Some(part)] = operands
                            && let Some(made) = B::updated(&mut self.state, [stack, part], at)?
                        {
                            [all, value].iter().for_each(|t| drop(handles.get_handle(&t.id, &t.status)));
                            handles.register_handle(operation.outputs[0].id, made);
                            return Ok(());
                        }
                        update_at(handles, all, value, at)
                    }
                    _ => slice_at(handles, all, &operation.outputs[0], at),
                }
            }
            (name, _) => return Err(KernelError::Unsupported(format!("there is no kernel `{name}`"))),
        };
        handles.register_handle(operation.outputs[0].id, opaque::<B>(made));
        Ok(())
    }

    fn upload(&mut self, host: HostTensor, values: Option<DType>) -> Vec<Handle<Self>> {
        if host.data.is_empty() {
            return vec![];
        }
        let part = |data: HostData| {
            let shape = host.shape.clone();
            opaque::<B>(upload::<B>(HostTensor { shape, data }, &self.device))
        };
        let (numbers, indices): (Vec<f64>, Vec<i32>) = match &host.data {
            HostData::PairF32(v) => {
                v.iter().map(|p| (f64::from(p.value), i32::try_from(p.index).unwrap_or(NONE))).unzip()
            }
            HostData::PairF64(v) => {
                v.iter().map(|p| (p.value, i32::try_from(p.index).unwrap_or(NONE))).unzip()
            }
            _ => return vec![opaque::<B>(upload::<B>(host, &self.device))],
        };
        let values = HostData::from_f64(values.unwrap_or(DType::I32), numbers);
        vec![part(values), part(HostData::I32(indices))]
    }

    fn ran_first(&mut self) {
        B::ran_first(&self.device);
    }

    fn upload_kept(&mut self, host: HostTensor) -> Vec<Handle<Self>> {
        if host.data.is_empty() || host.dtype().is_pair() {
            return self.upload(host, None);
        }
        let device = self.device.clone();
        vec![opaque::<B>(B::keeping(&self.device, move || upload::<B>(host, &device)))]
    }

    fn upload_input(&mut self, host: HostTensor) -> Vec<Handle<Self>> {
        if host.data.is_empty() || host.dtype().is_pair() {
            return self.upload(host, None);
        }
        vec![opaque::<B>(B::upload_input(host, &self.device))]
    }

    fn download(
        &self,
        tensors: Vec<Handle<Self>>,
        dtype: DType,
        values: Option<DType>,
        shape: &[usize],
    ) -> Result<HostTensor, DeviceError> {
        let mut tensors = tensors.into_iter();
        let Some(held) = tensors.next() else { return Ok(HostTensor::zeros(dtype, shape.to_vec())) };
        if !dtype.is_pair() {
            return download::<B>(held, dtype, shape);
        }
        let numbers = download::<B>(held, values.unwrap_or(DType::I32), shape)?.data.to_f64();
        let Some(indices) = tensors.next() else { return Err(DeviceError("a pair lacks its index".into())) };
        let HostData::I32(indices) = download::<B>(indices, DType::I32, shape)?.data else {
            return Err(DeviceError("the indices of pairs are no integers".into()));
        };
        let pairs = numbers.into_iter().zip(indices);
        let data = if dtype == DType::PairF32 {
            let pair = |(value, i): (f64, i32)| ValueIndexF32 {
                value: value as f32,
                index: if i == NONE { u32::MAX } else { i as u32 },
            };
            HostData::PairF32(pairs.map(pair).collect())
        } else {
            let pair = |(value, i): (f64, i32)| ValueIndexF64 {
                value,
                index: if i == NONE { u64::MAX } else { i as u64 },
            };
            HostData::PairF64(pairs.map(pair).collect())
        };
        Ok(HostTensor { shape: shape.to_vec(), data })
    }

    fn start_download(&self, tensor: &Handle<Self>, dtype: DType, shape: &[usize]) -> Option<Download> {
        B::start_download(&self.device, tensor, dtype, shape)
    }

    fn send(
        &mut self,
        tensor: Option<Handle<Self>>,
        piece: &CallPiece,
        gpu: Option<u32>,
    ) -> Result<BurnMemory<B::Pinned>, DeviceError> {
        if let Some(gpu) = self.pins(gpu) {
            let tensor = tensor.map(|t| typed::<B>(t, stored_as(piece.dtype), &piece.shape));
            return Ok(BurnMemory::Device { pinned: tensor.map(B::pin).transpose()?, gpu });
        }
        let host = match tensor {
            Some(tensor) => download::<B>(tensor, piece.dtype, &piece.shape)?,
            None => HostTensor::zeros(piece.dtype, vec![0]),
        };
        Ok(BurnMemory::Host(from_host(host)))
    }

    fn receive(
        &mut self,
        (piece, gpu): (&CallPiece, Option<u32>),
        _: (&BurnMemory<B::Pinned>, bool),
    ) -> Result<Option<BurnMemory<B::Pinned>>, DeviceError> {
        let ir = piece.slot.map(|slot| {
            let shape = stored_shape(piece.dtype, &piece.shape);
            slot.tensor(&shape, stored_as(piece.dtype), TensorStatus::NotInit)
        });
        let spot = ir.as_ref().map(|ir| B::receive(&self.device, &mut self.state, ir)).transpose();
        let tensor = match spot.map_err(|e| DeviceError(e.to_string()))? {
            Some(ReceiveSpot::Sent) => return Ok(None),
            Some(ReceiveSpot::At(tensor)) => Some(typed::<B>(tensor, stored_as(piece.dtype), &piece.shape)),
            Some(ReceiveSpot::Own) | None => None,
        };
        let Some(gpu) = self.pins(gpu) else {
            return Ok(Some(BurnMemory::Host(self.pool.take(piece.dtype, &piece.shape))));
        };
        let new = || ir.map(|ir| uninitialized::<B>(ir.shape, ir.dtype, &self.device));
        let pinned = tensor.or_else(new).map(B::pin).transpose()?;
        Ok(Some(BurnMemory::Device { pinned, gpu }))
    }

    fn received(&mut self, memory: BurnMemory<B::Pinned>, piece: &CallPiece) -> Option<Handle<Self>> {
        let tensor = match memory {
            BurnMemory::Device { pinned, .. } => pinned.map(B::unpin),
            BurnMemory::Host(tensor) => {
                let host = piece.slot.map(|_| to_host(&tensor, piece.dtype, &piece.shape));
                self.pool.give(tensor);
                host.map(|h| upload::<B>(h, &self.device))
            }
        };
        tensor.map(opaque::<B>)
    }

    fn sent(&mut self, memory: BurnMemory<B::Pinned>) {
        drop(memory);
    }

    fn begin(&mut self, rng: RngState) {
        B::set_clock(&self.device, &mut self.state, rng.step);
    }

    fn reached(&mut self, at: Option<RunPoint>) {
        B::reached(&self.device, at);
    }

    fn fault(&mut self, problem: &str) -> Option<DeviceFault> {
        B::fault(&self.device, problem)
    }

    fn graphs(&mut self) -> Option<&mut dyn Graphs<Handle<Self>>> {
        B::graphs(self)
    }

    fn memory(&self) -> Result<Option<Memory>, DeviceError> {
        B::sync(&self.device).map_err(|e| DeviceError(e.to_string()))?;
        let usage = B::memory_pool_usage(&self.device);
        Ok(usage.map(|u| Memory { peak: 0, planned: 0, in_use: u.bytes_in_use, reserved: u.bytes_reserved }))
    }
}

/// The number of the kernel that an operation names.
fn kernel_number(operation: &CustomOpIr) -> usize {
    operation.scalars.first().map_or(u64::MAX, |s| s.elem()) as usize
}

/// The index that a pair of nothing has: the greatest.
const NONE: i32 = i32::MAX;
