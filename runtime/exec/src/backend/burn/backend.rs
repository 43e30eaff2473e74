//! Steps as the operations of a backend of Burn.

use super::dtypes;
use super::iteration::{slice_at, update_at};
use super::memory::BurnMemory;
use super::on_burn::{BurnBackend, OnBurn, ReceiveSpot};
use super::transfer::{download, typed, uninitialized, upload};
use crate::backend::native::{from_host, to_host};
use crate::backend::{
    Backend, DeviceError, DeviceFault, Download, Graphs, Handle, Handles, Memory, RngState, RunPoint,
};
use crate::engine::interpreter::opaque;
use crate::error::ExecError;
use crate::kernels::{KernelError, ValueIndexF32, ValueIndexF64};
use crate::tensor::{HostData, HostTensor};
use burn_backend::TensorMetadata;
use burn_backend::tensor::FloatTensor;
use burn_ir::{BaseOperationIr, HandleKind, TensorHandle, TensorStatus};
use meshwright_device::LoweringError;
use meshwright_device::arena::Arena;
use meshwright_device::collective::calls::CallPiece;
use meshwright_device::kernels::Kernel;
use meshwright_device::launch::Launch;
use meshwright_device::local::DeviceContext;
use meshwright_device::stored::{stored_as, stored_shape};
use meshwright_device::target::Target;
use meshwright_gpu::products::TunedProducts;
use meshwright_plan::{DType, Plan};
use std::sync::Arc;

impl<B: BurnBackend> Backend for OnBurn<B> {
    type Burn = B;
    type Kernel = Kernel;
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
        match self.target().own_matmul {
            true => B::matmul(&mut self.products, (left, right), dtype, None),
            false => Ok(B::float_matmul(left, right)),
        }
    }

    fn target(&self) -> Target {
        B::target(&self.device, &self.products)
    }

    fn check(&self, plan: &Plan, rank: usize) -> Result<(), ExecError> {
        dtypes::check(plan, rank, |dtype| B::computes(&self.device, dtype))
    }

    fn prepare(&self, _: &DeviceContext<'_>, kernel: &Kernel) -> Result<Kernel, LoweringError> {
        Ok(kernel.clone())
    }

    fn view(tensor: &Handle<Self>, operation: &BaseOperationIr) -> Option<Handle<Self>> {
        B::view(tensor, operation)
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
        kernel: &Kernel,
        launch: &Launch,
        handles: &mut Handles<Self>,
        rng: RngState,
    ) -> Result<(), KernelError> {
        let made = match (kernel, &launch.reads[..]) {
            (Kernel::Matmul, [left, right]) => {
                let [left, right] = [left, right].map(|t| handles.get_float_tensor::<B>(t));
                let ir = &launch.writes[0];
                let out = B::place(&self.device, &mut self.state, ir)?;
                let out = out.map(|handle| B::float_tensor(TensorHandle { handle, shape: ir.shape.clone() }));
                HandleKind::Float(B::matmul(&mut self.products, (left, right), ir.dtype, out)?)
            }
            (Kernel::Random(block), _) => self.drawn(block, rng, launch.writes[0].dtype)?,
            (Kernel::Blank, []) => {
                let ir = &launch.writes[0];
                let placed = B::place(&self.device, &mut self.state, ir)?;
                let made = placed.unwrap_or_else(|| {
                    opaque::<B>(uninitialized::<B>(ir.shape.clone(), ir.dtype, &self.device))
                });
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
                    && let Some(made) = B::updated(&mut self.state, [stack, part], at)?
                {
                    [all, value].iter().for_each(|t| drop(handles.get_handle(&t.id, &t.status)));
                    handles.register_handle(launch.writes[0].id, made);
                    return Ok(());
                }
                update_at(handles, all, value, at)
            }
            (kernel, inputs) => {
                let inputs = inputs.iter().map(|t| handles.get_handle(&t.id, &t.status)).collect();
                let made = B::run_own((&self.device, &mut self.state), (kernel, rng), inputs, launch)?;
                let outs = launch.writes.iter().zip(made);
                outs.for_each(|(out, made)| handles.register_handle(out.id, made));
                return Ok(());
            }
        };
        handles.register_handle(launch.writes[0].id, opaque::<B>(made));
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
            return Ok(Some(BurnMemory::Host(self.pool.take(piece.dtype, &piece.shape)?)));
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

/// The index that a pair of nothing has: the greatest.
const NONE: i32 = i32::MAX;
