//! Faults on purpose, for tests of whoever uses a transport.

use crate::transport::Completed;
use crate::{
    Abort, AsyncCollective, BufMut, Call, CommError, Group, MemorySpace, Tag, Transport, TransportMemory,
};
use meshwright_plan::{Axis, DType, Mesh, Monoid};
use std::sync::Arc;
use std::time::Duration;

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    /// The device fails in that call: [`CommError::Injected`]. It is up to the device to abort or to leave.
    Fail,
    /// The device panics in that call.
    Panic,
    /// The device comes later to that call; beyond the others' timeout it never comes.
    Stall(Duration),
    /// The device leaves the call out without noticing, so that its next ones meet the wrong ones of the others.
    Skip,
    /// The device ends the call well, but one bit of the first element of its result is wrong (on the host only: the
    /// memory of a GPU stays as it is).
    Corrupt,
}

/// When a transport tells of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallMoment {
    /// Before the call is posted.
    Posted,
    /// Before the caller waits for its end.
    Awaited,
    /// After it has ended well.
    Ended,
}

/// Is told of every call, and may hold it up.
pub type CallWatcher = Arc<dyn Fn(&Group, &Tag, CallMoment) + Send + Sync>;

/// A transport on which one call goes wrong, and which may delay all calls.
pub struct FaultInjector<T> {
    inner: T,
    fault: Option<(u64, InjectedFault)>,
    calls: u64,
    delays: Option<(u64, Duration)>,
    watcher: Option<CallWatcher>,
}

impl<T: Transport> FaultInjector<T> {
    /// `inner` without a fault.
    pub fn new(inner: T) -> Self {
        FaultInjector { inner, fault: None, calls: 0, delays: None, watcher: None }
    }

    /// Adds a fault in the `at`-th call from now, counted from 0.
    #[must_use]
    pub fn with_fault(mut self, at: u64, fault: InjectedFault) -> Self {
        self.fault = Some((self.calls + at, fault));
        self
    }

    /// Delays each call by less than `most`, as `seed` says.
    #[must_use]
    pub fn with_delays(mut self, seed: u64, most: Duration) -> Self {
        self.delays = Some((seed, most));
        self
    }

    /// Tells `watcher` of each call.
    #[must_use]
    pub fn with_watcher(mut self, watcher: CallWatcher) -> Self {
        self.watcher = Some(watcher);
        self
    }

    fn delay(&mut self) {
        let Some((state, most)) = &mut self.delays else { return };
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = *state;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^= x >> 31;
        // Half of the calls come at once, so that every order of arrival occurs.
        if x & 1 == 0 {
            std::thread::sleep(most.mul_f64((x >> 11) as f64 / (1u64 << 53) as f64));
        }
    }
}

/// A watched call.
struct Watched {
    inner: Box<dyn AsyncCollective>,
    group: Group,
    tag: Tag,
    /// None when the call has ended.
    watcher: Option<CallWatcher>,
}

impl AsyncCollective for Watched {
    fn wait(&mut self) -> Result<(), CommError> {
        let watcher = self.watcher.take();
        let tell = |moment| {
            if let Some(watcher) = &watcher {
                watcher(&self.group, &self.tag, moment);
            }
        };
        tell(CallMoment::Awaited);
        self.inner.wait()?;
        tell(CallMoment::Ended);
        Ok(())
    }
}

/// A call whose result is changed at the end.
struct Corrupted {
    inner: Box<dyn AsyncCollective>,
    result: Option<BufMut<'static>>,
}

impl AsyncCollective for Corrupted {
    fn wait(&mut self) -> Result<(), CommError> {
        self.inner.wait()?;
        if let Some(result) = self.result.take() {
            #[expect(unsafe_code, reason = "writes to the memory of a call that has just ended")]
            // SAFETY: whoever posted keeps the memory valid, and away from others, until this function has returned for
            // the first time; the operation itself is done with it. The buffer has at least one byte.
            unsafe {
                *result.address() ^= 1;
            }
        }
        Ok(())
    }
}

impl<T: Transport> Transport for FaultInjector<T> {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    #[expect(unsafe_code, reason = "passes the promise on")]
    unsafe fn post(
        &mut self,
        group: &Group,
        tag: &Tag,
        call: Call<'_>,
    ) -> Result<Box<dyn AsyncCollective>, CommError> {
        self.delay();
        let number = self.calls;
        self.calls += 1;
        match &self.fault {
            Some((at, fault)) if *at == number => match fault {
                InjectedFault::Fail => {
                    return Err(CommError::Injected { rank: self.rank(), call: call.name(tag) });
                }
                InjectedFault::Panic => panic!("fault on purpose in {}", call.name(tag)),
                InjectedFault::Stall(time) => std::thread::sleep(*time),
                InjectedFault::Skip => return Ok(Box::new(Completed)),
                InjectedFault::Corrupt => {
                    let result = call.first_result();
                    // SAFETY: the caller's promise.
                    let inner = unsafe { self.inner.post(group, tag, call) }?;
                    return Ok(Box::new(Corrupted { inner, result }));
                }
            },
            _ => {}
        }
        let watcher = self.watcher.clone();
        if let Some(watcher) = &watcher {
            watcher(group, tag, CallMoment::Posted);
        }
        // SAFETY: the caller's promise.
        let inner = unsafe { self.inner.post(group, tag, call) }?;
        if watcher.is_none() {
            return Ok(inner);
        }
        Ok(Box::new(Watched { inner, group: group.clone(), tag: tag.clone(), watcher }))
    }

    fn first_step_done(&mut self) {
        self.inner.first_step_done();
    }

    fn folds(&self, monoid: Monoid, dtype: DType, place: MemorySpace) -> bool {
        self.inner.folds(monoid, dtype, place)
    }

    fn gpu(&self) -> Option<u32> {
        self.inner.gpu()
    }

    fn prepare(&mut self, mesh: &Mesh, sets: &[Vec<Axis>]) -> Result<(), CommError> {
        self.inner.prepare(mesh, sets)
    }

    fn prepare_links(&mut self, links: &[Group]) -> Result<(), CommError> {
        self.inner.prepare_links(links)
    }

    #[expect(unsafe_code, reason = "a stream is known by its address")]
    unsafe fn compute_on(&mut self, stream: u64) {
        // SAFETY: the caller's promise.
        unsafe { self.inner.compute_on(stream) }
    }

    fn allocate(&self, len: usize, dtype: DType) -> Result<Option<Box<dyn TransportMemory>>, CommError> {
        self.inner.allocate(len, dtype)
    }

    fn settle(&mut self) -> Result<(), CommError> {
        self.inner.settle()
    }

    fn aborter(&self) -> Arc<dyn Abort> {
        self.inner.aborter()
    }
}
