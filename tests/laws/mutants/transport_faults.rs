//! A transport that lies: collectives that end well and do something else than they should.

use meshwright_comm::{
    Abort, AsyncCollective, Call, CollectiveKind, Collectives, CommError, Group, Layout, Part, Slot, Tag,
    Transport,
};
use meshwright_plan::{DType, Monoid};
use std::sync::Arc;

/// What a transport does wrong; all but two on every rank alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// Sums are folded by another monoid.
    Folds(Monoid),
    /// Rank 1 asks for another fold than the others.
    OneFoldsOtherwise,
    /// Sums lack what rank 1 gives.
    WithoutOne,
    /// Each rank folds sums in an order that begins with its own part.
    OwnFirst,
    /// On rank 1 the last bit of the first element of a sum is another one.
    Bit,
    /// The parts of a bucket change places.
    BucketTurned,
    /// A gather counts the first piece one too long, the second one too short.
    Miscounted,
    /// What collectives of a kind give is turned: by the first piece that is received, or by an element.
    Turned(CollectiveKind),
    /// Rank 1 expects what it receives in a permute from other peers.
    Peers,
}

/// A transport with a lie.
pub(crate) struct Lying<T> {
    pub(crate) inner: T,
    pub(crate) lie: Lie,
}

/// The end of a call that was over when it began.
struct Done;

impl AsyncCollective for Done {
    fn wait(&mut self) -> Result<(), CommError> {
        Ok(())
    }
}

impl<T: Transport> Lying<T> {
    fn done(
        &mut self,
        group: &Group,
        tag: &Tag,
        call: Call<'_>,
    ) -> Result<Box<dyn AsyncCollective>, CommError> {
        self.inner.call(group, tag, call)?;
        Ok(Box::new(Done))
    }

    /// A call whose result is then turned left: by the first piece that is received, or by an element.
    fn turned(
        &mut self,
        group: &Group,
        tag: &Tag,
        mut call: Call<'_>,
    ) -> Result<Box<dyn AsyncCollective>, CommError> {
        let by = match &call.receive {
            Layout::Pieces(counts) => counts[0],
            _ => 1,
        };
        let outputs = call.slots.iter_mut().map(|slot| {
            let output = slot.output();
            (output.as_mut_ptr(), output.len(), output.dtype())
        });
        let outputs: Vec<_> = outputs.filter(|(_, len, _)| *len > 0).collect();
        self.inner.call(group, tag, call)?;
        for (output, len, dtype) in outputs {
            #[expect(unsafe_code, reason = "changes the result of a call that is over")]
            // SAFETY: whoever posted the call keeps its result valid and away from others until it was waited for, which
            // it was by the transport beneath, but not yet by them.
            let bytes = unsafe { std::slice::from_raw_parts_mut(output, len * dtype.bytes()) };
            bytes.rotate_left(by % len * dtype.bytes());
        }
        Ok(Box::new(Done))
    }

    /// Folds sums of `f64` by hand, each rank in an order of its own.
    fn own_first(
        &mut self,
        group: &Group,
        tag: &Tag,
        bucket: Vec<Slot<'_>>,
    ) -> Result<Box<dyn AsyncCollective>, CommError> {
        for slot in bucket {
            let len = slot.len();
            let (from, to): (*const f64, *mut f64) = match slot {
                Slot::InPlace(mut b) => (b.as_mut_ptr().cast::<f64>().cast_const(), b.as_mut_ptr().cast()),
                Slot::Apart(a, mut b) => (a.as_ptr().cast(), b.as_mut_ptr().cast()),
            };
            #[expect(unsafe_code, reason = "reads and writes the memory of a call")]
            // SAFETY: the caller's promise: both are aligned, of `len` elements of `f64`, and nobody else's until the call is
            // complete; they are equal or apart, and the first is copied before the second is made.
            let (own, result) = unsafe {
                let own = std::slice::from_raw_parts(from, len).to_vec();
                (own, std::slice::from_raw_parts_mut(to, len))
            };
            let mut all = vec![0.0; len * group.size()];
            self.inner.all_gather_v(group, tag, &own[..], vec![len; group.size()], &mut all[..])?;
            for (i, r) in result.iter_mut().enumerate() {
                let part = |k: usize| all[(group.position() + k) % group.size() * len + i];
                *r = (1..group.size()).fold(part(0), |sum, k| sum + part(k));
            }
        }
        Ok(Box::new(Done))
    }
}

/// The results of a bucket, which hold zeros from now on.
fn zeroed(bucket: Vec<Slot<'_>>) -> Vec<Slot<'_>> {
    let zero = |slot| {
        let (Slot::InPlace(mut b) | Slot::Apart(_, mut b)) = slot;
        #[expect(unsafe_code, reason = "writes the memory of a call")]
        // SAFETY: the caller's promise; zeros are a value of every dtype.
        unsafe {
            b.as_mut_ptr().write_bytes(0, b.len() * b.dtype().bytes());
        }
        Slot::InPlace(b)
    };
    bucket.into_iter().map(zero).collect()
}

/// The same bucket with two parts of equal length and dtype in each other's place.
fn exchanged(mut bucket: Vec<Slot<'_>>) -> Vec<Slot<'_>> {
    let alike = |a: &Slot<'_>, b: &Slot<'_>| a.len() == b.len() && a.dtype() == b.dtype();
    let pairs = (0..bucket.len()).flat_map(|i| (0..i).map(move |j| (i, j)));
    let pair = pairs.into_iter().find(|(i, j)| alike(&bucket[*i], &bucket[*j]));
    if let Some((i, j)) = pair {
        bucket.swap(i, j);
    }
    bucket
}

impl<T: Transport> Transport for Lying<T> {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    #[expect(unsafe_code, reason = "passes the promise on")]
    unsafe fn post(
        &mut self,
        group: &Group,
        tag: &Tag,
        mut call: Call<'_>,
    ) -> Result<Box<dyn AsyncCollective>, CommError> {
        // Plans are compared as they should be: the lies begin with the first step.
        let lie = (&*tag.what != "plan").then_some(self.lie);
        let (one, sums) = (self.rank() == 1, call.monoid == Some(Monoid::Sum));
        match (lie, call.kind) {
            (Some(Lie::Folds(other)), CollectiveKind::AllReduce) if sums => {
                self.done(group, tag, Call { monoid: Some(other), ..call })
            }
            (Some(Lie::OneFoldsOtherwise), CollectiveKind::AllReduce) if one && sums => {
                self.done(group, tag, Call { monoid: Some(Monoid::Max), ..call })
            }
            (Some(Lie::WithoutOne), CollectiveKind::AllReduce) if one && sums => {
                self.done(group, tag, Call::all_reduce(Monoid::Sum, zeroed(call.slots)))
            }
            (Some(Lie::OwnFirst), CollectiveKind::AllReduce)
                if sums && call.slots.iter().all(|s| s.dtype() == DType::F64) =>
            {
                self.own_first(group, tag, call.slots)
            }
            (Some(Lie::Bit), CollectiveKind::AllReduce) if one && sums => {
                let first = call.slots.iter_mut().find(|s| !s.is_empty() && s.dtype() == DType::F64);
                let first = first.map(|slot| slot.output().as_mut_ptr());
                self.inner.call(group, tag, call)?;
                if let Some(first) = first {
                    // SAFETY: as of `turned`; the lowest byte of an element that is there.
                    unsafe { *first ^= 1 };
                }
                Ok(Box::new(Done))
            }
            (Some(Lie::BucketTurned), CollectiveKind::AllReduce) => {
                // Only those that are the first of their group: else all would agree on the exchange.
                if group.position() == 0 {
                    call.slots = exchanged(call.slots);
                }
                self.done(group, tag, call)
            }
            (Some(Lie::Miscounted), CollectiveKind::AllGather) => {
                if let Layout::Pieces(counts) = &mut call.receive
                    && counts.len() > 1
                    && counts[1] > 0
                {
                    let mut wrong = counts.to_vec();
                    (wrong[0], wrong[1]) = (wrong[0] + 1, wrong[1] - 1);
                    *counts = wrong.into();
                }
                self.done(group, tag, call)
            }
            (Some(Lie::Turned(of)), kind) if of == kind => self.turned(group, tag, call),
            (Some(Lie::Peers), CollectiveKind::Permute) if one => {
                let next = |p: &Part| Part { peer: (p.peer + 1) % group.size(), range: p.range.clone() };
                if let Layout::Parts(parts) = &mut call.receive {
                    *parts = parts.iter().map(next).collect();
                }
                self.done(group, tag, call)
            }
            // SAFETY: the caller's promise.
            _ => unsafe { self.inner.post(group, tag, call) },
        }
    }

    fn first_step_done(&mut self) {
        self.inner.first_step_done();
    }

    fn aborter(&self) -> Arc<dyn Abort> {
        self.inner.aborter()
    }
}
