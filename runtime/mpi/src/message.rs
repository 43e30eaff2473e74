//! Messages between processes besides the data, on the control channel.

use meshwright_comm::parts::Signature;
use meshwright_comm::{CallName, Tag};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The collective of a group, by the number of those before it on that group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct CollectiveId {
    pub(super) members: Arc<[usize]>,
    pub(super) number: u64,
}

/// A call of another rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) tag: Tag,
    pub(super) signature: Signature,
}

/// Verdict of a group's first member when all had entered, or before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Verdict {
    /// All have entered, and their calls belong together.
    Go,
    /// The calls at these positions do not.
    Conflict(Box<[(usize, Header); 2]>),
    /// The member at this position has cancelled the collective.
    Cancelled(usize),
}

/// Number of collectives that a rank has posted on each of its groups.
pub(super) type PostCounts = Vec<(Arc<[usize]>, u64)>;

/// Position of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Status {
    /// The last collective that it started.
    pub(super) last_call: Option<CallName>,
    /// The collective that it waits for.
    pub(super) waits: Option<CollectiveId>,
    pub(super) posted: PostCounts,
    /// Its groups without a communicator, in the order in which they will have one.
    pub(super) unmade: Vec<Arc<[usize]>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Message {
    /// To the first member of a group: a member has entered a collective.
    Entered(CollectiveId, Header),
    /// From the first member of a group.
    Verdict(CollectiveId, Verdict),
    /// To the first member of a group: a member wants to cancel.
    Cancel(CollectiveId),
    /// To the first member of a group: the sender's next communicator is that of this group.
    Ready(Arc<[usize]>),
    /// From the first member of a group: all make its communicator now.
    Make(Arc<[usize]>),
    /// Request for the position.
    Ask,
    Answer(Status),
    /// Everything ends: who says so, and why.
    Abort(usize, String),
    /// The sender enters no further collective.
    Left(PostCounts),
    /// For the devices of a process that has several.
    Device(DeviceMessage),
}

/// Message from a device to those of other processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum DeviceMessage {
    /// The device has entered a collective. The payload is its inputs, one after the other.
    Entered { device: usize, members: Arc<[usize]>, header: Header },
    /// The device enters no further collective. With a reason, everything ends.
    Ended { device: usize, reason: Option<String> },
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use meshwright_comm::wire::{Malformed, decode, encode};
    use meshwright_comm::{BufMut, Call, CollectiveKind, Group, Slot};
    use meshwright_plan::Monoid;

    fn key() -> CollectiveId {
        CollectiveId { members: vec![3, 1].into(), number: 7 }
    }

    fn header(sequence: u64, call: Call<'_>) -> Header {
        let tag = Tag::new(sequence, "ä", 20);
        let call = call.checked(&Group::new([3, 1], 3).unwrap(), &tag, (3, 4)).unwrap();
        Header { tag, signature: call.signature }
    }

    fn messages() -> Vec<Message> {
        let mut data = [1f32; 3];
        let sum = Call::all_reduce(Monoid::Sum, vec![Slot::InPlace(BufMut::new(&mut data))]);
        let conflict = Box::new([(0, header(1, sum)), (1, header(2, Call::barrier()))]);
        let status = Status {
            last_call: Some(CallName::new(CollectiveKind::Permute, &Tag::new(17, "h1", 20))),
            waits: Some(key()),
            posted: vec![(vec![0, 1].into(), 9), (vec![1].into(), 1)],
            unmade: vec![vec![2, 0].into(), vec![0, 1].into()],
        };
        let entered =
            DeviceMessage::Entered { device: 3, members: key().members, header: header(3, Call::barrier()) };
        vec![
            Message::Entered(key(), header(1, Call::barrier())),
            Message::Verdict(key(), Verdict::Go),
            Message::Verdict(key(), Verdict::Conflict(conflict)),
            Message::Verdict(key(), Verdict::Cancelled(1)),
            Message::Cancel(key()),
            Message::Ready(vec![3, 1].into()),
            Message::Make(vec![0, 2].into()),
            Message::Ask,
            Message::Answer(Status::default()),
            Message::Answer(status),
            Message::Abort(2, "no space left".into()),
            Message::Left(vec![(vec![5, 6].into(), 3)]),
            Message::Device(entered),
            Message::Device(DeviceMessage::Ended { device: 4, reason: None }),
        ]
    }

    #[test]
    fn messages_come_back_and_damaged_ones_are_errors() {
        for message in messages() {
            let bytes = encode(&message);
            assert_eq!(decode::<Message>(&bytes), Ok(message.clone()));
            for end in 0..bytes.len() {
                assert!(decode::<Message>(&bytes[..end]).is_err(), "{end} bytes of {message:?}");
            }
            let longer = [&bytes[..], &[0]].concat();
            assert_eq!(decode::<Message>(&longer), Err(Malformed::Payload { found: 1, expected: 0 }));
            // Any byte may be anything: an error or another message, but no panic.
            for at in 0..bytes.len() {
                for byte in [0, 1, 9, 0x7f, 0xff] {
                    let mut garbled = bytes.clone();
                    garbled[at] = byte;
                    let _either = decode::<Message>(&garbled);
                }
            }
        }
    }

    #[test]
    fn another_format_is_named() {
        let mut bytes = encode(&Message::Ask);
        bytes[0] += 1;
        let error = decode::<Message>(&bytes).unwrap_err();
        assert!(error.to_string().contains("do all ranks run the same build?"), "{error}");
    }
}
