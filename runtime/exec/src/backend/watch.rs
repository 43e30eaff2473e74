//! Which kernels devices launch, and how long these run: for GPUs and their stand-in, whose backend tells. Devices that are threads
//! have no launches to count.

use serde::Serialize;
#[cfg(any(feature = "cuda", feature = "cubecl-cpu"))]
pub(crate) use watched::{at, is_watched, is_watched_by_launch, moved};
#[cfg(feature = "cuda")]
pub(crate) use watched::{call, name_of};

/// What kernels are counted under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelsBy {
    /// Their names.
    Kernel,
    /// The value of the model that they compute, with its line.
    Line,
    /// The launch of the device plan.
    Launch,
}

/// No launch is watched.
#[cfg(not(any(feature = "cuda", feature = "cubecl-cpu")))]
pub(crate) enum Launching {}

/// Tells who watches which launch runs.
#[cfg(not(any(feature = "cuda", feature = "cubecl-cpu")))]
pub(crate) fn at(_: impl FnOnce(KernelsBy) -> String) -> Option<Launching> {
    None
}

/// Whether somebody watches.
#[cfg(not(any(feature = "cuda", feature = "cubecl-cpu")))]
pub(crate) fn is_watched() -> bool {
    false
}

/// Whether somebody watches, and counts kernels by line or by launch.
#[cfg(not(any(feature = "cuda", feature = "cubecl-cpu")))]
pub(crate) fn is_watched_by_launch() -> bool {
    false
}

/// A kernel that was launched while devices were watched.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelUse {
    /// Its name in the backend, without what it is generic over; or the line or launch that it is counted under.
    pub name: String,
    /// How often, by all devices of this process together.
    pub launches: u64,
    /// How long all of these ran, in milliseconds, by the clock of the device where it has one. What was not measured counts 0.
    pub ms: f64,
    /// What all of these read and wrote in memory; a tensor counts once for each that reads or writes it, whatever caches have of it. What is not
    /// counted, such as attention, lookups, convolutions and kernels of Burn, counts 0.
    pub bytes: u64,
    /// Of a library that computes many things, each: a product of matrices, and of which family of kernels the one is that computed it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub products: Vec<KernelUse>,
}

/// Watches all devices of this process until it ends. Each launch then takes the host a few microseconds longer.
#[must_use = "what was launched is told at the end"]
pub struct KernelWatch {
    #[cfg(any(feature = "cuda", feature = "cubecl-cpu"))]
    watched: watched::Watched,
}

impl KernelWatch {
    /// Begins; there is one at a time. Where kernels are not counted by their names, each launch ends before the next begins.
    #[cfg_attr(
        not(any(feature = "cuda", feature = "cubecl-cpu")),
        expect(unused_variables, reason = "nothing is launched")
    )]
    pub fn start(by: KernelsBy) -> KernelWatch {
        KernelWatch {
            #[cfg(any(feature = "cuda", feature = "cubecl-cpu"))]
            watched: watched::Watched::start(by),
        }
    }

    /// What was launched since, what took most time first; nothing on CPUs. Waits for the measurements.
    pub fn end(self) -> Vec<KernelUse> {
        #[cfg(any(feature = "cuda", feature = "cubecl-cpu"))]
        return self.watched.end();
        #[cfg(not(any(feature = "cuda", feature = "cubecl-cpu")))]
        return vec![];
    }
}

#[cfg(any(feature = "cuda", feature = "cubecl-cpu"))]
mod watched {
    use super::{KernelUse, KernelsBy};
    #[cfg(feature = "cuda")]
    use cubecl::client::Client;
    use cubecl::config::{TypeNameFormatLevel, type_name_format};
    use cubecl::future::block_on;
    use cubecl::logging::{
        Duration, LaunchObservation, LaunchObserver, ProfileDuration, TimingMethod, TimingRequest,
    };
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

    /// What came in, in the order of the launches, by what it is counted under.
    #[derive(Default)]
    struct Seen {
        /// The line or launch that runs now.
        at: Option<Arc<str>>,
        launched: Vec<Arc<str>>,
        running: Vec<(Arc<str>, ProfileDuration)>,
        measured: Vec<(Arc<str>, Duration)>,
        moved: Vec<(Arc<str>, u64)>,
    }

    impl Seen {
        /// What a kernel is counted under.
        fn key(&self, kernel: &'static str) -> Arc<str> {
            // What is computed has no type's name.
            let short = || match kernel.contains(OF) {
                true => kernel.into(),
                false => type_name_format(kernel, TypeNameFormatLevel::Short).into(),
            };
            self.at.clone().unwrap_or_else(short)
        }
    }

    struct Observer {
        by: KernelsBy,
        seen: Mutex<Seen>,
    }

    impl Observer {
        fn note(&self, kernel: &'static str, f: impl FnOnce(&mut Seen, Arc<str>)) {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            let key = seen.key(kernel);
            f(&mut seen, key);
        }
    }

    impl LaunchObserver for Observer {
        fn launched(&self, kernel: &'static str) {
            self.note(kernel, |seen, key| seen.launched.push(key));
        }

        /// Nothing waits for a kernel.
        fn timing(&self) -> TimingRequest {
            TimingRequest::Deferred
        }

        fn profiled(&self, kernel: &'static str, profile: ProfileDuration) {
            self.note(kernel, |seen, key| seen.running.push((key, profile)));
        }

        fn timed(&self, kernel: &'static str, duration: Duration, _: TimingMethod) {
            self.note(kernel, |seen, key| seen.measured.push((key, duration)));
        }
    }

    static NOW: Mutex<Option<Arc<Observer>>> = Mutex::new(None);

    fn now() -> Option<Arc<Observer>> {
        NOW.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether somebody watches.
    pub(crate) fn is_watched() -> bool {
        now().is_some()
    }

    /// Whether somebody watches, and counts kernels by line or by launch.
    pub(crate) fn is_watched_by_launch() -> bool {
        now().is_some_and(|observer| observer.by != KernelsBy::Kernel)
    }

    /// Tells who watches what a launch reads and writes, by the short name of its kernel.
    pub(crate) fn moved(kernel: &'static str, bytes: impl FnOnce() -> u64) {
        if let Some(observer) = now() {
            let bytes = bytes();
            observer.note(kernel, |seen, key| seen.moved.push((key, bytes)));
        }
    }

    /// A launch that kernels are counted under while this lives. Other devices of the process wait, so that theirs are not.
    pub(crate) struct Launching {
        observer: Arc<Observer>,
        _alone: MutexGuard<'static, ()>,
    }

    impl Drop for Launching {
        fn drop(&mut self) {
            self.observer.seen.lock().unwrap_or_else(PoisonError::into_inner).at = None;
        }
    }

    /// Tells who watches which launch runs, unless kernels are counted by their names. The launch has to end while what is given lives.
    pub(crate) fn at(launch: impl FnOnce(KernelsBy) -> String) -> Option<Launching> {
        static ALONE: Mutex<()> = Mutex::new(());
        let observer = now().filter(|observer| observer.by != KernelsBy::Kernel)?;
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let at = launch(observer.by).into();
        observer.seen.lock().unwrap_or_else(PoisonError::into_inner).at = Some(at);
        Some(Launching { observer, _alone: alone })
    }

    /// What CubeCL says where the clock of the device could not be read.
    const UNKNOWN: Duration = Duration::from_secs(3600);

    pub(super) struct Watched {
        observer: Arc<Observer>,
        observation: Option<LaunchObservation>,
    }

    impl Drop for Watched {
        fn drop(&mut self) {
            self.observation = None;
            *NOW.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    impl Watched {
        pub(super) fn start(by: KernelsBy) -> Watched {
            let observer = Arc::new(Observer { by, seen: Mutex::default() });
            *NOW.lock().unwrap_or_else(PoisonError::into_inner) = Some(observer.clone());
            Watched { observation: Some(LaunchObservation::new(observer.clone())), observer }
        }

        pub(super) fn end(self) -> Vec<KernelUse> {
            let seen =
                std::mem::take(&mut *self.observer.seen.lock().unwrap_or_else(PoisonError::into_inner));
            drop(self);
            let mut by_name: BTreeMap<Arc<str>, (u64, Duration, u64)> = BTreeMap::new();
            for name in seen.launched {
                by_name.entry(name).or_default().0 += 1;
            }
            let read = |(name, profile): (_, ProfileDuration)| {
                block_on(profile.resolve()).map(|ticks| (name, ticks.duration()))
            };
            let measured = seen.running.into_iter().filter_map(read).chain(seen.measured);
            for (name, duration) in measured.filter(|(_, duration)| *duration < UNKNOWN) {
                by_name.entry(name).or_default().1 += duration;
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

    fn by_time(mut all: Vec<KernelUse>) -> Vec<KernelUse> {
        all.sort_by(|a, b| b.ms.total_cmp(&a.ms));
        all
    }

    /// What is after the mark in a name goes under what is before it.
    fn grouped(all: impl Iterator<Item = KernelUse>) -> Vec<KernelUse> {
        let mut groups: BTreeMap<String, KernelUse> = BTreeMap::new();
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

    /// Between the name of a library and what it computes.
    const OF: &str = ": ";

    /// The name of a library with what it computes, which lives as long as the process: there are few.
    #[cfg(feature = "cuda")]
    pub(crate) fn name_of(library: &str, computed: &str) -> &'static str {
        static NAMES: Mutex<BTreeMap<String, &'static str>> = Mutex::new(BTreeMap::new());
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        let name = format!("{library}{OF}{computed}");
        names.entry(name.clone()).or_insert_with(|| name.leak())
    }

    /// Launches a kernel that is not of the backend, which somebody watches: `launch` hands it to the device, and comes back when it
    /// is on its stream.
    #[cfg(feature = "cuda")]
    pub(crate) fn call(client: &Client, kernel: &'static str, launch: impl FnOnce() + Send) {
        let waiting = Mutex::new(Some(launch));
        let once = || {
            let launch = waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(launch) = launch {
                launch();
            }
        };
        let profile = client.profile(once, kernel);
        // A device that cannot measure now may not have launched.
        once();
        if let Some(observer) = now() {
            observer.launched(kernel);
            if let Ok(((), profile)) = profile {
                observer.profiled(kernel, profile);
            }
        }
    }
}
