//! Kernels and their launches.

use super::flow::Flow;
use super::machine::{LANES, LAUNCH_FAILED, Lanes, Machine, Trouble, Warp, trouble};
use super::memory::{Known, Memory, Shadow};
use super::parser::{Function, Source};
use super::program::{Builder, Code, aligned};
use super::run::{Stop, run};
use super::scope::{Constants, Place};
use std::collections::HashMap;
use std::sync::Arc;

/// Why a launch failed.
#[derive(Debug)]
pub(crate) struct Fault {
    /// As CUDA numbers errors.
    pub(crate) code: i32,
    /// What was wrong, and where.
    pub(crate) text: String,
}

/// How a kernel is launched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    /// Blocks along each side.
    pub(crate) grid: [u32; 3],
    /// Threads of a block along each side.
    pub(crate) block: [u32; 3],
    /// Bytes of shared memory beside those that the kernel declares.
    pub(crate) shared: usize,
    /// Whether to look for shared memory that warps use with no barrier between, or that nobody wrote.
    pub(crate) watches: bool,
    /// Instructions of warps after which the kernel counts as one that never ends.
    pub(crate) limit: u64,
}

/// A kernel, ready to run.
pub(crate) struct Kernel {
    name: String,
    /// The kernel is the first.
    functions: Vec<Code>,
    /// Where each parameter starts, and its bytes.
    parameters: Vec<(usize, usize)>,
    required: Option<[u32; 3]>,
    counts: [usize; 3],
    constants: Constants,
    local_bytes: usize,
    shared_bytes: usize,
    /// Global variables of the module.
    data: Arc<[u128]>,
}

/// A GPU's memory and the variables of a module.
struct Both<'a> {
    memory: &'a dyn Memory,
    data: (usize, usize),
}

impl Memory for Both<'_> {
    fn piece(&self, address: usize) -> Option<(usize, usize)> {
        let (start, end) = self.data;
        if (start..end).contains(&address) { Some(self.data) } else { self.memory.piece(address) }
    }
}

/// A warp that waits for its turn.
struct Waiting {
    warp: Warp,
    flow: Flow,
    stop: Stop,
}

impl Kernel {
    pub(super) fn new(
        source: &Source,
        entry: &Function,
        places: &HashMap<String, Place>,
        data: Arc<[u128]>,
    ) -> Result<Kernel, String> {
        let mut builder = Builder::new(source, places);
        builder.function(entry)?;
        let mut parameters: Vec<(usize, usize)> = Vec::new();
        for parameter in &entry.parameters {
            let end = parameters.last().map_or(0, |(at, bytes)| at + bytes);
            parameters.push((aligned(end, parameter.align), parameter.bytes));
        }
        Ok(Kernel {
            name: entry.name.clone(),
            constants: builder.scope.constants(),
            counts: builder.scope.counts,
            functions: builder.functions.into_iter().flatten().collect(),
            parameters,
            required: entry.required,
            local_bytes: aligned(builder.local_bytes, 16),
            shared_bytes: builder.shared_bytes,
            data,
        })
    }

    /// Where each parameter lies among all, and how many bytes it has.
    pub(crate) fn parameters(&self) -> &[(usize, usize)] {
        &self.parameters
    }

    /// Runs it to its end, and tells how many instructions warps ran.
    pub(crate) fn launch(&self, how: &Launch, arguments: &[u8], memory: &dyn Memory) -> Result<u64, Fault> {
        let threads = how.block.iter().product::<u32>();
        let end = self.parameters.last().map_or(0, |(at, bytes)| at + bytes);
        let fault = |text: String| Fault { code: 1, text: format!("kernel {}: {text}", self.name) };
        if arguments.len() != end {
            return Err(fault(format!("{} bytes of arguments where {end} are due", arguments.len())));
        }
        if self.required.is_some_and(|required| required != how.block) || !(1..=1024).contains(&threads) {
            return Err(fault(format!("blocks of {:?} threads, {:?} required", how.block, self.required)));
        }
        let start = self.data.as_ptr() as usize;
        let both = Both { memory, data: (start, start + size_of_val(&*self.data)) };
        let shared_bytes = self.shared_bytes + how.shared;
        let mut machine = Machine {
            warp: Warp::default(),
            shared: vec![0; shared_bytes.div_ceil(16) * 2 + 16],
            shared_bytes,
            local_bytes: self.local_bytes,
            arguments,
            memory: &both,
            known: Known::default(),
            shadow: how.watches.then(Shadow::default),
            grid: how.grid,
            sides: how.block,
            block: [0; 3],
            clock: 0,
            limit: how.limit,
        };
        let mut warps: Vec<Waiting> = (0..threads.div_ceil(LANES as u32)).map(|i| self.warp(i)).collect();
        for z in 0..how.grid[2] {
            for y in 0..how.grid[1] {
                for x in 0..how.grid[0] {
                    machine.block = [x, y, z];
                    self.block(&mut machine, &mut warps, threads)?;
                }
            }
        }
        Ok(machine.clock)
    }

    /// Registers that nobody wrote are no numbers.
    fn warp(&self, index: u32) -> Waiting {
        let mut warp = Warp {
            narrow: vec![Lanes([u32::MAX; LANES]); self.counts[0]],
            wide: vec![Lanes([u64::MAX; LANES]); self.counts[1]],
            predicates: vec![0; self.counts[2]],
            local: vec![u64::MAX; self.local_bytes * LANES / 8],
            index,
            ..Warp::default()
        };
        for (register, value) in &self.constants.0 {
            warp.narrow[*register] = Lanes([*value; LANES]);
        }
        for (register, value) in &self.constants.1 {
            warp.wide[*register] = Lanes([*value; LANES]);
        }
        Waiting { warp, flow: Flow::new(0), stop: Stop::Turn }
    }

    fn block(&self, machine: &mut Machine<'_>, warps: &mut [Waiting], threads: u32) -> Result<(), Fault> {
        machine.shared.fill(u64::MAX);
        if let Some(shadow) = &mut machine.shadow {
            shadow.clear(machine.shared_bytes);
        }
        for (i, waiting) in warps.iter_mut().enumerate() {
            let left = threads - i as u32 * LANES as u32;
            waiting.flow = Flow::new(u32::MAX >> (LANES as u32 - left.min(LANES as u32)));
            waiting.stop = Stop::Turn;
            (waiting.warp.copies, waiting.warp.products) = Default::default();
        }
        loop {
            for waiting in warps.iter_mut().filter(|w| w.stop == Stop::Turn) {
                std::mem::swap(&mut machine.warp, &mut waiting.warp);
                let stop = run(&self.functions, 0, &mut waiting.flow, machine);
                std::mem::swap(&mut machine.warp, &mut waiting.warp);
                waiting.stop = stop.map_err(|trouble| self.fault(machine, waiting, &trouble))?;
            }
            if warps.iter().all(|w| w.stop == Stop::Done) {
                return Ok(());
            }
            if warps.iter().any(|w| w.stop == Stop::Turn) {
                continue;
            }
            self.pass(machine, warps)?;
        }
    }

    /// All warps that have not ended are at barriers: at the same one, or they would wait forever.
    fn pass(&self, machine: &mut Machine<'_>, warps: &mut [Waiting]) -> Result<(), Fault> {
        let mut ids = warps.iter().map(|w| w.stop).filter(|stop| *stop != Stop::Done);
        let first = ids.next();
        if ids.any(|stop| Some(stop) != first) {
            let text = "warps wait at barriers of different numbers";
            let wrong = trouble::<()>(LAUNCH_FAILED, 0, text);
            if let (Err(wrong), Some(waiting)) = (wrong, warps.iter().find(|w| w.stop != Stop::Done)) {
                return Err(self.fault(machine, waiting, &wrong));
            }
        }
        if let Some(shadow) = &mut machine.shadow {
            shadow.epoch += 1;
        }
        warps.iter_mut().filter(|w| w.stop != Stop::Done).for_each(|w| w.stop = Stop::Turn);
        Ok(())
    }

    fn fault(&self, machine: &Machine<'_>, waiting: &Waiting, trouble: &Trouble) -> Fault {
        let line = self.functions[0].instructions.get(waiting.flow.at).map_or(0, |i| i.line);
        let thread = waiting.warp.index * LANES as u32 + trouble.lane as u32;
        let [x, y, _] = machine.sides;
        let thread = [thread % x, thread / x % y, thread / x / y];
        let text = format!(
            "kernel {}, line {line}, block {:?}, thread {thread:?}: {}",
            self.name, machine.block, trouble.text
        );
        Fault { code: trouble.code, text }
    }
}
