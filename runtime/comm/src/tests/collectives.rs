//! Every collective, dtype and fold, on the subgroups of meshes, with uneven and empty pieces, under random delays,
//! against a naive reference bit for bit. (So reruns are bit-identical too, whatever the order of arrival.)

use super::values::{Rng, Sample};
use super::{on_all, tag};
use crate::fold::can_fold;
use crate::{
    Buf, BufMut, Call, Collectives, CommError, Element, Faulty, Group, PairF32, PairF64, Part, Slot,
};
use crate::{Tag, Timeouts, Transport};
use half::bf16;
use meshwright_plan::{Axis, DType, Mesh, Monoid};
use std::marker::PhantomData;
use std::time::Duration;

/// A dtype with the Rust type that stores it.
trait Typed {
    type E: Sample;
    const DTYPE: DType;
    fn buf(slice: &[Self::E]) -> Buf<'_>;
    fn buf_mut(slice: &mut [Self::E]) -> BufMut<'_>;
}

struct Plain<T>(PhantomData<T>);

impl<T: Sample> Typed for Plain<T> {
    type E = T;
    const DTYPE: DType = <T as Element>::DTYPE;
    fn buf(slice: &[T]) -> Buf<'_> {
        Buf::new(slice)
    }
    fn buf_mut(slice: &mut [T]) -> BufMut<'_> {
        BufMut::new(slice)
    }
}

struct Truth;

impl Typed for Truth {
    type E = u8;
    const DTYPE: DType = DType::Bool;
    fn buf(slice: &[u8]) -> Buf<'_> {
        Buf::truth(slice)
    }
    fn buf_mut(slice: &mut [u8]) -> BufMut<'_> {
        BufMut::truth(slice)
    }
}

/// One device's way through the cases. What a member holds is a function of its rank and the case, so that every member
/// can compute what it must receive.
struct Device<T> {
    transport: T,
    group: Group,
    sequence: u64,
}

fn equal<E: Sample>(got: &[E], want: &[E], case: &Tag) {
    let bits = |x: &[E]| x.iter().map(|e| e.bits()).collect::<Vec<_>>();
    assert!(bits(got) == bits(want), "{case}: {got:?} instead of {want:?}");
}

impl<T: Transport> Device<T> {
    fn next(&mut self) -> (Tag, usize) {
        self.sequence += 1;
        (tag(self.sequence), self.sequence as usize)
    }

    /// Elements that a member starts with.
    fn input<E: Sample>(&self, member: usize, case: usize, len: usize) -> Vec<E> {
        E::samples(&mut Rng::of(&[self.group.ranks()[member], case]), len)
    }

    /// The naive fold of everybody's elements.
    fn folded<E: Sample>(&self, monoid: Monoid, case: usize, len: usize) -> Vec<E> {
        let mut all = (0..self.group.size()).map(|m| self.input::<E>(m, case, len));
        let first = all.next().unwrap();
        all.fold(first, |acc, x| acc.into_iter().zip(x).map(|(a, b)| E::naive(monoid, a, b)).collect())
    }

    /// Counts that all members know: some 0, some more than a chunk.
    fn counts(&self, case: usize, salt: usize) -> Vec<usize> {
        let mut rng = Rng::of(&[self.group.ranks().iter().sum(), case, salt]);
        (0..self.group.size()).map(|_| [0, 1, 3, 517, 9001][rng.below(5)]).collect()
    }

    fn all<D: Typed>(&mut self) {
        for monoid in Monoid::ALL {
            if can_fold(monoid, D::DTYPE) {
                self.all_reduce::<D>(monoid);
                self.reduce_scatter::<D>(monoid);
            } else {
                self.refuses::<D>(monoid);
            }
        }
        self.all_gather::<D>();
        self.all_to_all::<D>();
        self.permute::<D>();
        self.broadcast::<D>();
        let (tag, _) = self.next();
        self.transport.barrier(&self.group, &tag).unwrap();
    }

    fn all_reduce<D: Typed>(&mut self, monoid: Monoid) {
        let (tag, case) = self.next();
        let (here, lens) = (self.group.position(), [0, 5, 20_011, 0, 1023]);
        let mut bucket: Vec<Vec<D::E>> =
            lens.iter().enumerate().map(|(i, len)| self.input(here, case * 8 + i, *len)).collect();
        // The last one apart from its result.
        let from = bucket.pop().unwrap();
        let mut to = vec![D::E::default(); from.len()];
        let mut slots: Vec<_> = bucket.iter_mut().map(|b| Slot::InPlace(D::buf_mut(b))).collect();
        slots.push(Slot::Apart(D::buf(&from), D::buf_mut(&mut to)));
        self.transport.call(&self.group, &tag, Call::AllReduce { monoid, bucket: slots }).unwrap();
        bucket.push(to);
        for (i, got) in bucket.iter().enumerate() {
            equal(got, &self.folded(monoid, case * 8 + i, lens[i]), &tag);
        }
        equal(&from, &self.input(here, case * 8 + 4, lens[4]), &tag);
    }

    fn refuses<D: Typed>(&mut self, monoid: Monoid) {
        let (tag, _) = self.next();
        let mut data = [D::E::default(); 4];
        let result = self.transport.all_reduce(&self.group, &tag, monoid, [D::buf_mut(&mut data)]);
        assert!(matches!(result, Err(CommError::NoFold { .. })), "{result:?}");
    }

    fn reduce_scatter<D: Typed>(&mut self, monoid: Monoid) {
        let (tag, case) = self.next();
        let (here, counts) = (self.group.position(), self.counts(case, 0));
        let len = counts.iter().sum();
        let input: Vec<D::E> = self.input(here, case, len);
        let mut got = vec![D::E::default(); counts[here]];
        let (from, to) = (D::buf(&input), D::buf_mut(&mut got));
        self.transport.reduce_scatter_v(&self.group, &tag, monoid, from, counts.as_slice(), to).unwrap();
        let start: usize = counts[..here].iter().sum();
        let want: Vec<D::E> = self.folded(monoid, case, len);
        equal(&got, &want[start..start + counts[here]], &tag);
    }

    fn all_gather<D: Typed>(&mut self) {
        let (tag, case) = self.next();
        let (here, counts) = (self.group.position(), self.counts(case, 0));
        let input: Vec<D::E> = self.input(here, case, counts[here]);
        let mut got = vec![D::E::default(); counts.iter().sum()];
        let (from, to) = (D::buf(&input), D::buf_mut(&mut got));
        self.transport.all_gather_v(&self.group, &tag, from, counts.as_slice(), to).unwrap();
        let want: Vec<D::E> =
            counts.iter().enumerate().flat_map(|(m, n)| self.input::<D::E>(m, case, *n)).collect();
        equal(&got, &want, &tag);
    }

    fn all_to_all<D: Typed>(&mut self) {
        let (tag, case) = self.next();
        let (here, n) = (self.group.position(), self.group.size());
        let sent: Vec<Vec<usize>> = (0..n).map(|m| self.counts(case, m)).collect();
        let input: Vec<D::E> = self.input(here, case, sent[here].iter().sum());
        let receive: Vec<usize> = sent.iter().map(|s| s[here]).collect();
        let mut got = vec![D::E::default(); receive.iter().sum()];
        let (from, to) = ((D::buf(&input), sent[here].as_slice()), (D::buf_mut(&mut got), receive));
        self.transport.all_to_all_v(&self.group, &tag, from, to).unwrap();
        let mut want = Vec::new();
        for (m, counts) in sent.iter().enumerate() {
            let theirs: Vec<D::E> = self.input(m, case, counts.iter().sum());
            let start: usize = counts[..here].iter().sum();
            want.extend_from_slice(&theirs[start..start + counts[here]]);
        }
        equal(&got, &want, &tag);
    }

    /// A halo of 3 elements from the right neighbour and 2 of the left one, in a row with open ends, and an own part.
    fn permute<D: Typed>(&mut self) {
        let (tag, case) = self.next();
        let (here, n, len) = (self.group.position(), self.group.size(), 9001);
        let input: Vec<D::E> = self.input(here, case, len);
        let mut got = vec![D::E::default(); len + 6];
        let mut want = got.clone();
        let mut send = vec![Part { peer: here, range: 0..len }];
        let mut receive = vec![Part { peer: here, range: 2..len + 2 }];
        want[2..len + 2].copy_from_slice(&input);
        if here > 0 {
            send.push(Part { peer: here - 1, range: 0..3 });
            receive.push(Part { peer: here - 1, range: 0..2 });
            want[..2].copy_from_slice(&self.input(here - 1, case, len)[len - 2..]);
        }
        if here + 1 < n {
            send.push(Part { peer: here + 1, range: len - 2..len });
            receive.push(Part { peer: here + 1, range: len + 2..len + 5 });
            want[len + 2..len + 5].copy_from_slice(&self.input(here + 1, case, len)[..3]);
        }
        let (from, to) = ((D::buf(&input), send), (D::buf_mut(&mut got), receive));
        self.transport.permute(&self.group, &tag, from, to).unwrap();
        equal(&got, &want, &tag);
    }

    fn broadcast<D: Typed>(&mut self) {
        for root in 0..self.group.size() {
            let (tag, case) = self.next();
            let mut data: Vec<D::E> = self.input(self.group.position(), case, 9001);
            self.transport.broadcast(&self.group, &tag, root, D::buf_mut(&mut data)).unwrap();
            equal(&data, &self.input(root, case, 9001), &tag);
        }
    }
}

fn every_case(mesh: &Mesh, delays: Duration) {
    on_all(mesh.devices(), Timeouts::for_tests(), |t| {
        let seed = t.rank() as u64;
        every_case_on(mesh, Faulty::new(t).with_delays(seed, delays));
    });
}

/// Every case of one device, on any transport that folds left to right.
pub(crate) fn every_case_on(mesh: &Mesh, mut transport: impl Transport) {
    let rank = transport.rank();
    let orders: [&[u8]; 5] = [&[], &[0], &[1], &[0, 1], &[1, 0]];
    for (i, axes) in orders.iter().enumerate() {
        let axes: Vec<Axis> = axes.iter().map(|a| Axis(*a)).collect();
        let group = Group::of_mesh(mesh, rank, &axes).unwrap();
        let mut device = Device { transport, group, sequence: 1000 * i as u64 };
        device.all::<Plain<f32>>();
        device.all::<Plain<f64>>();
        device.all::<Plain<bf16>>();
        device.all::<Plain<i32>>();
        device.all::<Plain<u8>>();
        device.all::<Truth>();
        device.all::<Plain<PairF32>>();
        device.all::<Plain<PairF64>>();
        transport = device.transport;
    }
}

#[test]
fn all_collectives_on_2x2() {
    every_case(&Mesh::new([("r", 2), ("c", 2)]), Duration::from_micros(100));
}

#[test]
fn all_collectives_on_2x3() {
    every_case(&Mesh::new([("r", 2), ("c", 3)]), Duration::from_micros(100));
}

#[test]
fn all_collectives_without_delays() {
    every_case(&Mesh::new([("r", 1), ("c", 3)]), Duration::ZERO);
}

#[test]
fn bytes_are_checked_for_length_and_alignment() {
    let words = [0u64; 4];
    let floats: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
    assert!(Buf::from_bytes(&floats[..7], DType::F32).is_err());
    let start = floats.as_ptr().align_offset(8);
    assert!(Buf::from_bytes(&floats[start + 1..start + 9], DType::F64).is_err());
    assert_eq!(Buf::from_bytes(&floats[start..start + 16], DType::PairF32).unwrap().len(), 2);
}
