//! Runs that are recorded once and then run again by one call: on a GPU, where a step is hundreds of launches, the host then
//! makes one.
//!
//! A recording has fixed addresses: inputs are written over those of the recorded run, and parameters and optimizer
//! state that are not updated in place are copied back at its end. Nothing can be allocated while it is made. So the
//! first run of a program chooses kernels, the second shows which values are updated in place, and the third is a
//! rehearsal, which leaves in the pools all the memory that the recorded run takes from them. The rehearsal is repeated
//! while an address differs from the run before.
//!
//! Collectives of a program are part of the recording, and all devices record the same runs: each reports the outcome
//! of a rehearsal or a recording, and the least outcome counts for all.

use super::runner::{Program, RunError};
use crate::backend::{Backend, DeviceError, Handle, Overwrite, Replay, Shaped, Upload};
use crate::tensor::HostTensor;
use meshwright_comm::{CallRecorder, Collectives, CommError, Group, RecordedCalls, Tag, Transport};
use meshwright_plan::{BufId, Plan, Prim, ProgramInputKind, Step};
use meshwright_sorted::{SortedMap, SortedSet};
use serde::{Deserialize, Serialize};

/// Progress of a program towards a recording.
pub(crate) enum Recording<B: Backend> {
    /// It will not be.
    Never,
    /// It has not run, or its values were examined.
    Unknown,
    /// Its next run shows which values are updated in place.
    Ready,
    /// Its next run is a rehearsal, with the tensors that moved so far.
    Rehearsal(FixedTensors<B>),
    /// The next run is to be recorded.
    Next(FixedTensors<B>),
    Done(Recorded<B>),
}

/// Tensors with a fixed address in all runs.
pub(crate) struct FixedTensors<B: Backend> {
    /// Inputs, each with the function that overwrites it.
    inputs: SortedMap<BufId, (Handle<B>, Overwrite)>,
    /// Names of the values that are not updated in place.
    moved: SortedSet<String>,
    /// The fixed tensors of these values, to which each run copies them back.
    stays: SortedMap<String, Shaped<Handle<B>>>,
    /// Whether the device is prepared for a recording.
    prepared: bool,
    /// Whether the program has collectives.
    communicates: bool,
    /// Failed recordings.
    failures: usize,
}

/// Outcome of a rehearsal or a recording. The least of all devices counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum RecordingOutcome {
    /// The program cannot be recorded.
    Impossible,
    /// It is to be tried again.
    Again,
    Fine,
}

/// The way to the other devices.
pub(crate) struct Peers<'r> {
    pub(crate) transport: &'r mut dyn Transport,
    /// The number of the last call of the transport.
    pub(crate) sequence: &'r mut u64,
}

impl Peers<'_> {
    /// The least outcome of all devices.
    fn least(&mut self, mine: RecordingOutcome) -> Result<RecordingOutcome, CommError> {
        let (size, rank) = (self.transport.size(), self.transport.rank());
        let world = match Group::world(size, rank) {
            Ok(world) => world,
            Err(e) => unreachable!("the group of all ranks: {e}"),
        };
        *self.sequence += 1;
        let tag = Tag::new(*self.sequence, "recording of a step", 0);
        let all = self.transport.gather_values(&world, &tag, &mine)?;
        Ok(all.into_iter().min().unwrap_or(mine))
    }

    fn recorder(&mut self) -> Result<&mut dyn CallRecorder, DeviceError> {
        self.transport.recorder().ok_or_else(|| DeviceError("the transport records no calls".into()))
    }
}

/// A recorded run.
pub(crate) struct Recorded<B: Backend> {
    replay: Replay,
    /// Its collectives and messages, where it has some, and the numbers that they take. Stages of a pipeline make different
    /// calls, but take as many numbers.
    calls: Option<(RecordedCalls, u64)>,
    fixed: FixedTensors<B>,
    /// Parameters and optimizer state that the current run reads: the buffer of each, and its name.
    bound: Vec<(BufId, String)>,
}

/// Inputs of an ordinary run after a recorded one.
pub(crate) struct OrdinaryInputs<H> {
    pub(crate) inputs: Vec<(BufId, H)>,
    /// Tensors by the names of their states.
    pub(crate) kept: Vec<(BufId, String)>,
}

/// Failed recordings after which a program is not recorded. There may be several, since a thread that calls the driver during a
/// recording breaks it off. From the second one on all states are copied back.
const MOST_FAILURES: usize = 4;

/// The states that a program changes: name, buffer at the start, and buffer at the end.
fn changed(plan: &Plan) -> Vec<(String, BufId, BufId)> {
    let kept = [ProgramInputKind::Param, ProgramInputKind::OptimizerState];
    let leaves = plan.program_inputs.iter().filter(|l| kept.contains(&l.kind));
    leaves.filter_map(|l| Some((l.name.clone(), l.buf, l.next?))).collect()
}

/// Whether a program changes states without training, and draws no random values: they would depend on more than the
/// number of the step.
fn decodes(plan: &Plan) -> bool {
    let draws = |step: &Step| match &step.prim {
        Prim::Random { .. } => true,
        Prim::Attention { spec, .. } => !spec.draws.is_empty(),
        _ => false,
    };
    !plan.trains() && changes(plan) && !plan.steps.iter().any(draws)
}

fn communicates(plan: &Plan) -> bool {
    plan.steps.iter().any(Step::communicates)
}

/// Whether a program changes states.
pub(crate) fn changes(plan: &Plan) -> bool {
    !changed(plan).is_empty()
}

/// Addresses of the states that a program changes, by name. An empty tensor has none.
type Locations = SortedMap<String, u64>;

fn locations<B: Backend>(
    backend: &mut B,
    program: &mut Program<B>,
    of: impl Fn(BufId, BufId) -> BufId,
) -> Result<Locations, DeviceError> {
    let found: Vec<_> = changed(&program.plan)
        .into_iter()
        .filter_map(|(name, buf, next)| Some((name, program.shaped(of(buf, next))?)))
        .collect();
    let Some(graphs) = backend.graphs() else { return Ok(Locations::new()) };
    found.into_iter().map(|(name, tensor)| Ok((name, graphs.location(&tensor)?))).collect()
}

/// Names of the states whose address changed in a run.
fn moved(before: &Locations, after: Locations) -> SortedSet<String> {
    after.into_iter().filter(|(name, at)| before.get(name) != Some(at)).map(|(name, _)| name).collect()
}

impl<B: Backend> Recording<B> {
    /// For a program that has not run. Programs that train or decode are recorded; if one cannot be and that is known
    /// now, gives the reason.
    pub(crate) fn of(backend: &mut B, plan: &Plan, records_calls: bool) -> (Recording<B>, Option<String>) {
        if backend.graphs().is_none() || !(plan.trains() || decodes(plan)) {
            return (Recording::Never, None);
        }
        match records_calls || !communicates(plan) {
            true => (Recording::Unknown, None),
            false => (Recording::Never, Some(CALLS_ARE_NOT_RECORDED.into())),
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(self, Recording::Done(_))
    }

    fn fixed(&self) -> Option<&FixedTensors<B>> {
        match self {
            Recording::Rehearsal(fixed) | Recording::Next(fixed) => Some(fixed),
            Recording::Done(recorded) => Some(&recorded.fixed),
            Recording::Never | Recording::Unknown | Recording::Ready => None,
        }
    }

    /// The tensor that is kept under a name, where its next value is copied back to it.
    pub(crate) fn stays(&self, name: &str) -> Option<Handle<B>> {
        Some(self.fixed()?.stays.get(name)?.0.clone())
    }

    /// Whether the host overwrites that input.
    pub(crate) fn is_written(&self, buf: BufId) -> bool {
        self.fixed().is_some_and(|fixed| fixed.inputs.contains_key(&buf))
    }

    /// Notes that the run at hand reads a kept tensor; false where that is to be bound to its buffer.
    pub(crate) fn reads(&mut self, buf: BufId, name: &str) -> bool {
        let Recording::Done(recorded) = self else { return false };
        recorded.bound.push((buf, name.into()));
        true
    }

    /// Discards the recording, until there is a new one. Gives the tensors to bind for the current run.
    pub(crate) fn give_up(&mut self, backend: &mut B) -> Option<OrdinaryInputs<Handle<B>>> {
        if matches!(self, Recording::Never) {
            return None;
        }
        match std::mem::replace(self, Recording::Unknown) {
            Recording::Done(Recorded { fixed, bound, .. }) => {
                let inputs = fixed.inputs.into_iter().map(|(buf, input)| (buf, input.0)).collect();
                Some(OrdinaryInputs { inputs, kept: bound })
            }
            Recording::Rehearsal(mut fixed) | Recording::Next(mut fixed) => {
                fixed.unprepare(backend);
                None
            }
            Recording::Never | Recording::Unknown | Recording::Ready => None,
        }
    }

    /// Binds an input of the host. A recorded program must have recorded it as one that the host overwrites.
    pub(crate) fn write(&mut self, backend: &mut B, program: &mut Program<B>, buf: BufId, host: HostTensor) {
        let (is_done, known) = (self.is_done(), self.is_written(buf));
        let fixed = match self {
            Recording::Rehearsal(fixed) | Recording::Next(fixed) => fixed,
            Recording::Done(recorded) if known => &mut recorded.fixed,
            _ => return program.bind_input(backend, buf, host),
        };
        if let Some((tensor, overwrite)) = fixed.inputs.get_mut(&buf) {
            overwrite(host);
            // The recording reads it at this address.
            if !is_done {
                program.bind(buf, vec![tensor.clone()]);
            }
            return;
        }
        let (dtype, shape) = (host.dtype(), host.shape.clone());
        let mut tensors = backend.upload(host, Upload::Value(None));
        if let (Some(graphs), [tensor]) = (backend.graphs(), &mut tensors[..]) {
            // An input that cannot be overwritten is uploaded each time, and prevents a recording.
            if let Ok((writable, overwrite)) = graphs.writable(&(tensor.clone(), dtype, shape)) {
                *tensor = writable.clone();
                fixed.inputs.insert(buf, (writable, overwrite));
            }
        }
        program.bind(buf, tensors);
    }

    /// Runs a program by `plain`, or launches its recording. Gives the reason if it is found that it cannot be
    /// recorded.
    pub(crate) fn run(
        &mut self,
        backend: &mut B,
        program: &mut Program<B>,
        mut peers: Peers<'_>,
        mut plain: impl FnMut(&mut B, &mut Program<B>, &mut Peers<'_>) -> Result<(), RunError>,
    ) -> Result<Option<String>, RunError> {
        let mut why = None;
        *self = match std::mem::replace(self, Recording::Never) {
            Recording::Never => plain(backend, program, &mut peers).map(|()| Recording::Never)?,
            Recording::Unknown => plain(backend, program, &mut peers).map(|()| Recording::Ready)?,
            Recording::Ready => {
                let before = locations(backend, program, |buf, _| buf)?;
                plain(backend, program, &mut peers)?;
                let moved = moved(&before, locations(backend, program, |_, next| next)?);
                Recording::Rehearsal(FixedTensors::of(&program.plan, moved))
            }
            Recording::Rehearsal(fixed) => match fixed.rehearsed(backend, program, &mut peers, plain)? {
                Ok(next) => next,
                Err(not) => {
                    why = Some(not);
                    Recording::Never
                }
            },
            Recording::Next(fixed) => match fixed.recorded(backend, program, &mut peers, &mut plain)? {
                Ok(recorded) => Recording::Done(recorded),
                Err((mut fixed, not)) => {
                    plain(backend, program, &mut peers)?;
                    fixed.failures += 1;
                    if fixed.failures < MOST_FAILURES {
                        fixed.moved = changed(&program.plan).into_iter().map(|c| c.0).collect();
                        Recording::Rehearsal(fixed)
                    } else {
                        why = Some(not);
                        Recording::Never
                    }
                }
            },
            Recording::Done(mut recorded) => {
                recorded.bound.clear();
                recorded.launch(&mut peers)?;
                Recording::Done(recorded)
            }
        };
        Ok(why)
    }
}

impl<B: Backend> Recorded<B> {
    fn launch(&mut self, peers: &mut Peers<'_>) -> Result<(), RunError> {
        let Some((calls, numbers)) = &self.calls else { return Ok((self.replay)()?) };
        let first = *peers.sequence + 1;
        *peers.sequence += numbers;
        peers.recorder()?.before_launch(calls, first)?;
        (self.replay)()?;
        Ok(peers.recorder()?.after_launch(calls, first)?)
    }
}

impl<B: Backend> FixedTensors<B> {
    /// For a program that has run twice.
    fn of(plan: &Plan, moved: SortedSet<String>) -> FixedTensors<B> {
        let (inputs, stays) = (SortedMap::new(), SortedMap::new());
        FixedTensors { inputs, moved, stays, prepared: false, communicates: communicates(plan), failures: 0 }
    }

    /// The least outcome of all devices that take part in the program.
    fn least(&self, peers: &mut Peers<'_>, mine: RecordingOutcome) -> Result<RecordingOutcome, CommError> {
        if self.communicates { peers.least(mine) } else { Ok(mine) }
    }

    /// Runs a program with the memory of a recorded run. Gives the next state, or the reason why it cannot be recorded.
    fn rehearsed(
        mut self,
        backend: &mut B,
        program: &mut Program<B>,
        peers: &mut Peers<'_>,
        mut plain: impl FnMut(&mut B, &mut Program<B>, &mut Peers<'_>) -> Result<(), RunError>,
    ) -> Result<Result<Recording<B>, String>, RunError> {
        let before = self.hold(backend, program)?;
        let mut refused = None;
        if !self.prepared {
            refused = backend.graphs().map(|g| g.prepare()).transpose().err().map(said);
            self.prepared = refused.is_none();
        }
        plain(backend, program, peers)?;
        let mut more = SortedSet::new();
        if refused.is_none() {
            more = moved(&before, self.copied_back(backend, program)?);
            more.retain(|name| !self.moved.contains(name));
        }
        let mine = match &refused {
            Some(_) => RecordingOutcome::Impossible,
            None if more.is_empty() => RecordingOutcome::Fine,
            None => RecordingOutcome::Again,
        };
        self.moved.append(&mut more);
        Ok(match self.least(peers, mine)? {
            RecordingOutcome::Fine => Ok(Recording::Next(self)),
            RecordingOutcome::Again => Ok(Recording::Rehearsal(self)),
            RecordingOutcome::Impossible => {
                self.unprepare(backend);
                Err(refused.unwrap_or_else(|| ELSEWHERE.into()))
            }
        })
    }

    /// Undoes the preparation of the device.
    fn unprepare(&mut self, backend: &mut B) {
        if let (true, Some(graphs)) = (std::mem::take(&mut self.prepared), backend.graphs()) {
            // The error says that nothing was recorded.
            let _ = graphs.finish();
        }
    }

    /// Keeps the tensors that are copied back. Gives the addresses of all states that the run changes.
    fn hold(&mut self, backend: &mut B, program: &mut Program<B>) -> Result<Locations, DeviceError> {
        let before = locations(backend, program, |buf, _| buf)?;
        let stays = changed(&program.plan).into_iter().filter(|(name, ..)| self.moved.contains(name));
        self.stays = stays.filter_map(|(name, buf, _)| Some((name, program.shaped(buf)?))).collect();
        Ok(before)
    }

    /// Copies back the kept tensors. Gives the addresses of all states that the run changed.
    fn copied_back(&self, backend: &mut B, program: &mut Program<B>) -> Result<Locations, DeviceError> {
        let after = locations(backend, program, |_, next| next)?;
        let nexts: Vec<_> = changed(&program.plan)
            .into_iter()
            .filter_map(|(name, _, next)| Some((self.stays.get(&name)?, program.shaped(next)?)))
            .collect();
        if let Some(graphs) = backend.graphs() {
            nexts.iter().try_for_each(|(to, from)| graphs.copy(from, to))?;
        }
        Ok(after)
    }

    /// Records a run, and runs it. Where it cannot be recorded gives why: then nothing of it has run, and all is as before.
    fn recorded(
        mut self,
        backend: &mut B,
        program: &mut Program<B>,
        peers: &mut Peers<'_>,
        plain: &mut impl FnMut(&mut B, &mut Program<B>, &mut Peers<'_>) -> Result<(), RunError>,
    ) -> Result<Result<Recorded<B>, (Self, String)>, RunError> {
        let locations = self.hold(backend, program)?;
        let before = Before::of(backend, program)?;
        let recorded = self.graph(backend, program, peers, (&locations, plain));
        let mine = if recorded.is_ok() { RecordingOutcome::Fine } else { RecordingOutcome::Again };
        let failed = match (recorded, self.least(peers, mine)?) {
            (Ok((replay, calls)), RecordingOutcome::Fine) => {
                let mut recorded = Recorded { replay, calls, fixed: self, bound: vec![] };
                match recorded.launch(peers) {
                    Ok(()) => return Ok(Ok(recorded)),
                    // Others have launched theirs.
                    Err(e) if recorded.fixed.communicates => return Err(e),
                    Err(e) => {
                        self = recorded.fixed;
                        e.into_text()
                    }
                }
            }
            (Ok(_), _) => ELSEWHERE.into(),
            (Err(why), _) => why,
        };
        // The failed run has left parts of the arena unwritten.
        program.drop_values();
        if let Some(arena) = backend.arena() {
            arena.renew();
        }
        before.restore(backend, program);
        self.stays.clear();
        self.prepared = false;
        Ok(Err((self, failed)))
    }

    /// Records a run, without running it.
    fn graph(
        &self,
        backend: &mut B,
        program: &mut Program<B>,
        peers: &mut Peers<'_>,
        (locations, plain): (
            &Locations,
            &mut impl FnMut(&mut B, &mut Program<B>, &mut Peers<'_>) -> Result<(), RunError>,
        ),
    ) -> Result<(Replay, Option<(RecordedCalls, u64)>), String> {
        let Some(graphs) = backend.graphs() else { return Err("there is no such device".into()) };
        let stream = graphs.stream().map_err(said)?;
        graphs.start().map_err(said)?;
        if self.communicates {
            #[expect(unsafe_code, reason = "a stream is known by its address")]
            // SAFETY: it is the stream of the device, which lives as long as the device.
            unsafe {
                peers.recorder().map_err(said)?.start_recording(stream);
            }
        }
        // Its collectives have not run, so their numbers are not used up.
        let sequence = *peers.sequence;
        let ran = plain(backend, program, peers).map_err(RunError::into_text);
        let numbers = std::mem::replace(peers.sequence, sequence) - sequence;
        let ended = ran.and_then(|()| self.completed(backend, program, locations));
        // It ends in any case, the recording of collectives first.
        let calls = if self.communicates {
            Some((peers.recorder().map_err(said)?.finish_recording(), numbers))
        } else {
            None
        };
        let replay = backend.graphs().map(|g| g.finish());
        ended?;
        Ok((replay.ok_or("there is no such device")?.map_err(said)?, calls))
    }

    /// Records the copies back, and checks that all other addresses are as before.
    fn completed(&self, backend: &mut B, program: &mut Program<B>, before: &Locations) -> Result<(), String> {
        let after = self.copied_back(backend, program).map_err(said)?;
        match moved(before, after).iter().find(|name| !self.moved.contains(*name)) {
            Some(name) => Err(format!("`{name}` is updated elsewhere than in the run before")),
            None => Ok(()),
        }
    }
}

/// Why a program with collectives is not recorded.
const CALLS_ARE_NOT_RECORDED: &str = "NCCL's collectives are recorded only where each GPU has a process of its own \
                                      (`mpirun -n N meshwright …`) and no host waits for them";
/// The reason if a recording that was possible here failed on another device.
const ELSEWHERE: &str = "another device could not record it";

/// State before a run: its operands, and on the host the values that it changes.
struct Before<B: Backend> {
    unchanged: Vec<(BufId, Vec<Handle<B>>)>,
    changed: Vec<(BufId, HostTensor)>,
}

impl<B: Backend> Before<B> {
    fn of(backend: &mut B, program: &mut Program<B>) -> Result<Before<B>, DeviceError> {
        let bufs: SortedSet<BufId> = changed(&program.plan).into_iter().map(|c| c.1).collect();
        let leaves: Vec<BufId> = program.plan.program_inputs.iter().map(|l| l.buf).collect();
        let unchanged = leaves.into_iter().filter(|buf| !bufs.contains(buf));
        let unchanged = unchanged.map(|buf| (buf, program.get(buf, false))).collect();
        let changed = bufs.into_iter().map(|buf| Ok((buf, program.read(backend, buf)?)));
        Ok(Before { unchanged, changed: changed.collect::<Result<_, DeviceError>>()? })
    }

    fn restore(self, backend: &mut B, program: &mut Program<B>) {
        for (buf, tensors) in self.unchanged {
            program.bind(buf, tensors);
        }
        for (buf, value) in self.changed {
            program.bind_host(backend, buf, value);
        }
    }
}

fn said(DeviceError(why): DeviceError) -> String {
    why
}
