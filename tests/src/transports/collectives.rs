//! Every collective, dtype and fold on one group.

use super::values::{PlainValue, SuiteRng, TestValue, Truth, Typed};
use super::{Checked, Device, Wrong};
use half::{bf16, f16};
use meshwright_comm::fold::can_fold;
use meshwright_comm::{
    Call, CollectiveKind, Collectives, CommError, Group, Layout, Part, Slot, Tag, ValueIndexF32,
    ValueIndexF64,
};
use meshwright_plan::Monoid;

pub(super) fn all(device: &mut Device<'_>, group: &Group, name: &str) {
    each::<PlainValue<f32>>(device, group, name);
    each::<PlainValue<f64>>(device, group, name);
    each::<PlainValue<bf16>>(device, group, name);
    each::<PlainValue<f16>>(device, group, name);
    each::<PlainValue<i32>>(device, group, name);
    each::<PlainValue<u8>>(device, group, name);
    each::<Truth>(device, group, name);
    each::<PlainValue<ValueIndexF32>>(device, group, name);
    each::<PlainValue<ValueIndexF64>>(device, group, name);
    device.case(format!("barrier on {name}"), |d| {
        let (tag, _) = d.next();
        Ok(d.transport.barrier(group, &tag)?)
    });
}

/// A case of a dtype on a group.
type Check = fn(&mut Device<'_>, &Group) -> Checked;

fn each<D: Typed>(device: &mut Device<'_>, group: &Group, name: &str) {
    let dtype = D::DTYPE;
    for monoid in Monoid::ALL {
        if !can_fold(monoid, dtype) {
            device.case(format!("no {monoid} of {dtype} on {name}"), |d| refuses::<D>(d, group, monoid));
            continue;
        }
        device
            .case(format!("all_reduce {monoid} of {dtype} on {name}"), |d| all_reduce::<D>(d, group, monoid));
        device.case(format!("reduce_scatter {monoid} of {dtype} on {name}"), |d| {
            reduce_scatter::<D>(d, group, monoid)
        });
    }
    let cases: [(&str, Check); 4] = [
        ("all_gather", all_gather::<D>),
        ("all_to_all", all_to_all::<D>),
        ("permute", permute::<D>),
        ("broadcast", broadcast::<D>),
    ];
    for (collective, case) in cases {
        device.case(format!("{collective} of {dtype} on {name}"), |d| case(d, group));
    }
}

pub(super) fn equal<E: TestValue>(got: &[E], want: &[E], tag: &Tag) -> Checked {
    let differs = got.iter().zip(want).position(|(g, w)| g.bits() != w.bits());
    match differs {
        None if got.len() == want.len() => Ok(()),
        None => Err(Wrong::Result(format!("{tag}: {} elements instead of {}", got.len(), want.len()))),
        Some(i) => Err(Wrong::Result(format!("{tag}: element {i} is {:?} instead of {:?}", got[i], want[i]))),
    }
}

/// Elements that a member starts with: a function of its rank and the case, so that all know what they must receive.
fn input<E: TestValue>(group: &Group, member: usize, case: usize, len: usize) -> Vec<E> {
    E::samples(&mut SuiteRng::of(&[group.ranks()[member], case]), len)
}

/// Compares with the naive fold of everybody's elements.
fn folded<E: TestValue>(
    device: &Device<'_>,
    group: &Group,
    (monoid, case): (Monoid, usize),
    (got, start, len): (&[E], usize, usize),
    tag: &Tag,
) -> Checked {
    let all: Vec<Vec<E>> = (0..group.size()).map(|m| input(group, m, case, len)).collect();
    for (i, got) in got.iter().enumerate() {
        let members = || all.iter().map(|of| of[start + i]);
        let want = match device.settings.rounds_each {
            true => members().reduce(|a, b| E::naive(monoid, a, b)),
            false => E::fold_all(monoid, members()),
        };
        let Some(want) = want else { continue };
        let scale = match monoid {
            Monoid::Sum => members().map(|x| x.value().abs()).sum(),
            Monoid::Prod => want.value().abs(),
            _ => 0.0,
        };
        let off = (got.value() - want.value()).abs();
        let close = !device.settings.exact && off <= scale * E::EPSILON * group.size() as f64;
        if got.bits() != want.bits() && !close {
            let i = start + i;
            return Err(Wrong::Result(format!("{tag}: element {i} is {got:?} instead of {want:?}")));
        }
    }
    Ok(())
}

/// Counts that all members know: some 0, some more than a chunk.
fn counts(group: &Group, case: usize, salt: usize) -> Vec<usize> {
    let mut rng = SuiteRng::of(&[group.ranks().iter().sum(), case, salt]);
    (0..group.size()).map(|_| [0, 1, 3, 517, 9001][rng.below(5)]).collect()
}

fn all_reduce<D: Typed>(device: &mut Device<'_>, group: &Group, monoid: Monoid) -> Checked {
    // The first with one that goes alone, the second with small ones only.
    for lens in [[0, 5, 20_011, 0, 1023], [7, 1, 0, 2, 30]] {
        let (tag, case) = device.next();
        let here = group.position();
        let mut bucket: Vec<Vec<D::E>> =
            lens.iter().enumerate().map(|(i, len)| input(group, here, case * 8 + i, *len)).collect();
        // The last one apart from its result.
        let from = bucket.pop().unwrap_or_default();
        let mut to = vec![D::E::default(); from.len()];
        let mut slots: Vec<_> = bucket.iter_mut().map(|b| Slot::InPlace(D::buf_mut(b))).collect();
        slots.push(Slot::Apart(D::buf(&from), D::buf_mut(&mut to)));
        device.transport.call(group, &tag, Call::all_reduce(monoid, slots))?;
        bucket.push(to);
        for (i, got) in bucket.iter().enumerate() {
            folded(device, group, (monoid, case * 8 + i), (got, 0, lens[i]), &tag)?;
        }
        equal(&from, &input(group, here, case * 8 + 4, lens[4]), &tag)?;
    }
    Ok(())
}

fn refuses<D: Typed>(device: &mut Device<'_>, group: &Group, monoid: Monoid) -> Checked {
    let (tag, _) = device.next();
    let mut data = [D::E::default(); 4];
    match device.transport.all_reduce(group, &tag, monoid, [D::buf_mut(&mut data)]) {
        Err(CommError::NoFold { .. }) => Ok(()),
        other => Err(Wrong::Result(format!("{other:?}"))),
    }
}

fn reduce_scatter<D: Typed>(device: &mut Device<'_>, group: &Group, monoid: Monoid) -> Checked {
    let (tag, case) = device.next();
    let (here, counts) = (group.position(), counts(group, case, 0));
    let len = counts.iter().sum();
    let from: Vec<D::E> = input(group, here, case, len);
    let mut got = vec![D::E::default(); counts[here]];
    let slots = vec![Slot::Apart(D::buf(&from), D::buf_mut(&mut got))];
    let layouts = [Layout::Pieces(counts.as_slice().into()), Layout::Whole];
    let call = Call::new(CollectiveKind::ReduceScatter, layouts, slots).folded(monoid);
    device.transport.call(group, &tag, call)?;
    let start: usize = counts[..here].iter().sum();
    folded(device, group, (monoid, case), (&got, start, len), &tag)
}

fn all_gather<D: Typed>(device: &mut Device<'_>, group: &Group) -> Checked {
    let (tag, case) = device.next();
    let (here, counts) = (group.position(), counts(group, case, 0));
    let from: Vec<D::E> = input(group, here, case, counts[here]);
    let mut got = vec![D::E::default(); counts.iter().sum()];
    let to = D::buf_mut(&mut got);
    device.transport.all_gather_v(group, &tag, D::buf(&from), counts.as_slice(), to)?;
    let want: Vec<D::E> =
        counts.iter().enumerate().flat_map(|(m, n)| input::<D::E>(group, m, case, *n)).collect();
    equal(&got, &want, &tag)
}

fn all_to_all<D: Typed>(device: &mut Device<'_>, group: &Group) -> Checked {
    let (tag, case) = device.next();
    let (here, n) = (group.position(), group.size());
    let sent: Vec<Vec<usize>> = (0..n).map(|m| counts(group, case, m)).collect();
    let from: Vec<D::E> = input(group, here, case, sent[here].iter().sum());
    let receive: Vec<usize> = sent.iter().map(|s| s[here]).collect();
    let mut got = vec![D::E::default(); receive.iter().sum()];
    let (from, to) = ((D::buf(&from), sent[here].as_slice()), (D::buf_mut(&mut got), receive));
    device.transport.all_to_all_v(group, &tag, from, to)?;
    let mut want = Vec::new();
    for (m, counts) in sent.iter().enumerate() {
        let theirs: Vec<D::E> = input(group, m, case, counts.iter().sum());
        let start: usize = counts[..here].iter().sum();
        want.extend_from_slice(&theirs[start..start + counts[here]]);
    }
    equal(&got, &want, &tag)
}

/// A halo of 3 elements from the right neighbor and 2 of the left one, in a row with open ends, and an own part.
fn permute<D: Typed>(device: &mut Device<'_>, group: &Group) -> Checked {
    let (tag, case) = device.next();
    let (here, n, len) = (group.position(), group.size(), 9001);
    let from: Vec<D::E> = input(group, here, case, len);
    let mut got = vec![D::E::default(); len + 6];
    let mut want = got.clone();
    let mut send = vec![Part { peer: here, range: 0..len }];
    let mut receive = vec![Part { peer: here, range: 2..len + 2 }];
    want[2..len + 2].copy_from_slice(&from);
    if here > 0 {
        send.push(Part { peer: here - 1, range: 0..3 });
        // What comes from the left comes in two parts, in their order.
        receive.extend([Part { peer: here - 1, range: 0..1 }, Part { peer: here - 1, range: 1..2 }]);
        want[..2].copy_from_slice(&input(group, here - 1, case, len)[len - 2..]);
    }
    if here + 1 < n {
        send.extend([len - 2, len - 1].map(|at| Part { peer: here + 1, range: at..at + 1 }));
        receive.push(Part { peer: here + 1, range: len + 2..len + 5 });
        want[len + 2..len + 5].copy_from_slice(&input(group, here + 1, case, len)[..3]);
    }
    let (from, to) = ((D::buf(&from), send), (D::buf_mut(&mut got), receive));
    device.transport.permute(group, &tag, from, to)?;
    equal(&got, &want, &tag)
}

fn broadcast<D: Typed>(device: &mut Device<'_>, group: &Group) -> Checked {
    for root in 0..group.size() {
        let (tag, case) = device.next();
        let mut data: Vec<D::E> = input(group, group.position(), case, 9001);
        device.transport.broadcast(group, &tag, root, D::buf_mut(&mut data))?;
        equal(&data, &input(group, root, case, 9001), &tag)?;
        // A bucket, of which some results are apart from what is sent.
        let (tag, case) = device.next();
        let here = group.position();
        let mut first: Vec<D::E> = input(group, here, case * 8, 33);
        let from: Vec<D::E> = input(group, here, case * 8 + 1, 5000);
        let [mut second, mut none] = [vec![D::E::default(); from.len()], vec![]];
        let slots = vec![
            Slot::InPlace(D::buf_mut(&mut first)),
            Slot::Apart(D::buf(&from), D::buf_mut(&mut second)),
            Slot::Apart(D::buf(&[]), D::buf_mut(&mut none)),
        ];
        let layouts = [Layout::Whole, Layout::Whole];
        let call = Call { root: Some(root), ..Call::new(CollectiveKind::Broadcast, layouts, slots) };
        device.transport.call(group, &tag, call)?;
        equal(&first, &input(group, root, case * 8, 33), &tag)?;
        equal(&second, &input(group, root, case * 8 + 1, 5000), &tag)?;
        equal(&from, &input(group, here, case * 8 + 1, 5000), &tag)?;
    }
    Ok(())
}
