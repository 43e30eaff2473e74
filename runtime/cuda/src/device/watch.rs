//! Launches of CubeCL, reported to a watch.

use cubecl::client::Client;
use cubecl::config::{TypeNameFormatLevel, type_name_format};
use cubecl::future::block_on;
use cubecl::logging::{
    Duration, LaunchObservation, LaunchObserver, ProfileDuration, TimingMethod, TimingRequest,
};
use meshwright_exec::watch::{Launches, Measured, OF, watched};
use meshwright_sorted::SortedMap;
use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

struct Observer(Arc<Launches>);

/// The name of a kernel, without type parameters. A library's computation has no type name.
fn short(kernel: &str) -> String {
    match kernel.contains(OF) {
        true => kernel.into(),
        false => type_name_format(kernel, TypeNameFormatLevel::Short),
    }
}

/// CubeCL's value if the clock of the device could not be read.
const UNKNOWN: Duration = Duration::from_secs(3600);

/// A time that is known where it is.
fn known(time: Duration) -> Option<Duration> {
    Some(time).filter(|time| *time < UNKNOWN)
}

impl LaunchObserver for Observer {
    fn launched(&self, kernel: &'static str) {
        self.0.launched(&short(kernel));
    }

    /// Nothing waits for a kernel.
    fn timing(&self) -> TimingRequest {
        TimingRequest::Deferred
    }

    fn profiled(&self, kernel: &'static str, profile: ProfileDuration) {
        let time: Measured = Box::new(move || block_on(profile.resolve()).and_then(|t| known(t.duration())));
        self.0.measured(&short(kernel), time);
    }

    fn timed(&self, kernel: &'static str, duration: Duration, _: TimingMethod) {
        self.0.measured(&short(kernel), Box::new(move || known(duration)));
    }
}

/// Makes CubeCL report launches, until the returned value is dropped.
pub(crate) fn observe(launches: &Arc<Launches>) -> Box<dyn Any + Send> {
    Box::new(LaunchObservation::new(Arc::new(Observer(launches.clone()))))
}

/// The name of a library with its computation, which lives as long as the process: there are few.
pub(crate) fn name_of(library: &str, computed: &str) -> &'static str {
    static NAMES: Mutex<SortedMap<String, &'static str>> = Mutex::new(SortedMap::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let name = format!("{library}{OF}{computed}");
    names.entry(name.clone()).or_insert_with(|| name.leak())
}

/// Launches a kernel of a library under a watch: `launch` hands it to the device, and returns when it is on its stream.
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
    if let Some(launches) = watched() {
        let observer = Observer(launches);
        observer.launched(kernel);
        if let Ok(((), profile)) = profile {
            observer.profiled(kernel, profile);
        }
    }
}
