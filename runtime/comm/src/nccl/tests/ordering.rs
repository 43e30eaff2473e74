//! Collectives come after what was computed before them, and before what is computed after them, while the host goes on.

use super::fake::Compute;
use super::{on_gpus, options, tag, world};
use crate::TransportMemory;
use crate::nccl::{DeviceMemory, LaunchOrder, NcclOptions, NcclTransport};
use crate::{AsyncCollective, BufMut, Call, Collectives, Slot, Timeouts, Transport};
use meshwright_plan::{DType, Monoid};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// How long a kernel takes.
const LONG: Duration = Duration::from_millis(150);

#[expect(unsafe_code, reason = "the stand-in's GPU memory is the host's")]
fn at<'a>(address: u64, len: usize) -> &'a mut [f32] {
    // SAFETY: memory of the stand-in, which the streams' order keeps from others.
    unsafe { std::slice::from_raw_parts_mut(address as *mut f32, len) }
}

/// A kernel that takes its time and then writes.
fn compute(stream: &Compute, memory: &DeviceMemory, value: f32) {
    let (address, len) = (memory.address(), memory.len());
    stream.push(move || {
        std::thread::sleep(LONG);
        at(address, len).fill(value);
    });
}

fn use_it(stream: &Compute, memory: &DeviceMemory, mut then: impl FnMut(Vec<f32>) + Send + 'static) {
    let (address, len) = (memory.address(), memory.len());
    stream.push(move || then(at(address, len).to_vec()));
}

#[expect(unsafe_code, reason = "starts a collective on memory of a GPU")]
fn start(t: &mut NcclTransport, sequence: u64, memory: &mut DeviceMemory) -> Box<dyn AsyncCollective> {
    let bucket = vec![Slot::InPlace(memory.buf_mut())];
    let group = world(t);
    // SAFETY: the tests keep the memory until the end.
    unsafe { t.post(&group, &tag(sequence), Call::all_reduce(Monoid::Sum, bucket)) }.unwrap()
}

fn in_order(launch_order: LaunchOrder) {
    let options = NcclOptions { launch_order, ..options(Timeouts::for_tests()) };
    on_gpus(2, &options, |mut t| {
        let mut memory: Vec<_> = (0..3).map(|_| t.memory(100, DType::F32).unwrap()).collect();
        let stream = Compute::new();
        memory[0].write(&[0; 400]).unwrap();
        start(&mut t, 0, &mut memory[0]).wait().unwrap();
        t.settle().unwrap();
        t.first_step_done();

        let begin = Instant::now();
        let (send, receive) = channel();
        let mut started = Vec::new();
        for (i, memory) in memory.iter_mut().enumerate() {
            // The first result is computed with, and summed again.
            compute(&stream, memory, (t.rank() + 1 + 10 * i) as f32);
            started.push(start(&mut t, 1 + i as u64, memory));
        }
        started.reverse();
        started.iter_mut().for_each(|s| s.wait().unwrap());
        for memory in &memory {
            let send = send.clone();
            use_it(&stream, memory, move |got| send.send(got).unwrap());
        }
        let host = begin.elapsed();
        let got: Vec<Vec<f32>> = (0..3).map(|_| receive.recv().unwrap()).collect();
        for (i, got) in got.iter().enumerate() {
            assert!(got.iter().all(|x| *x == (3 + 20 * i) as f32), "{i}: {got:?}");
        }
        match launch_order {
            LaunchOrder::Events => assert!(host < LONG, "the host waited {host:?} for the device"),
            LaunchOrder::HostSync => assert!(host >= 3 * LONG),
        }
        t.settle().unwrap();
    });
}

#[test]
fn events_order_collectives_among_kernels_and_the_host_goes_on() {
    in_order(LaunchOrder::Events);
}

#[test]
fn the_host_orders_them_too() {
    in_order(LaunchOrder::HostSync);
}

/// What is dropped without being finished still comes before what is computed later.
#[test]
fn a_dropped_handle_leaves_the_order_as_it_is() {
    on_gpus(2, &options(Timeouts::for_tests()), |mut t| {
        let mut memory = t.memory(100, DType::F32).unwrap();
        let stream = Compute::new();
        compute(&stream, &memory, 1.0);
        drop(start(&mut t, 0, &mut memory));
        let (send, receive) = channel();
        use_it(&stream, &memory, move |got| send.send(got).unwrap());
        assert_eq!(receive.recv().unwrap(), [2.0; 100]);
    });
}

/// A buffer is used for one collective after the other without a pause.
#[test]
fn many_in_flight() {
    let got = on_gpus(3, &options(Timeouts::for_tests()), |mut t| {
        let mut memory = t.memory(7, DType::I32).unwrap();
        memory.write(&[1i32; 7].map(i32::to_ne_bytes).concat()).unwrap();
        let group = world(&t);
        for i in 0..12 {
            let bucket: [BufMut<'_>; 1] = [memory.buf_mut()];
            t.all_reduce(&group, &tag(i), Monoid::Sum, bucket).unwrap();
        }
        let mut bytes = [0; 28];
        memory.read(&mut bytes).unwrap();
        i32::from_ne_bytes(bytes[24..].try_into().unwrap())
    });
    assert_eq!(got, [3i32.pow(12); 3]);
}
