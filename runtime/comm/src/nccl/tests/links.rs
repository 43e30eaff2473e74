//! Messages between stages of a pipeline: each link has its own order, what is received ahead of its time keeps nobody waiting,
//! and whoever waits for ever is told with both ends.

use super::fake::{self, Compute};
use super::{on_gpus, on_these, options, tag, world};
use crate::nccl::{DeviceMemory, LaunchOrder, NcclOptions, NcclTransport};
use crate::{
    AsyncCollective, Call, CallRecorder, Collectives, CommError, Group, Part, Timeouts, Transport,
    TransportMemory,
};
use meshwright_plan::{DType, Monoid};
use std::time::Duration;

const LEN: usize = 50;

/// A stage, with what it sends and what it gets.
struct Stage {
    transport: NcclTransport,
    stream: Compute,
    out: DeviceMemory,
    into: DeviceMemory,
    /// What comes back.
    answer: DeviceMemory,
    sum: DeviceMemory,
    none: DeviceMemory,
}

impl Stage {
    /// With links to the next stage and to the one before, both ways.
    fn new(mut transport: NcclTransport) -> Stage {
        let (rank, size) = (transport.rank(), transport.size());
        let pairs = (1..size).flat_map(|k| [[k - 1, k], [k, k - 1]]);
        let links: Vec<Group> = pairs.filter_map(|pair| Group::new(pair, rank).ok()).collect();
        transport.prepare_links(&links).unwrap();
        let [mut out, into, mut answer, mut sum, none] =
            [LEN, LEN, LEN, 1, 0].map(|n| transport.memory(n, DType::F32).unwrap());
        out.write(&[0; 4 * LEN]).unwrap();
        answer.write(&[0; 4 * LEN]).unwrap();
        sum.write(&[0; 4]).unwrap();
        let stream = Compute::new();
        #[expect(unsafe_code, reason = "a stream is known by its address")]
        // SAFETY: the stream is never destroyed.
        unsafe {
            transport.compute_on(stream.address());
        }
        transport.first_step_done();
        Stage { transport, stream, out, into, answer, sum, none }
    }

    /// Starts one end of a message: the first rank sends, the other one receives.
    #[expect(unsafe_code, reason = "starts a call on memory of a GPU")]
    fn start(&mut self, number: u64, ends: [usize; 2]) -> Result<Box<dyn AsyncCollective>, CommError> {
        let link = Group::new(ends, self.transport.rank()).unwrap();
        let part = |peer| vec![Part { peer, range: 0..LEN }];
        let call = match link.position() {
            0 => Call::permute((self.out.buf(), part(1)), (self.none.buf_mut(), vec![])),
            _ if ends[0] < ends[1] => {
                Call::permute((self.none.buf(), vec![]), (self.into.buf_mut(), part(0)))
            }
            _ => Call::permute((self.none.buf(), vec![]), (self.answer.buf_mut(), part(0))),
        };
        // SAFETY: the memory stays until the end.
        unsafe { self.transport.post(&link, &tag(number).over_link(ends), call) }
    }

    fn all_reduce(&mut self, number: u64) -> Result<(), CommError> {
        let group = world(&self.transport);
        self.transport.all_reduce(&group, &tag(number), Monoid::Sum, [self.sum.buf_mut()])
    }

    /// A kernel that takes its time and writes what is sent.
    fn compute(&self, value: f32) {
        let address = self.out.address();
        self.stream.push(move || {
            std::thread::sleep(Duration::from_millis(30));
            #[expect(unsafe_code, reason = "the stand-in's GPU memory is the host's")]
            // SAFETY: memory of the stand-in, which the order of streams keeps from others.
            unsafe { std::slice::from_raw_parts_mut(address as *mut f32, LEN) }.fill(value);
        });
    }

    /// What is sent next is what was received last.
    fn pass_on(&self) {
        self.stream.copy(self.into.address(), self.out.address(), 4 * LEN);
    }

    fn received(&mut self) -> Result<f32, CommError> {
        self.transport.settle()?;
        let mut bytes = [0; 4 * LEN];
        let last = if self.transport.rank() == 0 { &self.answer } else { &self.into };
        last.read(&mut bytes)?;
        Ok(f32::from_ne_bytes(bytes[4 * LEN - 4..].try_into().unwrap()))
    }
}

/// The first stage receives before it has computed what the answer comes of, with a collective of all in between. With the work
/// of the whole context before each call, as collectives have it, that would wait for ever.
#[test]
fn what_is_received_ahead_keeps_nobody_waiting() {
    let values = on_gpus(3, &options(Timeouts::for_tests()), |transport| {
        let mut stage = Stage::new(transport);
        let (rank, last) = (stage.transport.rank(), stage.transport.size() - 1);
        for number in 1..4 {
            let ahead = (rank < last).then(|| stage.start(number, [rank + 1, rank]).unwrap());
            stage.all_reduce(number).unwrap();
            if rank == 0 {
                stage.compute(number as f32);
            } else {
                stage.start(number, [rank - 1, rank]).unwrap().wait().unwrap();
                stage.pass_on();
            }
            let sent = (rank < last).then(|| stage.start(number, [rank, rank + 1]).unwrap());
            for mut message in ahead.into_iter().chain(sent) {
                message.wait().unwrap();
            }
            if rank > 0 {
                stage.start(number, [rank, rank - 1]).unwrap().wait().unwrap();
            }
        }
        stage.received().unwrap()
    });
    assert_eq!(values, [3.0; 3]);
}

fn soon() -> NcclOptions {
    options(Timeouts { first_step: Duration::from_secs(20), later: Duration::from_millis(400) })
}

/// The errors of both, one of which says what it waited for.
fn told(results: Vec<Result<f32, CommError>>, what: &[&str]) {
    let all: Vec<String> = results.into_iter().map(|r| r.unwrap_err().to_string()).collect();
    let named = |text: &String| text.contains("timed out") && what.iter().any(|w| text.contains(w));
    assert!(all.iter().all(named), "{all:?}");
}

/// Stages that each wait for the other before they send.
#[test]
fn stages_that_wait_for_each_other_are_told_with_the_ends_of_the_link() {
    let results = on_gpus(2, &soon(), |transport| {
        let mut stage = Stage::new(transport);
        let rank = stage.transport.rank();
        stage.start(1, [1 - rank, rank])?.wait()?;
        stage.pass_on();
        stage.start(1, [rank, 1 - rank])?.wait()?;
        stage.received()
    });
    let other =
        |a, b| format!("message #1 of `v1` from rank {a} to rank {b} at line 11; waiting for rank {a} (");
    told(results, &[&other(0, 1), &other(1, 0)]);
}

/// A stage that sends no more.
#[test]
fn a_message_that_never_comes_is_told_with_the_ends_of_the_link() {
    let first = fake::gpus(2);
    // Each link has had its first message.
    fake::fault(&format!("stall:gpu{first}:call2"));
    let results = on_these(&[first, first + 1], &soon(), |transport| {
        let mut stage = Stage::new(transport);
        stage.start(1, [0, 1])?.wait()?;
        stage.received()
    });
    told(results, &["message #1 of `v1` from rank 0 to rank 1 at line 11"]);
}

/// Where the host waits for all work of a GPU, what is received ahead would never come.
#[test]
fn the_host_cannot_order_links() {
    let options = NcclOptions { launch_order: LaunchOrder::HostSync, ..options(Timeouts::for_tests()) };
    let errors = on_gpus(2, &options, |mut transport| {
        let link = Group::new([0, 1], transport.rank()).unwrap();
        transport.prepare_links(&[link]).unwrap_err().to_string()
    });
    assert!(
        errors.iter().any(|e| e.contains("stages of a pipeline send in the order of their GPUs")),
        "{errors:?}"
    );
}

/// Messages in a graph, with streams of their own: an answer is received ahead.
#[test]
fn messages_are_recorded_with_what_is_computed() {
    on_gpus(2, &options(Timeouts::for_tests()), |mut transport| {
        transport.records_calls = true;
        let mut stage = Stage::new(transport);
        let rank = stage.transport.rank();
        stage.stream.capture();
        #[expect(unsafe_code, reason = "a stream is known by its address")]
        // SAFETY: the stream is there as long as what is recorded.
        unsafe {
            stage.transport.start_recording(stage.stream.address());
        }
        if rank == 0 {
            let mut ahead = stage.start(1, [1, 0]).unwrap();
            stage.compute(7.0);
            let mut sent = stage.start(1, [0, 1]).unwrap();
            ahead.wait().unwrap();
            sent.wait().unwrap();
        } else {
            stage.start(1, [0, 1]).unwrap().wait().unwrap();
            stage.pass_on();
            stage.start(1, [1, 0]).unwrap().wait().unwrap();
        }
        let calls = stage.transport.finish_recording();
        let graph = stage.stream.captured().unwrap();
        for step in 0..3 {
            stage.transport.before_launch(&calls, 1 + 2 * step).unwrap();
            stage.stream.launch(&graph);
            stage.transport.after_launch(&calls, 1 + 2 * step).unwrap();
            assert_eq!(stage.received().unwrap(), 7.0);
            stage.into.write(&[0; 4 * LEN]).unwrap();
            stage.answer.write(&[0; 4 * LEN]).unwrap();
        }
        drop(graph);
    });
}
