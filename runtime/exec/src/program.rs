//! A loaded Plan: an interpreter of the backend with the own kernels as custom operations.

use crate::build::{Built, OWN, Piece, build, tensor};
use crate::collective::{Failed, Flying, Prepared};
use crate::error::ExecError;
use crate::kernels::KernelError;
use crate::own::{Dice, Own};
use crate::tensor::{Pool, handle, unhandle};
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
    interpreter: TensorInterpreter<Flex>,
    shared: Arc<Shared>,
    pieces: Vec<Piece>,
    /// Collectives in flight, by their number. After a run that failed it holds those that were not waited for.
    flying: BTreeMap<usize, Flying>,
    /// Buffers that are alive at the end.
    pub(crate) left: BTreeSet<BufId>,
}

/// Why a run ended.
pub(crate) enum Ended {
    Kernel(KernelError),
    Collective(Failed),
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
            inputs.push(found.ok_or_else(|| KernelError::Unsupported("a quantised tensor".into()))?);
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
        Ok(Program { plan, interpreter, shared, pieces, flying: BTreeMap::new(), left })
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
    ) -> Result<(), Ended> {
        *lock(&self.shared.dice) = dice;
        for piece in &self.pieces {
            match piece {
                Piece::Segment(segment) => {
                    for (operation, step) in segment.graph.operations.iter().zip(&segment.steps) {
                        *at = Some(*step);
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
                    let mut inputs = Vec::with_capacity(prepared.from.len());
                    for (local, ends) in prepared.from.iter().zip(&prepared.ends) {
                        let status = if *ends { TensorStatus::ReadWrite } else { TensorStatus::ReadOnly };
                        let ir = tensor(local.buf, local.dtype, &[], status);
                        inputs.extend(unhandle(self.interpreter.get_tensor_handle(&ir)));
                    }
                    *sequence += 1;
                    let mut pool = lock(&self.shared.pool);
                    if let Some(flight) = flight {
                        let started = prepared.start(inputs, transport, &mut pool, *sequence);
                        self.flying.insert(*flight, started.map_err(Ended::Collective)?);
                        continue;
                    }
                    let results =
                        prepared.run(inputs, transport, &mut pool, *sequence).map_err(Ended::Collective)?;
                    register(&mut self.interpreter, prepared, results);
                }
                Piece::Wait { flight, start } => {
                    let (Some(Piece::Collective { prepared, step, .. }), Some(flying)) =
                        (self.pieces.get(*start), self.flying.remove(flight))
                    else {
                        continue;
                    };
                    // Errors name the collective.
                    *at = Some(*step);
                    let mut pool = lock(&self.shared.pool);
                    let results = prepared.finish(flying, &mut pool).map_err(Ended::Collective)?;
                    register(&mut self.interpreter, prepared, results);
                }
            }
        }
        Ok(())
    }
}

fn register(interpreter: &mut TensorInterpreter<Flex>, of: &Prepared, results: Vec<FlexTensor>) {
    for (local, result) in of.to.iter().zip(results) {
        interpreter.register_tensor_to_device(TensorId::new(u64::from(local.buf.0)), handle(result));
    }
}
