//! Collectives in graphs: recorded with what is computed around them, and run again by one launch.

use super::fake::{self, Compute, Graph};
use super::{on_gpus, on_these, options, tag, world};
use crate::nccl::{DeviceMemory, NcclTransport};
use crate::{
    AsyncCollective, Call, CallRecorder, Collectives, CommError, RecordedCalls, Slot, Timeouts, Transport,
    TransportMemory,
};
use meshwright_plan::{DType, Monoid};
use std::time::{Duration, Instant};

const BYTES: usize = 400;

/// One GPU with a program: an input is copied, summed over the GPUs twice, and copied out.
struct Recorded {
    transport: NcclTransport,
    stream: Compute,
    input: DeviceMemory,
    sum: DeviceMemory,
    output: DeviceMemory,
    graph: Option<Graph>,
    calls: RecordedCalls,
}

impl Recorded {
    /// Ready to record: the first step is over.
    fn new(mut transport: NcclTransport) -> Recorded {
        // Threads stand for processes here.
        transport.records_calls = true;
        let [input, mut sum, output] = [0; 3].map(|_| transport.memory(BYTES / 4, DType::F32).unwrap());
        let stream = Compute::new();
        let group = world(&transport);
        sum.write(&[0; BYTES]).unwrap();
        transport.all_reduce(&group, &tag(0), Monoid::Sum, [sum.buf_mut()]).unwrap();
        transport.settle().unwrap();
        transport.first_step_done();
        Recorded { transport, stream, input, sum, output, graph: None, calls: RecordedCalls::default() }
    }

    #[expect(unsafe_code, reason = "starts a collective on memory of a GPU")]
    fn start(&mut self, sequence: u64) -> Box<dyn AsyncCollective> {
        let group = world(&self.transport);
        let bucket = vec![Slot::InPlace(self.sum.buf_mut())];
        // SAFETY: the memory stays until the end.
        unsafe { self.transport.post(&group, &tag(sequence), Call::all_reduce(Monoid::Sum, bucket)) }.unwrap()
    }

    #[expect(unsafe_code, reason = "a stream is known by its address")]
    fn record(&mut self) {
        let [input, sum, output] = [&self.input, &self.sum, &self.output].map(DeviceMemory::address);
        self.stream.capture();
        // SAFETY: the stream is there as long as what is recorded.
        unsafe { self.transport.start_recording(self.stream.address()) };
        self.stream.copy(input, sum, BYTES);
        for sequence in 1..3 {
            self.start(sequence).wait().unwrap();
        }
        self.stream.copy(sum, output, BYTES);
        self.calls = self.transport.finish_recording();
        self.graph = Some(self.stream.captured().unwrap());
        assert_eq!(self.calls.count(), 2);
    }

    /// The output for an input that is one number.
    fn launch(&mut self, sequence: u64, value: f32) -> Result<f32, CommError> {
        self.input.write(&[value.to_ne_bytes(); BYTES / 4].concat())?;
        self.transport.before_launch(&self.calls, sequence)?;
        self.stream.launch(self.graph.as_ref().unwrap());
        self.transport.after_launch(&self.calls, sequence)?;
        self.transport.settle()?;
        let mut bytes = [0; BYTES];
        self.output.read(&mut bytes)?;
        Ok(f32::from_ne_bytes(bytes[BYTES - 4..].try_into().unwrap()))
    }
}

#[test]
fn what_was_recorded_computes_with_new_inputs_each_time() {
    on_gpus(2, &options(Timeouts::for_tests()), |transport| {
        let mut device = Recorded::new(transport);
        device.record();
        for step in 0..4 {
            // Twice: the sum is summed again.
            let value = device.launch(1 + 2 * step, (step + device.transport.rank() as u64) as f32).unwrap();
            assert_eq!(value, 2.0 * (2 * step + 1) as f32);
            // Others in between, which are not recorded.
            if step == 1 {
                device.sum.write(&[1f32.to_ne_bytes(); BYTES / 4].concat()).unwrap();
                device.start(100).wait().unwrap();
                let mut bytes = [0; BYTES];
                device.sum.read(&mut bytes).unwrap();
                assert_eq!(bytes[..4], 2f32.to_ne_bytes());
            }
        }
        // As NCCL has it, no communicator ends before the graphs that use it.
        device.graph = None;
        let begin = Instant::now();
        drop(device);
        assert!(begin.elapsed() < Duration::from_secs(60));
    });
}

/// What was started and is not waited for is not part of what the stream records: the driver refuses such a graph.
#[test]
fn what_nobody_waits_for_spoils_the_recording() {
    on_gpus(2, &options(Timeouts::for_tests()), |transport| {
        let mut device = Recorded::new(transport);
        device.stream.capture();
        #[expect(unsafe_code, reason = "a stream is known by its address")]
        // SAFETY: the stream is there as long as what is recorded.
        unsafe {
            device.transport.start_recording(device.stream.address());
        }
        std::mem::forget(device.start(1));
        device.transport.finish_recording();
        assert_eq!(device.stream.captured().err(), Some(904));
    });
}

/// A GPU that does not take part in a collective of a graph: all end in time, though their communicators cannot.
#[test]
fn a_gpu_that_stalls_in_a_graph_ends_all_within_the_timeout() {
    let first = fake::gpus(2);
    // The first call is the one before the recording, two are in each launch.
    fake::fault(&format!("stall:gpu{}:call6", first + 1));
    let timeouts = Timeouts { first_step: Duration::from_secs(20), later: Duration::from_millis(400) };
    let results = on_these(&[first, first + 1], &options(timeouts), |transport| {
        let mut device = Recorded::new(transport);
        device.record();
        for step in 0..2 {
            device.launch(1 + 2 * step, 1.0).unwrap();
        }
        let begin = Instant::now();
        let error = device.launch(5, 1.0).unwrap_err();
        (error, begin.elapsed())
    });
    for (error, time) in results {
        assert!(time < Duration::from_secs(4), "{time:?}: {error}");
        // A launch has the name of its first call, with the number that it has then.
        let name = "all_reduce #5 of `v1 and 1 collectives after it, recorded as one` at line 11";
        match error {
            CommError::Timeout { call, .. } => assert_eq!(call.to_string(), name),
            CommError::Aborted { reason, .. } => assert!(reason.contains(name), "{reason}"),
            other => panic!("{other}"),
        }
    }
}
