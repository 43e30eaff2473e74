//! One GPU's end of a world.

use super::api::{self, Config, UniqueId};
use crate::fold::can_fold;
use crate::signature::Signature;
use crate::{
    Abort, AsyncCollective, BufMut, Call, CallName, CallRecorder, CollectiveKind, Collectives, CommError,
    Group, MemorySpace, Part, RecordedCalls, Tag, ThreadsTransport, Timeouts, Transport, TransportMemory,
    World,
};

use super::launch::{has_fold, place};
use super::memory::DeviceMemory;
use super::options::{Checks, LaunchOrder, NcclOptions};
use super::setup;
use super::stream::{CallPlace, CommKey, Inner, OnStream};
use meshwright_plan::{Axis, DType, Mesh, Monoid};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// One GPU's end of a world.
///
/// Dropped, it waits for what was posted, within the timeout; while its thread panics, or after an error, it aborts.
pub struct NcclTransport {
    inner: Arc<Inner>,
    control: Box<dyn Transport>,
    watcher: Option<JoinHandle<()>>,
    timeouts: Timeouts,
    timeout: Duration,
    checks: Checks,
    first_step: bool,
    note: Option<String>,
    /// Whether calls can be recorded.
    pub(super) records_calls: bool,
}

/// How long the end of a communicator may take.
const PATIENCE: Duration = Duration::from_secs(5);

impl NcclTransport {
    /// The end of this rank of `control`, on the GPU of that number among the ones that the process sees. All ranks call it
    /// together.
    ///
    /// # Errors
    /// [`CommError::Library`] if a library is missing or too old, if the GPU does not exist, or if ranks share one
    /// that cannot be shared; and the errors of the control plane.
    pub fn new(
        mut control: Box<dyn Transport>,
        ordinal: u32,
        options: &NcclOptions,
    ) -> Result<NcclTransport, CommError> {
        let made = setup::make(&mut *control, ordinal, options);
        let setup::Prepared { inner, note, records_calls } = made.inspect_err(|e| {
            if !e.is_consequence() {
                control.abort(&e.to_string());
            }
        })?;
        let inner = Arc::new(inner);
        let watched = inner.clone();
        let watcher = std::thread::Builder::new().name("nccl watch".into()).spawn(move || watched.watch());
        let watcher =
            watcher.map_err(|e| inner.refused(None, format!("no thread to watch over NCCL: {e}")))?;
        Ok(NcclTransport {
            inner,
            control,
            watcher: Some(watcher),
            timeouts: options.timeouts,
            timeout: options.timeouts.first_step,
            checks: options.checks,
            first_step: true,
            note,
            records_calls,
        })
    }

    /// The ends of a process that has all ranks, each on a GPU of its own, in ascending rank.
    ///
    /// # Errors
    /// As for [`NcclTransport::new`]: the one that is not a consequence of another rank's.
    pub fn of_process(gpus: &[u32], options: &NcclOptions) -> Result<Vec<NcclTransport>, CommError> {
        let ends = World::new(gpus.len(), options.timeouts);
        let made: Vec<Result<NcclTransport, CommError>> = std::thread::scope(|scope| {
            let start = |(end, gpu): (ThreadsTransport, u32)| {
                scope.spawn(move || NcclTransport::new(Box::new(end), gpu, options))
            };
            let threads: Vec<_> = ends.into_iter().zip(gpus.iter().copied()).map(start).collect();
            let joined = threads.into_iter().map(|t| t.join());
            joined.map(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        let cause =
            made.iter().filter_map(|end| end.as_ref().err()).min_by_key(|e| e.is_consequence()).cloned();
        cause.map_or_else(|| Ok(made.into_iter().flatten().collect()), Err)
    }

    /// How collectives are ordered.
    pub fn launch_order(&self) -> LaunchOrder {
        if self.inner.host_waits { LaunchOrder::HostSync } else { LaunchOrder::Events }
    }

    /// The GPU.
    pub fn ordinal(&self) -> u32 {
        self.inner.gpu.ordinal
    }

    /// Memory of the GPU, with anything in it.
    pub fn memory(&self, len: usize, dtype: DType) -> Result<DeviceMemory, CommError> {
        DeviceMemory::new(self.inner.clone(), len, dtype)
    }

    /// Makes the communicator of a group or of a link, with an id that the first member sends over the control plane.
    fn make(&mut self, group: &Group, name: &CallName) -> Result<(), CommError> {
        let mut id = UniqueId { bytes: [0; 128] };
        if group.position() == 0 {
            #[expect(unsafe_code, reason = "a function of NCCL")]
            // SAFETY: writes an id.
            let code = unsafe { (self.inner.nccl.f.unique_id)(&raw mut id) };
            if code != api::SUCCESS {
                let refused = api::Refused { function: "ncclGetUniqueId", code };
                let problem = self.inner.nccl.explain(&refused, std::ptr::null_mut());
                return Err(self.inner.fail(self.inner.refused(Some(name), problem)));
            }
        }
        self.control
            .broadcast(group, &Tag::control(name), 0, BufMut::new(&mut id.bytes))
            .map_err(|e| self.inner.fail(e))?;
        let f = self.inner.nccl.f;
        let key = CommKey::of_call(group, name);
        self.inner.make_comm(&key, None, group, name, self.timeout, |_, new| {
            let mut config = Config::not_blocking();
            #[expect(unsafe_code, reason = "a function of NCCL")]
            // SAFETY: `new` is a place for a handle; the configuration is copied.
            unsafe {
                (f.init)(new, place(group.size()), id, place(group.position()), &raw mut config)
            }
        })
    }

    /// Splits the communicator of a group from the world's. All ranks of the world take part, each with its group.
    fn split(&mut self, world: &Group, group: &Group, name: &CallName) -> Result<(), CommError> {
        let f = self.inner.nccl.f;
        let color = place(group.ranks().iter().copied().min().unwrap_or(0));
        let (key, via) = (CommKey::group(group), CommKey::group(world));
        self.inner.make_comm(&key, Some(&via), world, name, self.timeout, |parent, new| {
            let Some(parent) = parent else { unreachable!("the world's communicator was made before") };
            let mut config = Config::not_blocking();
            #[expect(unsafe_code, reason = "a function of NCCL")]
            // SAFETY: `new` is a place for a handle that outlives the call; the configuration is copied.
            unsafe {
                (f.split)(parent, color, place(group.position()), new, &raw mut config)
            }
        })
    }

    /// Compares this member's call with those of all others, before NCCL, which notices no difference, runs them. Waits until all
    /// have entered.
    fn compare(&mut self, group: &Group, tag: &Tag, call: &Signature) -> Result<(), CommError> {
        let control = Tag::control(&call.name(tag));
        let calls = self.control.gather_values(group, &control, &(tag.clone(), call.clone()))?;
        let at = |i: usize| (i, &calls[i].0, &calls[i].1);
        let mut pairs = (0..calls.len()).flat_map(|a| (a + 1..calls.len()).map(move |b| (a, b)));
        let conflict = pairs.find_map(|(a, b)| CommError::mismatch(group.ranks(), at(a), at(b)));
        conflict.map_or(Ok(()), Err)
    }

    /// Makes a link: its communicator, its stream, and the way between its ends, which NCCL makes with the first message and for
    /// which it would else keep the host of one end until the other one comes.
    fn prepare_link(&mut self, link: &Group) -> Result<(), CommError> {
        let [from, to] = link.ranks() else {
            let name = CallName::new(CollectiveKind::Permute, &Tag::new(0, "a link", 0));
            return Err(self.invalid(name, format!("a link between the ranks {:?}", link.ranks())));
        };
        let tag = Tag::new(0, "the first message", 0).over_link([*from, *to]);
        let name = CallName::new(CollectiveKind::Permute, &tag);
        if self.inner.has_comm(&CommKey::link(link)) {
            return Ok(());
        }
        if self.inner.host_waits {
            let problem = "stages of a pipeline send in the order of their GPUs, which needs a driver of CUDA 12.5 and a GPU for each \
                           rank of a process";
            return Err(self.inner.fail(self.inner.refused(Some(&name), problem)));
        }
        self.make(link, &name)?;
        let added = self.inner.add_lane(CommKey::link(link));
        added.map_err(|e| self.inner.fail(self.inner.refused(Some(&name), e)))?;
        let sends = link.position() == 0;
        let memory = [sends, !sends].map(|here| self.memory(usize::from(here), DType::U8));
        let [input, mut output] = match memory {
            [Ok(input), Ok(output)] => [input, output],
            [Err(e), _] | [_, Err(e)] => return Err(self.inner.fail(e)),
        };
        let part = |peer: usize, here: bool| if here { vec![Part { peer, range: 0..1 }] } else { vec![] };
        let (send, receive) = (part(1, sends), part(0, !sends));
        self.permute(link, &tag, (input.buf(), send), (output.buf_mut(), receive))?;
        self.inner.wait(None, Some(&name))
    }

    fn invalid(&self, call: CallName, problem: String) -> CommError {
        CommError::InvalidCall { rank: self.inner.rank, call, problem }
    }
}

impl Transport for NcclTransport {
    fn rank(&self) -> usize {
        self.inner.rank
    }

    fn size(&self) -> usize {
        self.control.size()
    }

    #[expect(unsafe_code, reason = "memory is used beyond the lifetime of the call")]
    unsafe fn post(
        &mut self,
        group: &Group,
        tag: &Tag,
        call: Call<'_>,
    ) -> Result<Box<dyn AsyncCollective>, CommError> {
        let ordinal = match call.place(group, tag)? {
            // SAFETY: the caller's promise.
            None | Some(MemorySpace::Host) => return unsafe { self.control.post(group, tag, call) },
            Some(MemorySpace::Device(ordinal)) => ordinal,
        };
        let name = call.name(tag);
        if ordinal != self.inner.gpu.ordinal {
            let problem =
                format!("memory of GPU {ordinal}, but rank {} has GPU {}", self.inner.rank, self.ordinal());
            return Err(self.invalid(name, problem));
        }
        let call = call.checked_anywhere(group, tag, (self.inner.rank, self.size()))?;
        if let Some(monoid) = call.signature.monoid
            && let Some(lacks) = call.signature.buffers.iter().find(|b| !has_fold(monoid, b.dtype))
        {
            return Err(CommError::NoFold { call: name, monoid, dtype: lacks.dtype });
        }
        self.inner.check(&name)?;
        self.inner.aborter.entered(&name);
        if self.inner.host_waits {
            let waited = self.inner.gpu.bind().and_then(|()| self.inner.gpu.synchronize());
            waited.map_err(|e| self.inner.fail(self.inner.refused(Some(&name), e)))?;
        }
        if tag.is_message {
            // Its ends come to it when they need it: neither is to wait for the other.
            if !self.inner.has_comm(&CommKey::link(group)) {
                return Err(self.invalid(name, "the link was not announced".into()));
            }
        } else if group.size() > 1 {
            let checked = match self.checks {
                Checks::Always => true,
                Checks::FirstStep => self.first_step,
                Checks::Never => false,
            };
            // Where the host waits, all members have to have waited before one starts: a rank that shares the GPU would
            // else wait for a collective that waits for that rank.
            if checked || self.inner.host_waits {
                self.compare(group, tag, &call.signature).map_err(|e| self.inner.fail(e))?;
            }
            if !self.inner.has_comm(&CommKey::group(group)) {
                self.make(group, &name)?;
            }
        }
        // SAFETY: the caller's promise: the memory stays until the collective has ended, in the device's order.
        let place = unsafe { self.inner.launch(group, &name, &call, self.timeout) }?;
        if let (true, false, CallPlace::Queued(lane, number)) = (self.first_step, tag.is_message, place) {
            // Engines choose their kernels in the first step by timing them: no collective is to keep the GPU busy meanwhile.
            self.inner.wait(Some((lane, number)), Some(&name))?;
        }
        Ok(Box::new(OnStream { inner: self.inner.clone(), place, name, result: None }))
    }

    fn first_step_done(&mut self) {
        self.first_step = false;
        self.timeout = self.timeouts.later;
        self.control.first_step_done();
    }

    fn folds(&self, monoid: Monoid, dtype: DType, place: MemorySpace) -> bool {
        can_fold(monoid, dtype) && (place == MemorySpace::Host || has_fold(monoid, dtype))
    }

    fn gpu(&self) -> Option<u32> {
        Some(self.ordinal())
    }

    fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    fn prepare(&mut self, mesh: &Mesh, sets: &[Vec<Axis>]) -> Result<(), CommError> {
        let tag = Tag::new(0, "communicators of the mesh", 0);
        let name = CallName::new(CollectiveKind::Barrier, &tag);
        if mesh.devices() != self.size() {
            let problem = format!("a mesh of {} devices in a world of {}", mesh.devices(), self.size());
            return Err(self.invalid(name, problem));
        }
        self.control.prepare(mesh, sets)?;
        let rank = self.inner.rank;
        let not_a_group =
            |e: crate::NotAGroup| CommError::InvalidCall { rank, call: name.clone(), problem: e.to_string() };
        let world = Group::world(self.size(), rank).map_err(not_a_group)?;
        let described = format!("{} {sets:?}", mesh.describe());
        self.control.agree(&world, &tag, described.as_bytes()).map_err(|e| self.inner.fail(e))?;
        for set in sets {
            let group = Group::of_mesh(mesh, rank, set).map_err(not_a_group)?;
            if group.size() == 1 || self.inner.has_comm(&CommKey::group(&group)) {
                continue;
            }
            if !self.inner.has_comm(&CommKey::group(&world)) {
                self.make(&world, &name)?;
            }
            if group.ranks() != world.ranks() {
                self.split(&world, &group, &name)?;
            }
        }
        Ok(())
    }

    fn prepare_links(&mut self, links: &[Group]) -> Result<(), CommError> {
        self.control.prepare_links(links)?;
        let mut links: Vec<&Group> = links.iter().collect();
        // All ranks make links in one order, so that none waits for another in a circle.
        links.sort_by_key(|link| (link.ranks().iter().copied().min(), link.ranks().to_vec()));
        links.dedup();
        links.into_iter().try_for_each(|link| self.prepare_link(link))
    }

    #[expect(unsafe_code, reason = "a stream is known by its address")]
    unsafe fn compute_on(&mut self, stream: u64) {
        self.inner.compute_on(stream);
    }

    fn allocate(&self, len: usize, dtype: DType) -> Result<Option<Box<dyn TransportMemory>>, CommError> {
        Ok(Some(Box::new(self.memory(len, dtype)?)))
    }

    fn settle(&mut self) -> Result<(), CommError> {
        self.inner.wait(None, None)?;
        self.control.settle()
    }

    fn recorder(&mut self) -> Option<&mut dyn CallRecorder> {
        if self.records_calls { Some(self) } else { None }
    }

    fn aborter(&self) -> Arc<dyn Abort> {
        self.inner.aborter.clone()
    }
}

impl CallRecorder for NcclTransport {
    #[expect(unsafe_code, reason = "a stream is known by its address")]
    unsafe fn start_recording(&mut self, stream: u64) {
        self.inner.start_recording(stream);
    }

    fn is_recording(&self) -> bool {
        self.inner.is_recording()
    }

    fn finish_recording(&mut self) -> RecordedCalls {
        self.inner.finish_recording()
    }

    fn before_launch(&mut self, calls: &RecordedCalls, sequence: u64) -> Result<(), CommError> {
        let Some(name) = calls.name(sequence) else { return Ok(()) };
        self.inner.check(&name)?;
        self.inner.aborter.entered(&name);
        self.inner.before_launch(calls, &name)
    }

    fn after_launch(&mut self, calls: &RecordedCalls, sequence: u64) -> Result<(), CommError> {
        let Some(name) = calls.name(sequence) else { return Ok(()) };
        let world = Group::world(self.size(), self.rank());
        let world = world.map_err(|e| self.invalid(name.clone(), e.to_string()))?;
        let limit = calls.limit(self.timeouts.first_step, self.timeouts.later);
        self.inner.after_launch(calls, name, world, limit)
    }
}

impl Drop for NcclTransport {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.inner.aborter.abort("its thread panicked");
        }
        // Ends within the timeout: the thread that watches sees to it.
        let ended = !std::thread::panicking() && self.inner.wait(None, None).is_ok();
        self.inner.close();
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
        self.inner.free_comms(ended, PATIENCE);
    }
}
