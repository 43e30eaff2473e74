//! Runs that are recorded once and then run again by one call: on a GPU, where a step is hundreds of launches, the host then makes
//! one.
//!
//! The recording reads and writes what is where it was then: inputs are written over those of the recorded run, and parameters and
//! moments that are not updated where they lie are copied back at its end. Nothing can be allocated while it is made. So the first run of a
//! program chooses kernels, the second shows what is updated in place, and the third is a rehearsal of the recording, which leaves the
//! pools with all the memory that the recorded run is to take from them; it is repeated where something goes elsewhere than in the
//! run before.

use super::runner::{Program, RunError};
use crate::backend::{Backend, DeviceError, Handle, Overwrite, Replay, Shaped};
use crate::tensor::HostTensor;
use meshwright_plan::{BufId, Plan, Prim, ProgramInputKind, Step};
use std::collections::{BTreeMap, BTreeSet};

/// How far a program is with being recorded.
pub(crate) enum Recording<B: Backend> {
    /// It will not be.
    Never,
    /// It has not run, or somebody looked at what it does.
    Unknown,
    /// Its next run shows what is updated in place.
    Ready,
    /// It is to be rehearsed, with what has been found to move.
    Rehearsal(FixedTensors<B>),
    /// The next run is to be recorded.
    Next(FixedTensors<B>),
    Done(Recorded<B>),
}

/// What stays where it is from run to run.
pub(crate) struct FixedTensors<B: Backend> {
    /// Inputs, and what writes them anew.
    inputs: BTreeMap<BufId, (Handle<B>, Overwrite)>,
    /// The names of what is not updated in place.
    moved: BTreeSet<String>,
    /// Its tensors, to which it is copied back.
    stays: BTreeMap<String, Shaped<Handle<B>>>,
    /// Whether the device is prepared to record.
    prepared: bool,
    /// How many runs were recorded in vain.
    failures: usize,
}

/// A recorded run.
pub(crate) struct Recorded<B: Backend> {
    replay: Replay,
    fixed: FixedTensors<B>,
    /// The parameters and moments that the run at hand is to read, where they are kept.
    bound: Vec<(BufId, String)>,
}

/// What an ordinary run is to read in place of a recorded one.
pub(crate) struct OrdinaryInputs<H> {
    pub(crate) inputs: Vec<(BufId, H)>,
    /// By the names under which they are kept.
    pub(crate) kept: Vec<(BufId, String)>,
}

/// Recordings in vain after which a program is not recorded. In the second everything is copied back.
const MOST_FAILURES: usize = 2;

/// What a program changes of what the device keeps: its name, where it is read, and where it is at the end.
fn changed(plan: &Plan) -> Vec<(String, BufId, BufId)> {
    let kept = [ProgramInputKind::Param, ProgramInputKind::OptimizerState];
    let leaves = plan.program_inputs.iter().filter(|l| kept.contains(&l.kind));
    leaves.filter_map(|l| Some((l.name.clone(), l.buf, l.next?))).collect()
}

/// Whether a program changes states without training, and draws nothing: what is drawn then depends on more than the number of the step.
fn decodes(plan: &Plan) -> bool {
    let draws = |step: &Step| match &step.prim {
        Prim::Random { .. } => true,
        Prim::Attention { spec, .. } => !spec.draws.is_empty(),
        _ => false,
    };
    !plan.trains() && changes(plan) && !plan.steps.iter().any(draws)
}

/// Whether a program changes what the device keeps.
pub(crate) fn changes(plan: &Plan) -> bool {
    !changed(plan).is_empty()
}

/// Where what a program changes is, by name. Of nothing there is no tensor.
type Locations = BTreeMap<String, u64>;

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

/// The names of what has gone elsewhere in a run.
fn moved(before: &Locations, after: Locations) -> BTreeSet<String> {
    after.into_iter().filter(|(name, at)| before.get(name) != Some(at)).map(|(name, _)| name).collect()
}

impl<B: Backend> Recording<B> {
    /// Of a program that has not run. Those are recorded that train or decode, on one device.
    pub(crate) fn of(backend: &mut B, plan: &Plan) -> Recording<B> {
        let alone = plan.steps.iter().all(|s| s.collective().is_none());
        match backend.graphs() {
            Some(_) if alone && (plan.trains() || decodes(plan)) => Recording::Unknown,
            _ => Recording::Never,
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

    /// Whether the host writes that input.
    pub(crate) fn is_written(&self, buf: BufId) -> bool {
        self.fixed().is_some_and(|fixed| fixed.inputs.contains_key(&buf))
    }

    /// Notes that the run at hand reads a kept tensor; false where that is to be bound to its buffer.
    pub(crate) fn reads(&mut self, buf: BufId, name: &str) -> bool {
        let Recording::Done(recorded) = self else { return false };
        recorded.bound.push((buf, name.into()));
        true
    }

    /// Has the program run in the ordinary way again, until it is recorded anew. Gives what is to be bound for the run at hand.
    pub(crate) fn give_up(&mut self, backend: &mut B) -> Option<OrdinaryInputs<Handle<B>>> {
        if matches!(self, Recording::Never) {
            return None;
        }
        match std::mem::replace(self, Recording::Unknown) {
            Recording::Done(Recorded { fixed, bound, .. }) => {
                let inputs = fixed.inputs.into_iter().map(|(buf, input)| (buf, input.0)).collect();
                Some(OrdinaryInputs { inputs, kept: bound })
            }
            Recording::Rehearsal(fixed) | Recording::Next(fixed) => {
                if let (true, Some(graphs)) = (fixed.prepared, backend.graphs()) {
                    // It is no longer prepared, and says that nothing was recorded.
                    let _ = graphs.finish();
                }
                None
            }
            Recording::Never | Recording::Unknown | Recording::Ready => None,
        }
    }

    /// Binds what the host has to an input. Of a recorded program it must be one that the host writes.
    pub(crate) fn write(&mut self, backend: &mut B, program: &mut Program<B>, buf: BufId, host: HostTensor) {
        let (is_done, known) = (self.is_done(), self.is_written(buf));
        let fixed = match self {
            Recording::Rehearsal(fixed) | Recording::Next(fixed) => fixed,
            Recording::Done(recorded) if known => &mut recorded.fixed,
            _ => return program.bind_input(backend, buf, host),
        };
        if let Some((tensor, overwrite)) = fixed.inputs.get_mut(&buf) {
            overwrite(host);
            // What is recorded reads it where it is.
            if !is_done {
                program.bind(buf, vec![tensor.clone()]);
            }
            return;
        }
        let (dtype, shape) = (host.dtype(), host.shape.clone());
        let mut tensors = backend.upload(host, None);
        if let (Some(graphs), [tensor]) = (backend.graphs(), &mut tensors[..]) {
            // What cannot be written anew is uploaded each time, and gives up what was recorded.
            if let Ok((writable, overwrite)) = graphs.writable(&(tensor.clone(), dtype, shape)) {
                *tensor = writable.clone();
                fixed.inputs.insert(buf, (writable, overwrite));
            }
        }
        program.bind(buf, tensors);
    }

    /// Runs a program by `plain`, or again what was recorded of it. Gives why it will not be recorded, when that shows.
    pub(crate) fn run(
        &mut self,
        backend: &mut B,
        program: &mut Program<B>,
        mut plain: impl FnMut(&mut B, &mut Program<B>) -> Result<(), RunError>,
    ) -> Result<Option<String>, RunError> {
        let mut why = None;
        *self = match std::mem::replace(self, Recording::Never) {
            Recording::Never => plain(backend, program).map(|()| Recording::Never)?,
            Recording::Unknown => plain(backend, program).map(|()| Recording::Ready)?,
            Recording::Ready => {
                let before = locations(backend, program, |buf, _| buf)?;
                plain(backend, program)?;
                let moved = moved(&before, locations(backend, program, |_, next| next)?);
                let (inputs, stays) = (BTreeMap::new(), BTreeMap::new());
                Recording::Rehearsal(FixedTensors { inputs, moved, stays, prepared: false, failures: 0 })
            }
            Recording::Rehearsal(fixed) => match fixed.rehearsed(backend, program, plain)? {
                Ok(next) => next,
                Err(not) => {
                    why = Some(not);
                    Recording::Never
                }
            },
            Recording::Next(fixed) => match fixed.recorded(backend, program, &mut plain)? {
                Ok(recorded) => Recording::Done(recorded),
                Err((mut fixed, not)) => {
                    plain(backend, program)?;
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
                (recorded.replay)()?;
                Recording::Done(recorded)
            }
        };
        Ok(why)
    }
}

impl<B: Backend> FixedTensors<B> {
    /// Runs a program as when it is recorded, which needs the same memory. Gives what is next, or why it cannot be recorded.
    fn rehearsed(
        mut self,
        backend: &mut B,
        program: &mut Program<B>,
        mut plain: impl FnMut(&mut B, &mut Program<B>) -> Result<(), RunError>,
    ) -> Result<Result<Recording<B>, String>, RunError> {
        let before = self.hold(backend, program)?;
        if !self.prepared {
            let prepared = backend.graphs().map(|g| g.prepare()).transpose();
            if let Err(DeviceError(why)) = prepared {
                return plain(backend, program).map(|()| Err(why));
            }
            self.prepared = true;
        }
        plain(backend, program)?;
        let mut more = moved(&before, self.copied_back(backend, program)?);
        more.retain(|name| !self.moved.contains(name));
        if more.is_empty() {
            return Ok(Ok(Recording::Next(self)));
        }
        self.moved.append(&mut more);
        Ok(Ok(Recording::Rehearsal(self)))
    }

    /// Takes hold of what is copied back. Gives where all is that the run will change.
    fn hold(&mut self, backend: &mut B, program: &mut Program<B>) -> Result<Locations, DeviceError> {
        let before = locations(backend, program, |buf, _| buf)?;
        let stays = changed(&program.plan).into_iter().filter(|(name, ..)| self.moved.contains(name));
        self.stays = stays.filter_map(|(name, buf, _)| Some((name, program.shaped(buf)?))).collect();
        Ok(before)
    }

    /// Copies back what is held. Gives where all is that the run has changed.
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
        plain: &mut impl FnMut(&mut B, &mut Program<B>) -> Result<(), RunError>,
    ) -> Result<Result<Recorded<B>, (Self, String)>, RunError> {
        let locations = self.hold(backend, program)?;
        let before = Before::of(backend, program)?;
        let started = backend.graphs().map(|g| g.start()).transpose();
        let recorded = started.map_err(said).and_then(|_| {
            let ran = plain(backend, program).map_err(RunError::into_text);
            let ended = ran.and_then(|()| self.completed(backend, program, &locations));
            // It ends in any case.
            let replay = backend.graphs().map(|g| g.finish());
            ended?;
            let mut replay = replay.ok_or("there is no such device")?.map_err(said)?;
            replay().map_err(said)?;
            Ok(replay)
        });
        Ok(match recorded {
            Ok(replay) => Ok(Recorded { replay, fixed: self, bound: vec![] }),
            Err(why) => {
                before.restore(backend, program);
                self.stays.clear();
                self.prepared = false;
                Err((self, why))
            }
        })
    }

    /// Records that what is held is copied back, and checks that all else is where it was.
    fn completed(&self, backend: &mut B, program: &mut Program<B>, before: &Locations) -> Result<(), String> {
        let after = self.copied_back(backend, program).map_err(said)?;
        match moved(before, after).iter().find(|name| !self.moved.contains(*name)) {
            Some(name) => Err(format!("`{name}` is updated elsewhere than in the run before")),
            None => Ok(()),
        }
    }
}

/// What a run begins with: what it reads, and what all that it changes is, on the host.
struct Before<B: Backend> {
    unchanged: Vec<(BufId, Vec<Handle<B>>)>,
    changed: Vec<(BufId, HostTensor)>,
}

impl<B: Backend> Before<B> {
    fn of(backend: &mut B, program: &mut Program<B>) -> Result<Before<B>, DeviceError> {
        let bufs: BTreeSet<BufId> = changed(&program.plan).into_iter().map(|c| c.1).collect();
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
