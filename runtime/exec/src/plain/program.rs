//! A loaded Plan on any backend: an interpreter that runs the backend's own operations, and nothing else.

use super::backend::Plain;
use super::build::{Built, Piece, build, homes};
use super::collective::Request;
use super::dtypes;
use super::emit::{Habits, Home};
use super::lower::{extents, is_pair, stored};
use super::ops::{PRODUCT, RANDOM};
use super::transfer::{Lost, download, empty, upload};
use crate::collective::{Failed, Prepared};
use crate::error::ExecError;
use crate::host::{HostData, HostTensor};
use crate::kernels::{KernelError, RandomKernel, SliceMut};
use crate::own::Dice;
use crate::program::{Ended, lock};
use crate::tensor::{Pool, bytes_mut, from_host, to_host};
use crate::trace::{Recorder, What};
use burn_backend::{DType as BurnType, DeviceOps, Shape};
use burn_flex::FlexTensor;
use burn_ir::{BackendIr, HandleKind, OperationIr, TensorIr, TensorStatus};
use burn_router::{CustomOpRegistry, TensorInterpreter};
use meshwright_comm::{Buf, BufMut, Call, Collectives, Started, Transport};
use meshwright_plan::{BufId, DType, Plan};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// What the drawing of random values shares with whoever runs the interpreter.
struct Shared {
    drawings: Vec<RandomKernel>,
    dtypes: Vec<DType>,
    dice: Mutex<Dice>,
    error: Mutex<Option<KernelError>>,
}

/// A tensor of the device; of pairs the values, and the indices beside. None where there are no elements.
pub(crate) struct Kept<B: BackendIr> {
    pub(crate) values: Option<HandleKind<B>>,
    pub(crate) indices: Option<HandleKind<B>>,
}

impl<B: BackendIr> Clone for Kept<B> {
    fn clone(&self) -> Self {
        Kept { values: self.values.clone(), indices: self.indices.clone() }
    }
}

/// A Plan that is ready to run on one device.
pub(crate) struct PlainProgram<B: Plain> {
    pub(crate) plan: Arc<Plan>,
    coords: Vec<usize>,
    interpreter: TensorInterpreter<B>,
    shared: Arc<Shared>,
    pieces: Vec<Piece>,
    pairs: BTreeMap<BufId, DType>,
    /// Buffers that are alive at the end.
    pub(crate) left: BTreeSet<BufId>,
    /// Storage on the host for what collectives send and receive.
    pool: Pool,
    /// Collectives in flight, by their number. After a run that failed it holds those that were not waited for.
    flying: BTreeMap<usize, Vec<(Flying<B>, u64)>>,
}

/// What a collective works on, in the memory of the host.
pub(super) struct HostMemory {
    send: Vec<FlexTensor>,
    receive: Vec<FlexTensor>,
}

/// What a collective works on, in the memory of the device; nowhere where there are no elements.
struct DeviceMemory<B: Plain> {
    send: Vec<Option<B::Pinned>>,
    receive: Vec<Option<B::Pinned>>,
}

/// A call in flight.
enum Flying<B: Plain> {
    Host(Started<HostMemory>),
    Device(Started<DeviceMemory<B>>),
}

impl<B: Plain> DeviceMemory<B> {
    /// The call on this memory.
    #[expect(unsafe_code, reason = "memory of a GPU is known by its address")]
    fn call(&mut self, request: &Request, gpu: u32) -> Call<'_> {
        let address = |p: &Option<B::Pinned>| p.as_ref().map_or(0, B::address);
        // SAFETY: what is pinned stays at its address, has the elements of its piece, and lives in the owner of the call
        // until that has ended; what is received is new and nobody else's, what is sent is not written by any operation,
        // since operations write to memory that nobody else holds.
        let send = request
            .send
            .iter()
            .zip(&self.send)
            .map(|(p, t)| unsafe { Buf::device(address(t), p.elements(), p.dtype, gpu) });
        // SAFETY: as above.
        let receive = request
            .receive
            .iter()
            .zip(&self.receive)
            .map(|(p, t)| unsafe { BufMut::device(address(t), p.elements(), p.dtype, gpu) });
        request.call(send.collect(), receive.collect())
    }
}

impl<B: Plain> PlainProgram<B> {
    pub(crate) fn new(
        plan: Arc<Plan>,
        rank: usize,
        device: &B::Device,
    ) -> Result<PlainProgram<B>, ExecError> {
        dtypes::check(&plan, rank, |dtype| B::computes(device, dtype))?;
        let habits =
            Habits { boolean: device.defaults().bool_dtype.into(), own_products: B::own_products(device) };
        let Built { pieces, tables, drawings, pairs, left } = build(&plan, rank, habits)?;
        let dtypes = drawings.iter().map(RandomKernel::dtype).collect();
        let shared = Arc::new(Shared { drawings, dtypes, dice: Mutex::default(), error: Mutex::new(None) });
        let mut registry = CustomOpRegistry::<B>::new();
        let handler = shared.clone();
        registry.register(RANDOM, move |handles, operation, device| {
            let Some(out) = operation.outputs.first() else { return };
            let number = operation.scalars.first().map_or(u64::MAX, |s| s.elem()) as usize;
            match handler.draw(number) {
                Ok(drawn) => match upload::<B>(drawn, device) {
                    HandleKind::Float(t) => handles.register_float_tensor::<B>(&out.id, t),
                    HandleKind::Int(t) => handles.register_int_tensor::<B>(&out.id, t),
                    HandleKind::Bool(t) => handles.register_bool_tensor::<B>(&out.id, t),
                    HandleKind::Quantized(_) => {}
                },
                Err(error) => *lock(&handler.error) = Some(error),
            }
        });
        registry.register(PRODUCT, |handles, operation, _| {
            let ([left, right], [out]) = operation.as_fixed();
            let left = handles.get_float_tensor::<B>(left);
            let right = handles.get_float_tensor::<B>(right);
            handles.register_float_tensor::<B>(&out.id, B::product(left, right, out.dtype));
        });
        let mut interpreter = TensorInterpreter::with_custom_ops(device.clone(), registry);
        for (number, table) in tables.into_iter().enumerate() {
            let host = HostTensor { shape: table.shape, data: HostData::I32(table.elements) };
            interpreter.register_tensor_to_device(Home::Table(number).id(), upload::<B>(host, device));
        }
        let coords = plan.mesh.coords(rank).to_vec();
        Ok(PlainProgram {
            plan,
            coords,
            interpreter,
            shared,
            pieces,
            pairs,
            left,
            pool: Pool::default(),
            flying: BTreeMap::new(),
        })
    }

    /// Binds a buffer to what the host has.
    pub(crate) fn put(&mut self, buf: BufId, value: HostTensor, device: &B::Device) {
        let values = self.pairs.get(&buf).copied();
        self.bind(buf, Kept::new(value, values, device));
    }

    /// Binds a buffer.
    pub(crate) fn bind(&mut self, buf: BufId, kept: Kept<B>) {
        for (home, handle) in [(Home::Buffer(buf), kept.values), (Home::Indices(buf), kept.indices)] {
            if let Some(handle) = handle {
                self.interpreter.register_tensor_to_device(home.id(), handle);
            }
        }
    }

    fn handle(&mut self, home: Home, dtype: BurnType, shape: &[usize], take: bool) -> HandleKind<B> {
        let status = if take { TensorStatus::ReadWrite } else { TensorStatus::ReadOnly };
        let ir = TensorIr { id: home.id(), shape: Shape::from(extents(shape)), status, dtype };
        self.interpreter.get_tensor(&ir)
    }

    /// The contents of a buffer, which ends if `take`.
    ///
    /// # Panics
    /// If the buffer is not bound.
    pub(crate) fn get(&mut self, buf: BufId, take: bool) -> Kept<B> {
        let buffer = self.plan.buffer(buf);
        let (dtype, shape) = (buffer.dtype, buffer.shape(&self.plan.mesh, &self.coords));
        if shape.contains(&0) {
            return Kept { values: None, indices: None };
        }
        let values = if is_pair(dtype) { self.pairs.get(&buf).copied().unwrap_or(DType::I32) } else { dtype };
        let indices = is_pair(dtype).then(|| self.handle(Home::Indices(buf), BurnType::I32, &shape, take));
        Kept { values: Some(self.handle(Home::Buffer(buf), stored(values), &shape, take)), indices }
    }

    /// A copy of a buffer's elements on the host; the buffer ends if `take`.
    pub(crate) fn read(&mut self, buf: BufId, take: bool) -> Result<HostTensor, Lost> {
        let buffer = self.plan.buffer(buf);
        let (dtype, shape) = (buffer.dtype, buffer.shape(&self.plan.mesh, &self.coords));
        let values = self.pairs.get(&buf).copied().unwrap_or(DType::I32);
        self.get(buf, take).read(dtype, values, &shape)
    }

    /// Releases what a step does not read but ends.
    fn drop_homes(&mut self, homes: &[Home]) {
        for home in homes {
            let gone = TensorIr {
                id: home.id(),
                shape: Shape::from(vec![1]),
                status: TensorStatus::ReadWrite,
                dtype: BurnType::F32,
            };
            self.interpreter.register_op(OperationIr::Drop(gone));
        }
    }

    /// Releases a buffer.
    pub(crate) fn release(&mut self, buf: BufId) {
        let homes = homes(&self.plan, buf, &self.coords).unwrap_or_default();
        self.drop_homes(&homes);
    }

    /// Runs all steps; random values are those of `dice`, and `at` is kept at the step that runs. Collectives bring what
    /// they send to the host, and what they receive back, unless the transport works on the device's memory.
    pub(crate) fn run(
        &mut self,
        dice: Dice,
        device: &B::Device,
        transport: &mut dyn Transport,
        sequence: &mut u64,
        at: &mut Option<usize>,
        (peak, recorder): (&mut Option<u64>, Option<&mut Recorder>),
    ) -> Result<(), Ended> {
        *lock(&self.shared.dice) = dice;
        let pieces = std::mem::take(&mut self.pieces);
        let done = self.run_pieces(&pieces, device, transport, sequence, at, (peak, recorder));
        self.pieces = pieces;
        done
    }

    /// Gives up the collectives that a failed run has left in flight.
    pub(crate) fn give_up(&mut self) {
        self.flying.clear();
    }

    /// Looks at the memory in use after a step, to which belongs what it has just released: it was there beside the
    /// results.
    ///
    /// Waits for the device: what it still has to do holds the memory that it reads.
    fn look(&self, step: usize, device: &B::Device, peak: &mut Option<u64>) -> Result<(), Ended> {
        let (Some(most), Some(step)) = (peak, self.plan.steps.get(step)) else { return Ok(()) };
        B::sync(device).map_err(|e| Ended::Device(Lost(e.to_string())))?;
        let bytes = |b: &BufId| {
            let buffer = self.plan.buffer(*b);
            let elements: usize = buffer.shape(&self.plan.mesh, &self.coords).iter().product();
            (elements * buffer.dtype.bytes()) as u64
        };
        let released: u64 = step.free.iter().map(bytes).sum();
        if let Some(usage) = B::memory_pool_usage(device) {
            *most = (*most).max(usage.bytes_in_use + released);
        }
        Ok(())
    }

    /// The tensor of a piece; none if it has no elements.
    fn piece(&mut self, piece: &super::collective::Piece) -> Option<HandleKind<B>> {
        let home = piece.home?;
        Some(self.handle(home, stored(piece.dtype), &piece.shape, piece.ends))
    }

    /// Starts a call. Where the transport works on the device's memory it gets that; else what is sent is brought to the
    /// host.
    fn start(
        &mut self,
        prepared: &Prepared,
        request: &Request,
        device: &B::Device,
        transport: &mut dyn Transport,
        sequence: u64,
    ) -> Result<Flying<B>, Ended> {
        let tag = prepared.tag(sequence);
        let group = &prepared.group;
        if let Some(gpu) = transport.gpu().filter(|gpu| B::is_gpu(device, *gpu)) {
            let memory = self.pinned(request, device)?;
            let started = transport.try_start(group, &tag, memory, |m| Ok::<_, Failed>(m.call(request, gpu)));
            return started.map(Flying::Device).map_err(Ended::Collective);
        }
        let mut memory = HostMemory { send: vec![], receive: vec![] };
        for piece in &request.send {
            let host = match self.piece(piece) {
                Some(tensor) => download::<B>(tensor, piece.dtype, &piece.shape).map_err(Ended::Device)?,
                None => HostTensor::zeros(piece.dtype, vec![0]),
            };
            memory.send.push(from_host(host));
        }
        for piece in &request.receive {
            memory.receive.push(self.pool.take(piece.dtype, &piece.shape));
        }
        let started = transport.try_start(group, &tag, memory, |m| {
            let send = request.send.iter().zip(&m.send).map(|(p, t)| Buf::from_bytes(t.bytes(), p.dtype));
            let receive = request.receive.iter().zip(&mut m.receive);
            let receive = receive.map(|(p, t)| BufMut::from_bytes(bytes_mut(t), p.dtype));
            let (send, receive) = (send.collect::<Result<_, _>>()?, receive.collect::<Result<_, _>>()?);
            Ok::<_, Failed>(request.call(send, receive))
        });
        started.map(Flying::Host).map_err(Ended::Collective)
    }

    /// What a call reads and writes, brought into place on the device.
    fn pinned(&mut self, request: &Request, device: &B::Device) -> Result<DeviceMemory<B>, Ended> {
        let mut memory = DeviceMemory { send: vec![], receive: vec![] };
        for piece in &request.send {
            let tensor = self.piece(piece);
            memory.send.push(tensor.map(B::pin).transpose().map_err(Ended::Device)?);
        }
        for piece in &request.receive {
            let tensor = piece.home.map(|_| empty::<B>(piece.dtype, &piece.shape, device));
            memory.receive.push(tensor.map(B::pin).transpose().map_err(Ended::Device)?);
        }
        Ok(memory)
    }

    /// Waits for a call, and binds what it gave.
    fn finish(&mut self, request: &Request, flying: Flying<B>, device: &B::Device) -> Result<(), Ended> {
        let failed = |e| Ended::Collective(Failed::Comm(e));
        match flying {
            Flying::Device(started) => {
                let memory = started.wait().map_err(failed)?;
                for (piece, pinned) in request.receive.iter().zip(memory.receive) {
                    if let (Some(home), Some(pinned)) = (piece.home, pinned) {
                        self.interpreter.register_tensor_to_device(home.id(), B::unpin(pinned, device));
                    }
                }
            }
            Flying::Host(started) => {
                let memory = started.wait().map_err(failed)?;
                for (piece, tensor) in request.receive.iter().zip(memory.receive) {
                    if let Some(home) = piece.home {
                        let host = to_host(&tensor, piece.dtype, &piece.shape);
                        let tensor = upload::<B>(host, device);
                        self.interpreter.register_tensor_to_device(home.id(), tensor);
                    }
                    self.pool.give(tensor, piece.dtype, piece.elements());
                }
            }
        }
        Ok(())
    }

    fn run_pieces(
        &mut self,
        pieces: &[Piece],
        device: &B::Device,
        transport: &mut dyn Transport,
        sequence: &mut u64,
        at: &mut Option<usize>,
        (peak, mut recorder): (&mut Option<u64>, Option<&mut Recorder>),
    ) -> Result<(), Ended> {
        for piece in pieces {
            match piece {
                Piece::Segment(operations) => {
                    for (k, (operation, step)) in operations.iter().enumerate() {
                        *at = Some(*step);
                        if let Some(r) = &mut recorder {
                            r.compute(*step);
                        }
                        self.interpreter.register_op(operation.clone());
                        if matches!(operation, OperationIr::Custom(_))
                            && let Some(error) = lock(&self.shared.error).take()
                        {
                            return Err(Ended::Kernel(error));
                        }
                        if peak.is_some() && operations.get(k + 1).is_none_or(|next| next.1 != *step) {
                            self.look(*step, device, peak)?;
                        }
                    }
                }
                Piece::Collective { prepared, requests, step, flight } => {
                    *at = Some(*step);
                    let mut flying = vec![];
                    for request in requests {
                        *sequence += 1;
                        let begin = recorder.as_mut().map_or(0, |r| r.close());
                        let started = self.start(prepared, request, device, transport, *sequence)?;
                        if let Some(r) = &mut recorder {
                            r.ended(What::Start, *step, begin, *sequence);
                        }
                        match flight {
                            Some(_) => flying.push((started, *sequence)),
                            None => {
                                let begin = recorder.as_mut().map_or(0, |r| r.close());
                                self.finish(request, started, device)?;
                                if let Some(r) = &mut recorder {
                                    r.ended(What::Wait, *step, begin, *sequence);
                                }
                            }
                        }
                    }
                    if let Some(flight) = flight {
                        self.flying.insert(*flight, flying);
                    }
                    self.look(*step, device, peak)?;
                }
                Piece::Wait { flight, start, step: end } => {
                    if let (Some(Piece::Collective { requests, step, .. }), Some(flying)) =
                        (pieces.get(*start), self.flying.remove(flight))
                    {
                        // Errors name the collective.
                        *at = Some(*step);
                        for (request, (started, sequence)) in requests.iter().zip(flying) {
                            let begin = recorder.as_mut().map_or(0, |r| r.close());
                            self.finish(request, started, device)?;
                            if let Some(r) = &mut recorder {
                                r.ended(What::Wait, *end, begin, sequence);
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

impl Shared {
    fn draw(&self, number: usize) -> Result<HostTensor, KernelError> {
        let unknown = || KernelError::Unsupported(format!("there is no drawing {number}"));
        let drawing = self.drawings.get(number).ok_or_else(unknown)?;
        let dtype = self.dtypes.get(number).copied().ok_or_else(unknown)?;
        let mut host = HostTensor::zeros(dtype, drawing.shape());
        let dice = *lock(&self.dice);
        let out = match &mut host.data {
            HostData::F64(v) => SliceMut::F64(v),
            HostData::F32(v) => SliceMut::F32(v),
            HostData::Bool(v) => SliceMut::Bool(v),
            _ => return Err(unknown()),
        };
        drawing.run(dice.seed, dice.step, out)?;
        Ok(host)
    }
}
