//! What an engine works on: the memory of one device, and the programs in it.

use crate::devices::{DeviceKind, Lowering};
use crate::error::ExecError;
use crate::host::HostTensor;
use crate::own::Dice;
use crate::plain::{Kept, Lost, Plain, PlainProgram};
use crate::program::{Ended, Program, lock};
use crate::tensor::{Pool, from_host, to_host};
use crate::trace::Recorder;
use burn_flex::{Flex, FlexDevice, FlexTensor};
use meshwright_comm::Transport;
use meshwright_plan::{BufId, DType, Plan};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// Memory of a device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Most that was in use at once while a program ran, as seen after each of its steps, with what the step then released;
    /// 0 where nobody watched.
    pub peak: u64,
    /// In use now.
    pub in_use: u64,
    /// What the allocator holds, in use or not.
    pub reserved: u64,
}

/// Memory and programs of a device. Programs are named by order of loading; all of them exist when they are named.
pub(crate) trait Machine: Send {
    /// Prepares a Plan.
    fn load(&mut self, plan: Arc<Plan>, rank: usize) -> Result<(), ExecError>;

    /// The Plan of a program.
    fn plan(&self, program: usize) -> Option<&Arc<Plan>>;

    /// Binds a buffer to what the host has.
    fn put(&mut self, program: usize, buf: BufId, value: HostTensor);

    /// Binds a buffer to a kept tensor, which is then no longer kept; whether there was one.
    fn put_kept(&mut self, program: usize, buf: BufId, name: &str) -> bool;

    /// The same, and it stays kept: what the program does with its storage is done to a copy.
    fn put_copy(&mut self, program: usize, buf: BufId, name: &str) -> bool;

    /// Runs all steps; random values are those of `dice`, `at` is kept at the step that runs, and `recorder` is told of
    /// each.
    fn run(
        &mut self,
        program: usize,
        dice: Dice,
        transport: &mut dyn Transport,
        sequence: &mut u64,
        at: &mut Option<usize>,
        recorder: Option<&mut Recorder>,
    ) -> Result<(), Ended>;

    /// Gives up the collectives that a failed run has left in flight.
    fn give_up(&mut self);

    /// Whether to look at the memory in use after each step; that takes time, and what is computed is not fused beyond a
    /// step. Forgets what was seen.
    fn watch_memory(&mut self, watch: bool);

    /// What memory was seen; none where the device does not tell.
    fn memory(&mut self) -> Option<Memory>;

    /// A copy of a buffer's elements.
    fn read(&mut self, program: usize, buf: BufId) -> Result<Option<HostTensor>, Lost>;

    /// Keeps a buffer under a name; it ends if `take`.
    fn keep(&mut self, program: usize, buf: BufId, name: &str, take: bool);

    /// Releases what is alive at the end of a program, but for `kept`.
    fn clear(&mut self, program: usize, kept: &BTreeSet<BufId>);

    /// Keeps a tensor.
    fn set(&mut self, name: &str, value: HostTensor);

    /// Drops a kept tensor, if there is one.
    fn forget(&mut self, name: &str);

    /// A copy of a kept tensor.
    fn get(&self, name: &str, dtype: DType, shape: &[usize]) -> Result<Option<HostTensor>, Lost>;

    /// Address of a kept tensor's storage, where it can be known.
    fn address(&self, name: &str) -> Option<usize>;
}

/// The machine of that kind.
pub(crate) fn machine(kind: DeviceKind, rank: usize) -> Result<Box<dyn Machine>, ExecError> {
    match kind {
        DeviceKind::Cpu(Lowering::Own) => Ok(Box::new(OwnMachine::default())),
        DeviceKind::Cpu(Lowering::Plain) => Ok(Box::new(PlainMachine::<Flex>::new(FlexDevice))),
        #[cfg(any(feature = "cuda", feature = "cubecl-cpu"))]
        other => crate::cube::machine(other, rank),
        #[cfg(not(any(feature = "cuda", feature = "cubecl-cpu")))]
        other => {
            let message = format!(
                "this build cannot use {other}: it lacks the feature `cuda` (`cargo build --release --features cuda`)"
            );
            Err(ExecError::Start { rank, message })
        }
    }
}

/// Own kernels on the host's memory.
#[derive(Default)]
pub(crate) struct OwnMachine {
    pool: Arc<Mutex<Pool>>,
    programs: Vec<Program>,
    kept: BTreeMap<String, FlexTensor>,
}

impl OwnMachine {
    fn shape(&self, program: usize, buf: BufId) -> (DType, Vec<usize>) {
        let p = &self.programs[program];
        let buffer = p.plan.buffer(buf);
        (buffer.dtype, buffer.shape(&p.plan.mesh, &p.coords))
    }
}

impl Machine for OwnMachine {
    fn load(&mut self, plan: Arc<Plan>, rank: usize) -> Result<(), ExecError> {
        self.programs.push(Program::new(plan, rank, self.pool.clone())?);
        Ok(())
    }

    fn plan(&self, program: usize) -> Option<&Arc<Plan>> {
        self.programs.get(program).map(|p| &p.plan)
    }

    fn put(&mut self, program: usize, buf: BufId, value: HostTensor) {
        self.programs[program].put(buf, from_host(value));
    }

    fn put_kept(&mut self, program: usize, buf: BufId, name: &str) -> bool {
        let Some(held) = self.kept.remove(name) else { return false };
        self.programs[program].put(buf, held);
        true
    }

    fn put_copy(&mut self, program: usize, buf: BufId, name: &str) -> bool {
        let Some(held) = self.kept.get(name).cloned() else { return false };
        self.programs[program].put(buf, held);
        true
    }

    fn run(
        &mut self,
        program: usize,
        dice: Dice,
        transport: &mut dyn Transport,
        sequence: &mut u64,
        at: &mut Option<usize>,
        recorder: Option<&mut Recorder>,
    ) -> Result<(), Ended> {
        self.programs[program].run(dice, transport, sequence, at, recorder)
    }

    fn give_up(&mut self) {
        self.programs.iter_mut().for_each(Program::give_up);
    }

    fn watch_memory(&mut self, _: bool) {}

    fn memory(&mut self) -> Option<Memory> {
        None
    }

    fn read(&mut self, program: usize, buf: BufId) -> Result<Option<HostTensor>, Lost> {
        let (dtype, shape) = self.shape(program, buf);
        Ok(self.programs[program].get(buf, false).map(|t| to_host(&t, dtype, &shape)))
    }

    fn keep(&mut self, program: usize, buf: BufId, name: &str, take: bool) {
        if let Some(tensor) = self.programs[program].get(buf, take) {
            self.kept.insert(name.into(), tensor);
        }
    }

    fn clear(&mut self, program: usize, kept: &BTreeSet<BufId>) {
        let left: Vec<BufId> = self.programs[program].left.difference(kept).copied().collect();
        for buf in left {
            let (dtype, shape) = self.shape(program, buf);
            if let Some(value) = self.programs[program].get(buf, true) {
                lock(&self.pool).give(value, dtype, shape.iter().product());
            }
        }
    }

    fn set(&mut self, name: &str, value: HostTensor) {
        self.kept.insert(name.into(), from_host(value));
    }

    fn forget(&mut self, name: &str) {
        self.kept.remove(name);
    }

    fn get(&self, name: &str, dtype: DType, shape: &[usize]) -> Result<Option<HostTensor>, Lost> {
        Ok(self.kept.get(name).map(|t| to_host(t, dtype, shape)))
    }

    fn address(&self, name: &str) -> Option<usize> {
        self.kept.get(name).map(|t| t.bytes().as_ptr() as usize)
    }
}

/// The plain operations of a backend.
pub(crate) struct PlainMachine<B: Plain> {
    device: B::Device,
    programs: Vec<PlainProgram<B>>,
    kept: BTreeMap<String, Kept<B>>,
    /// Most bytes in use that were seen, where somebody watches.
    peak: Option<u64>,
}

impl<B: Plain> PlainMachine<B> {
    pub(crate) fn new(device: B::Device) -> PlainMachine<B> {
        PlainMachine { device, programs: vec![], kept: BTreeMap::new(), peak: None }
    }
}

impl<B: Plain> Machine for PlainMachine<B> {
    fn load(&mut self, plan: Arc<Plan>, rank: usize) -> Result<(), ExecError> {
        self.programs.push(PlainProgram::new(plan, rank, &self.device)?);
        Ok(())
    }

    fn plan(&self, program: usize) -> Option<&Arc<Plan>> {
        self.programs.get(program).map(|p| &p.plan)
    }

    fn put(&mut self, program: usize, buf: BufId, value: HostTensor) {
        self.programs[program].put(buf, value, &self.device);
    }

    fn put_kept(&mut self, program: usize, buf: BufId, name: &str) -> bool {
        let Some(held) = self.kept.remove(name) else { return false };
        self.programs[program].bind(buf, held);
        true
    }

    fn put_copy(&mut self, program: usize, buf: BufId, name: &str) -> bool {
        let Some(held) = self.kept.get(name).cloned() else { return false };
        self.programs[program].bind(buf, held);
        true
    }

    fn run(
        &mut self,
        program: usize,
        dice: Dice,
        transport: &mut dyn Transport,
        sequence: &mut u64,
        at: &mut Option<usize>,
        recorder: Option<&mut Recorder>,
    ) -> Result<(), Ended> {
        self.programs[program].run(dice, &self.device, transport, sequence, at, (&mut self.peak, recorder))
    }

    fn give_up(&mut self) {
        self.programs.iter_mut().for_each(PlainProgram::give_up);
    }

    fn watch_memory(&mut self, watch: bool) {
        self.peak = watch.then_some(0);
    }

    fn memory(&mut self) -> Option<Memory> {
        let usage = B::memory_pool_usage(&self.device)?;
        let (in_use, reserved) = (usage.bytes_in_use, usage.bytes_reserved);
        Some(Memory { peak: self.peak.unwrap_or(0), in_use, reserved })
    }

    fn read(&mut self, program: usize, buf: BufId) -> Result<Option<HostTensor>, Lost> {
        self.programs[program].read(buf, false).map(Some)
    }

    fn keep(&mut self, program: usize, buf: BufId, name: &str, take: bool) {
        let tensor = self.programs[program].get(buf, take);
        self.kept.insert(name.into(), tensor);
    }

    fn clear(&mut self, program: usize, kept: &BTreeSet<BufId>) {
        let left: Vec<BufId> = self.programs[program].left.difference(kept).copied().collect();
        for buf in left {
            self.programs[program].release(buf);
        }
    }

    fn set(&mut self, name: &str, value: HostTensor) {
        self.kept.insert(name.into(), Kept::new(value, None, &self.device));
    }

    fn forget(&mut self, name: &str) {
        self.kept.remove(name);
    }

    fn get(&self, name: &str, dtype: DType, shape: &[usize]) -> Result<Option<HostTensor>, Lost> {
        self.kept.get(name).map(|t| t.clone().read(dtype, DType::I32, shape)).transpose()
    }

    fn address(&self, _: &str) -> Option<usize> {
        None
    }
}
