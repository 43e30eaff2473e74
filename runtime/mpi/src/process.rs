//! The end of the world that a process has.

use crate::collective_state::Kit;
use crate::engine::Engine;
use crate::job::abort_job;
use crate::message::Message;
use crate::options::MpiOptions;
use crate::shared_engine::{SharedEngine, say};
use crate::sys;
use crate::timing::{ANSWER, DOUBT, LAST_ANSWER};
use crate::wait::{Pending, ask, release};
use meshwright_comm::parts::{Completed, run_alone};
use meshwright_comm::{
    Abort, AsyncCollective, Call, CallName, CollectiveKind, Collectives, CommError, Group, Missing, Part,
    Tag, Transport,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Limit of MPI's own end after all ranks have come to theirs.
const END: Duration = Duration::from_secs(20);

/// A process's end of the world of all processes that were started together.
///
/// Dropped while its thread panics, it aborts the world. Dropped otherwise it does what [`MpiTransport::close`] does, and
/// ends the process where that fails.
pub struct MpiTransport {
    pub(super) shared: Arc<SharedEngine>,
    progress: Option<JoinHandle<()>>,
    local: (usize, usize),
    pub(super) options: MpiOptions,
    timeout: Duration,
    compare: bool,
    closed: bool,
}

/// Name and version of the MPI library, in one line.
pub fn library() -> String {
    let text = sys::version();
    text.lines().next().unwrap_or_default().trim().trim_end_matches(',').to_string()
}

/// Starts MPI, once in a process. It waits until all processes have come, and ends this one where they do not come within the
/// time-out of the first step.
///
/// # Errors
///
/// [`CommError::Library`] in MPI's words. (Some failures of its start make MPI itself end the process.)
pub fn init(options: MpiOptions) -> Result<MpiTransport, CommError> {
    start(options).map_err(|reason| CommError::Library { rank: own_rank(&options), call: None, reason })
}

/// This process's rank while MPI does not work, from the launcher.
fn own_rank(options: &MpiOptions) -> usize {
    let known = if sys::is_over() { None } else { sys::Comm::world().rank().ok() };
    known.unwrap_or(options.launched_as)
}

fn start(options: MpiOptions) -> Result<MpiTransport, String> {
    let most = options.start.unwrap_or(options.timeouts.first_step);
    let words = format!(
        "error: rank {}: MPI has not started within {:.0} s: a process of the job is stopped, dead or cannot be reached; see that \
         all run and that their machines can connect (`--timeout` says how long to wait)",
        options.launched_as,
        most.as_secs_f64()
    );
    ends_within(most, || false, words, options.exit, || begin(options))
}

fn begin(options: MpiOptions) -> Result<MpiTransport, String> {
    sys::init()?;
    let world = sys::Comm::world().errors_return()?;
    let node = world.of_this_node()?;
    let local = (node.rank()?, node.size()?);
    let kit = Kit::new(options.limit, options.deterministic)?;
    let engine = Engine::new(world, world.duplicate()?, world.duplicate()?, kit)?;
    let timeout = options.timeouts.first_step;
    let shared = Arc::new(SharedEngine::new(engine, timeout, options.exit));
    let progress = shared.start_threads().map_err(|e| e.to_string())?;
    Ok(MpiTransport {
        shared,
        progress: Some(progress),
        local,
        options,
        timeout,
        compare: true,
        closed: false,
    })
}

/// Calls an operation that waits for all processes without a timeout. Ends this process with `words` if it takes longer
/// than `most`, or on a termination signal; the launcher then ends the others.
fn ends_within<T>(
    most: Duration,
    told: impl Fn() -> bool + Send + 'static,
    words: String,
    exit: fn(i32) -> !,
    work: impl FnOnce() -> T,
) -> T {
    let over = Arc::new(AtomicBool::new(false));
    let seen = over.clone();
    let watch = std::thread::Builder::new().name("mpi watch".into()).spawn(move || {
        let since = Instant::now();
        while !seen.load(Ordering::Relaxed) {
            if since.elapsed() > most || told() {
                say(&words);
                exit(1);
            }
            std::thread::park_timeout(Duration::from_millis(50));
        }
    });
    let done = work();
    over.store(true, Ordering::Relaxed);
    if let Ok(watch) = watch {
        watch.thread().unpark();
        let _joined = watch.join();
    }
    done
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
    /// If ranks abort, or are stopped or dead. MPI is not ended then: call [`abort_job`].
    pub fn close(mut self) -> Result<(), CommError> {
        self.closed = true;
        self.end()
    }

    fn end(&mut self) -> Result<(), CommError> {
        let call = {
            let mut engine = self.shared.engine();
            let sequence = engine.last_call.as_ref().map_or(0, |last| last.tag.sequence + 1);
            let tag = Tag::new(sequence, "the end of the program", 0);
            let left = Message::Left(engine.posted());
            let call = CallName::new(CollectiveKind::Barrier, &tag);
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
                if engine.left.len() + 1 == engine.size && engine.pending() == 0 && engine.channel.is_sent() {
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
        self.shared.end_threads();
        if let Some(progress) = self.progress.take() {
            let _joined = progress.join();
        }
        self.finalize(&call)
    }

    /// Fails if a rank that has not come to its end does not answer, or on a termination signal.
    fn check_answers(&self, call: &CallName, waited: Duration, told: bool) -> Result<(), CommError> {
        let most = if told { LAST_ANSWER } else { ANSWER };
        let world = ask(&self.shared, most, |engine| engine.check_alive(call).err())?;
        let engine = self.shared.engine();
        let running = |rank: &usize| *rank != engine.rank && !engine.left.contains_key(rank);
        let unresponsive: Vec<usize> = world.unresponsive().into_iter().filter(running).collect();
        let (rank, call) = (engine.rank, call.clone());
        if told {
            let running: Vec<usize> = (0..engine.size).filter(running).collect();
            return Err(CommError::Terminated { rank, call, missing: world.named(&running) });
        }
        if unresponsive.is_empty() {
            return Ok(());
        }
        let missing = world.named(&unresponsive);
        Err(CommError::Timeout { rank, call, waited, stuck: missing.clone(), missing })
    }

    /// MPI's own end, which waits for all processes: they have all come, so it only takes long if one dies meanwhile.
    fn finalize(&self, call: &CallName) -> Result<(), CommError> {
        let rank = self.shared.rank;
        let shared = self.shared.clone();
        let words = format!("error: rank {rank} waited for MPI to end: a rank died or was stopped meanwhile");
        let ended = ends_within(END, move || shared.interrupted(), words, self.options.exit, sys::finalize);
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
    ) -> Result<Box<dyn AsyncCollective>, CommError> {
        let call = call.checked(group, tag, (self.rank(), self.size()))?;
        if group.size() == 1 {
            let name = call.signature.name(tag);
            let mut engine = self.shared.engine();
            engine.check_alive(&name)?;
            engine.last_call = Some(name);
            drop(engine);
            // SAFETY: the caller's promise.
            unsafe { run_alone(&call) };
            return Ok(Box::new(Completed));
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

    fn prepare_links(&mut self, links: &[Group]) -> Result<(), CommError> {
        let mut links: Vec<&Group> = links.iter().collect();
        links.sort_by_key(|link| link.ranks().to_vec());
        links.dedup();
        links.into_iter().try_for_each(|link| self.first_message(link))
    }

    fn first_step_done(&mut self) {
        self.timeout = self.options.timeouts.later;
        self.shared.set_most(self.timeout);
        self.compare = self.options.compare;
    }

    fn aborter(&self) -> Arc<dyn Abort> {
        Arc::new(MpiAborter { shared: self.shared.clone() })
    }
}

impl MpiTransport {
    /// Makes the communicator of a link with a first message. Stages begin to receive over some links before others send over
    /// them, so that links would first be used in other orders on other ranks.
    fn first_message(&mut self, link: &Group) -> Result<(), CommError> {
        let [from, to] = link.ranks() else { return Ok(()) };
        if self.shared.engine().has_comm(link) {
            return Ok(());
        }
        let tag = Tag::new(0, "the first message", 0).over_link([*from, *to]);
        let sends = link.position() == 0;
        let [given, mut received] = [sends, !sends].map(|here| vec![0i32; usize::from(here)]);
        let part = |peer: usize, here: bool| if here { vec![Part { peer, range: 0..1 }] } else { vec![] };
        let (send, receive) = (part(1, sends), part(0, !sends));
        self.permute(link, &tag, (&given[..], send), (&mut received[..], receive))
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
        // A device that has failed knows it; its process is expected to end by [`abort_job`].
        if !failed && let Err(e) = self.end() {
            say(&format!("error: {e}"));
            abort_job(1);
            (self.options.exit)(1);
        }
    }
}

struct MpiAborter {
    shared: Arc<SharedEngine>,
}

impl Abort for MpiAborter {
    fn abort(&self, reason: &str) {
        // Whoever keeps it longer is being ended by the progress thread.
        if let Some(mut engine) = self.shared.engine_within(Duration::from_secs(2)) {
            engine.abort(self.shared.rank, reason);
            self.shared.flush(&mut engine);
        }
    }

    fn aborted(&self) -> Option<(usize, String)> {
        // The progress thread hears of it. Whoever keeps the engine now will find it too.
        self.shared.engine_within(Duration::ZERO)?.aborted.clone()
    }

    fn entered(&self, call: &CallName) {
        self.shared.engine().last_call = Some(call.clone());
    }

    fn last_calls(&self, ranks: &[usize]) -> Option<Vec<Missing>> {
        let asked = ask::<()>(&self.shared, Duration::from_millis(250), |_| None);
        asked.ok().map(|world| world.named(ranks))
    }
}

/// Interface for a thread that handles signals: notes the termination, and asks for last words.
#[derive(Clone)]
pub struct Watch {
    shared: Arc<SharedEngine>,
}

impl Watch {
    /// Notes a termination signal. A wait, now or later, that does not end within a quarter of a second fails with
    /// [`CommError::Terminated`], which names the missing ranks.
    pub fn interrupt(&self) {
        self.shared.interrupted.store(true, Ordering::Relaxed);
    }

    /// The ranks that do not answer within half a second: they are dead, or stopped. Where this rank cannot ask, since it
    /// waits to set up a communicator, those that it waits for, one of which is.
    pub fn unresponsive(&self) -> Vec<usize> {
        ask::<()>(&self.shared, DOUBT, |_| None).map(|world| world.unresponsive()).unwrap_or_default()
    }

    /// Position of this rank, and the ranks that do not answer within a quarter of a second: for a device that computes
    /// and so cannot report it before the process is killed. Nothing if the world has ended already: its errors say
    /// more.
    pub fn last_words(&self) -> Option<String> {
        let rank = self.shared.rank;
        let over = |engine: &Engine| engine.stopped || engine.aborted.is_some();
        if over(&*self.shared.engine_within(Duration::from_millis(100))?) {
            return None;
        }
        let world = ask(&self.shared, LAST_ANSWER, |engine| over(engine).then_some(())).ok()?;
        let at = match &self.shared.engine_within(Duration::from_millis(100))?.last_call {
            Some(call) => format!("after {call} was started"),
            None => "before its first collective".into(),
        };
        let unresponsive = world.unresponsive();
        let who = match unresponsive.as_slice() {
            [] => "all ranks answer".to_string(),
            [one] => format!("rank {one} does not answer"),
            several => format!("ranks {several:?} do not answer"),
        };
        Some(format!("rank {rank} was asked to terminate {at}; {who}"))
    }
}
