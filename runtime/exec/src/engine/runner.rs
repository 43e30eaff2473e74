//! A loaded Plan: an interpreter of the backend with the own kernels as custom operations.

use crate::build::{Built, OWN, Piece, build, tensor};
use crate::collective::{Failed, Flying, Prepared};
use crate::error::ExecError;
use crate::kernels::KernelError;
use crate::own::{Dice, Own};
use crate::plain::Lost;
use crate::tensor::{Pool, handle, unhandle};
use crate::trace::{Recorder, What};
use burn_flex::{Flex, FlexDevice, FlexTensor};
use burn_ir::{CustomOpIr, HandleContainer, HandleKind, TensorId, TensorStatus};
use burn_router::{CustomOpRegistry, TensorInterpreter};
use meshwright_comm::Transport;
use meshwright_plan::{BufId, Plan};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What own kernels share with whoever runs the interpreter.
struct Shared {
    owns: Vec<Own>,
    dice: Mutex<Dice>,
    pool: Arc<Mutex<Pool>>,
    failed: AtomicBool,
    error: Mutex<Option<KernelError>>,
}

/// A Plan that is ready to run on one device.
pub(crate) struct Program {
    pub(crate) plan: Arc<Plan>,
    pub(crate) coords: Vec<usize>,
    interpreter: TensorInterpreter<Flex>,
    shared: Arc<Shared>,
    pieces: Vec<Piece>,
    /// Collectives in flight, by their number, and the sequence numbers of their calls. After a run that failed it holds those that were not waited for.
    flying: BTreeMap<usize, (Flying, u64)>,
    /// Buffers that are alive at the end.
    pub(crate) left: BTreeSet<BufId>,
}

/// Why a run ended.
pub(crate) enum Ended {
    Kernel(KernelError),
    Collective(Failed),
    /// The device could not give its elements.
    Device(Lost),
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// The custom operation: runs the own kernel of the number that it carries.
    fn run(&self, handles: &mut HandleContainer<HandleKind<Flex>>, operation: &CustomOpIr) {
        if let Err(error) = self.try_run(handles, operation) {
            *lock(&self.error) = Some(error);
            self.failed.store(true, Ordering::Relaxed);
        }
    }

    fn try_run(
        &self,
        handles: &mut HandleContainer<HandleKind<Flex>>,
        operation: &CustomOpIr,
    ) -> Result<(), KernelError> {
        let number: u64 = operation.scalars.first().map_or(u64::MAX, |s| s.elem());
        let unknown = || KernelError::Unsupported(format!("there is no kernel {number}"));
        let own = self.owns.get(number as usize).ok_or_else(unknown)?;
        let mut inputs = Vec::with_capacity(operation.inputs.len());
        for input in &operation.inputs {
            let found = unhandle(handles.get_handle(&input.id, &input.status));
            inputs.push(found.ok_or_else(|| KernelError::Unsupported("a quantized tensor".into()))?);
        }
        let ends = |at: usize| matches!(operation.inputs[at].status, TensorStatus::ReadWrite);
        let outputs = own.run(inputs, ends, *lock(&self.dice), &mut lock(&self.pool))?;
        for (ir, output) in operation.outputs.iter().zip(outputs) {
            handles.register_handle(ir.id, handle(output));
        }
        Ok(())
    }
}

impl Program {
    pub(crate) fn new(plan: Arc<Plan>, rank: usize, pool: Arc<Mutex<Pool>>) -> Result<Program, ExecError> {
        let Built { pieces, owns, left } = build(&plan, rank)?;
        let shared = Arc::new(Shared {
            owns,
            dice: Mutex::default(),
            pool,
            failed: AtomicBool::new(false),
            error: Mutex::new(None),
        });
        let mut registry = CustomOpRegistry::<Flex>::new();
        let handler = shared.clone();
        registry.register(OWN, move |handles, operation, _| handler.run(handles, operation));
        let interpreter = TensorInterpreter::with_custom_ops(FlexDevice, registry);
        let coords = plan.mesh.coords(rank);
        Ok(Program { plan, coords, interpreter, shared, pieces, flying: BTreeMap::new(), left })
    }

    /// Gives up the collectives that a failed run has left in flight.
    pub(crate) fn give_up(&mut self) {
        self.flying.clear();
    }

    /// Binds a buffer.
    pub(crate) fn put(&mut self, buf: BufId, value: FlexTensor) {
        self.interpreter.register_tensor_to_device(TensorId::new(u64::from(buf.0)), handle(value));
    }

    /// The contents of a buffer, which ends if `take`.
    ///
    /// # Panics
    /// If the buffer is not bound.
    pub(crate) fn get(&mut self, buf: BufId, take: bool) -> Option<FlexTensor> {
        let status = if take { TensorStatus::ReadWrite } else { TensorStatus::ReadOnly };
        let dtype = self.plan.buffer(buf).dtype;
        unhandle(self.interpreter.get_tensor_handle(&tensor(buf, dtype, &[], status)))
    }

    /// Runs all steps; random values are those of `dice`, and `at` is kept at the step that runs.
    pub(crate) fn run(
        &mut self,
        dice: Dice,
        transport: &mut dyn Transport,
        sequence: &mut u64,
        at: &mut Option<usize>,
        mut recorder: Option<&mut Recorder>,
    ) -> Result<(), Ended> {
        *lock(&self.shared.dice) = dice;
        for piece in &self.pieces {
            match piece {
                Piece::Segment(segment) => {
                    for (operation, step) in segment.graph.operations.iter().zip(&segment.steps) {
                        *at = Some(*step);
                        if let Some(r) = &mut recorder {
                            r.compute(*step);
                        }
                        self.interpreter.register_op(operation.clone());
                        if self.shared.failed.swap(false, Ordering::Relaxed)
                            && let Some(error) = lock(&self.shared.error).take()
                        {
                            return Err(Ended::Kernel(error));
                        }
                    }
                }
                Piece::Collective { prepared, step, flight } => {
                    *at = Some(*step);
                    let begin = recorder.as_mut().map_or(0, |r| r.close());
                    let mut inputs = Vec::with_capacity(prepared.from.len());
                    for (local, ends) in prepared.from.iter().zip(&prepared.ends) {
                        let status = if *ends { TensorStatus::ReadWrite } else { TensorStatus::ReadOnly };
                        let ir = tensor(local.buf, local.dtype, &[], status);
                        inputs.extend(unhandle(self.interpreter.get_tensor_handle(&ir)));
                    }
                    *sequence += 1;
                    let mut pool = lock(&self.shared.pool);
                    if flight.is_none() && recorder.is_none() {
                        let results = prepared.run(inputs, transport, &mut pool, *sequence);
                        register(&mut self.interpreter, prepared, results.map_err(Ended::Collective)?);
                        continue;
                    }
                    let started = prepared.start(inputs, transport, &mut pool, *sequence);
                    let flying = started.map_err(Ended::Collective)?;
                    drop(pool);
                    if let Some(r) = &mut recorder {
                        r.ended(What::Start, *step, begin, *sequence);
                    }
                    match flight {
                        Some(flight) => {
                            self.flying.insert(*flight, (flying, *sequence));
                        }
                        None => {
                            let pool = &self.shared.pool;
                            let end = End { of: prepared, flying, pool, step: *step, sequence: *sequence };
                            end.come(&mut self.interpreter, recorder.as_deref_mut())?;
                        }
                    }
                }
                Piece::Wait { flight, start, step } => {
                    let (Some(Piece::Collective { prepared, step: started, .. }), Some((flying, sequence))) =
                        (self.pieces.get(*start), self.flying.remove(flight))
                    else {
                        continue;
                    };
                    // Errors name the collective.
                    *at = Some(*started);
                    let end = End { of: prepared, flying, pool: &self.shared.pool, step: *step, sequence };
                    end.come(&mut self.interpreter, recorder.as_deref_mut())?;
                }
            }
        }
        Ok(())
    }
}

/// A collective that was started, and the step that ends it.
struct End<'a> {
    of: &'a Prepared,
    flying: Flying,
    pool: &'a Mutex<Pool>,
    step: usize,
    sequence: u64,
}

impl End<'_> {
    /// Waits for it, and binds its results.
    fn come(
        self,
        interpreter: &mut TensorInterpreter<Flex>,
        mut recorder: Option<&mut Recorder>,
    ) -> Result<(), Ended> {
        let begin = recorder.as_mut().map_or(0, |r| r.close());
        let memory = self.flying.finish().map_err(Ended::Collective)?;
        let came = recorder.as_mut().map_or(0, |r| r.ended(What::Wait, self.step, begin, self.sequence));
        let results = self.of.unpack(memory, &mut lock(self.pool));
        register(interpreter, self.of, results);
        if let Some(r) = recorder {
            r.ended(What::Unpack, self.step, came, self.sequence);
        }
        Ok(())
    }
}

fn register(interpreter: &mut TensorInterpreter<Flex>, of: &Prepared, results: Vec<FlexTensor>) {
    for (local, result) in of.to.iter().zip(results) {
        interpreter.register_tensor_to_device(TensorId::new(u64::from(local.buf.0)), handle(result));
    }
}
