//! Launches of CubeCL, told to who watches devices.

use cubecl::client::Client;
use cubecl::config::{TypeNameFormatLevel, type_name_format};
use cubecl::future::block_on;
use cubecl::logging::{
    Duration, LaunchObservation, LaunchObserver, ProfileDuration, TimingMethod, TimingRequest,
};
use meshwright_exec::watch::{Launches, Measured, OF, watched};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

struct Observer(Arc<Launches>);

/// The name of a kernel, without what it is generic over. What is computed by a library has no type's name.
fn short(kernel: &str) -> String {
    match kernel.contains(OF) {
        true => kernel.into(),
        false => type_name_format(kernel, TypeNameFormatLevel::Short),
    }
}

/// What CubeCL says where the clock of the device could not be read.
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

/// Has CubeCL tell of what it launches, until what is given is dropped.
pub(crate) fn observe(launches: &Arc<Launches>) -> Box<dyn Any + Send> {
    Box::new(LaunchObservation::new(Arc::new(Observer(launches.clone()))))
}

/// The name of a library with what it computes, which lives as long as the process: there are few.
pub(crate) fn name_of(library: &str, computed: &str) -> &'static str {
    static NAMES: Mutex<BTreeMap<String, &'static str>> = Mutex::new(BTreeMap::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let name = format!("{library}{OF}{computed}");
    names.entry(name.clone()).or_insert_with(|| name.leak())
}

/// Launches a kernel that is not of the backend, which somebody watches: `launch` hands it to the device, and comes back when it
/// is on its stream.
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
