//! What sessions leave when they are gone, in a process of their own: nothing of the allocator's, and no thread.

#![allow(clippy::unwrap_used, reason = "tests")]

use meshwright_exec::{HostData, HostTensor};
use meshwright_plan::DType;
use meshwright_train::{GivenBatch, Project, ProjectOptions, StepSession, TrainOptions};
use peakmem_alloc::{INSTRUMENTED_SYSTEM, PeakMemAlloc, PeakMemAllocTrait};
use std::alloc::System;
use std::ops::Range;

#[global_allocator]
static ALLOCATOR: &PeakMemAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Its rows are enough that the threads of a device share them.
const MODEL: &str = "
dim batch = 4096, n = 64
model small {
    input x[batch, n]: f32
    param w[n] = normal(0, 0.5)
    loss l = mean[batch](square(sum[n](x * w)))
}
train small { minimize l optimizer sgd(lr = 0.1) }
";

/// The most that a session may leave. With a thread of a pool that did not end, or the pool's queues, each device leaves some 5
/// KB.
const MOST: usize = 200;

/// A batch of ones.
struct Ones;

impl GivenBatch for Ones {
    fn names(&self) -> Vec<&str> {
        vec!["x"]
    }

    fn form(&self, name: &str) -> Option<(DType, Vec<usize>)> {
        (name == "x").then(|| (DType::F32, vec![4096, 64]))
    }

    fn part(&self, _: &str, ranges: &[Range<usize>]) -> Option<HostTensor> {
        let shape: Vec<usize> = ranges.iter().map(ExactSizeIterator::len).collect();
        let elements = shape.iter().product();
        HostTensor::new(shape, HostData::F32(vec![1.0; elements]))
    }
}

fn opened(times: usize, steps: bool) {
    for _ in 0..times {
        let options = ProjectOptions {
            model: "small.mw".into(),
            texts: [("small.mw".to_string(), MODEL.to_string())].into(),
            layout: Some("batch -> r".into()),
            mesh: Some("r=2".into()),
            ..ProjectOptions::default()
        };
        let loaded = Project::load(&options);
        assert!(loaded.project.is_some(), "{:?}", loaded.diagnostics);
        let options = TrainOptions { cores: Some(4), ..TrainOptions::default() };
        let mut session = StepSession::start(loaded.project.unwrap(), loaded.sources, options).unwrap();
        if steps {
            let given = session.step_needs().unwrap().take(&Ones).unwrap();
            assert!(session.step(given).unwrap().loss > 0.0);
        }
    }
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn sessions_leave_nothing() {
    let times = if std::env::var("LONG").is_ok_and(|long| long == "1") { 10_000 } else { 200 };
    let most_of = |times, steps| {
        ALLOCATOR.reset_peak_memory();
        opened(times, steps);
        ALLOCATOR.get_peak_memory()
    };
    for steps in [false, true] {
        // The first fill what is kept once.
        opened(20, steps);
        let before = threads();
        let (few, many) = (most_of(20, steps), most_of(times, steps));
        assert!(many < few + MOST * times, "{times} sessions take {many} bytes at most, 20 take {few}");
        assert!(threads() <= before, "{} threads are left, before {before}", threads());
    }
}
