//! The thread that stands in for the devices of other processes: it posts their calls as their messages come.

use crate::channel::Received;
use crate::collective_state::Staging;
use crate::message::{DeviceMessage, Header, Message};
use crate::process_devices::{Several, Told};
use meshwright_comm::parts::{Addresses, Pending, PostedCall, check};
use meshwright_comm::wire::Malformed;
use meshwright_comm::{Abort, Group, ThreadsTransport, Transport, flush_subnormals};
use meshwright_sorted::SortedMap;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::Thread;
use std::time::Duration;

/// How often it looks for messages while a device waits for some, and otherwise.
const BUSY: Duration = Duration::from_micros(50);
const IDLE: Duration = Duration::from_millis(1);

/// A proxy thread that was started and has no work yet.
pub(super) struct ProxyThread {
    thread: Thread,
    work: Sender<Weak<Several>>,
}

impl ProxyThread {
    /// Starts the thread with the ends of the devices that are elsewhere, and a way to end the devices here.
    pub(super) fn start(
        others: Vec<ThreadsTransport>,
        own: Option<Arc<dyn Abort>>,
    ) -> std::io::Result<ProxyThread> {
        let (work, wait) = channel();
        let thread = std::thread::Builder::new().name("mpi proxy".into());
        let thread = thread.spawn(move || {
            flush_subnormals();
            if let Ok(several) = wait.recv() {
                Proxy::new(others, own).run(&several);
            }
        })?;
        Ok(ProxyThread { thread: thread.thread().clone(), work })
    }

    pub(super) fn thread(&self) -> &Thread {
        &self.thread
    }

    /// Gives it its work.
    pub(super) fn works_for(self, several: &Arc<Several>) {
        // It waits for nothing else, so it is there.
        let _there = self.work.send(Arc::downgrade(several));
    }
}

/// A device of another process.
struct Elsewhere {
    /// None when it has left.
    end: Option<ThreadsTransport>,
    aborter: Arc<dyn Abort>,
}

struct Proxy {
    devices: SortedMap<usize, Elsewhere>,
    own: Option<Arc<dyn Abort>>,
    /// Collectives with the memory that came by message.
    under_way: Vec<(Pending, Staging)>,
}

impl Proxy {
    fn new(others: Vec<ThreadsTransport>, own: Option<Arc<dyn Abort>>) -> Proxy {
        let elsewhere = |end: ThreadsTransport| {
            let aborter = end.aborter();
            (end.rank(), Elsewhere { end: Some(end), aborter })
        };
        Proxy { devices: others.into_iter().map(elsewhere).collect(), own, under_way: vec![] }
    }

    fn run(mut self, several: &Weak<Several>) {
        let mut over = false;
        while let Some(several) = several.upgrade() {
            for received in several.device_messages() {
                if let Err(e) = self.deliver(&received) {
                    self.abort(&format!("a message of process {}: {e}", received.from));
                }
            }
            if !over && let Some(told) = several.told() {
                over = true;
                match told {
                    Told::ToTerminate => self.abort("its process was asked to terminate"),
                    Told::Aborted { device, reason } => match self.devices.get(&device) {
                        Some(device) => device.aborter.abort(&reason),
                        None => self.abort(&reason),
                    },
                }
            }
            self.under_way.retain(|(pending, _)| !pending.is_over());
            if several.alive.load(Ordering::Acquire) == 0 && self.under_way.is_empty() {
                break;
            }
            let busy = several.under_way.load(Ordering::Relaxed) > 0 || !self.under_way.is_empty();
            drop(several);
            if busy { std::thread::sleep(BUSY) } else { std::thread::park_timeout(IDLE) }
        }
    }

    fn abort(&self, reason: &str) {
        if let Some(own) = &self.own {
            own.abort(reason);
        }
    }

    fn deliver(&mut self, received: &Received) -> Result<(), String> {
        match &received.message {
            Message::Device(DeviceMessage::Entered { device, members, header }) => {
                let group = Group::new(members.clone(), *device).map_err(|e| e.to_string())?;
                let (call, data) = read_call(&group, header, received.payload())?;
                let end = self.devices.get_mut(device).and_then(|d| d.end.as_mut());
                let Some(end) = end else { return Ok(()) };
                #[expect(unsafe_code, reason = "posts the memory of a message")]
                // SAFETY: the memory is kept with the handle until that is over; nobody wants results here, so nothing but
                // the collective reads it.
                let entered = unsafe { end.enter(&group, &header.tag, call) };
                // A call that fails has failed for the devices here too, which say so.
                if let Ok(pending) = entered {
                    self.under_way.push((pending, data));
                }
            }
            Message::Device(DeviceMessage::Ended { device, reason }) => {
                let Some(device) = self.devices.get_mut(device) else { return Ok(()) };
                if let Some(reason) = reason {
                    device.aborter.abort(reason);
                }
                drop(device.end.take());
            }
            other => return Err(format!("not for devices: {other:?}")),
        }
        Ok(())
    }
}

/// The call of a device that is elsewhere, on a copy of what it sends.
fn read_call(group: &Group, header: &Header, payload: &[u8]) -> Result<(PostedCall, Staging), String> {
    check(&header.signature, group, &header.tag).map_err(|e| e.to_string())?;
    let sends = header.signature.sends(group.position());
    let lengths: Vec<usize> =
        header.signature.input_bytes().map(|bytes| if sends { bytes } else { 0 }).collect();
    let expected = lengths.iter().fold(0usize, |sum, n| sum.saturating_add(*n));
    if expected != payload.len() {
        return Err(Malformed::Payload { found: payload.len(), expected }.to_string());
    }
    // Elements are aligned here, as they need not be in the message.
    let mut data = Staging::new(lengths.iter().map(|n| n.next_multiple_of(8)).sum());
    let (mut memory, mut at, mut rest) = (vec![], 0, payload);
    for n in lengths {
        let (input, later) = rest.split_at(n);
        data.bytes_mut(at, n).copy_from_slice(input);
        memory.push(Addresses { source: data.at(at), target: None });
        (at, rest) = (at + n.next_multiple_of(8), later);
    }
    Ok((PostedCall { signature: header.signature.clone(), memory }, data))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use meshwright_comm::{Buf, BufMut, Call, Slot, Tag};
    use meshwright_plan::Monoid;

    #[test]
    #[expect(unsafe_code, reason = "reads the memory of a call")]
    fn calls_come_with_what_they_read() {
        let (a, b) = ([1.0f32, 2.0, 3.0], [7i32]);
        let mut out = ([0f32; 3], [0i32; 1]);
        let slots = vec![
            Slot::Apart(Buf::new(&a), BufMut::new(&mut out.0)),
            Slot::Apart(Buf::new(&b), BufMut::new(&mut out.1)),
        ];
        let (group, tag) = (Group::new([5, 2], 2).unwrap(), Tag::new(3, "w", 9));
        let call = Call::all_reduce(Monoid::Sum, slots).checked(&group, &tag, (2, 6)).unwrap();
        // SAFETY: arrays of this function.
        let payload = unsafe { crate::process_devices::payload(&call, group.position()) };
        let header = Header { tag, signature: call.signature };
        let (read, _data) = read_call(&group, &header, &payload).unwrap();
        // SAFETY: the message's memory, in `_data`.
        let values = unsafe {
            let first = std::slice::from_raw_parts(read.memory[0].source.cast::<f32>(), 3);
            (first.to_vec(), *read.memory[1].source.cast::<i32>())
        };
        assert_eq!(values, (a.to_vec(), 7));
        assert!(read.memory.iter().all(|m| m.target.is_none()));
        for end in 0..payload.len() {
            assert!(read_call(&group, &header, &payload[..end]).is_err(), "{end}");
        }
        // Sizes that contradict each other are no call, whatever the payload.
        let mut wrong = header;
        wrong.signature.buffers[0].output = 2;
        assert!(read_call(&group, &wrong, &payload).is_err());
    }
}
