//! Counts and times of launched kernels, on devices that report them. Threads of the host have no launches.

use meshwright_sorted::SortedMap;
use serde::Serialize;
use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The key of kernel counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelsBy {
    /// Their names.
    Kernel,
    /// The value of the model that they compute, with its line.
    Line,
    /// The launch of the device plan.
    Launch,
    /// The number of the Plan's step that they compute.
    Step,
}

/// A kernel that was launched while devices were watched.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelUse {
    /// Its name in the backend, without type parameters; or the key, a line or a launch.
    pub name: String,
    /// Launches on all devices of this process together.
    pub launches: u64,
    /// Total time of these launches in milliseconds, by the device's clock if it has one; 0 if it was not measured.
    pub ms: f64,
    /// Bytes that these launches read and wrote in memory; a tensor counts once for each launch that reads or writes
    /// it, without regard to caches. Kernels without a count, such as attention, lookups, convolutions and Burn's, have
    /// 0.
    pub bytes: u64,
    /// The parts of a library that computes several things: a matmul, and the family of its kernel.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub products: Vec<KernelUse>,
}

/// Separator between the name of a library and its part.
pub const OF: &str = ": ";

/// The time of a kernel, which may have to be waited for; none where the device could not tell it.
pub type Measured = Box<dyn FnOnce() -> Option<Duration> + Send>;

/// Counts by key, in the order of the launches.
#[derive(Default)]
struct Seen {
    /// The line or launch that runs now.
    at: Option<Arc<str>>,
    launched: Vec<Arc<str>>,
    measured: Vec<(Arc<str>, Measured)>,
    moved: Vec<(Arc<str>, u64)>,
}

/// The counts of a watch, which backends fill.
pub struct Launches {
    by: KernelsBy,
    seen: Mutex<Seen>,
}

impl Launches {
    fn note(&self, kernel: &str, f: impl FnOnce(&mut Seen, Arc<str>)) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let key = seen.at.clone().unwrap_or_else(|| kernel.into());
        f(&mut seen, key);
    }

    /// A kernel was launched.
    pub fn launched(&self, kernel: &str) {
        self.note(kernel, |seen, key| seen.launched.push(key));
    }

    /// The time of a kernel that was launched.
    pub fn measured(&self, kernel: &str, time: Measured) {
        self.note(kernel, |seen, key| seen.measured.push((key, time)));
    }

    /// The kernels in descending order of time. Waits for the measurements.
    fn uses(&self) -> Vec<KernelUse> {
        let seen = std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner));
        let mut by_name: SortedMap<Arc<str>, (u64, Duration, u64)> = SortedMap::new();
        for name in seen.launched {
            by_name.entry(name).or_default().0 += 1;
        }
        for (name, time) in seen.measured {
            by_name.entry(name).or_default().1 += time().unwrap_or_default();
        }
        for (name, bytes) in seen.moved {
            by_name.entry(name).or_default().2 += bytes;
        }
        let one = |(name, (launches, time, bytes)): (Arc<str>, (u64, Duration, u64))| KernelUse {
            name: name.to_string(),
            launches,
            ms: time.as_secs_f64() * 1e3,
            bytes,
            products: vec![],
        };
        by_time(grouped(by_name.into_iter().map(one)))
    }
}

static NOW: Mutex<Option<Arc<Launches>>> = Mutex::new(None);

/// The active watch, if any.
pub fn watched() -> Option<Arc<Launches>> {
    NOW.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Whether a watch counts kernels by line or by launch.
pub fn is_watched_by_launch() -> bool {
    watched().is_some_and(|launches| launches.by != KernelsBy::Kernel)
}

/// Adds the bytes of a launch to the active watch, by the short name of its kernel.
pub fn moved(kernel: &str, bytes: impl FnOnce() -> u64) {
    if let Some(launches) = watched() {
        let bytes = bytes();
        launches.note(kernel, |seen, key| seen.moved.push((key, bytes)));
    }
}

/// A launch that kernels are counted under while this lives. Other devices of the process wait, so that theirs are not.
pub(crate) struct Launching {
    launches: Arc<Launches>,
    _alone: MutexGuard<'static, ()>,
}

impl Drop for Launching {
    fn drop(&mut self) {
        self.launches.seen.lock().unwrap_or_else(PoisonError::into_inner).at = None;
    }
}

/// Sets the key of the launches that follow, unless kernels are counted by their names. The launches must end before
/// the returned value is dropped.
pub(crate) fn at(launch: impl FnOnce(KernelsBy) -> String) -> Option<Launching> {
    static ALONE: Mutex<()> = Mutex::new(());
    let launches = watched().filter(|launches| launches.by != KernelsBy::Kernel)?;
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let at = launch(launches.by).into();
    launches.seen.lock().unwrap_or_else(PoisonError::into_inner).at = Some(at);
    Some(Launching { launches, _alone: alone })
}

/// Watches all devices of this process until it ends. Each launch then takes the host a few microseconds longer.
#[must_use = "what was launched is told at the end"]
pub struct KernelWatch {
    launches: Arc<Launches>,
    observation: Option<Box<dyn Any + Send>>,
}

impl KernelWatch {
    /// Begins a watch, if devices report kernels; there is one at a time. Unless kernels are counted by their names,
    /// each launch ends before the next begins. `observe` makes devices report kernels while its result lives.
    pub(crate) fn start(
        by: KernelsBy,
        observe: impl FnOnce(&Arc<Launches>) -> Option<Box<dyn Any + Send>>,
    ) -> KernelWatch {
        let launches = Arc::new(Launches { by, seen: Mutex::default() });
        let observation = observe(&launches);
        // Devices that report no kernels run without a watch.
        if observation.is_some() {
            *NOW.lock().unwrap_or_else(PoisonError::into_inner) = Some(launches.clone());
        }
        KernelWatch { launches, observation }
    }

    /// The kernels since the start, in descending order of time; none on CPUs. Waits for the measurements.
    pub fn end(self) -> Vec<KernelUse> {
        let launches = self.launches.clone();
        drop(self);
        launches.uses()
    }
}

impl Drop for KernelWatch {
    fn drop(&mut self) {
        if self.observation.take().is_some() {
            *NOW.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
}

fn by_time(mut all: Vec<KernelUse>) -> Vec<KernelUse> {
    all.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    all
}

/// Merges names that are equal before the separator.
fn grouped(all: impl Iterator<Item = KernelUse>) -> Vec<KernelUse> {
    let mut groups: SortedMap<String, KernelUse> = SortedMap::new();
    for kernel in all {
        let (name, product) = match kernel.name.split_once(OF) {
            Some((name, product)) => (name.to_owned(), Some(product.to_owned())),
            None => (kernel.name.clone(), None),
        };
        let new = || KernelUse { name: name.clone(), launches: 0, ms: 0.0, bytes: 0, products: vec![] };
        let group = groups.entry(name.clone()).or_insert_with(new);
        group.launches += kernel.launches;
        group.ms += kernel.ms;
        group.bytes += kernel.bytes;
        group.products.extend(product.map(|name| KernelUse { name, ..kernel }));
    }
    let sorted = |group: KernelUse| KernelUse { products: by_time(group.products), ..group };
    groups.into_values().map(sorted).collect()
}
