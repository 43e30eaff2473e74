//! Runs a loaded Plan: segments, collectives and waits, in order.

use super::interpreter::{LoadedKernel, execute};
use super::place::not_compiled;
use crate::backend::{
    Backend, DeviceError, Download, Handle, Handles, RngState, RunEvent, RunPoint, Shaped, Upload,
};
use crate::collective::{CallTensors, call_on, tag_of, tag_of_message};
use crate::error::ExecError;
use crate::open_pass::OpenPass;
use crate::tensor::{Finiteness, HostData, HostTensor};
use crate::trace::{Recorder, What};
use crate::watch::{self, KernelsBy};
use burn_ir::{TensorId, TensorStatus};
use meshwright_comm::{BufferMismatch, Collectives, CommError, Started, Transport};
use meshwright_device::KernelError;
use meshwright_device::arena::Arena;
use meshwright_device::collective::calls::TransportCall;
use meshwright_device::launch::{BurnGraph, CollectiveLaunch, Launch, LaunchKind, LoopLaunch};
use meshwright_device::lowering::local::DeviceContext;
use meshwright_device::slot::{LaunchId, TensorSlot};
use meshwright_device::text::origin;
use meshwright_device::turns::Turn;
use meshwright_device::{CompileError, DevicePlan};
use meshwright_plan::{ArenaId, BufId, DType, Plan};
use meshwright_sorted::{SortedMap, SortedSet};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A Plan that is ready to run on one device.
pub(crate) struct Program<B: Backend> {
    pub(crate) plan: Arc<Plan>,
    coords: Vec<usize>,
    pub(crate) device: Arc<DevicePlan>,
    /// The kernels, by launch.
    kernels: Vec<Option<LoadedKernel<B::Kernel>>>,
    /// The steps that are done after a launch.
    done: SortedMap<LaunchId, Vec<usize>>,
    handles: Handles<B>,
    /// Calls in flight of each started collective, by its id; of messages that are received ahead perhaps several times, the
    /// oldest first. After a failed run these are the calls that were not waited for.
    pub(super) in_flight: SortedMap<u32, VecDeque<Vec<InFlightCall<B>>>>,
    /// Messages to the next stages that are on their way, the oldest first.
    pub(super) sent: VecDeque<Vec<InFlightCall<B>>>,
    /// Number of messages so far over each link.
    pub(super) messages: SortedMap<Arc<[usize]>, u64>,
    /// Peak of live bytes by the Plan, without values that this device fuses away.
    pub(crate) planned: u64,
    /// Offsets of the kernels' results, on devices that have an arena.
    pub(crate) arena: Arc<Arena>,
}

/// A call of a transport that was started, with its memory and its number.
pub(super) struct InFlightCall<B: Backend> {
    pub(super) started: Started<CallTensors<B::CallMemory>>,
    pub(super) sequence: u64,
}

/// Why a run ended.
pub(crate) enum RunError {
    Kernel(KernelError),
    Comm(CommError),
    Buffer(BufferMismatch),
    Device(DeviceError),
}

impl RunError {
    /// It in words, without a place.
    pub(crate) fn into_text(self) -> String {
        match self {
            RunError::Kernel(e) => e.to_string(),
            RunError::Comm(e) => e.to_string(),
            RunError::Buffer(e) => e.to_string(),
            RunError::Device(DeviceError(why)) => why,
        }
    }
}

impl From<CommError> for RunError {
    fn from(e: CommError) -> Self {
        RunError::Comm(e)
    }
}

impl From<BufferMismatch> for RunError {
    fn from(e: BufferMismatch) -> Self {
        RunError::Buffer(e)
    }
}

impl From<DeviceError> for RunError {
    fn from(e: DeviceError) -> Self {
        RunError::Device(e)
    }
}

/// State of a run, and its results.
pub(crate) struct RunContext<'r> {
    /// Its number.
    pub(crate) program: usize,
    pub(crate) rng: RngState,
    pub(crate) transport: &'r mut dyn Transport,
    /// The number of the last call of the transport.
    pub(crate) sequence: &'r mut u64,
    /// The step that runs.
    pub(crate) at: &'r mut Option<usize>,
    pub(crate) recorder: Option<&'r mut Recorder>,
    /// Peak of the sampled memory in use, while it is watched.
    pub(crate) peak: Option<&'r mut u64>,
    /// Grows by the time that this device waits for others.
    pub(crate) waited: &'r mut Duration,
    /// Finiteness of each buffer, while values are examined.
    pub(crate) examined: Option<&'r mut Vec<Finiteness>>,
}

impl RunContext<'_> {
    /// A step begins; its first operation, where it has several.
    fn reach(&mut self, backend: &mut impl Backend, step: usize) {
        if *self.at != Some(step) {
            *self.at = Some(step);
            let point = RunPoint { program: self.program, step_number: self.rng.step, step };
            backend.reached(RunEvent::Step(Some(point)));
        }
    }

    /// Ends a stretch of computation; gives the time.
    pub(super) fn close(&mut self) -> u64 {
        self.recorder.as_mut().map_or(0, |r| r.close())
    }

    pub(super) fn ended(&mut self, what: What, step: usize, begin: u64, sequence: u64) -> u64 {
        self.recorder.as_mut().map_or(0, |r| r.ended(what, step, begin, sequence))
    }
}

impl<B: Backend> Program<B> {
    pub(crate) fn new(backend: &mut B, plan: Arc<Plan>, rank: usize) -> Result<Program<B>, ExecError> {
        backend.check(&plan, rank)?;
        let compiled = meshwright_device::compile(&plan, rank, backend.target());
        let mut device = compiled.map_err(|error| not_compiled(&plan, rank, error))?;
        let planned = device.peak_bytes(&plan);
        let mut handles = Handles::<B>::new();
        for (number, id) in device.slots.tables() {
            let table = &device.tables[number];
            let host = HostTensor { shape: table.shape.clone(), data: HostData::I32(table.elements.clone()) };
            for tensor in backend.upload(host, Upload::Value(None)) {
                handles.register_handle(id, tensor);
            }
        }
        let context = DeviceContext::new(&plan, rank);
        let loaded = device.launches.iter().map(|launch| match &launch.kind {
            LaunchKind::Kernel(kernel) => {
                LoadedKernel::new(backend, &context, kernel).map(Some).map_err(|source| {
                    not_compiled(&plan, rank, CompileError { step: Some(launch.step), source })
                })
            }
            _ => Ok(None),
        });
        let kernels = loaded.collect::<Result<Vec<_>, ExecError>>()?;
        let done = device.done_after();
        let coords = context.coords.to_vec();
        Ok(Program {
            coords,
            arena: Arc::new(std::mem::take(&mut device.arena)),
            device: Arc::new(device),
            kernels,
            done,
            handles,
            in_flight: SortedMap::new(),
            sent: VecDeque::new(),
            messages: SortedMap::new(),
            planned,
            plan,
        })
    }

    /// Buffers that are alive at the end.
    pub(crate) fn left(&self) -> &SortedSet<BufId> {
        &self.device.left
    }

    /// Whether it has kernels that draw random values.
    pub(crate) fn draws(&self) -> bool {
        self.kernels.iter().any(Option::is_some)
    }

    /// Dtype and shape of a buffer on this device.
    fn local(&self, buf: BufId) -> (DType, Vec<usize>) {
        let buffer = self.plan.buffer(buf);
        (buffer.dtype, buffer.shape(&self.plan.mesh, &self.coords))
    }

    /// Binds a buffer to a tensor of the host.
    pub(crate) fn bind_host(&mut self, backend: &mut B, buf: BufId, value: HostTensor) {
        let values = self.device.pairs.get(&buf).copied();
        self.bind(buf, backend.upload(value, Upload::Value(values)));
    }

    /// Binds an input to a tensor of the host.
    pub(crate) fn bind_input(&mut self, backend: &mut B, buf: BufId, value: HostTensor) {
        self.bind(buf, backend.upload(value, Upload::Input));
    }

    /// Binds a buffer to its tensors: of pairs in two parts the values and the indices.
    pub(crate) fn bind(&mut self, buf: BufId, tensors: Vec<Handle<B>>) {
        for (id, tensor) in self.device.slots.of_buffer(buf).zip(tensors) {
            self.handles.register_handle(id, tensor);
        }
    }

    /// The tensors of a buffer, which ends if `take`.
    pub(crate) fn get(&mut self, buf: BufId, take: bool) -> Vec<Handle<B>> {
        let status = if take { TensorStatus::ReadWrite } else { TensorStatus::ReadOnly };
        let bound = self.device.slots.of_buffer(buf).filter(|id| self.handles.has_handle(id));
        let bound: Vec<_> = bound.collect();
        bound.iter().map(|id| self.handles.get_handle(id, &status)).collect()
    }

    /// The tensor of a buffer, which stays; none where there is none, or two.
    pub(crate) fn shaped(&mut self, buf: BufId) -> Option<Shaped<Handle<B>>> {
        let (dtype, shape) = self.local(buf);
        match <[Handle<B>; 1]>::try_from(self.get(buf, false)) {
            Ok([tensor]) => Some((tensor, dtype, shape)),
            Err(_) => None,
        }
    }

    /// Begins to copy a buffer's elements to the host.
    pub(crate) fn start_read(&mut self, backend: &B, buf: BufId) -> Download {
        let (dtype, shape) = self.local(buf);
        let tensors = self.get(buf, false);
        backend.download(tensors, dtype, self.device.pairs.get(&buf).copied(), &shape)
    }

    /// A copy of a buffer's elements on the host.
    pub(crate) fn read(&mut self, backend: &B, buf: BufId) -> Result<HostTensor, DeviceError> {
        self.start_read(backend, buf)()
    }

    /// Drops all values of a run, and the values that were bound for it.
    pub(crate) fn drop_values(&mut self) {
        let mut before = std::mem::replace(&mut self.handles, Handles::<B>::new());
        for (_, id) in self.device.slots.tables() {
            if before.has_handle(&id) {
                self.handles.register_handle(id, before.get_handle(&id, &TensorStatus::ReadWrite));
            }
        }
        self.cancel();
    }

    /// Gives up the collectives that a failed run has left in flight.
    pub(crate) fn cancel(&mut self) {
        self.in_flight.clear();
        self.sent.clear();
    }

    /// Runs all steps.
    pub(crate) fn run(&mut self, backend: &mut B, mut run: RunContext<'_>) -> Result<(), RunError> {
        if backend.arena().is_some_and(|arena| arena.is_missing()) {
            run.reach(backend, self.arena.fullest);
        }
        if let Some(arena) = backend.arena() {
            arena.enter(&self.arena);
        }
        let given: Vec<BufId> = self.plan.program_inputs.iter().map(|l| l.buf).collect();
        self.examine(backend, &given, &mut run)?;
        let device = self.device.clone();
        self.launches(backend, &device.body, &mut run)?;
        self.delivered(0, &mut run)?;
        Ok(backend.arena().map_or(Ok(()), |arena| arena.leave())?)
    }

    fn launches(
        &mut self,
        backend: &mut B,
        ids: &[LaunchId],
        run: &mut RunContext<'_>,
    ) -> Result<(), RunError> {
        ids.iter().try_for_each(|id| self.launch(backend, *id, run))
    }

    /// The name of a launch in kernel counts by line or by launch.
    fn counted_under(&self, by: KernelsBy, id: LaunchId, launch: &Launch) -> String {
        let origin = || origin(&self.plan, launch).unwrap_or_default();
        match by {
            KernelsBy::Launch => format!("{} {} of {}", id.0, launch.kind.name(), origin()),
            KernelsBy::Step => launch.step.to_string(),
            KernelsBy::Kernel | KernelsBy::Line => origin(),
        }
    }

    /// Runs one launch.
    fn launch(&mut self, backend: &mut B, id: LaunchId, run: &mut RunContext<'_>) -> Result<(), RunError> {
        let device = self.device.clone();
        let launch = &device.launches[id];
        let launching = match launch.kind {
            LaunchKind::Kernel(_) | LaunchKind::Burn(_) if watch::is_watched_by_launch() => {
                // A collective on the stream waits for other devices, which then must not wait for this one.
                backend.memory()?;
                watch::at(|by| self.counted_under(by, id, launch))
            }
            _ => None,
        };
        match &launch.kind {
            LaunchKind::Kernel(_) => self.kernel(backend, (id, launch), run)?,
            LaunchKind::Burn(burn) => self.operations(backend, burn, run)?,
            LaunchKind::Free => {}
            LaunchKind::Collective(collective) => self.collective(backend, (launch, collective), run)?,
            LaunchKind::Loop(of) => {
                let before = *run.sequence;
                self.iterate(backend, of, run)?;
                if let Some(numbers) = of.numbers.filter(|_| run.rng.iteration.depth() == 0) {
                    // Stages have made different calls. From here on all devices count alike again.
                    *run.sequence = before + numbers;
                }
                self.examine(backend, &self.written(&launch.steps), run)?;
            }
            LaunchKind::Wait { start, unpack } => {
                let started = &device.launches[*start];
                let LaunchKind::Collective(collective) = &started.kind else { return Ok(()) };
                // Errors name the collective.
                run.reach(backend, started.step);
                let calls = collective.async_id.and_then(|id| self.in_flight.get_mut(&id)?.pop_front());
                let calls = calls.unwrap_or_default();
                self.wait(backend, collective, calls, (launch.step, unpack), run)?;
                self.examine(backend, &self.written(&started.steps), run)?;
            }
        }
        if launching.is_some() {
            // Waits for the device's work.
            backend.memory()?;
        }
        launch.frees.iter().for_each(|id| self.free(backend, *id));
        if (run.peak.is_some() || run.examined.is_some())
            && let Some(done) = self.done.get(&id)
        {
            self.look(backend, done, run)?;
            self.examine(backend, &self.written(done), run)?;
        }
        Ok(())
    }

    fn free(&mut self, backend: &mut B, id: TensorId) {
        let ends = TensorStatus::ReadWrite;
        backend.recycle(self.handles.get_handle(&id, &ends));
    }

    /// Runs the body of a loop once for each position of its dim, each launch in the turn that its lag gives.
    fn iterate(
        &mut self,
        backend: &mut B,
        of: &LoopLaunch,
        run: &mut RunContext<'_>,
    ) -> Result<(), RunError> {
        let around = run.rng.iteration;
        let mut pass = OpenPass::of(of);
        for turn in &of.turns {
            match *turn {
                Turn::Carry { carry, made } => {
                    let c = &of.carries[carry];
                    let tensors = if made { self.get(c.next, true) } else { self.get(c.start, c.ends) };
                    if c.unread {
                        tensors.into_iter().for_each(|t| backend.recycle(t));
                    } else {
                        // The initial value is replaced if it was not read.
                        self.bind(c.current, tensors);
                    }
                }
                Turn::Run { launch, position } => {
                    run.rng.iteration =
                        around.within(&self.plan, (of.dim, of.of_one_stage), position, of.positions.start);
                    // A receive that runs ahead is not a part of the running pass.
                    if !self.device.launches[of.body[launch]].receives_ahead() {
                        pass.runs(launch, position, run.recorder.as_deref_mut());
                    }
                    self.launch(backend, of.body[launch], run)?;
                }
                Turn::Skip { carry } => {
                    let c = &of.carries[carry];
                    let tensors = self.get(c.start, c.ends);
                    self.bind(c.last, tensors);
                }
                Turn::End { carry, made } => {
                    let c = &of.carries[carry];
                    let tensors = self.get(if made { c.next } else { c.current }, true);
                    self.bind(c.last, tensors);
                }
            }
        }
        pass.end(run.recorder.as_deref_mut());
        run.rng.iteration = around;
        Ok(())
    }

    /// Runs a kernel.
    fn kernel(
        &mut self,
        backend: &mut B,
        (id, launch): (LaunchId, &Launch),
        run: &mut RunContext<'_>,
    ) -> Result<(), RunError> {
        self.begin(backend, launch.step, run);
        let Some(kernel) = &self.kernels[id.position()] else { return Ok(()) };
        kernel.run(backend, launch, &mut self.handles, run.rng).map_err(RunError::Kernel)
    }

    /// Runs operations of Burn.
    fn operations(
        &mut self,
        backend: &mut B,
        burn: &BurnGraph,
        run: &mut RunContext<'_>,
    ) -> Result<(), RunError> {
        for (at, (operation, step)) in burn.graph.operations.iter().zip(&burn.steps).enumerate() {
            self.begin(backend, *step, run);
            execute(backend, &mut self.handles, operation).map_err(RunError::Kernel)?;
            // Values that end within the graph are looked at before that.
            if run.examined.is_some() && burn.steps.get(at + 1).is_some_and(|next| next != step) {
                self.examine(backend, &self.written(&[*step]), run)?;
            }
        }
        Ok(())
    }

    /// A launch of a step begins, if it is none that belongs to a collective.
    fn begin(&self, backend: &mut B, step: usize, run: &mut RunContext<'_>) {
        if self.plan.steps[step].communicates() {
            return;
        }
        run.reach(backend, step);
        if let Some(r) = &mut run.recorder {
            r.compute(step);
        }
    }

    /// Samples the memory in use after a step, with the storage that the step has just freed, which was live with the
    /// results.
    fn look(&self, backend: &B, done: &[usize], run: &mut RunContext<'_>) -> Result<(), RunError> {
        let Some(peak) = &mut run.peak else { return Ok(()) };
        // Storage that a fused-away value would get is freed too.
        let steps = || done.iter().map(|step| &self.plan.steps[*step]);
        let given = steps().flat_map(|s| &s.aliases).filter(|(_, to)| self.device.never.contains(to));
        let freed = steps().flat_map(|s| &s.free).chain(given.map(|(from, _)| from));
        // An arena stays as large as it is.
        let freed = freed.filter(|b| !self.device.never.contains(b) && self.arena.bytes == 0);
        let Some(memory) = backend.memory()? else { return Ok(()) };
        let bytes = |b: &BufId| {
            let (dtype, shape) = self.local(*b);
            (shape.iter().product::<usize>() * dtype.bytes()) as u64
        };
        let released: u64 = freed.map(bytes).sum();
        **peak = (**peak).max(memory.in_use + released);
        Ok(())
    }

    pub(super) fn written(&self, done: &[usize]) -> Vec<BufId> {
        done.iter().flat_map(|step| &self.plan.steps[*step].writes).map(|o| o.buf).collect()
    }

    /// Examines new values, if values are examined.
    pub(super) fn examine(
        &mut self,
        backend: &B,
        bufs: &[BufId],
        run: &mut RunContext<'_>,
    ) -> Result<(), RunError> {
        let Some(seen) = run.examined.as_deref_mut() else { return Ok(()) };
        seen.resize(self.plan.buffers.len(), Finiteness::Finite);
        for buf in bufs {
            let (dtype, shape) = self.local(*buf);
            let id = self.device.slots.id(TensorSlot::Buffer(*buf));
            let holds = id.is_some_and(|id| self.handles.has_handle(&id));
            let floats = dtype.is_float() || dtype.is_pair();
            if holds && floats && shape.iter().all(|n| *n > 0) {
                seen[buf.0 as usize] = Finiteness::of(&self.read(backend, *buf)?.data);
            }
        }
        Ok(())
    }

    fn collective(
        &mut self,
        backend: &mut B,
        (launch, of): (&Launch, &CollectiveLaunch),
        run: &mut RunContext<'_>,
    ) -> Result<(), RunError> {
        run.reach(backend, launch.step);
        if of.link.is_some() {
            return self.message(backend, (launch, of), run);
        }
        let mut begin = run.close();
        self.launches(backend, &of.pack, run)?;
        let mut in_flight = vec![];
        for call in &of.calls {
            *run.sequence += 1;
            let sequence = *run.sequence;
            let started = self.start(backend, of, (call, sequence), run)?;
            begin = run.ended(What::Start, launch.step, begin, sequence);
            in_flight.push(InFlightCall { started, sequence });
        }
        if let Some(id) = of.async_id {
            self.in_flight.entry(id).or_default().push_back(in_flight);
        } else {
            self.wait(backend, of, in_flight, (launch.step, &of.unpack), run)?;
        }
        self.look(backend, &launch.steps, run)?;
        let written = if of.async_id.is_some() { vec![] } else { self.written(&launch.steps) };
        self.examine(backend, &written, run)
    }

    /// Starts a call of the transport.
    pub(super) fn start(
        &mut self,
        backend: &mut B,
        piece: &CollectiveLaunch,
        (call, sequence): (&TransportCall, u64),
        run: &mut RunContext<'_>,
    ) -> Result<Started<CallTensors<B::CallMemory>>, RunError> {
        let gpu = run.transport.gpu();
        let mut memory = CallTensors { send: vec![], receive: vec![] };
        for (sent, received) in call.send.iter().zip(&call.receive) {
            let status = if sent.ends { TensorStatus::ReadWrite } else { TensorStatus::ReadOnly };
            let tensor = sent.tensor.map(|id| self.handles.get_handle(&id, &status));
            let over = call.in_place() && sent.ends;
            let (send, receive) = backend.call_memory(tensor, (sent, received), over, gpu)?;
            memory.send.push(send);
            memory.receive.push(receive);
        }
        let named = if piece.link.is_some() { tag_of_message } else { tag_of };
        let tag = named(&piece.prepared, sequence);
        let group = &piece.prepared.group;
        run.transport.try_start(group, &tag, memory, |m| call_on(call, m).map_err(RunError::from))
    }

    /// Waits for the calls of a collective, and unpacks their results.
    pub(super) fn wait(
        &mut self,
        backend: &mut B,
        piece: &CollectiveLaunch,
        in_flight: Vec<InFlightCall<B>>,
        (step, unpack): (usize, &[LaunchId]),
        run: &mut RunContext<'_>,
    ) -> Result<(), RunError> {
        let last = in_flight.last().map_or(0, |c| c.sequence);
        if let (true, Some(graphs)) =
            (run.transport.recorder().is_some_and(|r| r.is_recording()), backend.graphs())
        {
            // A recording may have nothing after a collective that does not depend on it.
            graphs.stream()?;
        } else if piece.link.is_some() && run.transport.gpu().is_some() {
            // Puts all requested operations on the stream, so that they do not wait for the message.
            backend.stream()?;
        }
        let mut begin = run.close();
        for (call, InFlightCall { started, sequence }) in piece.calls.iter().zip(in_flight) {
            let asked = Instant::now();
            let memory = started.wait()?;
            *run.waited += asked.elapsed();
            begin = run.ended(What::Wait, step, begin, sequence);
            let given_back =
                call.send.iter().zip(memory.send).map(|(sent, memory)| memory.filter(|_| sent.ends));
            let written = call.receive.iter().zip(memory.receive);
            for ((received, memory), sent) in written.zip(given_back) {
                let tensor = backend.received(memory, received, sent);
                if let (Some(id), Some(tensor)) = (received.tensor, tensor) {
                    self.handles.register_handle(id, tensor);
                }
            }
        }
        self.launches(backend, unpack, run)?;
        run.ended(What::Unpack, step, begin, last);
        Ok(())
    }
}
