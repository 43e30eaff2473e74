//! Devices that are processes, started and connected by MPI: `mpirun -n 4 ...`. Needs the cargo feature `mpi`.
//!
//! One device is one process, or each process has several ([`MpiTransport::devices`]). [`init`] starts the library and gives the process's end of the world; [`MpiTransport::close`]
//! ends it. Collectives are the library's own on a communicator of the group, sends and receives where it has none, and
//! folds of ours where its result would depend on the order of the members (see `moves`).
//!
//! **What is compared.** Every call is checked on its own ([`Call::check`]). The calls of the members are compared with each
//! other ([`Call::conflict`]) until [`Transport::first_step_done`], or always if [`MpiOptions::compare`] asks for it; that
//! costs two small messages for each member. Calls that are not compared and do not belong together end in
//! [`CommError::Library`], in a timeout, or in wrong results.
//!
//! **Nothing hangs.** A device that waits asks the library again and again, until its timeout. Then it asks all other ranks
//! where they are (a thread of each process answers, whatever its device does), names those that have not come and those
//! that do not answer, and ends the world: all other waits fail with [`CommError::Aborted`]. The same happens soon after
//! [`Watch::interrupt`], which is for the signal with which `mpirun` ends the others when a process has died; the error is
//! [`CommError::Terminated`] then.
//!
//! **After an error** the process should print it and call [`fatal`]. MPI cannot take an operation back, but does nothing
//! without being called. So when a collective that has begun fails, this process calls MPI no more (but to end), and the
//! memory that it was lent is left alone: with one exception, data that a network adapter is writing by itself at that
//! very moment.
//!
//! **Order of groups.** All ranks first use the groups that they share in the same order, as every rank of a Plan does.

mod courier;
mod devices;
mod engine;
mod letter;
mod mail;
mod moves;
mod ordered;
mod shared;
mod sys;
mod wait;
mod wire;

use crate::threads::work::Work;
use crate::{Abort, Call, CallName, CommError, Group, InFlight, Kind, Missing, Tag, Timeouts, Transport};
pub use devices::DeviceTransport;
use engine::Engine;
use moves::Kit;
use shared::{Shared, say};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use wait::{ANSWER, DOUBT, LAST_ANSWER, Pending, ask, release};
use wire::Message;

/// How long MPI may take to end when all ranks have come to the end.
const END: Duration = Duration::from_secs(20);

/// How a process takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MpiOptions {
    /// How long it waits for others.
    pub timeouts: Timeouts,
    /// Floats are folded from left to right in group order, with the same bits as on threads, instead of by MPI in an
    /// order of its own. (Everything else has the same bits anyway.)
    pub deterministic: bool,
    /// The calls of the members are compared always, and not only in the first step.
    pub compare: bool,
    /// Most elements in one call of MPI, which counts to 2^31-1; less in tests.
    pub limit: usize,
}

impl Default for MpiOptions {
    fn default() -> Self {
        MpiOptions {
            timeouts: Timeouts::default(),
            deterministic: false,
            compare: false,
            limit: i32::MAX as usize,
        }
    }
}

/// A process's end of the world of all processes that were started together.
///
/// Dropped while its thread panics, it aborts the world. Dropped otherwise it does what [`MpiTransport::close`] does, and
/// ends the process where that fails.
pub struct MpiTransport {
    shared: Arc<Shared>,
    pulse: Option<JoinHandle<()>>,
    local: (usize, usize),
    options: MpiOptions,
    timeout: Duration,
    compare: bool,
    closed: bool,
}

/// Whether this process was started by MPI (or by a launcher that speaks for it), as one of several or alone.
pub fn launched() -> bool {
    RANKS.iter().any(|name| std::env::var_os(name).is_some())
}

/// Name and version of the MPI library, in one line.
pub fn library() -> String {
    let text = sys::version();
    text.lines().next().unwrap_or_default().trim().trim_end_matches(',').to_string()
}

/// Starts MPI, once in a process. It waits until all processes have come, as long as MPI lets it.
///
/// # Errors
///
/// [`CommError::Library`] in MPI's words. (Some failures of its start make MPI itself end the process.)
pub fn init(options: MpiOptions) -> Result<MpiTransport, CommError> {
    start(options).map_err(|reason| CommError::Library { rank: own_rank(), call: None, reason })
}

/// Where launchers say which process of the job this is.
const RANKS: [&str; 4] = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK"];

/// This process's rank as far as it is known while MPI does not work: by the launcher, if by nobody else.
fn own_rank() -> usize {
    let known = if sys::is_over() { None } else { sys::Comm::world().rank().ok() };
    known.or_else(|| RANKS.iter().find_map(|name| std::env::var(name).ok()?.parse().ok())).unwrap_or(0)
}

fn start(options: MpiOptions) -> Result<MpiTransport, String> {
    sys::init()?;
    let world = sys::Comm::world().errors_return()?;
    let node = world.of_this_node()?;
    let local = (node.rank()?, node.size()?);
    let kit = Kit::new(options.limit, options.deterministic)?;
    let engine = Engine::new(world, world.duplicate()?, world.duplicate()?, kit)?;
    let timeout = options.timeouts.first_step;
    let shared = Arc::new(Shared::new(engine, timeout));
    let pulse = shared.start_pulse().map_err(|e| e.to_string())?;
    Ok(MpiTransport { shared, pulse: Some(pulse), local, options, timeout, compare: true, closed: false })
}

/// Ends all processes of the job at once with this exit code, which must not be 0, from any thread. For the end of a
/// process that has failed: the orderly end would wait for the others.
pub fn fatal(code: i32) -> ! {
    if sys::is_over() {
        std::process::exit(code);
    }
    let aborts = std::thread::Builder::new().spawn(move || sys::abort(code));
    // It ends the process from within, unless MPI is beyond that.
    if aborts.is_ok() {
        std::thread::sleep(Duration::from_secs(3));
    }
    std::process::exit(code)
}

impl MpiTransport {
    /// This process's place among those of its machine (that share memory with it), from 0.
    pub fn local_rank(&self) -> usize {
        self.local.0
    }

    /// Number of processes on this machine.
    pub fn local_size(&self) -> usize {
        self.local.1
    }

    /// A handle for the thread that hears of signals.
    pub fn watch(&self) -> Watch {
        Watch { shared: self.shared.clone() }
    }

    /// Ends MPI in order: waits until all other ranks have come to their end too, however long they take, as long as
    /// they answer.
    ///
    /// # Errors
    ///
    /// Where ranks abort, or are stopped or dead. MPI is not ended then: call [`fatal`].
    pub fn close(mut self) -> Result<(), CommError> {
        self.closed = true;
        self.end()
    }

    fn end(&mut self) -> Result<(), CommError> {
        let call = {
            let mut engine = self.shared.engine();
            let sequence = engine.last.as_ref().map_or(0, |last| last.tag.sequence + 1);
            let tag = Tag::new(sequence, "the end of the program", 0);
            let left = Message::Left(engine.posted());
            let call = CallName { kind: Kind::Barrier, tag };
            engine.check_alive(&call)?;
            engine.tell_all(&left);
            call
        };
        let since = Instant::now();
        let mut asked = since;
        loop {
            {
                let mut engine = self.shared.engine();
                engine.step(Some(&*self.shared))?;
                engine.check_alive(&call)?;
                if engine.left.len() + 1 == engine.size && engine.pending() == 0 && engine.mail.is_sent() {
                    engine.stopped = true;
                    break;
                }
            }
            let told = self.shared.interrupted();
            if told || asked.elapsed() >= self.timeout {
                self.check_answers(&call, since.elapsed(), told)?;
                asked = Instant::now();
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        self.shared.end_pulse();
        if let Some(pulse) = self.pulse.take() {
            let _joined = pulse.join();
        }
        self.finalize(&call)
    }

    /// Fails if some rank that has not come to its end does not answer, or if this process was told to end.
    fn check_answers(&self, call: &CallName, waited: Duration, told: bool) -> Result<(), CommError> {
        let most = if told { LAST_ANSWER } else { ANSWER };
        let world = ask(&self.shared, most, |engine| engine.check_alive(call).err())?;
        let engine = self.shared.engine();
        let running = |rank: &usize| *rank != engine.rank && !engine.left.contains_key(rank);
        let silent: Vec<usize> = world.silent().into_iter().filter(running).collect();
        let (rank, call) = (engine.rank, call.clone());
        if told {
            let running: Vec<usize> = (0..engine.size).filter(running).collect();
            return Err(CommError::Terminated { rank, call, missing: world.named(&running) });
        }
        if silent.is_empty() {
            return Ok(());
        }
        let missing = world.named(&silent);
        Err(CommError::Timeout { rank, call, waited, stuck: missing.clone(), missing })
    }

    /// MPI's own end, which waits for all processes: they have all come, so it only takes long if one dies meanwhile.
    fn finalize(&self, call: &CallName) -> Result<(), CommError> {
        let rank = self.shared.rank;
        let over = Arc::new(AtomicBool::new(false));
        let (seen, interrupted) = (over.clone(), self.shared.clone());
        let watch = std::thread::Builder::new().spawn(move || {
            let since = Instant::now();
            while !seen.load(Ordering::Relaxed) {
                if since.elapsed() > END || interrupted.interrupted() {
                    say(&format!("error: rank {rank} waited for MPI to end: a rank died meanwhile"));
                    std::process::exit(1);
                }
                std::thread::park_timeout(Duration::from_millis(50));
            }
        });
        let ended = sys::finalize();
        over.store(true, Ordering::Relaxed);
        if let Ok(watch) = watch {
            watch.thread().unpark();
            let _joined = watch.join();
        }
        ended.map_err(|reason| CommError::Library { rank, call: Some(call.clone()), reason })
    }
}

impl Transport for MpiTransport {
    fn rank(&self) -> usize {
        self.shared.rank
    }

    fn size(&self) -> usize {
        self.shared.size
    }

    #[expect(unsafe_code, reason = "memory is used beyond the lifetime of the call")]
    unsafe fn post(
        &mut self,
        group: &Group,
        tag: &Tag,
        call: Call<'_>,
    ) -> Result<Box<dyn InFlight>, CommError> {
        let name = call.name(tag);
        group.check(self.rank(), self.size(), &name)?;
        call.check(group, tag)?;
        // The caller promises that the memory outlives the operation.
        let call = call.detach();
        if group.size() == 1 {
            let mut engine = self.shared.engine();
            engine.check_alive(&name)?;
            engine.last = Some(name);
            drop(engine);
            Work::new(&[&call]).run_all();
            return Ok(Box::new(Alone));
        }
        let mut engine = self.shared.engine();
        let serial = engine.enter(group, tag, call, self.compare)?;
        match engine.begin(serial, &*self.shared) {
            Ok(()) => drop(engine),
            // The caller takes its memory back, which may be lent already.
            failed => release(&self.shared, engine, serial, failed)?,
        }
        Ok(Box::new(Pending::new(self.shared.clone(), serial, self.timeout)))
    }

    fn first_step_done(&mut self) {
        self.timeout = self.options.timeouts.later;
        self.shared.set_most(self.timeout);
        self.compare = self.options.compare;
    }

    fn aborter(&self) -> Arc<dyn Abort> {
        Arc::new(Aborter { shared: self.shared.clone() })
    }
}

impl Drop for MpiTransport {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        if std::thread::panicking() {
            self.abort("its thread panicked");
            return;
        }
        let failed = {
            let mut engine = self.shared.engine();
            self.shared.flush(&mut engine);
            engine.stopped || engine.aborted.is_some()
        };
        // A device that has failed knows it; its process is expected to end by `fatal`.
        if !failed && let Err(e) = self.end() {
            say(&format!("error: {e}"));
            fatal(1);
        }
    }
}

struct Aborter {
    shared: Arc<Shared>,
}

impl Abort for Aborter {
    fn abort(&self, reason: &str) {
        // Whoever keeps it longer is being ended by the pulse.
        if let Some(mut engine) = self.shared.engine_within(Duration::from_secs(2)) {
            engine.abort(self.shared.rank, reason);
            self.shared.flush(&mut engine);
        }
    }

    fn aborted(&self) -> Option<(usize, String)> {
        // The pulse hears of it. Whoever keeps the engine now will find it too.
        self.shared.engine_within(Duration::ZERO)?.aborted.clone()
    }

    fn came_to(&self, call: &CallName) {
        self.shared.engine().last = Some(call.clone());
    }

    fn whereabouts(&self, ranks: &[usize]) -> Option<Vec<Missing>> {
        let asked = ask::<()>(&self.shared, Duration::from_millis(250), |_| None);
        asked.ok().map(|world| world.named(ranks))
    }
}

/// What a thread that hears of signals can do: say that the process was told to end, and ask for last words.
#[derive(Clone)]
pub struct Watch {
    shared: Arc<Shared>,
}

impl Watch {
    /// The process was told to end. A wait, under way or later, that does not end within a quarter of a second fails
    /// with [`CommError::Terminated`], which names who is missing.
    pub fn interrupt(&self) {
        self.shared.interrupted.store(true, Ordering::Relaxed);
    }

    /// The ranks that do not answer within half a second: they are dead, or stopped. Where this rank cannot ask, since it
    /// waits to set up a communicator, those that it waits for, one of which is.
    pub fn silent(&self) -> Vec<usize> {
        ask::<()>(&self.shared, DOUBT, |_| None).map(|world| world.silent()).unwrap_or_default()
    }

    /// Where this rank is, and which ranks do not answer within a quarter of a second: for a device that computes and so
    /// does not come to say it itself before the process is killed. Nothing if the world has ended already: whoever was
    /// in it has an error that says more.
    pub fn last_words(&self) -> Option<String> {
        let rank = self.shared.rank;
        let over = |engine: &Engine| engine.stopped || engine.aborted.is_some();
        if over(&*self.shared.engine_within(Duration::from_millis(100))?) {
            return None;
        }
        let world = ask(&self.shared, LAST_ANSWER, |engine| over(engine).then_some(())).ok()?;
        let at = match &self.shared.engine_within(Duration::from_millis(100))?.last {
            Some(call) => format!("after {call} was started"),
            None => "before its first collective".into(),
        };
        let silent = world.silent();
        let who = match silent.as_slice() {
            [] => "all ranks answer".to_string(),
            [one] => format!("rank {one} does not answer"),
            several => format!("ranks {several:?} do not answer"),
        };
        Some(format!("rank {rank} was told to end {at}; {who}"))
    }
}

/// The end of a collective of one member.
struct Alone;

impl InFlight for Alone {
    fn complete(&mut self) -> Result<(), CommError> {
        Ok(())
    }
}
